//! How the head of the local queue gets the lock: it tries, queues up in the server, waits, and confirms.
//!
//! ```text
//!  Trying --ours--------------------------------------------------> held
//!    |taken                                                           ^
//!    v            queued      granted, two round trips left           |
//!  Enqueuing ---------------> Queued ---------------------------------+
//!    | full, foreign          |  ^ |granted with less, or no proof    |
//!    v                  gone: |  | v                         ours     |
//!  Paused --> Trying   Enqueuing  +-- Confirming ---------------------+
//!                      or Trying, where the spare is on its way
//! ```
//!
//! Two rules carry the safety. A token is added to a value at most once in its life, by its first enqueue, so it is granted at most
//! once. And a grant is counted from what is *proved*: it came after the last enqueue that was answered "queued" was sent, so the
//! hold ends a grant lease after that, however late the message arrives. Where a message can reach one who was not given what it tells
//! of (a cluster, Sentinel), or replicas count, it is confirmed before anybody starts. So is a grant of which less than two measured
//! round trips remain: the answer that confirms it could come after its end. A confirmation that is denied costs time and nothing
//! else, since no body has started: the contender asks whether it is still queued.
//!
//! Not here: when who is queued asks whether it still is, and what follows that question (`inquiry`); what a holder does (`hold`), how long
//! a call waits (`patience`).

use std::time::Duration;

use crate::protocol::budget::Budget;
use crate::protocol::command::{Command, Enqueue, Failure, FailureKind, Reply};
use crate::protocol::deadline::{BootTime, Deadline};
use crate::protocol::hold::Hold;
use crate::protocol::inquiry::{Inquiry, RESOLUTION};
use crate::protocol::lane::{Cx, Heard, Lane, Refusal, Stage};
use crate::protocol::queue::Waiter;
use crate::protocol::round_trip::RoundTrip;
use crate::protocol::share::{Offer, Streak};
use crate::token::Token;

/// One contender: a token and how far it has come.
#[derive(Clone, Debug)]
pub(crate) struct Asking<S> {
    /// Who was the first to wait when it began, or had the lock before; nobody may want it any more.
    pub(super) seat: S,
    pub(super) token: Token,
    pub(super) step: Step,
    /// For how long our family has had the lock, as far as is known, when this contender gets it.
    pub(super) streak: Streak,
    /// Whether somebody may have changed the key since it was asked about.
    pub(super) hinted: bool,
    /// What the answers "queued" measured.
    pub(super) round_trip: RoundTrip,
}

/// How far the contender has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The acquire is on its way.
    Trying,
    /// The first enqueue is on its way. (A peek too: it may take the lock, but never queues.)
    Enqueuing(Enqueue),
    /// The token stands in the queue.
    Queued {
        /// When the last enqueue that was answered "queued" was sent: the one grant of the token came after it.
        proof: BootTime,
        /// Whether it still does, if no grant comes.
        inquiry: Inquiry,
    },
    /// The lock may be ours; the body waits for the answer that says so.
    Confirming {
        /// What is left of the budget of a task of this process that had it before.
        budget: Option<Budget>,
        /// Whether changes were told of while that task had it.
        is_watched: bool,
    },
    /// Nothing is asked for a while.
    Paused {
        /// When the next look is due.
        until: BootTime,
        /// A hint does not bring it forward any further than to this.
        earliest: BootTime,
    },
}

impl Step {
    /// The token stands in the queue, as is proved by what was sent then, and asks again at a time.
    pub(super) const fn queued(proof: BootTime, at: BootTime) -> Self {
        Self::Queued { proof, inquiry: Inquiry::at(at) }
    }
}

impl<S> Asking<S> {
    pub(super) const fn new(seat: S, token: Token, step: Step, streak: Streak) -> Self {
        Self { seat, token, step, streak, hinted: false, round_trip: RoundTrip::UNKNOWN }
    }

    pub(super) fn due(&self) -> BootTime {
        match self.step {
            Step::Queued { inquiry, .. } => inquiry.due(),
            Step::Paused { until, .. } => until,
            _ => BootTime::NEVER,
        }
    }

    /// Returns whether the contender has not heard yet how the lock stands.
    pub(super) fn is_unanswered(&self) -> bool {
        !matches!(self.step, Step::Queued { .. } | Step::Paused { .. })
    }
}

