//! One task's turn at a lock: it waits, then holds or is refused, then it is over or lost.
//!
//! The turn is what the rules tell ([`Seat`]) and what the task looks at. It is changed only under its lane's lock, so its phases
//! come in the order of the rules; the task reads it without that lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use once_cell::sync::OnceCell;

use crate::error::LossCause;
use crate::key::LockKey;
use crate::protocol::deadline::{BootTime, Deadline};
use crate::protocol::hold::Left;
use crate::protocol::lane::Refusal;
use crate::sync::lock;
use crate::token::Token;

/// One task's turn.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) key: LockKey,
    /// When the call began.
    pub(crate) started: BootTime,
    state: Mutex<State>,
    /// Until when the hold is believed, in nanoseconds of the engine's clock; 0 while nothing is held.
    deadline: AtomicU64,
    /// The fencing token, once it has been asked for.
    pub(crate) fencing: OnceCell<u64>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    wakers: Wakers,
}

/// How far a turn is.
#[derive(Debug)]
pub(crate) enum Phase {
    /// It waits.
    Waiting,
    /// It holds the lock.
    Held { token: Token, since: BootTime, ends: BootTime, attempts: u32 },
    /// It goes on inside a hold of its call chain.
    Joined,
    /// It did not get the lock; the reason is there until it is taken.
    Refused(Option<Box<Refusal>>),
    /// It held and does not any more.
    Lost { cause: LossCause, held: Duration, left: Option<Box<Left>> },
    /// It has let go of what it had since then.
    Over { since: BootTime },
}

/// What is known of a turn when its task lets go.
pub(crate) struct Ended {
    pub(crate) wakers: Wakers,
    /// Whether it ever was its turn.
    pub(crate) was_admitted: bool,
    /// What a loss has left for the task to let go of.
    pub(crate) left: Option<Left>,
}

/// A turn as the rules see it: told apart from all others, and told what becomes of it.
#[derive(Clone, Debug)]
pub(crate) struct Seat(pub(crate) Arc<Turn>);

impl PartialEq for Seat {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Seat {
    pub(super) fn admit(
        &self,
        token: Token,
        deadline: Deadline,
        ends: BootTime,
        attempts: u32,
        now: BootTime,
    ) -> Wakers {
        self.0.deadline.store(deadline.at().nanos(), Ordering::Release);
        self.0.become_(Phase::Held { token, since: now, ends, attempts })
    }

    pub(super) fn join(&self) -> Wakers {
        self.0.become_(Phase::Joined)
    }

    pub(super) fn refuse(&self, refusal: Refusal) -> Wakers {
        self.0.refuse(refusal)
    }

    /// Wakes who waits though nothing has become of the turn.
    pub(super) fn look_again(&self) -> Wakers {
        std::mem::take(&mut lock(&self.0.state).wakers)
    }

    pub(super) fn prolong(&self, deadline: Deadline) {
        self.0.deadline.fetch_max(deadline.at().nanos(), Ordering::AcqRel);
    }

    pub(super) fn lose(&self, cause: LossCause, left: Option<Left>, now: BootTime) -> Wakers {
        self.0.lose(cause, left, now)
    }
}

impl Turn {
    pub(crate) fn new(key: LockKey, started: BootTime) -> Arc<Self> {
        Arc::new(Self {
            key,
            started,
            state: Mutex::new(State { phase: Phase::Waiting, wakers: Wakers::default() }),
            deadline: AtomicU64::new(0),
            fencing: OnceCell::new(),
        })
    }

    /// Looks at the phase; where `done` returns `None`, `waker` is woken at the next change, in place of the one given before. It is
    /// for the call whose turn it is, which waits and then runs its body; who else wants to be woken looks as a [`Looker`].
    pub(crate) fn look<R>(
        &self,
        waker: Option<&Waker>,
        done: impl FnOnce(&mut Phase) -> Option<R>,
    ) -> Option<R> {
        self.look_as(None, waker, done)
    }

    /// Begins to look at the turn beside the call whose turn it is.
    pub(crate) fn looker(&self) -> Looker<'_> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Looker { turn: self, id: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    fn look_as<R>(
        &self,
        looker: Option<u64>,
        waker: Option<&Waker>,
        done: impl FnOnce(&mut Phase) -> Option<R>,
    ) -> Option<R> {
        let mut state = lock(&self.state);
        let result = done(&mut state.phase);
        let replaced = match (&result, waker) {
            (None, Some(waker)) => state.wakers.put(looker, waker),
            _ => None,
        };
        // A waker may be the last that knows of a task: what its end does, such as dropping a guard, may lock this state.
        drop(state);
        drop(replaced);
        result
    }

