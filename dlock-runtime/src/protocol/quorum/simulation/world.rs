//! Servers that know nothing of each other, clients that want one key of all of them, and what lies between.
//!
//! A connection keeps its order until an answer is missed.

use std::collections::BTreeMap;
use std::time::Duration;

use super::weather::{Beyond, Bug, Seen, Weather};
use crate::protocol::command::{Command, Failure, FailureKind, Reply};
use crate::protocol::deadline::{BootInstant, Deadline};
use crate::protocol::orphans::OrphanedTokens;
use crate::protocol::quorum::pending_repairs::PendingRepairs;
use crate::protocol::quorum::{FollowUp, VoteTally, is_lost};
use crate::protocol::record::Record;
use crate::protocol::simulation::agenda::Agenda;
use crate::protocol::simulation::chance::Chance;
use crate::protocol::simulation::story::Story;
use crate::protocol::simulation::tally::Tally;
use crate::protocol::simulation::{Wrong, at, wrong};
use crate::token::{Token, TokenSource};

#[derive(Clone, Debug)]
enum Event {
    /// A client looks at what it does next.
    Wake {
        client: usize,
    },
    Executed {
        sent: Sent,
        answered: bool,
    },
    Answered {
        sent: Sent,
        reply: Reply,
        counts: bool,
    },
    /// A client undoes what is due at a server.
    Undo {
        client: usize,
        server: usize,
    },
    Restart {
        server: usize,
    },
    GiveUp {
        client: usize,
        token: Token,
    },
}

/// A command on its way.
#[derive(Clone, Copy, Debug)]
struct Sent {
    number: u64,
    client: usize,
    server: usize,
    epoch: u64,
    /// How often the server had been started.
    starts: u64,
    token: Token,
    command: Command,
    ballot: Option<usize>,
}

struct Server {
    record: Record,
    starts: u64,
    /// When it was started; none for those that always were there.
    started: Option<u64>,
}

/// A client's connection to one server.
#[derive(Default)]
struct Connection {
    epoch: u64,
    last_arrival: u64,
    unanswered: Vec<Sent>,
    undoing: OrphanedTokens,
}

struct Client {
    tokens: TokenSource,
    connections: Vec<Connection>,
    ballots: BTreeMap<usize, (VoteTally, Token, BootInstant)>,
    late: PendingRepairs,
    state: State,
    turns: u64,
    frozen_until: u64,
    /// Nanoseconds of its clock in a millisecond.
    pace: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Idle,
    Contender { token: Token },
    Held { token: Token, deadline: BootInstant, works_until: u64, renew_at: u64 },
}

pub(super) struct World<'a> {
    weather: Weather,
    bug: Bug,
    now: u64,
    agenda: Agenda<Event>,
    count: u64,
    ballots: usize,
    servers: Vec<Server>,
    clients: Vec<Client>,
    tally: Tally,
    chance: &'a mut Chance,
    story: &'a mut Story,
}

/// What is left to chance.
#[derive(Clone, Copy, Debug)]
enum Thing {
    Begin,
    Restart,
    RestartWhich,
    Froze,
    FrozeFor,
    Pause,
    RequestDelay,
    RequestLost,
    ReplyLost,
    RequestLate,
    RequestDoubled,
    ReplyDelay,
    ReplyDoubled,
    Work,
    GivesUp,
    Drift,
}

const TIMEOUT: u64 = 200;

impl<'a> World<'a> {
    pub(super) fn new(weather: &Weather, bug: Bug, chance: &'a mut Chance, story: &'a mut Story) -> Self {
        let mut world = Self {
            weather: *weather,
            bug,
            now: 0,
            agenda: Agenda::new(),
            count: 0,
            ballots: 0,
            servers: Vec::new(),
            clients: Vec::new(),
            tally: Tally::new(),
            chance,
            story,
        };
        let servers = weather.servers;
        for _ in 0..servers {
            world.servers.push(Server { record: Record::default(), starts: 0, started: None });
        }
        for number in 0..weather.clients {
            world.clients.push(Client {
                tokens: TokenSource::of_process(number),
                connections: (0..servers).map(|_| Connection { epoch: 1, ..Connection::default() }).collect(),
                ballots: BTreeMap::new(),
                late: PendingRepairs::default(),
                state: State::Idle,
                turns: weather.turns,
                frozen_until: 0,
                pace: 1_000_000,
            });
            let client = world.clients.len() - 1;
            let drift = world.up_to(Thing::Drift, client, 2 * weather.drift);
            if drift > 0 {
                world.saw(if weather.beyond == Beyond::Drift { Seen::BeyondDrift } else { Seen::Drift });
            }
            // 1, -1, 2, -2, ... thousandths
            let half = 1_000 * drift.div_ceil(2);
            world.clients[client].pace = if drift % 2 == 1 { 1_000_000 + half } else { 1_000_000 - half };
            let at = world.up_to(Thing::Begin, client, 50);
            world.at(at, Event::Wake { client });
        }
        for _ in 0..weather.restarts {
            let (at, server) = (
                world.up_to(Thing::Restart, 0, 3_000),
                world.up_to(Thing::RestartWhich, 0, servers as u64 - 1),
            );
            world.at(at, Event::Restart { server: usize::try_from(server).unwrap_or_default() });
        }
        world
    }

