//! One key's affairs in one process: who waits, who holds, what has been asked of the server and what it said.
//!
//! ```text
//!            join                      granted / ours
//!   Idle -----------> Contender --------------------------> Held ----> Idle
//!                       ^                                 |  release, nobody waits here
//!                       |          yielded                |
//!                       +------------------- Yielding <---+  release, the hand-off budget is used up
//! ```
//!
//! Events come in as methods, with the time in [`EventContext`]; what is to be done goes out as [`Action`]s. Each stage's own rules are in
//! rooms of their own: `acquire` (Contender), `hold` (Held, Yielding), `share` (Cooldown), `nesting`. Beside the stages, `keep` has what is
//! over and kept.
//!
//! Not here: locks, wake-ups, sockets (`engine`, `backend`).

use crate::error::LossCause;
use crate::key::LockKey;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Command, Failure, Reply};
use crate::protocol::contender::Contender;
use crate::protocol::deadline::{BootInstant, Deadline};
use crate::protocol::foreign_clients::{Cooldown, Grant};
use crate::protocol::hold::{Hold, ResidualHold, Yielding};
use crate::protocol::retry_state::RetryState;
use crate::protocol::wait_queue::{QueueEntry, WaitQueue};
use crate::token::{Token, TokenSource};
use std::time::Duration;

/// What this process knows of one key. `S` is a seat: one task's turn, told apart by equality. It knows the key; the lane does not, as
/// there is one for every lock that is held.
#[derive(Clone, Debug)]
pub(crate) struct KeyState<A> {
    pub(super) queue: WaitQueue<A>,
    pub(super) phase: KeyPhase<A>,
}

/// How far the process is with the key.
#[derive(Clone, Debug)]
pub(super) enum KeyPhase<A> {
    /// Nothing is asked or held.
    Idle,
    /// The head of the queue contends for the lock.
    Contending(Contender<A>),
    /// A task has it.
    Held(Hold<A>),
    /// No task has it until the server says whether it is still ours.
    Yielding(Box<Yielding<A>>),
    /// Nothing is asked or held, and others are to have a chance.
    CoolingDown(Cooldown<A>),
}

/// What was last heard of the lock, for those who must be told why they do not get it.
#[derive(Clone, Debug)]
pub(crate) enum LastObserved {
    /// Nothing yet.
    Nothing,
    /// It is held, for at least this long if nobody lets go or renews.
    Taken(Option<Duration>),
    /// The server could not be asked.
    Failed(Box<Failure>),
}

/// What an event comes with, and where its actions go.
pub(crate) struct EventContext<'a, A> {
    pub(crate) now: BootInstant,
    pub(crate) rules: &'a ProtocolConfig,
    pub(crate) tokens: &'a TokenSource,
    pub(crate) actions: &'a mut Vec<Action<A>>,
    /// Whether another process had the lock when we queued up for it last, or took it when we offered it last: who asks queues up at
    /// once, and who hands on does not ask whether others wait. It may outlive the lane, or be forgotten.
    pub(crate) contended: &'a mut bool,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) enum Action<A> {
    /// Sends a command; its reply comes back by [`KeyState::reply`].
    Send { token: Token, command: Command },
    /// The command under this token has an unknown outcome and nobody waits for it any more: its effect is to be undone.
    Orphan { token: Token },
    /// The seat's turn has come: it holds the lock until `deadline`, which renewals move, and not beyond `ends`.
    Grant {
        acquisition: A,
        #[cfg_attr(not(test), expect(dead_code, reason = "the simulation judges by it"))]
        token: Token,
        deadline: Deadline,
        ends: BootInstant,
        /// Whether it is by a grant that the server has not confirmed.
        is_unconfirmed: bool,
        attempts: u32,
    },
    /// The seat may go on inside the hold that its call chain has.
    JoinNested { acquisition: A },
    /// The seat does not get the lock.
    Reject { acquisition: A, refusal: AcquireFailure },
    /// The seat's hold goes on until `deadline`, and not beyond `ends`.
    Extend { acquisition: A, deadline: Deadline, ends: BootInstant },
    /// The seat's hold is over before its end. What it leaves in the server is the seat's to let go of, once its body is gone.
    Revoke { acquisition: A, cause: LossCause, left: Option<ResidualHold> },
}

