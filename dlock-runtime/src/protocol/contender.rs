//! How the head of the local queue acquires the lock: it tries, enqueues, waits, and confirms.
//!
//! ```text
//!  Trying --owner-------------------------------------------------> hold
//!    |contended                                                      ^
//!    v           queued      granted, two round trips left           |
//!  Enqueuing ---------------> Queued --------------------------------+
//!    | full, foreign          |  ^ |granted with less, or no proof   |
//!    v                absent: |  | v                        owner     |
//!  Polling --> Trying Enqueuing  +-- Confirming ---------------------+
//! ```
//!
//! A contender that follows a yield starts in `Yielding`, and continues as `Queued` if another
//! process has taken the lock (see `hold`).
//!
//! Two rules carry the safety:
//!
//! - A token is added to a value at most once in its life, by its first enqueue. So it is granted
//!   at most once.
//! - A grant counts from the time at which the last enqueue that was answered "queued" was sent,
//!   since the grant came after it. The hold ends a grant lease after that time, however late the
//!   message arrives.
//!
//! A grant is confirmed before the body starts in three cases: if its message is no proof (a
//! cluster, Sentinel), if replicas must have the hold, and if less than two measured round trips
//! remain of the grant. In the last case the reply to a later confirmation could arrive after the
//! end of the grant. A denied confirmation costs only time, since no body has started: the
//! contender checks whether its token is still queued.
//!
//! A task that has left may have asked for a longer lease than the head has. If the key may live
//! that long, the lock is released, and the head contends under a fresh token.
//!
//! See also: `queue_check`, which schedules the rechecks of a queued token.

use std::time::Duration;

use crate::protocol::command::{Command, EnqueueMode, Failure, FailureKind, Reply};
use crate::protocol::deadline::{BootInstant, Deadline};
use crate::protocol::foreign_clients::{FleetHold, Grant};
use crate::protocol::handoff_budget::HandoffBudget;
use crate::protocol::hold::{Hold, HoldStatus};
use crate::protocol::key_state::{AcquireFailure, EventContext, KeyState, LastObserved};
use crate::protocol::queue_check::{QueueCheck, RESOLUTION};
use crate::protocol::round_trip::RoundTrip;
use crate::protocol::timers::KeyTimer;
use crate::protocol::wait_queue::QueueEntry;
use crate::token::Token;

/// A contender: one token and its progress.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    pub(super) token: Token,
    pub(super) step: ContenderState,
    /// How long the fleet has held the lock when this contender acquires it, as far as is known.
    pub(super) fleet_hold: FleetHold,
    /// Whether an invalidation arrived while an enqueue was in flight.
    pub(super) revalidate: bool,
    /// The round trip that the replies "queued" measured.
    pub(super) round_trip: RoundTrip,
    /// The longest lease of its rechecks and renewals since the last reply "queued". If one has
    /// run, the key may live that long.
    longest_lease: Duration,
}

/// The progress of a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContenderState {
    /// The acquire is in flight.
    Trying,
    /// The first enqueue is in flight. In mode [`EnqueueMode::TryOnly`] it may acquire the lock,
    /// but never adds the token to the queue.
    Enqueuing(EnqueueMode),
    /// The token is in the server's queue.
    Queued {
        /// When the last enqueue that was answered "queued" was sent. The one grant of the token
        /// came after it.
        proof: BootInstant,
        /// When the token is rechecked if no grant arrives.
        queue_check: QueueCheck,
    },
    /// The token may hold the lock. The body waits for the reply that confirms it.
    Confirming {
        /// The remaining hand-off budget of the task of this process that held the lock before.
        budget: Option<HandoffBudget>,
        /// Whether the backend reported changes of the key while that task held the lock.
        is_tracked: bool,
    },
    /// The hold of this process is being yielded. If another process takes the lock, the yield
    /// queues the token.
    Yielding,
    /// No command is in flight: the contender retries later.
    Polling {
        /// When the next attempt is due.
        until: BootInstant,
        /// An invalidation does not move the attempt before this time.
        earliest: BootInstant,
    },
}

impl ContenderState {
    /// Returns the state of a token that is queued, as what was sent at `proof` proves. The next
    /// recheck is due at `at`.
    pub(super) const fn queued(proof: BootInstant, at: BootInstant) -> Self {
        Self::Queued { proof, queue_check: QueueCheck::Scheduled(at) }
    }
}

