//! An outage: the time in which the code under test cannot reach its locks.
//!
//! Not here: what a command is answered meanwhile (`ledger`).

use crate::backend::Request;
use crate::engine::effects::Effects;
use crate::protocol::command::Command;
use crate::testing::TestLocks;

/// An outage that a test has made; see [`TestLocks::outage`]. It ends when it is dropped.
#[derive(Debug)]
#[must_use = "the outage ends when this is dropped"]
pub struct Outage {
    locks: TestLocks,
}

impl Outage {
    pub(super) fn begin(locks: &TestLocks) -> Self {
        locks.world.ledger.outage_begins();
        Self { locks: locks.clone() }
    }

    /// Ends the outage, as after a reconnect: what could not be released is released, what could not be renewed is renewed, and who
    /// waits asks again, all of it at once.
    ///
    /// Where there are several outages at a time, the last to end does that.
    pub fn end(self) {
        drop(self);
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        let TestLocks { world, elsewhere, .. } = &self.locks;
        let Some(abandoned) = world.ledger.outage_ends() else { return };
        let engine = elsewhere.engine();
        let now = engine.now();
        let mut effects = Effects::default();
        for (key, token) in abandoned {
            // The manager whose token it is may be gone by now, so another one says it.
            engine.backend.push(Request::new(key, token, Command::Withdraw));
        }
        engine.backend.flush(engine, now, &mut effects);
        effects.wake();
        for manager in world.managers() {
            manager.on_reconnect(false, |_| true);
        }
    }
}
