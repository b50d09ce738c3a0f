//! The RAII guard of a hold, which releases it on drop.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Id;

use crate::backend::{BackendEvents as _, reply_recipient};
use crate::engine::Engine;
use crate::engine::acquisition::{Acquisition, AcquisitionState, SharedAcquisition};
use crate::engine::pending_release::{PendingRelease, ReleaseReport, ReleasedBy};
use crate::error::{Error, Loss, LossCause};
use crate::key::LockKey;
use crate::options::MinHoldOn;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootInstant;
use crate::protocol::key_state::KeyState;
use crate::scope::Scope;
use crate::sync::shared::atomic::{AtomicBool, Ordering};
use crate::telemetry;
use crate::timer::{Timer, current_runtime};

/// A hold, or a nested call inside one.
///
/// Dropping it releases it immediately, without blocking, from any thread.
#[derive(Debug)]
pub(crate) struct HoldGuard {
    pub(crate) engine: Arc<Engine>,
    acquisition: SharedAcquisition,
    /// The scope that it is nested in, if it joined a hold of its call chain.
    nested: Option<Arc<Scope>>,
    released: AtomicBool,
    /// Whether a body runs under it, or may.
    has_body: bool,
    /// Whether `min_hold` does not apply to its end: it depends on success, which was not recorded.
    ///
    /// It orders nothing, so loom need not know of it: only the holder reads and writes it.
    waives_min_hold: std::sync::atomic::AtomicBool,
    /// Whether no call reports its loss, so that the drop does.
    pub(crate) is_detached: bool,
    /// How long the call waited for it, in milliseconds.
    waited: u32,
}

impl HoldGuard {
    /// Creates the guard of an acquisition that may still wait.
    pub(super) fn new(
        engine: &Arc<Engine>,
        acquisition: SharedAcquisition,
        nested: Option<Arc<Scope>>,
        min_hold_on: MinHoldOn,
    ) -> Self {
        Self {
            engine: Arc::clone(engine),
            acquisition,
            nested,
            released: AtomicBool::new(false),
            has_body: true,
            waives_min_hold: (min_hold_on == MinHoldOn::Ok).into(),
            is_detached: false,
            waited: 0,
        }
    }

    /// Records that the work under the hold has succeeded, so that `min_hold` applies to its end.
    pub(crate) fn record_success(&self) {
        self.waives_min_hold.store(false, std::sync::atomic::Ordering::Relaxed);
    }

    /// Records how long the call waited for it.
    pub(super) fn record_wait(&mut self, waited: Duration) {
        self.waited = u32::try_from(waited.as_millis()).unwrap_or(u32::MAX);
    }

    /// Returns the acquisition, and the scope that it is nested in.
    pub(super) fn acquisition(&self) -> (&SharedAcquisition, Option<&Arc<Scope>>) {
        (&self.acquisition, self.nested.as_ref())
    }

    /// Returns its own acquisition.
    pub(crate) fn acquired(&self) -> &SharedAcquisition {
        &self.acquisition
    }

    /// Cancels the acquisition. If the lock was granted in the meantime, releases it.
    pub(super) fn cancel(mut self) {
        let was_waiting = self
            .engine
            .with_key(self.acquisition.key.name(), |key_state, cx| key_state.leave(&self.acquisition, cx));
        // The state of the key may keep the acquisition for longer, and is locked when it drops it.
        // The waker is dropped here, where nothing is locked.
        drop(self.acquisition.take_wakers());
        self.has_body = false;
        self.released.store(was_waiting, Ordering::Release);
    }

    /// Returns the acquisition that holds the lock: its own, or that of the hold it joined.
    pub(crate) fn root(&self) -> &SharedAcquisition {
        self.nested.as_ref().map_or(&self.acquisition, |parent| parent.root())
    }

    /// Gives up a hold that was lost before a body ran under it, and returns the error.
    pub(super) fn into_lost_error(mut self, loss: Loss) -> Error {
        self.has_body = false;
        self.lost_error(loss, false)
    }

