//! Fingerprints of payloads: SHA-256, cut to 128 bits, of bytes or of canonical JSON.
//!
//! Records of all versions contain them, so they must never change.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::config::config;
use crate::config::fingerprint_secrets::FingerprintSecrets;
use crate::error::Result;
use crate::idempotent::child_key::hex;

/// The fingerprints of one payload: under the current secret, and under the one before. Empty if
/// the call has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprints {
    pub(crate) current: String,
    pub(crate) previous: String,
}

impl Fingerprints {
    /// Returns the fingerprints of a value.
    ///
    /// # Errors
    ///
    /// [`Error::Config`](crate::Error::Config) if the value cannot be written as JSON.
    pub(super) fn of_value(
        secrets: &FingerprintSecrets,
        payload: &(impl Serialize + ?Sized),
    ) -> Result<Self> {
        let value = serde_json::to_value(payload).map_err(|problem| {
            config(
                "fingerprint",
                format!("it cannot be written as JSON: {problem}; use another value, or `fingerprint_bytes`"),
            )
        })?;
        let mut canonical = b"json:".to_vec();
        write_canonical(&value, &mut canonical);
        Ok(Self::of(secrets, &canonical))
    }

    /// Returns the fingerprints of bytes.
    pub(super) fn of_bytes(secrets: &FingerprintSecrets, payload: &[u8]) -> Self {
        Self::of(secrets, &[b"bytes:", payload].concat())
    }

    fn of(secrets: &FingerprintSecrets, message: &[u8]) -> Self {
        let of = |secret: Option<&Arc<[u8]>>| match secret {
            Some(secret) => hex(&keyed(secret, message)),
            None => hex(&Sha256::digest(message)),
        };
        // Without a secret now, the one before may have been set; without one before, none was.
        let previous = secrets.current.as_ref().or(secrets.previous.as_ref());
        let previous = previous.map(|_| of(secrets.previous.as_ref()));
        Self { current: of(secrets.current.as_ref()), previous: previous.unwrap_or_default() }
    }
}

/// Writes JSON with sorted fields and without white space. The order of fields in a `Value` depends
/// on a feature of `serde_json` that any crate can enable.
fn write_canonical(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(name, _)| name.as_str());
            out.push(b'{');
            for (number, (name, value)) in fields.into_iter().enumerate() {
                if number > 0 {
                    out.push(b',');
                }
                write_canonical(&Value::String(name.clone()), out);
                out.push(b':');
                write_canonical(value, out);
            }
            out.push(b'}');
        }
        Value::Array(values) => {
            out.push(b'[');
            for (number, value) in values.iter().enumerate() {
                if number > 0 {
                    out.push(b',');
                }
                write_canonical(value, out);
            }
            out.push(b']');
        }
        // The text of a float depends on the version of `serde_json`. This one has the fewest
        // digits that identify the number, as in `-1.5e-7`.
        Value::Number(number) if number.is_f64() => {
            let float = number.as_f64().map(|float| format!("{float:e}"));
            out.extend_from_slice(float.unwrap_or_else(|| number.to_string()).as_bytes());
        }
        scalar => out.extend_from_slice(scalar.to_string().as_bytes()),
    }
}

/// HMAC-SHA-256, RFC 2104.
fn keyed(secret: &[u8], message: &[u8]) -> [u8; 32] {
    let mut block = [0; 64];
    let hashed: [u8; 32];
    let secret = if secret.len() > block.len() {
        hashed = Sha256::digest(secret).into();
        &hashed
    } else {
        secret
    };
    block.iter_mut().zip(secret).for_each(|(byte, secret)| *byte = *secret);
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_never_change() {
        // Computed with another implementation.
        let secrets = FingerprintSecrets::default();
        let of = |value: &Value| Fingerprints::of_value(&secrets, value).expect("it is JSON").current;

        assert_eq!(of(&serde_json::json!([1200, "EUR"])), "146467b500f8553f74028bb392732b01");
        assert_eq!(Fingerprints::of_bytes(&secrets, b"body").current, "2874d38629446889aee8042ba500ba98");
        let floats =
            serde_json::json!([1e16, 1e-7, 0.1_f32, 0.1, -0.0, 1.0, 12.5, f64::MAX, f64::MIN_POSITIVE]);
        assert_eq!(of(&floats), "6d25a82e4ee3a868588902c5fbbdf8f1");
    }

    #[test]
    fn canonical_json_never_changes() {
        let canonical = |value: Value| {
            let mut text = Vec::new();
            write_canonical(&value, &mut text);
            String::from_utf8(text).expect("it is JSON")
        };
        let floats = serde_json::json!([1e16, 1e-7, 0.1_f32, 0.1, -0.0, 1.0, 12.5, f64::MAX]);
        assert_eq!(
            canonical(floats),
            "[1e16,1e-7,1.0000000149011612e-1,1e-1,-0e0,1e0,1.25e1,1.7976931348623157e308]"
        );
        let others = serde_json::json!({"b": [u64::MAX, i64::MIN, 0, -1], "a": ["\u{1f}é\"", null, true]});
        assert_eq!(
            canonical(others),
            r#"{"a":["\u001fé\"",null,true],"b":[18446744073709551615,-9223372036854775808,0,-1]}"#
        );
    }

    #[test]
    fn the_order_of_fields_does_not_matter() {
        let secrets = FingerprintSecrets::default();
        let parse = |text: &str| serde_json::from_str::<Value>(text).expect("it is JSON");
        let of = |text: &str| Fingerprints::of_value(&secrets, &parse(text)).expect("it is JSON");

        assert_eq!(of(r#"{"a": 1, "b": {"d": 1, "c": 2}}"#), of(r#"{"b":{"c":2,"d":1},"a":1}"#));
        assert_ne!(of(r#"{"a": 1}"#), of(r#"{"a": "1"}"#));
    }

    #[test]
    fn the_keyed_hash_is_hmac() {
        // RFC 4231, test cases 2 and 6.
        assert_eq!(hex(&keyed(b"Jefe", b"what do ya want for nothing?")), "5bdcc146bf60754e6a042426089575c7");
        let message = b"Test Using Larger Than Block-Size Key - Hash Key First";
        assert_eq!(hex(&keyed(&[0xaa; 131], message)), "60e431591ee0b67f0d8a26aacbf5b77f");
    }

    #[test]
    fn a_changed_secret_accepts_the_fingerprints_before() {
        let of = |current: Option<&[u8]>, previous: Option<&[u8]>| {
            let secrets =
                FingerprintSecrets { current: current.map(Arc::from), previous: previous.map(Arc::from) };
            Fingerprints::of_bytes(&secrets, b"x")
        };
        let (plain, first) = (of(None, None), of(Some(b"one"), None));
        let second = of(Some(b"two"), Some(b"one"));

        assert_eq!(plain.previous, "");
        assert_eq!(first.previous, plain.current, "a first secret is a change, too");
        assert_eq!(second.previous, first.current);
        assert_ne!(first.current, plain.current);
    }
}
