//! One key's affairs in one process: who waits, who holds, what has been asked of the server and what it said.
//!
//! ```text
//!            join                      granted / ours
//!   Idle -----------> Asking --------------------------> Held ----> Idle
//!                       ^                                 |  release, nobody waits here
//!                       |          yielded                |
//!                       +------------------- Yielding <---+  release, the hand-off budget is used up
//! ```
//!
//! Events come in as methods, with the time in [`Cx`]; what is to be done goes out as [`Action`]s. Each stage's own rules are in
//! rooms of their own: `acquire` (Asking), `hold` (Held, Yielding), `share` (Away), `nesting`. Beside the stages, `keep` has what is
//! over and kept.
//!
//! Not here: locks, wake-ups, sockets (`engine`, `backend`).

use crate::error::LossCause;
use crate::key::LockKey;
use crate::protocol::Rules;
use crate::protocol::acquire::Asking;
use crate::protocol::command::{Command, Failure, Reply};
use crate::protocol::deadline::{BootTime, Deadline};
use crate::protocol::hold::{Hold, Left, Yielding};
use crate::protocol::patience::Patience;
use crate::protocol::queue::{LocalQueue, Waiter};
use crate::protocol::share::{Away, Offer};
use crate::token::{Token, TokenSource};
use std::time::Duration;

/// What this process knows of one key. `S` is a seat: one task's turn, told apart by equality. It knows the key; the lane does not, as
/// there is one for every lock that is held.
#[derive(Clone, Debug)]
pub(crate) struct Lane<S> {
    pub(super) queue: LocalQueue<S>,
    pub(super) stage: Stage<S>,
}

/// How far the process is with the key.
#[derive(Clone, Debug)]
pub(super) enum Stage<S> {
    /// Nothing is asked or held.
    Idle,
    /// The head of the queue contends for the lock.
    Asking(Asking<S>),
    /// A task has it.
    Held(Hold<S>),
    /// No task has it until the server says whether it is still ours.
    Yielding(Box<Yielding<S>>),
    /// Nothing is asked or held, and others are to have a chance.
    Away(Away<S>),
}

/// What was last heard of the lock, for those who must be told why they do not get it.
#[derive(Clone, Debug)]
pub(crate) enum Heard {
    /// Nothing yet.
    Nothing,
    /// It is held, for at least this long if nobody lets go or renews.
    Taken(Option<Duration>),
    /// The server could not be asked.
    Failed(Box<Failure>),
}

/// What an event comes with, and where its actions go.
pub(crate) struct Cx<'a, S> {
    pub(crate) now: BootTime,
    pub(crate) rules: &'a Rules,
    pub(crate) tokens: &'a TokenSource,
    pub(crate) actions: &'a mut Vec<Action<S>>,
    /// Whether another process had the lock when we queued up for it last, or took it when we offered it last: who asks queues up at
    /// once, and who hands on does not ask whether others wait. It may outlive the lane, or be forgotten.
    pub(crate) contended: &'a mut bool,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) enum Action<S> {
    /// Sends a command; its reply comes back by [`Lane::reply`].
    Send { token: Token, command: Command },
    /// The command under this token has an unknown outcome and nobody waits for it any more: its effect is to be undone.
    Abandon { token: Token },
    /// The seat's turn has come: it holds the lock until `deadline`, which renewals move, and not beyond `ends`.
    Admit {
        seat: S,
        #[cfg_attr(not(test), expect(dead_code, reason = "the simulation judges by it"))]
        token: Token,
        deadline: Deadline,
        ends: BootTime,
        /// Whether it is by a grant that the server has not confirmed.
        is_unconfirmed: bool,
        attempts: u32,
    },
    /// The seat may go on inside the hold that its call chain has.
    Join { seat: S },
    /// The seat does not get the lock.
    Refuse { seat: S, refusal: Refusal },
    /// The seat's hold goes on until `deadline`, and not beyond `ends`.
    Prolong { seat: S, deadline: Deadline, ends: BootTime },
    /// The seat's hold is over before its end. What it leaves in the server is the seat's to let go of, once its body is gone.
    Lose { seat: S, cause: LossCause, left: Option<Left> },
}

/// Why a seat does not get the lock.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    /// Another call has it.
    Contended { attempts: u32, waited: Duration, ttl: Option<Duration> },
    /// The server could not be asked.
    Failed(Failure),
    /// No answer came within the call's own limit.
    NoAnswer { waited: Duration },
    /// The manager takes no new work.
    Shutdown,
    /// The hold that it wanted to join is over.
    RootLost,
    /// It would wait for a call that waits for the lock `held`, which its own call chain has.
    Deadlock { held: LockKey },
}

impl<S: Clone + PartialEq> Lane<S> {
    pub(crate) fn new() -> Self {
        Self { queue: LocalQueue::new(), stage: Stage::Idle }
    }

    /// Returns whether nothing is left to remember.
    pub(crate) fn is_idle(&self) -> bool {
        self.seat().is_none()
    }

