//! The way to a hold: a future that waits for its turn, and leaves the queue when it is dropped.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::answer::{By, Told};
use crate::engine::hold::{Alarm, Held};
use crate::engine::turn::{Phase, Seat, Turn};
use crate::error::Error;
use crate::held::Scope;
use crate::key::LockKey;
use crate::options::Options;
use crate::protocol::deadline::BootTime;
use crate::protocol::lane::Refusal;
use crate::protocol::patience::{Limits, Patience};
use crate::protocol::queue::Waiter;
use crate::protocol::waits::{Place, WaitId};
use crate::sync::lock;

/// Waits for a turn. Dropping it leaves the queue at once; a grant on its way to it is released.
#[derive(Debug)]
pub(crate) struct Waiting {
    engine: Arc<Engine>,
    turn: Arc<Turn>,
    /// When the call began.
    started: BootTime,
    /// The scope that the turn is nested in, if it joins a hold of its call chain.
    nested: Option<Arc<Scope>>,
    /// The wait among those of nested calls, where this call chain holds something.
    wait: Option<WaitId>,
    alarm: Alarm,
    settled: bool,
}

impl Waiting {
    /// Asks for the lock: from here on the call stands in the queue.
    pub(crate) fn join(
        engine: &Arc<Engine>,
        key: LockKey,
        options: &Options,
        scope: Option<&Arc<Scope>>,
    ) -> Self {
        let now = engine.now();
        let turn = Turn::new(key);
        let rules = &engine.rules;
        // Who tries once asks at once.
        let away = if options.retry == 0 { Duration::ZERO } else { rules.share.longest_away() };
        let limits = Limits {
            retries: options.retry,
            wait: options.wait,
            backoff: options.backoff,
            response_timeout: rules.response_timeout.saturating_add(away),
            only_whether: options.only_whether,
        };
        let patience = Patience::new(now, limits, engine.tokens.draw());
        let parent = scope.and_then(|scope| Scope::of_key(scope, engine, &turn.key)).cloned();
        let mut waiting = Self {
            engine: Arc::clone(engine),
            turn,
            started: now,
            nested: parent,
            wait: None,
            alarm: Alarm::default(),
            settled: false,
        };
        let seat = Seat(Arc::clone(&waiting.turn));
        let key = waiting.turn.key.name();
        if let Some(parent) = &waiting.nested {
            let root = Seat(Arc::clone(parent.root()));
            engine.on_lane_now(now, key, |lane, cx| {
                lane.join_nested(&root, parent.depth(), seat, patience, cx);
            });
        } else {
            let waiter = Waiter { seat, terms: options.terms(engine.lease), patience };
            // Looked at under the lane's lock: who shuts down sets it first and goes through all lanes then.
            engine.on_lane_now(now, key, |lane, cx| {
                if engine.is_closed() {
                    cx.refuse(waiter.seat, Refusal::Shutdown);
                } else {
                    lane.join(waiter, cx);
                }
            });
        }
        if let Some(scope) = scope {
            waiting.note_wait(scope);
        }
        waiting
    }

    /// Notes that a call chain which holds something waits; where that would never end, the turn is refused.
    fn note_wait(&mut self, scope: &Arc<Scope>) {
        if self.turn.look(None, |phase| matches!(phase, Phase::Waiting).then_some(())).is_none() {
            return; // nearly every nested call
        }
        let has: Vec<Place> = Scope::places(scope, &self.engine);
        if has.is_empty() {
            return;
        }
        let depth = self.nested.as_ref().map_or(0, |parent| parent.depth() + 1);
        let wants = (Arc::clone(self.turn.key.name()), depth);
        match lock(&self.engine.waits).begin(has, wants) {
            Ok(id) => self.wait = Some(id),
            Err(held) => {
                let held = self.turn.key.sibling(&held);
                drop(Seat(Arc::clone(&self.turn)).refuse(Refusal::Deadlock { held }));
            }
        }
    }

    fn error(&self, refusal: Refusal) -> Error {
        let key = self.turn.key.clone();
        match refusal {
            Refusal::Contended { attempts, waited, ttl } => {
                Error::Contended { key, attempts, waited, retry_after: ttl }
            }
            Refusal::Failed(failure) => failure.into_error(key),
            Refusal::NoAnswer { waited } => Error::Unavailable {
                key: Some(key),
                reason: format!("no answer from the server within {} ms", waited.as_millis()).into(),
                source: None,
            },
            Refusal::Shutdown => Error::Shutdown { key: Some(key) },
            Refusal::RootLost => {
                Error::Lost { key, held: std::time::Duration::ZERO, cause: crate::error::LossCause::Released }
            }
            Refusal::Deadlock { held } => Error::Deadlock { key, held },
        }
    }
}

impl Future for Waiting {
    type Output = Result<Held, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            let outcome = this.turn.look(Some(cx.waker()), |phase| match phase {
                Phase::Waiting => None,
                Phase::Refused(refusal) => Some(Err(refusal.take())),
                Phase::Held { since, .. } => Some(Ok(since.since(this.started))),
                _ => Some(Ok(Duration::ZERO)),
            });
            match outcome {
                Some(Ok(waited)) => {
                    this.settled = true;
                    return Poll::Ready(Ok(Held::new(&this.engine, &this.turn, waited, this.nested.take())));
                }
                Some(Err(refusal)) => {
                    let refusal = refusal.map_or(Refusal::Shutdown, |refusal| *refusal);
                    return Poll::Ready(Err(this.error(refusal)));
                }
                None if this.alarm.ring(&this.engine, cx).is_pending() => return Poll::Pending,
                None => {} // time has passed: look again
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(id) = self.wait.take() {
            lock(&self.engine.waits).end(id);
        }
        if self.settled {
            return;
        }
        let seat = Seat(Arc::clone(&self.turn));
        let was_waiting = self.engine.on_lane(self.turn.key.name(), |lane, cx| lane.leave(&seat, cx));
        if !was_waiting {
            // The grant came, and nobody will look at it any more.
            self.engine.release(&self.turn, false, By::AHolder, Told::Nobody, self.engine.now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SetClock};
    use crate::engine::effects::Effects;
    use crate::engine::waves::Notes;
    use crate::protocol::Rules;
    use crate::protocol::share::Share;
    use crate::token::TokenSource;

    #[test]
    fn a_call_ends_when_its_tries_have_had_their_time_though_no_answer_comes() {
        for (share, retry, limit) in
            [(Share::Ours, 0, 500), (Share::SetNx, 0, 500), (Share::Ours, 3, 2_000), (Share::SetNx, 3, 3_200)]
        {
            let (clock, rules) = (Clock::Set(Arc::<SetClock>::default()), Rules { share, ..Rules::DEFAULT });
            let (lease, tokens) = (Duration::from_secs(30), TokenSource::of_process(1));
            let engine = Arc::new(Engine::new(Arc::<Notes>::default(), clock, tokens, rules, lease));
            let key = LockKey::new("order:7").expect("a key");
            let waiting = Waiting::join(&engine, key, &Options { retry, ..Options::new() }, None);

            let has_ended = |ms| {
                let mut effects = Effects::default();
                engine.tick(BootTime::START.plus(Duration::from_millis(ms)), &mut effects);
                effects.wake();
                let refused = |phase: &mut Phase| matches!(phase, Phase::Refused(_)).then_some(());
                waiting.turn.look(None, refused).is_some()
            };

            assert!(!has_ended(limit - 1) && has_ended(limit), "{share:?}, retry = {retry}");
        }
    }
}