impl Contender {
    pub(super) const fn new(token: Token, step: ContenderState, fleet_hold: FleetHold) -> Self {
        let (round_trip, longest_lease) = (RoundTrip::UNKNOWN, Duration::ZERO);
        Self { token, step, fleet_hold, revalidate: false, round_trip, longest_lease }
    }

    /// Sends a recheck or a renewal, which extends the key to its lease if the token holds the
    /// lock.
    fn send<A>(&mut self, command: Command, ctx: &mut EventContext<'_, A>) {
        if let Command::Enqueue { lease, .. } | Command::Renew { lease } = command {
            self.longest_lease = self.longest_lease.max(lease);
        }
        ctx.send(self.token, command);
    }

    /// Passes each timer to `set`.
    pub(super) fn timers(&self, set: &mut impl FnMut(KeyTimer, BootInstant)) {
        match self.step {
            ContenderState::Queued { queue_check, .. } => set(KeyTimer::QueueCheck, queue_check.due()),
            ContenderState::Polling { until, .. } => set(KeyTimer::Poll, until),
            _ => {}
        }
    }

    /// Returns `true` if no reply has reported the state of the lock yet.
    pub(super) fn is_unanswered(&self) -> bool {
        !matches!(self.step, ContenderState::Queued { .. } | ContenderState::Polling { .. })
    }
}

impl<A: Clone + PartialEq> KeyState<A> {
    /// Starts an attempt for the head of the local queue under a fresh token.
    ///
    /// A late effect of an older attempt cannot affect a token that was never used. If another
    /// process wanted the lock recently and the head will wait, the head enqueues at once: an
    /// enqueue acquires a free lock too, and a failed acquire before it would cost a round trip.
    /// `fleet_hold`: how long the fleet has held the lock without a gap.
    pub(super) fn contend(&mut self, fleet_hold: FleetHold, ctx: &mut EventContext<'_, A>) {
        let Some(head) = self.queue.head() else {
            self.queue.end_contender();
            return;
        };
        let token = ctx.tokens.next();
        if *ctx.contended && head.retry_state.may_keep_waiting(ctx.now) {
            return self.enqueue(token, fleet_hold, ctx);
        }
        let lease = head.terms.lease();
        self.queue.set_contender(Contender::new(token, ContenderState::Trying, fleet_hold));
        ctx.send(token, Command::Acquire { lease });
    }

    /// Handles a reply to the contender's command.
    pub(super) fn on_reply_while_contending(
        &mut self,
        command: Command,
        sent: BootInstant,
        reply: Reply,
        ctx: &mut EventContext<'_, A>,
    ) {
        if let Command::Inspect | Command::Verify | Command::Fence = command {
            return; // a hold that has ended sent it
        }
        let Some(contender) = self.queue.contender_mut() else { return };
        let step = contender.step;
        if let ContenderState::Queued { .. } = step {
            contender.fleet_hold = FleetHold::UNKNOWN; // the grant carries it
        }
        let reply = match reply {
            Reply::Refused(failure) => return self.on_command_failed(command, failure, false, ctx),
            Reply::Unknown(failure) => return self.on_command_failed(command, failure, true, ctx),
            reply => reply,
        };
        match step {
            ContenderState::Trying => self.on_reply_while_trying(command, sent, &reply, ctx),
            ContenderState::Enqueuing(mode) => {
                self.on_reply_while_enqueuing(mode, command, sent, &reply, ctx);
            }
            ContenderState::Queued { .. } => self.on_reply_while_queued(command, sent, &reply, ctx),
            ContenderState::Confirming { .. } => {
                self.on_reply_while_confirming(command, sent, &reply, ctx);
            }
            ContenderState::Yielding | ContenderState::Polling { .. } => {} // of an older command
        }
    }

    /// Handles a reply while the acquire is in flight.
    fn on_reply_while_trying(
        &mut self,
        command: Command,
        sent: BootInstant,
        reply: &Reply,
        ctx: &mut EventContext<'_, A>,
    ) {
        match (command, reply) {
            (Command::Acquire { lease }, Reply::Owner) => self.on_acquired(sent, lease, ctx),
            (Command::Acquire { .. }, Reply::Contended) => {
                let Some(&Contender { token, fleet_hold, .. }) = self.contender() else { return };
                self.queue.observe(LastObserved::Taken(None));
                self.reject_try_only(ctx);
                self.enqueue(token, fleet_hold, ctx);
            }
            _ => {}
        }
    }

