//! The model: one server, three processes with three tasks each, and the network between them.
//!
//! A connection delivers requests in order. After a missing reply the process reconnects, and
//! requests on the new connection may overtake those on the old one. The time of the model is the
//! server's clock, in milliseconds. Each process has its own clock, which may drift.

use std::collections::BTreeSet;
use std::time::Duration;

use super::coverage_points::CoveragePoint;
use super::display;
use super::fault_profile::{FaultProfile, OutOfModelFault, PROCESSES, TASKS};
use super::invariants::{ActiveHold, Invariants, TaskState};
use super::process::Process;
use super::seeded_bugs::Bug;
use super::server::Server;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Command, EnqueueMode, Failure, FailureKind, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::foreign_clients::Grant;
use crate::protocol::hold::{ReleaseOutcome, ResidualHold};
use crate::protocol::hold_terms::HoldTerms;
use crate::protocol::key_state::{Action, EventContext, KeyState};
use crate::protocol::retry_state::{RetryLimits, RetryState};
use crate::protocol::simulation::choices::ChoiceSource;
use crate::protocol::simulation::coverage::Coverage;
use crate::protocol::simulation::event_queue::EventQueue;
use crate::protocol::simulation::trace::Trace;
use crate::protocol::simulation::{Violation, violation};
use crate::protocol::wait_queue::QueueEntry;
use crate::retry::RetryPolicy;
use crate::token::Token;

#[derive(Clone, Debug)]
pub(super) enum Event {
    Join {
        acquisition: u32,
    },
    Cancel {
        acquisition: u32,
    },
    WorkEnds {
        acquisition: u32,
    },
    /// The body requests a fencing token.
    RequestFence {
        acquisition: u32,
    },
    /// The body of a lost hold is dropped.
    BodyDropped {
        acquisition: u32,
        left: Option<ResidualHold>,
    },
    Executed {
        sent: Sent,
        replied: bool,
        /// Whether the request may be executed after its timeout.
        late: bool,
    },
    Replied {
        sent: Sent,
        reply: Reply,
    },
    GrantReceived {
        process: usize,
        token: Token,
        grant: Grant,
        forged: bool,
    },
    /// An invalidation arrives, whether or not the key changed.
    Invalidation {
        process: usize,
    },
    Tick {
        process: usize,
    },
    /// A new connection is ready.
    Reconnected {
        process: usize,
        moved: bool,
    },
    Freeze {
        process: usize,
        time: u64,
    },
    Kill {
        process: usize,
    },
    ForgeGrant {
        process: usize,
        number: u64,
    },
    Replicate,
    Restart {
        how: OutOfModelFault,
        down: u64,
    },
}

/// A command in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    process: usize,
    /// The task that receives the reply, or `None` if the protocol does.
    requester: Option<u32>,
    epoch: u64,
    /// The server's restart count when the command was sent.
    starts: u32,
    token: Token,
    command: Command,
    /// When the command was sent.
    at: u64,
    /// The same time on the clock of the process.
    local: BootInstant,
}

/// The kinds of random choices.
#[derive(Clone, Copy, Debug)]
enum ChoiceKind {
    Join,
    RequestDelay,
    RequestLost,
    RequestLate,
    RequestDuplicated,
    ReplyDelay,
    ReplyLost,
    ReplyDuplicated,
    GrantDelay,
    GrantLost,
    GrantDuplicated,
    UncountedGrant,
    Work,
    RequestsFence,
    Cancelled,
    CancelledAfter,
    ImmediateRelease,
    BodyDropped,
    Drift,
    FaultHappens,
    FaultTime,
    FaultProcess,
    FaultParameter,
    Invalidation,
}

pub(super) struct ProtocolModel<'a> {
    pub(super) profile: FaultProfile,
    bug: Bug,
    config: ProtocolConfig,
    now: u64,
    event_queue: EventQueue<Event>,
    server: Server,
    processes: Vec<Process>,
    invariants: Invariants,
    /// Tokens that only expiry can remove: a command was executed after the last cleanup, or a
    /// promoted replica restored them.
    expiring_tokens: BTreeSet<Token>,
    coverage: Coverage,
    choices: &'a mut ChoiceSource,
    trace: &'a mut Trace,
    no_reply: Failure,
    actions: Vec<Action<u32>>,
}

/// The task that tries once.
const SINGLE_TRY: u32 = 4;
/// The task that tries once and does not ask when the lock may become free.
const TRY_ONLY: u32 = 5;
/// The response timeout, in milliseconds.
const TIMEOUT: u64 = 500;
/// A command that is executed later than this may follow the last cleanup of its token (`orphans`).
const LATE_AFTER: u64 = TIMEOUT + 1_000;
/// When faults end.
const FAULTS_END: u64 = 8_000;

type CheckResult = Result<(), Box<Violation>>;

