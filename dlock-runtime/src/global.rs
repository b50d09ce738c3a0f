//! The manager that annotated functions use: the installed one, or that of the current task.

use std::future::Future;
use std::sync::{PoisonError, RwLock, TryLockError};

use tokio::sync::Mutex;

use crate::config::config;
use crate::error::{Error, Result};
use crate::fork::PerProcess;
use crate::manager::LockManager;
use crate::scope;

/// The installed manager of each process.
static SLOT: PerProcess<Slot> = PerProcess::new();

tokio::task_local! {
    static OF_TASK: Option<LockManager>;
}

/// The installed manager of one process.
#[derive(Default)]
struct Slot {
    /// The manager, and the URL that [`init`] used for it.
    installed: RwLock<Option<(LockManager, Option<String>)>>,
    /// Locked while [`init`] connects, so that concurrent calls connect once.
    connecting: Mutex<()>,
}

impl Slot {
    /// Returns the installed manager. A thread of a parent process that does not exist in this one
    /// may have the lock: then it returns `None`.
    fn find(&self) -> Option<LockManager> {
        let installed = match self.installed.try_read() {
            Ok(installed) => installed,
            Err(TryLockError::Poisoned(installed)) => installed.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        installed.as_ref().map(|(manager, _)| manager.clone())
    }

    /// Returns the installed manager of the current process.
    fn get(&self) -> Option<LockManager> {
        let installed = self.installed.read().unwrap_or_else(PoisonError::into_inner);
        installed.as_ref().map(|(manager, _)| manager.clone())
    }

    /// Returns the manager that `init` with `url` returns without connecting: `None` if none is
    /// installed, or if the installed one was shut down.
    fn of_url(&self, url: &str) -> Option<Result<LockManager>> {
        let installed = self.installed.read().unwrap_or_else(PoisonError::into_inner);
        let (manager, known) = installed.as_ref().filter(|(manager, _)| !manager.is_shut_down())?;
        Some(if known.as_deref() == Some(url) { Ok(manager.clone()) } else { Err(other_manager()) })
    }

    /// Installs a manager, unless one is installed that was not shut down.
    fn install(&self, manager: LockManager, url: Option<String>) -> Result<(), AlreadyInstalled> {
        let mut installed = self.installed.write().unwrap_or_else(PoisonError::into_inner);
        if installed.as_ref().is_some_and(|(manager, _)| !manager.is_shut_down()) {
            return Err(AlreadyInstalled {});
        }
        let last = installed.replace((manager, url));
        drop(installed);
        drop(last); // its end may run code of the backend: nothing is locked
        Ok(())
    }
}

/// Connects to `url`, installs the manager for the whole process, and returns it.
///
/// Annotated functions use it from then on.
///
/// The URL is `redis://[user:password@]host[:port][/database][?options]`, `rediss://..` (with the
/// feature `tls`), `redis+unix:///path[?options]`, `redis+sentinel://..`, `redis+cluster://..`,
/// `redis+quorum://..`, or `memory://` for first steps and tests.
///
/// Another call with the same URL returns the same manager. If the installed manager has been
/// [shut down](LockManager::shutdown), `init` connects again, to any URL, and replaces it.
///
/// # Errors
///
/// [`Error::Config`] if the URL is invalid, if the server rejects the user or the password (part
/// `server`), or if a manager with another URL is installed; [`Error::Unavailable`] if the server
/// is unreachable. After an error from connecting, nothing is installed, and `init` can be called
/// again. `connect=lazy` in the URL starts a process while its server is unreachable.
///
/// # Cancel safety
///
/// If the future is dropped, nothing is installed. Other calls wait while this one connects, so
/// poll the future until it completes, or drop it.
pub async fn init(url: &str) -> Result<LockManager> {
    let slot = SLOT.get();
    let _connecting = slot.connecting.lock().await;
    if let Some(installed) = slot.of_url(url) {
        return installed;
    }
    let manager = LockManager::connect(url).await?;
    slot.install(manager.clone(), Some(url.to_owned())).map_err(|_| other_manager())?;
    Ok(manager)
}

/// Installs a manager for the whole process, such as one of [`LockManager::builder`].
///
/// It replaces an installed manager that was [shut down](LockManager::shutdown).
///
/// # Errors
///
/// [`AlreadyInstalled`] if a manager is installed that was not shut down.
pub fn install(manager: LockManager) -> Result<(), AlreadyInstalled> {
    SLOT.get().install(manager, None)
}

/// Returns the manager that an annotated function would use here.
///
/// That is the manager of the enclosing [`with_manager`], otherwise that of the test kit for this
/// runtime, otherwise the installed one.
///
/// # Errors
///
/// [`Error::NotInstalled`] if there is none. Its text says what to call.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_runtime::Result<()> {
/// use dlock_runtime::{LockManager, manager, with_manager};
///
/// let locks = LockManager::connect("memory://").await?;
/// let of_task = with_manager(locks.clone(), async { manager() }).await?;
/// assert_eq!(of_task.id(), locks.id());
/// # Ok(()) }
/// ```
pub fn manager() -> Result<LockManager> {
    let of_task = of_task();
    #[cfg(feature = "testing")]
    let of_task = of_task.or_else(crate::testing::installed::of_runtime);
    of_task.map_or_else(installed, Ok)
}

/// Returns the manager of the enclosing [`with_manager`].
fn of_task() -> Option<LockManager> {
    OF_TASK.try_with(Clone::clone).ok().flatten()
}

/// Returns the installed manager.
fn installed() -> Result<LockManager> {
    // The manager of a parent process refuses all requests with the right reason; "not installed"
    // is wrong.
    SLOT.get().get().or_else(|| SLOT.find_latest(Slot::find)).ok_or(Error::NotInstalled {})
}

fn other_manager() -> Error {
    let problem = "a lock manager with another URL is installed already: get it with `manager()`, connect a second one with \
                   `LockManager::connect(url)`, or call `shutdown` on the first one before `init`";
    config("url", problem)
}

/// Runs `future` with `manager` instead of the installed one.
///
/// It lets tests with separate managers run in parallel. Tasks that `future` spawns do not inherit
/// the manager, unless their future is wrapped in [`in_current_scope`].
///
/// # Cancel safety
///
/// Dropping the future drops `future`.
pub async fn with_manager<F: Future>(manager: LockManager, future: F) -> F::Output {
    OF_TASK.scope(Some(manager), future).await
}

/// Passes the manager of the enclosing [`with_manager`] on to a future that is spawned.
#[cfg(feature = "scheduled")]
pub(crate) fn in_current_manager<F: Future>(future: F) -> impl Future<Output = F::Output> {
    OF_TASK.scope(of_task(), future)
}

/// Passes the locks and the manager of the current call on to a future that is spawned.
///
/// A spawned task does not inherit the locks of the call that spawns it, because it may outlive
/// that call, nor the manager of [`with_manager`]. If the body awaits the task, wrap its future:
/// annotated functions in it then use that manager, and join the body's locks instead of waiting
/// for them for ever.
///
/// # Cancel safety
///
/// Dropping the future drops the inner one.
///
/// # Examples
///
/// ```
/// # use dlock_runtime::{in_current_scope, LockManager};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_runtime::Result<()> {
/// # let locks = LockManager::connect("memory://").await?;
/// # let same = locks.clone();
/// locks.lock("order:7").run(async |_guard| {
///     let nested = async move { same.lock("order:7").run(async |_| "joined").await };
///     tokio::spawn(in_current_scope(nested)).await.expect("the task does not panic")
/// }).await??;
/// # Ok(()) }
/// ```
pub fn in_current_scope<F: Future>(future: F) -> impl Future<Output = F::Output> {
    OF_TASK.scope(of_task(), scope::with_current_scope(future))
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_manager_is_installed_until_it_is_shut_down() {
        let (slot, first, second) =
            (Slot::default(), LockManager::in_new_memory(), LockManager::in_new_memory());
        let url = || Some("memory://".to_owned());
        assert!(slot.get().is_none() && slot.find().is_none() && slot.of_url("memory://").is_none());

        slot.install(first.clone(), url()).expect("there is none");
        assert!(slot.install(second.clone(), url()).is_err());

        for found in [slot.get(), slot.find(), slot.of_url("memory://").and_then(Result::ok)] {
            assert_eq!(found.map(|manager| manager.id()), Some(first.id()));
        }
        let other = slot.of_url("memory://orders").expect("one is installed");
        assert!(matches!(&other, Err(Error::Config { part, .. }) if &**part == "url"), "{other:?}");

        first.shutdown(Duration::ZERO).await;
        assert!(slot.of_url("memory://").is_none(), "another one can be installed");
        assert!(slot.get().is_some(), "its refusals say that it was shut down");
        slot.install(second.clone(), None).expect("the first was shut down");
        assert_eq!(slot.get().map(|manager| manager.id()), Some(second.id()));
        assert!(slot.of_url("memory://").expect("one is installed").is_err(), "its URL is unknown");
    }

    #[tokio::test]
    async fn a_future_uses_the_manager_that_it_is_given() {
        let (outer, inner) = (LockManager::in_new_memory(), LockManager::in_new_memory());
        let current = || manager().map(|manager| manager.id()).ok();

        let seen = with_manager(outer.clone(), async {
            let nested = with_manager(inner.clone(), async { current() }).await;
            let spawned = tokio::spawn(in_current_scope(async move { current() })).await.expect("no panic");
            let without = tokio::spawn(async move { current() }).await.expect("no panic");
            [nested, spawned, current(), without]
        });

        assert_eq!(seen.await, [Some(inner.id()), Some(outer.id()), Some(outer.id()), None]);
    }

    #[test]
    fn a_second_installation_is_a_configuration_error() {
        let error = Error::from(AlreadyInstalled {});

        assert!(matches!(&error, Error::Config { part, .. } if &**part == "manager"), "{error:?}");
    }
}
