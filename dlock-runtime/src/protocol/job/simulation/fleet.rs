//! The replicas of a service, a server, and the messages between them.

use std::collections::BTreeMap;

use super::JobCoverage;
use super::starts::Starts;
use crate::protocol::job::begin::{BeginKind, BeginReply, BeginRequest, CrashedRun, Overlap, SkipReason};
use crate::protocol::job::job_record::{FinishRequest, JobRecord, OwnerReply, RunResult};
use crate::protocol::simulation::choices::ChoiceSource;
use crate::token::Token;

/// The period of the job and its lease, in milliseconds.
const PERIOD: u64 = 10_000;
const LEASE: u64 = 3_000;
const TIMEOUT: u64 = 500;
/// The true time at which the simulation starts and ends.
const START: u64 = 10_000_000;
const END: u64 = START + 12 * PERIOD;
const HOUR: u64 = 3_600_000;

/// The kinds of random choices.
mod kind {
    pub(super) const SETUP: usize = 0;
    pub(super) const DELAY: usize = 1;
    pub(super) const LOSS: usize = 2;
    pub(super) const BODY: usize = 3;
    pub(super) const CRASH: usize = 4;
    pub(super) const FREEZE: usize = 5;
    pub(super) const TIMER: usize = 6;
    pub(super) const OPERATOR: usize = 7;
    pub(super) const DEPLOYMENT: usize = 8;
}

#[derive(Clone, Debug)]
enum Event {
    /// The timer of a replica fires.
    Timer,
    /// A request arrives at the server.
    Begin {
        request: BeginRequest,
        sent: u64,
    },
    /// The reply of the server arrives.
    Begun {
        request: BeginRequest,
        sent: u64,
        reply: BeginReply,
        server_time: u64,
    },
    /// No reply has arrived in time, or the reply was that the slot `waits`.
    TimedOut {
        request: BeginRequest,
        sent: u64,
        waits: bool,
    },
    /// A run whose reply is missing is given back, which it may not need.
    Undo {
        owner: Token,
    },
    /// A replica that catches up asks again.
    Again,
    /// It is time to renew.
    Renewal {
        owner: Token,
    },
    Renew {
        owner: Token,
        sent: u64,
    },
    Renewed {
        owner: Token,
        sent: u64,
        reply: OwnerReply,
    },
    /// The body ends.
    BodyEnds {
        owner: Token,
    },
    Finish {
        end: FinishRequest,
    },
    /// An operator changes the job.
    Operator,
    Crash,
}

/// One process with a clock of its own.
#[derive(Debug)]
struct Replica {
    /// Its clock minus true time, plus [`HOUR`].
    offset: u64,
    /// The server's clock minus its own, plus two hours, as far as it knows.
    correction: u64,
    frozen_until: u64,
    /// When the new version is deployed to it. Its schedule has the same ticks, and another text.
    deployed_at: u64,
    run: Option<LocalRun>,
    /// The request in flight, and when it was last sent.
    request: Option<(Token, u64)>,
}

/// The run of a replica, as the replica knows it.
#[derive(Debug)]
struct LocalRun {
    owner: Token,
    valid_until: u64,
    result: RunResult,
}

struct Fleet {
    now: u64,
    events: BTreeMap<(u64, u64), (usize, Event)>,
    sequence: u64,
    choices: ChoiceSource,
    replicas: Vec<Replica>,
    record: JobRecord,
    /// How far the server's clock has stepped back.
    stepped_back: u64,
    /// No message arrives before this time.
    outage_until: u64,
    template: BeginRequest,
    /// Whether missed slots run before the current one: all of them.
    catches_up: bool,
    starts: Starts,
    coverage: JobCoverage,
}

