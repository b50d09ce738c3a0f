//! Two clients that want one key of three servers, none of which knows of the others.

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

/// What may happen, and how often.
#[derive(Clone, Debug)]
struct World {
    /// Answers that are lost.
    losses: u8,
    /// Servers that are started again with nothing.
    restarts: u8,
    horizon: u64,
    bug: Bug,
}

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    AnyServerIsEnough,
    DeadlineFromTheReply,
    WhoForgotIsAsked,
    NothingIsUndone,
}

const SERVERS: usize = 3;
const CLIENTS: usize = 2;
/// One unit.
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
    wrong: Option<&'static str>,
}

#[derive(Clone, Default)]
struct Server {
    record: Record,
    /// When it was started again.
    started: Option<u64>,
}

#[derive(Clone, Debug)]
struct Client {
    turn: Turn,
    ballot: Option<VoteTally>,
    asked: u64,
    /// By server: what was sent and is not heard yet, in its order, and what was answered and is not known yet.
    links: [Link; SERVERS],
}

#[derive(Clone, Debug, Default)]
struct Link {
    requests: Vec<Command>,
    /// With whether it counts.
    answer: Option<(Reply, bool)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    ToCome,
    Asks,
    Holds { until: BootInstant },
    Over { was_in: bool },
}

/// One step: by a client, at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContenderState {
    Asks(usize),
    ServerHears(usize, usize),
    AnswerComes(usize, usize),
    AnswerIsLost(usize, usize),
    BodyEnds(usize),
    ServerForgets(usize),
    TimePasses,
}

impl State {
    fn time(&self) -> BootInstant {
        time(self.now)
    }

    /// A client's votes come in.
    fn votes(&mut self, world: &World, number: usize, server: usize, reply: Reply, counts: bool) {
        let now = self.time();
        let client = &mut self.clients[number];
        let Some(ballot) = &mut client.ballot else { return };
        let mut follows = Vec::new();
        let is_ours = matches!(reply, Reply::Owner);
        let outcome = ballot.vote(server, reply, counts, &mut follows);
        let outcome =
            if world.bug == Bug::AnyServerIsEnough && is_ours { Some(Reply::Owner) } else { outcome };
        for (server, follow) in follows {
            // Who may stand there without knowing takes it back when it lets go.
            if matches!(follow, FollowUp::Leave | FollowUp::Abandon) && world.bug != Bug::NothingIsUndone {
                client.links[server].requests.push(Command::Withdraw);
            }
        }
        if client.turn != Turn::Asks {
            return;
        }
        match outcome {
            Some(Reply::Owner) => {
                let from = if world.bug == Bug::DeadlineFromTheReply { self.now } else { client.asked };
                let deadline =
                    Deadline::of_lease(time(from), UNIT * u32::try_from(LEASE).unwrap_or_default());
                if deadline.holds_at(now) {
                    client.turn = Turn::Holds { until: deadline.at() };
                } else {
                    client.lets_go(false);
                }
            }
            Some(_) => client.turn = Turn::Over { was_in: false },
            None => {}
        }
    }

    fn believing(&self) -> usize {
        let now = self.time();
        self.clients
            .iter()
            .filter(|client| matches!(client.turn, Turn::Holds { until } if now < until))
            .count()
    }
}

impl Client {
    fn lets_go(&mut self, was_in: bool) {
        self.turn = Turn::Over { was_in };
        for link in &mut self.links {
            link.requests.push(Command::Withdraw);
        }
    }
}

impl Model for World {
    type State = State;
    type Action = ContenderState;

