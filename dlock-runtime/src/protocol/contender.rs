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

use crate::protocol::command::{Command, EnqueueMode, Failure, FailureKind, Reply};
use crate::protocol::deadline::{BootInstant, Deadline};
use crate::protocol::foreign_clients::{FleetHold, Grant};
use crate::protocol::handoff_budget::HandoffBudget;
use crate::protocol::hold::Hold;
use crate::protocol::key_state::{AcquireFailure, EventContext, KeyPhase, KeyState, LastObserved};
use crate::protocol::queue_check::{QueueCheck, RESOLUTION};
use crate::protocol::round_trip::RoundTrip;
use crate::protocol::wait_queue::QueueEntry;
use crate::token::Token;

/// One contender: a token and how far it has come.
#[derive(Clone, Debug)]
pub(crate) struct Contender<A> {
    /// Who was the first to wait when it began, or had the lock before; nobody may want it any more.
    pub(super) acquisition: A,
    pub(super) token: Token,
    pub(super) step: ContenderState,
    /// For how long our family has had the lock, as far as is known, when this contender gets it.
    pub(super) fleet_hold: FleetHold,
    /// Whether somebody may have changed the key since it was asked about.
    pub(super) hinted: bool,
    /// What the answers "queued" measured.
    pub(super) round_trip: RoundTrip,
}

/// How far the contender has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContenderState {
    /// The acquire is on its way.
    Trying,
    /// The first enqueue is on its way. (A peek too: it may take the lock, but never queues.)
    Enqueuing(EnqueueMode),
    /// The token stands in the queue.
    Queued {
        /// When the last enqueue that was answered "queued" was sent: the one grant of the token came after it.
        proof: BootInstant,
        /// Whether it still does, if no grant comes.
        queue_check: QueueCheck,
    },
    /// The lock may be ours; the body waits for the answer that says so.
    Confirming {
        /// What is left of the budget of a task of this process that had it before.
        budget: Option<HandoffBudget>,
        /// Whether changes were told of while that task had it.
        is_tracked: bool,
    },
    /// Nothing is asked for a while.
    Polling {
        /// When the next look is due.
        until: BootInstant,
        /// A hint does not bring it forward any further than to this.
        earliest: BootInstant,
    },
}

impl ContenderState {
    /// The token stands in the queue, as is proved by what was sent then, and asks again at a time.
    pub(super) const fn queued(proof: BootInstant, at: BootInstant) -> Self {
        Self::Queued { proof, queue_check: QueueCheck::at(at) }
    }
}

impl<A> Contender<A> {
    pub(super) const fn new(
        acquisition: A,
        token: Token,
        step: ContenderState,
        fleet_hold: FleetHold,
    ) -> Self {
        Self { acquisition, token, step, fleet_hold, hinted: false, round_trip: RoundTrip::UNKNOWN }
    }

    pub(super) fn due(&self) -> BootInstant {
        match self.step {
            ContenderState::Queued { queue_check, .. } => queue_check.due(),
            ContenderState::Polling { until, .. } => until,
            _ => BootInstant::NEVER,
        }
    }

    /// Returns whether the contender has not heard yet how the lock stands.
    pub(super) fn is_unanswered(&self) -> bool {
        !matches!(self.step, ContenderState::Queued { .. } | ContenderState::Polling { .. })
    }
}

impl<A: Clone + PartialEq> KeyState<A> {
    /// Starts a fresh attempt for the head, under a token that was never used: a late effect of an older attempt cannot touch it. Where
    /// others wanted the lock a moment ago the head queues up at once, if it will wait: what queues it takes a free lock, too, and what
    /// only tries would have to be asked before, for a trip.
    pub(super) fn contend(&mut self, ctx: &mut EventContext<'_, A>) {
        let Some(head) = self.queue.head() else {
            self.phase = KeyPhase::Idle;
            return;
        };
        let (token, fleet_hold) = (ctx.tokens.next(), self.phase.fleet_hold(ctx.now));
        if *ctx.contended && head.retry_state.may_keep_waiting(ctx.now) {
            return self.enqueue(token, fleet_hold, ctx);
        }
        let (acquisition, lease) = (head.acquisition.clone(), head.terms.lease());
        self.phase =
            KeyPhase::Contending(Contender::new(acquisition, token, ContenderState::Trying, fleet_hold));
        ctx.send(token, Command::Acquire { lease });
    }