impl<S: Clone + PartialEq> Lane<S> {
    /// Starts a fresh attempt for the head, under a token that was never used: a late effect of an older attempt cannot touch it. Where
    /// others wanted the lock a moment ago the head queues up at once, if it will wait: what queues it takes a free lock, too, and what
    /// only tries would have to be asked before, for a trip.
    pub(super) fn ask(&mut self, cx: &mut Cx<'_, S>) {
        let Some(head) = self.queue.head() else {
            self.stage = Stage::Idle;
            return;
        };
        let (token, streak) = (cx.tokens.next(), self.stage.streak(cx.now));
        if *cx.contended && head.patience.stays(cx.now) {
            return self.enqueue(token, streak, cx);
        }
        let (seat, lease) = (head.seat.clone(), head.terms.lease());
        self.stage = Stage::Asking(Asking::new(seat, token, Step::Trying, streak));
        cx.send(token, Command::Acquire { lease });
    }

    /// An answer to the contender's command.
    pub(super) fn asked(&mut self, command: Command, sent: BootTime, reply: Reply, cx: &mut Cx<'_, S>) {
        if let Command::Inspect | Command::Check | Command::Fence = command {
            return; // it was asked by a hold that is over
        }
        let Stage::Asking(Asking { seat: whose, token, step, streak, hinted, round_trip }) = &mut self.stage
        else {
            return;
        };
        let (token, hinted) = (*token, *hinted);
        if let Step::Queued { .. } = step {
            *streak = Streak::UNKNOWN; // whoever lets go knows it, and tells it with the grant
        }
        // Who wanted a place and has none, in a full queue or as nobody can be told of grants, tries next. A look wants none.
        if let (
            Step::Enqueuing(Enqueue::First),
            Command::Enqueue { .. },
            Reply::Ours | Reply::Queued { .. } | Reply::NotQueued { .. },
        ) = (*step, command, &reply)
        {
            *cx.contended = matches!(reply, Reply::Queued { .. });
        }
        match (*step, command, reply) {
            (Step::Trying, Command::Acquire { lease }, Reply::Ours)
            | (Step::Enqueuing(_), Command::Enqueue { lease, .. }, Reply::Ours)
            | (
                Step::Queued { .. } | Step::Confirming { .. },
                Command::Enqueue { lease, mode: Enqueue::Again },
                Reply::Ours,
            )
            | (Step::Confirming { .. }, Command::Renew { lease }, Reply::Ours) => {
                self.ours(token, sent, lease, cx);
            }

            (Step::Trying, Command::Acquire { .. }, Reply::Taken) => {
                self.queue.hear(Heard::Taken(None));
                let streak = *streak;
                self.refuse_who_only_asks_whether(cx);
                self.enqueue(token, streak, cx);
            }

            (Step::Enqueuing(_), Command::Enqueue { .. }, Reply::Queued { ttl })
            | (Step::Queued { .. }, Command::Enqueue { .. }, Reply::Queued { ttl }) => {
                let before = *step;
                *round_trip = round_trip.measured(sent, cx.now);
                *step = Step::Queued { proof: sent, inquiry: Inquiry::answered(before, sent, ttl, cx) };
                if let Step::Queued { inquiry: Inquiry::Behind(_), .. } = step {
                    return; // a call on its last try may have the lock yet
                }
                self.taken(ttl, cx);
                self.stop_asking_for_nobody(cx);
            }
            // Who looked has its answer by that; who is the head now may want to wait.
            (Step::Enqueuing(Enqueue::Peek), Command::Enqueue { .. }, Reply::NotQueued { ttl }) => {
                self.taken(ttl, cx);
                self.ask(cx);
            }
            (Step::Enqueuing(_), Command::Enqueue { .. }, Reply::NotQueued { ttl }) => {
                self.taken(ttl, cx);
                self.pause(ttl, cx);
                if hinted {
                    self.touched(cx); // the answer may be older than what the hint was about
                }
            }
            // Nobody queues there, and nobody tells whether what was to be confirmed is ours: it would be in our own way for a lease.
            (Step::Queued { .. }, Command::Enqueue { .. }, Reply::NotQueued { ttl }) => {
                cx.send(token, Command::Release);
                self.taken(ttl, cx);
                self.pause(ttl, cx);
            }
            (Step::Queued { inquiry, .. }, Command::Enqueue { .. }, Reply::Gone) => {
                // The queue expired, or gave way, or somebody overwrote it. This token is dead; a fresh one takes its place, or has.
                match (inquiry, cx.rules.yield_to_foreign) {
                    (Inquiry::UnderWay { spare: Some(spare) }, _) => {
                        let (whose, spare) = (whose.clone(), cx.tokens.numbered(spare.get()));
                        self.stage = Stage::Asking(Asking::new(whose, spare, Step::Trying, Streak::UNKNOWN));
                    }
                    (_, false) => self.enqueue(cx.tokens.next(), Streak::UNKNOWN, cx),
                    (_, true) => {
                        let whose = whose.clone();
                        self.stay_away(&whose, cx);
                    }
                }
            }
            (Step::Confirming { .. }, Command::Renew { .. }, Reply::NotOwner) => {
                // Not granted, or the grant has ended: whether the token is still queued is for the server to say.
                *step = Step::queued(BootTime::START, cx.now);
                self.ask_again(true, cx);
            }

            (_, _, Reply::Refused(failure)) => self.unanswered(command, failure, false, cx),
            (_, _, Reply::Unknown(failure)) => self.unanswered(command, failure, true, cx),
            _ => {} // an older command's answer, which the step that came since has made void
        }
    }

