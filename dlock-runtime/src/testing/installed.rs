//! The manager of a runtime, which annotated functions use in every task of one test.
//!
//! Each test has its own runtime, so this affects the tasks that the code under test spawns, and no
//! other test.

use std::sync::{Arc, Mutex};

use tokio::runtime::{self, Handle};

use crate::manager::LockManager;
use crate::sync::lock;

/// The managers of runtimes, the latest last.
///
/// The `Arc` identifies the installation: two may have the same manager.
static INSTALLED: Mutex<Vec<(runtime::Id, Arc<LockManager>)>> = Mutex::new(Vec::new());

/// The installation of a test kit's locks for a runtime.
///
/// Returned by [`TestLocks::install`](crate::testing::TestLocks::install). Dropping it uninstalls
/// the locks.
#[derive(Debug)]
#[must_use = "bind it, as in `let _installed = ..`: dropping it uninstalls the locks, and `let _ = ..` drops it immediately"]
pub struct Installed {
    manager: Arc<LockManager>,
}

impl Installed {
    #[track_caller]
    pub(super) fn here(manager: LockManager) -> Self {
        let runtime = Handle::current().id();
        let manager = Arc::new(manager);
        lock(&INSTALLED).push((runtime, Arc::clone(&manager)));
        Self { manager }
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        lock(&INSTALLED).retain(|(_, manager)| !Arc::ptr_eq(manager, &self.manager));
    }
}

/// Returns the manager that is installed for the current runtime, or `None`.
pub(crate) fn of_runtime() -> Option<LockManager> {
    let here = Handle::try_current().ok()?.id();
    let installed = lock(&INSTALLED);
    installed
        .iter()
        .rev()
        .find(|(runtime, _)| *runtime == here)
        .map(|(_, manager)| LockManager::clone(manager))
}
