//! The model: independent servers, clients that contend for one key, and the network between them.
//!
//! A connection delivers requests in order. After a missing reply, the client opens a new
//! connection.

use std::collections::BTreeMap;
use std::time::Duration;

use super::fault_profile::{Bug, CoveragePoint, FaultProfile, OutOfModelFault};
use crate::protocol::command::{Command, Failure, FailureKind, Reply};
use crate::protocol::deadline::{BootInstant, Deadline, time_to_expire};
use crate::protocol::orphans::OrphanedTokens;
use crate::protocol::quorum::pending_repairs::PendingRepairs;
use crate::protocol::quorum::{FollowUp, VoteTally, is_lost};
use crate::protocol::record::Record;
use crate::protocol::simulation::choices::ChoiceSource;
use crate::protocol::simulation::coverage::Coverage;
use crate::protocol::simulation::event_queue::EventQueue;
use crate::protocol::simulation::trace::Trace;
use crate::protocol::simulation::{Violation, at, violation};
use crate::token::{Token, TokenSource};

#[derive(Clone, Debug)]
enum Event {
    /// A client checks what to do next.
    Wake {
        client: usize,
    },
    Executed {
        sent: Sent,
        replied: bool,
    },
    Replied {
        sent: Sent,
        reply: Reply,
    },
    /// A client cleans up the orphaned tokens that are due at a server.
    CleanUp {
        client: usize,
        server: usize,
    },
    Restart {
        server: usize,
    },
    Cancel {
        client: usize,
        token: Token,
    },
}

/// A command in flight.
#[derive(Clone, Copy, Debug)]
struct Sent {
    number: u64,
    client: usize,
    server: usize,
    epoch: u64,
    /// The server's restart count when the command was sent.
    starts: u64,
    token: Token,
    command: Command,
    tally: Option<usize>,
    /// Whether a grant counts for the client.
    counts: bool,
}

struct Server {
    record: Record,
    starts: u64,
    /// The time of the last restart, or `None` if there was none.
    started: Option<u64>,
}

/// A client's connection to one server, and its cleanup at that server.
#[derive(Default)]
struct Connection {
    epoch: u64,
    last_arrival: u64,
    in_flight: Vec<Sent>,
    orphans: OrphanedTokens,
}

struct Client {
    tokens: TokenSource,
    connections: Vec<Connection>,
    tallies: BTreeMap<usize, (VoteTally, Token, BootInstant)>,
    pending_repairs: PendingRepairs,
    state: State,
    attempts: u64,
    frozen_until: u64,
    /// Nanoseconds of its clock per millisecond of the servers' clock.
    pace: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Idle,
    Contending { token: Token },
    Held { token: Token, deadline: BootInstant, works_until: u64, renew_at: u64 },
}

pub(super) struct QuorumModel<'a> {
    profile: FaultProfile,
    bug: Bug,
    now: u64,
    event_queue: EventQueue<Event>,
    count: u64,
    tallies: usize,
    servers: Vec<Server>,
    clients: Vec<Client>,
    coverage: Coverage,
    choices: &'a mut ChoiceSource,
    trace: &'a mut Trace,
}

/// The kinds of random choices.
#[derive(Clone, Copy, Debug)]
enum ChoiceKind {
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
    RequestDuplicated,
    ReplyDelay,
    ReplyDuplicated,
    Work,
    Cancelled,
    Drift,
    RequestRefused,
    Unrenewed,
    Patient,
}

/// The response timeout, in milliseconds.
const TIMEOUT: u64 = 200;

