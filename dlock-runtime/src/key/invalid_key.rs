//! The error of text or values that make no key.

use std::sync::Arc;

use crate::printable::Escaped;

/// Text or values that cannot be a key. Converts into
/// [`Error::InvalidKey`](crate::Error::InvalidKey).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid lock key `{}`: {}", Escaped(template), Escaped(problem))]
pub struct InvalidKey {
    template: Arc<str>,
    problem: Arc<str>,
    pub(super) is_missing_value: bool,
}

impl InvalidKey {
    pub(crate) fn new(template: impl Into<Arc<str>>, problem: impl Into<Arc<str>>) -> Self {
        Self { template: template.into(), problem: problem.into(), is_missing_value: false }
    }

    /// Returns `true` if a value of the key is `None` or empty.
    #[must_use]
    pub fn is_missing_value(&self) -> bool {
        self.is_missing_value
    }

    /// Returns the key, or the template from which it is built.
    #[must_use]
    pub fn template(&self) -> &str {
        &self.template
    }

    /// Returns the problem, and what to write instead.
    #[must_use]
    pub fn problem(&self) -> &str {
        &self.problem
    }

    pub(crate) fn into_parts(self) -> (Arc<str>, Arc<str>) {
        (self.template, self.problem)
    }
}