    /// An answer to the contender's command.
    pub(super) fn on_reply(
        &mut self,
        command: Command,
        sent: BootInstant,
        reply: Reply,
        ctx: &mut EventContext<'_, A>,
    ) {
        if let Command::Inspect | Command::Verify | Command::Fence = command {
            return; // it was asked by a hold that is over
        }
        let KeyPhase::Contending(Contender {
            acquisition: whose,
            token,
            step,
            fleet_hold,
            hinted,
            round_trip,
        }) = &mut self.phase
        else {
            return;
        };
        let (token, hinted) = (*token, *hinted);
        if let ContenderState::Queued { .. } = step {
            *fleet_hold = FleetHold::UNKNOWN; // whoever lets go knows it, and tells it with the grant
        }
        // Who wanted a place and has none, in a full queue or as nobody can be told of grants, tries next. A look wants none.
        if let (
            ContenderState::Enqueuing(EnqueueMode::Join),
            Command::Enqueue { .. },
            Reply::Owner | Reply::Queued { .. } | Reply::NotQueued { .. },
        ) = (*step, command, &reply)
        {
            *ctx.contended = matches!(reply, Reply::Queued { .. });
        }
        match (*step, command, reply) {
            (ContenderState::Trying, Command::Acquire { lease }, Reply::Owner)
            | (ContenderState::Enqueuing(_), Command::Enqueue { lease, .. }, Reply::Owner)
            | (
                ContenderState::Queued { .. } | ContenderState::Confirming { .. },
                Command::Enqueue { lease, mode: EnqueueMode::Recheck },
                Reply::Owner,
            )
            | (ContenderState::Confirming { .. }, Command::Renew { lease }, Reply::Owner) => {
                self.on_acquired(token, sent, lease, ctx);
            }

            (ContenderState::Trying, Command::Acquire { .. }, Reply::Contended) => {
                self.queue.observe(LastObserved::Taken(None));
                let fleet_hold = *fleet_hold;
                self.reject_try_only(ctx);
                self.enqueue(token, fleet_hold, ctx);
            }

            (ContenderState::Enqueuing(_), Command::Enqueue { .. }, Reply::Queued { ttl })
            | (ContenderState::Queued { .. }, Command::Enqueue { .. }, Reply::Queued { ttl }) => {
                let before = *step;
                *round_trip = round_trip.measured(sent, ctx.now);
                *step = ContenderState::Queued {
                    proof: sent,
                    queue_check: QueueCheck::answered(before, sent, ttl, ctx),
                };
                if let ContenderState::Queued { queue_check: QueueCheck::Behind(_), .. } = step {
                    return; // a call on its last try may have the lock yet
                }
                self.on_contended(ttl, ctx);
                self.withdraw_if_unwanted(ctx);
            }
            // Who looked has its answer by that; who is the head now may want to wait.
            (
                ContenderState::Enqueuing(EnqueueMode::TryOnly),
                Command::Enqueue { .. },
                Reply::NotQueued { ttl },
            ) => {
                self.on_contended(ttl, ctx);
                self.contend(ctx);
            }
            (ContenderState::Enqueuing(_), Command::Enqueue { .. }, Reply::NotQueued { ttl }) => {
                self.on_contended(ttl, ctx);
                self.pause(ttl, ctx);
                if hinted {
                    self.on_invalidation(ctx); // the answer may be older than what the hint was about
                }
            }
            // Nobody queues there, and nobody tells whether what was to be confirmed is ours: it would be in our own way for a lease.
            (ContenderState::Queued { .. }, Command::Enqueue { .. }, Reply::NotQueued { ttl }) => {
                ctx.send(token, Command::Release);
                self.on_contended(ttl, ctx);
                self.pause(ttl, ctx);
            }
            (ContenderState::Queued { queue_check, .. }, Command::Enqueue { .. }, Reply::Absent) => {
                // The queue expired, or gave way, or somebody overwrote it. This token is dead; a fresh one takes its place, or has.
                match (queue_check, ctx.rules.yield_to_foreign) {
                    (QueueCheck::InFlight { spare: Some(spare) }, _) => {
                        let (whose, spare) = (whose.clone(), ctx.tokens.numbered(spare.get()));
                        self.phase = KeyPhase::Contending(Contender::new(
                            whose,
                            spare,
                            ContenderState::Trying,
                            FleetHold::UNKNOWN,
                        ));
                    }
                    (_, false) => self.enqueue(ctx.tokens.next(), FleetHold::UNKNOWN, ctx),
                    (_, true) => {
                        let whose = whose.clone();
                        self.start_cooldown(&whose, ctx);
                    }
                }
            }
            (ContenderState::Confirming { .. }, Command::Renew { .. }, Reply::NotOwner) => {
                // Not granted, or the grant has ended: whether the token is still queued is for the server to say.
                *step = ContenderState::queued(BootInstant::START, ctx.now);
                self.recheck_queue(true, ctx);
            }

            (_, _, Reply::Refused(failure)) => self.unanswered(command, failure, false, ctx),
            (_, _, Reply::Unknown(failure)) => self.unanswered(command, failure, true, ctx),
            _ => {} // an older command's answer, which the step that came since has made void
        }
    }

