//! [`StoreCalls`]: the state of the operations of features that are not locks. See `call` for how
//! they are sent.
//!
//! Invariants:
//!
//! - A call in the background is sent again until it has a definite reply, for a bounded time.
//! - Calls in the background are bounded in number and in bytes, and cleanups use at most half.
//!   Calls in order count as one, with the sum of their bytes.
#![allow(dead_code, reason = "used by features that are not locks")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::Notify;

use crate::fork::{ForkDetector, in_one_process};
use crate::key::Name;
use crate::protocol::failure::{Failure, FailureKind};
use crate::sync::lock;
use crate::sync::shared::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The calls of one manager.
#[derive(Debug, Default)]
pub(crate) struct StoreCalls {
    /// The keys whose changes are awaited.
    watched: Mutex<HashMap<Name, Weak<Notify>>>,
    watched_count: AtomicUsize,
    /// The number of activities that a shutdown waits for.
    active: AtomicUsize,
    drained: Notify,
    /// A shutdown has begun: all waiting ends.
    pub(crate) closed: Signal,
    /// The time of a shutdown is over: all activities end.
    pub(crate) aborted: Signal,
    background: Mutex<BackgroundLoad>,
}

/// An event that happens at most once, and that tasks wait for.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    is_set: AtomicBool,
    changed: Notify,
}

impl Signal {
    pub(super) fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Waits until the event has happened. A forked process leaks the future, since it may be in
    /// the list of a mutex that a thread of the parent had locked.
    pub(crate) fn wait(&self) -> impl Future<Output = ()> + '_ {
        in_one_process(async {
            let changed = self.changed.notified();
            if !self.is_set() {
                changed.await;
            }
        })
    }
}

/// The calls in the background that have no reply.
#[derive(Debug, Default)]
struct BackgroundLoad {
    count: usize,
    bytes: usize,
}

/// The place of one call, or of several in order, in the background.
#[derive(Debug)]
pub(super) struct BackgroundSlot {
    calls: Arc<StoreCalls>,
    bytes: usize,
}

impl Drop for BackgroundSlot {
    fn drop(&mut self) {
        let mut load = lock(&self.calls.background);
        load.count -= 1;
        load.bytes -= self.bytes;
    }
}

/// Why a call has no reply.
#[derive(Clone, Debug)]
pub(crate) enum CallFailure {
    /// The operation did not run, and will not run.
    Refused(Failure),
    /// The operation may have run, or may still run.
    Unknown(Failure),
}

impl CallFailure {
    /// Returns the reason.
    pub(crate) fn into_failure(self) -> Failure {
        match self {
            Self::Refused(failure) | Self::Unknown(failure) => failure,
        }
    }

    /// Returns `true` if another attempt may succeed.
    pub(super) fn is_passing(&self) -> bool {
        let (Self::Refused(failure) | Self::Unknown(failure)) = self;
        failure.kind == FailureKind::Passing
    }
}

/// An activity that a shutdown waits for.
#[derive(Debug)]
pub(crate) struct ActiveCall {
    calls: Arc<StoreCalls>,
    fork: ForkDetector,
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        if self.fork.is_forked() {
            return; // before any mutex: the call is that of the parent
        }
        if self.calls.active.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.calls.drained.notify_waiters();
        }
    }
}

impl StoreCalls {
    /// Returns what is notified when `key` changes.
    pub(crate) fn watch(&self, key: &Name) -> Arc<Notify> {
        let mut watched = lock(&self.watched);
        if let Some(watch) = watched.get(key).and_then(Weak::upgrade) {
            return watch;
        }
        watched.retain(|_, watch| watch.strong_count() > 0);
        let watch = Arc::new(Notify::new());
        watched.insert(Name::clone(key), Arc::downgrade(&watch));
        self.watched_count.store(watched.len(), Ordering::Release);
        watch
    }

    /// Handles a change of `key`. Returns what to notify once nothing is locked.
    pub(crate) fn on_changed(&self, key: &Name) -> Option<Arc<Notify>> {
        if self.watched_count.load(Ordering::Acquire) == 0 {
            return None; // the usual case
        }
        lock(&self.watched).get(key).and_then(Weak::upgrade)
    }

    /// Counts a call in the background of this size. Returns `None` if there are too many. A
    /// cleanup gets a place only in the first half, so that results always have the other.
    pub(super) fn admit(self: &Arc<Self>, bytes: usize, is_cleanup: bool) -> Option<BackgroundSlot> {
        let share = if is_cleanup { 2 } else { 1 };
        let mut load = lock(&self.background);
        if load.count >= MAX_BACKGROUND_CALLS / share || load.bytes + bytes > MAX_BACKGROUND_BYTES / share {
            return None;
        }
        load.count += 1;
        load.bytes += bytes;
        Some(BackgroundSlot { calls: Arc::clone(self), bytes })
    }

    /// Returns the bytes of the calls in the background.
    #[cfg(test)]
    pub(crate) fn background_bytes(&self) -> usize {
        lock(&self.background).bytes
    }

    /// Counts an activity that a shutdown waits for, until the returned value is dropped.
    pub(super) fn active_call(self: &Arc<Self>) -> ActiveCall {
        self.active.fetch_add(1, Ordering::AcqRel);
        ActiveCall { calls: Arc::clone(self), fork: ForkDetector::new() }
    }

    /// Waits until there is no activity.
    pub(super) async fn drained(&self) {
        loop {
            let drained = self.drained.notified();
            if self.active.load(Ordering::Acquire) == 0 {
                break;
            }
            drained.await;
        }
    }
}