impl<'a> ProtocolModel<'a> {
    pub(super) fn new(
        profile: &FaultProfile,
        bug: Bug,
        choices: &'a mut ChoiceSource,
        trace: &'a mut Trace,
    ) -> Self {
        let profile = *profile;
        let mut model = Self {
            profile,
            bug,
            config: ProtocolConfig {
                handoff_budget: Duration::from_millis(profile.handoff_budget),
                grant_lease: Duration::from_millis(profile.grant_lease),
                grants_are_proof: profile.uncounted_grants == 0 || bug == Bug::TrustsEveryGrant,
                tracking: profile.tracking,
                replica_acks: profile.replica_acks,
                ..ProtocolConfig::DEFAULT
            },
            now: 0,
            event_queue: EventQueue::new(),
            server: Server::default(),
            processes: Vec::new(),
            invariants: Invariants::new(FAULTS_END),
            expiring_tokens: BTreeSet::new(),
            coverage: Coverage::new(),
            choices,
            trace,
            no_reply: Failure::new(FailureKind::Passing, "no reply"),
            actions: Vec::new(),
        };
        for number in 0..PROCESSES {
            let drift = model.draw_drift(number as usize);
            model.processes.push(Process::new(number, drift));
        }
        for acquisition in (0..TASKS).filter(|acquisition| profile.has_task(*acquisition)) {
            let at = model.up_to(ChoiceKind::Join, acquisition as usize, profile.arrivals);
            model.at(at, Event::Join { acquisition });
        }
        model.plan_faults();
        model
    }

    /// Returns how much faster a process's clock runs than the server's, in thousandths.
    fn draw_drift(&mut self, process: usize) -> i64 {
        let (most, kind) = match self.profile.out_of_model {
            OutOfModelFault::ExcessiveDrift => (300, CoveragePoint::ExcessiveDrift),
            _ => (self.profile.drift, CoveragePoint::Drift),
        };
        let drawn = i64::try_from(self.up_to(ChoiceKind::Drift, process, 2 * most)).unwrap_or_default();
        if drawn > 0 {
            self.cover(kind);
        }
        // 1, -1, 2, -2, ...
        if drawn % 2 == 1 { (drawn + 1) / 2 } else { -drawn / 2 }
    }

    fn plan_faults(&mut self) {
        let FaultProfile {
            freezes, kills, invalidations, forged_grants, restarts, out_of_model, lease, ..
        } = self.profile;
        for number in 0..freezes {
            if let Some((at, process)) = self.plan(0, number) {
                let time = self.up_to(ChoiceKind::FaultParameter, 0, 3 * lease);
                self.at(at, Event::Freeze { process, time });
            }
        }
        for number in 0..kills {
            if let Some((at, process)) = self.plan(1, number) {
                self.at(at, Event::Kill { process });
            }
        }
        for number in 0..invalidations {
            if let Some((at, process)) = self.plan(2, number) {
                self.at(at, Event::Invalidation { process });
            }
        }
        for number in 0..forged_grants {
            if let Some((at, process)) = self.plan(3, number) {
                let number = self.up_to(ChoiceKind::FaultParameter, 3, 12);
                self.at(at, Event::ForgeGrant { process, number });
            }
        }
        for number in 0..restarts {
            if let Some((at, _)) = self.plan(4, number) {
                let down = self.up_to(ChoiceKind::FaultParameter, 4, 1_000);
                self.at(at, Event::Restart { how: OutOfModelFault::None, down });
            }
        }
        let replica_age = match out_of_model {
            OutOfModelFault::DataLoss => 0,
            OutOfModelFault::Promotion(replica_age) => replica_age,
            OutOfModelFault::None | OutOfModelFault::ExcessiveDrift => return,
        };
        let at = replica_age + self.up_to(ChoiceKind::FaultTime, 5, 2_500);
        let down = self.up_to(ChoiceKind::FaultParameter, 5, 300);
        self.at(at - replica_age, Event::Replicate);
        self.at(at, Event::Restart { how: out_of_model, down });
    }

    /// Returns the time and the process of a planned fault, or `None` if it does not occur.
    fn plan(&mut self, kind: usize, number: u64) -> Option<(u64, usize)> {
        let latest = if number.is_multiple_of(2) { 1_500 } else { FAULTS_END - 2_000 };
        let at = self.up_to(ChoiceKind::FaultTime, kind, latest);
        let process = self.up_to(ChoiceKind::FaultProcess, kind, u64::from(PROCESSES) - 1);
        self.happens(ChoiceKind::FaultHappens, kind, 70)
            .then(|| (at, usize::try_from(process).unwrap_or_default()))
    }

    fn up_to(&mut self, kind: ChoiceKind, subject: usize, bound: u64) -> u64 {
        self.choices.up_to(kind as usize, subject, bound)
    }

