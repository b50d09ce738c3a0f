//! Credentials that a callback supplies for each new connection.
//!
//! See `config::url` for the user and the password of a URL.

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};

use crate::protocol::command::{Failure, FailureKind};

/// A user and a password, or only a password, from
/// [`Builder::credentials`](crate::Builder::credentials).
#[derive(Clone)]
pub struct Credentials {
    username: Option<String>,
    password: String,
}

impl Credentials {
    /// Returns the credentials of a user of the server's ACL. The password may be a token.
    #[must_use]
    pub fn new(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self { username: Some(username.into()), password: password.into() }
    }

    /// Returns the password of the server's `default` user.
    #[must_use]
    pub fn password(password: impl Into<String>) -> Self {
        Self { username: None, password: password.into() }
    }

    pub(crate) fn into_parts(self) -> (Option<String>, String) {
        (self.username, self.password)
    }
}

impl fmt::Debug for Credentials {
    /// Prints neither user nor password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

type CredentialsResult = Result<Credentials, Box<dyn StdError + Send + Sync>>;

/// A callback that supplies credentials.
#[derive(Clone)]
pub(crate) struct CredentialsProvider {
    callback: Arc<Callback>,
    /// One permit for each thread on which the callback may run.
    threads: Arc<Semaphore>,
}

type Callback = dyn Fn() -> Pin<Box<dyn Future<Output = CredentialsResult> + Send>> + Send + Sync;

/// The maximum number of concurrent calls. A callback that blocks for ever keeps its thread.
const MOST_THREADS: usize = 64;

impl CredentialsProvider {
    pub(crate) fn new<F, Fut>(ask: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = CredentialsResult> + Send + 'static,
    {
        let threads = Arc::new(Semaphore::new(MOST_THREADS));
        Self { callback: Arc::new(move || Box::pin(ask())), threads }
    }

    /// Requests credentials, and waits at most `limit`.
    ///
    /// The callback is foreign code. It runs on a detached thread, in the context of the current
    /// runtime. If it blocks, it delays neither renewals, nor the end of a body whose lease has
    /// expired, nor the end of the process. If it panics, the request fails.
    pub(crate) async fn ask(&self, limit: Duration) -> Result<Credentials, Failure> {
        let problem = match tokio::time::timeout(limit, self.call()).await {
            Ok(Ok(Ok(credentials))) => return Ok(credentials),
            Ok(Ok(Err(error))) => format!("failed: {error}"),
            Ok(Err(problem)) => problem,
            Err(_) => format!("did not reply in {} ms", limit.as_millis()),
        };
        Err(Failure::new(FailureKind::Passing, format!("the callback for credentials {problem}")))
    }

    /// Calls the callback, and stops polling it when no task waits for it.
    async fn call(&self) -> Result<CredentialsResult, String> {
        let permit = Arc::clone(&self.threads).acquire_owned().await;
        let (callback, runtime) = (Arc::clone(&self.callback), Handle::current());
        let (mut sender, reply) = oneshot::channel();
        let thread = std::thread::Builder::new().name("dlock-credentials".to_owned()).spawn(move || {
            let given = runtime.block_on(async {
                tokio::select! {
                    biased;
                    () = sender.closed() => None,
                    given = async { callback().await } => Some(given),
                }
            });
            drop(permit);
            if let Some(given) = given {
                let _ = sender.send(given);
            }
        });
        thread.map_err(|error| format!("has no thread: {error}"))?;
        reply.await.map_err(|_| "panicked".to_owned())
    }
}

impl fmt::Debug for CredentialsProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialsProvider(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::bounds::{assert_listed, written};

    #[tokio::test]
    async fn blocked_callbacks_take_a_bounded_number_of_threads() {
        let (started, (release, blocked)) = (Arc::new(AtomicUsize::new(0)), std::sync::mpsc::channel::<()>());
        let (counts, blocked) = (Arc::clone(&started), Arc::new(std::sync::Mutex::new(blocked)));
        let provider = CredentialsProvider::new(move || {
            counts.fetch_add(1, Ordering::SeqCst);
            let _ = blocked.lock().map(|blocked| blocked.recv()); // until the sender is dropped
            async { Ok(Credentials::new("user", "password")) }
        });

        let calls = (0..MOST_THREADS + 8).map(|_| provider.ask(Duration::from_secs(2)));
        let answers = futures_util::future::join_all(calls).await;

        assert!(answers.iter().all(Result::is_err), "each waits until its limit");
        assert_eq!(started.load(Ordering::SeqCst), MOST_THREADS);
        assert_listed("calls of a `credentials` callback", &written(MOST_THREADS));
        drop(release);
    }

    #[test]
    fn a_password_can_be_without_a_user() {
        assert_eq!(
            Credentials::new("locks", "secret").into_parts(),
            (Some("locks".to_owned()), "secret".to_owned())
        );
        assert_eq!(Credentials::password("secret").into_parts(), (None, "secret".to_owned()));
        assert_eq!(format!("{:?}", Credentials::password("secret")), "Credentials(..)");
    }

    #[tokio::test]
    async fn a_callback_that_fails_gives_its_reason() {
        let limit = Duration::from_secs(10);
        let given = CredentialsProvider::new(|| async { Ok(Credentials::new("locks", "secret")) });
        let failing = CredentialsProvider::new(|| async { Err("no token".into()) });
        let panicking = CredentialsProvider::new(|| async { panic!("this panic is part of the test") });
        let late = CredentialsProvider::new(std::future::pending);

        assert_eq!(given.ask(limit).await.expect("it succeeds").into_parts().1, "secret");
        for (provider, limit, reason) in [
            (failing, limit, "the callback for credentials failed: no token"),
            (panicking, limit, "the callback for credentials panicked"),
            (late, Duration::from_millis(10), "the callback for credentials did not reply in 10 ms"),
        ] {
            let failure = provider.ask(limit).await.expect_err("it fails");
            assert_eq!((failure.kind, &*failure.reason), (FailureKind::Passing, reason));
        }
    }
}
