//! What a task has once its turn has come: a hold that is released when it is dropped.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::engine::Engine;
use crate::engine::turn::{Phase, Seat, Turn};
use crate::error::LossCause;
use crate::held::Scope;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootTime;
use crate::telemetry;

/// A hold, or a place inside one. Dropping it releases: at once, without blocking, from any thread.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) engine: Arc<Engine>,
    turn: Arc<Turn>,
    /// The scope that it is nested in, if it joined a hold of its call chain.
    nested: Option<Arc<Scope>>,
    released: AtomicBool,
    /// Whether no call reports its loss.
    pub(crate) stands_alone: bool,
}

impl Held {
    pub(super) fn new(engine: &Arc<Engine>, turn: &Arc<Turn>, nested: Option<Arc<Scope>>) -> Self {
        Self {
            engine: Arc::clone(engine),
            turn: Arc::clone(turn),
            nested,
            released: AtomicBool::new(false),
            stands_alone: false,
        }
    }

    /// The turn that holds the lock: its own, or that of the hold it joined.
    pub(crate) fn root(&self) -> &Arc<Turn> {
        self.nested.as_ref().map_or(&self.turn, |parent| parent.root())
    }

    /// The turn of the call itself.
    pub(crate) fn turn(&self) -> &Arc<Turn> {
        &self.turn
    }

    /// How often the lock was asked for, and how long the call waited for it.
    pub(crate) fn attempts_and_wait(&self) -> (u32, Duration) {
        let turn = &self.turn;
        let seen = turn.look(None, |phase| match phase {
            Phase::Held { since, attempts, .. } => Some((*attempts, since.since(turn.started))),
            _ => None,
        });
        seen.unwrap_or((0, Duration::ZERO))
    }

    /// How deep a call inside this one would be nested.
    pub(crate) fn depth(&self) -> usize {
        self.nested.as_ref().map_or(0, |parent| parent.depth() + 1)
    }

    /// Lets go. The receiver is told the server's answer; there is none where the server is not asked.
    pub(crate) fn let_go(&self, answered: bool) -> Option<oneshot::Receiver<Reply>> {
        if self.released.swap(true, Ordering::AcqRel) {
            return None;
        }
        let answer = if self.nested.is_some() {
            let seat = Seat(Arc::clone(&self.turn));
            let now = self.engine.clock.now();
            self.engine.on_lane(self.turn.key.name(), now, |lane, cx| lane.leave(&seat, cx));
            None
        } else {
            self.engine.release(&self.turn, answered)
        };
        self.turn.end();
        answer
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.let_go(false);
        if self.stands_alone
            && let Err((cause, held)) = self.turn.believed(self.engine.clock.now())
            && cause != LossCause::Released
        {
            telemetry::guard_lost(&self.turn.key, cause, held);
        }
    }
}

/// Keeps the time for a task that waits, where the backend has no thread to do it; does nothing elsewhere.
#[derive(Debug, Default)]
pub(crate) struct Alarm(Option<Pin<Box<tokio::time::Sleep>>>);

impl Alarm {
    /// Brings the backend up to date and returns ready if that may have changed something; else the task is woken when the next
    /// thing is due.
    pub(crate) fn ring(&mut self, engine: &Engine, cx: &mut Context<'_>) -> Poll<()> {
        let Clock::Tokio(clock) = &engine.clock else { return Poll::Pending };
        let due = engine.due();
        if due == BootTime::NEVER {
            return Poll::Pending;
        }
        let at = clock.instant(due);
        let sleep = match &mut self.0 {
            Some(sleep) => {
                if sleep.deadline() != at {
                    sleep.as_mut().reset(at);
                }
                sleep
            }
            none => none.insert(Box::pin(tokio::time::sleep_until(at))),
        };
        let rung = sleep.as_mut().poll(cx);
        if rung.is_ready() {
            // Tokio's timers count whole milliseconds: what is due within this one is due now.
            engine.backend.advance(clock.real_now().max(due));
        }
        rung
    }
}
