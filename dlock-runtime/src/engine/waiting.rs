//! The way to a hold: a future that waits for its turn, and leaves the queue when it is dropped.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::hold::{Alarm, Held};
use crate::engine::turn::{Phase, Seat, SharedTurn, Turn};
use crate::error::{Error, LossCause};
use crate::fork::forked_error;
use crate::held::Scope;
use crate::key::{LockKey, Name};
use crate::options::Options;
use crate::protocol::deadline::BootTime;
use crate::protocol::lane::Refusal;
use crate::protocol::patience::{Limits, Patience};
use crate::protocol::queue::Waiter;
use crate::protocol::waits::{Place, WaitId};
use crate::sync::lock;

/// How a wait ends. Errors are large and seldom: a hold is moved with the room of one beside it from the wait to the guard.
pub(crate) type Entered = Result<Held, Box<Error>>;

/// Waits for a turn. Dropping it leaves the queue at once; a grant on its way to it is released.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// What the call will have, until it has it.
    held: Option<Held>,
    /// When the call began.
    started: BootTime,
    /// The wait among those of nested calls, where this call chain holds something.
    wait: Option<WaitId>,
    alarm: Alarm,
}

impl Waiting {
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
        started: BootTime,
        engine: &Arc<Engine>,
        key: LockKey,
        options: &Options,
        scope: Option<&Arc<Scope>>,
    ) -> Self {
        let now = engine.now();
        engine.uses(key.namespace());
        let seat = Seat(Turn::new(key));
        let rules = &engine.rules;
        // Who tries once asks at once.
        let away = if options.retry == 0 { Duration::ZERO } else { rules.longest_cooldown() };
        let limits = Limits {
            retries: options.retry,
            wait: options.wait,
            backoff: options.backoff,
            response_timeout: rules.response_timeout.saturating_add(away),
            only_whether: options.only_whether,
        };
        let patience = Patience::new(started, limits, engine.tokens.draw());
        let nested = scope.and_then(|scope| Scope::of_key(scope, engine, &seat.key)).cloned();
        // Before anything can unwind: dropped, it leaves the queue.
        let held = Some(Held::new(engine, seat, nested));
        let mut waiting = Self { held, started, wait: None, alarm: Alarm::default() };
        let Some(held) = &waiting.held else { unreachable!("it was put there") };
        let (seat, nested) = held.turn();
        let key = seat.key.name();
        if let Some(parent) = nested {
            let root = Seat(SharedTurn::clone(parent.root()));
            engine.on_lane_now(now, key, |lane, cx| {
                lane.join_nested(&root, parent.depth(), seat.clone(), patience, cx);
            });
        } else {
            // Looked at under the lane's lock: who shuts down sets it first and goes through all lanes then.
            engine.on_lane_now(now, key, |lane, cx| {
                if engine.is_closed() {
                    cx.refuse(seat.clone(), Refusal::Shutdown);
                } else {
                    let terms = options.terms(engine.lease);
                    lane.join(Waiter { seat: seat.clone(), terms, patience }, cx);
                }
            });
        }
        waiting.wait = scope.and_then(|scope| note_wait(held, scope));
        waiting
    }

    /// Waits for a hold that a body may start on. A grant that the server has denied before the task came to its turn costs the call
    /// time and nothing else: it queues up again, as nothing has run.
    pub(crate) fn poll_entered(&mut self, options: &Options, cx: &mut Context<'_>) -> Poll<Entered> {
        loop {
            let held = ready!(Pin::new(&mut *self).poll(cx))?;
            let Err(loss) = held.believed() else { return Poll::Ready(Ok(held)) };
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
    fn take(&mut self) -> Option<Held> {
        let held = self.held.take()?;
        if let Some(id) = self.wait.take() {
            lock(&held.engine.waits).end(id);
        }
        Some(held)
    }
}

impl Future for Waiting {
    type Output = Entered;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(held) = &this.held else { unreachable!("a future is not polled again after it has ended") };
        let (seat, _) = held.turn();
        if held.engine.is_forked() {
            return Poll::Ready(Err(Box::new(forked_error(Some(seat.key.clone())))));
        }
        loop {
            let outcome = seat.look(Some(cx.waker()), |phase| match phase {
                Phase::Waiting => None,
                Phase::Refused(refusal) => Some(Err(refusal.take())),
                Phase::Held { since, .. } => Some(Ok(since.since(this.started))),
                _ => Some(Ok(Duration::ZERO)),
            });
            match outcome {
                Some(Ok(waited)) => {
                    let mut held = this.take().expect("it is there: the turn that was looked at is its own");
                    held.note_wait(waited);
                    return Poll::Ready(Ok(held));
                }
                Some(Err(refusal)) => {
                    let refusal = refusal.map_or(Refusal::Shutdown, |refusal| *refusal);
                    return Poll::Ready(Err(Box::new(error(seat.key.clone(), refusal))));
                }
                None if this.alarm.ring(&held.engine, cx).is_pending() => return Poll::Pending,
                None => {} // time has passed: look again
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.held.as_ref().is_none_or(|held| held.engine.is_forked()) {
            return;
        }
        if let Some(held) = self.take() {
            held.not_wanted();
        }
    }
}

/// Notes that a call chain which holds something waits; where that would never end, the turn is refused.
fn note_wait(held: &Held, scope: &Arc<Scope>) -> Option<WaitId> {
    let (seat, nested) = held.turn();
    // No longer, for nearly every nested call.
    seat.look(None, |phase| matches!(phase, Phase::Waiting).then_some(()))?;
    let has: Vec<Place> = Scope::places(scope, &held.engine);
    if has.is_empty() {
        return None;
    }
    let depth = nested.map_or(0, |parent| parent.depth() + 1);
    let begun = lock(&held.engine.waits).begin(has, (Name::clone(seat.key.name()), depth));
    begun.inspect_err(|held| drop(seat.refuse(Refusal::Deadlock { held: seat.key.sibling(held) }))).ok()
}

/// Why the lock of `key` is not to be had, for who wanted it.
fn error(key: LockKey, refusal: Refusal) -> Error {
    match refusal {
        Refusal::Contended { attempts, waited, ttl } => {
            Error::Contended { key, attempts, waited, retry_after: ttl }
        }
        Refusal::Failed(failure) => failure.into_error(key),
        Refusal::NoAnswer { waited } => Error::Unavailable {
            key: Some(key),
            reason: format!("no answer from the server within {} ms", waited.as_millis()).into(),
        },
        Refusal::Shutdown => Error::Shutdown { key: Some(key) },
        Refusal::RootLost => {
            Error::Lost { key, held: Duration::ZERO, cause: LossCause::Released, completed: false }
        }
        Refusal::Deadlock { held } => Error::Deadlock { key, held },
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Wake, Waker};

    use super::*;
    use crate::backend::Request;
    use crate::clock::{Clock, SetClock};
    use crate::engine::effects::Effects;
    use crate::engine::waves::Notes;
    use crate::protocol::Rules;
    use crate::protocol::command::Reply;
    use crate::protocol::share::{Offer, Streak};
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
            let engine = Engine::new(Arc::<Notes>::default(), clock, tokens, Rules::DEFAULT, lease);
            let engine = Arc::new(engine);
            let join = || {
                let key = LockKey::new("order:7").expect("a key");
                Waiting::join(&engine, key, &Options::new(), None)
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
    fn denied(options: &Options) -> (Arc<Engine>, Arc<Notes>, Waiting) {
        let (notes, clock) = (Arc::<Notes>::default(), Arc::<SetClock>::default());
        clock.set(at(100).nanos());
        let (clock, tokens) = (Clock::Set(clock), TokenSource::of_process(1));
        let rules = Rules { confirm_at_once: true, ..Rules::DEFAULT };
        let backend = Arc::clone(&notes) as Arc<dyn crate::backend::Backend>;
        let engine = Arc::new(Engine::new(backend, clock, tokens, rules, Duration::from_secs(30)));
        let key = LockKey::new("order:7").expect("a key");
        let waiting = Waiting::join(&engine, key.clone(), options, None);
        answer(&engine, &notes, Reply::Taken);
        let token = answer(&engine, &notes, Reply::Queued { ttl: None });
        let mut effects = Effects::default();
        let offer = Offer { lease: rules.grant_lease, streak: Streak::UNKNOWN };
        engine.granted(key.name(), token, offer, at(100), &mut effects);
        effects.wake();
        answer(&engine, &notes, Reply::NotOwner);
        (engine, notes, waiting)
    }

    /// Answers the one command that was sent, and returns its token.
    fn answer(engine: &Engine, notes: &Notes, reply: Reply) -> Token {
        let [request] = <[Request; 1]>::try_from(notes.take()).expect("one is sent");
        let (token, mut effects) = (request.token, Effects::default());
        engine.replies(at(100), at(100), [(request, reply)], &mut effects);
        effects.wake();
        token
    }

    fn at(ms: u64) -> BootTime {
        BootTime::START.plus(Duration::from_millis(ms))
    }

    #[test]
    fn denied_grant_queues_the_call_again_if_no_body_has_started() {
        let waits = Options { wait: Some(Duration::from_secs(60)), ..Options::new() };
        for options in [waits, Options { retry: 3, ..Options::new() }] {
            let (engine, notes, mut waiting) = denied(&options);
            let cx = &mut Context::from_waker(Waker::noop());

            assert!(waiting.poll_entered(&options, cx).is_pending());
            answer(&engine, &notes, Reply::Ours);

            let entered = waiting.poll_entered(&options, cx);
            assert!(matches!(&entered, Poll::Ready(Ok(held)) if held.believed().is_ok()), "{entered:?}");
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
            let (clock, rules) =
                (Clock::Set(Arc::<SetClock>::default()), Rules { yield_to_foreign, ..Rules::DEFAULT });
            let (lease, tokens) = (Duration::from_secs(30), TokenSource::of_process(1));
            let engine = Arc::new(Engine::new(Arc::<Notes>::default(), clock, tokens, rules, lease));
            let key = LockKey::new("order:7").expect("a key");
            let waiting = Waiting::join(&engine, key, &Options { retry, ..Options::new() }, None);

            let has_ended = |ms| {
                let mut effects = Effects::default();
                engine.tick(BootTime::START.plus(Duration::from_millis(ms)), &mut effects);
                effects.wake();
                let refused = |phase: &mut Phase| matches!(phase, Phase::Refused(_)).then_some(());
                waiting.held.as_ref().is_some_and(|held| held.turn().0.look(None, refused).is_some())
            };

            assert!(!has_ended(limit - 1) && has_ended(limit), "{yield_to_foreign}, retry = {retry}");
        }
    }
}
