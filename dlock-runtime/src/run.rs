//! A body under a lock, in three futures: [`Entering`], [`Running`], [`Leaving`]; and one without: [`Unlocked`].
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
use tokio::sync::oneshot;

use crate::engine::hold::{Alarm, Held, Loss};
use crate::engine::turn::{Looker, Phase};
use crate::engine::waiting::Waiting;
use crate::error::{Error, LossCause, Result};
use crate::held::Scope;
use crate::key::LockKey;
use crate::manager::LockManager;
use crate::options::{OnLost, Options};
use crate::protocol::command::Reply;
use crate::telemetry::Hold;

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
            (Ok(key), Ok(options)) => Self::begin(manager, key, &options).map_err(Box::new),
            (Err(error), _) => Err(error.clone()),
            (_, Err(error)) => Err(Box::new(error)),
        };
        Self { telemetry, waiting: waiting.map_err(Some) }
    }

    fn begin(manager: &LockManager, key: &LockKey, options: &Options) -> Result<Waiting> {
        let (engine, scope) = (manager.engine(), Scope::current());
        let holds = |scope| Scope::of_key(scope, engine, key).is_some();
        if !options.reentrant && scope.as_ref().is_some_and(holds) {
            return Err(Error::Reentrant { key: key.clone() });
        }
        Ok(Waiting::join(engine, key.clone(), options, scope.as_ref()))
    }
}

impl Future for Entering<'_> {
    type Output = Result<Held>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let _entered = this.telemetry.enter();
        let entered = match &mut this.waiting {
            Ok(waiting) => ready!(Pin::new(waiting).poll(cx)),
            Err(error) => Err(*error.take().expect("a future is not polled again after it has ended")),
        };
        this.telemetry.entered(&entered);
        Poll::Ready(entered)
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
        held: &'a Held,
        body: Pin<&'a mut Option<F>>,
        on_lost: OnLost,
        telemetry: &'a Hold,
    ) -> Self {
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
    held: &'a Held,
    telemetry: &'a Hold,
    ended: Option<std::result::Result<R, Loss>>,
    answer: Option<oneshot::Receiver<Reply>>,
}

/// No field is pinned.
impl<R> Unpin for Leaving<'_, R> {}

impl<'a, R> Leaving<'a, R> {
    pub(crate) fn new(held: &'a Held, ended: std::result::Result<R, Loss>, telemetry: &'a Hold) -> Self {
        let lost_meanwhile = held.root().believed(held.engine.now()).err();
        let mut answer = held.let_go(true);
        if let Some(loss) = ended.as_ref().err().copied().or(lost_meanwhile) {
            telemetry.lost(held.key(), loss);
            answer = None;
        } else if answer.is_none() {
            telemetry.released();
        }
        Self { held, telemetry, ended: Some(ended), answer }
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
                    let loss = (LossCause::NotOurs, this.held.held_for());
                    this.telemetry.lost(this.held.key(), loss);
                }
                Ok(reply) => this.telemetry.release_failed(this.held.key(), &reply),
                Err(_) => {}
            }
        }
        let ended = this.ended.take().expect("a future is not polled again after it has ended");
        Poll::Ready(ended.map_err(|loss| this.held.lost_error(loss)))
    }
}

/// Polls a body that has no lock, as `on_unavailable = run` says.
#[derive(Debug)]
pub(crate) struct Unlocked<'a, F> {
    body: Pin<&'a mut Option<F>>,
    telemetry: &'a Hold,
}

impl<'a, F> Unlocked<'a, F> {
    pub(crate) fn new(body: Pin<&'a mut Option<F>>, telemetry: &'a Hold) -> Self {
        Self { body, telemetry }
    }
}

impl<F: Future> Future for Unlocked<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _entered = self.telemetry.enter();
        let body = self.body.as_mut().as_pin_mut().expect("a body that has ended is not polled again");
        let output = ready!(body.poll(cx));
        self.body.set(None);
        Poll::Ready(output)
    }
}
