//! What a task that holds the lock does with it: it is renewed, lost, handed on, yielded, or released.
//!
//! Not here: how a task comes to hold (`acquire`), when a renewal is due (`renew`), calls inside the hold (`nesting`).

use std::time::Duration;

use crate::error::LossCause;
use crate::protocol::command::{Command, FailureKind, Reply};
use crate::protocol::deadline::{BootTime, Deadline};
use crate::protocol::lane::{Action, Cx, Lane, Stage};
use crate::protocol::nesting::Levels;
use crate::protocol::queue::Waiter;
use crate::protocol::{acquire, renew};
use crate::token::Token;

/// A lock that a task of this process has.
#[derive(Clone, Debug)]
pub(crate) struct Hold<S> {
    pub(super) seat: S,
    pub(super) token: Token,
    pub(super) lease: Duration,
    renew: bool,
    deadline: Deadline,
    /// Since when the tasks of this process have it without a break; the hand-off budget counts from here.
    since: BootTime,
    /// When the next renewal (or confirmation) is to be sent.
    next_renewal: BootTime,
    /// Whether the last renewal got no answer.
    overdue: bool,
    pub(super) levels: Levels<S>,
}

/// A lock that was ours and is on offer to other processes.
#[derive(Clone, Debug)]
pub(crate) struct Yielding<S> {
    /// The hold as it was when its last task let go; nobody runs on it.
    pub(super) hold: Hold<S>,
    /// The token under which we wait for our next turn, if somebody takes the offer.
    pub(super) next: Token,
}

/// What a release comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// The server is to be told: release this token.
    ToServer(Token),
    /// A task of this process has it now, or will.
    Kept,
    /// The seat did not hold.
    NotHeld,
}

impl<S: Clone + PartialEq> Hold<S> {
    pub(super) fn new(waiter: Waiter<S>, token: Token, deadline: Deadline, since: BootTime) -> Self {
        Self {
            seat: waiter.seat,
            token,
            lease: waiter.lease,
            renew: waiter.renew,
            deadline,
            since,
            next_renewal: BootTime::NEVER,
            overdue: false,
            levels: Levels::new(),
        }
    }

    pub(super) fn due(&self) -> BootTime {
        self.next_renewal.min(self.deadline.at()).min(self.levels.due())
    }

    /// Asks the server to confirm a grant that has been believed already.
    pub(super) fn confirm(&mut self, cx: &mut Cx<'_, S>) {
        self.next_renewal = BootTime::NEVER;
        cx.send(self.token, Command::Renew { lease: self.lease });
    }

    /// The server has confirmed the hold, as asked at `sent`.
    pub(super) fn confirmed(&mut self, sent: BootTime, lease: Duration) {
        self.deadline = self.deadline.or_later(Deadline::of_lease(sent, lease));
        self.overdue = false;
        // An `extend` asks for a lease of its own and leaves the watchdog's rhythm alone.
        if lease == self.lease {
            self.next_renewal = if self.renew { renew::due(sent, lease) } else { BootTime::NEVER };
        }
    }

    /// Renews at once where an answer is missing.
    pub(super) fn renew_if_overdue(&mut self, cx: &mut Cx<'_, S>) {
        if self.overdue && self.next_renewal != BootTime::NEVER {
            self.confirm(cx);
        }
    }

    /// Returns whether `next` can have the lock without asking the server: it would ask for just what stands there.
    fn passes_to(&self, next: &Waiter<S>, now: BootTime) -> bool {
        self.renew && next.renew && next.lease == self.lease && self.deadline.at().since(now) > self.lease / 2
    }
}

impl<S: Clone + PartialEq> Lane<S> {
    /// The seat lets go of the lock.
    pub(crate) fn release(&mut self, seat: &S, cx: &mut Cx<'_, S>) -> Released {
        let Stage::Held(hold) = &mut self.stage else { return Released::NotHeld };
        if hold.seat != *seat {
            return Released::NotHeld;
        }
        hold.levels.close(cx);
        let token = hold.token;
        let Some(next) = self.queue.head() else {
            self.stage = Stage::Idle;
            return Released::ToServer(token);
        };
        if !hold.deadline.holds_at(cx.now) {
            cx.send(token, Command::Release);
            self.ask(cx);
            return Released::Kept;
        }
        if cx.now.since(hold.since) >= cx.rules.hand_off {
            self.offer_to_others(cx);
        } else if hold.passes_to(next, cx.now) {
            self.hand_on(cx);
        } else {
            let lease = next.lease;
            self.confirm_for(token, lease, cx);
        }
        Released::Kept
    }

    /// Gives the hold to the head of the local queue, in memory: the token, its renewal on its way and its deadline go with it.
    fn hand_on(&mut self, cx: &mut Cx<'_, S>) {
        let Stage::Held(hold) = &mut self.stage else { return };
        let Some(next) = self.queue.pop() else { return };
        hold.seat = next.seat.clone();
        cx.actions.push(Action::Admit {
            seat: next.seat,
            token: hold.token,
            deadline: hold.deadline,
            attempts: next.patience.attempts(),
        });
    }

