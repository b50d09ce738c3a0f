//! What a task has once its turn has come: a hold that is released when it is dropped.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::clock::Clock;
use crate::engine::Engine;
use crate::engine::acquisition::{AcquisitionRef, AcquisitionState, Observer, SharedAcquisition};
use crate::engine::release_completion::{PendingRelease, ReleaseReport, ReleasedBy};
use crate::error::{Error, LossCause};
use crate::held::Scope;
use crate::key::LockKey;
use crate::protocol::deadline::BootInstant;
use crate::protocol::key_state::KeyState;
use crate::sync::shared::atomic::{AtomicBool, Ordering};
use crate::telemetry;
use crate::timer::Timer;

/// How a lock was lost, and after how long.
pub(crate) type Loss = (LossCause, Duration);

/// A hold, or a place inside one. Dropping it releases: at once, without blocking, from any thread.
#[derive(Debug)]
pub(crate) struct HoldGuard {
    pub(crate) engine: Arc<Engine>,
    acquisition: AcquisitionRef,
    /// The scope that it is nested in, if it joined a hold of its call chain.
    nested: Option<Arc<Scope>>,
    released: AtomicBool,
    /// Whether something runs under it, or may.
    taken_up: bool,
    /// Whether no call reports its loss.
    pub(crate) stands_alone: bool,
    /// For how many milliseconds the call waited for it.
    waited: u32,
}

impl HoldGuard {
    /// What a call has once its turn has come.
    pub(super) fn new(engine: &Arc<Engine>, acquisition: AcquisitionRef, nested: Option<Arc<Scope>>) -> Self {
        let engine = Arc::clone(engine);
        let released = AtomicBool::new(false);
        Self { engine, acquisition, nested, released, taken_up: true, stands_alone: false, waited: 0 }
    }

    /// Notes for how long the call has waited for it.
    pub(super) fn note_wait(&mut self, waited: Duration) {
        self.waited = u32::try_from(waited.as_millis()).unwrap_or(u32::MAX);
    }

    /// Returns the turn, and the scope that it is nested in.
    pub(super) fn acquisition(&self) -> (&AcquisitionRef, Option<&Arc<Scope>>) {
        (&self.acquisition, self.nested.as_ref())
    }

    /// The call does not wait for it any more. Where it has come meanwhile nobody will look at it, and it is let go of.
    pub(super) fn cancel_wanted(mut self) {
        let was_waiting = self
            .engine
            .with_key(self.acquisition.key.name(), |key_state, cx| key_state.leave(&self.acquisition, cx));
        // Its lane may know the turn for longer, and is locked when it forgets it: the waker goes here, where nothing is.
        drop(self.acquisition.take_wakers());
        self.taken_up = false;
        self.released.store(was_waiting, Ordering::Release);
    }

    /// The turn that holds the lock: its own, or that of the hold it joined.
    pub(crate) fn root(&self) -> &SharedAcquisition {
        self.nested.as_ref().map_or(&self.acquisition.0, |parent| parent.root())
    }

    /// Gives up a hold that was lost before anything could run under it: the task may come late to its turn. Returns the error.
    pub(super) fn given_up(mut self, loss: Loss) -> Error {
        self.taken_up = false;
        self.lost_error(loss)
    }

    /// Returns whether the server has said that the hold, which is nested in no other, is not ours.
    pub(super) fn is_denied(&self) -> bool {
        let denied = |phase: &mut AcquisitionState| match phase {
            AcquisitionState::Lost(lost) => (lost.cause == LossCause::NotOwner).then_some(()),
            _ => None,
        };
        self.nested.is_none() && self.acquisition.poll_state(None, denied).is_some()
    }

    /// Returns whether the hold may still be believed; in a forked process it may not.
    pub(crate) fn check_valid(&self) -> Result<(), Loss> {
        if self.engine.is_forked() {
            return Err((LossCause::Forked, Duration::ZERO));
        }
        self.root().check_valid(self.engine.now())
    }

    /// How long the hold may still be believed; not at all once it may not.
    pub(crate) fn remaining(&self) -> Duration {
        if self.engine.is_forked() {
            return Duration::ZERO;
        }
        let now = self.engine.now();
        let root = self.root();
        if root.check_valid(now).is_ok() { root.remaining(now) } else { Duration::ZERO }
    }

    /// How long the lock has been held, or was since it was taken.
    pub(crate) fn held_for(&self) -> Duration {
        if self.engine.is_forked() {
            return Duration::ZERO;
        }
        self.root().held_for(self.engine.now())
    }

    pub(crate) fn key(&self) -> &LockKey {
        &self.acquisition.key
    }

    /// Returns the loss under which a body that has just completed may have overlapped with another holder: the one that was found, or
    /// what came after it.
    ///
    /// Returns `None` if only `max_hold` has passed: the lock stays with its body until the lease is over.
    pub(crate) fn overlap(&self, found: Loss, now: BootInstant) -> Option<Loss> {
        if found.0 != LossCause::MaxHold {
            return Some(found);
        }
        let root = self.root();
        // Whether the lease is over as well is known to the lane, which may not have seen to it yet.
        self.engine.with_key_now(now, root.key.name(), KeyState::tick);
        let cause = match root.check_valid(now) {
            Err((LossCause::MaxHold, _)) => root.left_by_max_hold(now)?,
            Err((cause, _)) => cause,
            Ok(()) => return None,
        };
        Some((cause, found.1))
    }

