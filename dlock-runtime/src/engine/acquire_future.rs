//! The way to a hold: a future that waits for its turn, and leaves the queue when it is dropped.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::acquisition::{Acquisition, AcquisitionRef, AcquisitionState, SharedAcquisition};
use crate::engine::hold_guard::{HoldGuard, LossTimer};
use crate::error::{Error, LossCause};
use crate::fork::forked_error;
use crate::held::Scope;
use crate::key::{LockKey, Name};
use crate::options::Options;
use crate::protocol::deadline::BootInstant;
use crate::protocol::deadlock::{WaitId, WaitNode};
use crate::protocol::key_state::AcquireFailure;
use crate::protocol::retry_state::{RetryLimits, RetryState};
use crate::protocol::wait_queue::QueueEntry;
use crate::sync::lock;

/// How a wait ends. Errors are large and seldom: a hold is moved with the room of one beside it from the wait to the guard.
pub(crate) type AcquireOutcome = Result<HoldGuard, Box<Error>>;

/// WaitGraph for a turn. Dropping it leaves the queue at once; a grant on its way to it is released.
#[derive(Debug)]
pub(crate) struct AcquireFuture {
    /// What the call will have, until it has it.
    held: Option<HoldGuard>,
    /// When the call began.
    started: BootInstant,
    /// The wait among those of nested calls, where this call chain holds something.
    wait: Option<WaitId>,
    alarm: LossTimer,
}

impl AcquireFuture {
    /// Asks for the lock: from here on the call stands in the queue.
    pub(crate) fn join(
        engine: &Arc<Engine>,
        key: LockKey,
        options: &Options,
        scope: Option<&Arc<Scope>>,
    ) -> Self {
        Self::join_since(engine.now(), engine, key, options, scope)
    }

    /// Asks for the lock on behalf of a call whose `wait` began at `started`.
    fn join_since(
        started: BootInstant,
        engine: &Arc<Engine>,
        key: LockKey,
        options: &Options,
        scope: Option<&Arc<Scope>>,
    ) -> Self {
        let now = engine.now();
        engine.uses(key.namespace());
        let acquisition = AcquisitionRef(Acquisition::new(key));
        let rules = &engine.rules;
        // Who tries once asks at once.
        let away = if options.retry == 0 { Duration::ZERO } else { rules.longest_cooldown() };
        let limits = RetryLimits {
            retries: options.retry,
            wait: options.wait,
            backoff: options.backoff,
            response_timeout: rules.response_timeout.saturating_add(away),
            try_only: options.try_only,
        };
        let retry_state = RetryState::new(started, limits, engine.tokens.draw());
        let nested = scope.and_then(|scope| Scope::of_key(scope, engine, &acquisition.key)).cloned();
        // Before anything can unwind: dropped, it leaves the queue.
        let held = Some(HoldGuard::new(engine, acquisition, nested));
        let mut waiting = Self { held, started, wait: None, alarm: LossTimer::default() };
        let Some(held) = &waiting.held else { unreachable!("it was put there") };
        let (acquisition, nested) = held.acquisition();
        let key = acquisition.key.name();
        if let Some(parent) = nested {
            let root = AcquisitionRef(SharedAcquisition::clone(parent.root()));
            engine.with_key_now(now, key, |key_state, cx| {
                key_state.join_nested(&root, parent.depth(), acquisition.clone(), retry_state, cx);
            });
        } else {
            // Looked at under the lane's lock: who shuts down sets it first and goes through all lanes then.
            engine.with_key_now(now, key, |key_state, cx| {
                if engine.is_closed() {
                    cx.refuse(acquisition.clone(), AcquireFailure::Shutdown);
                } else {
                    let terms = options.terms(engine.lease);
                    key_state.join(QueueEntry { acquisition: acquisition.clone(), terms, retry_state }, cx);
                }
            });
        }
        waiting.wait = scope.and_then(|scope| note_wait(held, scope));
        waiting
    }

    /// WaitGraph for a hold that a body may start on. A grant that the server has denied before the task came to its turn costs the call
    /// time and nothing else: it queues up again, as nothing has run.
    pub(crate) fn poll_entered(&mut self, options: &Options, cx: &mut Context<'_>) -> Poll<AcquireOutcome> {
        loop {
            let held = ready!(Pin::new(&mut *self).poll(cx))?;
            let Err(loss) = held.check_valid() else { return Poll::Ready(Ok(held)) };
            if !held.is_denied() || !self.goes_on(options, &held.engine) {
                return Poll::Ready(Err(Box::new(held.given_up(loss))));
            }
            let (engine, key) = (Arc::clone(&held.engine), held.key().clone());
            drop(held.given_up(loss));
            *self = Self::join_since(self.started, &engine, key, options, Scope::current().as_ref());
        }
    }

    /// Returns whether the call has time to ask again: of its `wait`, or of the tries of its `retry`.
    fn goes_on(&self, options: &Options, engine: &Engine) -> bool {
        let of_tries = match options.retry {
            0 => Duration::ZERO,
            retries => engine.rules.response_timeout.saturating_mul(retries.saturating_add(1)),
        };
        engine.now() < self.started.plus(options.wait.unwrap_or(of_tries))
    }

