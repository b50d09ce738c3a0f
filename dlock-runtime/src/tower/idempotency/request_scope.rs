//! [`RequestScope`], which callers may see a stored response.

use crate::key::{InvalidKey, KeyBuilder, KeyPart};

/// Which callers may see a stored response.
///
/// A client chooses its own key. Without a scope, a client that guesses the key of another one gets
/// its response.
#[derive(Clone, Debug)]
pub struct RequestScope(
    /// The value as a part of a key, escaped. That of everyone is not the text of any value.
    Result<String, InvalidKey>,
);

impl RequestScope {
    /// Only callers that have `value` in common, such as the authenticated user.
    ///
    /// The value is written as a part of a key. If it is missing or empty, the request gets 400.
    #[must_use]
    pub fn of(value: impl KeyPart) -> Self {
        let part = KeyBuilder::default().part("scope", &value).build();
        Self(part.map(|part| part.as_str().to_owned()))
    }

    /// Every caller that knows the key.
    #[must_use]
    pub fn everyone() -> Self {
        Self(Ok("~".to_owned()))
    }

    /// Returns the text of the scope in a key.
    pub(super) fn part(&self) -> Result<&str, InvalidKey> {
        self.0.as_deref().map_err(Clone::clone)
    }
}