    fn happens(&mut self, kind: ChoiceKind, subject: usize, percent: u64) -> bool {
        self.choices.happens(kind as usize, subject, percent)
    }

    /// Like [`happens`](Self::happens), but returns `false` after [`FAULTS_END`].
    fn fault_happens(&mut self, kind: ChoiceKind, subject: usize, percent: u64) -> bool {
        self.now < FAULTS_END && self.happens(kind, subject, percent)
    }

    fn delay(&mut self, kind: ChoiceKind, subject: usize, times: u64) -> u64 {
        let most = if self.now < FAULTS_END { self.profile.delay } else { self.profile.delay.min(40) };
        self.up_to(kind, subject, times * most)
    }

    fn at(&mut self, time: u64, event: Event) {
        self.event_queue.push(time, event);
    }

    fn cover(&mut self, what: CoveragePoint) {
        self.coverage.increment(what as usize);
    }

    fn trace(&mut self, what: impl FnOnce() -> String) {
        self.trace.record(self.now, what);
    }

    pub(super) fn run(mut self) -> Result<Coverage, Box<Violation>> {
        for _ in 0..40_000 {
            let Some((time, event)) = self.event_queue.pop() else {
                self.check_end()?;
                return Ok(self.coverage);
            };
            self.now = self.now.max(time);
            if let Some(process) = Self::process_of(&event) {
                let Process { frozen_until, alive, .. } = self.processes[process];
                if !alive {
                    continue;
                }
                if frozen_until > self.now {
                    self.at(frozen_until, event);
                    continue;
                }
            }
            self.handle(event)?;
        }
        violation("end", "it never ends")
    }

    /// Returns the process that handles the event, or `None` for the server. A frozen process
    /// handles it later.
    fn process_of(event: &Event) -> Option<usize> {
        match event {
            Event::Join { acquisition }
            | Event::Cancel { acquisition }
            | Event::WorkEnds { acquisition }
            | Event::RequestFence { acquisition }
            | Event::BodyDropped { acquisition, .. } => Some(process_of_task(*acquisition)),
            Event::Replied { sent, .. } => Some(sent.process),
            Event::GrantReceived { process, .. }
            | Event::Invalidation { process }
            | Event::Tick { process }
            | Event::Reconnected { process, .. }
            | Event::Freeze { process, .. }
            | Event::Kill { process }
            | Event::ForgeGrant { process, .. } => Some(*process),
            Event::Executed { .. } | Event::Replicate | Event::Restart { .. } => None,
        }
    }

    fn handle(&mut self, event: Event) -> CheckResult {
        match event {
            Event::Join { acquisition } => self.join(acquisition),
            Event::Cancel { acquisition } => self.cancel(acquisition),
            Event::WorkEnds { acquisition } => self.work_ends(acquisition),
            Event::RequestFence { acquisition } => {
                if let Some(ActiveHold { token, lost: false, .. }) =
                    self.invariants.holds[acquisition as usize]
                {
                    self.send_for(Some(acquisition), process_of_task(acquisition), token, Command::Fence);
                }
                Ok(())
            }
            Event::BodyDropped { acquisition, left } => {
                self.invariants.end_hold(acquisition, self.now);
                let Some(left) = left else { return Ok(()) };
                self.with_key(process_of_task(acquisition), |key_state, ctx| {
                    key_state.release_residual(left, true, ctx);
                })
            }
            Event::Executed { sent, replied, late } => self.on_executed(sent, replied, late),
            Event::Replied { sent, reply } => self.on_reply(sent, reply),
            Event::GrantReceived { process, token, grant, forged } => {
                let mut known = true;
                self.with_key(process, |key_state, ctx| known = key_state.on_grant(token, grant, ctx))?;
                if !known && !forged {
                    self.send(process, token, Command::Withdraw);
                }
                Ok(())
            }
            Event::Invalidation { process } => {
                self.cover(CoveragePoint::Invalidation);
                self.with_key(process, KeyState::on_invalidation)
            }
            Event::Tick { process } => self.tick(process),
            Event::Reconnected { process, moved } => {
                self.processes[process].orphans.retry_now(|_| true);
                self.schedule_cleanup(process);
                self.with_key(process, |key_state, ctx| key_state.on_reconnect(moved, ctx))
            }
            Event::Freeze { process, time } => {
                self.freeze(process, time);
                Ok(())
            }
            Event::Kill { process } => {
                self.kill(process);
                Ok(())
            }
            Event::ForgeGrant { process, number } => self.forge(process, number),
            Event::Replicate => {
                self.server.replicate();
                Ok(())
            }
            Event::Restart { how, down } => {
                self.restart(how, down);
                Ok(())
            }
        }
    }

