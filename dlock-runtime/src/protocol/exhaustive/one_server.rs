//! Two or three processes with one task each, and one server.

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

/// What may happen, and how often.
#[derive(Clone, Debug)]
struct World {
    clients: usize,
    /// Connections that break with what is on them, and grants that are lost.
    losses: u8,
    gives_up: u8,
    restarts: u8,
    /// Units of time in which all may happen.
    horizon: u64,
    renew: bool,
    fences: bool,
    bug: Bug,
}

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    DeadlineFromTheReply,
    AnybodyReleases,
    NobodyAsksAgain,
    NoTimeToLive,
    CounterGoesBack,
}

/// One unit.
const UNIT: Duration = Duration::from_millis(100);
/// Two units, and a little: in the last one a server says that it has none left.
const LEASE: Duration = Duration::from_micros(200_500);
const RULES: ProtocolConfig = ProtocolConfig {
    grant_lease: Duration::from_micros(100_500),
    handoff_budget: Duration::ZERO,
    ..ProtocolConfig::DEFAULT
};
/// How long a task waits, which is long enough for every turn of the others.
const WAIT: Duration = Duration::from_secs(6);

#[derive(Clone)]
struct State {
    /// In units.
    now: u64,
    record: Record,
    /// The last fencing token that was issued, and the last that somebody was given.
    fences: (u64, u64),
    clients: Vec<Client>,
    losses: u8,
    gives_up: u8,
    restarts: u8,
    wrong: Option<&'static str>,
}

#[derive(Clone, Debug)]
struct Client {
    key_state: KeyState<u8>,
    contended: bool,
    tokens: u64,
    abandoned: OrphanedTokens,
    epoch: u64,
    /// On their way to the server, in their order; and those on connections that are gone.
    requests: VecDeque<Sent>,
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
    ToCome,
    WaitGraph,
    Holds { until: BootInstant },
    WasIn,
    Refused,
    GaveUp,
}

/// One step; a number is a client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContenderState {
    TaskComes(usize),
    ServerHears(usize),
    ServerHearsLate(usize),
    AnswerComes(usize),
    GrantComes(usize),
    GrantIsLost(usize),
    ConnectionBreaks(usize),
    TimerIsDue(usize),
    BodyEnds(usize),
    GivesUp(usize),
    ServerRestarts,
    TimePasses,
}

impl State {
    fn time(&self) -> BootInstant {
        BootInstant::START.plus(UNIT * u32::try_from(self.now).unwrap_or(u32::MAX))
    }

