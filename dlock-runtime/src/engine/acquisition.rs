//! The state of one acquisition, shared between the protocol and the task.
//!
//! ```text
//!  Waiting --grant--> Held --release--> Released
//!     |                 +--loss--> Lost
//!     +--join--> Joined --release--> Released
//!     +--reject--> Rejected
//! ```
//!
//! The protocol changes it under the lock of the key's shard, so its states follow the order of the
//! protocol. The task reads it without that lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::engine::atomic_deadline::AtomicDeadline;
use crate::engine::renewal_failure::RenewalFailure;
use crate::error::LossCause;
use crate::key::LockKey;
use crate::protocol::deadline::{BootInstant, Deadline};
use crate::protocol::hold::ResidualHold;
use crate::protocol::key_state::AcquireFailure;
use crate::sync::shared::atomic::Ordering;
use crate::sync::shared::{Mutex, lock};

/// A shared [`Acquisition`].
pub(crate) type SharedAcquisition = Arc<Acquisition>;

/// One acquisition.
///
/// There is one for every held lock, so rarely used state is in a box ([`AcquisitionExtra`]).
#[derive(Debug)]
pub(crate) struct Acquisition {
    pub(crate) key: LockKey,
    inner: Mutex<AcquisitionInner>,
    deadline: AtomicDeadline,
}

#[derive(Debug)]
struct AcquisitionInner {
    state: AcquisitionState,
    /// The waker of the call itself.
    waker: Option<Waker>,
    extra: Option<Box<AcquisitionExtra>>,
}

/// State that few acquisitions have.
#[derive(Debug, Default)]
struct AcquisitionExtra {
    /// The wakers of observers, by their ids.
    observers: BTreeMap<u64, Waker>,
    /// The fencing token, once it was requested.
    fencing: Option<u64>,
    /// Why the last renewal before a loss failed.
    renewal_failure: Option<RenewalFailure>,
}

/// The state of an acquisition.
#[derive(Debug)]
pub(crate) enum AcquisitionState {
    /// The call waits for the lock.
    Waiting,
    /// The call holds the lock.
    Held { since: BootInstant, attempts: u32 },
    /// The call runs inside a hold of its call chain.
    Joined,
    /// The call did not acquire the lock. The reason is there until it is taken.
    Rejected(Option<Box<AcquireFailure>>),
    /// The call lost the lock.
    Lost(Box<LossInfo>),
    /// The call released what it acquired at `since`.
    Released { since: BootInstant },
}

/// How a hold was lost.
#[derive(Debug)]
pub(crate) struct LossInfo {
    pub(crate) cause: LossCause,
    /// How long the lock was held.
    held: Duration,
    /// The rest that its task still has to release.
    left: Option<ResidualHold>,
}

/// The result of [`Acquisition::end`].
pub(crate) struct EndedAcquisition {
    pub(crate) wakers: Wakers,
    /// Whether the lock was ever granted to it.
    pub(crate) was_granted: bool,
    /// The rest that the task still has to release after a loss.
    pub(crate) left: Option<ResidualHold>,
}

/// Compares by identity, as the protocol does.
impl PartialEq for Acquisition {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Acquisition {
    pub(crate) fn new(key: LockKey) -> SharedAcquisition {
        SharedAcquisition::new(Self {
            key,
            inner: Mutex::new(AcquisitionInner {
                state: AcquisitionState::Waiting,
                waker: None,
                extra: None,
            }),
            deadline: AtomicDeadline::default(),
        })
    }

    pub(super) fn grant(
        &self,
        (deadline, ends): (Deadline, BootInstant),
        is_unconfirmed: bool,
        attempts: u32,
        now: BootInstant,
    ) -> Wakers {
        self.deadline.begin(deadline, ends, is_unconfirmed);
        self.transition(AcquisitionState::Held { since: now, attempts })
    }

    pub(super) fn join(&self) -> Wakers {
        self.transition(AcquisitionState::Joined)
    }

    /// Takes out the wakers without a change of state.
    pub(super) fn take_wakers(&self) -> Wakers {
        lock(&self.inner).wakers()
    }

    pub(super) fn extend(&self, deadline: Deadline, ends: BootInstant) {
        self.deadline.extend(deadline, ends);
    }