    /// Returns how long the hold is still believed at `now`.
    pub(crate) fn remaining(&self, now: BootTime) -> Duration {
        let remaining = self.look(None, |phase| match phase {
            Phase::Held { ends, .. } => Some(self.deadline().min(*ends).since(now)),
            _ => None,
        });
        remaining.unwrap_or_default()
    }

    fn deadline(&self) -> BootTime {
        BootTime::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// Returns whether the hold is believed at `now`, and else how it was lost.
    pub(crate) fn believed(&self, now: BootTime) -> Result<(), (LossCause, Duration)> {
        let lost = self.look(None, |phase| match phase {
            Phase::Lost { cause, held, .. } => Some(Err((*cause, *held))),
            Phase::Held { since, .. } if now >= self.deadline() => {
                Some(Err((LossCause::Expired, now.since(*since))))
            }
            Phase::Held { since, ends, .. } if now >= *ends => {
                Some(Err((LossCause::MaxHold, now.since(*since))))
            }
            Phase::Held { .. } => Some(Ok(())),
            _ => Some(Err((LossCause::Released, Duration::ZERO))),
        });
        lost.unwrap_or(Ok(()))
    }

    /// Returns the token of the hold, while it is held.
    pub(crate) fn token(&self) -> Option<Token> {
        self.look(None, |phase| match phase {
            Phase::Held { token, .. } => Some(*token),
            _ => None,
        })
    }

    /// Marks the turn as over: its task has let go.
    pub(crate) fn end(&self) -> Ended {
        let mut state = lock(&self.state);
        let mut ended = Ended { wakers: std::mem::take(&mut state.wakers), was_admitted: false, left: None };
        match &mut state.phase {
            // A loss stays visible: letting go of what is lost already does not undo it.
            Phase::Lost { left, .. } => {
                (ended.was_admitted, ended.left) = (true, left.take().map(|left| *left));
            }
            Phase::Held { since, .. } => {
                ended.was_admitted = true;
                state.phase = Phase::Over { since: *since };
            }
            Phase::Over { .. } => {}
            _ => state.phase = Phase::Over { since: self.started },
        }
        ended
    }

    /// A turn that has come meanwhile is not taken back.
    fn refuse(&self, refusal: Refusal) -> Wakers {
        let mut state = lock(&self.state);
        if !matches!(state.phase, Phase::Waiting) {
            return Wakers::default();
        }
        state.phase = Phase::Refused(Some(Box::new(refusal)));
        std::mem::take(&mut state.wakers)
    }

    fn lose(&self, cause: LossCause, left: Option<Left>, now: BootTime) -> Wakers {
        let mut state = lock(&self.state);
        if let Phase::Held { since, .. } = state.phase {
            state.phase = Phase::Lost { cause, held: now.since(since), left: left.map(Box::new) };
        }
        std::mem::take(&mut state.wakers)
    }

    fn become_(&self, phase: Phase) -> Wakers {
        let mut state = lock(&self.state);
        if !matches!(state.phase, Phase::Lost { .. }) {
            state.phase = phase;
        }
        std::mem::take(&mut state.wakers)
    }
}

/// Looks at a turn for as long as it lives, beside the call whose turn it is.
#[derive(Debug)]
pub(crate) struct Looker<'a> {
    turn: &'a Turn,
    id: u64,
}

impl Looker<'_> {
    /// Looks at the phase; where `done` returns `None`, `waker` is woken at the next change, in place of the one given before.
    pub(crate) fn look<R>(&self, waker: &Waker, done: impl FnOnce(&mut Phase) -> Option<R>) -> Option<R> {
        self.turn.look_as(Some(self.id), Some(waker), done)
    }
}

impl Drop for Looker<'_> {
    fn drop(&mut self) {
        let removed = lock(&self.turn.state).wakers.remove(self.id);
        drop(removed); // with nothing locked
    }
}

/// Who is woken at the next change of a turn: one waker for each who looks, however many wakers it was polled with.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    /// That of the call whose turn it is.
    own: Option<Waker>,
    /// Those of its lookers, by their ids.
    others: Vec<(u64, Waker)>,
}

impl Wakers {
    /// Puts a waker in its place, and returns the one that stood there.
    fn put(&mut self, looker: Option<u64>, waker: &Waker) -> Option<Waker> {
        let place = match looker {
            None => self.own.as_mut(),
            Some(id) => self.others.iter_mut().find(|(of, _)| *of == id).map(|(_, waker)| waker),
        };
        match (place, looker) {
            (Some(known), _) if known.will_wake(waker) => return None,
            (Some(known), _) => return Some(std::mem::replace(known, waker.clone())),
            (None, None) => self.own = Some(waker.clone()),
            (None, Some(id)) => self.others.push((id, waker.clone())),
        }
        None
    }