    fn with_key(
        &mut self,
        world: &World,
        number: usize,
        event: impl FnOnce(&mut KeyState<u8>, &mut EventContext<'_, u8>),
    ) {
        let (now, client) = (self.time(), &mut self.clients[number]);
        let tokens = tokens_after(number as u64, client.tokens);
        let mut actions = Vec::new();
        let contended = &mut client.contended;
        event(
            &mut client.key_state,
            &mut EventContext { now, rules: &RULES, tokens: &tokens, actions: &mut actions, contended },
        );
        client.tokens = tokens.drawn();
        for action in actions {
            self.act(world, number, &action);
        }
    }

    fn act(&mut self, world: &World, number: usize, action: &Action<u8>) {
        let now = self.time();
        let client = &mut self.clients[number];
        match *action {
            Action::Send { command: Command::Enqueue { mode: EnqueueMode::Recheck, .. }, .. }
                if world.bug == Bug::NobodyAsksAgain => {}
            Action::Send { token, command } => client.send(token, command, now),
            Action::Orphan { token } => client.abandoned.add("k".into(), token, client.epoch),
            Action::Grant { token, deadline, .. } => {
                if client.task != Task::WaitGraph {
                    self.wrong = Some("a task is told twice");
                }
                if !deadline.holds_at(now) {
                    self.wrong = Some("a task is let in at its deadline");
                }
                client.task = Task::Holds { until: deadline.at() };
                if world.fences {
                    client.send(token, Command::Fence, now);
                }
            }
            Action::Extend { deadline, .. } => {
                if let Task::Holds { until } = &mut client.task {
                    *until = deadline.at();
                }
            }
            Action::Revoke { acquisition, left, .. } => {
                client.task = Task::WasIn;
                if let Some(left) = left {
                    self.with_key(world, number, |key_state, ctx| {
                        key_state.release_residual(&acquisition, left, true, ctx)
                    });
                }
            }
            Action::Reject { .. } => {
                if client.task != Task::WaitGraph {
                    self.wrong = Some("a task is told twice");
                }
                client.task = Task::Refused;
            }
            Action::JoinNested { .. } => {}
        }
    }

    fn join(&mut self, world: &World, number: usize) {
        let limits = RetryLimits {
            retries: 0,
            wait: Some(WAIT),
            backoff: RetryPolicy::DEFAULT,
            response_timeout: WAIT,
            try_only: false,
        };
        let terms = HoldTerms::of_lease(LEASE).renew(world.renew);
        let waiter =
            QueueEntry { acquisition: 0, terms, retry_state: RetryState::new(self.time(), limits, 0) };
        self.clients[number].task = Task::WaitGraph;
        self.with_key(world, number, |key_state, ctx| key_state.join(waiter, ctx));
    }

    /// The server does a command.
    fn execute(&mut self, world: &World, sent: Sent) -> Reply {
        let now = self.time();
        let holder = |record: &Record| record.tokens(now).first().copied();
        let before = holder(&self.record);
        let (mut granted, clients) = (Vec::new(), self.clients.len());
        let mut told = |token: Token, offer| {
            granted.push((token, offer));
            true
        };
        if world.bug == Bug::AnybodyReleases && sent.command.is_release() {
            self.record.run(sent.token, Command::ForceRelease, now, RULES.grant_lease, &mut told);
        }
        let command = match sent.command {
            Command::Acquire { .. } if world.bug == Bug::NoTimeToLive => {
                Command::Acquire { lease: LEASE * 100 }
            }
            command => command,
        };
        let mut reply = self.record.run(sent.token, command, now, RULES.grant_lease, told);
        if let (Command::Fence, Reply::Owner) = (command, &reply) {
            let last = (world.bug != Bug::CounterGoesBack && self.fences.0 > 0).then_some(self.fences.0);
            self.fences.0 = fencing::next(last, 1).expect("a few tokens");
            reply = Reply::Fenced(self.fences.0);
        }
        if before.is_some_and(|before| before != sent.token && holder(&self.record) != Some(before)) {
            self.wrong = Some("somebody released the lock of another");
        }
        for (token, offer) in granted {
            let number =
                (0..clients).find(|number| tokens_after(*number as u64, 0).process() == token.process());
            if let Some(number) = number {
                self.clients[number].grants.push_back((token, offer));
            }
        }
        reply
    }

    fn answer(&mut self, world: &World, number: usize, sent: Sent, reply: Reply) {
        let now = self.time();
        if let Reply::Fenced(fence) = reply {
            // Who believes in the lock is the only one: what it is given is above all that was given before.
            if matches!(self.clients[number].task, Task::Holds { until } if now < until) {
                if fence <= self.fences.1 {
                    self.wrong = Some("a fencing token does not rise");
                }
                self.fences.1 = fence;
            }
            return;
        }
        let Sent { token, command, at, epoch } = sent;
        if command.is_release() {
            let abandoned = &mut self.clients[number].abandoned;
            if !abandoned.left(token, &reply, epoch, now) && matches!(reply, Reply::Unknown(_)) {
                abandoned.add("k".into(), token, epoch);
            }
            return;
        }
        let at = if world.bug == Bug::DeadlineFromTheReply { now } else { at };
        self.with_key(world, number, |key_state, ctx| key_state.reply(token, command, at, reply, ctx));
    }

    /// What is on a connection has no answer any more; what was not heard yet may be heard late, unless the server is gone, too.
    fn break_connection(&mut self, world: &World, number: usize, heard_late: bool) {
        let client = &mut self.clients[number];
        let unheard: Vec<_> = client.requests.drain(..).collect();
        let unanswered: Vec<_> = client.replies.drain(..).map(|(sent, _)| sent).collect();
        client.epoch += 1;
        if heard_late {
            client.late.extend(unheard.iter().copied());
        }
        for sent in unanswered.into_iter().chain(unheard) {
            let failure = Failure::new(FailureKind::Passing, "no answer");
            self.answer(world, number, sent, Reply::Unknown(failure));
        }
        self.clients[number].abandoned.retry_now(|_| true);
        self.with_key(world, number, |key_state, ctx| key_state.on_reconnect(false, ctx));
    }

    /// What can happen without anything going wrong.
    fn prompt(&self, steps: &mut Vec<ContenderState>) {
        let now = self.time();
        for (number, client) in self.clients.iter().enumerate() {
            if client.task == Task::ToCome {
                steps.push(ContenderState::TaskComes(number));
            }
            if !client.requests.is_empty() {
                steps.push(ContenderState::ServerHears(number));
            }
            if !client.replies.is_empty() {
                steps.push(ContenderState::AnswerComes(number));
            }
            if !client.grants.is_empty() {
                steps.push(ContenderState::GrantComes(number));
            }
            if client.key_state.due().min(client.abandoned.due()) <= now && client.requests.len() < 2 {
                steps.push(ContenderState::TimerIsDue(number));
            }
            if matches!(client.task, Task::Holds { .. }) {
                steps.push(ContenderState::BodyEnds(number));
            }
        }
    }

    /// Whether anybody minds anything yet.
    fn is_over(&self) -> bool {
        let minds = |client: &Client| !client.key_state.is_idle() || !client.abandoned.is_empty();
        self.record.is_empty(self.time()) && !self.clients.iter().any(minds)
    }

    fn believing(&self) -> usize {
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

impl Model for World {
    type State = State;
    type Action = ContenderState;

    fn init_states(&self) -> Vec<State> {
        let client = Client {
            key_state: KeyState::new(),
            contended: false,
            tokens: 0,
            abandoned: OrphanedTokens::default(),
            epoch: 1,
            requests: VecDeque::new(),
            late: Vec::new(),
            replies: VecDeque::new(),
            grants: VecDeque::new(),
            task: Task::ToCome,
        };
        vec![State {
            now: 0,
            record: Record::default(),
            fences: (0, 0),
            clients: vec![client; self.clients],
            losses: self.losses,
            gives_up: self.gives_up,
            restarts: self.restarts,
            wrong: None,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<ContenderState>) {
        state.prompt(steps);
        if state.now >= self.horizon {
            // One way to the end is as good as another.
            steps.truncate(1);
            if steps.is_empty() && !state.is_over() {
                steps.push(ContenderState::TimePasses);
            }
            return;
        }
        for (number, client) in state.clients.iter().enumerate() {
            if !client.late.is_empty() {
                steps.push(ContenderState::ServerHearsLate(number));
            }
            if state.losses > 0 && !client.grants.is_empty() {
                steps.push(ContenderState::GrantIsLost(number));
            }
            if state.losses > 0 && !(client.requests.is_empty() && client.replies.is_empty()) {
                steps.push(ContenderState::ConnectionBreaks(number));
            }
            if state.gives_up > 0 && client.task == Task::WaitGraph {
                steps.push(ContenderState::GivesUp(number));
            }
        }
        let is_busy = |client: &Client| !(client.requests.is_empty() && client.replies.is_empty());
        if state.restarts > 0 && state.now < 2 && state.clients.iter().any(is_busy) {
            steps.push(ContenderState::ServerRestarts);
        }
        steps.push(ContenderState::TimePasses);
    }

    fn next_state(&self, last: &State, step: ContenderState) -> Option<State> {
        let mut state = last.clone();
        match step {
            ContenderState::TaskComes(number) => state.join(self, number),
            ContenderState::ServerHears(number) => {
                let sent = state.clients[number].requests.pop_front()?;
                let reply = state.execute(self, sent);
                state.clients[number].replies.push_back((sent, reply));
            }
            ContenderState::ServerHearsLate(number) => {
                let sent = state.clients[number].late.remove(0);
                state.execute(self, sent);
            }
            ContenderState::AnswerComes(number) => {
                let (sent, reply) = state.clients[number].replies.pop_front()?;
                state.answer(self, number, sent, reply);
            }
            ContenderState::GrantComes(number) => {
                let (token, offer) = state.clients[number].grants.pop_front()?;
                let mut known = true;
                state.with_key(self, number, |key_state, ctx| known = key_state.on_grant(token, offer, ctx));
                if !known {
                    let now = state.time();
                    state.clients[number].send(token, Command::Withdraw, now);
                }
            }
            ContenderState::GrantIsLost(number) => {
                state.losses -= 1;
                state.clients[number].grants.pop_front()?;
            }
            ContenderState::ConnectionBreaks(number) => {
                state.losses -= 1;
                state.break_connection(self, number, true);
            }
            ContenderState::TimerIsDue(number) => {
                let now = state.time();
                for (_, token) in state.clients[number].abandoned.due_now(now) {
                    state.clients[number].send(token, Command::Withdraw, now);
                }
                state.with_key(self, number, KeyState::tick);
            }
            ContenderState::BodyEnds(number) => {
                state.clients[number].task = Task::WasIn;
                let mut released = ReleaseOutcome::HandedOff;
                state.with_key(self, number, |key_state, ctx| released = key_state.release(&0, ctx));
                if let ReleaseOutcome::Send(token, command) = released {
                    let now = state.time();
                    state.clients[number].send(token, command, now);
                }
            }
            ContenderState::GivesUp(number) => {
                state.gives_up -= 1;
                state.clients[number].task = Task::GaveUp;
                state.with_key(self, number, |key_state, ctx| {
                    key_state.leave(&0, ctx);
                });
            }
            ContenderState::ServerRestarts => {
                state.restarts -= 1;
                for number in 0..state.clients.len() {
                    state.break_connection(self, number, false);
                }
            }
            ContenderState::TimePasses => {
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
            Property::always("no two believe in the lock", |_, state: &State| state.believing() < 2),
            Property::always("nothing else is wrong", |_, state: &State| state.wrong.is_none()),
            Property::always("a key has a time to live, of a lease at most", |_, state: &State| {
                let nobody = tokens_after(u64::MAX, 0).next();
                let seen =
                    state.record.clone().run(nobody, Command::Inspect, state.time(), UNIT, |_, _| false);
                match seen {
                    Reply::Info(Some(RecordInfo { ttl, .. })) => ttl.is_some_and(|ttl| ttl <= LEASE),
                    _ => true,
                }
            }),
            Property::always(
                "in the end all were let in who did not give up",
                |world: &World, state: &State| {
                    let mut steps = Vec::new();
                    world.actions(state, &mut steps);
                    let was_in = |client: &Client| matches!(client.task, Task::WasIn | Task::GaveUp);
                    !steps.is_empty() || (state.is_over() && state.clients.iter().all(was_in))
                },
            ),
            Property::eventually("somebody gets in", |world: &World, state: &State| {
                let is_in = |client: &Client| matches!(client.task, Task::Holds { .. } | Task::WasIn);
                world.gives_up > 0 || state.clients.iter().any(is_in)
            }),
            Property::sometimes("the server hands over", |_, state: &State| {
                state.clients.iter().any(|client| !client.grants.is_empty())
            }),
        ]
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self { now, record, fences, clients, losses, gives_up, restarts, wrong } = self;
        (now, fences, losses, gives_up, restarts, wrong).hash(hasher);
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

/// Two processes; everything goes wrong once.
const SMALL: World = World {
    clients: 2,
    losses: 1,
    gives_up: 0,
    restarts: 0,
    horizon: 3,
    renew: false,
    fences: false,
    bug: Bug::None,
};

#[test]
fn every_schedule_of_two_processes_keeps_the_promises() {
    let worlds = [
        ("a loss", World { horizon: 2, ..SMALL }),
        ("a task that gives up", World { losses: 0, gives_up: 1, ..SMALL }),
        ("a restart of the server", World { losses: 0, restarts: 1, horizon: 1, ..SMALL }),
        ("renewals", World { losses: 0, renew: true, ..SMALL }),
        ("fencing tokens", World { losses: 0, fences: true, ..SMALL }),
    ];
    for (what, world) in worlds {
        let world = World { horizon: world.horizon + scope() as u64 - 1, ..world };
        if let Err(said) = check(&format!("one server, two processes, {what}"), world) {
            panic!("{what}: {said}");
        }
    }
}

#[test]
fn every_schedule_of_three_processes_keeps_the_promises() {
    let world = World { clients: 3, losses: 0, horizon: scope() as u64, ..SMALL };
    if let Err(said) = check("one server, three processes", world) {
        panic!("{said}");
    }
}

#[test]
fn a_broken_rule_is_refused_with_the_steps_to_it() {
    for (bug, what) in [
        (Bug::DeadlineFromTheReply, "no two believe"),
        (Bug::AnybodyReleases, "nothing else is wrong"),
        (Bug::NobodyAsksAgain, "in the end all were let in"),
        (Bug::NoTimeToLive, "a key has a time to live"),
        (Bug::CounterGoesBack, "nothing else is wrong"),
    ] {
        let horizon = if bug == Bug::NobodyAsksAgain { 1 } else { 3 };
        let (fences, losses) = (bug == Bug::CounterGoesBack, u8::from(bug == Bug::NobodyAsksAgain));
        let said = check(&format!("{bug:?}"), World { losses, horizon, fences, bug, ..SMALL });
        let said = said.expect_err("a broken rule is seen");
        println!("{bug:?} is refused: {said}");
        assert!(said.contains(what), "{bug:?}: {said}");
    }
}
