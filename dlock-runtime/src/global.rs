//! The manager that annotated functions use: the installed one, or that of the current task.

use std::future::Future;

use tokio::sync::OnceCell;

use crate::config::config;
use crate::error::{Error, Result};
use crate::fork::PerProcess;
use crate::manager::LockManager;

/// The installed manager, and the URL that [`init`] used for it.
static INSTALLED: PerProcess<OnceCell<(LockManager, Option<String>)>> = PerProcess::new();

tokio::task_local! {
    static OF_TASK: LockManager;
}

/// Connects to `url` and installs the manager for the whole process.
///
/// Annotated functions use it from then on.
///
/// The URL is `redis://[user:password@]host[:port][/database][?options]`, `rediss://..` (with the
/// feature `tls`), `redis+unix:///path[?options]`, `redis+sentinel://..`, `redis+cluster://..`,
/// `redis+quorum://..`, or `memory://` for first steps and tests. Another call with the same URL
/// returns the same manager, even after it has been shut down.
///
/// # Errors
///
/// [`Error::Config`] if the URL is invalid, if the server rejects the user or the password (part
/// `server`), or if a manager with another URL is installed; [`Error::Unavailable`] if the server
/// is unreachable. After an error from connecting, nothing is installed, and `init` can be called
/// again.
///
/// # Cancel safety
///
/// If the future is dropped, nothing is installed.
pub async fn init(url: &str) -> Result<&'static LockManager> {
    let installed = INSTALLED
        .get()
        .get_or_try_init(async || {
            let manager = LockManager::connect(url).await?;
            Ok::<_, Error>((manager, Some(url.to_owned())))
        })
        .await?;
    match installed {
        (manager, Some(known)) if known == url => Ok(manager),
        _ => Err(config("url", "another lock manager is installed already; `manager()` returns it")),
    }
}

/// Installs a manager for the whole process, such as one of [`LockManager::builder`].
///
/// # Errors
///
/// [`AlreadyInstalled`] if a manager is installed.
pub fn install(manager: LockManager) -> Result<(), AlreadyInstalled> {
    INSTALLED.get().set((manager, None)).map_err(|_| AlreadyInstalled {})
}

/// Returns the installed manager. It ignores [`with_manager`], which affects annotated functions
/// only.
///
/// # Errors
///
/// [`Error::NotInstalled`] if none is installed. Its text says what to call.
pub fn manager() -> Result<&'static LockManager> {
    // The manager of a parent process refuses all requests with the right reason; "not installed"
    // is wrong.
    let installed = INSTALLED.find_latest(OnceCell::get);
    installed.map(|(manager, _)| manager).ok_or(Error::NotInstalled {})
}

/// Runs `future` with `manager` instead of the installed one.
///
/// It lets tests with separate managers run in parallel. Tasks that `future` spawns do not inherit
/// the manager.
///
/// # Cancel safety
///
/// Dropping the future drops `future`.
pub async fn with_manager<F: Future>(manager: LockManager, future: F) -> F::Output {
    OF_TASK.scope(manager, future).await
}

/// Returns the manager for an annotated function that is called now.
pub(crate) fn current() -> Result<LockManager> {
    let of_task = OF_TASK.try_with(Clone::clone).ok();
    #[cfg(feature = "testing")]
    let of_task = of_task.or_else(crate::testing::installed::of_runtime);
    of_task.map_or_else(|| manager().cloned(), Ok)
}

/// Passes the manager of [`with_manager`] on to a future that is spawned.
#[cfg(feature = "idempotent")]
pub(crate) fn in_current_manager<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let of_task = OF_TASK.try_with(Clone::clone).ok();
    async move {
        match of_task {
            Some(manager) => with_manager(manager, future).await,
            None => future.await,
        }
    }
}

/// The error of [`install`]: a lock manager is already installed.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a lock manager is installed already; install one once, at the start of the process")]
#[non_exhaustive]
pub struct AlreadyInstalled {}

impl From<AlreadyInstalled> for Error {
    fn from(error: AlreadyInstalled) -> Self {
        config("manager", error.to_string())
    }
}
