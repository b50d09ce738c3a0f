//! One task's turn at a lock: it waits, then holds or is refused, then it is over or lost.
//!
//! The turn is what the rules tell ([`AcquisitionRef`]) and what the task looks at. It is changed only under its lane's lock, so its phases
//! come in the order of the rules; the task reads it without that lock.

use std::ops::Deref;
use std::task::Waker;
use std::time::Duration;

use crate::engine::atomic_deadline::AtomicDeadline;
use crate::error::LossCause;
use crate::key::LockKey;
use crate::protocol::deadline::{BootInstant, Deadline};
use crate::protocol::hold::ResidualHold;
use crate::protocol::key_state::AcquireFailure;
use crate::sync::shared::atomic::Ordering;
use crate::sync::shared::{Mutex, lock};

/// A turn that several have. Nobody has it weakly, which saves a word.
pub(crate) type SharedAcquisition = triomphe::Arc<Acquisition>;

/// One task's turn. There is one for every lock that is held, so what few turns have stands beside it.
#[derive(Debug)]
pub(crate) struct Acquisition {
    pub(crate) key: LockKey,
    state: Mutex<AcquisitionInner>,
    until: AtomicDeadline,
}

#[derive(Debug)]
struct AcquisitionInner {
    phase: AcquisitionState,
    woken: Woken,
}

/// Who is woken at the next change.
#[derive(Debug)]
enum Woken {
    /// The call whose turn it is.
    Own(Waker),
    /// What few turns have; nothing, while nobody is woken.
    MoreWakers(Option<Box<MoreWakers>>),
}

/// What few turns have.
#[derive(Debug, Default)]
struct MoreWakers {
    /// The call whose turn it is.
    own: Option<Waker>,
    /// Who else is woken at the next change: its lookers, by their ids.
    lookers: Vec<(u64, Waker)>,
    /// The fencing token, once it has been asked for.
    fencing: Option<u64>,
}

/// How far a turn is.
#[derive(Debug)]
pub(crate) enum AcquisitionState {
    /// It waits.
    AcquireFuture,
    /// It holds the lock.
    HoldGuard { since: BootInstant, attempts: u32 },
    /// It goes on inside a hold of its call chain.
    Joined,
    /// It did not get the lock; the reason is there until it is taken.
    Refused(Option<Box<AcquireFailure>>),
    /// It held and does not any more.
    Lost(Box<LossInfo>),
    /// It has let go of what it had since then.
    Over { since: BootInstant },
}

/// How a hold ended before its end.
#[derive(Debug)]
pub(crate) struct LossInfo {
    pub(crate) cause: LossCause,
    /// For how long it had been held.
    held: Duration,
    /// What it has left for its task to let go of.
    left: Option<ResidualHold>,
}

/// What is known of a turn when its task lets go.
pub(crate) struct EndedAcquisition {
    pub(crate) wakers: Wakers,
    /// Whether it ever was its turn.
    pub(crate) was_admitted: bool,
    /// What a loss has left for the task to let go of.
    pub(crate) left: Option<ResidualHold>,
}

/// A turn as the rules see it: told apart from all others, and told what becomes of it.
#[derive(Clone, Debug)]
pub(crate) struct AcquisitionRef(pub(crate) SharedAcquisition);

impl Deref for AcquisitionRef {
    type Target = Acquisition;

    fn deref(&self) -> &Acquisition {
        &self.0
    }
}

impl PartialEq for AcquisitionRef {
    fn eq(&self, other: &Self) -> bool {
        SharedAcquisition::ptr_eq(&self.0, &other.0)
    }
}

impl AcquisitionRef {
    pub(super) fn grant(
        &self,
        (deadline, ends): (Deadline, BootInstant),
        is_unconfirmed: bool,
        attempts: u32,
        now: BootInstant,
    ) -> Wakers {
        self.0.until.begin(deadline, ends, is_unconfirmed);
        self.0.transition(AcquisitionState::HoldGuard { since: now, attempts })
    }

    pub(super) fn join(&self) -> Wakers {
        self.0.transition(AcquisitionState::Joined)
    }

