//! The manager that annotated functions use: the one installed for the process, or the one of the current task.
//!
//! Only `private` and `lib` look at this room; everything else is given its manager.

use std::future::Future;

use tokio::sync::OnceCell;

use crate::config::config;
use crate::error::{Error, Result};
use crate::fork::PerProcess;
use crate::manager::LockManager;

/// The installed manager, and the URL that it was made from by [`init`].
static INSTALLED: PerProcess<OnceCell<(LockManager, Option<String>)>> = PerProcess::new();

tokio::task_local! {
    static OF_TASK: LockManager;
}

/// Connects to `url` and installs the manager for the whole process; annotated functions use it from then on.
///
/// `redis://[user:password@]host[:port][/database][?options]`, `rediss://..` (with the feature `tls`), `redis+unix:///path[?options]`,
/// `redis+sentinel://..`, `redis+cluster://..`, or `memory://` for first steps and tests. Called again with the same URL it returns the same manager, also after
/// that has been shut down.
///
/// # Errors
///
/// [`Error::Config`] for a URL that cannot be used, for a server that refuses the user or the password (part `server`), or when a
/// manager with another URL is installed; [`Error::Unavailable`] when the server cannot be reached. Nothing is installed then, and `init` may be called again.
///
/// # Cancel safety
///
/// Dropping it installs nothing.
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

/// Installs a manager for the whole process, such as one that was made by [`LockManager::builder`].
///
/// # Errors
///
/// [`AlreadyInstalled`] when one is installed.
pub fn install(manager: LockManager) -> Result<(), AlreadyInstalled> {
    INSTALLED.get().set((manager, None)).map_err(|_| AlreadyInstalled {})
}

/// Returns the installed manager. It does not look at [`with_manager`], which is for annotated functions alone.
///
/// # Errors
///
/// [`Error::NotInstalled`], which says what to call.
pub fn manager() -> Result<&'static LockManager> {
    // That of a parent process refuses everything and says why, which "not installed" would not.
    let installed = INSTALLED.find_latest(OnceCell::get);
    installed.map(|(manager, _)| manager).ok_or(Error::NotInstalled {})
}

/// Runs `future` with `manager` in place of the installed one, so that tests with managers of their own run side by side.
///
/// Tasks that `future` spawns do not inherit it.
///
/// # Cancel safety
///
/// Dropping it drops `future`.
pub async fn with_manager<F: Future>(manager: LockManager, future: F) -> F::Output {
    OF_TASK.scope(manager, future).await
}

/// Returns the manager that an annotated function uses here and now.
pub(crate) fn current() -> Result<LockManager> {
    let of_task = OF_TASK.try_with(Clone::clone).ok();
    #[cfg(feature = "testing")]
    let of_task = of_task.or_else(crate::testing::installed::of_runtime);
    of_task.map_or_else(|| manager().cloned(), Ok)
}

/// A lock manager has been installed before.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a lock manager is installed already; install one once, at the start of the process")]
#[non_exhaustive]
pub struct AlreadyInstalled {}

impl From<AlreadyInstalled> for Error {
    fn from(error: AlreadyInstalled) -> Self {
        config("manager", error.to_string())
    }
}