    /// The contender's command did not run, or nobody knows whether it has: then `may_have_run`.
    fn unanswered(&mut self, command: Command, failure: Failure, may_have_run: bool, cx: &mut Cx<'_, S>) {
        let Stage::Asking(asking) = &mut self.stage else { return };
        let proof = match (asking.step, command) {
            (Step::Trying | Step::Enqueuing(_), _) => {
                let token = asking.token;
                if may_have_run {
                    cx.abandon(token);
                }
                if failure.connection_lost {
                    return self.try_again(token, failure, cx);
                }
                return self.failed(failure, cx);
            }
            (Step::Queued { .. } | Step::Confirming { .. }, _) if failure.kind != FailureKind::Passing => {
                asking.leave(cx);
                return self.failed(failure, cx);
            }
            (Step::Queued { proof, .. }, Command::Enqueue { .. }) => proof,
            (Step::Confirming { .. }, Command::Renew { .. }) => BootTime::START,
            _ => return, // an older command's, which the step that came since has made void
        };
        asking.step = Step::queued(proof, cx.now.plus(cx.rules.grant_lease / 8));
        self.still_queued_but_unheard(failure, cx);
    }

    /// The connection was lost with the contender's command under way. The command may have run, so its token is given up, and what it may
    /// have taken is given back first; the calls that have not done so yet try again at once, under a new token.
    fn try_again(&mut self, token: Token, failure: Failure, cx: &mut Cx<'_, S>) {
        let mut gave_up = Vec::new();
        self.queue.hear(Heard::Failed(Box::new(failure.clone())));
        let tries_again = self.queue.try_again(cx.now, |waiter| gave_up.push(waiter));
        self.refuse_all(gave_up, cx);
        self.queue.tidy();
        if tries_again {
            cx.send(token, Command::Leave);
            self.ask(cx);
        } else {
            self.failed(failure, cx);
        }
    }

    /// A message says that the contender's token has been granted the lock. Whoever let go chose for how long, and his settings may
    /// differ from ours; a grant for no time at all is as good as one that has ended, and looked into. Returns whether the token can
    /// have been granted at all.
    pub(super) fn granted_while_asking(&mut self, offer: Offer, cx: &mut Cx<'_, S>) -> bool {
        let lease = self.head_lease();
        let Stage::Asking(Asking { token, step, streak, round_trip, .. }) = &mut self.stage else {
            return false;
        };
        let (token, Some(lease)) = (*token, lease) else { return false };
        match *step {
            Step::Queued { proof, .. } => {
                *streak = offer.streak;
                let deadline = Deadline::of_lease(proof, offer.lease.min(cx.rules.grant_lease));
                // What replicas must have, too, they have once the confirmation is answered.
                let is_proof = cx.rules.told_is_given && cx.rules.replica_acks == 0;
                let left = deadline.at().since(cx.now);
                if is_proof && deadline.holds_at(cx.now) && round_trip.fits_twice_into(left) {
                    self.admit(token, deadline, true, cx);
                    if let Stage::Held(hold) = &mut self.stage {
                        hold.confirm_grant(cx);
                    }
                } else {
                    *step = Step::Confirming { budget: None, is_watched: false };
                    cx.send(token, Command::Renew { lease });
                }
                true
            }
            // The message overtook the answer to the enqueue.
            Step::Enqueuing(Enqueue::First) => {
                *streak = offer.streak;
                *step = Step::Confirming { budget: None, is_watched: false };
                cx.send(token, Command::Renew { lease });
                true
            }
            Step::Confirming { .. } => true,
            Step::Trying | Step::Enqueuing(_) | Step::Paused { .. } => false,
        }
    }