impl<'a> QuorumModel<'a> {
    pub(super) fn new(
        profile: &FaultProfile,
        bug: Bug,
        choices: &'a mut ChoiceSource,
        trace: &'a mut Trace,
    ) -> Self {
        let mut model = Self {
            profile: *profile,
            bug,
            now: 0,
            event_queue: EventQueue::new(),
            count: 0,
            tallies: 0,
            servers: Vec::new(),
            clients: Vec::new(),
            coverage: Coverage::new(),
            choices,
            trace,
        };
        let servers = profile.servers;
        for _ in 0..servers {
            model.servers.push(Server { record: Record::default(), starts: 0, started: None });
        }
        for number in 0..profile.clients {
            model.clients.push(Client {
                tokens: TokenSource::of_process(number),
                connections: (0..servers).map(|_| Connection { epoch: 1, ..Connection::default() }).collect(),
                tallies: BTreeMap::new(),
                pending_repairs: PendingRepairs::default(),
                state: State::Idle,
                attempts: profile.attempts,
                frozen_until: 0,
                pace: 1_000_000,
            });
            let client = model.clients.len() - 1;
            let drift = model.up_to(ChoiceKind::Drift, client, 2 * profile.drift);
            if drift > 0 {
                model.cover(if profile.out_of_model == OutOfModelFault::ExcessiveDrift {
                    CoveragePoint::ExcessiveDrift
                } else {
                    CoveragePoint::Drift
                });
            }
            // 1, -1, 2, -2, ... thousandths
            let half = 1_000 * drift.div_ceil(2);
            model.clients[client].pace = if drift % 2 == 1 { 1_000_000 + half } else { 1_000_000 - half };
            let at = model.up_to(ChoiceKind::Begin, client, 50);
            model.at(at, Event::Wake { client });
        }
        for _ in 0..profile.restarts {
            let at = model.up_to(ChoiceKind::Restart, 0, 3_000);
            model.plan_restart(at);
        }
        model
    }

    /// Plans the restart of a random server.
    fn plan_restart(&mut self, at: u64) {
        let server = self.up_to(ChoiceKind::RestartWhich, 0, self.servers.len() as u64 - 1);
        self.at(at, Event::Restart { server: usize::try_from(server).unwrap_or_default() });
    }

    fn up_to(&mut self, kind: ChoiceKind, subject: usize, bound: u64) -> u64 {
        self.choices.up_to(kind as usize, subject, bound)
    }

