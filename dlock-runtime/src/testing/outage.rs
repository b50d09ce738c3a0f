//! [`Outage`], during which the code under test cannot reach its locks.

use crate::backend::Request;
use crate::engine::effects::Effects;
use crate::protocol::command::Command;
use crate::testing::TestLocks;

/// An outage that a test simulates; see [`TestLocks::outage`]. It ends when it is dropped.
#[derive(Debug)]
#[must_use = "bind it, as in `let outage = ..`: dropping it ends the outage, and `let _ = ..` drops it immediately"]
pub struct Outage {
    locks: TestLocks,
}

impl Outage {
    pub(super) fn begin(locks: &TestLocks) -> Self {
        locks.world.recorder.outage_begins();
        Self { locks: locks.clone() }
    }

    /// Ends the outage, as a reconnect does.
    ///
    /// Pending releases are sent, leases are renewed, and waiters try again, all at once. If there
    /// are several outages, this happens when the last one ends.
    pub fn end(self) {
        drop(self);
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        let TestLocks { world, elsewhere, .. } = &self.locks;
        let Some(abandoned) = world.recorder.outage_ends() else { return };
        let engine = elsewhere.engine();
        let now = engine.now();
        let mut effects = Effects::default();
        for (key, token) in abandoned {
            // The manager of the token may be dropped already, so another one releases it.
            engine.backend.push(Request::new(key, token, Command::Withdraw));
        }
        engine.backend.flush(engine, now, &mut effects);
        effects.wake();
        for manager in world.managers() {
            manager.on_reconnect(false, |_| true);
        }
    }
}