    pub(crate) fn lost_error(&self, (cause, held): Loss) -> Error {
        Error::Lost { key: self.key().clone(), held, cause, completed: false }
    }

    /// Returns the error for a loss that was found when the body had completed.
    pub(crate) fn lost_error_of_completed(&self, (cause, held): Loss) -> Error {
        Error::Lost { key: self.key().clone(), held, cause, completed: true }
    }

    /// How often the lock was asked for, and how long the call waited for it, in whole milliseconds.
    pub(crate) fn attempts_and_wait(&self) -> (u32, Duration) {
        let attempts = self.acquisition.poll_state(None, |phase| match phase {
            AcquisitionState::HoldGuard { attempts, .. } => Some(*attempts),
            _ => None,
        });
        (attempts.unwrap_or(0), Duration::from_millis(self.waited.into()))
    }

    /// How deep a call inside this one would be nested.
    pub(crate) fn depth(&self) -> usize {
        self.nested.as_ref().map_or(0, |parent| parent.depth() + 1)
    }

    /// Lets go. `told` is told the server's answer, where the server is asked. A forked process lets go of nothing: the lock is the
    /// parent's.
    pub(crate) fn let_go(&self, told: ReleaseReport<'_>) -> PendingRelease {
        if self.engine.is_forked() {
            return PendingRelease::Done;
        }
        if self.released.load(Ordering::Acquire) {
            return PendingRelease::Done; // without a look at the clock: nearly every hold is dropped like this
        }
        self.let_go_at(self.engine.now(), ReleasedBy::Guard, told)
    }

    /// Lets go at `now`.
    pub(crate) fn let_go_at(
        &self,
        now: BootInstant,
        by: ReleasedBy,
        told: ReleaseReport<'_>,
    ) -> PendingRelease {
        if self.released.swap(true, Ordering::AcqRel) {
            return PendingRelease::Done;
        }
        if self.nested.is_none() {
            return self.engine.release(&self.acquisition, self.taken_up, by, told, now);
        }
        self.engine.with_key_now(now, self.acquisition.key.name(), |key_state, cx| {
            key_state.leave(&self.acquisition, cx)
        });
        PendingRelease::Done
    }
}

impl Drop for HoldGuard {
    fn drop(&mut self) {
        if self.engine.is_forked() {
            return;
        }
        self.let_go(ReleaseReport::None);
        if self.stands_alone
            && let Err(loss) = self.acquisition.check_valid(self.engine.now())
            && loss.0 != LossCause::ReleaseOutcome
        {
            telemetry::guard_lost(&self.acquisition.key, loss);
        }
    }
}

/// Looks at the phase of a hold, as the call whose turn it is or beside it.
#[derive(Debug)]
pub(crate) struct HoldObserver<'a> {
    pub(crate) held: &'a HoldGuard,
    /// Of all but the call whose turn it is.
    looker: Option<Observer<'a>>,
}

impl<'a> HoldObserver<'a> {
    /// Looks for a call, which has its own turn or has joined that of another.
    pub(crate) fn of_call(held: &'a HoldGuard) -> Self {
        Self { held, looker: (held.depth() > 0).then(|| held.root().observer()) }
    }

    /// Looks beside the call.
    pub(crate) fn beside_call(held: &'a HoldGuard) -> Self {
        Self { held, looker: Some(held.root().observer()) }
    }

    /// Looks at the phase; where `done` returns `None`, `waker` is woken at the next change.
    pub(crate) fn poll_state<R>(
        &self,
        waker: &Waker,
        done: impl FnOnce(&mut AcquisitionState) -> Option<R>,
    ) -> Option<R> {
        match &self.looker {
            Some(looker) => looker.poll_state(waker, done),
            None => self.held.root().poll_state(Some(waker), done),
        }
    }
}

impl Drop for HoldObserver<'_> {
    fn drop(&mut self) {
        if self.held.engine.is_forked() {
            std::mem::forget(self.looker.take()); // its end takes a mutex
        }
    }
}

/// Keeps the time for a task that waits, where the backend has no thread to do it; does nothing elsewhere.
#[derive(Debug, Default)]
pub(crate) struct LossTimer(Option<Box<(BootInstant, Timer)>>);

impl LossTimer {
    /// Brings the backend up to date and returns ready if that may have changed something; else the task is woken when the next
    /// thing is due.
    pub(crate) fn ring(&mut self, engine: &Engine, cx: &mut Context<'_>) -> Poll<()> {
        let Clock::Tokio(_) = engine.clock else { return Poll::Pending };
        let due = engine.due();
        if due == BootInstant::NEVER {
            return Poll::Pending;
        }
        let set = self.0.take().filter(|set| set.0 == due);
        let mut set = set.unwrap_or_else(|| {
            // From now on, by the clock of the runtime that waits: each paused runtime has its own.
            let left = due.since(engine.clock.now()).min(FAR);
            Box::new((due, Timer::new(left)))
        });
        let rung = Pin::new(&mut set.1).poll(cx);
        if rung.is_ready() {
            engine.backend.advance(engine.clock.now().max(due));
        } else {
            self.0 = Some(set);
        }
        rung
    }
}

/// Further than any test waits, and near enough for tokio to count.
const FAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