    pub(super) fn refuse(&self, refusal: AcquireFailure) -> Wakers {
        self.0.refuse(refusal)
    }

    /// Takes out who waits, though nothing has become of the turn.
    pub(super) fn take_wakers(&self) -> Wakers {
        lock(&self.0.state).wakers()
    }

    pub(super) fn extend(&self, deadline: Deadline, ends: BootInstant) {
        self.0.until.extend(deadline, ends);
    }

    pub(super) fn mark_lost(&self, cause: LossCause, left: Option<ResidualHold>, now: BootInstant) -> Wakers {
        self.0.mark_lost(cause, left, now)
    }
}

impl Acquisition {
    pub(crate) fn new(key: LockKey) -> SharedAcquisition {
        SharedAcquisition::new(Self {
            key,
            state: Mutex::new(AcquisitionInner {
                phase: AcquisitionState::AcquireFuture,
                woken: Woken::MoreWakers(None),
            }),
            until: AtomicDeadline::default(),
        })
    }

    /// Looks at the phase; where `done` returns `None`, `waker` is woken at the next change, in place of the one given before. It is
    /// for the call whose turn it is, which waits and then runs its body; who else wants to be woken looks as a [`Observer`].
    pub(crate) fn poll_state<R>(
        &self,
        waker: Option<&Waker>,
        done: impl FnOnce(&mut AcquisitionState) -> Option<R>,
    ) -> Option<R> {
        self.poll_state_as(None, waker, done)
    }