    fn tick(&mut self, process: usize) -> CheckResult {
        if self.now < self.processes[process].tick_at {
            return Ok(()); // an earlier tick replaced this one
        }
        self.processes[process].tick_at = u64::MAX;
        self.clean_up(process);
        if self.bug == Bug::NoHoldTimeout && self.processes[process].is_held() {
            return Ok(());
        }
        self.with_key(process, KeyState::on_timeout)
    }

    fn join(&mut self, acquisition: u32) -> CheckResult {
        if self.fault_happens(ChoiceKind::Cancelled, acquisition as usize, self.profile.cancelled) {
            let after = self.up_to(ChoiceKind::CancelledAfter, acquisition as usize, 1_000);
            self.at(self.now + after, Event::Cancel { acquisition });
        }
        let (wait, retries) = match acquisition {
            SINGLE_TRY | TRY_ONLY => (None, 0),
            _ if acquisition.is_multiple_of(2) => (Some(Duration::from_secs(60)), 0),
            _ => (None, 40),
        };
        let last = Duration::from_millis(self.profile.max_backoff);
        let limits = RetryLimits {
            retries,
            wait,
            backoff: RetryPolicy::exponential(last / 8, last),
            response_timeout: Duration::from_millis(TIMEOUT),
            try_only: acquisition == TRY_ONLY,
        };
        let process = process_of_task(acquisition);
        let retry_state = RetryState::new(self.processes[process].clock(self.now), limits, acquisition);
        let some = |ms: u64| (ms > 0).then(|| Duration::from_millis(ms));
        let terms = HoldTerms::of_lease(Duration::from_millis(self.profile.lease_of(acquisition)))
            .renew(self.profile.renew)
            .max_hold(some(self.profile.max_hold))
            .min_hold(some(self.profile.min_hold));
        let waiter = QueueEntry { acquisition, terms, retry_state };
        self.trace(|| format!("task {acquisition} of process {process} requests the lock"));
        self.invariants.on_join(acquisition, process, self.now);
        if self.bug == Bug::JoinsTwice {
            let twice = waiter.clone();
            self.with_key(process, |key_state, ctx| key_state.join(twice, ctx))?;
        }
        self.with_key(process, |key_state, ctx| key_state.join(waiter, ctx))
    }

    fn cancel(&mut self, acquisition: u32) -> CheckResult {
        let process = process_of_task(acquisition);
        if let Some(hold) = self.invariants.holds[acquisition as usize] {
            if !hold.lost {
                self.cover(CoveragePoint::CancelledHolding);
                self.trace(|| format!("task {acquisition} of process {process} is cancelled while it holds"));
            }
            return self.work_ends(acquisition);
        }
        if !matches!(self.invariants.tasks[acquisition as usize], TaskState::Waiting { .. }) {
            return Ok(());
        }
        let phase = self.processes[process].cancellation_point(acquisition);
        self.cover(phase);
        self.trace(|| format!("task {acquisition} of process {process} is cancelled while it waits"));
        self.invariants.tasks[acquisition as usize] = TaskState::Cancelled;
        if self.bug == Bug::CancelledTaskStaysQueued {
            return Ok(());
        }
        self.with_key(process, |key_state, ctx| {
            key_state.leave(&acquisition, ctx);
        })
    }

    fn work_ends(&mut self, acquisition: u32) -> CheckResult {
        let process = process_of_task(acquisition);
        let Some(hold) = self.invariants.holds[acquisition as usize].filter(|hold| !hold.lost) else {
            return Ok(());
        };
        let over = self.processes[process].when(hold.until).unwrap_or(u64::MAX);
        let late = self.now.saturating_sub(over.max(self.processes[process].frozen_until));
        Invariants::check_body(acquisition, &hold, late)?;
        self.invariants.end_hold(acquisition, self.now);
        self.trace(|| format!("task {acquisition} of process {process} ends its work"));
        let mut released = ReleaseOutcome::HandedOff;
        self.with_key(process, |key_state, ctx| released = key_state.release(&acquisition, ctx))?;
        if let ReleaseOutcome::Send(token, command) = released {
            self.send(process, token, command);
        }
        Ok(())
    }

    fn freeze(&mut self, process: usize, time: u64) {
        if time == 0 {
            return;
        }
        let until = self.now + time;
        self.processes[process].frozen_until = until;
        self.processes[process].slept += time;
        self.invariants.faults_end = self.invariants.faults_end.max(until);
        self.cover(CoveragePoint::Froze);
        if self.invariants.holds.iter().flatten().any(|hold| hold.process == process) {
            self.cover(CoveragePoint::FrozeHolding);
        }
        self.trace(|| format!("process {process} freezes until {until} ms"));
    }

    /// Kills a process: its holds end, and its tasks need no outcome.
    fn kill(&mut self, process: usize) {
        self.cover(CoveragePoint::Killed);
        self.processes[process].alive = false;
        for acquisition in (0..TASKS).filter(|acquisition| process_of_task(*acquisition) == process) {
            if self.invariants.end_hold(acquisition, self.now).is_some() {
                self.cover(CoveragePoint::KilledHolding);
            }
            self.invariants.tasks[acquisition as usize] = TaskState::Killed;
        }
        self.trace(|| format!("process {process} is killed"));
    }