    /// The hand-off budget is used up: other processes get their turn, if any waits. From here on no body runs under the old
    /// token until the server says that the lock was kept.
    fn offer_to_others(&mut self, cx: &mut Cx<'_, S>) {
        let Stage::Held(hold) = &self.stage else { return };
        let next = cx.tokens.next();
        cx.send(hold.token, Command::Yield { next });
        self.stage = Stage::Yielding(Yielding { hold: hold.clone(), next });
    }

    /// The answer to a yield.
    pub(super) fn yielded(&mut self, command: Command, sent: BootTime, reply: Reply, cx: &mut Cx<'_, S>) {
        let Stage::Yielding(Yielding { hold, next }) = &mut self.stage else { return };
        let (old, next) = (hold.token, *next);
        match (command, reply) {
            (Command::Renew { lease }, Reply::Ours) => hold.confirmed(sent, lease),
            (Command::Yield { .. }, Reply::Ours) => {
                let Some(head) = self.queue.head() else { return };
                if hold.passes_to(head, cx.now) {
                    hold.since = cx.now;
                    self.stage = Stage::Held(hold.clone());
                    self.hand_on(cx);
                } else {
                    let lease = head.lease;
                    self.confirm_for(old, lease, cx);
                }
            }
            (Command::Yield { .. }, Reply::Yielded) => self.queued_by_yield(next, sent, cx),
            (Command::Yield { .. }, Reply::NotOurs) => self.ask(cx),
            (Command::Yield { .. }, Reply::Unknown(failure)) => {
                cx.abandon(old);
                cx.abandon(next);
                self.failed(failure, cx);
            }
            (Command::Yield { .. }, Reply::Refused(failure)) => {
                cx.abandon(old);
                self.failed(failure, cx);
            }
            _ => {}
        }
    }

    /// The yield queued our next token: that counts as an enqueue answered "queued".
    fn queued_by_yield(&mut self, next: Token, sent: BootTime, cx: &Cx<'_, S>) {
        let recheck = sent.plus(cx.rules.grant_lease / 2);
        let step = acquire::Step::Queued { proof: sent, recheck, asked: false };
        self.stage = Stage::Asking(acquire::Asking { token: next, step });
    }

    /// A grant for the yield's next token came before the yield's own answer: it is a grant, and that answer says nothing new.
    pub(super) fn granted_before_the_yield_is_answered(&mut self, cx: &mut Cx<'_, S>) {
        let (Stage::Yielding(yielding), Some(lease)) = (&self.stage, self.head_lease()) else { return };
        let next = yielding.next;
        self.confirm_for(next, lease, cx);
    }

    /// An answer that concerns the present hold.
    pub(super) fn answered_while_held(
        &mut self,
        command: Command,
        sent: BootTime,
        reply: Reply,
        cx: &mut Cx<'_, S>,
    ) {
        let Stage::Held(hold) = &mut self.stage else { return };
        match (command, reply) {
            (Command::Renew { lease }, Reply::Ours) => {
                hold.confirmed(sent, lease);
                cx.actions.push(Action::Prolong { seat: hold.seat.clone(), deadline: hold.deadline });
            }
            (Command::Renew { .. } | Command::Fence, Reply::NotOurs) => self.lose(LossCause::NotOurs, cx),
            (Command::Renew { .. }, Reply::Refused(failure)) if failure.kind == FailureKind::WrongKind => {
                self.lose(LossCause::NotOurs, cx);
            }
            (Command::Renew { lease }, Reply::Unknown(_) | Reply::Refused(_)) if lease == hold.lease => {
                hold.overdue = true;
                hold.next_renewal = renew::retry_at(cx.now, lease, hold.deadline.at().since(cx.now));
            }
            _ => {} // the answer to an enqueue that a grant overtook
        }
    }

    /// Renews what is due and gives up what cannot be believed any more.
    pub(super) fn watch(&mut self, cx: &mut Cx<'_, S>) {
        let Stage::Held(hold) = &mut self.stage else { return };
        if !hold.deadline.holds_at(cx.now) {
            self.lose(LossCause::Expired, cx);
            return;
        }
        hold.levels.tick(cx);
        if cx.now >= hold.next_renewal {
            hold.confirm(cx);
        }
    }

    /// The hold is over before its end. What may be left of it on the server is released; those who wait here ask anew.
    pub(crate) fn lose(&mut self, cause: LossCause, cx: &mut Cx<'_, S>) {
        let Stage::Held(hold) = &mut self.stage else { return };
        hold.levels.close(cx);
        cx.actions.push(Action::Lose { seat: hold.seat.clone(), cause });
        if cause != LossCause::NotOurs {
            cx.send(hold.token, Command::Release);
        }
        self.ask(cx);
    }
}
