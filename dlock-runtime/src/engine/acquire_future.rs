//! The future that acquires a lock. Dropping it leaves the queue.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::acquisition::{Acquisition, AcquisitionState, SharedAcquisition};
use crate::engine::hold_guard::{HoldGuard, LossTimer};
use crate::error::{Error, LossCause};
use crate::fork::forked_error;
use crate::key::{LockKey, Name};
use crate::options::Options;
use crate::protocol::deadline::BootInstant;
use crate::protocol::deadlock::{WaitId, WaitNode};
use crate::protocol::key_state::AcquireFailure;
use crate::protocol::retry_state::{RetryLimits, RetryState};
use crate::protocol::wait_queue::QueueEntry;
use crate::scope::Scope;
use crate::sync::lock;

/// The outcome of an acquisition.
///
/// The error is boxed, because it is large and rare, and a guard is moved several times.
pub(crate) type AcquireOutcome = Result<HoldGuard, Box<Error>>;

/// Acquires a lock.
///
/// Dropping it leaves the queue immediately. A grant that is in flight to it is released.
#[derive(Debug)]
pub(crate) struct AcquireFuture {
    /// The guard, until the call takes it.
    held: Option<HoldGuard>,
    /// When the call began.
    started: BootInstant,
    /// Its edge in the wait-for graph, if this call chain holds a lock.
    wait: Option<WaitId>,
    timer: LossTimer,
}

impl AcquireFuture {
    /// Joins the queue of the lock. `started`: when the `wait` of the call began, unless it is now.
    pub(crate) fn join(
        engine: &Arc<Engine>,
        key: LockKey,
        options: &Options,
        scope: Option<&Arc<Scope>>,
        started: Option<BootInstant>,
    ) -> Self {
        let now = engine.now();
        let started = started.unwrap_or(now);
        engine.uses(key.namespace());
        let acquisition = Acquisition::new(key);
        let rules = &engine.rules;
        // A call that tries once does not wait for a cooldown.
        let cooldown = if options.retry == 0 { Duration::ZERO } else { rules.longest_cooldown() };
        let limits = RetryLimits {
            retries: options.retry,
            wait: options.wait,
            backoff: options.backoff,
            response_timeout: rules.response_timeout.saturating_add(cooldown),
            try_only: options.try_only,
        };
        let retry_state = RetryState::new(started, limits, engine.tokens.draw());
        let nested = scope.and_then(|scope| Scope::of_key(scope, engine, &acquisition.key)).cloned();
        // Before anything can unwind, since its drop leaves the queue.
        let held = Some(HoldGuard::new(engine, acquisition, nested, options.min_hold_on));
        let mut waiting = Self { held, started, wait: None, timer: LossTimer::default() };
        let Some(held) = &waiting.held else { unreachable!("it was set above") };
        let (acquisition, nested) = held.acquisition();
        let (acquisition, key) = (SharedAcquisition::clone(acquisition), acquisition.key.name());
        if let Some(parent) = nested {
            engine.with_key_now(now, key, |key_state, cx| {
                key_state.join_nested(parent.root(), parent.depth(), acquisition, retry_state, cx);
            });
        } else {
            // Checked under the lock of the shard: a shutdown sets the flag before it visits all
            // keys.
            engine.with_key_now(now, key, |key_state, cx| {
                if engine.is_closed() {
                    cx.refuse(acquisition, AcquireFailure::Shutdown);
                } else {
                    let terms = options.terms(engine.lease);
                    key_state.join(QueueEntry { acquisition, terms, retry_state }, cx);
                }
            });
        }
        waiting.wait = scope.and_then(|scope| add_wait(held, scope));
        waiting
    }

    /// Waits for a hold under which a body may start.
    ///
    /// If the server denies a grant before the task was polled, the call joins the queue again,
    /// since nothing has run.
    pub(crate) fn poll_entered(&mut self, options: &Options, cx: &mut Context<'_>) -> Poll<AcquireOutcome> {
        loop {
            let held = ready!(Pin::new(&mut *self).poll(cx))?;
            let Err(loss) = held.check_valid() else { return Poll::Ready(Ok(held)) };
            if !held.is_denied() || !self.has_time_left(options, &held.engine) {
                return Poll::Ready(Err(Box::new(held.into_lost_error(loss))));
            }
            let (engine, key) = (Arc::clone(&held.engine), held.key().clone());
            drop(held.into_lost_error(loss));
            *self = Self::join(&engine, key, options, Scope::current().as_ref(), Some(self.started));
        }
    }

