//! Stored results as JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use crate::error::{Error, Result};
use crate::idempotent::lossy_parts::LossyParts;
use crate::key::LockKey;
use crate::printable::shortened;

/// Encodes a result to store. Returns `None` if a later call would not read the same value.
///
/// JSON has no `NaN`, tells no `Some(())` from `None`, and is read to a limited depth. A type may
/// also read its own JSON as another value. A later call that got another value, or an error about
/// the type, would mislead its caller.
pub(super) fn encoded<T: Serialize + DeserializeOwned>(value: &T) -> Option<Vec<u8>> {
    let parts = LossyParts::of(value).ok()?;
    let bytes = serde_json::to_vec(value).ok()?;
    let read: T = serde_json::from_slice(&bytes).ok()?;
    (LossyParts::of(&read).ok()? == parts).then_some(bytes)
}

/// Decodes a stored result.
pub(crate) fn decoded<T: DeserializeOwned>(bytes: &[u8], key: &LockKey) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|problem| {
        let remedy = "if an operator stored it, replace it with `dlock idem resolve --done JSON --replace`; if the type has changed, raise `version`";
        let problem = format!("{}: {remedy}", mismatch(&problem));
        Error::Undecodable { key: key.clone(), problem: problem.into() }
    })
}

/// Decodes the stored result of a step.
pub(super) fn decoded_step<T: DeserializeOwned>(bytes: &[u8], key: &LockKey, step: &str) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|problem| {
        // Neither another version nor `--replace` helps: an attempt reads the steps of the one
        // before, and an operator stores no step.
        let problem = format!(
            "the result of its step `{}` cannot be read as the type that the body expects, {}: keep the old type readable, or store the result of the call with `dlock idem resolve --done JSON`",
            shortened(step),
            mismatch(&problem)
        );
        Error::Undecodable { key: key.clone(), problem: problem.into() }
    })
}

/// Returns why a stored result does not decode. It contains no part of the result.
fn mismatch(problem: &serde_json::Error) -> String {
    let mismatch = match problem.classify() {
        Category::Data => "does not fit the returned type",
        Category::Eof => "ends too early",
        Category::Syntax | Category::Io => "is not JSON",
    };
    format!("at column {} it {mismatch}", problem.column())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Parts<T> {
        part: T,
    }

    #[test]
    fn a_value_that_cannot_be_read_again_is_not_encoded() {
        assert_eq!(encoded(&f64::NAN), None);
        assert_eq!(encoded(&Some(f32::INFINITY)), None);
        assert_eq!(encoded(&Some(())), None);
        assert_eq!(encoded(&Some(None::<u8>)), None);
        assert_eq!(encoded(&Some(serde_json::Value::Null)), None);
        assert_eq!(encoded(&vec![(1, Some(()))]), None);
        assert_eq!(encoded(&Parts { part: Some(()) }), None);
        assert_eq!(encoded(&BTreeMap::from([(1, Some(()))])), None);
        assert_eq!(encoded(&Ok::<_, ()>(Some(()))), None);

        let nested = |depth| (0..depth).fold(serde_json::Value::Null, |inner, _| vec![inner].into());
        assert_eq!(encoded(&nested(128)), None);
        assert!(encoded(&nested(127)).is_some());
    }

    #[allow(clippy::option_option, reason = "this is how serde distinguishes them")]
    fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Option<u8>>, D::Error> {
        Option::deserialize(from).map(Some)
    }

    /// Writes an absent value as a unit, as the `double_option` of `serde_with` does.
    #[allow(clippy::option_option, reason = "this is how serde distinguishes them")]
    #[allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref, reason = "serde has this signature")]
    fn absent_as_unit<S: serde::Serializer>(note: &Option<Option<u8>>, to: S) -> Result<S::Ok, S::Error> {
        match note {
            None => to.serialize_unit(),
            Some(note) => note.serialize(to),
        }
    }

    /// An absent field, a field that is `null`, and a value.
    #[allow(clippy::option_option, reason = "this is how serde distinguishes them")]
    #[test]
    fn a_type_that_reads_null_as_some_is_encoded() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Change {
            #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
            note: Option<Option<u8>>,
        }

        for (note, text) in [(None, "{}"), (Some(None), r#"{"note":null}"#), (Some(Some(7)), r#"{"note":7}"#)]
        {
            let bytes = encoded(&Change { note }).expect("it can be read");

            assert_eq!(std::str::from_utf8(&bytes), Ok(text));
            assert_eq!(serde_json::from_slice::<Change>(&bytes).expect("it is one"), Change { note });
        }
    }

    /// Both an absent field and one that is `null` are written as `null`.
    #[allow(clippy::option_option, reason = "this is how serde distinguishes them")]
    #[test]
    fn a_type_that_reads_its_none_as_some_is_not_encoded() {
        #[derive(Serialize, Deserialize)]
        struct Change {
            #[serde(deserialize_with = "present")]
            note: Option<Option<u8>>,
        }

        #[derive(Serialize, Deserialize)]
        struct UnitChange {
            #[serde(serialize_with = "absent_as_unit", deserialize_with = "present")]
            note: Option<Option<u8>>,
        }

        for (note, is_encoded) in [(None, false), (Some(None), true), (Some(Some(7)), true)] {
            assert_eq!(encoded(&Change { note }).is_some(), is_encoded, "{note:?}");
            assert_eq!(encoded(&UnitChange { note }).is_some(), is_encoded, "unit: {note:?}");
        }
    }

    /// serde reads it as an `f64`, and rounds that.
    #[test]
    fn an_f32_that_is_rounded_twice_is_not_encoded() {
        #[derive(Serialize, Deserialize)]
        #[serde(untagged)]
        enum Amount {
            Number(f32),
        }

        assert!(encoded(&Amount::Number(0.1)).is_some());
        assert!(encoded(&7.038_531e-26_f32).is_some(), "it is read as an `f32`");
        assert_eq!(encoded(&Amount::Number(7.038_531e-26)), None);
    }

    #[test]
    fn a_value_that_can_be_read_again_is_encoded() {
        let encoded_text = |bytes: Option<Vec<u8>>| String::from_utf8(bytes.expect("it is JSON")).ok();
        assert_eq!(encoded_text(encoded(&())).as_deref(), Some("null"));
        assert_eq!(encoded_text(encoded(&None::<()>)).as_deref(), Some("null"));
        assert_eq!(encoded_text(encoded(&u128::MAX)).as_deref(), Some(&*u128::MAX.to_string()));
        assert_eq!(encoded_text(encoded(&Some(vec![None, Some(1.5)]))).as_deref(), Some("[null,1.5]"));
        assert_eq!(encoded_text(encoded(&Parts { part: Some('x') })).as_deref(), Some(r#"{"part":"x"}"#));
        assert_eq!(
            encoded_text(encoded(&BTreeMap::from([(1, None::<u8>)]))).as_deref(),
            Some(r#"{"1":null}"#)
        );
    }
}
