//! A body that runs under a lock, in three steps: [`Acquiring`], [`Running`], [`Releasing`].
//!
//! - [`Running`] checks the deadline **before every poll** of the body: after a pause of any
//!   length, the body of a lost lock is not polled again.
//! - When the body ends or is stopped, it is dropped in place before the lock is released and
//!   anything is reported.
//! - The futures are written by hand, as they are part of the future of every annotated function:
//!   an `async fn`, which stores its arguments and those of its callees, made that future twice as
//!   large. `private::call` and `lock` poll them, with the body and the span.
//!
//! See also `body` for the body, and `engine::acquire_future` for the acquisition.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::oneshot;

use crate::body::Body;
use crate::engine::Engine;
use crate::engine::acquire_future::{AcquireFuture, AcquireOutcome};
use crate::engine::acquisition::AcquisitionState;
use crate::engine::hold_guard::{HoldGuard, HoldObserver, LossTimer};
use crate::engine::pending_release::{PendingRelease, ReleaseReport, ReleasedBy};
use crate::error::{Error, Loss, Result};
use crate::key::LockKey;
use crate::manager::LockManager;
use crate::options::{OnLost, Options, ReleaseMode};
use crate::protocol::command::Reply;
use crate::scope::{Scope, ScopeSlot};
use crate::telemetry::CallSpan;

/// Acquires the lock, or joins the hold of the current call chain.
#[derive(Debug)]
pub(crate) struct Acquiring {
    waiting: std::result::Result<AcquireFuture, Option<Box<Error>>>,
}

impl Acquiring {
    pub(crate) fn new(
        manager: &LockManager,
        key: &std::result::Result<LockKey, Box<Error>>,
        options: &Options,
    ) -> Self {
        let engine = manager.engine();
        // Created in place: each hand-off creates one.
        let waiting = match checked(engine, key, options) {
            Ok((key, scope)) => Ok(AcquireFuture::join(engine, key.clone(), options, scope.as_ref(), None)),
            Err(error) => Err(Some(error)),
        };
        Self { waiting }
    }

    /// Polls the acquisition. `options` are those of `new`.
    pub(crate) fn poll(
        &mut self,
        options: &Options,
        telemetry: &CallSpan,
        cx: &mut Context<'_>,
    ) -> Poll<AcquireOutcome> {
        let _entered = telemetry.enter();
        let entered = match &mut self.waiting {
            Ok(waiting) => ready!(waiting.poll_entered(options, cx)),
            Err(error) => Err(error.take().expect("a future is not polled again after it has ended")),
        };
        match &entered {
            Ok(held) => telemetry.acquired(held.key(), || held.attempts_and_wait()),
            Err(error) => {
                let engine = self.waiting.as_ref().ok().and_then(AcquireFuture::engine);
                telemetry.not_acquired(error, engine.map(Engine::event_limits));
            }
        }
        Poll::Ready(entered)
    }
}

/// Checks the request, and returns the key and the scope of the current call chain.
fn checked<'a>(
    engine: &Engine,
    key: &'a std::result::Result<LockKey, Box<Error>>,
    options: &Options,
) -> std::result::Result<(&'a LockKey, Option<Arc<Scope>>), Box<Error>> {
    let key = key.as_ref().map_err(Clone::clone)?;
    engine.in_own_process(Some(key))?;
    options.checked(engine.lease)?;
    let scope = Scope::current();
    let holds = |scope| Scope::of_key(scope, engine, key).is_some();
    if !options.reentrant && scope.as_ref().is_some_and(holds) {
        return Err(Box::new(Error::Reentrant { key: key.clone() }));
    }
    Ok((key, scope))
}

/// Polls a body while its hold is valid. At the end, the body is dropped or replaced by its value.
#[derive(Debug)]
pub(crate) struct Running<'a> {
    observer: HoldObserver<'a>,
    scope: ScopeSlot,
    alarm: LossTimer,
}

impl<'a> Running<'a> {
    pub(crate) fn new(held: &'a HoldGuard) -> Self {
        Self { observer: HoldObserver::of_call(held), scope: ScopeSlot::new(), alarm: LossTimer::default() }
    }