    /// Returns `true` if the server denied the hold, and the hold is not nested.
    pub(super) fn is_denied(&self) -> bool {
        let denied = |state: &mut AcquisitionState| match state {
            AcquisitionState::Lost(lost) => (lost.cause == LossCause::NotOwner).then_some(()),
            _ => None,
        };
        self.nested.is_none() && self.acquisition.poll_state(None, denied).is_some()
    }

    /// Checks that the hold is valid. In a forked process it is not.
    pub(crate) fn check_valid(&self) -> Result<(), Loss> {
        if self.engine.is_forked() {
            return Err((LossCause::Forked, Duration::ZERO));
        }
        self.check_valid_at(self.engine.now())
    }

    /// Checks that the hold is valid at `now`.
    pub(crate) fn check_valid_at(&self, now: BootInstant) -> Result<(), Loss> {
        self.engine.check_hold(self.root(), now)
    }

    /// Returns the remaining lease, which is zero if the hold is not valid.
    pub(crate) fn remaining(&self) -> Duration {
        if self.engine.is_forked() {
            return Duration::ZERO;
        }
        let now = self.engine.now();
        let root = self.root();
        if root.check_valid(now).is_ok() { root.remaining(now) } else { Duration::ZERO }
    }

    /// Returns how long the lock has been held. After a release, returns the time since it was
    /// acquired.
    pub(crate) fn held_for(&self) -> Duration {
        if self.engine.is_forked() {
            return Duration::ZERO;
        }
        self.root().held_for(self.engine.now())
    }

    pub(crate) fn key(&self) -> &LockKey {
        &self.acquisition.key
    }

    /// Returns the loss because of which a completed body may have overlapped with another holder.
    ///
    /// That is the loss that was found, or a later one. Returns `None` if only `max_hold` has
    /// passed: the lock stays with its body until the lease expires.
    pub(crate) fn overlap(&self, found: Loss, now: BootInstant) -> Option<Loss> {
        if found.0 != LossCause::MaxHold {
            return Some(found);
        }
        let root = self.root();
        // The lease may have expired too, and the key has not been ticked after that.
        self.engine.with_key_now(now, root.key.name(), KeyState::on_timeout);
        let cause = match root.check_valid(now) {
            Err((LossCause::MaxHold, _)) => root.left_by_max_hold(now)?,
            Err((cause, _)) => cause,
            Ok(()) => return None,
        };
        Some((cause, found.1))
    }

    /// Returns what the reply to the release of a hold that was valid then means now.
    pub(crate) fn release_outcome(&self, reply: Reply) -> Reply {
        if matches!(reply, Reply::NotOwner) && !self.engine.is_forked() {
            return reply_recipient::release_outcome(&**self.root(), reply, self.engine.now());
        }
        reply
    }

    /// Returns the error for a loss. `completed`: it was found after the body completed.
    pub(crate) fn lost_error(&self, (cause, held): Loss, completed: bool) -> Error {
        // In a forked process, another thread may have held the mutex at the fork.
        let reason = if self.engine.is_forked() { None } else { self.root().loss_reason(cause) };
        Error::Lost { key: self.key().clone(), held, cause, completed, reason }
    }

    /// Returns the number of attempts, and how long the call waited, in whole milliseconds.
    pub(crate) fn attempts_and_wait(&self) -> (u32, Duration) {
        let attempts = self.acquisition.poll_state(None, |state| match state {
            AcquisitionState::Held { attempts, .. } => Some(*attempts),
            _ => None,
        });
        (attempts.unwrap_or(0), Duration::from_millis(self.waited.into()))
    }

    /// Returns the depth of a call nested inside this one.
    pub(crate) fn depth(&self) -> usize {
        self.nested.as_ref().map_or(0, |parent| parent.depth() + 1)
    }

    /// Releases the lock. `report` says what to do with the server's reply.
    ///
    /// A forked process releases nothing, since the parent process owns the lock.
    pub(crate) fn release(&self, report: ReleaseReport<'_>) -> PendingRelease {
        if self.engine.is_forked() {
            return PendingRelease::Done;
        }
        if self.released.load(Ordering::Acquire) {
            // Without reading the clock: nearly every guard is dropped after its release.
            return PendingRelease::Done;
        }
        self.release_at(self.engine.now(), ReleasedBy::Guard, report)
    }