    fn happens(&mut self, kind: ChoiceKind, subject: usize, percent: u64) -> bool {
        self.choices.happens(kind as usize, subject, percent)
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

    /// Returns the time on the clock of a client.
    fn clock(&self, client: usize) -> BootInstant {
        self.clients[client].clock(self.now)
    }

    pub(super) fn run(mut self) -> Result<Coverage, Box<Violation>> {
        for _ in 0..60_000 {
            let Some((time, event)) = self.event_queue.pop() else {
                self.check_end()?;
                return Ok(self.coverage);
            };
            self.now = self.now.max(time);
            let client = match &event {
                Event::Wake { client } | Event::CleanUp { client, .. } | Event::Cancel { client, .. } => {
                    Some(*client)
                }
                Event::Replied { sent, .. } => Some(sent.client),
                Event::Executed { .. } | Event::Restart { .. } => None,
            };
            let frozen_until = client.map_or(0, |client| self.clients[client].frozen_until);
            if frozen_until > self.now {
                self.at(frozen_until, event);
            } else {
                self.handle(event)?;
            }
        }
        violation("end", "it never ends")
    }

    fn handle(&mut self, event: Event) -> Result<(), Box<Violation>> {
        match event {
            Event::Wake { client } => self.wake(client),
            Event::Executed { sent, replied } => self.execute(sent, replied),
            Event::Replied { sent, reply } => return self.on_reply(sent, reply),
            Event::CleanUp { client, server } => self.clean_up(client, server),
            Event::Restart { server } => self.restart(server),
            Event::Cancel { client, token } => self.cancel(client, token),
        }
        Ok(())
    }

    /// Restarts a server without its data, if a majority still tolerates it within one lease.
    ///
    /// Clients can see that the server restarted. With [`OutOfModelFault::SilentDataLoss`] they
    /// cannot, and there is no limit.
    fn restart(&mut self, server: usize) {
        let lease = self.profile.lease;
        if self.profile.out_of_model == OutOfModelFault::SilentDataLoss {
            self.cover(CoveragePoint::SilentDataLoss);
            self.trace(|| format!("server {server} loses its data without a restart"));
            self.servers[server].record = Record::default();
            return;
        }
        let recent = self.servers.iter().filter(|other| other.is_recent(self.now, lease)).count();
        if recent < (self.servers.len() - 1) / 2 && !self.servers[server].is_recent(self.now, lease) {
            self.cover(CoveragePoint::Restart);
            self.trace(|| format!("server {server} restarts without its data"));
            let starts = self.servers[server].starts + 1;
            self.servers[server] = Server { record: Record::default(), starts, started: Some(self.now) };
        }
    }

    fn wake(&mut self, client: usize) {
        if self.happens(ChoiceKind::Froze, client, self.profile.frozen) {
            let until =
                self.now + self.up_to(ChoiceKind::FrozeFor, client, 2 * self.profile.lease.min(3_000));
            self.clients[client].frozen_until = until;
            self.cover(CoveragePoint::Froze);
            self.trace(|| format!("client {client} freezes until {until} ms"));
        }
        let lease = Duration::from_millis(self.profile.lease);
        match self.clients[client].state {
            State::Idle if self.clients[client].attempts > 0 => {
                self.clients[client].attempts -= 1;
                let token = self.clients[client].tokens.next();
                self.clients[client].state = State::Contending { token };
                self.trace(|| format!("client {client} requests the lock"));
                self.request(client, token, Command::Acquire { lease });
                if self.happens(ChoiceKind::Cancelled, client, self.profile.cancelled) {
                    let after = self.up_to(ChoiceKind::Cancelled, client, 4 * self.profile.delay);
                    self.at(self.now + after, Event::Cancel { client, token });
                }
            }
            State::Held { token, deadline, works_until, .. }
                if self.now >= works_until || self.clock(client) >= deadline =>
            {
                self.release(client, token);
            }
            State::Held { token, deadline, works_until, renew_at } => {
                let renew_at = if self.now >= renew_at {
                    self.request(client, token, Command::Renew { lease });
                    self.now + (self.profile.lease / 3).max(1)
                } else {
                    renew_at
                };
                self.clients[client].state = State::Held { token, deadline, works_until, renew_at };
                let deadline = self.clients[client].when(deadline);
                self.at(works_until.min(renew_at).min(deadline), Event::Wake { client });
            }
            State::Idle | State::Contending { .. } => {}
        }
    }

    fn release(&mut self, client: usize, token: Token) {
        self.clients[client].state = State::Idle;
        self.trace(|| format!("client {client} releases the lock"));
        for (tally, owner, _) in self.clients[client].tallies.values_mut() {
            if *owner == token {
                tally.mark_superseded();
            }
        }
        self.request(client, token, Command::RELEASE);
        self.retry_later(client);
    }

    /// Schedules the next attempt of a client after a random delay.
    fn retry_later(&mut self, client: usize) {
        self.clients[client].state = State::Idle;
        let mut next = self.now + 1 + self.up_to(ChoiceKind::Pause, client, 2 * self.profile.delay + 20);
        if self.happens(ChoiceKind::Patient, client, self.profile.unrenewed) {
            let all_count = (0..self.servers.len()).map(|server| self.counts_from(client, server)).max();
            next = next.max(all_count.map_or(0, |all_count| self.clients[client].when(all_count)));
        }
        self.at(next, Event::Wake { client });
    }

    /// Returns when the acceptance of a server starts to count for a client, on its clock.
    fn counts_from(&self, client: usize, server: usize) -> BootInstant {
        let Some(started) = self.servers[server].started else { return BootInstant::START };
        let lease = Duration::from_millis(self.profile.lease);
        let age = if self.bug == Bug::FastClocksAgeServers { lease } else { time_to_expire(lease) };
        self.clients[client].clock(started).plus(age)
    }

    fn request(&mut self, client: usize, token: Token, command: Command) {
        self.tallies += 1;
        let tally = self.tallies;
        let pending = (VoteTally::new(command, self.servers.len()), token, self.clock(client));
        self.clients[client].tallies.insert(tally, pending);
        for server in 0..self.servers.len() {
            self.send(client, server, token, command, Some(tally));
        }
    }

    fn send(&mut self, client: usize, server: usize, token: Token, command: Command, tally: Option<usize>) {
        let delay = 1 + self.up_to(ChoiceKind::RequestDelay, client, self.profile.delay);
        let request_lost = self.happens(ChoiceKind::RequestLost, client, self.profile.lost);
        let reply_lost = self.happens(ChoiceKind::ReplyLost, client, self.profile.lost);
        let duplicated = self.happens(ChoiceKind::RequestDuplicated, client, self.profile.duplicated);
        let Connection { epoch, last_arrival, .. } = self.clients[client].connections[server];
        let starts = self.servers[server].starts;
        let counts =
            self.bug == Bug::RestartedServersVote || self.clock(client) >= self.counts_from(client, server);
        let sent = Sent { number: self.count, client, server, epoch, starts, token, command, tally, counts };
        self.count += 1;
        self.clients[client].connections[server].in_flight.push(sent);
        if self.happens(ChoiceKind::RequestRefused, client, self.profile.lost) {
            self.cover(CoveragePoint::RefusedRequest);
            self.trace(|| {
                format!("client {client} cannot send {} to server {server}", display_command(command))
            });
            let reply = Reply::Refused(Failure::new(FailureKind::Passing, "no connection"));
            return self.at(self.now, Event::Replied { sent, reply });
        }
        let mut arrival = (self.now + delay).max(last_arrival);
        let replied = !request_lost && !reply_lost && arrival < self.now + TIMEOUT;
        if !replied {
            let reply = Reply::Unknown(Failure::new(FailureKind::Passing, "no reply"));
            self.at(self.now + TIMEOUT, Event::Replied { sent, reply });
            let late = self.now + delay + self.up_to(ChoiceKind::RequestLate, client, 2 * TIMEOUT);
            arrival = arrival.max(late);
        }
        self.clients[client].connections[server].last_arrival = arrival;
        if request_lost {
            self.cover(CoveragePoint::LostRequest);
            self.trace(|| {
                format!(
                    "client {client} sends {} to server {server}; the request is lost",
                    display_command(command)
                )
            });
            return;
        }
        if reply_lost {
            self.cover(CoveragePoint::LostReply);
        }
        if arrival >= self.now + TIMEOUT {
            self.cover(CoveragePoint::LateRequest);
        }
        self.at(arrival, Event::Executed { sent, replied });
        if duplicated {
            self.cover(CoveragePoint::DuplicatedRequest);
            self.at(arrival, Event::Executed { sent, replied: false });
        }
    }

    fn execute(&mut self, sent: Sent, replied: bool) {
        let Sent { client, server, token, command, counts, .. } = sent;
        let current = &mut self.servers[server];
        let reply = if current.starts == sent.starts {
            current.record.run(token, command, at(self.now), Duration::ZERO, |_, _| false)
        } else {
            // The restart closed its connections.
            self.cover(CoveragePoint::Disconnected);
            let broken = Failure::new(FailureKind::Passing, "broken pipe").with_connection_lost();
            Reply::Unknown(broken)
        };
        self.trace(|| {
            let lost = if replied { "" } else { "; the reply is lost" };
            let recent = if counts { "" } else { ", which does not count: it restarted recently" };
            format!(
                "client {client} sends {} to server {server}; it {}{recent}{lost}",
                display_command(command),
                display_reply(&reply)
            )
        });
        if replied {
            let delay = self.up_to(ChoiceKind::ReplyDelay, client, self.profile.delay);
            if self.happens(ChoiceKind::ReplyDuplicated, client, self.profile.duplicated) {
                self.cover(CoveragePoint::DuplicatedReply);
                let reply = reply.clone();
                self.at(self.now + 5 * delay, Event::Replied { sent, reply });
            }
            self.at(self.now + delay, Event::Replied { sent, reply });
        }
    }

    /// Cancels an attempt, or the hold that it led to.
    fn cancel(&mut self, client: usize, token: Token) {
        match self.clients[client].state {
            State::Contending { token: current } if current == token => {
                self.cover(CoveragePoint::CancelledAcquiring);
                self.trace(|| format!("client {client} is cancelled"));
                self.retry_later(client);
            }
            State::Held { token: current, .. } if current == token => {
                self.cover(CoveragePoint::CancelledHolding);
                self.release(client, token);
            }
            _ => {}
        }
    }

    fn on_reply(&mut self, sent: Sent, reply: Reply) -> Result<(), Box<Violation>> {
        let Sent { client, server, epoch, token, command, tally, counts, .. } = sent;
        let connection = &mut self.clients[client].connections[server];
        let Some(index) = connection.in_flight.iter().position(|other| other.number == sent.number) else {
            return Ok(()); // the connection was replaced
        };
        connection.in_flight.remove(index);
        if matches!(reply, Reply::Unknown(_)) && connection.epoch == epoch {
            connection.epoch += 1;
            connection.last_arrival = self.now;
            for other in connection.in_flight.clone() {
                self.on_reply(other, reply.clone())?;
            }
        }
        let now = self.clients[client].clock(self.now);
        let Some(number) = tally else {
            if command != Command::Withdraw {
                self.clients[client].pending_repairs.on_repaired(token, server, &reply);
            }
            let connection = &mut self.clients[client].connections[server];
            if command == Command::Withdraw
                && !connection.orphans.left(token, &reply, epoch, now)
                && matches!(reply, Reply::Unknown(_) | Reply::Refused(_))
            {
                connection.orphans.add("k".into(), token, 0);
            }
            self.schedule_cleanup(client, server);
            return Ok(());
        };
        let Some((votes, _, sent_at)) = self.clients[client].tallies.get_mut(&number) else { return Ok(()) };
        let (mut follows, sent_at) = (Vec::new(), *sent_at);
        let outcome = votes.vote(server, reply, counts, &mut follows);
        let half = votes.owner_votes() * 2 >= votes.votes.len();
        let is_over = votes.is_over();
        if is_over {
            self.clients[client].tallies.remove(&number);
        }
        let pending_repairs = &mut self.clients[client].pending_repairs;
        pending_repairs.remember(token, &follows);
        if command == Command::RELEASE {
            pending_repairs.on_end((token, server), is_over, &mut follows);
        }
        for (server, follow) in follows {
            self.follow_up(client, server, token, follow);
        }
        let is_contending =
            matches!(self.clients[client].state, State::Contending { token: current } if current == token);
        match (command, outcome) {
            (Command::Acquire { .. }, Some(Reply::Owner)) if is_contending => {
                self.on_acquired(client, token, sent_at)?;
            }
            (Command::Acquire { .. }, Some(_))
                if is_contending && self.bug == Bug::HalfIsMajority && half =>
            {
                self.on_acquired(client, token, sent_at)?;
            }
            (Command::Acquire { .. }, Some(_)) if is_contending => self.retry_later(client),
            // The attempt was cancelled.
            (Command::Acquire { .. }, Some(Reply::Owner)) => self.request(client, token, Command::RELEASE),
            (Command::Renew { .. }, Some(Reply::Owner)) => self.on_renewed(client, token, sent_at)?,
            (command, Some(outcome))
                if is_lost(command, &outcome) && self.clients[client].state.token() == Some(token) =>
            {
                self.release(client, token);
            }
            _ => {}
        }
        Ok(())
    }

    fn follow_up(&mut self, client: usize, server: usize, token: Token, follow: FollowUp) {
        if self.bug == Bug::NoCleanup && matches!(follow, FollowUp::Withdraw | FollowUp::Orphan) {
            return;
        }
        match follow {
            FollowUp::Withdraw => self.send(client, server, token, Command::Withdraw, None),
            FollowUp::Orphan => {
                self.clients[client].connections[server].orphans.add("k".into(), token, 0);
                self.schedule_cleanup(client, server);
            }
            FollowUp::Unverified | FollowUp::Absent => {}
            FollowUp::Repair(lease) => {
                self.send(client, server, token, Command::Acquire { lease }, None);
            }
        }
    }

    fn clean_up(&mut self, client: usize, server: usize) {
        let now = self.clock(client);
        for (_, token) in self.clients[client].connections[server].orphans.due_now(now) {
            self.send(client, server, token, Command::Withdraw, None);
        }
        self.schedule_cleanup(client, server);
    }

    fn schedule_cleanup(&mut self, client: usize, server: usize) {
        let due = self.clients[client].connections[server].orphans.due();
        if due != BootInstant::NEVER {
            let due = self.clients[client].when(due).max(self.now);
            self.at(due, Event::CleanUp { client, server });
        }
    }

    fn deadline(&self, client: usize, sent_at: BootInstant) -> BootInstant {
        let from = if self.bug == Bug::DeadlineFromReply { self.clock(client) } else { sent_at };
        Deadline::of_lease(from, Duration::from_millis(self.profile.lease)).at()
    }

    /// Starts the hold after a majority granted it. The request was sent at `sent_at`.
    fn on_acquired(
        &mut self,
        client: usize,
        token: Token,
        sent_at: BootInstant,
    ) -> Result<(), Box<Violation>> {
        let deadline = self.deadline(client, sent_at);
        if self.clock(client) >= deadline {
            self.release(client, token);
            return Ok(());
        }
        self.cover(CoveragePoint::Held);
        let until = self.clients[client].when(deadline);
        self.trace(|| format!("client {client} holds the lock until {until} ms"));
        let mut works_until =
            self.now + self.up_to(ChoiceKind::Work, client, 2 * self.profile.lease.min(2_000));
        let mut renew_at = self.clients[client].when(sent_at) + (self.profile.lease / 3).max(1);
        if self.happens(ChoiceKind::Unrenewed, client, self.profile.unrenewed) {
            self.cover(CoveragePoint::Unrenewed);
            self.trace(|| format!("client {client} will not renew the lock"));
            (works_until, renew_at) = (u64::MAX, u64::MAX);
            self.plan_restart(self.now);
        }
        self.clients[client].state = State::Held { token, deadline, works_until, renew_at };
        self.at(self.now, Event::Wake { client });
        self.check_exclusion()
    }

    fn on_renewed(
        &mut self,
        client: usize,
        token: Token,
        sent_at: BootInstant,
    ) -> Result<(), Box<Violation>> {
        let (now, renewed) = (self.clock(client), self.deadline(client, sent_at));
        if let State::Held { token: held, deadline, .. } = &mut self.clients[client].state
            && *held == token
            && now < *deadline
        {
            *deadline = renewed.max(*deadline);
        }
        self.check_exclusion()
    }

    /// Checks J1.
    fn check_exclusion(&mut self) -> Result<(), Box<Violation>> {
        let holds = |(number, client): (usize, &Client)| match client.state {
            State::Held { deadline, .. } => (client.clock(self.now) < deadline).then_some(number),
            _ => None,
        };
        let holders: Vec<_> = self.clients.iter().enumerate().filter_map(holds).collect();
        match (holders.len() > 1, self.profile.out_of_model) {
            (false, _) => {}
            (true, OutOfModelFault::None) => {
                return violation(
                    "J1 mutual exclusion",
                    format!("clients {holders:?} hold the lock at the same time"),
                );
            }
            (true, OutOfModelFault::SilentDataLoss) => self.cover(CoveragePoint::OverlapAfterDataLoss),
            (true, OutOfModelFault::ExcessiveDrift) => self.cover(CoveragePoint::OverlapByDrift),
        }
        Ok(())
    }

    fn check_end(&self) -> Result<(), Box<Violation>> {
        let left = self.servers.iter().filter(|server| !server.record.is_empty(at(self.now))).count();
        if left > 0 {
            return violation("J6 nothing left", format!("a record is left on {left} servers"));
        }
        if self.clients.iter().any(|client| client.attempts > 0) {
            return violation("J8 one outcome", "an attempt of a client has no outcome");
        }
        Ok(())
    }
}

impl Client {
    /// Returns the time on its clock when the servers' clock shows `now`.
    fn clock(&self, now: u64) -> BootInstant {
        BootInstant::from_nanos(now * self.pace)
    }

    /// Returns the first server time at which its clock shows `local`.
    fn when(&self, local: BootInstant) -> u64 {
        local.nanos().div_ceil(self.pace)
    }
}

impl State {
    fn token(self) -> Option<Token> {
        match self {
            Self::Held { token, .. } => Some(token),
            Self::Idle | Self::Contending { .. } => None,
        }
    }
}

impl Server {
    /// Returns `true` if the server may have lost a hold that has not expired.
    fn is_recent(&self, now: u64, lease: u64) -> bool {
        self.started.is_some_and(|started| now < started + lease)
    }
}

fn display_command(command: Command) -> &'static str {
    match command {
        Command::Acquire { .. } => "ACQUIRE",
        Command::Renew { .. } => "RENEW",
        Command::Withdraw => "WITHDRAW",
        _ => "RELEASE",
    }
}

fn display_reply(reply: &Reply) -> &'static str {
    match reply {
        Reply::Owner => "confirms it",
        Reply::Unknown(_) => "restarted meanwhile",
        _ => "rejects it",
    }
}