    /// Reads the state. If `done` returns `None`, registers `waker` for the next change, instead of
    /// the previous one.
    ///
    /// For the call itself, which waits and then runs its body. Other tasks are observers.
    pub(crate) fn poll_state<R>(
        &self,
        waker: Option<&Waker>,
        done: impl FnOnce(&mut AcquisitionState) -> Option<R>,
    ) -> Option<R> {
        self.poll_state_as(None, waker, done)
    }

    /// Returns the id of a new observer, which is woken in addition to the call itself.
    pub(super) fn new_observer() -> u64 {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// Drops the waker of an observer.
    pub(super) fn remove_observer(&self, observer: u64) {
        let removed = lock(&self.inner).extra.as_mut().and_then(|extra| extra.observers.remove(&observer));
        drop(removed); // with nothing locked
    }

    /// Like [`poll_state`](Self::poll_state), for an observer, or for `None` the call itself.
    pub(super) fn poll_state_as<R>(
        &self,
        observer: Option<u64>,
        waker: Option<&Waker>,
        done: impl FnOnce(&mut AcquisitionState) -> Option<R>,
    ) -> Option<R> {
        let mut inner = lock(&self.inner);
        let result = done(&mut inner.state);
        let replaced = match (&result, waker) {
            (None, Some(waker)) => inner.put(observer, waker),
            _ => None,
        };
        // A waker may be the last reference to a task. Dropping the task may drop a guard, which
        // locks this state.
        drop(inner);
        drop(replaced);
        result
    }

    /// Returns the remaining lease at `now`.
    pub(crate) fn remaining(&self, now: BootInstant) -> Duration {
        let remaining = self.poll_state(None, |state| match state {
            AcquisitionState::Held { .. } => Some(self.deadline.get().0.since(now)),
            _ => None,
        });
        remaining.unwrap_or_default()
    }

    /// Returns how long the lock has been held at `now`. After a release, returns the time since it
    /// was acquired; after a loss, how long it was held.
    pub(crate) fn held_for(&self, now: BootInstant) -> Duration {
        let held_for = self.poll_state(None, |state| match state {
            AcquisitionState::Held { since, .. } | AcquisitionState::Released { since } => {
                Some(now.since(*since))
            }
            AcquisitionState::Lost(lost) => Some(lost.held),
            _ => None,
        });
        held_for.unwrap_or_default()
    }

    /// Checks that the hold is valid at `now`. Otherwise, returns how and after how long it was
    /// lost.
    pub(crate) fn check_valid(&self, now: BootInstant) -> Result<(), (LossCause, Duration)> {
        if self.deadline.is_valid_at(now) {
            return Ok(()); // without the lock: two checks per call, and one per poll of a body
        }
        let lost = self.poll_state(None, |state| match state {
            AcquisitionState::Lost(lost) => Some(Err((lost.cause, lost.held))),
            AcquisitionState::Held { since, .. } => Some(match self.deadline.get() {
                (deadline, cause) if now >= deadline => Err((cause, now.since(*since))),
                _ => Ok(()),
            }),
            _ => Some(Err((LossCause::Released, Duration::ZERO))),
        });
        lost.unwrap_or(Ok(()))
    }

    /// Returns `true` if the lease has expired at `now`, before or after a release. After
    /// `max_hold`, the lease is unknown, and counts as valid.
    pub(super) fn has_expired(&self, now: BootInstant) -> bool {
        let (deadline, cause) = self.deadline.get();
        now >= deadline && cause != LossCause::MaxHold
    }

    /// Returns `true` while the call holds the lock, even if the deadline has passed.
    pub(super) fn is_held(&self) -> bool {
        let held = |state: &mut AcquisitionState| Some(matches!(state, AcquisitionState::Held { .. }));
        self.poll_state(None, held).unwrap_or_default()
    }

    /// Records why the last renewal before the loss failed; `None` if it did not.
    pub(super) fn record_renewal_failure(&self, failure: Option<RenewalFailure>) {
        let mut inner = lock(&self.inner);
        let AcquisitionState::Held { since, .. } = inner.state else { return };
        let failure = failure.and_then(|failure| failure.since(since));
        if failure.is_some() || inner.extra.is_some() {
            inner.extra.get_or_insert_default().renewal_failure = failure;
        }
    }

    /// Returns the reason of a loss by `cause`, if a renewal has failed.
    pub(crate) fn loss_reason(&self, cause: LossCause) -> Option<Arc<str>> {
        if cause == LossCause::Forked {
            return None; // another thread may have held the mutex at the fork
        }
        if cause == LossCause::Expired && self.deadline.get().1 == LossCause::MaxHold {
            return None; // no renewal is sent after `max_hold`
        }
        let inner = lock(&self.inner);
        let failure = inner.extra.as_ref()?.renewal_failure.as_ref()?;
        failure.explains(cause).then(|| Arc::clone(&failure.reason))
    }

    /// Returns why another process may hold the lock after a loss to `max_hold`, or `None` while
    /// the lock stays with its body.
    pub(crate) fn left_by_max_hold(&self, now: BootInstant) -> Option<LossCause> {
        self.poll_state(None, |state| match state {
            AcquisitionState::Lost(lost) => match lost.left {
                Some(left) => (now >= left.deadline).then_some(LossCause::Expired),
                None => Some(LossCause::Released),
            },
            _ => None,
        })
    }

    /// Returns the deadline of the hold.
    #[cfg(test)]
    pub(super) fn deadline(&self) -> BootInstant {
        self.deadline.get().0
    }

    /// Returns the fencing token, or `None` if it was not requested yet.
    pub(crate) fn fencing_token(&self) -> Option<u64> {
        lock(&self.inner).extra.as_ref()?.fencing
    }

    /// Records the fencing token. Returns the first that was recorded.
    pub(crate) fn record_fencing_token(&self, token: u64) -> u64 {
        *lock(&self.inner).extra.get_or_insert_default().fencing.get_or_insert(token)
    }

    /// Marks the acquisition as released at `now`.
    pub(crate) fn end(&self, now: BootInstant) -> EndedAcquisition {
        let mut inner = lock(&self.inner);
        let mut ended = EndedAcquisition { wakers: inner.wakers(), was_granted: false, left: None };
        self.deadline.end();
        match &mut inner.state {
            // A loss stays visible after a release.
            AcquisitionState::Lost(lost) => (ended.was_granted, ended.left) = (true, lost.left.take()),
            AcquisitionState::Held { since, .. } => {
                ended.was_granted = true;
                inner.state = AcquisitionState::Released { since: *since };
            }
            AcquisitionState::Released { .. } => {}
            _ => inner.state = AcquisitionState::Released { since: now },
        }
        ended
    }

    /// Rejects the acquisition, unless it was granted in the meantime.
    pub(super) fn reject(&self, refusal: AcquireFailure) -> Wakers {
        let mut inner = lock(&self.inner);
        if !matches!(inner.state, AcquisitionState::Waiting) {
            return Wakers::default();
        }
        inner.state = AcquisitionState::Rejected(Some(Box::new(refusal)));
        inner.wakers()
    }

    pub(super) fn mark_lost(&self, cause: LossCause, left: Option<ResidualHold>, now: BootInstant) -> Wakers {
        let mut inner = lock(&self.inner);
        if let AcquisitionState::Held { since, .. } = inner.state {
            self.deadline.end();
            inner.state = AcquisitionState::Lost(Box::new(LossInfo { cause, held: now.since(since), left }));
        }
        inner.wakers()
    }

    fn transition(&self, state: AcquisitionState) -> Wakers {
        let mut inner = lock(&self.inner);
        if !matches!(inner.state, AcquisitionState::Lost(_)) {
            inner.state = state;
        }
        inner.wakers()
    }
}

impl AcquisitionInner {
    /// Takes out all wakers.
    fn wakers(&mut self) -> Wakers {
        let observers = self.extra.as_mut().map(|extra| std::mem::take(&mut extra.observers));
        Wakers { own: self.waker.take(), observers }
    }