    /// Handles a reply while the first enqueue is in flight.
    fn on_reply_while_enqueuing(
        &mut self,
        mode: EnqueueMode,
        command: Command,
        sent: BootInstant,
        reply: &Reply,
        ctx: &mut EventContext<'_, A>,
    ) {
        let Command::Enqueue { lease, .. } = command else { return };
        // After an enqueue that did not queue the token (the queue is full, or grants cannot be
        // received) the next attempt starts with an acquire. An enqueue in mode `TryOnly` says
        // nothing about contention.
        if let (EnqueueMode::Join, Reply::Owner | Reply::Queued { .. } | Reply::NotQueued { .. }) =
            (mode, reply)
        {
            *ctx.contended = matches!(reply, Reply::Queued { .. });
        }
        match (mode, reply) {
            (_, Reply::Owner) => self.on_acquired(sent, lease, ctx),
            (_, Reply::Queued { ttl }) => self.on_queued(sent, *ttl, ctx),
            // This is the reply to a call that does not wait. The next head may want to wait.
            (EnqueueMode::TryOnly, Reply::NotQueued { ttl }) => {
                let Some(&Contender { fleet_hold, .. }) = self.contender() else { return };
                self.on_contended(*ttl, ctx);
                self.contend(fleet_hold, ctx);
            }
            (_, Reply::NotQueued { ttl }) => {
                let revalidate = self.contender().is_some_and(|contender| contender.revalidate);
                self.on_contended(*ttl, ctx);
                self.pause(*ttl, ctx);
                if revalidate {
                    self.on_invalidation(ctx); // the reply may be older than the change
                }
            }
            _ => {}
        }
    }

    /// Handles a reply while the token is in the server's queue.
    fn on_reply_while_queued(
        &mut self,
        command: Command,
        sent: BootInstant,
        reply: &Reply,
        ctx: &mut EventContext<'_, A>,
    ) {
        let Command::Enqueue { lease, mode } = command else { return };
        match (mode, reply) {
            (EnqueueMode::Recheck, Reply::Owner) => self.on_acquired(sent, lease, ctx),
            (_, Reply::Queued { ttl }) => self.on_queued(sent, *ttl, ctx),
            // The backend has no queue, so no message reports a grant. Release what the
            // confirmation asked about: otherwise it would block this process for a lease.
            (_, Reply::NotQueued { ttl }) => {
                let Some(contender) = self.contender() else { return };
                ctx.send(contender.token, Command::RELEASE);
                self.on_contended(*ttl, ctx);
                self.pause(*ttl, ctx);
            }
            // The key expired, was freed for other clients, or was overwritten. The token cannot be
            // queued again, so a fresh one replaces it.
            (_, Reply::Absent) if ctx.rules.yield_to_foreign => self.start_cooldown(ctx),
            (_, Reply::Absent) => self.enqueue(ctx.tokens.next(), FleetHold::UNKNOWN, ctx),
            _ => {}
        }
    }

    /// Handles a reply while the body waits for the confirmation of a grant.
    fn on_reply_while_confirming(
        &mut self,
        command: Command,
        sent: BootInstant,
        reply: &Reply,
        ctx: &mut EventContext<'_, A>,
    ) {
        match (command, reply) {
            (
                Command::Renew { lease } | Command::Enqueue { lease, mode: EnqueueMode::Recheck },
                Reply::Owner,
            ) => self.on_acquired(sent, lease, ctx),
            // The token was not granted, or the grant has expired. A recheck shows whether it is
            // still queued.
            (Command::Renew { .. }, Reply::NotOwner) => {
                let Some(contender) = self.queue.contender_mut() else { return };
                contender.step = ContenderState::queued(BootInstant::START, ctx.now);
                self.recheck_queue(true, ctx);
            }
            _ => {}
        }
    }

    /// Handles a reply that the token is in the server's queue.
    fn on_queued(&mut self, sent: BootInstant, ttl: Option<Duration>, ctx: &mut EventContext<'_, A>) {
        let Some(contender) = self.queue.contender_mut() else { return };
        contender.round_trip = contender.round_trip.measured(sent, ctx.now);
        contender.longest_lease = Duration::ZERO; // what ran before this reply extended nothing
        contender.step = ContenderState::Queued {
            proof: sent,
            queue_check: QueueCheck::after_reply(sent, ttl, ctx.rules.grant_lease),
        };
        self.on_contended(ttl, ctx);
        self.withdraw_if_unwanted(ctx);
    }