    /// The contender's command did not run, or nobody knows whether it has: then `may_have_run`.
    fn unanswered(
        &mut self,
        command: Command,
        failure: Failure,
        may_have_run: bool,
        ctx: &mut EventContext<'_, A>,
    ) {
        let KeyPhase::Contending(contender) = &mut self.phase else { return };
        let proof = match (contender.step, command) {
            (ContenderState::Trying | ContenderState::Enqueuing(_), _) => {
                let token = contender.token;
                if may_have_run {
                    ctx.orphan(token);
                }
                if failure.connection_lost {
                    return self.try_again(token, failure, ctx);
                }
                return self.on_failed(failure, ctx);
            }
            (ContenderState::Queued { .. } | ContenderState::Confirming { .. }, _)
                if failure.kind != FailureKind::Passing =>
            {
                contender.leave(ctx);
                return self.on_failed(failure, ctx);
            }
            (ContenderState::Queued { proof, .. }, Command::Enqueue { .. }) => proof,
            (ContenderState::Confirming { .. }, Command::Renew { .. }) => BootInstant::START,
            _ => return, // an older command's, which the step that came since has made void
        };
        contender.step = ContenderState::queued(proof, ctx.now.plus(ctx.rules.grant_lease / 8));
        self.on_queue_check_failed(failure, ctx);
    }

    /// The connection was lost with the contender's command under way. The command may have run, so its token is given up, and what it may
    /// have taken is given back first; the calls that have not done so yet try again at once, under a new token.
    fn try_again(&mut self, token: Token, failure: Failure, ctx: &mut EventContext<'_, A>) {
        let mut gave_up = Vec::new();
        self.queue.observe(LastObserved::Failed(Box::new(failure.clone())));
        let tries_again = self.queue.try_again(ctx.now, |waiter| gave_up.push(waiter));
        self.refuse_all(gave_up, ctx);
        self.queue.tidy();
        if tries_again {
            ctx.send(token, Command::Withdraw);
            self.contend(ctx);
        } else {
            self.on_failed(failure, ctx);
        }
    }

    /// A message says that the contender's token has been granted the lock. Whoever let go chose for how long, and his settings may
    /// differ from ours; a grant for no time at all is as good as one that has ended, and looked into. Returns whether the token can
    /// have been granted at all.
    pub(super) fn on_grant_while_contending(&mut self, offer: Grant, ctx: &mut EventContext<'_, A>) -> bool {
        let lease = self.head_lease();
        let KeyPhase::Contending(Contender { token, step, fleet_hold, round_trip, .. }) = &mut self.phase
        else {
            return false;
        };
        let (token, Some(lease)) = (*token, lease) else { return false };
        match *step {
            ContenderState::Queued { proof, .. } => {
                *fleet_hold = offer.fleet_hold;
                let deadline = Deadline::of_lease(proof, offer.lease.min(ctx.rules.grant_lease));
                // What replicas must have, too, they have once the confirmation is answered.
                let is_proof = ctx.rules.grants_are_proof && ctx.rules.replica_acks == 0;
                let left = deadline.at().since(ctx.now);
                if is_proof && deadline.holds_at(ctx.now) && round_trip.fits_twice_into(left) {
                    self.admit(token, deadline, true, ctx);
                    if let KeyPhase::Held(hold) = &mut self.phase {
                        hold.confirm_grant(ctx);
                    }
                } else {
                    *step = ContenderState::Confirming { budget: None, is_tracked: false };
                    ctx.send(token, Command::Renew { lease });
                }
                true
            }
            // The message overtook the answer to the enqueue.
            ContenderState::Enqueuing(EnqueueMode::Join) => {
                *fleet_hold = offer.fleet_hold;
                *step = ContenderState::Confirming { budget: None, is_tracked: false };
                ctx.send(token, Command::Renew { lease });
                true
            }
            ContenderState::Confirming { .. } => true,
            ContenderState::Trying | ContenderState::Enqueuing(_) | ContenderState::Polling { .. } => false,
        }
    }