    /// Returns the engine of a call that has not got its lock.
    pub(crate) fn engine(&self) -> Option<&Engine> {
        self.held.as_ref().map(|held| &*held.engine)
    }

    /// Takes out what the call has, or would have had: it waits no longer.
    fn take(&mut self) -> Option<HoldGuard> {
        let held = self.held.take()?;
        if let Some(id) = self.wait.take() {
            lock(&held.engine.waits).end(id);
        }
        Some(held)
    }
}

impl Future for AcquireFuture {
    type Output = AcquireOutcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(held) = &this.held else { unreachable!("a future is not polled again after it has ended") };
        let (acquisition, _) = held.acquisition();
        if held.engine.is_forked() {
            return Poll::Ready(Err(Box::new(forked_error(Some(acquisition.key.clone())))));
        }
        loop {
            let outcome = acquisition.poll_state(Some(cx.waker()), |phase| match phase {
                AcquisitionState::AcquireFuture => None,
                AcquisitionState::Refused(refusal) => Some(Err(refusal.take())),
                AcquisitionState::HoldGuard { since, .. } => Some(Ok(since.since(this.started))),
                _ => Some(Ok(Duration::ZERO)),
            });
            match outcome {
                Some(Ok(waited)) => {
                    let mut held = this.take().expect("it is there: the turn that was looked at is its own");
                    held.note_wait(waited);
                    return Poll::Ready(Ok(held));
                }
                Some(Err(refusal)) => {
                    let refusal = refusal.map_or(AcquireFailure::Shutdown, |refusal| *refusal);
                    return Poll::Ready(Err(Box::new(error(acquisition.key.clone(), refusal))));
                }
                None if this.alarm.ring(&held.engine, cx).is_pending() => return Poll::Pending,
                None => {} // time has passed: look again
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
            held.cancel_wanted();
        }
    }
}

/// Notes that a call chain which holds something waits; where that would never end, the turn is refused.
fn note_wait(held: &HoldGuard, scope: &Arc<Scope>) -> Option<WaitId> {
    let (acquisition, nested) = held.acquisition();
    // No longer, for nearly every nested call.
    acquisition.poll_state(None, |phase| matches!(phase, AcquisitionState::AcquireFuture).then_some(()))?;
    let has: Vec<WaitNode> = Scope::places(scope, &held.engine);
    if has.is_empty() {
        return None;
    }
    let depth = nested.map_or(0, |parent| parent.depth() + 1);
    let begun = lock(&held.engine.waits).begin(has, (Name::clone(acquisition.key.name()), depth));
    begun
        .inspect_err(|held| {
            drop(acquisition.refuse(AcquireFailure::Deadlock { held: acquisition.key.sibling(held) }))
        })
        .ok()
}

