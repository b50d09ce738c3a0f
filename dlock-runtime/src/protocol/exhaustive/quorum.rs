//! The model: three independent servers, and two clients that contend for one key.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use stateright::{Model, Property};

use super::state::{hash_as_printed, hash_record, same_hash, tokens_after};
use super::{check, scope};
use crate::protocol::command::{Command, Failure, FailureKind, Reply};
use crate::protocol::deadline::{BootInstant, Deadline};
use crate::protocol::quorum::{FollowUp, VoteTally};
use crate::protocol::record::Record;
use crate::token::Token;

/// The faults that may occur, and how often.
#[derive(Clone, Debug)]
struct QuorumModel {
    /// Replies that are lost.
    losses: u8,
    /// Servers that restart without their data.
    restarts: u8,
    /// The time, in units, until which faults may occur.
    horizon: u64,
    bug: Bug,
}

/// A seeded bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    OneVoteIsMajority,
    DeadlineFromReply,
    RestartedServersVote,
    NoCleanup,
}

const SERVERS: usize = 3;
const CLIENTS: usize = 2;
/// One unit of time.
const UNIT: Duration = Duration::from_millis(100);
/// In units.
const LEASE: u64 = 1;

#[derive(Clone)]
struct State {
    now: u64,
    servers: [Server; SERVERS],
    clients: [Client; CLIENTS],
    losses: u8,
    restarts: u8,
    violation: Option<&'static str>,
}

#[derive(Clone, Default)]
struct Server {
    record: Record,
    /// The time of the last restart, in units.
    started: Option<u64>,
}

#[derive(Clone, Debug)]
struct Client {
    attempt: Attempt,
    tally: Option<VoteTally>,
    sent_at: u64,
    /// The connection to each server.
    connections: [Connection; SERVERS],
}

#[derive(Clone, Debug, Default)]
struct Connection {
    /// Requests in flight, in order.
    requests: Vec<Command>,
    /// The reply in flight, and whether a grant counts.
    reply: Option<(Reply, bool)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    NotStarted,
    Contending,
    Holds { until: BootInstant },
    Done { acquired: bool },
}

/// One step. The numbers are those of the client and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Acquire(usize),
    ServerReceives(usize, usize),
    ReplyArrives(usize, usize),
    ReplyIsLost(usize, usize),
    BodyEnds(usize),
    ServerLosesData(usize),
    TimePasses,
}

impl State {
    fn time(&self) -> BootInstant {
        time(self.now)
    }

    /// Adds the vote of a server to the tally of a client.
    fn on_vote(&mut self, model: &QuorumModel, number: usize, server: usize, reply: Reply, counts: bool) {
        let now = self.time();
        let client = &mut self.clients[number];
        let Some(tally) = &mut client.tally else { return };
        let mut follows = Vec::new();
        let is_granted = matches!(reply, Reply::Owner);
        let outcome = tally.vote(server, reply, counts, &mut follows);
        let outcome =
            if model.bug == Bug::OneVoteIsMajority && is_granted { Some(Reply::Owner) } else { outcome };
        for (server, follow) in follows {
            // The release withdraws an unverified token.
            if matches!(follow, FollowUp::Withdraw | FollowUp::Orphan) && model.bug != Bug::NoCleanup {
                client.connections[server].requests.push(Command::Withdraw);
            }
        }
        if client.attempt != Attempt::Contending {
            return;
        }
        match outcome {
            Some(Reply::Owner) => {
                let from = if model.bug == Bug::DeadlineFromReply { self.now } else { client.sent_at };
                let deadline =
                    Deadline::of_lease(time(from), UNIT * u32::try_from(LEASE).unwrap_or_default());
                if deadline.holds_at(now) {
                    client.attempt = Attempt::Holds { until: deadline.at() };
                } else {
                    client.release(false);
                }
            }
            Some(_) => client.attempt = Attempt::Done { acquired: false },
            None => {}
        }
    }

    /// Returns the number of clients that consider the lock held.
    fn holders(&self) -> usize {
        let now = self.time();
        self.clients
            .iter()
            .filter(|client| matches!(client.attempt, Attempt::Holds { until } if now < until))
            .count()
    }
}

impl Client {
    fn release(&mut self, acquired: bool) {
        self.attempt = Attempt::Done { acquired };
        for connection in &mut self.connections {
            connection.requests.push(Command::Withdraw);
        }
    }
}