    /// Returns `true` if the `wait` of the call, or the time of its retries, has not passed.
    fn has_time_left(&self, options: &Options, engine: &Engine) -> bool {
        let retry_time = match options.retry {
            0 => Duration::ZERO,
            retries => engine.rules.response_timeout.saturating_mul(retries.saturating_add(1)),
        };
        engine.now() < self.started.plus(options.wait.unwrap_or(retry_time))
    }

    /// Returns the engine, or `None` after the guard was taken.
    pub(crate) fn engine(&self) -> Option<&Engine> {
        self.held.as_ref().map(|held| &*held.engine)
    }

    /// Takes the guard and ends the wait.
    fn take(&mut self) -> Option<HoldGuard> {
        let held = self.held.take()?;
        if let Some(id) = self.wait.take() {
            lock(&held.engine.wait_graph).end(id);
        }
        Some(held)
    }
}

impl Future for AcquireFuture {
    type Output = AcquireOutcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(held) = &this.held else { unreachable!("a future is not polled again after it is ready") };
        let (acquisition, _) = held.acquisition();
        if held.engine.is_forked() {
            return Poll::Ready(Err(Box::new(forked_error(Some(acquisition.key.clone())))));
        }
        loop {
            let outcome = acquisition.poll_state(Some(cx.waker()), |state| match state {
                AcquisitionState::Waiting => None,
                AcquisitionState::Rejected(refusal) => Some(Err(refusal.take())),
                AcquisitionState::Held { since, .. } => Some(Ok(since.since(this.started))),
                _ => Some(Ok(Duration::ZERO)),
            });
            match outcome {
                Some(Ok(waited)) => {
                    let mut held = this.take().expect("it was checked above");
                    held.record_wait(waited);
                    return Poll::Ready(Ok(held));
                }
                Some(Err(refusal)) => {
                    let refusal = refusal.map_or(AcquireFailure::Shutdown, |refusal| *refusal);
                    return Poll::Ready(Err(Box::new(error(acquisition.key.clone(), refusal))));
                }
                None if this.timer.poll(&held.engine, cx).is_pending() => return Poll::Pending,
                None => {} // the backend was brought up to date
            }
        }
    }
}

impl Drop for AcquireFuture {
    fn drop(&mut self) {
        if self.held.as_ref().is_none_or(|held| held.engine.is_forked()) {
            return;
        }
        if let Some(held) = self.take() {
            held.cancel();
        }
    }
}

/// Adds the wait of a call chain that holds a lock to the wait-for graph. If that closes a cycle,
/// rejects the acquisition.
fn add_wait(held: &HoldGuard, scope: &Arc<Scope>) -> Option<WaitId> {
    let (acquisition, nested) = held.acquisition();
    // Most nested calls do not wait.
    acquisition.poll_state(None, |state| matches!(state, AcquisitionState::Waiting).then_some(()))?;
    let has: Vec<WaitNode> = Scope::places(scope, &held.engine);
    if has.is_empty() {
        return None;
    }
    let depth = nested.map_or(0, |parent| parent.depth() + 1);
    let begun = lock(&held.engine.wait_graph).begin(has, (Name::clone(acquisition.key.name()), depth));
    begun
        .inspect_err(|held| {
            drop(acquisition.reject(AcquireFailure::Deadlock { held: acquisition.key.sibling(held) }));
        })
        .ok()
}