/// Why a seat does not get the lock.
#[derive(Clone, Debug)]
pub(crate) enum AcquireFailure {
    /// Another call has it.
    Contended { attempts: u32, waited: Duration, ttl: Option<Duration> },
    /// The server could not be asked.
    Failed(Failure),
    /// No answer came within the call's own limit.
    NoAnswer { waited: Duration },
    /// The manager takes no new work.
    Shutdown,
    /// The hold that it wanted to join is over.
    ParentLost,
    /// It would wait for a call that waits for the lock `held`, which its own call chain has.
    Deadlock { held: LockKey },
}

impl<A: Clone + PartialEq> KeyState<A> {
    pub(crate) fn new() -> Self {
        Self { queue: WaitQueue::new(), phase: KeyPhase::Idle }
    }

    /// Returns whether nothing is left to remember.
    pub(crate) fn is_idle(&self) -> bool {
        self.acquisition().is_none()
    }

    /// Returns a time not later than the first at which [`tick`](Self::tick) has something to do.
    pub(crate) fn due(&self) -> BootInstant {
        let phase = match &self.phase {
            KeyPhase::Idle | KeyPhase::Yielding(_) => BootInstant::NEVER,
            KeyPhase::CoolingDown(cooldown) => cooldown.until,
            KeyPhase::Contending(contender) => contender.due(),
            KeyPhase::Held(hold) => hold.due(),
        };
        phase.min(self.queue.due()).min(self.retained_due())
    }

    /// Returns the seat of somebody who wants the key, has it, or had it last, where there is one.
    pub(crate) fn acquisition(&self) -> Option<&A> {
        let of_kept = || self.queue.kept().first().map(|kept| &kept.acquisition);
        self.phase.acquisition().or_else(|| self.head()).or_else(of_kept)
    }

    /// Returns the seat whose turn it is next.
    pub(crate) fn head(&self) -> Option<&A> {
        self.queue.head().map(|head| &head.acquisition)
    }

    /// Returns how many tasks of this process wait for the lock.
    #[cfg(feature = "testing")]
    pub(crate) fn waiting(&self) -> usize {
        self.queue.count()
    }

    /// A task wants the lock.
    pub(crate) fn join(&mut self, mut waiter: QueueEntry<A>, ctx: &mut EventContext<'_, A>) {
        match &self.phase {
            KeyPhase::Idle => {
                self.enlist(waiter);
                self.contend(ctx);
            }
            KeyPhase::CoolingDown(_) => self.join_in_cooldown(waiter, ctx),
            KeyPhase::Contending(contender) if waiter.retry_state.is_once() && !contender.is_unanswered() => {
                self.refuse(waiter, ctx);
            }
            KeyPhase::Held(_) | KeyPhase::Yielding(_) if waiter.retry_state.is_once() => {
                self.refuse(waiter, ctx)
            }
            KeyPhase::Contending(_) | KeyPhase::Held(_) | KeyPhase::Yielding(_) => {
                if !self.queue.is_empty() || matches!(self.phase, KeyPhase::Held(_)) {
                    waiter.retry_state.on_contended(ctx.now);
                }
                self.enlist(waiter);
            }
        }
    }

    /// Puts a waiter at the end of the queue.
    pub(super) fn enlist(&mut self, waiter: QueueEntry<A>) {
        let heard = self.default_observation();
        self.queue.push(waiter, heard);
    }

    /// Returns what has been heard of the lock last.
    pub(super) fn last_observed(&self) -> LastObserved {
        self.queue.last_observed().cloned().unwrap_or_else(|| self.default_observation())
    }

    /// Returns what the stage alone says of the lock.
    fn default_observation(&self) -> LastObserved {
        match self.phase {
            KeyPhase::Held(_) | KeyPhase::Yielding(_) => LastObserved::Taken(None),
            KeyPhase::Idle | KeyPhase::Contending(_) | KeyPhase::CoolingDown(_) => LastObserved::Nothing,
        }
    }