    /// Registers a waker and returns the one that it replaces.
    fn put(&mut self, observer: Option<u64>, waker: &Waker) -> Option<Waker> {
        match observer {
            None if self.waker.as_ref().is_some_and(|own| own.will_wake(waker)) => None,
            None => self.waker.replace(waker.clone()),
            Some(id) => self.extra.get_or_insert_default().observers.insert(id, waker.clone()),
        }
    }
}

/// The wakers of a change: one for the call and one for each observer, however often they polled.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    /// The waker of the call itself.
    pub(super) own: Option<Waker>,
    /// The wakers of observers, by their ids. `None` is the usual case, and costs less than an
    /// empty map: a fiftieth of a call over memory.
    pub(super) observers: Option<BTreeMap<u64, Waker>>,
}

#[cfg(any(test, dlock_loom, dlock_shuttle))]
impl Wakers {
    /// Wakes them. Nothing may be locked.
    pub(super) fn wake(self) {
        let observers = self.observers.into_iter().flat_map(BTreeMap::into_values);
        self.own.into_iter().chain(observers).for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll};

    use tokio::sync::oneshot;

    use super::*;
    use crate::LockManager;
    use crate::engine::tests::{counters, woken};

    fn acquisition() -> SharedAcquisition {
        Acquisition::new(LockKey::new("order:7").expect("a key"))
    }

