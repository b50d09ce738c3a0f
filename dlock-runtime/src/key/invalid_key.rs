//! The error of text or values that make no key.

use std::sync::Arc;

use crate::printable::Escaped;

/// Text or values that cannot be a key. Converts into
/// [`Error::InvalidKey`](crate::Error::InvalidKey).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid lock key `{}`: {problem}", Escaped(template))]
pub struct InvalidKey {
    template: Arc<str>,
    problem: Arc<str>,
}

impl InvalidKey {
    pub(crate) fn new(template: impl Into<Arc<str>>, problem: impl Into<Arc<str>>) -> Self {
        Self { template: template.into(), problem: problem.into() }
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