    fn init_states(&self) -> Vec<State> {
        let client = Client {
            turn: Turn::ToCome,
            ballot: None,
            asked: 0,
            links: std::array::from_fn(|_| Link::default()),
        };
        vec![State {
            now: 0,
            servers: std::array::from_fn(|_| Server::default()),
            clients: std::array::from_fn(|_| client.clone()),
            losses: self.losses,
            restarts: self.restarts,
            wrong: None,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<ContenderState>) {
        for (number, client) in state.clients.iter().enumerate() {
            match client.turn {
                Turn::ToCome => steps.push(ContenderState::Asks(number)),
                Turn::Holds { .. } => steps.push(ContenderState::BodyEnds(number)),
                Turn::Asks | Turn::Over { .. } => {}
            }
            for (server, link) in client.links.iter().enumerate() {
                if link.answer.is_some() {
                    steps.push(ContenderState::AnswerComes(number, server));
                } else if !link.requests.is_empty() {
                    steps.push(ContenderState::ServerHears(number, server));
                }
            }
        }
        if state.now >= self.horizon {
            steps.truncate(1); // one way to the end is as good as another
            return;
        }
        for (number, client) in state.clients.iter().enumerate().filter(|_| state.losses > 0) {
            let answers = client.links.iter().enumerate().filter(|(_, link)| link.answer.is_some());
            steps.extend(answers.map(|(server, _)| ContenderState::AnswerIsLost(number, server)));
        }
        if state.restarts > 0 {
            let forget = (0..SERVERS).filter(|server| !state.servers[*server].record.is_empty(state.time()));
            steps.extend(forget.map(ContenderState::ServerForgets));
        }
        steps.push(ContenderState::TimePasses);
    }

    fn next_state(&self, last: &State, step: ContenderState) -> Option<State> {
        let mut state = last.clone();
        let now = state.time();
        match step {
            ContenderState::Asks(number) => {
                let lease = UNIT * u32::try_from(LEASE).unwrap_or_default();
                let (client, command) = (&mut state.clients[number], Command::Acquire { lease });
                (client.turn, client.asked) = (Turn::Asks, state.now);
                client.ballot = Some(VoteTally::new(command, SERVERS));
                client.links.iter_mut().for_each(|link| link.requests.push(command));
            }
            ContenderState::ServerHears(number, place) => {
                let command = state.clients[number].links[place].requests.remove(0);
                let (token, server) = (token_of(number), &mut state.servers[place]);
                let holder = |record: &Record| record.tokens(now).first().copied();
                let before = holder(&server.record);
                let reply = server.record.run(token, command, now, Duration::ZERO, |_, _| false);
                if before.is_some_and(|before| before != token && holder(&server.record) != Some(before)) {
                    state.wrong = Some("somebody released the lock of another");
                }
                let is_young = server.started.is_some_and(|started| state.now < started + LEASE);
                let counts = !is_young || self.bug == Bug::WhoForgotIsAsked;
                if matches!(command, Command::Acquire { .. }) {
                    state.clients[number].links[place].answer = Some((reply, counts));
                }
            }
            ContenderState::AnswerComes(number, place) => {
                let (reply, counts) = state.clients[number].links[place].answer.take()?;
                state.votes(self, number, place, reply, counts);
            }
            ContenderState::AnswerIsLost(number, place) => {
                state.losses -= 1;
                state.clients[number].links[place].answer = None;
                let failure = Failure::new(FailureKind::Passing, "no answer");
                state.votes(self, number, place, Reply::Unknown(failure), true);
            }
            ContenderState::BodyEnds(number) => state.clients[number].lets_go(true),
            ContenderState::ServerForgets(place) => {
                state.restarts -= 1;
                state.servers[place] = Server { record: Record::default(), started: Some(state.now) };
            }
            ContenderState::TimePasses => state.now += 1,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no two believe in the lock", |_, state: &State| state.believing() < 2),
            Property::always("nothing else is wrong", |_, state: &State| state.wrong.is_none()),
            Property::always("in the end nothing is left", |world: &World, state: &State| {
                let mut steps = Vec::new();
                world.actions(state, &mut steps);
                let is_empty = |server: &Server| server.record.is_empty(state.time());
                !steps.is_empty() || state.servers.iter().all(is_empty)
            }),
            Property::eventually("everybody is told", |_, state: &State| {
                state.clients.iter().all(|client| matches!(client.turn, Turn::Over { .. }))
            }),
            Property::sometimes("nobody gets it: the votes are split", |_, state: &State| {
                state.clients.iter().all(|client| client.turn == Turn::Over { was_in: false })
            }),
            Property::sometimes("both get in, one after the other", |_, state: &State| {
                state.clients.iter().all(|client| client.turn == Turn::Over { was_in: true })
            }),
        ]
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.now, self.losses, self.restarts, self.wrong).hash(hasher);
        for server in &self.servers {
            // When it came up matters for a lease.
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

/// The one token of a client.
fn token_of(client: usize) -> Token {
    tokens_after(client as u64, 0).next()
}

const SMALL: World = World { losses: 0, restarts: 0, horizon: 2, bug: Bug::None };

#[test]
fn every_schedule_of_two_clients_of_three_servers_keeps_the_promises() {
    let more = scope() as u64 - 1;
    for (what, world) in [
        ("time", World { horizon: 1 + more, ..SMALL }),
        ("a lost answer", World { losses: 1, horizon: 1 + more, ..SMALL }),
        ("a server that forgets", World { restarts: 1, horizon: 1 + more, ..SMALL }),
    ] {
        if let Err(said) = check(&format!("three servers, two clients, {what}"), world) {
            panic!("{what}: {said}");
        }
    }
}

#[test]
fn a_broken_rule_of_ballots_is_refused_with_the_steps_to_it() {
    for (bug, what) in [
        (Bug::AnyServerIsEnough, "no two believe"),
        (Bug::DeadlineFromTheReply, "no two believe"),
        (Bug::WhoForgotIsAsked, "no two believe"),
        (Bug::NothingIsUndone, "in the end nothing is left"),
    ] {
        let restarts = u8::from(bug == Bug::WhoForgotIsAsked);
        let horizon = if bug == Bug::DeadlineFromTheReply { 2 } else { 1 };
        let said = check(&format!("{bug:?}"), World { restarts, horizon, bug, ..SMALL });
        let said = said.expect_err("a broken rule is seen");
        println!("{bug:?} is refused: {said}");
        assert!(said.contains(what), "{bug:?}: {said}");
    }
}