    /// Begins to look at the turn beside the call whose turn it is.
    pub(crate) fn observer(&self) -> Observer<'_> {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0); // it tells them apart, and no more
        Observer { acquisition: self, id: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    fn poll_state_as<R>(
        &self,
        looker: Option<u64>,
        waker: Option<&Waker>,
        done: impl FnOnce(&mut AcquisitionState) -> Option<R>,
    ) -> Option<R> {
        let mut state = lock(&self.state);
        let result = done(&mut state.phase);
        let replaced = match (&result, waker) {
            (None, Some(waker)) => state.put(looker, waker),
            _ => None,
        };
        // A waker may be the last that knows of a task: what its end does, such as dropping a guard, may lock this state.
        drop(state);
        drop(replaced);
        result
    }

    /// Returns how long the hold is still believed at `now`.
    pub(crate) fn remaining(&self, now: BootInstant) -> Duration {
        let remaining = self.poll_state(None, |phase| match phase {
            AcquisitionState::HoldGuard { .. } => Some(self.until.get().0.since(now)),
            _ => None,
        });
        remaining.unwrap_or_default()
    }

    /// Returns how long the lock has been held at `now`, or was since it was taken.
    pub(crate) fn held_for(&self, now: BootInstant) -> Duration {
        let since = self.poll_state(None, |phase| match phase {
            AcquisitionState::HoldGuard { since, .. } | AcquisitionState::Over { since } => {
                Some(now.since(*since))
            }
            _ => None,
        });
        since.unwrap_or_default()
    }

    /// Returns whether the hold is believed at `now`, and else how it was lost.
    pub(crate) fn check_valid(&self, now: BootInstant) -> Result<(), (LossCause, Duration)> {
        if self.until.is_after(now) {
            return Ok(()); // without the lock, as nearly always: each call asks twice, and each poll of its body once
        }
        let lost = self.poll_state(None, |phase| match phase {
            AcquisitionState::Lost(lost) => Some(Err((lost.cause, lost.held))),
            AcquisitionState::HoldGuard { since, .. } => Some(match self.until.get() {
                (until, cause) if now >= until => Err((cause, now.since(*since))),
                _ => Ok(()),
            }),
            _ => Some(Err((LossCause::ReleaseOutcome, Duration::ZERO))),
        });
        lost.unwrap_or(Ok(()))
    }

    /// Returns why others may have the lock of a hold that was lost to its `max_hold`; `None` while it stays with its body.
    pub(crate) fn left_by_max_hold(&self, now: BootInstant) -> Option<LossCause> {
        self.poll_state(None, |phase| match phase {
            AcquisitionState::Lost(lost) => match lost.left {
                Some(left) => (now >= left.deadline).then_some(LossCause::Expired),
                None => Some(LossCause::ReleaseOutcome),
            },
            _ => None,
        })
    }

    /// Returns until when the hold is or was believed, as the renewals have it.
    #[cfg(test)]
    pub(super) fn until(&self) -> BootInstant {
        self.until.get().0
    }

    /// Returns the fencing token, where it has been asked for.
    pub(crate) fn fencing_token(&self) -> Option<u64> {
        lock(&self.state).known_rest().and_then(|rest| rest.fencing)
    }

    /// Notes the fencing token. Returns the first that was noted.
    pub(crate) fn note_fencing_token(&self, token: u64) -> u64 {
        *lock(&self.state).rest().fencing.get_or_insert(token)
    }

    /// Marks the turn as over at `now`: its task has let go.
    pub(crate) fn end(&self, now: BootInstant) -> EndedAcquisition {
        let mut state = lock(&self.state);
        let mut ended = EndedAcquisition { wakers: state.wakers(), was_admitted: false, left: None };
        self.until.end();
        match &mut state.phase {
            // A loss stays visible: letting go of what is lost already does not undo it.
            AcquisitionState::Lost(lost) => (ended.was_admitted, ended.left) = (true, lost.left.take()),
            AcquisitionState::HoldGuard { since, .. } => {
                ended.was_admitted = true;
                state.phase = AcquisitionState::Over { since: *since };
            }
            AcquisitionState::Over { .. } => {}
            _ => state.phase = AcquisitionState::Over { since: now },
        }
        ended
    }

    /// A turn that has come meanwhile is not taken back.
    fn refuse(&self, refusal: AcquireFailure) -> Wakers {
        let mut state = lock(&self.state);
        if !matches!(state.phase, AcquisitionState::AcquireFuture) {
            return Wakers::default();
        }
        state.phase = AcquisitionState::Refused(Some(Box::new(refusal)));
        state.wakers()
    }

    fn mark_lost(&self, cause: LossCause, left: Option<ResidualHold>, now: BootInstant) -> Wakers {
        let mut state = lock(&self.state);
        if let AcquisitionState::HoldGuard { since, .. } = state.phase {
            self.until.end();
            state.phase = AcquisitionState::Lost(Box::new(LossInfo { cause, held: now.since(since), left }));
        }
        state.wakers()
    }

    fn transition(&self, phase: AcquisitionState) -> Wakers {
        let mut state = lock(&self.state);
        if !matches!(state.phase, AcquisitionState::Lost(_)) {
            state.phase = phase;
        }
        state.wakers()
    }
}

/// Looks at a turn for as long as it lives, beside the call whose turn it is.
#[derive(Debug)]
pub(crate) struct Observer<'a> {
    acquisition: &'a Acquisition,
    id: u64,
}

impl Observer<'_> {
    /// Looks at the phase; where `done` returns `None`, `waker` is woken at the next change, in place of the one given before.
    pub(crate) fn poll_state<R>(
        &self,
        waker: &Waker,
        done: impl FnOnce(&mut AcquisitionState) -> Option<R>,
    ) -> Option<R> {
        self.acquisition.poll_state_as(Some(self.id), Some(waker), done)
    }
}

impl Drop for Observer<'_> {
    fn drop(&mut self) {
        let removed = lock(&self.acquisition.state).remove(self.id);
        drop(removed); // with nothing locked
    }
}

impl AcquisitionInner {
    /// Takes out who is to be woken.
    fn wakers(&mut self) -> Wakers {
        match &mut self.woken {
            Woken::MoreWakers(None) => Wakers::default(),
            Woken::MoreWakers(Some(rest)) => {
                Wakers { own: rest.own.take(), lookers: std::mem::take(&mut rest.lookers) }
            }
            Woken::Own(_) => match std::mem::replace(&mut self.woken, Woken::MoreWakers(None)) {
                Woken::Own(own) => Wakers { own: Some(own), lookers: Vec::new() },
                Woken::MoreWakers(_) => Wakers::default(),
            },
        }
    }