    /// Publishes a forged grant for a token that the process has used or will use.
    ///
    /// It skips the token of the current contender, which is a secret, unless the token is queued
    /// and the process confirms every grant.
    fn forge(&mut self, process: usize, number: u64) -> CheckResult {
        let token = self.processes[process].tokens.at(number);
        if self.processes[process].is_unforgeable(token, self.config.grants_are_proof) {
            return Ok(());
        }
        self.cover(CoveragePoint::ForgedGrant);
        self.trace(|| format!("a forged grant reaches process {process}"));
        let lease = if number.is_multiple_of(2) { Duration::ZERO } else { Duration::MAX };
        let grant = Grant { lease, ..Grant::NONE };
        self.handle(Event::GrantReceived { process, token, grant, forged: true })
    }

    fn restart(&mut self, how: OutOfModelFault, down: u64) {
        self.server.down_until = self.now + down;
        self.invariants.faults_end = self.invariants.faults_end.max(self.now + down);
        let change = match how {
            OutOfModelFault::DataLoss => {
                self.cover(CoveragePoint::DataLoss);
                self.server.restart(false, self.now);
                "restarts without its data"
            }
            OutOfModelFault::Promotion(_) => {
                self.cover(CoveragePoint::Promotion);
                let known = self.server.promote(self.now);
                self.expiring_tokens.extend(known);
                "is replaced by a replica with older data"
            }
            OutOfModelFault::None | OutOfModelFault::ExcessiveDrift => {
                self.cover(CoveragePoint::Restart);
                self.server.restart(true, self.now);
                "restarts with its data"
            }
        };
        self.trace(|| format!("the server {change}"));
        for process in 0..self.processes.len() {
            self.processes[process].reconnect(self.now);
            let at = self.now + down + 1 + self.delay(ChoiceKind::ReplyDelay, process, 1);
            self.at(at, Event::Reconnected { process, moved: matches!(how, OutOfModelFault::Promotion(_)) });
        }
    }

