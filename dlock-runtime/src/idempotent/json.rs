//! Stored results as JSON.

use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::key::LockKey;

/// Decodes a stored result.
pub(crate) fn decoded<T: DeserializeOwned>(bytes: &[u8], key: &LockKey) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|problem| undecodable(key, &problem))
}

/// Returns the error of a stored result that does not decode. It contains no part of the result.
fn undecodable(key: &LockKey, problem: &serde_json::Error) -> Error {
    let problem = format!(
        "it is not the JSON of the returned type ({:?} at column {}): if an operator stored it, replace it with `dlock idem resolve --done JSON --replace`; if the type has changed, raise `version`",
        problem.classify(),
        problem.column()
    );
    Error::Undecodable { key: key.clone(), problem: problem.into() }
}