    /// Asks again where the time for it has come, or where `now_please`: a try of the head is due, or a connection is new.
    pub(super) fn recheck_queue(&mut self, now_please: bool, ctx: &mut EventContext<'_, A>) {
        let lease = self.head_lease();
        let KeyPhase::Contending(contender) = &mut self.phase else { return };
        let due = now_please || ctx.now >= contender.due();
        match (&mut contender.step, lease) {
            (ContenderState::Queued { proof, queue_check }, Some(lease)) if due => {
                queue_check.ask(contender.token, *proof, lease, ctx);
            }
            (ContenderState::Polling { .. }, _) if due => self.contend(ctx),
            _ => {}
        }
    }

    /// Ends a contention that nobody here wants any more. An acquire on its way is waited for: most are refused, and a task that
    /// comes meanwhile can use it.
    pub(super) fn withdraw_if_unwanted(&mut self, ctx: &mut EventContext<'_, A>) {
        if !self.queue.is_empty() {
            return;
        }
        match &self.phase {
            KeyPhase::Contending(Contender {
                step: ContenderState::Trying | ContenderState::Enqueuing(EnqueueMode::TryOnly),
                ..
            })
            | KeyPhase::Idle
            | KeyPhase::Held(_)
            | KeyPhase::CoolingDown(_) => {}
            KeyPhase::Contending(Contender { step: ContenderState::Polling { .. }, .. }) => {
                self.phase = KeyPhase::Idle
            }
            KeyPhase::Contending(contender) => {
                contender.leave(ctx);
                self.phase = KeyPhase::Idle;
            }
            KeyPhase::Yielding(yielding) => {
                ctx.send(yielding.hold.token(ctx), Command::Withdraw);
                ctx.send(yielding.next, Command::Withdraw);
                self.phase = KeyPhase::Idle;
            }
        }
    }

    /// The lock is ours since `sent`, for `lease`.
    fn on_acquired(
        &mut self,
        token: Token,
        sent: BootInstant,
        lease: Duration,
        ctx: &mut EventContext<'_, A>,
    ) {
        match self.head_lease() {
            None => {
                ctx.send(token, Command::Release);
                self.phase = KeyPhase::Idle;
            }
            Some(wanted) if wanted == lease && !Deadline::of_lease(sent, lease).holds_at(ctx.now) => {
                ctx.send(token, Command::Release);
                let late =
                    Failure::new(FailureKind::Passing, "the server's answer took longer than the lease");
                self.on_failed(late, ctx);
            }
            Some(wanted) if wanted == lease => {
                self.admit(token, Deadline::of_lease(sent, lease), false, ctx);
                if let KeyPhase::Held(hold) = &mut self.phase {
                    hold.on_confirmed(sent, lease, ctx);
                }
            }
            Some(_) => self.confirm_for_head(token, ctx),
        }
    }

    /// Prolongs a lock that is ours to the lease of the task that gets it, before that task starts.
    pub(super) fn confirm_for_head(&mut self, token: Token, ctx: &mut EventContext<'_, A>) {
        let Some(head) = self.queue.head() else { return };
        let (acquisition, lease) = (head.acquisition.clone(), head.terms.lease());
        // A task that follows another one goes on with its budget, from whose begin the streak is counted on.
        let (fleet_hold, budget) = match &self.phase {
            KeyPhase::Held(hold) => hold.streak_and_budget(),
            KeyPhase::Contending(Contender {
                step: ContenderState::Confirming { budget, .. },
                fleet_hold,
                ..
            }) => (*fleet_hold, *budget),
            phase => (phase.fleet_hold(ctx.now), None),
        };
        let step = ContenderState::Confirming { budget, is_tracked: self.is_tracked() };
        self.phase = KeyPhase::Contending(Contender::new(acquisition, token, step, fleet_hold));
        ctx.send(token, Command::Renew { lease });
    }

    /// The head's turn has come. `is_unconfirmed`: by a grant that the server has not confirmed.
    fn admit(
        &mut self,
        token: Token,
        deadline: Deadline,
        is_unconfirmed: bool,
        ctx: &mut EventContext<'_, A>,
    ) {
        let Some(head) = self.queue.head() else { return };
        let mut hold = Hold::new(head, token, deadline, self.phase.fleet_hold(ctx.now), ctx);
        hold.granted = is_unconfirmed;
        if let KeyPhase::Contending(Contender {
            step: ContenderState::Confirming { budget: Some(budget), .. },
            ..
        }) = self.phase
        {
            hold.continue_budget(budget);
        }
        ctx.actions.push(hold.grant_action(head, ctx));
        self.phase = KeyPhase::Held(hold);
        self.queue.advance();
        self.queue.observe(LastObserved::Taken(None));
        let mut gave_up = Vec::new();
        self.queue.refuse_once(|waiter| gave_up.push(waiter));
        self.refuse_all(gave_up, ctx);
        self.queue.tidy();
    }