/// Runs one schedule.
///
/// # Errors
///
/// The violated invariant.
pub(super) fn run(seed: u64) -> Result<JobCoverage, String> {
    let mut fleet = Fleet::new(seed);
    while let Some(((at, _), (replica, event))) = fleet.events.pop_first() {
        fleet.now = at;
        let is_local = !matches!(
            event,
            Event::Begin { .. } | Event::Renew { .. } | Event::Finish { .. } | Event::Operator
        );
        let frozen_until = fleet.replicas[replica].frozen_until;
        if is_local && at < frozen_until {
            fleet.push(frozen_until, replica, event);
            continue;
        }
        fleet.on_event(replica, event)?;
    }
    fleet.coverage.starts = fleet.starts.len();
    fleet.coverage.restarts = fleet.starts.of_attempts_after_the_first();
    fleet.coverage.missed = fleet.starts.of_missed_slots();
    Ok(fleet.coverage)
}

impl Fleet {
    fn new(seed: u64) -> Self {
        let mut choices = ChoiceSource::new(seed);
        let mut setup = |subject, bound| choices.up_to(kind::SETUP, subject, bound);
        let count = 2 + setup(0, 3);
        let overlap = match setup(1, 2) {
            0 => Overlap::Skip,
            1 => Overlap::QueueOne,
            _ => Overlap::CancelPrevious,
        };
        let crashed = if setup(2, 1) == 0 { CrashedRun::Rerun } else { CrashedRun::Skip };
        let template = BeginRequest {
            kind: BeginKind::Requested,
            owner: Token::of_numbers(0, 0).expect("a small number"),
            node: String::new(),
            spec: String::new(),
            lease: LEASE,
            overlap,
            crashed,
            retries: u32::try_from(setup(3, 2)).unwrap_or_default(),
            min_hold: setup(5, 1) * PERIOD / 2,
        };
        let catches_up = setup(6, 1) == 1;
        // Clocks differ by up to half a period in either direction.
        let offsets: Vec<_> = (0..count).map(|_| HOUR - PERIOD / 2 + setup(4, PERIOD)).collect();
        let is_deployed = choices.happens(kind::DEPLOYMENT, 0, 50);
        let mut replica = |offset| Replica {
            offset,
            correction: 2 * HOUR,
            frozen_until: 0,
            deployed_at: if is_deployed {
                START + choices.up_to(kind::DEPLOYMENT, 1, END - START)
            } else {
                u64::MAX
            },
            run: None,
            request: None,
        };
        let replicas = offsets.into_iter().map(&mut replica).collect();
        let mut fleet = Self {
            now: START,
            events: BTreeMap::new(),
            sequence: 0,
            choices,
            replicas,
            record: JobRecord::default(),
            stepped_back: 0,
            outage_until: 0,
            template,
            catches_up,
            starts: Starts::default(),
            coverage: JobCoverage::default(),
        };
        for replica in 0..fleet.replicas.len() {
            fleet.schedule_timer(replica);
        }
        fleet.push(START + 3 * PERIOD, 0, Event::Operator);
        fleet.push(START + 4 * PERIOD, 1, Event::Crash);
        fleet
    }

    fn push(&mut self, at: u64, replica: usize, event: Event) {
        self.sequence += 1;
        self.events.insert((at, self.sequence), (replica, event));
    }

    fn choose(&mut self, kind: usize, replica: usize, bound: u64) -> u64 {
        self.choices.up_to(kind, replica, bound)
    }

    fn owner(&mut self) -> Token {
        self.sequence += 1;
        Token::of_numbers(7, self.sequence).expect("a small number")
    }

    fn server_time(&self) -> u64 {
        self.now - self.stepped_back
    }

    /// Sends a message that arrives late, or not at all.
    fn send(&mut self, replica: usize, event: Event) {
        if self.now < self.outage_until || self.choices.happens(kind::LOSS, replica, 5) {
            self.coverage.lost_replies += 1;
            return;
        }
        let slow = if self.choices.happens(kind::DELAY, replica, 5) { 2 * LEASE } else { 20 };
        let delay = 1 + self.choose(kind::DELAY, replica, slow);
        self.push(self.now + delay, replica, event);
    }

    /// Sets the next timer of a replica: near its own tick, or at any time.
    fn schedule_timer(&mut self, replica: usize) {
        let offset = self.replicas[replica].offset;
        let local = self.now + offset;
        let next = (local / PERIOD + 1) * PERIOD - offset;
        let late = if self.choices.happens(kind::TIMER, replica, 30) { PERIOD - 1 } else { 5 };
        let at = next + self.choose(kind::TIMER, replica, late);
        if at < END {
            self.push(at, replica, Event::Timer);
        }
    }