    fn up_to(&mut self, thing: Thing, subject: usize, bound: u64) -> u64 {
        self.chance.up_to(thing as usize, subject, bound)
    }

    fn happens(&mut self, thing: Thing, subject: usize, percent: u64) -> bool {
        self.chance.happens(thing as usize, subject, percent)
    }

    fn at(&mut self, time: u64, event: Event) {
        self.agenda.put(time, event);
    }

    fn saw(&mut self, what: Seen) {
        self.tally.note(what as usize);
    }

    fn tell(&mut self, what: impl FnOnce() -> String) {
        self.story.tell(self.now, what);
    }

    /// What the clock of a client shows.
    fn clock(&self, client: usize) -> BootInstant {
        self.clients[client].clock(self.now)
    }

    pub(super) fn run(mut self) -> Result<Tally, Box<Wrong>> {
        for _ in 0..60_000 {
            let Some((time, event)) = self.agenda.next() else {
                self.judge_the_end()?;
                return Ok(self.tally);
            };
            self.now = self.now.max(time);
            let client = match &event {
                Event::Wake { client } | Event::Undo { client, .. } | Event::GiveUp { client, .. } => {
                    Some(*client)
                }
                Event::Answered { sent, .. } => Some(sent.client),
                Event::Executed { .. } | Event::Restart { .. } => None,
            };
            let frozen_until = client.map_or(0, |client| self.clients[client].frozen_until);
            if frozen_until > self.now {
                self.at(frozen_until, event);
            } else {
                self.happen(event)?;
            }
        }
        wrong("end", "it never ends")
    }

    fn happen(&mut self, event: Event) -> Result<(), Box<Wrong>> {
        match event {
            Event::Wake { client } => self.wake(client),
            Event::Executed { sent, answered } => self.execute(sent, answered),
            Event::Answered { sent, reply, counts } => return self.answered(sent, reply, counts),
            Event::Undo { client, server } => self.undo(client, server),
            Event::Restart { server } => self.restart(server),
            Event::GiveUp { client, token } => self.give_up(client, token),
        }
        Ok(())
    }

    /// What a majority can spare in one lease may forget, and says that it has come up; others where it is beyond what can be promised.
    fn restart(&mut self, server: usize) {
        let lease = self.weather.lease;
        if self.weather.beyond == Beyond::Forgets {
            self.saw(Seen::BeyondForgets);
            self.tell(|| format!("server {server} forgets all and does not say so"));
            self.servers[server].record = Record::default();
            return;
        }
        let young = self.servers.iter().filter(|other| other.is_young(self.now, lease)).count();
        if young < (self.servers.len() - 1) / 2 && !self.servers[server].is_young(self.now, lease) {
            self.saw(Seen::Restart);
            self.tell(|| format!("server {server} is started again with nothing"));
            let starts = self.servers[server].starts + 1;
            self.servers[server] = Server { record: Record::default(), starts, started: Some(self.now) };
        }
    }