/// Converts a failure to the error of a call for `key`.
fn error(key: LockKey, refusal: AcquireFailure) -> Error {
    match refusal {
        AcquireFailure::Contended { attempts, waited, ttl } => {
            Error::Contended { key, attempts, waited, remaining: ttl }
        }
        AcquireFailure::Failed(failure) => failure.into_error(key),
        AcquireFailure::NoAnswer { waited } => Error::Unavailable {
            key: Some(key),
            reason: format!("no reply from the server within {} ms", waited.as_millis()).into(),
        },
        AcquireFailure::Shutdown => Error::Shutdown { key: Some(key) },
        AcquireFailure::ParentLost => Error::Lost {
            key,
            held: Duration::ZERO,
            cause: LossCause::Released,
            completed: false,
            reason: None,
        },
        AcquireFailure::Deadlock { held } => Error::Deadlock { key, held },
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Wake, Waker};

    use super::*;
    use crate::backend::event_effects::EventEffects;
    use crate::backend::{BackendEvents as _, Request};
    use crate::clock::{Clock, SetClock};
    use crate::engine::throttle_tests::RequestRecorder;
    use crate::protocol::ProtocolConfig;
    use crate::protocol::command::Reply;
    use crate::protocol::foreign_clients::{FleetHold, Grant};
    use crate::token::{Token, TokenSource};

    struct Silent;

    impl Wake for Silent {
        fn wake(self: Arc<Self>) {}
    }

    /// A waker may be the last reference to a task, and dropping the task may drop a guard. So a
    /// waker must not be dropped with the state of a key, while its shard is locked.
    #[test]
    fn a_dropped_waiting_call_drops_its_waker() {
        for is_first in [true, false] {
            let (clock, tokens) = (Clock::Set(Arc::<SetClock>::default()), TokenSource::of_process(1));
            let lease = Duration::from_secs(30);
            let engine =
                Engine::new(Arc::<RequestRecorder>::default(), clock, tokens, ProtocolConfig::DEFAULT, lease);
            let engine = Arc::new(engine);
            let join = || {
                let key = LockKey::new("order:7").expect("a key");
                AcquireFuture::join(&engine, key, &Options::new(), None, None)
            };
            let first = (!is_first).then(join);
            let (silent, mut waiting) = (Arc::new(Silent), Box::pin(join()));
            let waker = Waker::from(Arc::clone(&silent));
            assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());

            drop((waker, waiting));

            assert_eq!(Arc::strong_count(&silent), 1, "first: {is_first}");
            assert!(
                engine.is_in_use(LockKey::new("order:7").expect("a key").name()),
                "it waits for the reply"
            );
            drop(first);
        }
    }

    /// Returns a call whose grant the server denied at 100 ms, before its task was polled. The
    /// options are without `renew`, so that the grant is confirmed at once.
    fn denied(options: &Options) -> (Arc<Engine>, Arc<RequestRecorder>, AcquireFuture) {
        let (recorder, clock) = (Arc::<RequestRecorder>::default(), Arc::<SetClock>::default());
        clock.set(at(100).nanos());
        let (clock, tokens) = (Clock::Set(clock), TokenSource::of_process(1));
        let rules = ProtocolConfig::DEFAULT;
        let backend = Arc::clone(&recorder) as Arc<dyn crate::backend::Backend>;
        let engine = Arc::new(Engine::new(backend, clock, tokens, rules, Duration::from_secs(30)));
        let key = LockKey::new("order:7").expect("a key");
        let waiting = AcquireFuture::join(&engine, key.clone(), options, None, None);
        answer(&engine, &recorder, Reply::Contended);
        let token = answer(&engine, &recorder, Reply::Queued { ttl: None });
        let mut effects = EventEffects::default();
        let offer = Grant { lease: rules.grant_lease, fleet_hold: FleetHold::UNKNOWN };
        engine.on_grant(key.name(), token, offer, at(100), &mut effects);
        effects.run();
        answer(&engine, &recorder, Reply::NotOwner);
        (engine, recorder, waiting)
    }

    /// Replies to the one command that was sent, and returns its token.
    fn answer(engine: &Engine, recorder: &RequestRecorder, reply: Reply) -> Token {
        let [request] = <[Request; 1]>::try_from(recorder.take()).expect("one is sent");
        let (token, mut effects) = (request.token, EventEffects::default());
        engine.on_reply(request, reply, at(100), at(100), &mut effects);
        effects.run();
        token
    }

    fn at(ms: u64) -> BootInstant {
        BootInstant::START.plus(Duration::from_millis(ms))
    }

    #[test]
    fn denied_grant_queues_the_call_again_if_no_body_has_started() {
        let waits = Options { wait: Some(Duration::from_secs(60)), renew: false, ..Options::new() };
        for options in [waits, Options { retry: 3, renew: false, ..Options::new() }] {
            let (engine, recorder, mut waiting) = denied(&options);
            let cx = &mut Context::from_waker(Waker::noop());

            assert!(waiting.poll_entered(&options, cx).is_pending());
            answer(&engine, &recorder, Reply::Owner);

            let entered = waiting.poll_entered(&options, cx);
            assert!(matches!(&entered, Poll::Ready(Ok(held)) if held.check_valid().is_ok()), "{entered:?}");
        }
    }

    #[test]
    fn denied_grant_ends_a_call_whose_wait_is_over() {
        let options = Options { wait: Some(Duration::from_secs(1)), renew: false, ..Options::new() };
        let (engine, recorder, mut waiting) = denied(&options);
        let Clock::Set(clock) = &engine.clock else { unreachable!("it is set") };
        clock.set(at(1_100).nanos());

        let entered = waiting.poll_entered(&options, &mut Context::from_waker(Waker::noop()));

        let is_lost = matches!(&entered, Poll::Ready(Err(error)) if error.is_lost());
        assert!(is_lost && recorder.take().is_empty(), "{entered:?}");
    }

    #[test]
    fn a_call_without_replies_ends_after_its_retries() {
        for (yield_to_foreign, retry, limit) in
            [(false, 0, 500), (true, 0, 500), (false, 3, 2_000), (true, 3, 3_200)]
        {
            let (clock, rules) = (
                Clock::Set(Arc::<SetClock>::default()),
                ProtocolConfig { yield_to_foreign, ..ProtocolConfig::DEFAULT },
            );
            let (lease, tokens) = (Duration::from_secs(30), TokenSource::of_process(1));
            let engine =
                Arc::new(Engine::new(Arc::<RequestRecorder>::default(), clock, tokens, rules, lease));
            let key = LockKey::new("order:7").expect("a key");
            let waiting = AcquireFuture::join(&engine, key, &Options { retry, ..Options::new() }, None, None);

            let has_ended = |ms| {
                let mut effects = EventEffects::default();
                engine.on_timeout(BootInstant::START.plus(Duration::from_millis(ms)), &mut effects);
                effects.run();
                let refused = |state: &mut AcquisitionState| {
                    matches!(state, AcquisitionState::Rejected(_)).then_some(())
                };
                waiting
                    .held
                    .as_ref()
                    .is_some_and(|held| held.acquisition().0.poll_state(None, refused).is_some())
            };

            assert!(!has_ended(limit - 1) && has_ended(limit), "{yield_to_foreign}, retry = {retry}");
        }
    }

    /// Returns a call that joined the queue at 100 ms and was granted a lease of 30 s at 140 ms.
    fn granted(options: &Options) -> (Arc<Engine>, Arc<RequestRecorder>, AcquireFuture) {
        let (recorder, clock) = (Arc::<RequestRecorder>::default(), Arc::<SetClock>::default());
        clock.set(at(100).nanos());
        let (clock, tokens) = (Clock::Set(clock), TokenSource::of_process(1));
        let backend = Arc::clone(&recorder) as Arc<dyn crate::backend::Backend>;
        let lease = Duration::from_secs(30);
        let engine = Arc::new(Engine::new(backend, clock, tokens, ProtocolConfig::DEFAULT, lease));
        let key = LockKey::new("order:7").expect("a key");
        let waiting = AcquireFuture::join(&engine, key, options, None, None);
        let [request] = <[Request; 1]>::try_from(recorder.take()).expect("one is sent");
        let mut effects = EventEffects::default();
        engine.on_reply(request, Reply::Owner, at(100), at(140), &mut effects);
        effects.run();
        (engine, recorder, waiting)
    }

    #[test]
    fn a_hold_knows_its_attempts_and_its_wait() {
        let options = Options::new();
        let (_engine, _recorder, mut waiting) = granted(&options);

        let entered = waiting.poll_entered(&options, &mut Context::from_waker(Waker::noop()));

        let Poll::Ready(Ok(held)) = entered else { panic!("{entered:?}") };
        assert_eq!(held.attempts_and_wait(), (1, Duration::from_millis(40)));
        assert!(waiting.engine().is_none(), "the guard was taken");
    }

    /// Its body may not run again elsewhere: the lease has expired, so the server may have granted
    /// the lock to another process.
    #[test]
    fn a_hold_that_expired_before_its_first_poll_is_lost() {
        let options = Options { wait: Some(Duration::from_secs(60)), ..Options::new() };
        let (engine, recorder, mut waiting) = granted(&options);
        let Clock::Set(clock) = &engine.clock else { unreachable!("it is set") };
        clock.set(at(40_000).nanos());

        let entered = waiting.poll_entered(&options, &mut Context::from_waker(Waker::noop()));

        let Poll::Ready(Err(error)) = &entered else { panic!("{entered:?}") };
        assert!(matches!(&**error, Error::Lost { completed: false, .. }), "{error:?}");
        let commands: Vec<_> = recorder.take().iter().map(|request| request.command).collect();
        assert!(commands.iter().all(|command| command.is_release()), "{commands:?}");
    }
}
