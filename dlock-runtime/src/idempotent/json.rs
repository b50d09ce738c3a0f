//! Stored results as JSON.

use serde::de::DeserializeOwned;
use serde_json::error::Category;

use crate::error::{Error, Result};
use crate::key::LockKey;

/// Decodes a stored result.
pub(crate) fn decoded<T: DeserializeOwned>(bytes: &[u8], key: &LockKey) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|problem| undecodable(key, &problem))
}

/// Returns the error of a stored result that does not decode. It contains no part of the result.
fn undecodable(key: &LockKey, problem: &serde_json::Error) -> Error {
    let mismatch = match problem.classify() {
        Category::Data => "does not fit the returned type",
        Category::Eof => "ends too early",
        Category::Syntax | Category::Io => "is not JSON",
    };
    let problem = format!(
        "at column {} it {mismatch}: if an operator stored it, replace it with `dlock idem resolve --done JSON --replace`; if the type has changed, raise `version`",
        problem.column()
    );
    Error::Undecodable { key: key.clone(), problem: problem.into() }
}