    /// Puts a waker in its place, and returns the one that stood there.
    fn put(&mut self, looker: Option<u64>, waker: &Waker) -> Option<Waker> {
        if let (None, Woken::MoreWakers(None)) = (looker, &self.woken) {
            self.woken = Woken::Own(waker.clone());
            return None;
        }
        let place = match (looker, &mut self.woken) {
            (None, Woken::Own(own)) => Some(own),
            (None, Woken::MoreWakers(rest)) => rest.as_mut().and_then(|rest| rest.own.as_mut()),
            (Some(id), _) => {
                let mut lookers = self.rest().lookers.iter_mut();
                lookers.find(|(of, _)| *of == id).map(|(_, waker)| waker)
            }
        };
        match (place, looker) {
            (Some(known), _) if known.will_wake(waker) => return None,
            (Some(known), _) => return Some(std::mem::replace(known, waker.clone())),
            (None, None) => self.rest().own = Some(waker.clone()),
            (None, Some(id)) => self.rest().lookers.push((id, waker.clone())),
        }
        None
    }

    fn remove(&mut self, looker: u64) -> Option<Waker> {
        let Woken::MoreWakers(Some(rest)) = &mut self.woken else { return None };
        let at = rest.lookers.iter().position(|(of, _)| *of == looker)?;
        Some(rest.lookers.swap_remove(at).1)
    }

    fn known_rest(&self) -> Option<&MoreWakers> {
        match &self.woken {
            Woken::Own(_) => None,
            Woken::MoreWakers(rest) => rest.as_deref(),
        }
    }

    /// Returns what few turns have; this one has it from now on.
    fn rest(&mut self) -> &mut MoreWakers {
        if let Woken::Own(own) = &self.woken {
            let own = Some(own.clone());
            self.woken = Woken::MoreWakers(Some(Box::new(MoreWakers { own, ..MoreWakers::default() })));
        }
        match &mut self.woken {
            Woken::MoreWakers(rest) => rest.get_or_insert_default(),
            Woken::Own(_) => unreachable!("it has been put among the rest"),
        }
    }
}

/// Who is woken by a change of a turn: one waker for each who looks, however many wakers it was polled with.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    /// That of the call whose turn it is.
    pub(super) own: Option<Waker>,
    /// Those of its lookers, by their ids.
    pub(super) lookers: Vec<(u64, Waker)>,
}

