//! Puts the text of a template and the values of a call together to a key.

use crate::error::Error;
use crate::key::{KeyPart, LockKey};

/// Builds one key, piece by piece; the first problem is kept and given by [`build`](Self::build).
#[derive(Debug)]
pub struct KeyBuilder {
    name: String,
    start: usize,
    problem: Option<Error>,
}

impl KeyBuilder {
    /// Starts a key in `namespace`; an empty one means none.
    #[must_use]
    pub fn new(namespace: &str) -> Self {
        let name = if namespace.is_empty() { String::new() } else { format!("{namespace}:") };
        Self { start: name.len(), name, problem: None }
    }

    /// Adds fixed text.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        self.name.push_str(text);
        self
    }

    /// Adds the value of the hole `<place>`.
    #[must_use]
    pub fn part<T: KeyPart + ?Sized>(self, place: &'static str, value: &T) -> Self {
        let _ = (place, value);
        todo!()
    }

    /// Returns the key.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`] for an empty key, and for a hole whose value is missing or empty.
    pub fn build(self) -> Result<LockKey, Error> {
        match self.problem {
            Some(problem) => Err(problem),
            None => Ok(LockKey { name: self.name.into(), start: self.start }),
        }
    }
}

/// What can stand for a whole key: a string, a [`LockKey`], or a [`KeyBuilder`].
pub trait IntoLockKey {
    /// Makes the key, in `namespace` unless it has one already.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`] when it is no valid key.
    fn into_lock_key(self, namespace: &str) -> Result<LockKey, Error>;
}
