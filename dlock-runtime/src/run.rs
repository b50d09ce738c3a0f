//! A body under a lock, in three futures: [`Entering`], [`Running`], [`Leaving`].
//!
//! [`Running`] looks at the deadline **before every poll** of the body: after a pause of any length the body of a lost lock is not
//! polled again. When the body ends, or is stopped, it is dropped in place before anything is released or reported.
//!
//! They are written by hand, since they stand in the future of every annotated function: what an `async fn` keeps of its arguments
//! and its callees' made that future three times as large.
//!
//! Not here: how a turn comes (`engine::waiting`), what the body may ask of its hold (`guard`).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::engine::hold::{Alarm, Held};
use crate::engine::turn::{Looker, Phase};
use crate::engine::waiting::Waiting;
use crate::error::{Error, LossCause, Result};
use crate::guard::LockGuard;
use crate::held::Scope;
use crate::key::LockKey;
use crate::manager::LockManager;
use crate::options::{OnLost, Options};
use crate::protocol::command::Reply;
use crate::telemetry::Hold;

/// How a lock was lost, and after how long.
pub(crate) type Loss = (LossCause, Duration);

/// Takes the lock, or joins the hold that the current call chain has.
#[derive(Debug)]
pub(crate) struct Entering<'a> {
    telemetry: &'a Hold,
    waiting: std::result::Result<Waiting, Option<Box<Error>>>,
}

impl<'a> Entering<'a> {
    pub(crate) fn new(
        manager: &LockManager,
        key: &std::result::Result<LockKey, Box<Error>>,
        options: &Options,
        telemetry: &'a Hold,
    ) -> Self {
        let waiting = match (key, options.checked()) {
            (Ok(key), Ok(options)) => {
                Ok(Waiting::join(manager.engine(), key.clone(), &options, Scope::current().as_ref()))
            }
            (Err(error), _) => Err(Some(error.clone())),
            (_, Err(error)) => Err(Some(Box::new(error))),
        };
        Self { telemetry, waiting }
    }
}

impl Future for Entering<'_> {
    type Output = Result<LockGuard>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let _entered = this.telemetry.enter();
        let entered = match &mut this.waiting {
            Ok(waiting) => ready!(Pin::new(waiting).poll(cx)),
            Err(error) => Err(*error.take().expect("a future is not polled again after it has ended")),
        };
        this.telemetry.entered(&entered);
        Poll::Ready(entered.map(LockGuard::new))
    }
}

/// Polls a body as long as its hold may be believed.
#[derive(Debug)]
pub(crate) struct Running<'a, F> {
    held: &'a Held,
    scope: Arc<Scope>,
    body: Pin<&'a mut Option<F>>,
    telemetry: &'a Hold,
    looker: Option<Looker<'a>>,
    alarm: Alarm,
    on_lost: OnLost,
}

impl<'a, F> Running<'a, F> {
    pub(crate) fn new(
        guard: &'a LockGuard,
        body: Pin<&'a mut Option<F>>,
        on_lost: OnLost,
        telemetry: &'a Hold,
    ) -> Self {
        let held = guard.held();
        let looker = (held.depth() > 0).then(|| held.root().looker());
        Self { held, scope: Scope::open(held), body, telemetry, looker, alarm: Alarm::default(), on_lost }
    }
}

impl<F: Future> Future for Running<'_, F> {
    type Output = std::result::Result<F::Output, Loss>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let _entered = this.telemetry.enter();
        let root = this.held.root();
        loop {
            if this.on_lost == OnLost::Abort
                && let Err(loss) = root.believed(this.held.engine.now())
            {
                this.body.set(None);
                return Poll::Ready(Err(loss));
            }
            let body = this.body.as_mut().as_pin_mut().expect("a body that has ended is not polled again");
            let output = Scope::enter(&this.scope, || body.poll(cx));
            if let Poll::Ready(output) = output {
                this.body.set(None);
                return Poll::Ready(Ok(output));
            }
            // A loss between the look above and this one is seen by the look; one after it wakes the task.
            let over = |phase: &mut Phase| (!matches!(phase, Phase::Held { .. })).then_some(());
            let lost = match &this.looker {
                Some(looker) => looker.look(cx.waker(), over),
                None => root.look(Some(cx.waker()), over),
            };
            let stop = lost.is_some() && this.on_lost == OnLost::Abort;
            if !stop && this.alarm.ring(&this.held.engine, cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

/// Lets go after a body has ended or was stopped, and gives what the call comes to. A release that fails never replaces the body's
/// own result: it is logged, and the lease is the backstop.
#[derive(Debug)]
pub(crate) struct Leaving<'a, R> {
    guard: &'a LockGuard,
    telemetry: &'a Hold,
    ended: Option<std::result::Result<R, Loss>>,
    answer: Option<oneshot::Receiver<Reply>>,
    held_for: Duration,
}

/// No field is pinned.
impl<R> Unpin for Leaving<'_, R> {}

impl<'a, R> Leaving<'a, R> {
    pub(crate) fn new(
        guard: &'a LockGuard,
        ended: std::result::Result<R, Loss>,
        telemetry: &'a Hold,
    ) -> Self {
        let held_for = guard.held_for();
        let lost_meanwhile = guard.held().root().believed(guard.held().engine.now()).err();
        let mut answer = guard.let_go();
        if let Some((cause, held)) = ended.as_ref().err().copied().or(lost_meanwhile) {
            telemetry.lost(guard.key(), cause, held);
            answer = None;
        } else if answer.is_none() {
            telemetry.released();
        }
        Self { guard, telemetry, ended: Some(ended), answer, held_for }
    }
}

impl<R> Future for Leaving<'_, R> {
    type Output = Result<R>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<R>> {
        let this = &mut *self;
        let _entered = this.telemetry.enter();
        if let Some(answer) = &mut this.answer {
            match ready!(Pin::new(answer).poll(cx)) {
                Ok(Reply::Ours) => this.telemetry.released(),
                Ok(Reply::NotOurs) => {
                    this.telemetry.lost(this.guard.key(), LossCause::NotOurs, this.held_for);
                }
                Ok(reply) => this.telemetry.release_failed(this.guard.key(), &reply),
                Err(_) => {}
            }
        }
        let ended = this.ended.take().expect("a future is not polled again after it has ended");
        Poll::Ready(ended.map_err(|(cause, held)| this.guard.lost_error(cause, held)))
    }
}