#[cfg(any(test, dlock_loom, dlock_shuttle))]
impl Wakers {
    /// Wakes them here and now, where nothing is locked.
    pub(super) fn wake(self) {
        self.own.into_iter().chain(self.lookers.into_iter().map(|(_, waker)| waker)).for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Bell(AtomicUsize);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn bells(count: usize) -> Vec<Arc<Bell>> {
        (0..count).map(|_| Arc::default()).collect()
    }

    fn rung(bells: &[Arc<Bell>]) -> Vec<usize> {
        bells.iter().map(|bell| bell.0.load(Ordering::SeqCst)).collect()
    }

    fn acquisition() -> SharedAcquisition {
        Acquisition::new(LockKey::new("order:7").expect("a key"))
    }

    fn not_yet(_: &mut AcquisitionState) -> Option<()> {
        None
    }

    fn count(acquisition: &Acquisition) -> usize {
        let state = lock(&acquisition.state);
        match &state.woken {
            Woken::Own(_) => 1,
            Woken::MoreWakers(rest) => {
                rest.as_ref().map_or(0, |rest| usize::from(rest.own.is_some()) + rest.lookers.len())
            }
        }
    }

    #[test]
    fn ten_thousand_polls_with_wakers_of_their_own_keep_one() {
        let (acquisition, bells) = (acquisition(), bells(10_000));

        for bell in &bells {
            acquisition.poll_state(Some(&Waker::from(Arc::clone(bell))), not_yet);
        }
        assert_eq!(count(&acquisition), 1);
        acquisition.end(BootInstant::START).wakers.wake();

        assert_eq!(rung(&bells).iter().rposition(|rung| *rung == 1), Some(9_999));
        assert_eq!(rung(&bells).iter().sum::<usize>(), 1);
        assert!(bells.iter().all(|bell| Arc::strong_count(bell) == 1), "a waker is kept");
    }

    #[test]
    fn ten_thousand_polls_of_one_looker_keep_one_and_its_end_none() {
        let (acquisition, bells) = (acquisition(), bells(10_000));

        let looker = acquisition.observer();
        for bell in &bells {
            looker.poll_state(&Waker::from(Arc::clone(bell)), not_yet);
        }
        assert_eq!(count(&acquisition), 1);
        drop(looker);

        assert_eq!(count(&acquisition), 0);
        assert!(bells.iter().all(|bell| Arc::strong_count(bell) == 1), "a waker is kept");
    }

    #[test]
    fn everybody_who_looks_is_woken() {
        let (acquisition, bells) = (acquisition(), bells(3));
        let wakers: Vec<_> = bells.iter().cloned().map(Waker::from).collect();
        let (first, second) = (acquisition.observer(), acquisition.observer());

        acquisition.poll_state(Some(&wakers[0]), not_yet);
        first.poll_state(&wakers[1], not_yet);
        second.poll_state(&wakers[2], not_yet);
        acquisition.end(BootInstant::START).wakers.wake();

        assert_eq!(rung(&bells), [1, 1, 1]);
    }

    #[test]
    fn a_hold_is_not_believed_after_its_max_hold_though_its_lease_goes_on() {
        let at = |seconds: u64| BootInstant::from_nanos(seconds * 1_000_000_000);
        let acquisition = acquisition();
        let deadline = Deadline::of_lease(at(0), Duration::from_secs(30));

        drop(AcquisitionRef(SharedAcquisition::clone(&acquisition)).grant(
            (deadline, at(10)),
            false,
            1,
            at(0),
        ));

        assert_eq!(acquisition.check_valid(at(9)), Ok(()));
        assert_eq!(acquisition.check_valid(at(10)), Err((LossCause::MaxHold, Duration::from_secs(10))));
    }

    #[test]
    fn what_is_lost_or_let_go_of_is_not_believed_again_though_a_renewal_comes_late() {
        let at = |seconds: u64| BootInstant::from_nanos(seconds * 1_000_000_000);
        let lease = Duration::from_secs(30);
        for is_lost in [true, false] {
            let (acquisition, deadline) = (acquisition(), Deadline::of_lease(at(0), lease));
            let acquisition = AcquisitionRef(SharedAcquisition::clone(&acquisition));
            drop(acquisition.grant((deadline, BootInstant::NEVER), false, 1, at(0)));
            assert_eq!(acquisition.check_valid(at(1)), Ok(()));

            drop(if is_lost {
                acquisition.mark_lost(LossCause::NotOwner, None, at(1))
            } else {
                acquisition.end(at(1)).wakers
            });
            acquisition.extend(Deadline::of_lease(at(2), lease), BootInstant::NEVER);

            let cause = if is_lost { LossCause::NotOwner } else { LossCause::ReleaseOutcome };
            assert_eq!(acquisition.check_valid(at(3)).map_err(|(cause, _)| cause), Err(cause));
        }
    }

    #[test]
    fn a_turn_that_has_come_is_not_refused() {
        let at = |seconds: u64| BootInstant::from_nanos(seconds * 1_000_000_000);
        let acquisition = acquisition();
        let (acquisition, deadline) = (
            AcquisitionRef(SharedAcquisition::clone(&acquisition)),
            Deadline::of_lease(at(0), Duration::from_secs(30)),
        );
        drop(acquisition.grant((deadline, BootInstant::NEVER), false, 1, at(0)));

        drop(acquisition.refuse(AcquireFailure::Shutdown));

        assert!(acquisition.end(BootInstant::START).was_admitted);
    }

    #[test]
    fn a_guard_stays_small() {
        assert!(size_of::<crate::LockGuard>() <= 32, "{}", size_of::<crate::LockGuard>());
    }

    #[test]
    fn a_turn_stays_small() {
        assert!(size_of::<Acquisition>() <= 64, "{}", size_of::<Acquisition>());
    }
}
