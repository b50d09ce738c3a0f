//! Who we are to a server, where that changes: credentials that a callback gives for each new connection.
//!
//! Not here: the user and the password of a URL (`config::url`), when a connection is made (`backend::redis`).

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};

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
pub(crate) struct CredentialsSource {
    callback: Arc<Callback>,
    /// One permit for each thread on which it may run.
    threads: Arc<Semaphore>,
}

type Callback = dyn Fn() -> Pin<Box<dyn Future<Output = Given> + Send>> + Send + Sync;

/// How many calls of one callback run at a time. A callback that blocks for good keeps its thread, and each attempt to connect calls it.
const MOST_THREADS: usize = 64;

impl CredentialsSource {
    pub(crate) fn new<F, Fut>(ask: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Given> + Send + 'static,
    {
        let threads = Arc::new(Semaphore::new(MOST_THREADS));
        Self { callback: Arc::new(move || Box::pin(ask())), threads }
    }

    /// Asks for credentials, for `limit` at most.
    ///
    /// The callback is foreign code: it runs on a detached thread, in the context of the current runtime. If it blocks, it delays neither
    /// renewals nor the end of a body whose lease is over, nor the end of the process; if it panics, asking fails.
    pub(crate) async fn ask(&self, limit: Duration) -> Result<Credentials, Failure> {
        let problem = match tokio::time::timeout(limit, self.call()).await {
            Ok(Ok(Ok(credentials))) => return Ok(credentials),
            Ok(Ok(Err(error))) => format!("failed: {error}"),
            Ok(Err(problem)) => problem,
            Err(_) => format!("did not answer in {} ms", limit.as_millis()),
        };
        Err(Failure::new(FailureKind::Passing, format!("the callback for credentials {problem}")))
    }

    /// Calls the callback, and stops polling it once nothing waits for it.
    async fn call(&self) -> Result<Given, String> {
        let permit = Arc::clone(&self.threads).acquire_owned().await;
        let (callback, runtime) = (Arc::clone(&self.callback), Handle::current());
        let (mut tell, told) = oneshot::channel();
        let thread = std::thread::Builder::new().name("dlock-credentials".to_owned()).spawn(move || {
            let given = runtime.block_on(async {
                tokio::select! {
                    biased;
                    () = tell.closed() => None,
                    given = async { callback().await } => Some(given),
                }
            });
            drop(permit);
            if let Some(given) = given {
                let _ = tell.send(given);
            }
        });
        thread.map_err(|error| format!("has no thread: {error}"))?;
        told.await.map_err(|_| "panicked".to_owned())
    }
}

impl fmt::Debug for CredentialsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialsSource(..)")
    }
}
