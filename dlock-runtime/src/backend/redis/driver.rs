//! The driver of a manager's connections: it keeps the engine's time, and gives what is queued to the servers.
//!
//! ```text
//!  engine --outbox, due--> driver --requests--> servers (a node is ready: they leave at once; down: refused at once)
//!    ^                       | abandon list: leaves that are due                |
//!    +--------------------- answers, grants, losses ---------------------------+
//! ```
//!
//! It runs on a thread of its own, so that leases are renewed while the application's threads are busy and after the runtime that
//! made the manager has ended. When the engine is gone it sends what is left, undoes what nobody can have any more, and ends.
//!
//! Not here: who serves a key (`servers`), connections (`node`), what an answer means (`protocol`).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinError;

use crate::backend::redis::servers::Servers;
use crate::backend::redis::shared::Shared;
use crate::clock::boot_time;
use crate::engine::Engine;
use crate::engine::effects::Effects;
use crate::protocol::command::Failure;
use crate::protocol::deadline::BootTime;

/// The driver.
pub(super) struct Driver {
    pub(super) shared: Arc<Shared>,
    pub(super) engine: Weak<Engine>,
    pub(super) servers: Servers,
    pub(super) response_timeout: Duration,
}

impl Driver {
    /// Runs until the engine is gone and what it left is dealt with, or until the first attempt to connect has failed; `first` is
    /// told how it ended.
    ///
    /// # Errors
    ///
    /// Fails if what serves the keys panicked.
    pub(super) async fn run(
        self: Arc<Self>,
        first: Option<oneshot::Sender<Result<(), Failure>>>,
    ) -> Result<(), JoinError> {
        let serving = self.servers.run(first);
        tokio::pin!(serving);
        tokio::select! {
            biased;
            ended = &mut serving => return ended,
            () = self.undo() => {}
            () = self.drive() => {}
        }
        let _ = tokio::time::timeout(self.response_timeout + LAST_WORDS, self.wind_up()).await;
        Ok(())
    }

    /// Gives what is queued to whom it belongs and does what comes due, until the engine is gone.
    async fn drive(&self) {
        loop {
            let wake = self.shared.wake.notified();
            self.shared.asleep_until.store(0, Ordering::SeqCst);
            let now = boot_time();
            let due = match self.engine.upgrade() {
                Some(engine) => {
                    let mut effects = Effects::default();
                    let due = engine.tick(now, &mut effects);
                    effects.wake();
                    due
                }
                None => return,
            };
            self.servers.take(self.shared.take());
            self.shared.asleep_until.store(due.nanos(), Ordering::SeqCst);
            if self.engine.upgrade().is_some_and(|engine| engine.due() < due) {
                continue; // something came due earlier while we were not looking
            }
            let sleep = async {
                if due == BootTime::NEVER {
                    std::future::pending::<()>().await;
                } else {
                    tokio::time::sleep(due.since(now).min(LONGEST_SLEEP)).await;
                }
            };
            tokio::select! {
                biased;
                () = wake => {}
                () = sleep => {}
            }
        }
    }

    /// Undoes the effect of commands without an answer, as soon as they are known and there is a connection.
    async fn undo(&self) {
        loop {
            let more = self.shared.undoing.more.notified();
            tokio::select! {
                () = more => {}
                () = self.until_due_leaves(LONGEST_IDLE) => {}
            }
        }
    }

    /// Queues the leaves that can be sent, and waits for those that come next.
    async fn until_due_leaves(&self, longest: Duration) {
        let wait = self.servers.undo(&self.shared, longest);
        tokio::time::sleep(wait).await;
    }

    /// Sends what is left, and undoes what nobody can have any more.
    async fn wind_up(&self) {
        loop {
            let (settled, more) = (self.shared.settled.notified(), self.shared.undoing.more.notified());
            let wake = self.shared.wake.notified();
            self.servers.take(self.shared.take());
            if !self.shared.has_more() {
                return;
            }
            tokio::select! {
                () = settled => {}
                () = more => {}
                () = wake => {}
                () = self.until_due_leaves(LONGEST_SLEEP) => {}
            }
        }
    }
}

/// The timers of the runtime do not count the time that the machine is suspended; the boot clock, which leases are measured by,
/// does. So no sleep is longer while something is due: after a resume a loss is told within this, and a body is not polled before.
/// Shorter would be dear: a virtual machine that wakes up from idling pays more than a renewal costs.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// With nothing to undo, and nothing that would tell of it otherwise.
const LONGEST_IDLE: Duration = Duration::from_secs(3600);

/// How much longer than an answer takes a driver whose engine is gone goes on: there is a second leave after a second.
const LAST_WORDS: Duration = Duration::from_millis(2_500);
