//! One task's turn at a lock: it waits, then holds or is refused, then it is over or lost.
//!
//! The turn is what the rules tell ([`Seat`]) and what the task looks at. It is changed only under its lane's lock, so its phases
//! come in the order of the rules; the task reads it without that lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use once_cell::sync::OnceCell;

use crate::engine::lock;
use crate::error::LossCause;
use crate::key::LockKey;
use crate::protocol::deadline::{BootTime, Deadline};
use crate::protocol::lane::Refusal;
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
    Held { token: Token, since: BootTime, attempts: u32 },
    /// It goes on inside a hold of its call chain.
    Joined,
    /// It did not get the lock; the reason is there until it is taken.
    Refused(Option<Box<Refusal>>),
    /// It held and does not any more.
    Lost { cause: LossCause, held: Duration },
    /// It has let go.
    Over,
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
    pub(super) fn admit(&self, token: Token, deadline: Deadline, attempts: u32, now: BootTime) -> Wakers {
        self.0.deadline.store(deadline.at().nanos(), Ordering::Release);
        self.0.become_(Phase::Held { token, since: now, attempts })
    }

    pub(super) fn join(&self) -> Wakers {
        self.0.become_(Phase::Joined)
    }

    pub(super) fn refuse(&self, refusal: Refusal) -> Wakers {
        self.0.become_(Phase::Refused(Some(Box::new(refusal))))
    }

    pub(super) fn prolong(&self, deadline: Deadline) {
        self.0.deadline.fetch_max(deadline.at().nanos(), Ordering::AcqRel);
    }

    pub(super) fn lose(&self, cause: LossCause, now: BootTime) -> Wakers {
        self.0.lose(cause, now)
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

    /// Looks at the phase; where `done` returns `None`, `waker` is woken at the next change.
    pub(crate) fn look<R>(
        &self,
        waker: Option<&Waker>,
        done: impl FnOnce(&mut Phase) -> Option<R>,
    ) -> Option<R> {
        let mut state = lock(&self.state);
        let result = done(&mut state.phase);
        if let (None, Some(waker)) = (&result, waker) {
            state.wakers.add(waker);
        }
        result
    }

    /// Returns until when the hold is believed.
    pub(crate) fn deadline(&self) -> BootTime {
        BootTime::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// Returns whether the hold is believed at `now`, and else how it was lost.
    pub(crate) fn believed(&self, now: BootTime) -> Result<(), (LossCause, Duration)> {
        let lost = self.look(None, |phase| match phase {
            Phase::Lost { cause, held } => Some(Err((*cause, *held))),
            Phase::Held { since, .. } if now >= self.deadline() => {
                Some(Err((LossCause::Expired, now.since(*since))))
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
    pub(crate) fn end(&self) -> Wakers {
        self.become_(Phase::Over)
    }

    fn lose(&self, cause: LossCause, now: BootTime) -> Wakers {
        let mut state = lock(&self.state);
        if let Phase::Held { since, .. } = state.phase {
            state.phase = Phase::Lost { cause, held: now.since(since) };
        }
        std::mem::take(&mut state.wakers)
    }

    fn become_(&self, phase: Phase) -> Wakers {
        let mut state = lock(&self.state);
        // A loss stays visible: letting go of what is lost already does not undo it.
        if !matches!(state.phase, Phase::Lost { .. }) {
            state.phase = phase;
        }
        std::mem::take(&mut state.wakers)
    }
}

/// The tasks that look at a turn: almost always one.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    first: Option<Waker>,
    more: Vec<Waker>,
}

impl Wakers {
    fn add(&mut self, waker: &Waker) {
        match &self.first {
            None => self.first = Some(waker.clone()),
            Some(known) if known.will_wake(waker) => {}
            Some(_) if self.more.iter().any(|known| known.will_wake(waker)) => {}
            Some(_) => self.more.push(waker.clone()),
        }
    }
}

impl IntoIterator for Wakers {
    type Item = Waker;
    type IntoIter = std::iter::Chain<std::option::IntoIter<Waker>, std::vec::IntoIter<Waker>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.more)
    }
}
