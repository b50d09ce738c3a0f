//! Fingerprints of payloads: SHA-256, cut to 128 bits, of bytes or of canonical JSON.
//!
//! Records of all versions contain them, so they must never change.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::config::config;
use crate::error::Result;
use crate::idempotent::child_key::hex;

/// The fingerprints of one payload: under the current secret, and under the one before. Empty if
/// the call has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprints {
    pub(crate) current: String,
    pub(crate) previous: String,
}

/// The secrets of a manager for fingerprints.
#[derive(Clone, Default)]
pub(crate) struct FingerprintSecrets {
    pub(crate) current: Option<Arc<[u8]>>,
    pub(crate) previous: Option<Arc<[u8]>>,
}

impl FingerprintSecrets {
    /// Returns the fingerprints of a value.
    ///
    /// # Errors
    ///
    /// [`Error::Config`](crate::Error::Config) if the value cannot be written as JSON.
    pub(super) fn of_value(&self, payload: &(impl Serialize + ?Sized)) -> Result<Fingerprints> {
        let value = serde_json::to_value(payload)
            .map_err(|problem| config("fingerprint", format!("it cannot be written as JSON: {problem}")))?;
        let mut canonical = b"json:".to_vec();
        write_canonical(&value, &mut canonical);
        Ok(self.of(&canonical))
    }

    /// Returns the fingerprints of bytes.
    pub(super) fn of_bytes(&self, payload: &[u8]) -> Fingerprints {
        self.of(&[b"bytes:", payload].concat())
    }

    fn of(&self, message: &[u8]) -> Fingerprints {
        let of = |secret: Option<&Arc<[u8]>>| match secret {
            Some(secret) => hex(&keyed(secret, message)),
            None => hex(&Sha256::digest(message)),
        };
        // Without a secret now, the one before may have been set; without one before, none was.
        let previous = self.current.as_ref().or(self.previous.as_ref()).map(|_| of(self.previous.as_ref()));
        Fingerprints { current: of(self.current.as_ref()), previous: previous.unwrap_or_default() }
    }
}

impl fmt::Debug for FingerprintSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FingerprintSecrets").finish_non_exhaustive()
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
        let of = |value: &Value| secrets.of_value(value).expect("it is JSON").current;

        assert_eq!(of(&serde_json::json!([1200, "EUR"])), "146467b500f8553f74028bb392732b01");
        assert_eq!(secrets.of_bytes(b"body").current, "2874d38629446889aee8042ba500ba98");
    }

    #[test]
    fn the_order_of_fields_does_not_matter() {
        let secrets = FingerprintSecrets::default();
        let parse = |text: &str| serde_json::from_str::<Value>(text).expect("it is JSON");
        let of = |text: &str| secrets.of_value(&parse(text)).expect("it is JSON");

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
        let plain = FingerprintSecrets::default().of_bytes(b"x");
        let first = FingerprintSecrets { current: Some(Arc::from(*b"one")), previous: None };
        let second =
            FingerprintSecrets { current: Some(Arc::from(*b"two")), previous: Some(Arc::from(*b"one")) };

        assert_eq!(plain.previous, "");
        assert_eq!(first.of_bytes(b"x").previous, plain.current, "a first secret is a change, too");
        assert_eq!(second.of_bytes(b"x").previous, first.of_bytes(b"x").current);
        assert_ne!(first.of_bytes(b"x").current, plain.current);
    }
}