    /// Returns the token under which the seat holds the lock, if it does.
    pub(crate) fn token_of(&self, acquisition: &A, ctx: &EventContext<'_, A>) -> Option<Token> {
        match &self.phase {
            KeyPhase::Held(hold) if hold.acquisition == *acquisition => Some(hold.token(ctx)),
            _ => None,
        }
    }

    /// A task that waits does not want the lock any more. Returns whether it was waiting.
    pub(crate) fn leave(&mut self, acquisition: &A, ctx: &mut EventContext<'_, A>) -> bool {
        if self.queue.remove(acquisition).is_some() {
            self.withdraw_if_unwanted(ctx);
            return true;
        }
        match &mut self.phase {
            KeyPhase::Held(hold) => hold.leave(acquisition, ctx),
            _ => false,
        }
    }

    /// The server answered, or did not.
    pub(crate) fn reply(
        &mut self,
        token: Token,
        command: Command,
        sent: BootInstant,
        reply: Reply,
        ctx: &mut EventContext<'_, A>,
    ) {
        match &self.phase {
            KeyPhase::Contending(contender) if contender.token == token => {
                self.on_reply(command, sent, reply, ctx)
            }
            KeyPhase::Contending(contender) if contender.is_spare(token) => {
                self.spare_answered(token, command, sent, reply, ctx);
            }
            KeyPhase::Held(hold) if hold.is_under(token) => {
                self.on_reply_while_held(command, sent, reply, ctx)
            }
            KeyPhase::Yielding(yielding) if yielding.hold.is_under(token) => {
                self.on_yielded(command, sent, reply, ctx);
            }
            _ if self.keeps(token) => self.on_reply_while_retained(token, command, &reply, ctx),
            _ => Self::on_stale_reply(token, command, &reply, ctx),
        }
    }

    /// A message says that the token has been granted the lock. It proves nothing by its arrival. Returns whether the token means
    /// something here; if not, the lock is to be passed on.
    pub(crate) fn on_grant(&mut self, token: Token, offer: Grant, ctx: &mut EventContext<'_, A>) -> bool {
        if self.keeps(token) {
            return true;
        }
        match &self.phase {
            KeyPhase::Contending(contender) if contender.token == token => {
                self.on_grant_while_contending(offer, ctx)
            }
            KeyPhase::Yielding(yielding) if yielding.next == token => {
                self.on_grant_while_yielding(offer, ctx);
                true
            }
            KeyPhase::Held(hold) => hold.is_under(token),
            KeyPhase::Yielding(yielding) => yielding.hold.is_under(token),
            KeyPhase::Contending(_) | KeyPhase::Idle | KeyPhase::CoolingDown(_) => false,
        }
    }

    /// Something may be due.
    pub(crate) fn tick(&mut self, ctx: &mut EventContext<'_, A>) {
        let held = !matches!(self.phase, KeyPhase::Contending(_));
        let unheard = matches!(self.last_observed(), LastObserved::Nothing);
        let mut gave_up = Vec::new();
        let head_tries = self.queue.tick(ctx.now, held, unheard, |waiter| gave_up.push(waiter));
        self.refuse_all(gave_up, ctx);
        self.queue.tidy();
        self.withdraw_if_unwanted(ctx);
        match &mut self.phase {
            KeyPhase::Idle | KeyPhase::Yielding(_) => {}
            KeyPhase::CoolingDown(cooldown) => {
                if ctx.now >= cooldown.until {
                    self.phase = KeyPhase::Idle;
                }
            }
            KeyPhase::Contending(_) => self.recheck_queue(head_tries, ctx),
            KeyPhase::Held(_) => self.watch(ctx),
        }
        self.check_retained(ctx);
    }