    /// Returns a time not later than the first at which [`tick`](Self::tick) has something to do.
    pub(crate) fn due(&self) -> BootTime {
        let stage = match &self.stage {
            Stage::Idle | Stage::Yielding(_) => BootTime::NEVER,
            Stage::Away(away) => away.until,
            Stage::Asking(asking) => asking.due(),
            Stage::Held(hold) => hold.due(),
        };
        stage.min(self.queue.due()).min(self.kept_due())
    }

    /// Returns the seat of somebody who wants the key, has it, or had it last, where there is one.
    pub(crate) fn seat(&self) -> Option<&S> {
        let of_kept = || self.queue.kept().first().map(|kept| &kept.seat);
        self.stage.seat().or_else(|| self.head()).or_else(of_kept)
    }

    /// Returns the seat whose turn it is next.
    pub(crate) fn head(&self) -> Option<&S> {
        self.queue.head().map(|head| &head.seat)
    }

    /// Returns how many tasks of this process wait for the lock.
    #[cfg(feature = "testing")]
    pub(crate) fn waiting(&self) -> usize {
        self.queue.count()
    }

    /// A task wants the lock.
    pub(crate) fn join(&mut self, mut waiter: Waiter<S>, cx: &mut Cx<'_, S>) {
        match &self.stage {
            Stage::Idle => {
                self.enlist(waiter);
                self.ask(cx);
            }
            Stage::Away(_) => self.join_while_away(waiter, cx),
            Stage::Asking(asking) if waiter.patience.is_once() && !asking.is_unanswered() => {
                self.refuse(waiter, cx);
            }
            Stage::Held(_) | Stage::Yielding(_) if waiter.patience.is_once() => self.refuse(waiter, cx),
            Stage::Asking(_) | Stage::Held(_) | Stage::Yielding(_) => {
                if !self.queue.is_empty() || matches!(self.stage, Stage::Held(_)) {
                    waiter.patience.not_yet(cx.now);
                }
                self.enlist(waiter);
            }
        }
    }

    /// Puts a waiter at the end of the queue.
    pub(super) fn enlist(&mut self, waiter: Waiter<S>) {
        let heard = self.unsaid();
        self.queue.push(waiter, heard);
    }

    /// Returns what has been heard of the lock last.
    pub(super) fn heard(&self) -> Heard {
        self.queue.heard().cloned().unwrap_or_else(|| self.unsaid())
    }

    /// Returns what the stage alone says of the lock.
    fn unsaid(&self) -> Heard {
        match self.stage {
            Stage::Held(_) | Stage::Yielding(_) => Heard::Taken(None),
            Stage::Idle | Stage::Asking(_) | Stage::Away(_) => Heard::Nothing,
        }
    }

    /// Returns the token under which the seat holds the lock, if it does.
    pub(crate) fn token_of(&self, seat: &S, cx: &Cx<'_, S>) -> Option<Token> {
        match &self.stage {
            Stage::Held(hold) if hold.seat == *seat => Some(hold.token(cx)),
            _ => None,
        }
    }

    /// A task that waits does not want the lock any more. Returns whether it was waiting.
    pub(crate) fn leave(&mut self, seat: &S, cx: &mut Cx<'_, S>) -> bool {
        if self.queue.remove(seat).is_some() {
            self.stop_asking_for_nobody(cx);
            return true;
        }
        match &mut self.stage {
            Stage::Held(hold) => hold.leave(seat, cx),
            _ => false,
        }
    }

    /// The server answered, or did not.
    pub(crate) fn reply(
        &mut self,
        token: Token,
        command: Command,
        sent: BootTime,
        reply: Reply,
        cx: &mut Cx<'_, S>,
    ) {
        match &self.stage {
            Stage::Asking(asking) if asking.token == token => self.asked(command, sent, reply, cx),
            Stage::Asking(asking) if asking.is_spare(token) => {
                self.spare_answered(token, command, sent, reply, cx);
            }
            Stage::Held(hold) if hold.is_under(token) => self.answered_while_held(command, sent, reply, cx),
            Stage::Yielding(yielding) if yielding.hold.is_under(token) => {
                self.yielded(command, sent, reply, cx);
            }
            _ if self.keeps(token) => self.answered_while_kept(token, command, &reply, cx),
            _ => Self::reply_to_the_dead(token, command, &reply, cx),
        }
    }

    /// A message says that the token has been granted the lock. It proves nothing by its arrival. Returns whether the token means
    /// something here; if not, the lock is to be passed on.
    pub(crate) fn granted(&mut self, token: Token, offer: Offer, cx: &mut Cx<'_, S>) -> bool {
        if self.keeps(token) {
            return true;
        }
        match &self.stage {
            Stage::Asking(asking) if asking.token == token => self.granted_while_asking(offer, cx),
            Stage::Yielding(yielding) if yielding.next == token => {
                self.granted_before_the_yield_is_answered(offer, cx);
                true
            }
            Stage::Held(hold) => hold.is_under(token),
            Stage::Yielding(yielding) => yielding.hold.is_under(token),
            Stage::Asking(_) | Stage::Idle | Stage::Away(_) => false,
        }
    }