    /// Handles a failed command of the contender. `may_have_run`: its outcome is unknown.
    fn on_command_failed(
        &mut self,
        command: Command,
        failure: Failure,
        may_have_run: bool,
        ctx: &mut EventContext<'_, A>,
    ) {
        let Some(contender) = self.queue.contender_mut() else { return };
        let proof = match (contender.step, command) {
            (ContenderState::Trying | ContenderState::Enqueuing(_), _) => {
                if may_have_run {
                    ctx.orphan(contender.token);
                }
                if failure.connection_lost {
                    return self.try_again(failure, ctx);
                }
                return self.on_failed(failure, ctx);
            }
            (ContenderState::Queued { .. } | ContenderState::Confirming { .. }, _)
                if failure.kind != FailureKind::Passing =>
            {
                ctx.send(contender.token, Command::Withdraw);
                return self.on_failed(failure, ctx);
            }
            (ContenderState::Queued { proof, .. }, Command::Enqueue { .. }) => proof,
            (ContenderState::Confirming { .. }, Command::Renew { .. }) => BootInstant::START,
            _ => return, // a reply to an older command, which a later state has made void
        };
        contender.step = ContenderState::queued(proof, ctx.now.plus(ctx.rules.grant_lease / 8));
        self.on_queue_check_failed(failure, ctx);
    }

    /// Retries after the connection was lost with the contender's command in flight.
    ///
    /// The command may have run, so its token is dropped and withdrawn first. Calls that have not
    /// yet retried for this reason retry at once, under a fresh token.
    fn try_again(&mut self, failure: Failure, ctx: &mut EventContext<'_, A>) {
        let Some(&Contender { token, fleet_hold, .. }) = self.contender() else { return };
        self.queue.observe(LastObserved::Failed(Box::new(failure.clone())));
        let (tries_again, given_up) = self.queue.try_again(ctx.now);
        self.refuse_all(given_up, ctx);
        if tries_again {
            ctx.send(token, Command::Withdraw);
            self.contend(fleet_hold, ctx);
        } else {
            self.on_failed(failure, ctx);
        }
    }

    /// Handles the message of a grant to the contender's token. Returns `false` if the token cannot
    /// have been granted.
    ///
    /// The releasing process chose the lease of the grant, and its settings may differ. A grant of
    /// zero length counts as expired, and is confirmed.
    pub(super) fn on_grant_while_contending(&mut self, grant: Grant, ctx: &mut EventContext<'_, A>) -> bool {
        let lease = self.head_lease();
        let (Some(contender), Some(lease)) = (self.queue.contender_mut(), lease) else { return false };
        match contender.step {
            ContenderState::Queued { proof, .. } => {
                contender.fleet_hold = grant.fleet_hold;
                let deadline = Deadline::of_lease(proof, grant.lease.min(ctx.rules.grant_lease));
                // If replicas must have the hold, they have it once the confirmation is answered.
                let is_proof = ctx.rules.grants_are_proof && ctx.rules.replica_acks == 0;
                let left = deadline.at().since(ctx.now);
                let is_in_time = deadline.holds_at(ctx.now) && contender.round_trip.fits_twice_into(left);
                if is_proof && is_in_time && contender.longest_lease <= lease {
                    let token = contender.token;
                    self.grant_head(deadline, HoldStatus::GrantUnconfirmed, ctx);
                    if let Some(hold) = self.holds.with_token(token) {
                        hold.confirm_grant(ctx);
                    }
                } else {
                    contender.step = ContenderState::Confirming { budget: None, is_tracked: false };
                    contender.send(Command::Renew { lease }, ctx);
                }
                true
            }
            // The message arrived before the reply to the enqueue.
            ContenderState::Enqueuing(EnqueueMode::Join) => {
                contender.fleet_hold = grant.fleet_hold;
                contender.step = ContenderState::Confirming { budget: None, is_tracked: false };
                contender.send(Command::Renew { lease }, ctx);
                true
            }
            ContenderState::Yielding => {
                self.on_grant_while_yielding(grant, ctx);
                true
            }
            ContenderState::Confirming { .. } => true,
            ContenderState::Trying | ContenderState::Enqueuing(_) | ContenderState::Polling { .. } => false,
        }
    }