    fn on_event(&mut self, replica: usize, event: Event) -> Result<(), String> {
        match event {
            Event::Timer => {
                self.schedule_timer(replica);
                self.freeze_sometimes(replica);
                self.begin(replica);
            }
            Event::Begin { request, sent } => self.on_begin(replica, request, sent)?,
            Event::Begun { request, sent, reply, server_time } => {
                self.on_begun(replica, request, sent, reply, server_time);
            }
            Event::TimedOut { request, sent, waits }
                if self.replicas[replica].request == Some((request.owner, sent))
                    && self.now < 2 * END - START =>
            {
                if !waits && self.choices.happens(kind::LOSS, replica, 20) {
                    self.give_up(replica, request.owner);
                } else {
                    // The same owner again: the first request may have run.
                    self.send_begin(replica, request);
                }
            }
            Event::TimedOut { .. } => {}
            Event::Undo { owner } => self.send_end(replica, owner, RunResult::Unstarted),
            Event::Again => self.begin(replica),
            Event::Renewal { owner } => self.on_renewal(replica, owner),
            Event::Renew { owner, sent } => {
                let reply = self.record.renew(self.server_time(), owner, LEASE);
                self.send(replica, Event::Renewed { owner, sent, reply });
            }
            Event::Renewed { owner, sent, reply } => self.on_renewed(replica, owner, sent, reply),
            Event::BodyEnds { owner } => self.on_body_ends(replica, owner),
            Event::Finish { end } => {
                let (owner, result) = (end.owner, end.result);
                let is_active = self.record.run.as_ref().is_some_and(|run| run.owner == owner);
                if self.record.finish(self.server_time(), end) == OwnerReply::NotOwner {
                    self.coverage.late_ends += 1;
                } else if is_active {
                    self.coverage.given_back += u64::from(result == RunResult::Unstarted);
                    self.starts.on_end(owner, result);
                }
            }
            Event::Operator => self.on_operator(),
            Event::Crash => self.crash(replica),
        }
        Ok(())
    }

    /// Asks for the tick that is current by the replica's knowledge of the server's clock.
    fn begin(&mut self, replica: usize) {
        let owner = self.owner();
        let Replica { offset, correction, run, request, .. } = &mut self.replicas[replica];
        if run.is_some() || request.is_some() {
            return;
        }
        *request = Some((owner, self.now));
        let server_time = self.now + *offset + *correction - 3 * HOUR;
        let slot = (server_time + PERIOD / 2) / PERIOD * PERIOD;
        let window = (slot - PERIOD / 2, slot + PERIOD / 2);
        let kind = if self.record.request.is_some() && self.choices.happens(kind::OPERATOR, replica, 50) {
            self.coverage.requested += 1;
            BeginKind::Requested
        } else {
            BeginKind::Tick { slot, window, previous: self.catches_up.then(|| slot - PERIOD) }
        };
        let request = self.request_of(replica, kind, owner);
        self.send_begin(replica, request);
    }

    /// Asks for the first missed slot after `since`.
    fn begin_missed(&mut self, replica: usize, since: u64) {
        let (owner, kind) = (self.owner(), BeginKind::Missed { slot: (since / PERIOD + 1) * PERIOD });
        let request = self.request_of(replica, kind, owner);
        self.send_begin(replica, request);
    }

    fn request_of(&self, replica: usize, kind: BeginKind, owner: Token) -> BeginRequest {
        let is_new = self.now >= self.replicas[replica].deployed_at;
        let spec = if is_new { "new" } else { "old" }.to_owned();
        BeginRequest { kind, owner, spec, ..self.template.clone() }
    }

    /// Asks again later, if a replica catches up.
    fn begin_later(&mut self, replica: usize, pause: u64) {
        if self.catches_up && self.now + pause < END {
            self.push(self.now + pause, replica, Event::Again);
        }
    }