    fn with_key(
        &mut self,
        process: usize,
        event: impl FnOnce(&mut KeyState<u32>, &mut EventContext<'_, u32>),
    ) -> CheckResult {
        let mut actions = std::mem::take(&mut self.actions);
        let current = &mut self.processes[process];
        let slept = if self.bug == Bug::ClockStopsWhileFrozen { current.slept } else { 0 };
        let now = current.clock(self.now - slept);
        let yields = (process as u64) < self.profile.yielding_processes;
        let config = ProtocolConfig { yield_to_foreign: yields, ..self.config };
        let contended = &mut current.contended;
        let mut ctx =
            EventContext { now, rules: &config, tokens: &current.tokens, actions: &mut actions, contended };
        event(&mut current.key_state, &mut ctx);
        if !current.key_state.is_exclusive() {
            let state = format!("process {process} contends and holds: {:?}", current.key_state);
            return violation("one holder", state);
        }
        let due = current.key_state.next_timeout();
        for action in actions.drain(..) {
            self.run_action(process, &action)?;
        }
        self.actions = actions;
        self.arm(process, due);
        Ok(())
    }

    fn arm(&mut self, process: usize, due: BootInstant) {
        let current = &mut self.processes[process];
        let slept = if self.bug == Bug::ClockStopsWhileFrozen { current.slept } else { 0 };
        let Some(due) = current.when(due) else { return };
        let due = (due + slept).max(self.now);
        if due < current.tick_at {
            current.tick_at = due;
            self.at(due, Event::Tick { process });
        }
    }

    fn run_action(&mut self, process: usize, action: &Action<u32>) -> CheckResult {
        match *action {
            Action::Send { command: Command::Enqueue { mode: EnqueueMode::Recheck, .. }, .. }
                if self.bug == Bug::NoQueueRecheck => {}
            Action::Send { command: Command::Renew { .. }, .. }
                if self.bug == Bug::RenewalsNotSent && self.processes[process].is_held() => {}
            Action::Send { token, command } => self.send(process, token, command),
            Action::Orphan { token } => {
                let Process { orphans, epoch, key, .. } = &mut self.processes[process];
                if self.bug != Bug::NoCleanup {
                    orphans.add(key.clone(), token, *epoch - 1);
                    self.schedule_cleanup(process);
                }
            }
            Action::Grant { acquisition, token, deadline, ends, .. } => {
                let deadline = deadline.at();
                let until = deadline.min(ends);
                return self.start_hold(
                    acquisition,
                    ActiveHold { process, token, until, deadline, ends, lost: false, number: 0 },
                );
            }
            Action::Extend { acquisition, deadline, .. } => {
                if let Some(hold) = &mut self.invariants.holds[acquisition as usize] {
                    hold.deadline = deadline.at();
                    hold.until = hold.deadline.min(hold.ends);
                    return self.check_exclusion(acquisition);
                }
            }
            Action::Revoke { acquisition, cause, left } => {
                self.cover(CoveragePoint::LostLock);
                // With another bug, the invariant of that bug must detect it.
                if let Bug::None | Bug::RenewalsNotSent = self.bug {
                    Invariants::check_loss(acquisition, cause, &self.profile)?;
                }
                self.trace(|| {
                    format!("task {acquisition} of process {process} is notified that its lock is lost")
                });
                let local = self.processes[process].clock(self.now);
                // A hold that was valid until `max_hold` ended it excludes other tasks until its
                // body is dropped. Any other lost hold is over.
                if let Some(hold) =
                    self.invariants.end_hold(acquisition, self.now).filter(|hold| local >= hold.ends)
                {
                    self.invariants.holds[acquisition as usize] =
                        Some(ActiveHold { until: hold.deadline, lost: true, ..hold });
                }
                let dropped_at = self.now + self.up_to(ChoiceKind::BodyDropped, acquisition as usize, 50);
                self.at(dropped_at, Event::BodyDropped { acquisition, left });
            }
            Action::Reject { acquisition, .. } => {
                self.cover(CoveragePoint::Rejected);
                self.trace(|| format!("task {acquisition} of process {process} is rejected"));
                return self.invariants.on_rejected(acquisition, self.now, &self.profile);
            }
            Action::JoinNested { .. } => {}
        }
        Ok(())
    }

    fn start_hold(&mut self, acquisition: u32, hold: ActiveHold) -> CheckResult {
        self.cover(CoveragePoint::Granted);
        if self.profile.must_keep_hold(acquisition) {
            self.cover(CoveragePoint::GrantedWithoutFaults);
        }
        let process = hold.process;
        let local = self.processes[process].clock(self.now);
        let until = self.processes[process].when(hold.until);
        self.trace(|| {
            let until = until.map(|until| format!(" until {until} ms")).unwrap_or_default();
            format!("task {acquisition} of process {process} is granted the lock{until}")
        });
        self.invariants.on_granted(
            acquisition,
            hold,
            (self.now, local, self.server.generation),
            &self.profile,
        )?;
        self.check_exclusion(acquisition)?;
        if self.happens(ChoiceKind::ImmediateRelease, acquisition as usize, self.profile.immediate_releases) {
            self.cover(CoveragePoint::ImmediateRelease);
            self.at(self.now, Event::WorkEnds { acquisition });
            return Ok(());
        }
        let work = self.up_to(ChoiceKind::Work, acquisition as usize, self.profile.work);
        if self.happens(ChoiceKind::RequestsFence, acquisition as usize, self.profile.fencing) {
            self.at(self.now + work / 2, Event::RequestFence { acquisition });
        }
        self.at(self.now + work, Event::WorkEnds { acquisition });
        Ok(())
    }

    fn check_exclusion(&mut self, acquisition: u32) -> CheckResult {
        let Self { invariants, processes, coverage, now, server, profile, .. } = self;
        let clocks = |process: usize| processes[process].clock(*now);
        invariants.check_exclusion(acquisition, clocks, (server.generation, profile.out_of_model), coverage)
    }

    fn send(&mut self, process: usize, token: Token, command: Command) {
        self.send_for(None, process, token, command);
    }

    fn send_for(&mut self, requester: Option<u32>, process: usize, token: Token, command: Command) {
        let delay = 1 + self.profile.min_delay + self.delay(ChoiceKind::RequestDelay, process, 1);
        let request_lost = self.fault_happens(ChoiceKind::RequestLost, process, self.profile.lost_requests);
        let reply_lost = self.fault_happens(ChoiceKind::ReplyLost, process, self.profile.lost_replies);
        let duplicated = self.fault_happens(ChoiceKind::RequestDuplicated, process, self.profile.duplicated);
        let now = self.now;
        let slept = if self.bug == Bug::ClockStopsWhileFrozen { self.processes[process].slept } else { 0 };
        let Process { epoch, last_arrival, .. } = self.processes[process];
        let local = self.processes[process].clock(now - slept);
        let sent =
            Sent { process, requester, epoch, starts: self.server.starts, token, command, at: now, local };
        let mut arrival = (now + delay).max(last_arrival);
        let replied = !request_lost && !reply_lost && arrival < now + TIMEOUT;
        let late = !replied && !request_lost;
        if late {
            // A request without a reply may be executed much later, and later requests on its
            // connection follow it.
            arrival += self.up_to(ChoiceKind::RequestLate, process, 2 * TIMEOUT);
        }
        self.processes[process].last_arrival = arrival;
        if !replied {
            let reply = Reply::Unknown(self.no_reply.clone());
            self.at(now + TIMEOUT, Event::Replied { sent, reply });
        }
        if request_lost {
            self.cover(CoveragePoint::LostRequest);
            self.trace(|| format!("process {process} {}; the request is lost", display::command(command)));
            return;
        }
        if reply_lost {
            self.cover(CoveragePoint::LostReply);
        }
        if delay > 1 {
            self.cover(CoveragePoint::DelayedRequest);
        }
        self.at(arrival, Event::Executed { sent, replied, late });
        if duplicated {
            self.cover(CoveragePoint::DuplicatedRequest);
            self.at(arrival, Event::Executed { sent, replied: false, late: false });
        }
    }

    fn on_executed(&mut self, sent: Sent, replied: bool, late: bool) -> CheckResult {
        let Sent { process, token, command, starts, at, .. } = sent;
        if starts != self.server.starts {
            // The restart closed its connection.
            self.cover(CoveragePoint::Disconnected);
            if replied {
                let reply = Reply::Unknown(self.no_reply.clone().with_connection_lost());
                self.at(self.now + 1, Event::Replied { sent, reply });
            }
            return Ok(());
        }
        let reply = if self.now < self.server.down_until {
            self.cover(CoveragePoint::Unavailable);
            Reply::Refused(self.no_reply.clone())
        } else {
            if self.now > at + LATE_AFTER {
                self.expiring_tokens.insert(token);
            }
            if late && self.now >= at + TIMEOUT {
                self.cover(CoveragePoint::LateRequest);
                // Late execution is a fault, whenever the request was sent.
                self.invariants.faults_end = self.invariants.faults_end.max(self.now);
            }
            self.execute(token, command)?
        };
        if self.trace.is_enabled() {
            let (now, until) = (self.now, self.server.until(self.now));
            let since = if at + 1 < now { format!(" (sent at {at} ms)") } else { String::new() };
            let lost = if replied { "" } else { "; the reply is lost" };
            let (request, response) = (display::command(command), display::reply(command, &reply, until));
            self.trace(|| format!("process {process} {request}{since}; the server {response}{lost}"));
        }
        if let (Command::Inspect, Reply::Info(info)) = (command, &reply) {
            let has_waiters = info.is_none_or(|info| info.waiters > 0);
            self.cover(if has_waiters { CoveragePoint::Waiters } else { CoveragePoint::NoWaiters });
        }
        if let (Command::SetTtl { ttl }, Reply::Owner) = (command, &reply) {
            // The process may request a longer time for a body that still runs. A fast clock may
            // end that time up to 100 ms earlier.
            let requested = at + self.processes[process].span(millis(ttl)).saturating_sub(100);
            let min_hold = self.processes[process].span(self.profile.min_hold);
            self.invariants.on_retained(token, requested, min_hold, self.server.generation);
        }
        if replied {
            let delay = self.profile.min_delay + self.delay(ChoiceKind::ReplyDelay, process, 1);
            if delay > 0 {
                self.cover(CoveragePoint::DelayedReply);
            }
            if self.fault_happens(ChoiceKind::ReplyDuplicated, process, self.profile.duplicated) {
                self.cover(CoveragePoint::DuplicatedReply);
                let later = delay + self.delay(ChoiceKind::ReplyDelay, process, 5);
                self.at(self.now + later, Event::Replied { sent, reply: reply.clone() });
            }
            self.at(self.now + delay, Event::Replied { sent, reply });
        }
        Ok(())
    }

    /// Executes a command on the server and sends the grants that follow from it.
    fn execute(&mut self, token: Token, command: Command) -> Result<Reply, Box<Violation>> {
        let mut granted = Vec::new();
        let Self { processes, server, choices, profile, coverage, .. } = self;
        let notify = |token: Token, grant| {
            let process = processes.iter().position(|p| p.tokens.process() == token.process());
            let Some(process) = process else { return false };
            let is_skipped = profile.uncounted_grants > 0
                && processes[process].alive
                && choices.happens(ChoiceKind::UncountedGrant as usize, process, profile.uncounted_grants);
            if is_skipped {
                coverage.increment(CoveragePoint::UncountedGrant as usize);
            }
            let is_counted = processes[process].alive && !is_skipped;
            // A receiver that the server does not count still receives the message.
            granted.push((process, token, grant, is_counted));
            is_counted
        };
        let reply = server.run(token, command, self.now, self.config.grant_lease, self.bug, notify)?;
        if self.bug == Bug::SetTtlIgnored
            && matches!((command, &reply), (Command::SetTtl { .. }, Reply::Owner))
            && !self.invariants.holds.iter().flatten().any(|hold| hold.token == token)
        {
            server.run(
                token,
                Command::ReleaseWithoutHandoff,
                self.now,
                self.config.grant_lease,
                self.bug,
                |_, _| false,
            )?;
        }
        if matches!(reply, Reply::Owner) && profile.out_of_model != OutOfModelFault::None {
            self.invariants.granted_in.entry(token).or_insert(self.server.generation);
        }
        for (process, token, grant, is_counted) in granted {
            if is_counted && self.profile.out_of_model != OutOfModelFault::None {
                self.invariants.granted_in.entry(token).or_insert(self.server.generation);
            }
            self.send_grant(process, token, grant);
        }
        if self.profile.tracking && command.is_release() {
            for process in 0..self.processes.len() {
                let delay = self.up_to(ChoiceKind::Invalidation, process, 3 * self.profile.delay);
                self.at(self.now + delay, Event::Invalidation { process });
            }
        }
        Ok(reply)
    }

    /// Sends the message that grants the lock to a token.
    fn send_grant(&mut self, process: usize, token: Token, grant: Grant) {
        self.trace(|| format!("the server grants the lock to process {process}"));
        if self.fault_happens(ChoiceKind::GrantLost, process, self.profile.lost_grants) {
            self.cover(CoveragePoint::LostGrant);
            self.trace(|| format!("the grant message to process {process} is lost"));
            return;
        }
        let delay = self.profile.min_delay + self.delay(ChoiceKind::GrantDelay, process, 3);
        if delay > 0 {
            self.cover(CoveragePoint::DelayedGrant);
        }
        self.at(self.now + delay, Event::GrantReceived { process, token, grant, forged: false });
        if self.fault_happens(ChoiceKind::GrantDuplicated, process, self.profile.duplicated) {
            self.cover(CoveragePoint::DuplicatedGrant);
            let later = delay + self.delay(ChoiceKind::GrantDelay, process, 10);
            self.at(self.now + later, Event::GrantReceived { process, token, grant, forged: false });
        }
    }

    fn on_reply(&mut self, sent: Sent, reply: Reply) -> CheckResult {
        let Sent { process, requester, epoch, token, command, local, .. } = sent;
        let unknown = matches!(reply, Reply::Unknown(_));
        if let (Reply::Fenced(number), Some(acquisition)) = (&reply, requester) {
            self.cover(CoveragePoint::FencingToken);
            self.invariants.on_fencing_token(acquisition, *number)?;
        }
        let now = self.processes[process].clock(self.now);
        let current = &mut self.processes[process];
        if unknown && current.epoch == epoch {
            current.reconnect(self.now);
            let at = self.now + 1 + self.delay(ChoiceKind::ReplyDelay, process, 1);
            self.at(at, Event::Reconnected { process, moved: false });
        }
        if command.is_release() {
            let Process { orphans, key, .. } = &mut self.processes[process];
            if !orphans.left(token, &reply, epoch, now) && self.bug != Bug::NoCleanup {
                match reply {
                    Reply::Unknown(_) => orphans.add(key.clone(), token, epoch),
                    Reply::Refused(_) => orphans.add_unsent(key.clone(), token),
                    _ => {}
                }
            }
            self.schedule_cleanup(process);
            return Ok(());
        }
        let sent = if self.bug == Bug::DeadlineFromReply { now } else { local };
        self.with_key(process, |key_state, ctx| key_state.on_reply(token, command, sent, reply, ctx))
    }

    fn clean_up(&mut self, process: usize) {
        let now = self.processes[process].clock(self.now);
        for (_, token) in self.processes[process].orphans.due_now(now) {
            self.send(process, token, Command::Withdraw);
        }
        self.schedule_cleanup(process);
    }

    fn schedule_cleanup(&mut self, process: usize) {
        self.arm(process, self.processes[process].orphans.due());
    }

    fn check_end(&mut self) -> CheckResult {
        let alive = std::array::from_fn(|process| self.processes[process].alive);
        if self.processes.iter().any(|process| process.alive && !process.key_state.is_idle()) {
            return violation(
                "J6 nothing left",
                "a process still has state for the key, but none of its tasks wants the lock",
            );
        }
        self.invariants.check_end(alive)?;
        let mut left = self.server.tokens(self.now);
        left.retain(|token| !self.expiring_tokens.contains(token));
        let mut alive = self.processes.iter().filter(|process| process.alive);
        if alive.any(|process| left.iter().any(|token| token.process() == process.tokens.process())) {
            return violation("J6 nothing left", "a token of a live process is left in the server");
        }
        let longest = self.profile.lease + self.profile.lease_difference + self.profile.min_hold + 100;
        match self.server.until(self.now) {
            Some(until) if until > self.now + longest.max(self.profile.grant_lease) => {
                violation("P4 every key has a TTL", format!("the key lives until {until} ms"))
            }
            _ => Ok(()),
        }
    }
}

fn process_of_task(acquisition: u32) -> usize {
    (acquisition % PROCESSES) as usize
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
