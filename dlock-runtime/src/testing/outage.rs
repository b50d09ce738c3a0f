//! [`Outage`], during which the code under test cannot reach its locks.

use crate::backend::Request;
use crate::backend::event_effects::EventEffects;
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
        let mut effects = EventEffects::default();
        for (key, token) in abandoned {
            // The manager of the token may be dropped already, so another one releases it.
            engine.backend.submit(Request::new(key, token, Command::Withdraw));
        }
        engine.backend.flush(now, &mut effects);
        effects.run();
        world.reconnect(now);
    }
}