    /// Asks again where the time for it has come, or where `now_please`: a try of the head is due, or a connection is new.
    pub(super) fn ask_again(&mut self, now_please: bool, cx: &mut Cx<'_, S>) {
        let lease = self.head_lease();
        let Stage::Asking(asking) = &mut self.stage else { return };
        let due = now_please || cx.now >= asking.due();
        match (&mut asking.step, lease) {
            (Step::Queued { proof, inquiry }, Some(lease)) if due => {
                inquiry.ask(asking.token, *proof, lease, cx);
            }
            (Step::Paused { .. }, _) if due => self.ask(cx),
            _ => {}
        }
    }

    /// Ends a contention that nobody here wants any more. An acquire on its way is waited for: most are refused, and a task that
    /// comes meanwhile can use it.
    pub(super) fn stop_asking_for_nobody(&mut self, cx: &mut Cx<'_, S>) {
        if !self.queue.is_empty() {
            return;
        }
        match &self.stage {
            Stage::Asking(Asking { step: Step::Trying | Step::Enqueuing(Enqueue::Peek), .. })
            | Stage::Idle
            | Stage::Held(_)
            | Stage::Away(_) => {}
            Stage::Asking(Asking { step: Step::Paused { .. }, .. }) => self.stage = Stage::Idle,
            Stage::Asking(asking) => {
                asking.leave(cx);
                self.stage = Stage::Idle;
            }
            Stage::Yielding(yielding) => {
                cx.send(yielding.hold.token(cx), Command::Leave);
                cx.send(yielding.next, Command::Leave);
                self.stage = Stage::Idle;
            }
        }
    }

    /// The lock is ours since `sent`, for `lease`.
    fn ours(&mut self, token: Token, sent: BootTime, lease: Duration, cx: &mut Cx<'_, S>) {
        match self.head_lease() {
            None => {
                cx.send(token, Command::Release);
                self.stage = Stage::Idle;
            }
            Some(wanted) if wanted == lease && !Deadline::of_lease(sent, lease).holds_at(cx.now) => {
                cx.send(token, Command::Release);
                let late =
                    Failure::new(FailureKind::Passing, "the server's answer took longer than the lease");
                self.failed(late, cx);
            }
            Some(wanted) if wanted == lease => {
                self.admit(token, Deadline::of_lease(sent, lease), false, cx);
                if let Stage::Held(hold) = &mut self.stage {
                    hold.confirmed(sent, lease, cx);
                }
            }
            Some(_) => self.confirm_for_head(token, cx),
        }
    }

    /// Prolongs a lock that is ours to the lease of the task that gets it, before that task starts.
    pub(super) fn confirm_for_head(&mut self, token: Token, cx: &mut Cx<'_, S>) {
        let Some(head) = self.queue.head() else { return };
        let (seat, lease) = (head.seat.clone(), head.terms.lease());
        // A task that follows another one goes on with its budget, from whose begin the streak is counted on.
        let (streak, budget) = match &self.stage {
            Stage::Held(hold) => hold.streak_and_budget(),
            Stage::Asking(Asking { step: Step::Confirming { budget, .. }, streak, .. }) => (*streak, *budget),
            stage => (stage.streak(cx.now), None),
        };
        let step = Step::Confirming { budget, is_watched: self.is_watched() };
        self.stage = Stage::Asking(Asking::new(seat, token, step, streak));
        cx.send(token, Command::Renew { lease });
    }

    /// The head's turn has come. `is_unconfirmed`: by a grant that the server has not confirmed.
    fn admit(&mut self, token: Token, deadline: Deadline, is_unconfirmed: bool, cx: &mut Cx<'_, S>) {
        let Some(head) = self.queue.head() else { return };
        let mut hold = Hold::new(head, token, deadline, self.stage.streak(cx.now), cx);
        hold.granted = is_unconfirmed;
        if let Stage::Asking(Asking { step: Step::Confirming { budget: Some(budget), .. }, .. }) = self.stage
        {
            hold.go_on_with(budget);
        }
        cx.actions.push(hold.admits(head, cx));
        self.stage = Stage::Held(hold);
        self.queue.advance();
        self.queue.hear(Heard::Taken(None));
        let mut gave_up = Vec::new();
        self.queue.refuse_once(|waiter| gave_up.push(waiter));
        self.refuse_all(gave_up, cx);
        self.queue.tidy();
    }

