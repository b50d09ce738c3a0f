//! The model: one server, and two or three processes with one task each.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use stateright::{Model, Property};

use super::state::{hash_as_printed, hash_record, same_hash, tokens_after};
use super::{check, scope};
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Command, EnqueueMode, Failure, FailureKind, RecordInfo, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::fencing;
use crate::protocol::foreign_clients::Grant;
use crate::protocol::hold::ReleaseOutcome;
use crate::protocol::hold_terms::HoldTerms;
use crate::protocol::key_state::{Action, EventContext, KeyState};
use crate::protocol::orphans::OrphanedTokens;
use crate::protocol::record::Record;
use crate::protocol::retry_state::{RetryLimits, RetryState};
use crate::protocol::wait_queue::QueueEntry;
use crate::retry::RetryPolicy;
use crate::token::Token;

/// The faults that may occur, and how often.
#[derive(Clone, Debug)]
struct ProtocolModel {
    clients: usize,
    /// Connections that break with the messages on them, and grants that are lost.
    losses: u8,
    cancellations: u8,
    restarts: u8,
    /// The time, in units, until which faults may occur.
    horizon: u64,
    renew: bool,
    fences: bool,
    bug: Bug,
}

/// A seeded bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    DeadlineFromReply,
    ReleaseByNonOwner,
    NoQueueRecheck,
    LeaseTooLong,
    FencingCounterResets,
}

/// One unit of time.
const UNIT: Duration = Duration::from_millis(100);
/// Two units and 0.5 ms. After two units, the server reports a remaining TTL of zero.
const LEASE: Duration = Duration::from_micros(200_500);
const CONFIG: ProtocolConfig = ProtocolConfig {
    grant_lease: Duration::from_micros(100_500),
    handoff_budget: Duration::ZERO,
    ..ProtocolConfig::DEFAULT
};
/// How long a task waits. It is long enough for the holds of all other tasks.
const WAIT: Duration = Duration::from_secs(6);

#[derive(Clone)]
struct State {
    /// In units.
    now: u64,
    record: Record,
    /// The last fencing token issued, and the last one that a holder received.
    fences: (u64, u64),
    clients: Vec<Client>,
    losses: u8,
    cancellations: u8,
    restarts: u8,
    violation: Option<&'static str>,
}

#[derive(Clone, Debug)]
struct Client {
    key_state: KeyState<u8>,
    contended: bool,
    tokens: u64,
    orphans: OrphanedTokens,
    epoch: u64,
    /// Requests in flight on the current connection, in order.
    requests: VecDeque<Sent>,
    /// Requests in flight on closed connections.
    late: Vec<Sent>,
    replies: VecDeque<(Sent, Reply)>,
    grants: VecDeque<(Token, Grant)>,
    task: Task,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    token: Token,
    command: Command,
    at: BootInstant,
    epoch: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    NotStarted,
    Waiting,
    Holds { until: BootInstant },
    Done,
    Rejected,
    Cancelled,
}

/// One step. The number is that of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    TaskStarts(usize),
    ServerReceives(usize),
    ServerReceivesLate(usize),
    ReplyArrives(usize),
    GrantArrives(usize),
    GrantIsLost(usize),
    ConnectionBreaks(usize),
    TimerIsDue(usize),
    BodyEnds(usize),
    TaskIsCancelled(usize),
    ServerRestarts,
    TimePasses,
}

impl State {
    fn time(&self) -> BootInstant {
        BootInstant::START.plus(UNIT * u32::try_from(self.now).unwrap_or(u32::MAX))
    }

