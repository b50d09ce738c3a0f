//! [`Replica`], one process of a simulated fleet.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use crate::global::with_manager;
use crate::manager::LockManager;
#[cfg(feature = "scheduled")]
use crate::scheduled::Schedule;
use crate::testing::TestLocks;
use crate::testing::replica_clock::ReplicaClock;

/// One process of a simulated fleet: a manager with a wall clock of its own, which can crash.
///
/// Returned by [`TestLocks::fleet`]. It is cheap to clone; all clones are one process.
///
/// The wall clock is what a timer of the process goes by, and what its manager assumes until the
/// store has replied. The store has the true time, as a server does. Leases use neither: a process
/// measures them with a clock that never steps.
#[derive(Clone, Debug)]
pub struct Replica {
    locks: TestLocks,
    clock: Arc<ReplicaClock>,
    has_crashed: Arc<watch::Sender<bool>>,
}

impl Replica {
    pub(super) fn of(locks: &TestLocks) -> Self {
        let manager = locks.another_manager();
        let clock = Arc::new(ReplicaClock::new(&locks.world));
        #[cfg(feature = "scheduled")]
        manager.server_clock().assume(Arc::clone(&clock));
        let locks = TestLocks { manager, ..locks.clone() };
        Self { locks, clock, has_crashed: Arc::new(watch::Sender::new(false)) }
    }

    /// Returns the manager of this process.
    #[must_use]
    pub fn manager(&self) -> LockManager {
        self.locks.manager()
    }

    /// Runs `future` in this process: annotated functions in it use its manager. Returns `None` if
    /// the process [crashes](Self::crash) first.
    ///
    /// Tasks that `future` spawns do not belong to it: spawn `replica.run(..)`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `future`.
    pub fn run<F: Future>(&self, future: F) -> impl Future<Output = Option<F::Output>> + use<F> {
        let (running, mut has_crashed) = (with_manager(self.manager(), future), self.has_crashed.subscribe());
        async move {
            tokio::select! {
                biased; // a crashed process runs nothing
                Ok(_) = has_crashed.wait_for(|has_crashed| *has_crashed) => None,
                value = running => Some(value),
            }
        }
    }

    /// Ends the process, as `kill -9` does.
    ///
    /// The futures of [`run`](Self::run) are dropped at their next await, and the store gets
    /// nothing from this process any more: no renewal, no release, and no end of a run. Its leases
    /// end by themselves. To crash in the middle of a body, call it there, and then await.
    ///
    /// A crashed process cannot continue. A new one is a new [`fleet`](TestLocks::fleet).
    pub fn crash(&self) {
        let process = self.locks.manager.engine().tokens.process();
        self.locks.world.recorder.has_crashed(process);
        self.has_crashed.send_replace(true);
    }

    /// Sets the wall clock to `by` ahead of the store's.
    pub fn set_clock_ahead(&self, by: Duration) {
        self.clock.set_offset(i64::try_from(by.as_millis()).unwrap_or(i64::MAX));
    }

    /// Sets the wall clock to `by` behind the store's.
    pub fn set_clock_behind(&self, by: Duration) {
        self.clock.set_offset(i64::try_from(by.as_millis()).map_or(i64::MIN, |by| -by));
    }

    /// Returns the time of the wall clock, to the millisecond.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.clock.now())
    }

    /// Sleeps until the next instant of `schedule` by the wall clock, as a timer of the process
    /// does, and returns that instant.
    ///
    /// Steps of the wall clock during the sleep do not change its end.
    ///
    /// # Panics
    ///
    /// Panics if the schedule is invalid.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the sleep.
    #[cfg(feature = "scheduled")]
    pub async fn sleep_until_tick(&self, schedule: &Schedule) -> SystemTime {
        let now = self.now();
        let next = match schedule.next_after(now) {
            Ok(next) => next,
            Err(error) => panic!("{error}"),
        };
        tokio::time::sleep(next.duration_since(now).unwrap_or_default()).await;
        next
    }
}