    fn wake(&mut self, client: usize) {
        if self.happens(Thing::Froze, client, self.weather.frozen) {
            let until = self.now + self.up_to(Thing::FrozeFor, client, 2 * self.weather.lease.min(3_000));
            self.clients[client].frozen_until = until;
            self.saw(Seen::Froze);
            self.tell(|| format!("client {client} freezes until {until} ms"));
        }
        let lease = Duration::from_millis(self.weather.lease);
        match self.clients[client].state {
            State::Idle if self.clients[client].turns > 0 => {
                self.clients[client].turns -= 1;
                let token = self.clients[client].tokens.next();
                self.clients[client].state = State::Contender { token };
                self.tell(|| format!("client {client} wants the lock"));
                self.ask(client, token, Command::Acquire { lease });
                if self.happens(Thing::GivesUp, client, self.weather.gives_up) {
                    let after = self.up_to(Thing::GivesUp, client, 4 * self.weather.delay);
                    self.at(self.now + after, Event::GiveUp { client, token });
                }
            }
            State::Held { token, deadline, works_until, .. }
                if self.now >= works_until || self.clock(client) >= deadline =>
            {
                self.let_go(client, token);
            }
            State::Held { token, deadline, works_until, renew_at } => {
                let renew_at = if self.now >= renew_at {
                    self.ask(client, token, Command::Renew { lease });
                    self.now + (self.weather.lease / 3).max(1)
                } else {
                    renew_at
                };
                self.clients[client].state = State::Held { token, deadline, works_until, renew_at };
                let deadline = self.clients[client].when(deadline);
                self.at(works_until.min(renew_at).min(deadline), Event::Wake { client });
            }
            State::Idle | State::Contender { .. } => {}
        }
    }

    fn let_go(&mut self, client: usize, token: Token) {
        self.clients[client].state = State::Idle;
        self.tell(|| format!("client {client} lets go"));
        for (ballot, of, _) in self.clients[client].ballots.values_mut() {
            if *of == token {
                ballot.let_go();
            }
        }
        self.ask(client, token, Command::Release);
        self.later(client);
    }

    /// The client tries again, after a time of its own.
    fn later(&mut self, client: usize) {
        self.clients[client].state = State::Idle;
        let wait = 1 + self.up_to(Thing::Pause, client, 2 * self.weather.delay + 20);
        self.at(self.now + wait, Event::Wake { client });
    }

    fn ask(&mut self, client: usize, token: Token, command: Command) {
        self.ballots += 1;
        let ballot = self.ballots;
        let open = (VoteTally::new(command, self.servers.len()), token, self.clock(client));
        self.clients[client].ballots.insert(ballot, open);
        for server in 0..self.servers.len() {
            self.send(client, server, token, command, Some(ballot));
        }
    }

    fn send(&mut self, client: usize, server: usize, token: Token, command: Command, ballot: Option<usize>) {
        let delay = 1 + self.up_to(Thing::RequestDelay, client, self.weather.delay);
        let request_lost = self.happens(Thing::RequestLost, client, self.weather.lost);
        let reply_lost = self.happens(Thing::ReplyLost, client, self.weather.lost);
        let doubled = self.happens(Thing::RequestDoubled, client, self.weather.doubled);
        let Connection { epoch, last_arrival, .. } = self.clients[client].connections[server];
        let starts = self.servers[server].starts;
        let sent = Sent { number: self.count, client, server, epoch, starts, token, command, ballot };
        self.count += 1;
        self.clients[client].connections[server].unanswered.push(sent);
        let mut arrival = (self.now + delay).max(last_arrival);
        let answered = !request_lost && !reply_lost && arrival < self.now + TIMEOUT;
        if !answered {
            let reply = Reply::Unknown(Failure::new(FailureKind::Passing, "no answer"));
            self.at(self.now + TIMEOUT, Event::Answered { sent, reply, counts: true });
            let late = self.now + delay + self.up_to(Thing::RequestLate, client, 2 * TIMEOUT);
            arrival = arrival.max(late);
        }
        self.clients[client].connections[server].last_arrival = arrival;
        if request_lost {
            self.saw(Seen::LostRequest);
            self.tell(|| {
                format!("client {client} {} of server {server}; the request is lost", asks(command))
            });
            return;
        }
        if reply_lost {
            self.saw(Seen::LostReply);
        }
        if arrival >= self.now + TIMEOUT {
            self.saw(Seen::LateRequest);
        }
        self.at(arrival, Event::Executed { sent, answered });
        if doubled {
            self.saw(Seen::DoubledRequest);
            self.at(arrival, Event::Executed { sent, answered: false });
        }
    }

    fn execute(&mut self, sent: Sent, answered: bool) {
        let Sent { client, server, token, command, .. } = sent;
        let current = &mut self.servers[server];
        let (reply, counts) = if current.starts == sent.starts {
            let reply = current.record.run(token, command, at(self.now), Duration::ZERO, |_, _| false);
            (reply, self.bug == Bug::WhoForgotIsAsked || !current.is_young(self.now, self.weather.lease))
        } else {
            // Its connections ended with the process.
            self.saw(Seen::Broken);
            let broken = Failure::new(FailureKind::Passing, "broken pipe").with_connection_lost();
            (Reply::Unknown(broken), true)
        };
        self.tell(|| {
            let lost = if answered { "" } else { "; the answer is lost" };
            let young = if counts { "" } else { ", but is too young to count" };
            format!(
                "client {client} {} of server {server}; it {}{young}{lost}",
                asks(command),
                answers(&reply)
            )
        });
        if answered {
            let delay = self.up_to(Thing::ReplyDelay, client, self.weather.delay);
            if self.happens(Thing::ReplyDoubled, client, self.weather.doubled) {
                self.saw(Seen::DoubledReply);
                let reply = reply.clone();
                self.at(self.now + 5 * delay, Event::Answered { sent, reply, counts });
            }
            self.at(self.now + delay, Event::Answered { sent, reply, counts });
        }
    }