    fn remove(&mut self, looker: u64) -> Option<Waker> {
        let at = self.others.iter().position(|(of, _)| *of == looker)?;
        Some(self.others.swap_remove(at).1)
    }
}

impl IntoIterator for Wakers {
    type Item = Waker;
    type IntoIter = std::iter::Chain<
        std::option::IntoIter<Waker>,
        std::iter::Map<std::vec::IntoIter<(u64, Waker)>, fn((u64, Waker)) -> Waker>,
    >;

    fn into_iter(self) -> Self::IntoIter {
        let waker: fn((u64, Waker)) -> Waker = |(_, waker)| waker;
        self.own.into_iter().chain(self.others.into_iter().map(waker))
    }
}

#[cfg(test)]
mod tests {
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

    fn turn() -> Arc<Turn> {
        Turn::new(LockKey::new("order:7").expect("a key"), BootTime::from_nanos(0))
    }

    fn not_yet(_: &mut Phase) -> Option<()> {
        None
    }

    fn count(turn: &Turn) -> usize {
        let state = lock(&turn.state);
        usize::from(state.wakers.own.is_some()) + state.wakers.others.len()
    }

    #[test]
    fn ten_thousand_polls_with_wakers_of_their_own_keep_one() {
        let (turn, bells) = (turn(), bells(10_000));

        for bell in &bells {
            turn.look(Some(&Waker::from(Arc::clone(bell))), not_yet);
        }
        assert_eq!(count(&turn), 1);
        turn.end().wakers.into_iter().for_each(Waker::wake);

        assert_eq!(rung(&bells).iter().rposition(|rung| *rung == 1), Some(9_999));
        assert_eq!(rung(&bells).iter().sum::<usize>(), 1);
        assert!(bells.iter().all(|bell| Arc::strong_count(bell) == 1), "a waker is kept");
    }

    #[test]
    fn ten_thousand_polls_of_one_looker_keep_one_and_its_end_none() {
        let (turn, bells) = (turn(), bells(10_000));

        let looker = turn.looker();
        for bell in &bells {
            looker.look(&Waker::from(Arc::clone(bell)), not_yet);
        }
        assert_eq!(count(&turn), 1);
        drop(looker);

        assert_eq!(count(&turn), 0);
        assert!(bells.iter().all(|bell| Arc::strong_count(bell) == 1), "a waker is kept");
    }

    #[test]
    fn everybody_who_looks_is_woken() {
        let (turn, bells) = (turn(), bells(3));
        let wakers: Vec<_> = bells.iter().cloned().map(Waker::from).collect();
        let (first, second) = (turn.looker(), turn.looker());

        turn.look(Some(&wakers[0]), not_yet);
        first.look(&wakers[1], not_yet);
        second.look(&wakers[2], not_yet);
        turn.end().wakers.into_iter().for_each(Waker::wake);

        assert_eq!(rung(&bells), [1, 1, 1]);
    }

    #[test]
    fn a_hold_is_not_believed_after_its_max_hold_though_its_lease_goes_on() {
        let at = |seconds: u64| BootTime::from_nanos(seconds * 1_000_000_000);
        let (turn, token) = (turn(), crate::token::TokenSource::of_process(1).next());
        let deadline = Deadline::of_lease(at(0), Duration::from_secs(30));

        drop(Seat(Arc::clone(&turn)).admit(token, deadline, at(10), 1, at(0)));

        assert_eq!(turn.believed(at(9)), Ok(()));
        assert_eq!(turn.believed(at(10)), Err((LossCause::MaxHold, Duration::from_secs(10))));
    }

    #[test]
    fn a_turn_that_has_come_is_not_refused() {
        let at = |seconds: u64| BootTime::from_nanos(seconds * 1_000_000_000);
        let (turn, token) = (turn(), crate::token::TokenSource::of_process(1).next());
        let (seat, deadline) = (Seat(Arc::clone(&turn)), Deadline::of_lease(at(0), Duration::from_secs(30)));
        drop(seat.admit(token, deadline, BootTime::NEVER, 1, at(0)));

        drop(seat.refuse(Refusal::Shutdown));

        assert!(turn.end().was_admitted);
    }

    #[test]
    fn a_turn_stays_small() {
        assert!(size_of::<Turn>() <= 152, "{}", size_of::<Turn>());
    }
}