    /// Gives back the run of a request without a reply: now, and when the request may have taken
    /// effect late.
    fn give_up(&mut self, replica: usize, owner: Token) {
        self.replicas[replica].request = None;
        self.send_end(replica, owner, RunResult::Unstarted);
        self.push(self.now + 1_000, replica, Event::Undo { owner });
        self.begin_later(replica, 1_000);
    }

    fn send_end(&mut self, replica: usize, owner: Token, result: RunResult) {
        let end = FinishRequest { owner, result, error: String::new(), missed: None };
        self.send(replica, Event::Finish { end });
    }

    fn send_begin(&mut self, replica: usize, request: BeginRequest) {
        let sent = self.now;
        self.replicas[replica].request = Some((request.owner, sent));
        let timeout = Event::TimedOut { request: request.clone(), sent, waits: false };
        self.push(sent + TIMEOUT, replica, timeout);
        self.send(replica, Event::Begin { request, sent });
    }

    fn on_begin(&mut self, replica: usize, request: BeginRequest, sent: u64) -> Result<(), String> {
        let server_time = self.server_time();
        let spec = self.record.spec.clone();
        let reply = self.record.begin(server_time, &request);
        if self.record.spec != spec {
            self.coverage.schedule_changes += u64::from(!spec.is_empty());
            self.starts.on_schedule(server_time);
        }
        if let BeginReply::Missed { since, is_running: false } = reply {
            self.starts.on_missed(since)?;
        }
        if let BeginReply::Skip(SkipReason::Paused | SkipReason::Overlap { .. }) = reply
            && let BeginKind::Tick { slot, .. } = request.kind
        {
            self.starts.on_skip(slot);
            if let BeginReply::Skip(SkipReason::Overlap { lease_left }) = reply {
                let run = self.record.run.as_ref().filter(|_| self.catches_up);
                if let Some(run) = run.filter(|run| self.starts.is_missed(run.owner)) {
                    return Err(format!("{slot} is skipped for a missed slot that runs: {run:?}"));
                }
                if request.overlap == Overlap::QueueOne {
                    self.coverage.skips_for_waiting += u64::from(lease_left == 0);
                    self.starts.on_overlap(slot, server_time)?;
                }
            }
        }
        if let BeginReply::Wait { .. } = reply
            && let BeginKind::Tick { slot, .. } = request.kind
        {
            self.starts.on_wait(slot, server_time);
        }
        if let BeginReply::Run(grant) = reply {
            // A slot that waited when the server's clock stepped back was due before.
            let is_early = request.kind != BeginKind::Requested && grant.slot > self.now + PERIOD / 2;
            if self.starts.on_run((self.now, server_time), &request, grant)? && is_early {
                return Err(format!("{grant:?} starts too early, at {server_time}"));
            }
        }
        self.send(replica, Event::Begun { request, sent, reply, server_time });
        Ok(())
    }

    fn on_begun(
        &mut self,
        replica: usize,
        request: BeginRequest,
        sent: u64,
        reply: BeginReply,
        server_time: u64,
    ) {
        let (now, owner) = (self.now, request.owner);
        let known = &mut self.replicas[replica];
        if known.request.is_none_or(|(current, _)| current != owner) {
            return;
        }
        known.correction = server_time + 3 * HOUR - (sent + known.offset);
        known.request = None;
        match reply {
            BeginReply::Run(_) => {
                let valid_until = sent + LEASE;
                if now >= valid_until {
                    return; // its lease is over before it starts
                }
                known.run = Some(LocalRun { owner, valid_until, result: RunResult::Succeeded });
                self.starts.on_valid(owner, valid_until);
                let long = if self.choices.happens(kind::BODY, replica, 30) { 2 * PERIOD } else { 50 };
                let body = 1 + self.choose(kind::BODY, replica, long);
                self.push(now + body, replica, Event::BodyEnds { owner });
                self.push(now + LEASE / 3, replica, Event::Renewal { owner });
                if self.choices.happens(kind::CRASH, replica, 5) {
                    self.push(now + body / 2, replica, Event::Crash);
                }
                self.freeze_sometimes(replica);
            }
            BeginReply::Wait { .. } => {
                self.coverage.waits += 1;
                known.request = Some((owner, now));
                self.push(now + 200, replica, Event::TimedOut { request, sent: now, waits: true });
                if self.choices.happens(kind::FREEZE, replica, 20) {
                    self.freeze_sometimes(replica); // so that the run ends between two requests
                }
            }
            BeginReply::OtherTick => {
                self.coverage.corrected_clocks += 1;
                self.begin(replica);
            }
            BeginReply::Missed { is_running: true, .. } => self.begin_later(replica, 1_000),
            BeginReply::Missed { since, is_running: false } => self.begin_missed(replica, since),
            BeginReply::Skip(reason) if matches!(request.kind, BeginKind::Missed { .. }) => {
                let is_running = matches!(reason, SkipReason::Running { .. });
                self.begin_later(replica, if is_running { 1_000 } else { 1 });
            }
            BeginReply::Skip(_) => {}
        }
    }