    /// The client does not want any more what it asked for.
    fn give_up(&mut self, client: usize, token: Token) {
        match self.clients[client].state {
            State::Contender { token: of } if of == token => {
                self.saw(Seen::LeftAsking);
                self.tell(|| format!("client {client} gives up"));
                self.later(client);
            }
            State::Held { token: of, .. } if of == token => {
                self.saw(Seen::LeftHolding);
                self.let_go(client, token);
            }
            _ => {}
        }
    }

    fn answered(&mut self, sent: Sent, reply: Reply, counts: bool) -> Result<(), Box<Wrong>> {
        let Sent { client, server, epoch, token, command, ballot, .. } = sent;
        let connection = &mut self.clients[client].connections[server];
        let Some(place) = connection.unanswered.iter().position(|other| other.number == sent.number) else {
            return Ok(()); // its connection was given up
        };
        connection.unanswered.remove(place);
        if matches!(reply, Reply::Unknown(_)) && connection.epoch == epoch {
            connection.epoch += 1;
            connection.last_arrival = self.now;
            for other in connection.unanswered.clone() {
                self.answered(other, reply.clone(), counts)?;
            }
        }
        let now = self.clients[client].clock(self.now);
        let Some(number) = ballot else {
            if command != Command::Withdraw {
                self.clients[client].late.repaired(token, server, &reply);
            }
            let connection = &mut self.clients[client].connections[server];
            if command == Command::Withdraw
                && !connection.undoing.left(token, &reply, epoch, now)
                && matches!(reply, Reply::Unknown(_))
            {
                connection.undoing.add("k".into(), token, 0);
            }
            self.schedule_cleanup(client, server);
            return Ok(());
        };
        let Some((votes, _, asked)) = self.clients[client].ballots.get_mut(&number) else { return Ok(()) };
        let (mut follows, asked) = (Vec::new(), *asked);
        let outcome = votes.vote(server, reply, counts, &mut follows);
        let half = votes.ours() * 2 >= votes.votes.len();
        if votes.is_over() {
            self.clients[client].ballots.remove(&number);
        }
        let late = &mut self.clients[client].late;
        late.remember(token, &follows);
        if command == Command::Release && late.let_go(token, server) {
            follows.push((server, FollowUp::Abandon));
        }
        for (server, follow) in follows {
            self.follow(client, server, token, follow);
        }
        let contender = matches!(self.clients[client].state, State::Contender { token: of } if of == token);
        match (command, outcome) {
            (Command::Acquire { .. }, Some(Reply::Owner)) if contender => self.ours(client, token, asked)?,
            (Command::Acquire { .. }, Some(_)) if contender && self.bug == Bug::HalfIsEnough && half => {
                self.ours(client, token, asked)?;
            }
            (Command::Acquire { .. }, Some(_)) if contender => self.later(client),
            // Nobody wants it any more.
            (Command::Acquire { .. }, Some(Reply::Owner)) => self.ask(client, token, Command::Release),
            (Command::Renew { .. }, Some(Reply::Owner)) => self.renewed(client, token, asked)?,
            (command, Some(outcome))
                if is_lost(command, &outcome) && self.clients[client].state.token() == Some(token) =>
            {
                self.let_go(client, token);
            }
            _ => {}
        }
        Ok(())
    }

    fn follow(&mut self, client: usize, server: usize, token: Token, follow: FollowUp) {
        if self.bug == Bug::NothingIsUndone && matches!(follow, FollowUp::Leave | FollowUp::Abandon) {
            return;
        }
        match follow {
            FollowUp::Leave => self.send(client, server, token, Command::Withdraw, None),
            FollowUp::Abandon => {
                self.clients[client].connections[server].undoing.add("k".into(), token, 0);
                self.schedule_cleanup(client, server);
            }
            FollowUp::Unsure => {}
            FollowUp::Repair(lease) => {
                self.send(client, server, token, Command::Acquire { lease }, None);
            }
        }
    }