    /// Releases the lock at `now`.
    pub(crate) fn release_at(
        &self,
        now: BootInstant,
        by: ReleasedBy,
        report: ReleaseReport<'_>,
    ) -> PendingRelease {
        if self.released.swap(true, Ordering::AcqRel) {
            return PendingRelease::Done;
        }
        if self.nested.is_none() {
            // Without a body, `min_hold` does not apply either.
            let is_kept = self.has_body && !self.waives_min_hold.load(std::sync::atomic::Ordering::Relaxed);
            return self.engine.release(&self.acquisition, is_kept, by, report, now);
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
        if self.released.load(Ordering::Acquire) && !self.is_detached {
            return; // without reading the clock: nearly every call has released its lock
        }
        let now = self.engine.now();
        if !self.has_body {
            self.release_at(now, ReleasedBy::Guard, ReleaseReport::None);
            return; // no work can have been interrupted
        }
        let loss = || self.engine.check_hold(&self.acquisition, now).err();
        let found = loss();
        let report = if found.is_none() { ReleaseReport::Dropped } else { ReleaseReport::None };
        self.release_at(now, ReleasedBy::Guard, report);
        // Another thread may have found a loss before the release.
        if let Some(loss) = found.or_else(loss)
            && loss.0 != LossCause::Released
        {
            let reason = self.acquisition.loss_reason(loss.0);
            telemetry::guard_lost(&self.acquisition.key, loss, reason.as_deref());
        }
    }
}

/// Reads the state of a hold, for the call itself or for another task.
#[derive(Debug)]
pub(crate) struct HoldObserver<'a> {
    pub(crate) held: &'a HoldGuard,
    /// `None` for the call itself.
    id: Option<u64>,
}

impl<'a> HoldObserver<'a> {
    /// Observes for the call itself, whether it holds the lock or has joined a hold.
    pub(crate) fn of_call(held: &'a HoldGuard) -> Self {
        Self { held, id: (held.depth() > 0).then(Acquisition::new_observer) }
    }

    /// Observes for another task than the call.
    pub(crate) fn alongside_call(held: &'a HoldGuard) -> Self {
        Self { held, id: Some(Acquisition::new_observer()) }
    }

    /// Reads the state. If `done` returns `None`, registers `waker` for the next change, instead of
    /// the previous one.
    pub(crate) fn poll_state<R>(
        &self,
        waker: &Waker,
        done: impl FnOnce(&mut AcquisitionState) -> Option<R>,
    ) -> Option<R> {
        self.held.root().poll_state_as(self.id, Some(waker), done)
    }
}

impl Drop for HoldObserver<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id
            && !self.held.engine.is_forked()
        {
            self.held.root().remove_observer(id);
        }
    }
}

/// A timer that drives the backend from a waiting task, if the backend does not keep time.
///
/// That is the case for `memory://`. Otherwise it does nothing.
#[derive(Debug, Default)]
pub(crate) struct LossTimer(Option<Box<(SetFor, Timer)>>);

/// The deadline of a timer, and the runtime whose clock it was computed by: each paused runtime has
/// its own.
type SetFor = (BootInstant, Option<Id>);

impl LossTimer {
    /// Returns ready after it brought the backend up to date. Otherwise, wakes the task at the next
    /// deadline.
    pub(crate) fn poll(&mut self, engine: &Engine, cx: &mut Context<'_>) -> Poll<()> {
        if engine.capabilities.keeps_time {
            return Poll::Pending;
        }
        let due = engine.due();
        if due == BootInstant::NEVER {
            return Poll::Pending;
        }
        let wanted = (due, current_runtime());
        let set = self.0.take().filter(|set| set.0 == wanted);
        let mut set = set.unwrap_or_else(|| {
            let left = due.since(engine.clock.now()).min(FAR);
            Box::new((wanted, Timer::new(left)))
        });
        let fired = Pin::new(&mut set.1).poll(cx);
        if fired.is_ready() {
            engine.backend.advance(engine.clock.now().max(due));
        } else {
            self.0 = Some(set);
        }
        fired
    }
}

/// Further than any test waits, and within the range of tokio's timers.
const FAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
