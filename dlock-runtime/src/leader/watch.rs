//! [`LeaderWatch`], which process leads.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::key::LockKey;
use crate::leader::elections::Election;
use crate::manager::LockManager;

/// Reports which process leads. Returned by [`Leadership::watch`](crate::Leadership::watch).
///
/// It checks the lock once per second, which costs one round trip, and immediately when a term of
/// this process starts or ends.
#[derive(Debug)]
pub struct LeaderWatch {
    manager: LockManager,
    key: Result<LockKey>,
    /// The last reported leader.
    reported: Reported,
}

/// The last report of a watch.
#[derive(Debug, PartialEq, Eq)]
enum Reported {
    Nothing,
    /// The manager that leads, if one does.
    Leader(Option<String>),
}

impl LeaderWatch {
    pub(super) fn new(manager: LockManager, key: Result<LockKey>) -> Self {
        Self { manager, key, reported: Reported::Nothing }
    }

    /// Waits until another process leads, and returns the [ID](LockManager::id) of its manager, or
    /// `None` if no process leads. The first call returns immediately.
    ///
    /// It may miss a leader whose term is shorter than 1 s.
    ///
    /// # Errors
    ///
    /// [`Error::Shutdown`] after the manager was shut down; [`Error::InvalidKey`]; as
    /// [`LockManager::inspect`], while the server is unavailable. Call it again then.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped, no change is missed by the next call.
    pub async fn next(&mut self) -> Result<Option<String>> {
        let key = self.key.clone()?;
        let election: Arc<Election> = self.manager.elections().of(&key);
        let mut changes = election.changes();
        let engine = self.manager.engine();
        loop {
            if engine.is_closed() {
                return Err(Error::Shutdown { key: Some(key) });
            }
            changes.borrow_and_update();
            let info = self.manager.inspect(key.clone()).await?;
            let leader = info.and_then(|info| info.holder().map(str::to_owned));
            let reported = Reported::Leader(leader.clone());
            if self.reported != reported {
                self.reported = reported;
                return Ok(leader);
            }
            tokio::select! {
                _ = changes.changed() => {}
                () = election.sleep_unless_closed(engine, CHECK_INTERVAL) => {}
            }
        }
    }
}

/// How often the lock is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