    fn pending(_: &mut AcquisitionState) -> Option<()> {
        None
    }

    fn count(acquisition: &Acquisition) -> usize {
        let inner = lock(&acquisition.inner);
        let observers = inner.extra.as_ref().map_or(0, |extra| extra.observers.len());
        usize::from(inner.waker.is_some()) + observers
    }

    #[test]
    fn repeated_polls_keep_one_waker() {
        let (acquisition, counters) = (acquisition(), counters(10_000));

        for counter in &counters {
            acquisition.poll_state(Some(&Waker::from(Arc::clone(counter))), pending);
        }
        assert_eq!(count(&acquisition), 1);
        acquisition.end(BootInstant::START).wakers.wake();

        assert_eq!(woken(&counters).iter().rposition(|woken| *woken == 1), Some(9_999));
        assert_eq!(woken(&counters).iter().sum::<usize>(), 1);
        assert!(counters.iter().all(|counter| Arc::strong_count(counter) == 1), "a waker is kept");
    }

    #[test]
    fn a_removed_observer_keeps_no_waker() {
        let (acquisition, counters) = (acquisition(), counters(10_000));

        let observer = Acquisition::new_observer();
        for counter in &counters {
            acquisition.poll_state_as(Some(observer), Some(&Waker::from(Arc::clone(counter))), pending);
        }
        assert_eq!(count(&acquisition), 1);
        acquisition.remove_observer(observer);

        assert_eq!(count(&acquisition), 0);
        assert!(counters.iter().all(|counter| Arc::strong_count(counter) == 1), "a waker is kept");
    }

    #[test]
    fn the_call_and_its_observers_are_woken() {
        let (acquisition, counters) = (acquisition(), counters(3));
        let wakers: Vec<_> = counters.iter().cloned().map(Waker::from).collect();
        let (first, second) = (Acquisition::new_observer(), Acquisition::new_observer());

        for (observer, waker) in [None, Some(first), Some(second)].into_iter().zip(&wakers) {
            acquisition.poll_state_as(observer, Some(waker), pending);
        }
        acquisition.end(BootInstant::START).wakers.wake();

        assert_eq!(woken(&counters), [1, 1, 1]);
    }

    #[test]
    fn a_hold_is_invalid_after_max_hold_despite_its_lease() {
        let at = |seconds: u64| BootInstant::from_nanos(seconds * 1_000_000_000);
        let acquisition = acquisition();
        let deadline = Deadline::of_lease(at(0), Duration::from_secs(30));

        drop(acquisition.grant((deadline, at(10)), false, 1, at(0)));

        assert_eq!(acquisition.check_valid(at(9)), Ok(()));
        assert_eq!(acquisition.check_valid(at(10)), Err((LossCause::MaxHold, Duration::from_secs(10))));
    }

    #[test]
    fn a_late_renewal_does_not_revive_an_ended_hold() {
        let at = |seconds: u64| BootInstant::from_nanos(seconds * 1_000_000_000);
        let lease = Duration::from_secs(30);
        for is_lost in [true, false] {
            let (acquisition, deadline) = (acquisition(), Deadline::of_lease(at(0), lease));
            drop(acquisition.grant((deadline, BootInstant::NEVER), false, 1, at(0)));
            assert_eq!(acquisition.check_valid(at(1)), Ok(()));

            drop(if is_lost {
                acquisition.mark_lost(LossCause::NotOwner, None, at(1))
            } else {
                acquisition.end(at(1)).wakers
            });
            acquisition.extend(Deadline::of_lease(at(2), lease), BootInstant::NEVER);

            let cause = if is_lost { LossCause::NotOwner } else { LossCause::Released };
            assert_eq!(acquisition.check_valid(at(3)).map_err(|(cause, _)| cause), Err(cause));
        }
    }