    /// Something may be due.
    pub(crate) fn tick(&mut self, cx: &mut Cx<'_, S>) {
        let held = !matches!(self.stage, Stage::Asking(_));
        let unheard = matches!(self.heard(), Heard::Nothing);
        let mut gave_up = Vec::new();
        let head_tries = self.queue.tick(cx.now, held, unheard, |waiter| gave_up.push(waiter));
        self.refuse_all(gave_up, cx);
        self.queue.tidy();
        self.stop_asking_for_nobody(cx);
        match &mut self.stage {
            Stage::Idle | Stage::Yielding(_) => {}
            Stage::Away(away) => {
                if cx.now >= away.until {
                    self.stage = Stage::Idle;
                }
            }
            Stage::Asking(_) => self.ask_again(head_tries, cx),
            Stage::Held(_) => self.watch(cx),
        }
        self.watch_kept(cx);
    }

    /// The server can be asked again, on a new connection: what was missed meanwhile is looked up. Where it is another server than
    /// before, which may not have all that the old one had, so is what is believed. What is held is due then, and [`tick`](Self::tick)
    /// sends it: there may be many.
    pub(crate) fn reconnected(&mut self, moved: bool, cx: &mut Cx<'_, S>) {
        if moved {
            self.tell_another_server(cx);
        }
        match &mut self.stage {
            Stage::Idle | Stage::Yielding(_) | Stage::Away(_) => {}
            Stage::Asking(asking) => {
                asking.note_hint();
                self.ask_again(true, cx);
            }
            Stage::Held(hold) => {
                hold.renew_if_overdue(moved, cx);
                if cx.rules.tracking {
                    hold.doubt(cx.now); // nobody told of changes meanwhile
                }
            }
        }
    }

    /// The manager takes no new work: nobody waits any longer.
    pub(crate) fn close(&mut self, cx: &mut Cx<'_, S>) {
        for waiter in self.queue.drain() {
            cx.refuse(waiter.seat, Refusal::Shutdown);
        }
        self.stop_asking_for_nobody(cx);
    }

    /// Tells waiters why they do not get the lock.
    pub(super) fn refuse_all(&self, waiters: Vec<Waiter<S>>, cx: &mut Cx<'_, S>) {
        for waiter in waiters {
            self.refuse(waiter, cx);
        }
    }

    /// Tells a waiter why it does not get the lock.
    pub(super) fn refuse(&self, waiter: Waiter<S>, cx: &mut Cx<'_, S>) {
        let refusal = self.heard().refusal(&waiter.patience, cx.now);
        cx.refuse(waiter.seat, refusal);
    }

    /// Answers that nobody here waits for: what they may have done is undone.
    pub(super) fn reply_to_the_dead(token: Token, command: Command, reply: &Reply, cx: &mut Cx<'_, S>) {
        match (command, reply) {
            (Command::Acquire { .. } | Command::Enqueue { .. }, Reply::Unknown(_))
            | (Command::Yield { .. }, Reply::Unknown(_) | Reply::Ours) => cx.abandon(token),
            (Command::Acquire { .. } | Command::Enqueue { .. }, Reply::Ours | Reply::Queued { .. }) => {
                cx.send(token, Command::Leave);
            }
            _ => {}
        }
    }
}

impl<S> Stage<S> {
    /// Returns the seat of who has the key, asks for it, or has let go.
    pub(super) fn seat(&self) -> Option<&S> {
        match self {
            Self::Idle => None,
            Self::Asking(asking) => Some(&asking.seat),
            Self::Held(hold) => Some(&hold.seat),
            Self::Yielding(yielding) => Some(&yielding.hold.seat),
            Self::Away(away) => Some(&away.seat),
        }
    }
}

impl Heard {
    pub(super) fn refusal(&self, patience: &Patience, now: BootTime) -> Refusal {
        let waited = now.since(patience.started());
        match self {
            Self::Nothing => Refusal::NoAnswer { waited },
            Self::Taken(ttl) => Refusal::Contended { attempts: patience.attempts(), waited, ttl: *ttl },
            Self::Failed(failure) => Refusal::Failed(Failure::clone(failure)),
        }
    }
}

impl<S> Cx<'_, S> {
    pub(super) fn send(&mut self, token: Token, command: Command) {
        self.actions.push(Action::Send { token, command });
    }

    pub(crate) fn refuse(&mut self, seat: S, refusal: Refusal) {
        self.actions.push(Action::Refuse { seat, refusal });
    }

    /// Returns a time of up to `most`, spread evenly.
    pub(super) fn at_random(&self, most: Duration) -> Duration {
        most.mul_f64(f64::from(self.tokens.draw()) / f64::from(u32::MAX))
    }

    pub(super) fn abandon(&mut self, token: Token) {
        self.actions.push(Action::Abandon { token });
    }
}

#[cfg(test)]
mod tests;