    fn on_renewal(&mut self, replica: usize, owner: Token) {
        let sent = self.now;
        let is_valid = |run: &LocalRun| run.owner == owner && run.valid_until > sent;
        if self.replicas[replica].run.as_ref().is_some_and(is_valid) {
            self.push(sent + LEASE / 3, replica, Event::Renewal { owner });
            self.send(replica, Event::Renew { owner, sent });
        }
    }

    fn on_renewed(&mut self, replica: usize, owner: Token, sent: u64, reply: OwnerReply) {
        let now = self.now;
        let Some(run) = self.replicas[replica].run.as_mut().filter(|run| run.owner == owner) else { return };
        match reply {
            OwnerReply::Owner if run.valid_until > now => {
                run.valid_until = run.valid_until.max(sent + LEASE);
                let until = run.valid_until;
                self.starts.on_valid(owner, until);
            }
            OwnerReply::Cancelled => {
                self.coverage.cancels += 1;
                run.result = RunResult::Cancelled;
                self.on_body_ends(replica, owner);
            }
            OwnerReply::Owner | OwnerReply::NotOwner => {}
        }
    }

    fn on_body_ends(&mut self, replica: usize, owner: Token) {
        let Some(run) = self.replicas[replica].run.take_if(|run| run.owner == owner) else { return };
        self.starts.on_crash(owner); // it is not polled again
        let fails = run.result == RunResult::Succeeded && self.choices.happens(kind::BODY, replica, 20);
        self.send_end(replica, owner, if fails { RunResult::Failed } else { run.result });
        self.begin_later(replica, 50);
    }

    fn crash(&mut self, replica: usize) {
        let known = &mut self.replicas[replica];
        known.request = None;
        if let Some(run) = known.run.take() {
            self.coverage.crashes += 1;
            self.starts.on_crash(run.owner);
        }
    }

    fn freeze_sometimes(&mut self, replica: usize) {
        if self.choices.happens(kind::FREEZE, replica, 5) {
            self.coverage.freezes += 1;
            self.replicas[replica].frozen_until = self.now + self.choose(kind::FREEZE, replica, 3 * LEASE);
        }
    }

    fn on_operator(&mut self) {
        let now = self.server_time();
        match self.choose(kind::OPERATOR, 0, 5) {
            1 => {
                self.record.request_run(now);
            }
            _ if self.record.is_paused => {
                let run = self.record.run.as_ref();
                let active = run.filter(|run| !run.is_requested && run.lease_end > now);
                self.starts.on_resume(now, active.map(|run| run.slot));
                self.record.set_paused(now, false);
            }
            2 => self.record.set_paused(now, true),
            3 if self.stepped_back == 0 => {
                self.coverage.steps_back += 1;
                self.stepped_back = HOUR;
            }
            4 => {
                self.coverage.outages += 1;
                self.outage_until = self.now + PERIOD + self.choose(kind::OPERATOR, 1, 2 * PERIOD);
            }
            _ => {}
        }
        // Some pauses are shorter than the time for which a tick waits.
        let pause = if self.record.is_paused { 1 + self.choose(kind::OPERATOR, 0, PERIOD) } else { PERIOD };
        if self.now + pause < END {
            self.push(self.now + pause, 0, Event::Operator);
        }
    }
}
