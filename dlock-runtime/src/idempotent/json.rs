//! Stored results as JSON.

use serde::de::DeserializeOwned;
use serde_json::error::Category;

use crate::error::{Error, Result};
use crate::key::LockKey;
use crate::printable::shortened;

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
