//! Ballots against worlds that lose, delay and forget: whole schedules, each from a seed.
//!
//! Two or three clients want one key of three or five servers. Requests and answers are delayed or lost, lost ones may still be
//! executed later, clients freeze, and servers are started again empty: no more of them in one lease than a majority can spare. A
//! connection keeps its order until an answer is missed.
//!
//! Judged: no two believe in the lock at once, and in the end nothing is left. A judge that cannot fail proves nothing: each rule that
//! it is to guard is broken on purpose, and the worlds must notice.
//!
//! Not here: queues, tasks and limits, which are the lane's (`protocol::simulation`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use super::{Ballot, Follow, is_lost};
use crate::protocol::abandon::AbandonList;
use crate::protocol::command::{Command, Failure, FailureKind, Reply};
use crate::protocol::deadline::{BootTime, Deadline};
use crate::protocol::record::Record;
use crate::token::{Token, TokenSource};

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    HalfIsEnough,
    DeadlineFromTheReply,
    NothingIsUndone,
    WhoForgotIsAsked,
}

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
    undoing: AbandonList,
}

struct Client {
    tokens: TokenSource,
    connections: Vec<Connection>,
    ballots: BTreeMap<usize, (Ballot, Token, u64)>,
    unsure: BTreeSet<(Token, usize)>,
    repairing: BTreeSet<(Token, usize)>,
    state: State,
    turns: u32,
    frozen_until: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Idle,
    Asking,
    Held { token: Token, deadline: BootTime, works_until: u64, renew_at: u64 },
}

struct World {
    bug: Bug,
    random: u64,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    what: BTreeMap<u64, Event>,
    count: u64,
    ballots: usize,
    servers: Vec<Server>,
    clients: Vec<Client>,
    lease: u64,
    delay: u64,
    lost: u64,
    frozen: u64,
    granted: u32,
    /// What happened, where somebody wants to read it.
    story: Option<Vec<String>>,
}

const TIMEOUT: u64 = 200;

impl World {
    fn new(seed: u64, bug: Bug) -> Self {
        let mut world = Self {
            bug,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            now: 0,
            events: BinaryHeap::new(),
            what: BTreeMap::new(),
            count: 0,
            ballots: 0,
            servers: Vec::new(),
            clients: Vec::new(),
            lease: 0,
            delay: 0,
            lost: 0,
            frozen: 0,
            granted: 0,
            story: None,
        };
        world.up_to(9);
        world.lease = world.one_of(&[300, 1_000, 5_000, 60_000]);
        world.delay = world.one_of(&[1, 10, 100, 300]);
        world.lost = world.one_of(&[0, 3, 15]);
        world.frozen = world.one_of(&[0, 0, 20]);
        let (servers, restarts) = (world.one_of(&[3, 3, 5]), world.one_of(&[0, 2, 6]));
        for _ in 0..servers {
            world.servers.push(Server { record: Record::default(), starts: 0, started: None });
        }
        for number in 0..world.one_of(&[2, 3]) {
            world.clients.push(Client {
                tokens: TokenSource::of_process(seed ^ number),
                connections: (0..servers).map(|_| Connection { epoch: 1, ..Connection::default() }).collect(),
                ballots: BTreeMap::new(),
                unsure: BTreeSet::new(),
                repairing: BTreeSet::new(),
                state: State::Idle,
                turns: 4,
                frozen_until: 0,
            });
            let at = world.up_to(50);
            world.at(at, Event::Wake { client: world.clients.len() - 1 });
        }
        for _ in 0..restarts {
            let (at, server) = (world.up_to(3_000), world.up_to(servers - 1));
            world.at(at, Event::Restart { server: usize::try_from(server).unwrap_or_default() });
        }
        world
    }

    /// The same world, which keeps what happens to tell it.
    fn told(mut self) -> Self {
        self.story = Some(Vec::new());
        self
    }

    fn tell(&self, what: &str) -> String {
        let story = self.story.as_ref().map(|story| story.join("\n")).unwrap_or_default();
        format!("{what}\n{story}")
    }