    #[test]
    fn a_granted_acquisition_is_not_rejected() {
        let at = |seconds: u64| BootInstant::from_nanos(seconds * 1_000_000_000);
        let acquisition = acquisition();
        let deadline = Deadline::of_lease(at(0), Duration::from_secs(30));
        drop(acquisition.grant((deadline, BootInstant::NEVER), false, 1, at(0)));

        drop(acquisition.reject(AcquireFailure::Shutdown));

        assert!(acquisition.end(BootInstant::START).was_granted);
    }

    #[test]
    fn a_guard_stays_small() {
        assert!(size_of::<crate::LockGuard>() <= 32, "{}", size_of::<crate::LockGuard>());
    }

    #[test]
    fn an_acquisition_stays_small() {
        assert!(size_of::<Acquisition>() <= 72, "{}", size_of::<Acquisition>());
    }

    #[tokio::test]
    async fn a_call_is_not_woken_by_its_own_release() {
        let locks = LockManager::in_new_memory();
        let lock = locks.lock("order:7");
        let (end, ended) = oneshot::channel::<()>();
        let mut call = pin!(lock.run(async move |_| ended.await.is_err()));
        let counters = counters(1);
        let waker = Waker::from(Arc::clone(&counters[0]));
        let mut cx = Context::from_waker(&waker);
        assert!(call.as_mut().poll(&mut cx).is_pending());

        drop(end);
        let ran = call.as_mut().poll(&mut cx);

        assert!(matches!(ran, Poll::Ready(Ok(true))), "{ran:?}");
        assert_eq!(woken(&counters), [1], "its body woke it");
    }

    /// Returns an acquisition that was granted a lease of 30 s at 1 s, and that ends at `ends`.
    fn granted(ends: BootInstant) -> SharedAcquisition {
        let acquisition = acquisition();
        let deadline = Deadline::of_lease(at(1), Duration::from_secs(30));
        drop(acquisition.grant((deadline, ends), false, 2, at(1)));
        acquisition
    }

    fn at(seconds: u64) -> BootInstant {
        BootInstant::START.plus(Duration::from_secs(seconds))
    }

    #[test]
    fn times_of_a_hold_count_from_its_grant() {
        let waiting = acquisition();
        assert_eq!((waiting.held_for(at(5)), waiting.remaining(at(5))), (Duration::ZERO, Duration::ZERO));

        let held = granted(at(11));
        assert_eq!(held.held_for(at(5)), Duration::from_secs(4));
        assert_eq!(held.remaining(at(5)), Duration::from_secs(6));

        held.end(at(6));
        held.end(at(8));
        assert_eq!(held.held_for(at(9)), Duration::from_secs(8), "since it was acquired");
        assert_eq!(held.remaining(at(6)), Duration::ZERO);

        waiting.end(at(6));
        assert_eq!(waiting.held_for(at(9)), Duration::from_secs(3), "since it was given up");
        assert_eq!(waiting.check_valid(at(9)), Err((LossCause::Released, Duration::ZERO)));
    }

    #[test]
    fn a_loss_stays_visible_after_a_release() {
        let held = granted(at(11));
        drop(held.mark_lost(LossCause::NotOwner, None, at(3)));
        drop(held.mark_lost(LossCause::Expired, None, at(4)));

        assert!(held.end(at(5)).was_granted && held.end(at(6)).was_granted);
        drop(held.join());

        assert_eq!(held.check_valid(at(7)), Err((LossCause::NotOwner, Duration::from_secs(2))));
        assert!(!acquisition().end(at(1)).was_granted);
    }

    #[test]
    fn the_first_fencing_token_stays() {
        let held = granted(at(11));
        assert_eq!(held.fencing_token(), None);

        assert_eq!(held.record_fencing_token(7), 7);
        assert_eq!(held.record_fencing_token(8), 7, "another request was faster");

        assert_eq!(held.fencing_token(), Some(7));
    }

    #[test]
    fn acquisitions_of_one_key_are_compared_by_identity() {
        let (one, other) = (acquisition(), acquisition());

        assert!(one == SharedAcquisition::clone(&one) && one != other);
    }
}