    fn undo(&mut self, client: usize, server: usize) {
        let now = self.clock(client);
        for (_, token) in self.clients[client].connections[server].undoing.due_now(now) {
            self.send(client, server, token, Command::Withdraw, None);
        }
        self.schedule_cleanup(client, server);
    }

    fn schedule_cleanup(&mut self, client: usize, server: usize) {
        let due = self.clients[client].connections[server].undoing.due();
        if due != BootInstant::NEVER {
            let due = self.clients[client].when(due).max(self.now);
            self.at(due, Event::Undo { client, server });
        }
    }

    fn deadline(&self, client: usize, asked: BootInstant) -> BootInstant {
        let from = if self.bug == Bug::DeadlineFromTheReply { self.clock(client) } else { asked };
        Deadline::of_lease(from, Duration::from_millis(self.weather.lease)).at()
    }

    /// A majority says that the lock is the client's, as it was asked at `asked`.
    fn ours(&mut self, client: usize, token: Token, asked: BootInstant) -> Result<(), Box<Wrong>> {
        let deadline = self.deadline(client, asked);
        if self.clock(client) >= deadline {
            self.let_go(client, token);
            return Ok(());
        }
        self.saw(Seen::Held);
        let until = self.clients[client].when(deadline);
        self.tell(|| format!("client {client} has the lock until {until} ms"));
        let works_until = self.now + self.up_to(Thing::Work, client, 2 * self.weather.lease.min(2_000));
        let renew_at = self.clients[client].when(asked) + (self.weather.lease / 3).max(1);
        self.clients[client].state = State::Held { token, deadline, works_until, renew_at };
        self.at(self.now, Event::Wake { client });
        self.judge()
    }

    fn renewed(&mut self, client: usize, token: Token, asked: BootInstant) -> Result<(), Box<Wrong>> {
        let (now, renewed) = (self.clock(client), self.deadline(client, asked));
        if let State::Held { token: held, deadline, .. } = &mut self.clients[client].state
            && *held == token
            && now < *deadline
        {
            *deadline = renewed.max(*deadline);
        }
        self.judge()
    }

    /// J1.
    fn judge(&mut self) -> Result<(), Box<Wrong>> {
        let believes = |(number, client): (usize, &Client)| match client.state {
            State::Held { deadline, .. } => (client.clock(self.now) < deadline).then_some(number),
            _ => None,
        };
        let believing: Vec<_> = self.clients.iter().enumerate().filter_map(believes).collect();
        match (believing.len() > 1, self.weather.beyond) {
            (false, _) => {}
            (true, Beyond::Nothing) => {
                return wrong(
                    "J1 no two believe in the lock",
                    format!("clients {believing:?} believe in the lock"),
                );
            }
            (true, Beyond::Forgets) => self.saw(Seen::OverlapForgotten),
            (true, Beyond::Drift) => self.saw(Seen::OverlapDrift),
        }
        Ok(())
    }

    fn judge_the_end(&self) -> Result<(), Box<Wrong>> {
        let left = self.servers.iter().filter(|server| !server.record.is_empty(at(self.now))).count();
        if left > 0 {
            return wrong("J6 nothing left", format!("something is left on {left} servers"));
        }
        if self.clients.iter().any(|client| client.turns > 0) {
            return wrong("J8 one outcome", "a client waits for an answer that does not come");
        }
        Ok(())
    }
}

impl Client {
    /// What its clock shows at `now`.
    fn clock(&self, now: u64) -> BootInstant {
        BootInstant::from_nanos(now * self.pace)
    }

    /// The first time at which its clock shows that.
    fn when(&self, local: BootInstant) -> u64 {
        local.nanos().div_ceil(self.pace)
    }
}

impl State {
    fn token(self) -> Option<Token> {
        match self {
            Self::Held { token, .. } => Some(token),
            Self::Idle | Self::Contender { .. } => None,
        }
    }
}

impl Server {
    /// Whether it may have forgotten who holds.
    fn is_young(&self, now: u64, lease: u64) -> bool {
        self.started.is_some_and(|started| now < started + lease)
    }
}

fn asks(command: Command) -> &'static str {
    match command {
        Command::Acquire { .. } => "asks for the lock",
        Command::Renew { .. } => "asks to renew the lock",
        Command::Withdraw => "takes back what it asked",
        _ => "asks to let go",
    }
}

fn answers(reply: &Reply) -> &'static str {
    match reply {
        Reply::Owner => "says yes",
        Reply::Unknown(_) => "was started again meanwhile",
        _ => "says no",
    }
}