/// The bounds on calls in the background that have no reply. They apply to an outage of the server.
pub(crate) const MAX_BACKGROUND_CALLS: usize = 1_024;
pub(crate) const MAX_BACKGROUND_BYTES: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::bounds::{assert_listed, written};
    use crate::key::LockKey;

    #[test]
    fn cleanups_leave_room_for_results() {
        let bounds = format!("{} and {} MiB", written(MAX_BACKGROUND_CALLS), MAX_BACKGROUND_BYTES >> 20);
        assert_listed("ends of idempotent calls without a reply", &bounds);
        let calls = Arc::new(StoreCalls::default());

        let cleanups: Vec<_> = std::iter::from_fn(|| calls.admit(1, true)).collect();
        let results: Vec<_> = std::iter::from_fn(|| calls.admit(1, false)).collect();

        assert_eq!((cleanups.len(), results.len()), (MAX_BACKGROUND_CALLS / 2, MAX_BACKGROUND_CALLS / 2));
        drop(cleanups);
        assert!(calls.admit(MAX_BACKGROUND_BYTES / 2 + 1, true).is_none());
        assert!(calls.admit(MAX_BACKGROUND_BYTES / 2 + 1, false).is_some());
    }

    #[test]
    fn a_forked_process_does_not_end_the_calls_of_its_parent() {
        let calls = Arc::new(StoreCalls::default());
        let (call, of_parent) = (calls.active_call(), calls.active_call());

        of_parent.fork.simulate_fork();
        drop((call, of_parent));

        assert_eq!(calls.active.load(Ordering::Acquire), 1);
    }

    #[test]
    fn background_calls_are_bounded_in_bytes_exactly() {
        let calls = Arc::new(StoreCalls::default());
        let half = MAX_BACKGROUND_BYTES / 2;
        assert!(
            calls.admit(MAX_BACKGROUND_BYTES + 1, false).is_none() && calls.admit(half + 1, true).is_none()
        );

        let cleanup = calls.admit(half, true).expect("a cleanup has half of the bytes");
        assert!(calls.admit(1, true).is_none());
        let result = calls.admit(half, false).expect("results have the other half");
        assert!(calls.admit(1, false).is_none());

        drop(cleanup);
        assert!(calls.admit(half + 1, false).is_none() && calls.admit(half, false).is_some());
        drop(result);
        assert!(calls.admit(MAX_BACKGROUND_BYTES, false).is_some());
    }

    #[test]
    fn an_ended_background_call_leaves_its_place() {
        let calls = Arc::new(StoreCalls::default());
        let admitted = std::iter::from_fn(|| calls.admit(0, false)).take(2 * MAX_BACKGROUND_CALLS);
        let mut admitted: Vec<_> = admitted.collect();
        assert_eq!(admitted.len(), MAX_BACKGROUND_CALLS);

        admitted.truncate(MAX_BACKGROUND_CALLS - 2);

        assert_eq!(std::iter::from_fn(|| calls.admit(0, false)).take(3).map(std::mem::forget).count(), 2);
    }

    #[test]
    fn a_signal_wakes_tasks_that_wait_before_and_after_it() {
        let signal = Signal::default();
        let mut before = Box::pin(signal.wait());
        assert!(before.as_mut().now_or_never().is_none() && !signal.is_set());

        signal.set();

        assert!(signal.is_set() && before.now_or_never().is_some());
        assert!(signal.wait().now_or_never().is_some());
    }

    #[test]
    fn a_change_concerns_the_tasks_that_watch_the_key() {
        let calls = StoreCalls::default();
        let name = |key| Name::clone(LockKey::new(key).expect("a key").name());
        assert!(calls.on_changed(&name("a")).is_none());
        let (watch, other) = (calls.watch(&name("a")), calls.watch(&name("b")));
        assert!(Arc::ptr_eq(&watch, &calls.watch(&name("a"))), "tasks of one key share it");
        assert_eq!(calls.watched_count.load(Ordering::Relaxed), 2);

        let changed = calls.on_changed(&name("a"));

        assert!(
            changed.is_some_and(|changed| Arc::ptr_eq(&changed, &watch) && !Arc::ptr_eq(&changed, &other))
        );
        assert!(calls.on_changed(&name("c")).is_none());
        drop(watch);
        let _last = calls.watch(&name("c"));
        assert_eq!(calls.watched_count.load(Ordering::Relaxed), 2, "`a` is not watched any more");
    }

    #[test]
    fn calls_are_drained_once_the_last_has_ended() {
        let calls = Arc::new(StoreCalls::default());
        assert!(calls.drained().now_or_never().is_some());
        let (first, second) = (calls.active_call(), calls.active_call());
        let mut drained = Box::pin(calls.drained());
        assert!(drained.as_mut().now_or_never().is_none());

        drop(first);
        assert!(drained.as_mut().now_or_never().is_none());
        drop(second);

        assert!(drained.now_or_never().is_some());
    }

    #[test]
    fn only_a_passing_failure_is_worth_another_attempt() {
        for kind in [FailureKind::Passing, FailureKind::Lasting, FailureKind::WrongKind] {
            for failure in [CallFailure::Refused, CallFailure::Unknown] {
                let failure = failure(Failure::new(kind, "the server said no"));

                assert_eq!(failure.is_passing(), kind == FailureKind::Passing);
                assert_eq!(failure.into_failure().kind, kind);
            }
        }
    }
}