    /// The server can be asked again, on a new connection: what was missed meanwhile is looked up. Where it is another server than
    /// before, which may not have all that the old one had, so is what is believed. What is held is due then, and [`tick`](Self::tick)
    /// sends it: there may be many.
    pub(crate) fn on_reconnect(&mut self, moved: bool, ctx: &mut EventContext<'_, A>) {
        if moved {
            self.on_primary_changed(ctx);
        }
        match &mut self.phase {
            KeyPhase::Idle | KeyPhase::Yielding(_) | KeyPhase::CoolingDown(_) => {}
            KeyPhase::Contending(contender) => {
                contender.note_invalidation();
                self.recheck_queue(true, ctx);
            }
            KeyPhase::Held(hold) => {
                hold.renew_if_overdue(moved, ctx);
                if ctx.rules.tracking {
                    hold.mark_unverified(ctx.now); // nobody told of changes meanwhile
                }
            }
        }
    }

    /// The manager takes no new work: nobody waits any longer.
    pub(crate) fn close(&mut self, ctx: &mut EventContext<'_, A>) {
        for waiter in self.queue.drain() {
            ctx.refuse(waiter.acquisition, AcquireFailure::Shutdown);
        }
        self.withdraw_if_unwanted(ctx);
    }

    /// Tells waiters why they do not get the lock.
    pub(super) fn refuse_all(&self, waiters: Vec<QueueEntry<A>>, ctx: &mut EventContext<'_, A>) {
        for waiter in waiters {
            self.refuse(waiter, ctx);
        }
    }

    /// Tells a waiter why it does not get the lock.
    pub(super) fn refuse(&self, waiter: QueueEntry<A>, ctx: &mut EventContext<'_, A>) {
        let refusal = self.last_observed().refusal(&waiter.retry_state, ctx.now);
        ctx.refuse(waiter.acquisition, refusal);
    }

    /// Answers that nobody here waits for: what they may have done is undone.
    pub(super) fn on_stale_reply(
        token: Token,
        command: Command,
        reply: &Reply,
        ctx: &mut EventContext<'_, A>,
    ) {
        match (command, reply) {
            (Command::Acquire { .. } | Command::Enqueue { .. }, Reply::Unknown(_))
            | (Command::Yield { .. }, Reply::Unknown(_) | Reply::Owner) => ctx.orphan(token),
            (Command::Acquire { .. } | Command::Enqueue { .. }, Reply::Owner | Reply::Queued { .. }) => {
                ctx.send(token, Command::Withdraw);
            }
            _ => {}
        }
    }
}

impl<A> KeyPhase<A> {
    /// Returns the seat of who has the key, asks for it, or has let go.
    pub(super) fn acquisition(&self) -> Option<&A> {
        match self {
            Self::Idle => None,
            Self::Contending(contender) => Some(&contender.acquisition),
            Self::Held(hold) => Some(&hold.acquisition),
            Self::Yielding(yielding) => Some(&yielding.hold.acquisition),
            Self::CoolingDown(cooldown) => Some(&cooldown.acquisition),
        }
    }
}

impl LastObserved {
    pub(super) fn refusal(&self, retry_state: &RetryState, now: BootInstant) -> AcquireFailure {
        let waited = now.since(retry_state.started());
        match self {
            Self::Nothing => AcquireFailure::NoAnswer { waited },
            Self::Taken(ttl) => {
                AcquireFailure::Contended { attempts: retry_state.attempts(), waited, ttl: *ttl }
            }
            Self::Failed(failure) => AcquireFailure::Failed(Failure::clone(failure)),
        }
    }
}

impl<A> EventContext<'_, A> {
    pub(super) fn send(&mut self, token: Token, command: Command) {
        self.actions.push(Action::Send { token, command });
    }

    pub(crate) fn refuse(&mut self, acquisition: A, refusal: AcquireFailure) {
        self.actions.push(Action::Reject { acquisition, refusal });
    }

    /// Returns a time of up to `most`, spread evenly.
    pub(super) fn at_random(&self, most: Duration) -> Duration {
        most.mul_f64(f64::from(self.tokens.draw()) / f64::from(u32::MAX))
    }

    pub(super) fn orphan(&mut self, token: Token) {
        self.actions.push(Action::Orphan { token });
    }
}

#[cfg(test)]
mod tests;