    fn with_key(
        &mut self,
        model: &ProtocolModel,
        number: usize,
        event: impl FnOnce(&mut KeyState<u8>, &mut EventContext<'_, u8>),
    ) {
        let (now, client) = (self.time(), &mut self.clients[number]);
        let tokens = tokens_after(number as u64, client.tokens);
        let mut actions = Vec::new();
        let contended = &mut client.contended;
        event(
            &mut client.key_state,
            &mut EventContext { now, rules: &CONFIG, tokens: &tokens, actions: &mut actions, contended },
        );
        client.tokens = tokens.drawn();
        if !client.key_state.is_exclusive() {
            self.violation = Some("a process contends and holds, but does not yield");
        }
        for action in actions {
            self.run_action(model, number, &action);
        }
    }

    fn run_action(&mut self, model: &ProtocolModel, number: usize, action: &Action<u8>) {
        let now = self.time();
        let client = &mut self.clients[number];
        match *action {
            Action::Send { command: Command::Enqueue { mode: EnqueueMode::Recheck, .. }, .. }
                if model.bug == Bug::NoQueueRecheck => {}
            Action::Send { token, command } => client.send(token, command, now),
            Action::Orphan { token } => client.orphans.add("k".into(), token, client.epoch),
            Action::Grant { token, deadline, .. } => {
                if client.task != Task::Waiting {
                    self.violation = Some("a task gets two outcomes");
                }
                if !deadline.holds_at(now) {
                    self.violation = Some("a task is granted the lock at its deadline");
                }
                client.task = Task::Holds { until: deadline.at() };
                if model.fences {
                    client.send(token, Command::Fence, now);
                }
            }
            Action::Extend { deadline, .. } => {
                if let Task::Holds { until } = &mut client.task {
                    *until = deadline.at();
                }
            }
            Action::Revoke { left, .. } => {
                client.task = Task::Done;
                if let Some(left) = left {
                    self.with_key(model, number, |key_state, ctx| {
                        key_state.release_residual(left, true, ctx);
                    });
                }
            }
            Action::Reject { .. } => {
                if client.task != Task::Waiting {
                    self.violation = Some("a task gets two outcomes");
                }
                client.task = Task::Rejected;
            }
            Action::JoinNested { .. } => {}
        }
    }

    fn join(&mut self, model: &ProtocolModel, number: usize) {
        let limits = RetryLimits {
            retries: 0,
            wait: Some(WAIT),
            backoff: RetryPolicy::DEFAULT,
            response_timeout: WAIT,
            try_only: false,
        };
        let terms = HoldTerms::of_lease(LEASE).renew(model.renew);
        let waiter =
            QueueEntry { acquisition: 0, terms, retry_state: RetryState::new(self.time(), limits, 0) };
        self.clients[number].task = Task::Waiting;
        self.with_key(model, number, |key_state, ctx| key_state.join(waiter, ctx));
    }

    /// Executes a command on the server.
    fn execute(&mut self, model: &ProtocolModel, sent: Sent) -> Reply {
        let now = self.time();
        let holder = |record: &Record| record.tokens(now).first().copied();
        let before = holder(&self.record);
        let (mut granted, clients) = (Vec::new(), self.clients.len());
        let mut notify = |token: Token, grant| {
            granted.push((token, grant));
            true
        };
        if model.bug == Bug::ReleaseByNonOwner && sent.command.is_release() {
            self.record.run(sent.token, Command::ForceRelease, now, CONFIG.grant_lease, &mut notify);
        }
        let command = match sent.command {
            Command::Acquire { .. } if model.bug == Bug::LeaseTooLong => {
                Command::Acquire { lease: LEASE * 100 }
            }
            command => command,
        };
        let mut reply = self.record.run(sent.token, command, now, CONFIG.grant_lease, notify);
        if let (Command::Fence, Reply::Owner) = (command, &reply) {
            let last = (model.bug != Bug::FencingCounterResets && self.fences.0 > 0).then_some(self.fences.0);
            self.fences.0 = fencing::next(last, 1).expect("a few tokens");
            reply = Reply::Fenced(self.fences.0);
        }
        if before.is_some_and(|before| before != sent.token && holder(&self.record) != Some(before)) {
            self.violation = Some("a process released the lock of another process");
        }
        for (token, grant) in granted {
            let number =
                (0..clients).find(|number| tokens_after(*number as u64, 0).process() == token.process());
            if let Some(number) = number {
                self.clients[number].grants.push_back((token, grant));
            }
        }
        reply
    }

    fn on_reply(&mut self, model: &ProtocolModel, number: usize, sent: Sent, reply: Reply) {
        let now = self.time();
        if let Reply::Fenced(fence) = reply {
            // A holder receives a greater token than every holder before it.
            if matches!(self.clients[number].task, Task::Holds { until } if now < until) {
                if fence <= self.fences.1 {
                    self.violation = Some("a fencing token does not rise");
                }
                self.fences.1 = fence;
            }
            return;
        }
        let Sent { token, command, at, epoch } = sent;
        if command.is_release() {
            let orphans = &mut self.clients[number].orphans;
            if !orphans.left(token, &reply, epoch, now) && matches!(reply, Reply::Unknown(_)) {
                orphans.add("k".into(), token, epoch);
            }
            return;
        }
        let at = if model.bug == Bug::DeadlineFromReply { now } else { at };
        self.with_key(model, number, |key_state, ctx| key_state.on_reply(token, command, at, reply, ctx));
    }

    /// Breaks a connection: its requests get no reply.
    ///
    /// If `arrives_late`, the server may still receive the requests that it has not received yet.
    fn break_connection(&mut self, model: &ProtocolModel, number: usize, arrives_late: bool) {
        let client = &mut self.clients[number];
        let unreceived: Vec<_> = client.requests.drain(..).collect();
        let unread: Vec<_> = client.replies.drain(..).map(|(sent, _)| sent).collect();
        client.epoch += 1;
        if arrives_late {
            client.late.extend(unreceived.iter().copied());
        }
        for sent in unread.into_iter().chain(unreceived) {
            let failure = Failure::new(FailureKind::Passing, "no reply");
            self.on_reply(model, number, sent, Reply::Unknown(failure));
        }
        self.clients[number].orphans.retry_now(|_| true);
        self.with_key(model, number, |key_state, ctx| key_state.on_reconnect(false, ctx));
    }

    /// Adds the steps that are possible without a fault.
    fn fault_free_steps(&self, steps: &mut Vec<Step>) {
        let now = self.time();
        for (number, client) in self.clients.iter().enumerate() {
            if client.task == Task::NotStarted {
                steps.push(Step::TaskStarts(number));
            }
            if !client.requests.is_empty() {
                steps.push(Step::ServerReceives(number));
            }
            if !client.replies.is_empty() {
                steps.push(Step::ReplyArrives(number));
            }
            if !client.grants.is_empty() {
                steps.push(Step::GrantArrives(number));
            }
            if client.key_state.next_timeout().min(client.orphans.due()) <= now && client.requests.len() < 2 {
                steps.push(Step::TimerIsDue(number));
            }
            if matches!(client.task, Task::Holds { .. }) {
                steps.push(Step::BodyEnds(number));
            }
        }
    }

    /// Returns `true` if the server and all clients have no state left.
    fn is_over(&self) -> bool {
        let has_state = |client: &Client| !client.key_state.is_idle() || !client.orphans.is_empty();
        self.record.is_empty(self.time()) && !self.clients.iter().any(has_state)
    }

    /// Returns the number of tasks that consider the lock held.
    fn holders(&self) -> usize {
        let now = self.time();
        self.clients
            .iter()
            .filter(|client| matches!(client.task, Task::Holds { until } if now < until))
            .count()
    }
}

impl Client {
    fn send(&mut self, token: Token, command: Command, at: BootInstant) {
        self.requests.push_back(Sent { token, command, at, epoch: self.epoch });
    }
}

impl Model for ProtocolModel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let client = Client {
            key_state: KeyState::new(),
            contended: false,
            tokens: 0,
            orphans: OrphanedTokens::default(),
            epoch: 1,
            requests: VecDeque::new(),
            late: Vec::new(),
            replies: VecDeque::new(),
            grants: VecDeque::new(),
            task: Task::NotStarted,
        };
        vec![State {
            now: 0,
            record: Record::default(),
            fences: (0, 0),
            clients: vec![client; self.clients],
            losses: self.losses,
            cancellations: self.cancellations,
            restarts: self.restarts,
            violation: None,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        state.fault_free_steps(steps);
        if state.now >= self.horizon {
            // One order of the remaining steps suffices.
            steps.truncate(1);
            if steps.is_empty() && !state.is_over() {
                steps.push(Step::TimePasses);
            }
            return;
        }
        for (number, client) in state.clients.iter().enumerate() {
            if !client.late.is_empty() {
                steps.push(Step::ServerReceivesLate(number));
            }
            if state.losses > 0 && !client.grants.is_empty() {
                steps.push(Step::GrantIsLost(number));
            }
            if state.losses > 0 && !(client.requests.is_empty() && client.replies.is_empty()) {
                steps.push(Step::ConnectionBreaks(number));
            }
            if state.cancellations > 0 && client.task == Task::Waiting {
                steps.push(Step::TaskIsCancelled(number));
            }
        }
        let is_busy = |client: &Client| !(client.requests.is_empty() && client.replies.is_empty());
        if state.restarts > 0 && state.now < 2 && state.clients.iter().any(is_busy) {
            steps.push(Step::ServerRestarts);
        }
        steps.push(Step::TimePasses);
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::TaskStarts(number) => state.join(self, number),
            Step::ServerReceives(number) => {
                let sent = state.clients[number].requests.pop_front()?;
                let reply = state.execute(self, sent);
                state.clients[number].replies.push_back((sent, reply));
            }
            Step::ServerReceivesLate(number) => {
                let sent = state.clients[number].late.remove(0);
                state.execute(self, sent);
            }
            Step::ReplyArrives(number) => {
                let (sent, reply) = state.clients[number].replies.pop_front()?;
                state.on_reply(self, number, sent, reply);
            }
            Step::GrantArrives(number) => {
                let (token, grant) = state.clients[number].grants.pop_front()?;
                let mut known = true;
                state.with_key(self, number, |key_state, ctx| known = key_state.on_grant(token, grant, ctx));
                if !known {
                    let now = state.time();
                    state.clients[number].send(token, Command::Withdraw, now);
                }
            }
            Step::GrantIsLost(number) => {
                state.losses -= 1;
                state.clients[number].grants.pop_front()?;
            }
            Step::ConnectionBreaks(number) => {
                state.losses -= 1;
                state.break_connection(self, number, true);
            }
            Step::TimerIsDue(number) => {
                let now = state.time();
                for (_, token) in state.clients[number].orphans.due_now(now) {
                    state.clients[number].send(token, Command::Withdraw, now);
                }
                state.with_key(self, number, KeyState::on_timeout);
            }
            Step::BodyEnds(number) => {
                state.clients[number].task = Task::Done;
                let mut released = ReleaseOutcome::HandedOff;
                state.with_key(self, number, |key_state, ctx| released = key_state.release(&0, ctx));
                if let ReleaseOutcome::Send(token, command) = released {
                    let now = state.time();
                    state.clients[number].send(token, command, now);
                }
            }
            Step::TaskIsCancelled(number) => {
                state.cancellations -= 1;
                state.clients[number].task = Task::Cancelled;
                state.with_key(self, number, |key_state, ctx| {
                    key_state.leave(&0, ctx);
                });
            }
            Step::ServerRestarts => {
                state.restarts -= 1;
                for number in 0..state.clients.len() {
                    state.break_connection(self, number, false);
                }
            }
            Step::TimePasses => {
                state.now += 1;
                if state.now == self.horizon {
                    state.clients.iter_mut().for_each(|client| client.late.clear());
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("mutual exclusion", |_, state: &State| state.holders() < 2),
            Property::always("no other violation", |_, state: &State| state.violation.is_none()),
            Property::always("every key has a TTL of at most the lease", |_, state: &State| {
                let stranger = tokens_after(u64::MAX, 0).next();
                let reply =
                    state.record.clone().run(stranger, Command::Inspect, state.time(), UNIT, |_, _| false);
                match reply {
                    Reply::Info(Some(RecordInfo { ttl, .. })) => ttl.is_some_and(|ttl| ttl <= LEASE),
                    _ => true,
                }
            }),
            Property::always(
                "at the end every task was granted the lock or cancelled",
                |model: &ProtocolModel, state: &State| {
                    let mut steps = Vec::new();
                    model.actions(state, &mut steps);
                    let is_done = |client: &Client| matches!(client.task, Task::Done | Task::Cancelled);
                    !steps.is_empty() || (state.is_over() && state.clients.iter().all(is_done))
                },
            ),
            Property::eventually("a task is granted the lock", |model: &ProtocolModel, state: &State| {
                let was_granted = |client: &Client| matches!(client.task, Task::Holds { .. } | Task::Done);
                model.cancellations > 0 || state.clients.iter().any(was_granted)
            }),
            Property::sometimes("the server hands off the lock", |_, state: &State| {
                state.clients.iter().any(|client| !client.grants.is_empty())
            }),
        ]
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self { now, record, fences, clients, losses, cancellations, restarts, violation } = self;
        (now, fences, losses, cancellations, restarts, violation).hash(hasher);
        hash_record(record, self.time(), hasher);
        hash_as_printed(clients, hasher);
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {:?}", self.now, self.record, self.clients)
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        same_hash(self, other)
    }
}

/// Two processes, and one loss.
const SMALL: ProtocolModel = ProtocolModel {
    clients: 2,
    losses: 1,
    cancellations: 0,
    restarts: 0,
    horizon: 3,
    renew: false,
    fences: false,
    bug: Bug::None,
};

#[test]
fn every_schedule_of_two_processes_keeps_the_promises() {
    let models = [
        ("a loss", ProtocolModel { horizon: 2, ..SMALL }),
        ("a cancelled task", ProtocolModel { losses: 0, cancellations: 1, ..SMALL }),
        ("a restart of the server", ProtocolModel { losses: 0, restarts: 1, horizon: 1, ..SMALL }),
        ("renewals", ProtocolModel { losses: 0, renew: true, ..SMALL }),
        ("fencing tokens", ProtocolModel { losses: 0, fences: true, ..SMALL }),
    ];
    for (what, model) in models {
        let model = ProtocolModel { horizon: model.horizon + scope() as u64 - 1, ..model };
        if let Err(message) = check(&format!("one server, two processes, {what}"), model) {
            panic!("{what}: {message}");
        }
    }
}

#[test]
fn every_schedule_of_three_processes_keeps_the_promises() {
    let model = ProtocolModel { clients: 3, losses: 0, horizon: scope() as u64, ..SMALL };
    if let Err(message) = check("one server, three processes", model) {
        panic!("{message}");
    }
}

#[test]
fn a_seeded_bug_is_reported_with_its_steps() {
    for (bug, what) in [
        (Bug::DeadlineFromReply, "mutual exclusion"),
        (Bug::ReleaseByNonOwner, "no other violation"),
        (Bug::NoQueueRecheck, "at the end every task was granted"),
        (Bug::LeaseTooLong, "every key has a TTL"),
        (Bug::FencingCounterResets, "no other violation"),
    ] {
        let horizon = if bug == Bug::NoQueueRecheck { 1 } else { 3 };
        let (fences, losses) = (bug == Bug::FencingCounterResets, u8::from(bug == Bug::NoQueueRecheck));
        let message = check(&format!("{bug:?}"), ProtocolModel { losses, horizon, fences, bug, ..SMALL });
        let message = message.expect_err("a seeded bug is detected");
        println!("{bug:?} is detected: {message}");
        assert!(message.contains(what), "{bug:?}: {message}");
    }
}