    /// Sends the recheck or the next attempt if it is due, or if `at_once` is set: a retry of
    /// the head is due, or the connection is new.
    pub(super) fn recheck_queue(&mut self, at_once: bool, ctx: &mut EventContext<'_, A>) {
        let lease = self.head_lease();
        let Some(contender) = self.queue.contender_mut() else { return };
        let is_due = |at: BootInstant| at_once || ctx.now >= at;
        match (&mut contender.step, lease) {
            (ContenderState::Queued { queue_check, .. }, Some(lease)) => {
                if let QueueCheck::Scheduled(at) = *queue_check
                    && is_due(at)
                {
                    *queue_check = QueueCheck::InFlight;
                    contender.send(Command::Enqueue { lease, mode: EnqueueMode::Recheck }, ctx);
                }
            }
            (ContenderState::Polling { until, .. }, _) if is_due(*until) => {
                let fleet_hold = contender.fleet_hold;
                self.contend(fleet_hold, ctx);
            }
            _ => {}
        }
    }

    /// Withdraws the contender if no task of this process waits. An acquire in flight is not
    /// withdrawn: most are refused, and a task that arrives meanwhile can use it.
    pub(super) fn withdraw_if_unwanted(&mut self, ctx: &mut EventContext<'_, A>) {
        if !self.queue.is_empty() {
            return;
        }
        let Some(&Contender { token, step, .. }) = self.contender() else { return };
        match step {
            ContenderState::Trying | ContenderState::Enqueuing(EnqueueMode::TryOnly) => return,
            ContenderState::Polling { .. } => {}
            ContenderState::Yielding => {
                if let Some(yielded) = self.holds.yielded().map(|hold| hold.token) {
                    ctx.send(yielded, Command::Withdraw);
                    self.holds.remove(yielded);
                }
                ctx.send(token, Command::Withdraw);
            }
            _ => ctx.send(token, Command::Withdraw),
        }
        self.queue.end_contender();
    }

    /// Handles a reply that the token holds the lock, since `sent` and for `lease`.
    fn on_acquired(&mut self, sent: BootInstant, lease: Duration, ctx: &mut EventContext<'_, A>) {
        let Some(&Contender { token, step, fleet_hold, longest_lease, .. }) = self.contender() else {
            return;
        };
        let deadline = Deadline::of_lease(sent, lease);
        match self.head_lease() {
            None => {
                ctx.send(token, Command::RELEASE);
                self.queue.end_contender();
            }
            // A renewal would not shorten the time to live.
            Some(wanted) if wanted < lease.max(longest_lease) => {
                ctx.send(token, Command::RELEASE);
                self.contend(fleet_hold, ctx);
            }
            Some(wanted) if wanted == lease && !deadline.holds_at(ctx.now) => {
                ctx.send(token, Command::RELEASE);
                let late =
                    Failure::new(FailureKind::Passing, "the server's reply took longer than the lease");
                self.on_failed(late, ctx);
            }
            Some(wanted) if wanted == lease => {
                self.grant_head(deadline, HoldStatus::Confirmed, ctx);
                if let Some(hold) = self.holds.with_token(token) {
                    hold.on_confirmed(sent, lease, ctx);
                }
            }
            Some(_) => {
                let step = match step {
                    ContenderState::Confirming { .. } => step,
                    _ => ContenderState::Confirming { budget: None, is_tracked: false },
                };
                self.confirm_for_head(token, step, fleet_hold, ctx);
            }
        }
    }

    /// Renews a held lock to the longer lease of the task that gets it, before that task starts.
    ///
    /// `step` is [`ContenderState::Confirming`], with what the last task of this process leaves. A
    /// task that follows another one continues its budget, and the fleet hold counts from the start
    /// of that budget.
    pub(super) fn confirm_for_head(
        &mut self,
        token: Token,
        step: ContenderState,
        fleet_hold: FleetHold,
        ctx: &mut EventContext<'_, A>,
    ) {
        let Some(lease) = self.head_lease() else { return };
        let mut contender = Contender::new(token, step, fleet_hold);
        contender.send(Command::Renew { lease }, ctx);
        self.queue.set_contender(contender);
    }

    /// Grants the lock to the head: its contender becomes a hold.
    fn grant_head(&mut self, deadline: Deadline, status: HoldStatus, ctx: &mut EventContext<'_, A>) {
        let Some(&Contender { token, step, fleet_hold, .. }) = self.contender() else { return };
        let Some(head) = self.queue.head() else { return };
        let mut hold = Hold::new(head, token, deadline, fleet_hold, ctx);
        hold.status = status;
        if let ContenderState::Confirming { budget: Some(budget), .. } = step {
            hold.continue_budget(budget);
        }
        ctx.actions.push(hold.grant_action(head));
        self.holds.insert(hold);
        self.queue.end_contender();
        self.queue.pop();
        self.queue.observe(LastObserved::Taken(None));
        let single_tries = self.queue.take_single_tries();
        self.refuse_all(single_tries, ctx);
    }