    /// Tells who only asks whether it gets the lock that it does not, and has no use for a look at what stands there.
    fn reject_try_only(&mut self, ctx: &mut EventContext<'_, A>) {
        while self.queue.head().is_some_and(|head| head.retry_state.is_try_only()) {
            let Some(QueueEntry { acquisition, retry_state, .. }) = self.queue.pop() else { return };
            ctx.refuse(acquisition, LastObserved::Taken(None).refusal(&retry_state, ctx.now));
        }
    }

    /// Queues up where the head will wait, and else looks what stands there.
    fn enqueue(&mut self, token: Token, fleet_hold: FleetHold, ctx: &mut EventContext<'_, A>) {
        let Some(head) = self.queue.head() else {
            self.phase = KeyPhase::Idle;
            return;
        };
        let mode =
            if head.retry_state.may_keep_waiting(ctx.now) { EnqueueMode::Join } else { EnqueueMode::TryOnly };
        let (acquisition, lease) = (head.acquisition.clone(), head.terms.lease());
        self.phase = KeyPhase::Contending(Contender::new(
            acquisition,
            token,
            ContenderState::Enqueuing(mode),
            fleet_hold,
        ));
        ctx.send(token, Command::Enqueue { lease, mode });
    }

    /// The lock is held by somebody else.
    pub(super) fn on_contended(&mut self, ttl: Option<Duration>, ctx: &mut EventContext<'_, A>) {
        self.queue.observe(LastObserved::Taken(ttl));
        self.notify_contended(ctx);
    }

    /// The server could not be asked.
    pub(super) fn on_failed(&mut self, failure: Failure, ctx: &mut EventContext<'_, A>) {
        let lasting = failure.kind != FailureKind::Passing;
        if lasting {
            for waiter in self.queue.drain() {
                ctx.refuse(waiter.acquisition, AcquireFailure::Failed(failure.clone()));
            }
            self.phase = KeyPhase::Idle;
            return;
        }
        self.queue.observe(LastObserved::Failed(Box::new(failure)));
        self.notify_contended(ctx);
        self.pause(None, ctx);
    }

    /// The token is in the queue as far as we know, but the server did not say so.
    pub(super) fn on_queue_check_failed(&mut self, failure: Failure, ctx: &mut EventContext<'_, A>) {
        self.queue.observe(LastObserved::Failed(Box::new(failure)));
        self.notify_contended(ctx);
        self.withdraw_if_unwanted(ctx);
    }

    fn notify_contended(&mut self, ctx: &mut EventContext<'_, A>) {
        let mut gave_up = Vec::new();
        self.queue.on_contended(ctx.now, |waiter| gave_up.push(waiter));
        self.refuse_all(gave_up, ctx);
        self.queue.tidy();
    }

    /// WaitGraph with the next attempt: to the head's next try where it has a schedule, else to the next look, spread so that
    /// processes do not look in step.
    pub(super) fn pause(&mut self, ttl: Option<Duration>, ctx: &mut EventContext<'_, A>) {
        let Some(head) = self.queue.head() else {
            self.phase = KeyPhase::Idle;
            return;
        };
        let look = || {
            let poll = (ctx.rules.poll_interval / 2).saturating_add(ctx.at_random(ctx.rules.poll_interval));
            ctx.now.plus(ttl.map_or(poll, |ttl| poll.min(ttl.saturating_add(RESOLUTION))).max(FLOOR))
        };
        let (acquisition, until) =
            (head.acquisition.clone(), head.retry_state.next_try().unwrap_or_else(look));
        let token = match &self.phase {
            KeyPhase::Contending(contender) => contender.token,
            _ => ctx.tokens.next(),
        };
        let step = ContenderState::Polling { until, earliest: ctx.now.plus(FLOOR) };
        self.phase = KeyPhase::Contending(Contender::new(acquisition, token, step, FleetHold::NEW));
    }

    /// WaitGraph as [`pause`](Self::pause) does, and leaves others `time` to take what was let go of, whoever says what meanwhile.
    pub(super) fn back_off(&mut self, time: Duration, ctx: &mut EventContext<'_, A>) {
        self.pause(Some(time), ctx);
        if let KeyPhase::Contending(Contender { step: ContenderState::Polling { until, earliest }, .. }) =
            &mut self.phase
        {
            *earliest = (*earliest).max(ctx.now.plus(time));
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