impl Model for QuorumModel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let client = Client {
            attempt: Attempt::NotStarted,
            tally: None,
            sent_at: 0,
            connections: std::array::from_fn(|_| Connection::default()),
        };
        vec![State {
            now: 0,
            servers: std::array::from_fn(|_| Server::default()),
            clients: std::array::from_fn(|_| client.clone()),
            losses: self.losses,
            restarts: self.restarts,
            violation: None,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (number, client) in state.clients.iter().enumerate() {
            match client.attempt {
                Attempt::NotStarted => steps.push(Step::Acquire(number)),
                Attempt::Holds { .. } => steps.push(Step::BodyEnds(number)),
                Attempt::Contending | Attempt::Done { .. } => {}
            }
            for (server, connection) in client.connections.iter().enumerate() {
                if connection.reply.is_some() {
                    steps.push(Step::ReplyArrives(number, server));
                } else if !connection.requests.is_empty() {
                    steps.push(Step::ServerReceives(number, server));
                }
            }
        }
        if state.now >= self.horizon {
            steps.truncate(1); // one order of the remaining steps suffices
            return;
        }
        for (number, client) in state.clients.iter().enumerate().filter(|_| state.losses > 0) {
            let replies =
                client.connections.iter().enumerate().filter(|(_, connection)| connection.reply.is_some());
            steps.extend(replies.map(|(server, _)| Step::ReplyIsLost(number, server)));
        }
        if state.restarts > 0 {
            let with_data =
                (0..SERVERS).filter(|server| !state.servers[*server].record.is_empty(state.time()));
            steps.extend(with_data.map(Step::ServerLosesData));
        }
        steps.push(Step::TimePasses);
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        let now = state.time();
        match step {
            Step::Acquire(number) => {
                let lease = UNIT * u32::try_from(LEASE).unwrap_or_default();
                let (client, command) = (&mut state.clients[number], Command::Acquire { lease });
                (client.attempt, client.sent_at) = (Attempt::Contending, state.now);
                client.tally = Some(VoteTally::new(command, SERVERS));
                client.connections.iter_mut().for_each(|connection| connection.requests.push(command));
            }
            Step::ServerReceives(number, server_index) => {
                let command = state.clients[number].connections[server_index].requests.remove(0);
                let (token, server) = (token_of(number), &mut state.servers[server_index]);
                let holder = |record: &Record| record.tokens(now).first().copied();
                let before = holder(&server.record);
                let reply = server.record.run(token, command, now, Duration::ZERO, |_, _| false);
                if before.is_some_and(|before| before != token && holder(&server.record) != Some(before)) {
                    state.violation = Some("a client released the lock of another client");
                }
                let is_recent = server.started.is_some_and(|started| state.now < started + LEASE);
                let counts = !is_recent || self.bug == Bug::RestartedServersVote;
                if matches!(command, Command::Acquire { .. }) {
                    state.clients[number].connections[server_index].reply = Some((reply, counts));
                }
            }
            Step::ReplyArrives(number, server_index) => {
                let (reply, counts) = state.clients[number].connections[server_index].reply.take()?;
                state.on_vote(self, number, server_index, reply, counts);
            }
            Step::ReplyIsLost(number, server_index) => {
                state.losses -= 1;
                state.clients[number].connections[server_index].reply = None;
                let failure = Failure::new(FailureKind::Passing, "no reply");
                state.on_vote(self, number, server_index, Reply::Unknown(failure), true);
            }
            Step::BodyEnds(number) => state.clients[number].release(true),
            Step::ServerLosesData(server_index) => {
                state.restarts -= 1;
                state.servers[server_index] = Server { record: Record::default(), started: Some(state.now) };
            }
            Step::TimePasses => state.now += 1,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("mutual exclusion", |_, state: &State| state.holders() < 2),
            Property::always("no other violation", |_, state: &State| state.violation.is_none()),
            Property::always("at the end nothing is left", |model: &QuorumModel, state: &State| {
                let mut steps = Vec::new();
                model.actions(state, &mut steps);
                let is_empty = |server: &Server| server.record.is_empty(state.time());
                !steps.is_empty() || state.servers.iter().all(is_empty)
            }),
            Property::eventually("every attempt ends", |_, state: &State| {
                state.clients.iter().all(|client| matches!(client.attempt, Attempt::Done { .. }))
            }),
            Property::sometimes(
                "the votes are split, and no client acquires the lock",
                |_, state: &State| {
                    state.clients.iter().all(|client| client.attempt == Attempt::Done { acquired: false })
                },
            ),
            Property::sometimes("both clients acquire the lock, one after the other", |_, state: &State| {
                state.clients.iter().all(|client| client.attempt == Attempt::Done { acquired: true })
            }),
        ]
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.now, self.losses, self.restarts, self.violation).hash(hasher);
        for server in &self.servers {
            // The time of a restart matters for one lease.
            server.started.filter(|started| self.now < started + LEASE).hash(hasher);
            hash_record(&server.record, self.time(), hasher);
        }
        hash_as_printed(&self.clients, hasher);
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.now, self.clients)
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        same_hash(self, other)
    }
}

fn time(units: u64) -> BootInstant {
    BootInstant::START.plus(UNIT * u32::try_from(units).unwrap_or(u32::MAX))
}

/// Returns the only token of a client.
fn token_of(client: usize) -> Token {
    tokens_after(client as u64, 0).next()
}

const SMALL: QuorumModel = QuorumModel { losses: 0, restarts: 0, horizon: 2, bug: Bug::None };

#[test]
fn every_schedule_of_three_servers_keeps_the_promises() {
    let more = scope() as u64 - 1;
    for (what, model) in [
        ("time", QuorumModel { horizon: 1 + more, ..SMALL }),
        ("a lost reply", QuorumModel { losses: 1, horizon: 1 + more, ..SMALL }),
        ("a server that loses its data", QuorumModel { restarts: 1, horizon: 1 + more, ..SMALL }),
    ] {
        if let Err(message) = check(&format!("three servers, two clients, {what}"), model) {
            panic!("{what}: {message}");
        }
    }
}

#[test]
fn a_seeded_quorum_bug_is_reported_with_its_steps() {
    for (bug, what) in [
        (Bug::OneVoteIsMajority, "mutual exclusion"),
        (Bug::DeadlineFromReply, "mutual exclusion"),
        (Bug::RestartedServersVote, "mutual exclusion"),
        (Bug::NoCleanup, "at the end nothing is left"),
    ] {
        let restarts = u8::from(bug == Bug::RestartedServersVote);
        let horizon = if bug == Bug::DeadlineFromReply { 2 } else { 1 };
        let message = check(&format!("{bug:?}"), QuorumModel { restarts, horizon, bug, ..SMALL });
        let message = message.expect_err("a seeded bug is detected");
        println!("{bug:?} is detected: {message}");
        assert!(message.contains(what), "{bug:?}: {message}");
    }
}