    /// Tells who only asks whether it gets the lock that it does not, and has no use for a look at what stands there.
    fn refuse_who_only_asks_whether(&mut self, cx: &mut Cx<'_, S>) {
        while self.queue.head().is_some_and(|head| head.patience.only_asks_whether()) {
            let Some(Waiter { seat, patience, .. }) = self.queue.pop() else { return };
            cx.refuse(seat, Heard::Taken(None).refusal(&patience, cx.now));
        }
    }

    /// Queues up where the head will wait, and else looks what stands there.
    fn enqueue(&mut self, token: Token, streak: Streak, cx: &mut Cx<'_, S>) {
        let Some(head) = self.queue.head() else {
            self.stage = Stage::Idle;
            return;
        };
        let mode = if head.patience.stays(cx.now) { Enqueue::First } else { Enqueue::Peek };
        let (seat, lease) = (head.seat.clone(), head.terms.lease());
        self.stage = Stage::Asking(Asking::new(seat, token, Step::Enqueuing(mode), streak));
        cx.send(token, Command::Enqueue { lease, mode });
    }

    /// The lock is held by somebody else.
    pub(super) fn taken(&mut self, ttl: Option<Duration>, cx: &mut Cx<'_, S>) {
        self.queue.hear(Heard::Taken(ttl));
        self.tell_not_yet(cx);
    }

    /// The server could not be asked.
    pub(super) fn failed(&mut self, failure: Failure, cx: &mut Cx<'_, S>) {
        let lasting = failure.kind != FailureKind::Passing;
        if lasting {
            for waiter in self.queue.drain() {
                cx.refuse(waiter.seat, Refusal::Failed(failure.clone()));
            }
            self.stage = Stage::Idle;
            return;
        }
        self.queue.hear(Heard::Failed(Box::new(failure)));
        self.tell_not_yet(cx);
        self.pause(None, cx);
    }

    /// The token is in the queue as far as we know, but the server did not say so.
    pub(super) fn still_queued_but_unheard(&mut self, failure: Failure, cx: &mut Cx<'_, S>) {
        self.queue.hear(Heard::Failed(Box::new(failure)));
        self.tell_not_yet(cx);
        self.stop_asking_for_nobody(cx);
    }

    fn tell_not_yet(&mut self, cx: &mut Cx<'_, S>) {
        let mut gave_up = Vec::new();
        self.queue.not_yet(cx.now, |waiter| gave_up.push(waiter));
        self.refuse_all(gave_up, cx);
        self.queue.tidy();
    }

    /// Waits with the next attempt: to the head's next try where it has a schedule, else to the next look, spread so that
    /// processes do not look in step.
    pub(super) fn pause(&mut self, ttl: Option<Duration>, cx: &mut Cx<'_, S>) {
        let Some(head) = self.queue.head() else {
            self.stage = Stage::Idle;
            return;
        };
        let look = || {
            let poll = (cx.rules.poll_interval / 2).saturating_add(cx.at_random(cx.rules.poll_interval));
            cx.now.plus(ttl.map_or(poll, |ttl| poll.min(ttl.saturating_add(RESOLUTION))).max(FLOOR))
        };
        let (seat, until) = (head.seat.clone(), head.patience.next_try().unwrap_or_else(look));
        let token = match &self.stage {
            Stage::Asking(asking) => asking.token,
            _ => cx.tokens.next(),
        };
        let step = Step::Paused { until, earliest: cx.now.plus(FLOOR) };
        self.stage = Stage::Asking(Asking::new(seat, token, step, Streak::NEW));
    }

    /// Waits as [`pause`](Self::pause) does, and leaves others `time` to take what was let go of, whoever says what meanwhile.
    pub(super) fn stand_back(&mut self, time: Duration, cx: &mut Cx<'_, S>) {
        self.pause(Some(time), cx);
        if let Stage::Asking(Asking { step: Step::Paused { until, earliest }, .. }) = &mut self.stage {
            *earliest = (*earliest).max(cx.now.plus(time));
            *until = (*until).max(*earliest);
        }
    }

    pub(super) fn head_lease(&self) -> Option<Duration> {
        self.queue.head().map(|head| head.terms.lease())
    }
}

/// No two looks of who does not queue are closer together: a short time to live must not become a busy loop.
const FLOOR: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests;
