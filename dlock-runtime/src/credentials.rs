//! Who we are to a server, where that changes: credentials that a callback gives for each new connection.
//!
//! Not here: the user and the password of a URL (`config::url`), when a connection is made (`backend::redis`).

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::protocol::command::{Failure, FailureKind};

/// A user and a password, or a password alone: what [`Builder::credentials`](crate::Builder::credentials) gives.
#[derive(Clone)]
pub struct Credentials {
    username: Option<String>,
    password: String,
}

impl Credentials {
    /// The credentials of a user of the server's ACL. The password may be a token.
    #[must_use]
    pub fn new(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self { username: Some(username.into()), password: password.into() }
    }

    /// The password of the server's `default` user.
    #[must_use]
    pub fn password(password: impl Into<String>) -> Self {
        Self { username: None, password: password.into() }
    }

    pub(crate) fn into_parts(self) -> (Option<String>, String) {
        (self.username, self.password)
    }
}

impl fmt::Debug for Credentials {
    /// Neither user nor password is printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

type Given = Result<Credentials, Box<dyn StdError + Send + Sync>>;

/// A callback that gives credentials.
#[derive(Clone)]
pub(crate) struct CredentialsSource(
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Given> + Send>> + Send + Sync>,
);

impl CredentialsSource {
    pub(crate) fn new<F, Fut>(ask: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Given> + Send + 'static,
    {
        Self(Arc::new(move || Box::pin(ask())))
    }

    /// Asks for credentials, for `limit` at most. It is foreign code, so it has a task of its own: one that panics fails, and no more.
    pub(crate) async fn ask(&self, limit: Duration) -> Result<Credentials, Failure> {
        let Self(ask) = self.clone();
        // Dropped with its set: a task that is late goes on for nobody.
        let mut asked = JoinSet::new();
        asked.spawn(async move { ask().await });
        let problem = match tokio::time::timeout(limit, asked.join_next()).await {
            Ok(Some(Ok(Ok(credentials)))) => return Ok(credentials),
            Ok(Some(Ok(Err(error)))) => format!("failed: {error}"),
            Ok(Some(Err(_)) | None) => "panicked".to_owned(),
            Err(_) => format!("did not answer in {} ms", limit.as_millis()),
        };
        Err(Failure::new(FailureKind::Passing, format!("the callback for credentials {problem}")))
    }
}

impl fmt::Debug for CredentialsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialsSource(..)")
    }
}