    /// Rejects waiting calls that need no details: they asked only whether they get the lock.
    fn reject_try_only(&mut self, ctx: &mut EventContext<'_, A>) {
        while self.queue.head().is_some_and(|head| head.retry_state.is_try_only()) {
            let Some(QueueEntry { acquisition, retry_state, .. }) = self.queue.pop() else { return };
            ctx.refuse(acquisition, LastObserved::Taken(None).refusal(&retry_state, ctx.now));
        }
    }

    /// Enqueues the token if the head will wait. Otherwise tries once and reads the state of the
    /// lock.
    fn enqueue(&mut self, token: Token, fleet_hold: FleetHold, ctx: &mut EventContext<'_, A>) {
        let Some(head) = self.queue.head() else {
            self.queue.end_contender();
            return;
        };
        let mode =
            if head.retry_state.may_keep_waiting(ctx.now) { EnqueueMode::Join } else { EnqueueMode::TryOnly };
        let lease = head.terms.lease();
        self.queue.set_contender(Contender::new(token, ContenderState::Enqueuing(mode), fleet_hold));
        ctx.send(token, Command::Enqueue { lease, mode });
    }

    /// Handles a reply that another token holds the lock.
    pub(super) fn on_contended(&mut self, ttl: Option<Duration>, ctx: &mut EventContext<'_, A>) {
        self.queue.observe(LastObserved::Taken(ttl));
        self.notify_contended(ctx);
    }

    /// Handles a failed request to the server.
    pub(super) fn on_failed(&mut self, failure: Failure, ctx: &mut EventContext<'_, A>) {
        let lasting = failure.kind != FailureKind::Passing;
        if lasting {
            for waiter in self.queue.drain() {
                ctx.refuse(waiter.acquisition, AcquireFailure::Failed(failure.clone()));
            }
            self.queue.end_contender();
            return;
        }
        self.queue.observe(LastObserved::Failed(Box::new(failure)));
        self.notify_contended(ctx);
        self.pause(None, ctx);
    }

    /// Handles a failed recheck. The token is assumed to be still queued.
    pub(super) fn on_queue_check_failed(&mut self, failure: Failure, ctx: &mut EventContext<'_, A>) {
        self.queue.observe(LastObserved::Failed(Box::new(failure)));
        self.notify_contended(ctx);
        self.withdraw_if_unwanted(ctx);
    }

    fn notify_contended(&mut self, ctx: &mut EventContext<'_, A>) {
        let given_up = self.queue.on_contended(ctx.now);
        self.refuse_all(given_up, ctx);
    }

    /// Waits before the next attempt: until the head's next retry if it has a schedule, otherwise
    /// about one poll interval. The random part keeps processes from polling in step.
    pub(super) fn pause(&mut self, ttl: Option<Duration>, ctx: &mut EventContext<'_, A>) {
        let Some(head) = self.queue.head() else {
            self.queue.end_contender();
            return;
        };
        let next_poll = || {
            let poll =
                (ctx.rules.poll_interval / 2).saturating_add(ctx.random_up_to(ctx.rules.poll_interval));
            ctx.now.plus(ttl.map_or(poll, |ttl| poll.min(ttl.saturating_add(RESOLUTION))).max(MIN_PAUSE))
        };
        let until = head.retry_state.next_try().unwrap_or_else(next_poll);
        let token = self.contender().map_or_else(|| ctx.tokens.next(), |contender| contender.token);
        let step = ContenderState::Polling { until, earliest: ctx.now.plus(MIN_PAUSE) };
        self.queue.set_contender(Contender::new(token, step, FleetHold::NEW));
    }

    /// Like [`pause`](Self::pause), but the next attempt is at least `time` later, whatever
    /// messages arrive: other clients can take the released lock.
    pub(super) fn back_off(&mut self, time: Duration, ctx: &mut EventContext<'_, A>) {
        self.pause(Some(time), ctx);
        if let Some(Contender { step: ContenderState::Polling { until, earliest }, .. }) =
            self.queue.contender_mut()
        {
            *earliest = (*earliest).max(ctx.now.plus(time));
            *until = (*until).max(*earliest);
        }
    }

    pub(super) fn head_lease(&self) -> Option<Duration> {
        self.queue.head().map(|head| head.terms.lease())
    }
}

/// The shortest time between two attempts of a contender that is not queued. A short time to live
/// must not cause a busy loop.
const MIN_PAUSE: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests;