    pub(crate) fn held(&self) -> &'a HoldGuard {
        self.observer.held
    }

    /// Polls the body. `seen`: the caller has checked the hold, and no other code has run since.
    pub(crate) fn poll<F: Future>(
        &mut self,
        mut body: Pin<&mut Body<F>>,
        on_lost: OnLost,
        mut seen: bool,
        telemetry: &CallSpan,
        cx: &mut Context<'_>,
    ) -> Poll<std::result::Result<(), Loss>> {
        let (_entered, held) = (telemetry.enter(), self.held());
        loop {
            if on_lost == OnLost::Abort
                && !std::mem::take(&mut seen)
                && let Err(loss) = held.check_valid()
            {
                body.stop();
                return Poll::Ready(Err(loss));
            }
            let polled = self.scope.enter(held, || body.as_mut().poll(cx));
            if held.engine.is_forked() {
                return self.forked(body, on_lost, polled); // the body may have called `fork`
            }
            if polled.is_ready() {
                return Poll::Ready(Ok(()));
            }
            let stop = self.is_over(cx) && on_lost == OnLost::Abort;
            if !stop && self.alarm.poll(&held.engine, cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Ends the body in a forked process, which does not have its hold, unless `on_lost` is
    /// `Finish`.
    #[cold]
    fn forked<F: Future>(
        &self,
        body: Pin<&mut Body<F>>,
        on_lost: OnLost,
        polled: Poll<()>,
    ) -> Poll<std::result::Result<(), Loss>> {
        if on_lost == OnLost::Finish || polled.is_ready() {
            return polled.map(Ok);
        }
        body.stop();
        Poll::Ready(self.held().check_valid())
    }

    /// Returns `true` if the hold is over. It detects a loss during the poll; a later loss wakes
    /// the task.
    fn is_over(&self, cx: &Context<'_>) -> bool {
        let over =
            |phase: &mut AcquisitionState| (!matches!(phase, AcquisitionState::Held { .. })).then_some(());
        self.observer.poll_state(cx.waker(), over).is_some()
    }
}

/// Releases the lock after the body has ended or was stopped.
///
/// It waits for the reply unless the release runs in the background. A failed release never
/// replaces the body's value: it is logged, and the lock is free when its lease expires.
///
/// If the lock was lost before the release, a body with `OnLost::Abort` returns the loss instead of
/// its value: the caller must learn that the work may have overlapped with another holder's. A loss
/// that only the reply to the release reveals is logged.
#[derive(Debug)]
pub(crate) struct Releasing<'a> {
    held: &'a HoldGuard,
    ended: BodyEnd,
    answer: Option<oneshot::Receiver<Reply>>,
}

/// How a body has ended.
#[derive(Debug)]
enum BodyEnd {
    /// It completed under its lock.
    Completed,
    /// It completed, and the lock was lost: another holder may have worked at the same time.
    CompletedLost(Loss),
    /// It was stopped because the lock was lost.
    Stopped(Loss),
}

impl BodyEnd {
    /// Returns how a body has ended in a forked process: the child does not have the hold.
    #[cold]
    fn in_forked_process(
        held: &HoldGuard,
        ended: std::result::Result<(), Loss>,
        options: &Options,
        telemetry: &CallSpan,
    ) -> Self {
        let Err(loss) = ended.and_then(|()| held.check_valid()) else { return Self::Completed };
        telemetry.lost(held.key(), loss, None);
        match (ended, options.on_lost) {
            (Err(loss), _) => Self::Stopped(loss),
            (Ok(()), OnLost::Abort) => Self::CompletedLost(loss),
            (Ok(()), OnLost::Finish) => Self::Completed,
        }
    }
}

impl<'a> Releasing<'a> {
    pub(crate) fn new(
        held: &'a HoldGuard,
        ended: std::result::Result<(), Loss>,
        options: &Options,
        telemetry: &CallSpan,
    ) -> Self {
        if held.engine.is_forked() {
            return Self {
                held,
                ended: BodyEnd::in_forked_process(held, ended, options, telemetry),
                answer: None,
            };
        }
        let now = held.engine.now();
        let found = ended.and_then(|()| held.check_valid_at(now)).err();
        let ended = match (ended, found) {
            (Err(loss), _) => BodyEnd::Stopped(loss),
            (Ok(()), Some(loss)) if options.on_lost == OnLost::Abort => {
                held.overlap(loss, now).map_or(BodyEnd::Completed, BodyEnd::CompletedLost)
            }
            (Ok(()), _) => BodyEnd::Completed,
        };
        let answer = if let Some(loss) = found {
            held.release_at(now, ReleasedBy::Call, ReleaseReport::None);
            telemetry.lost(held.key(), loss, held.root().loss_reason(loss.0).as_deref());
            None
        } else {
            let report = match options.release_mode {
                ReleaseMode::Awaited => ReleaseReport::Caller,
                ReleaseMode::Background => ReleaseReport::Log(telemetry),
            };
            match held.release_at(now, ReleasedBy::Call, report) {
                PendingRelease::Sent(answer) => Some(answer),
                PendingRelease::Logged => None,
                PendingRelease::Done => {
                    telemetry.released();
                    None
                }
            }
        };
        Self { held, ended, answer }
    }

    pub(crate) fn poll(&mut self, telemetry: &CallSpan, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let _entered = telemetry.enter();
        if let Some(answer) = &mut self.answer
            && !self.held.engine.is_forked()
            && let Ok(reply) = ready!(Pin::new(answer).poll(cx))
        {
            let reply = self.held.release_outcome(reply);
            telemetry.record_release(self.held.key(), &reply, || self.held.held_for());
        }
        Poll::Ready(match self.ended {
            BodyEnd::Completed => Ok(()),
            BodyEnd::CompletedLost(loss) => Err(self.held.lost_error(loss, true)),
            BodyEnd::Stopped(loss) => Err(self.held.lost_error(loss, false)),
        })
    }
}
