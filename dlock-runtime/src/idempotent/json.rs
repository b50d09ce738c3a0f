//! Stored results as JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use crate::error::{Error, Result};
use crate::idempotent::null_counter::count_hidden;
use crate::key::LockKey;
use crate::printable::shortened;

/// Encodes a result to store. Returns `None` if a later call would not read the same value.
///
/// JSON has no `NaN`, tells no `Some(())` from `None`, and is read to a limited depth. A later call
/// that got another value, or an error about the type, would mislead its caller.
pub(super) fn encoded<T: Serialize + DeserializeOwned>(value: &T) -> Option<Vec<u8>> {
    let hidden = count_hidden(value).ok()?;
    let bytes = serde_json::to_vec(value).ok()?;
    let read: T = serde_json::from_slice(&bytes).ok()?;
    // A type may read `null` as the `Some` that it was, in its own way.
    (hidden == 0 || count_hidden(&read).ok()? == hidden).then_some(bytes)
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

    /// An absent field, a field that is `null`, and a value.
    #[allow(clippy::option_option, reason = "this is how serde distinguishes them")]
    #[test]
    fn a_type_that_reads_null_as_some_is_encoded() {
        fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Option<u8>>, D::Error> {
            Option::deserialize(from).map(Some)
        }

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