    fn up_to(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) % (bound + 1)
    }

    fn one_of(&mut self, from: &[u64]) -> u64 {
        let last = u64::try_from(from.len() - 1).unwrap_or_default();
        from[usize::try_from(self.up_to(last)).unwrap_or_default()]
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.up_to(99) < percent
    }

    fn at(&mut self, time: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((time, self.count)));
        self.what.insert(self.count, event);
    }

    /// Runs to the end, and returns how often somebody was granted the lock.
    fn run(mut self) -> Result<u32, String> {
        for _ in 0..60_000 {
            let Some(Reverse((time, id))) = self.events.pop() else { return self.judge_the_end() };
            let Some(event) = self.what.remove(&id) else { continue };
            self.now = self.now.max(time);
            let client = match &event {
                Event::Wake { client } | Event::Undo { client, .. } => Some(*client),
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
        Err(self.tell("it never ends"))
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        if let Some(story) = &mut self.story {
            story.push(format!("{:>6} {event:?}", self.now));
        }
        match event {
            Event::Wake { client } => self.wake(client),
            Event::Executed { sent, answered } => self.execute(sent, answered),
            Event::Answered { sent, reply, counts } => return self.answered(sent, reply, counts),
            Event::Undo { client, server } => self.undo(client, server),
            Event::Restart { server } => self.restart(server),
        }
        Ok(())
    }

    /// What a majority can spare in one lease may forget.
    fn restart(&mut self, server: usize) {
        let young = self.servers.iter().filter(|other| other.is_young(self.now, self.lease)).count();
        if young < (self.servers.len() - 1) / 2 && !self.servers[server].is_young(self.now, self.lease) {
            let starts = self.servers[server].starts + 1;
            self.servers[server] = Server { record: Record::default(), starts, started: Some(self.now) };
        }
    }

    fn wake(&mut self, client: usize) {
        if self.chance(self.frozen) {
            self.clients[client].frozen_until = self.now + self.up_to(2 * self.lease.min(3_000));
        }
        let lease = Duration::from_millis(self.lease);
        match self.clients[client].state {
            State::Idle if self.clients[client].turns > 0 => {
                self.clients[client].turns -= 1;
                self.clients[client].state = State::Asking;
                let token = self.clients[client].tokens.next();
                self.ask(client, token, Command::Acquire { lease });
            }
            State::Held { token, deadline, works_until, .. }
                if self.now >= works_until || at(self.now) >= deadline =>
            {
                self.let_go(client, token);
            }
            State::Held { token, deadline, works_until, renew_at } => {
                let renew_at = if self.now >= renew_at {
                    self.ask(client, token, Command::Renew { lease });
                    self.now + (self.lease / 3).max(1)
                } else {
                    renew_at
                };
                self.clients[client].state = State::Held { token, deadline, works_until, renew_at };
                let deadline = deadline.nanos().div_ceil(1_000_000);
                self.at(works_until.min(renew_at).min(deadline), Event::Wake { client });
            }
            State::Idle | State::Asking => {}
        }
    }

    fn let_go(&mut self, client: usize, token: Token) {
        self.clients[client].state = State::Idle;
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
        let wait = 1 + self.up_to(2 * self.delay + 20);
        self.at(self.now + wait, Event::Wake { client });
    }

    fn ask(&mut self, client: usize, token: Token, command: Command) {
        self.ballots += 1;
        let ballot = self.ballots;
        let open = (Ballot::new(command, self.servers.len()), token, self.now);
        self.clients[client].ballots.insert(ballot, open);
        for server in 0..self.servers.len() {
            self.send(client, server, token, command, Some(ballot));
        }
    }

    fn send(&mut self, client: usize, server: usize, token: Token, command: Command, ballot: Option<usize>) {
        let delay = 1 + self.up_to(self.delay);
        let (request_lost, reply_lost) = (self.chance(self.lost), self.chance(self.lost));
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
            let late = self.now + delay + self.up_to(2 * TIMEOUT);
            arrival = arrival.max(late);
        }
        self.clients[client].connections[server].last_arrival = arrival;
        if !request_lost {
            self.at(arrival, Event::Executed { sent, answered });
        }
    }

    fn execute(&mut self, sent: Sent, answered: bool) {
        let server = &mut self.servers[sent.server];
        let (reply, counts) = if server.starts == sent.starts {
            let no_grant = Duration::ZERO;
            let reply = server.record.run(sent.token, sent.command, at(self.now), no_grant, |_, _| false);
            (reply, self.bug == Bug::WhoForgotIsAsked || !server.is_young(self.now, self.lease))
        } else {
            // Its connections ended with the process.
            (Reply::Unknown(Failure::new(FailureKind::Passing, "broken pipe")), true)
        };
        if answered {
            let delay = self.up_to(self.delay);
            self.at(self.now + delay, Event::Answered { sent, reply, counts });
        }
    }

    fn answered(&mut self, sent: Sent, reply: Reply, counts: bool) -> Result<(), String> {
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
        let Some(number) = ballot else {
            if !matches!((command, &reply), (Command::Leave, _) | (_, Reply::Unknown(_))) {
                self.clients[client].repairing.remove(&(token, server));
            }
            let connection = &mut self.clients[client].connections[server];
            if command == Command::Leave
                && !connection.undoing.left(token, &reply, epoch, at(self.now))
                && matches!(reply, Reply::Unknown(_))
            {
                connection.undoing.add("k".into(), token, 0);
            }
            self.undo_later(client, server);
            return Ok(());
        };
        let Some((votes, _, asked)) = self.clients[client].ballots.get_mut(&number) else { return Ok(()) };
        let (mut follows, asked) = (Vec::new(), *asked);
        let outcome = votes.vote(server, reply, counts, &mut follows);
        let half = votes.ours() * 2 >= votes.votes.len();
        if votes.is_over() {
            self.clients[client].ballots.remove(&number);
        }
        let Client { unsure, repairing, .. } = &mut self.clients[client];
        let place = (token, server);
        if command == Command::Release && (unsure.remove(&place) | repairing.remove(&place)) {
            follows.push((server, Follow::Abandon));
        }
        for (server, follow) in follows {
            self.follow(client, server, token, follow);
        }
        let asking = matches!(self.clients[client].state, State::Asking);
        match (command, outcome) {
            (Command::Acquire { .. }, Some(Reply::Ours)) if asking => self.ours(client, token, asked)?,
            (Command::Acquire { .. }, Some(_)) if asking && self.bug == Bug::HalfIsEnough && half => {
                self.ours(client, token, asked)?;
            }
            (Command::Acquire { .. }, Some(_)) if asking => self.later(client),
            (Command::Renew { .. }, Some(Reply::Ours)) => self.renewed(client, token, asked)?,
            (command, Some(outcome))
                if is_lost(command, &outcome) && self.clients[client].state.token() == Some(token) =>
            {
                self.let_go(client, token);
            }
            _ => {}
        }
        Ok(())
    }

    fn follow(&mut self, client: usize, server: usize, token: Token, follow: Follow) {
        if self.bug == Bug::NothingIsUndone && matches!(follow, Follow::Leave | Follow::Abandon) {
            return;
        }
        match follow {
            Follow::Leave => self.send(client, server, token, Command::Leave, None),
            Follow::Abandon => {
                self.clients[client].connections[server].undoing.add("k".into(), token, 0);
                self.undo_later(client, server);
            }
            Follow::Unsure => {
                self.clients[client].unsure.insert((token, server));
            }
            Follow::Repair(lease) => {
                self.clients[client].repairing.insert((token, server));
                self.send(client, server, token, Command::Acquire { lease }, None);
            }
        }
    }

    fn undo(&mut self, client: usize, server: usize) {
        let now = at(self.now);
        for (_, token) in self.clients[client].connections[server].undoing.due_now(now) {
            self.send(client, server, token, Command::Leave, None);
        }
        self.undo_later(client, server);
    }

    fn undo_later(&mut self, client: usize, server: usize) {
        let due = self.clients[client].connections[server].undoing.due();
        if due != BootTime::NEVER {
            let due = due.nanos().div_ceil(1_000_000).max(self.now);
            self.at(due, Event::Undo { client, server });
        }
    }

    fn deadline(&self, asked: u64) -> BootTime {
        let from = if self.bug == Bug::DeadlineFromTheReply { self.now } else { asked };
        Deadline::of_lease(at(from), Duration::from_millis(self.lease)).at()
    }

    /// A majority says that the lock is the client's, as it was asked at `asked`.
    fn ours(&mut self, client: usize, token: Token, asked: u64) -> Result<(), String> {
        let deadline = self.deadline(asked);
        if at(self.now) >= deadline {
            self.let_go(client, token);
            return Ok(());
        }
        self.granted += 1;
        let works_until = self.now + self.up_to(2 * self.lease.min(2_000));
        let renew_at = asked + (self.lease / 3).max(1);
        self.clients[client].state = State::Held { token, deadline, works_until, renew_at };
        self.at(self.now, Event::Wake { client });
        self.judge()
    }

    fn renewed(&mut self, client: usize, token: Token, asked: u64) -> Result<(), String> {
        let renewed = self.deadline(asked);
        if let State::Held { token: held, deadline, .. } = &mut self.clients[client].state
            && *held == token
            && at(self.now) < *deadline
        {
            *deadline = renewed.max(*deadline);
        }
        self.judge()
    }

    fn judge(&self) -> Result<(), String> {
        let believes = |client: &&Client| matches!(client.state, State::Held { deadline, .. } if at(self.now) < deadline);
        let believing: Vec<_> = self.clients.iter().filter(believes).map(|client| client.state).collect();
        if believing.len() > 1 {
            Err(self.tell(&format!("two believe in the lock: {believing:?}")))
        } else {
            Ok(())
        }
    }

    fn judge_the_end(&self) -> Result<u32, String> {
        let left = self.servers.iter().filter(|server| !server.record.is_empty(at(self.now))).count();
        if left > 0 {
            Err(self.tell(&format!("something is left on {left} servers")))
        } else {
            Ok(self.granted)
        }
    }
}