/// Why the lock of `key` is not to be had, for who wanted it.
fn error(key: LockKey, refusal: AcquireFailure) -> Error {
    match refusal {
        AcquireFailure::Contended { attempts, waited, ttl } => {
            Error::Contended { key, attempts, waited, retry_after: ttl }
        }
        AcquireFailure::Failed(failure) => failure.into_error(key),
        AcquireFailure::NoAnswer { waited } => Error::Unavailable {
            key: Some(key),
            reason: format!("no answer from the server within {} ms", waited.as_millis()).into(),
        },
        AcquireFailure::Shutdown => Error::Shutdown { key: Some(key) },
        AcquireFailure::ParentLost => {
            Error::Lost { key, held: Duration::ZERO, cause: LossCause::ReleaseOutcome, completed: false }
        }
        AcquireFailure::Deadlock { held } => Error::Deadlock { key, held },
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Wake, Waker};

    use super::*;
    use crate::backend::Request;
    use crate::clock::{Clock, SetClock};
    use crate::engine::effects::Effects;
    use crate::engine::throttle_tests::Notes;
    use crate::protocol::ProtocolConfig;
    use crate::protocol::command::Reply;
    use crate::protocol::foreign_clients::{FleetHold, Grant};
    use crate::token::{Token, TokenSource};

    struct Silent;

    impl Wake for Silent {
        fn wake(self: Arc<Self>) {}
    }

    /// A waker may be the last that knows of a task, whose end may drop a guard: it must not go with a lane, which is locked then.
    #[test]
    fn a_call_that_is_dropped_as_it_waits_leaves_its_waker_to_nobody() {
        for is_first in [true, false] {
            let (clock, tokens) = (Clock::Set(Arc::<SetClock>::default()), TokenSource::of_process(1));
            let lease = Duration::from_secs(30);
            let engine = Engine::new(Arc::<Notes>::default(), clock, tokens, ProtocolConfig::DEFAULT, lease);
            let engine = Arc::new(engine);
            let join = || {
                let key = LockKey::new("order:7").expect("a key");
                AcquireFuture::join(&engine, key, &Options::new(), None)
            };
            let first = (!is_first).then(join);
            let (silent, mut waiting) = (Arc::new(Silent), Box::pin(join()));
            let waker = Waker::from(Arc::clone(&silent));
            assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());

            drop((waker, waiting));

            assert_eq!(Arc::strong_count(&silent), 1, "first: {is_first}");
            assert!(engine.wants(LockKey::new("order:7").expect("a key").name()), "it waits for the answer");
            drop(first);
        }
    }

    /// A call whose grant the server has denied before its task came to its turn, at 100 ms, and what has been asked.
    fn denied(options: &Options) -> (Arc<Engine>, Arc<Notes>, AcquireFuture) {
        let (notes, clock) = (Arc::<Notes>::default(), Arc::<SetClock>::default());
        clock.set(at(100).nanos());
        let (clock, tokens) = (Clock::Set(clock), TokenSource::of_process(1));
        let rules = ProtocolConfig { confirm_grants_first: true, ..ProtocolConfig::DEFAULT };
        let backend = Arc::clone(&notes) as Arc<dyn crate::backend::Backend>;
        let engine = Arc::new(Engine::new(backend, clock, tokens, rules, Duration::from_secs(30)));
        let key = LockKey::new("order:7").expect("a key");
        let waiting = AcquireFuture::join(&engine, key.clone(), options, None);
        answer(&engine, &notes, Reply::Contended);
        let token = answer(&engine, &notes, Reply::Queued { ttl: None });
        let mut effects = Effects::default();
        let offer = Grant { lease: rules.grant_lease, fleet_hold: FleetHold::UNKNOWN };
        engine.on_grant(key.name(), token, offer, at(100), &mut effects);
        effects.wake();
        answer(&engine, &notes, Reply::NotOwner);
        (engine, notes, waiting)
    }

    /// Answers the one command that was sent, and returns its token.
    fn answer(engine: &Engine, notes: &Notes, reply: Reply) -> Token {
        let [request] = <[Request; 1]>::try_from(notes.take()).expect("one is sent");
        let (token, mut effects) = (request.token, Effects::default());
        engine.on_replies(at(100), at(100), [(request, reply)], &mut effects);
        effects.wake();
        token
    }

    fn at(ms: u64) -> BootInstant {
        BootInstant::START.plus(Duration::from_millis(ms))
    }

    #[test]
    fn denied_grant_queues_the_call_again_if_no_body_has_started() {
        let waits = Options { wait: Some(Duration::from_secs(60)), ..Options::new() };
        for options in [waits, Options { retry: 3, ..Options::new() }] {
            let (engine, notes, mut waiting) = denied(&options);
            let cx = &mut Context::from_waker(Waker::noop());

            assert!(waiting.poll_entered(&options, cx).is_pending());
            answer(&engine, &notes, Reply::Owner);

            let entered = waiting.poll_entered(&options, cx);
            assert!(matches!(&entered, Poll::Ready(Ok(held)) if held.check_valid().is_ok()), "{entered:?}");
        }
    }

    #[test]
    fn denied_grant_ends_a_call_whose_wait_is_over() {
        let options = Options { wait: Some(Duration::from_secs(1)), ..Options::new() };
        let (engine, notes, mut waiting) = denied(&options);
        let Clock::Set(clock) = &engine.clock else { unreachable!("it is set") };
        clock.set(at(1_100).nanos());

        let entered = waiting.poll_entered(&options, &mut Context::from_waker(Waker::noop()));

        let is_lost = matches!(&entered, Poll::Ready(Err(error)) if error.is_lost());
        assert!(is_lost && notes.take().is_empty(), "{entered:?}");
    }

    #[test]
    fn a_call_ends_when_its_tries_have_had_their_time_though_no_answer_comes() {
        for (yield_to_foreign, retry, limit) in
            [(false, 0, 500), (true, 0, 500), (false, 3, 2_000), (true, 3, 3_200)]
        {
            let (clock, rules) = (
                Clock::Set(Arc::<SetClock>::default()),
                ProtocolConfig { yield_to_foreign, ..ProtocolConfig::DEFAULT },
            );
            let (lease, tokens) = (Duration::from_secs(30), TokenSource::of_process(1));
            let engine = Arc::new(Engine::new(Arc::<Notes>::default(), clock, tokens, rules, lease));
            let key = LockKey::new("order:7").expect("a key");
            let waiting = AcquireFuture::join(&engine, key, &Options { retry, ..Options::new() }, None);

            let has_ended = |ms| {
                let mut effects = Effects::default();
                engine.tick(BootInstant::START.plus(Duration::from_millis(ms)), &mut effects);
                effects.wake();
                let refused = |phase: &mut AcquisitionState| {
                    matches!(phase, AcquisitionState::Refused(_)).then_some(())
                };
                waiting
                    .held
                    .as_ref()
                    .is_some_and(|held| held.acquisition().0.poll_state(None, refused).is_some())
            };

            assert!(!has_ended(limit - 1) && has_ended(limit), "{yield_to_foreign}, retry = {retry}");
        }
    }
}
