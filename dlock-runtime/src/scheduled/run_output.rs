//! [`RunOutput`], what a run reads from the output of its body.

use std::fmt::Display;

use crate::error::Error;

/// How the output of a body is recorded, and how an error of the store becomes an output.
#[derive(Debug)]
pub(crate) struct RunOutput<R> {
    /// Returns the text of a failure, or `None` if the body succeeded.
    pub(crate) failure: fn(&R) -> Option<String>,
    pub(crate) of_error: fn(Error) -> R,
}

impl<T, E: From<Error> + Display> RunOutput<Result<T, E>> {
    pub(crate) fn of_result() -> Self {
        Self {
            failure: |output| output.as_ref().err().map(ToString::to_string),
            of_error: |error| Err(error.into()),
        }
    }
}