impl State {
    fn token(self) -> Option<Token> {
        match self {
            Self::Held { token, .. } => Some(token),
            Self::Idle | Self::Asking => None,
        }
    }
}

impl Server {
    /// Whether it may have forgotten who holds.
    fn is_young(&self, now: u64, lease: u64) -> bool {
        self.started.is_some_and(|started| now < started + lease)
    }
}

fn at(ms: u64) -> BootTime {
    BootTime::from_nanos(ms * 1_000_000)
}

#[test]
fn no_schedule_lets_two_believe_in_a_lock_of_several_servers() {
    let mut granted = 0;
    let seeds: u64 =
        std::env::var("DLOCK_SIM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(10_000);
    for seed in 0..seeds {
        let Ok(times) = World::new(seed, Bug::None).run() else {
            let story = World::new(seed, Bug::None).told().run().err().unwrap_or_default();
            panic!("seed {seed}: {story}");
        };
        granted += u64::from(times);
    }
    assert!(granted > 2 * seeds, "{granted} holds prove little");
}

#[test]
fn every_rule_that_is_broken_is_noticed() {
    for (bug, what) in [
        (Bug::HalfIsEnough, "two believe"),
        (Bug::DeadlineFromTheReply, "two believe"),
        (Bug::NothingIsUndone, "something is left"),
        (Bug::WhoForgotIsAsked, "two believe"),
    ] {
        let caught = (0..20_000).find_map(|seed| Some((seed, World::new(seed, bug).run().err()?)));
        let Some((seed, said)) = caught else { panic!("{bug:?} is not noticed") };
        println!("{bug:?} is noticed at seed {seed}: {said}");
        assert!(said.contains(what), "{bug:?} at seed {seed}: {said}");
    }
}
