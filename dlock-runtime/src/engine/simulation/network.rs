//! The network of a simulation, and the backend of each process.
//!
//! Requests and replies are delayed, lost, or duplicated, and can arrive after the connection was
//! closed. A connection keeps its order. If a reply is missing, the process closes the connection:
//! all requests on it get [`Reply::Unknown`], and may run much later. Like the Redis backend, each
//! backend cleans up its orphaned commands.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use super::fault_profile::{FaultProfile, Random};
use super::invariants::Invariants;
use super::model::Event;
use super::server::Server;
use crate::backend::event_effects::EventEffects;
use crate::backend::redis::take_leaves;
use crate::backend::{Backend, BackendEvents, Capabilities, Request};
use crate::clock::SetClock;
use crate::engine::Engine;
use crate::key::Name;
use crate::protocol::command::{Command, Failure, FailureKind, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::orphans::OrphanedTokens;
use crate::sync::lock;
use crate::token::{ProcessId, Token};

/// The response timeout, in nanoseconds.
pub(super) const TIMEOUT: u64 = 500 * MS;
pub(super) const MS: u64 = 1_000_000;

/// The shared state of a simulation: the server, the connections, and the checks.
///
/// Everything runs on one thread. No engine is called while this is locked.
pub(super) struct Net {
    pub(super) clock: Arc<SetClock>,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    pub(super) random: Random,
    pub(super) profile: FaultProfile,
    pub(super) server: Server,
    pub(super) links: Vec<Link>,
    pub(super) invariants: Invariants,
    pub(super) timers: BTreeMap<u64, Waker>,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    what: BTreeMap<u64, Event>,
    count: u64,
    is_up: bool,
    /// The first packet that is delayed, and whether requests or replies are.
    pub(super) held_up: Option<(u64, HeldUp)>,
    /// The number of packets that were sent.
    pub(super) packets: u64,
    /// How often each kind of event happened.
    pub(super) coverage: BTreeMap<&'static str, u64>,
    /// A line for each event, if a trace was requested.
    pub(super) trace: Option<Vec<String>>,
}

/// The connection of one process, and the state of its backend.
pub(super) struct Link {
    pub(super) id: ProcessId,
    pub(super) engine: Weak<Engine>,
    outbox: Vec<Request>,
    sending: bool,
    send_is_due: bool,
    connected: bool,
    epoch: u64,
    last_arrival: u64,
    pending: BTreeMap<u64, (Request, u64)>,
    orphaned: OrphanedTokens,
    pub(super) drive_at: u64,
    clean_up_at: u64,
    /// Its latest token.
    pub(super) latest: Option<Token>,
    settled: Vec<Waker>,
}

/// The messages that are delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldUp {
    Requests,
    Replies,
}

/// Requests that are sent together.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) process: usize,
    number: u64,
    epoch: u64,
    sent: u64,
    requests: Vec<(u64, Name, Token, Command)>,
}

impl Net {
    pub(super) fn new(seed: u64, profile: FaultProfile, traced: bool) -> Arc<Self> {
        let random = Random::of_seed(seed ^ 0x5eed);
        let mut server = Server::default();
        server.drift = profile.drift;
        let state = State {
            random,
            profile,
            server,
            links: Vec::new(),
            invariants: Invariants::default(),
            timers: BTreeMap::new(),
            events: BinaryHeap::new(),
            what: BTreeMap::new(),
            count: 0,
            is_up: true,
            held_up: None,
            packets: 0,
            coverage: BTreeMap::new(),
            trace: traced.then(Vec::new),
        };
        Arc::new(Self { clock: Arc::default(), state: Mutex::new(state) })
    }

    /// Adds a process. Returns its backend.
    pub(super) fn join(self: &Arc<Self>, id: ProcessId) -> Arc<SimulatedBackend> {
        let mut state = lock(&self.state);
        let process = state.links.len();
        state.links.push(Link {
            id,
            engine: Weak::new(),
            outbox: Vec::new(),
            sending: false,
            send_is_due: false,
            connected: true,
            epoch: 1,
            last_arrival: 0,
            pending: BTreeMap::new(),
            orphaned: OrphanedTokens::default(),
            drive_at: u64::MAX,
            clean_up_at: u64::MAX,
            latest: None,
            settled: Vec::new(),
        });
        Arc::new(SimulatedBackend { net: Arc::clone(self), process })
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.peek()
    }

    fn read_clock(&self) -> BootInstant {
        crate::clock::Clock::Set(Arc::clone(&self.clock)).now()
    }

    fn engine(&self, process: usize) -> Option<Arc<Engine>> {
        lock(&self.state).links[process].engine.upgrade()
    }

    /// Runs what is due in a process, as its driver does.
    pub(super) fn drive(&self, process: usize) {
        lock(&self.state).links[process].drive_at = u64::MAX;
        let Some(engine) = self.engine(process) else { return };
        let now = self.read_clock();
        let mut effects = EventEffects::default();
        let due = engine.on_timeout(now, &mut effects);
        self.send(process);
        effects.run();
        lock(&self.state).arm(process, due.nanos().max(now.nanos()), now.nanos());
    }

    /// Reports an event to the engine of a process, as its backend does.
    pub(super) fn report(&self, process: usize, event: impl FnOnce(&Engine, BootInstant, &mut EventEffects)) {
        let Some(engine) = self.engine(process) else { return };
        let mut effects = EventEffects::default();
        event(&engine, self.read_clock(), &mut effects);
        self.finish(process, effects);
    }

    /// Flushes the requests that an event has submitted, and runs its effects.
    fn finish(&self, process: usize, mut effects: EventEffects) {
        if effects.take_has_requests() {
            self.flush(process);
        }
        effects.run();
    }

    /// Sends the queued requests of a process now or a little later.
    fn flush(&self, process: usize) {
        {
            let mut state = lock(&self.state);
            let batches = state.profile.batches;
            if state.random.chance(batches) {
                if !std::mem::replace(&mut state.links[process].send_is_due, true) {
                    let after = state.random.millis(1);
                    state.schedule(self.now() + after, Event::Send { process });
                }
                return;
            }
        }
        self.send(process);
    }

    /// Sends the queued requests of a process, unless a caller further up the stack does.
    pub(super) fn send(&self, process: usize) {
        {
            let link = &mut lock(&self.state).links[process];
            link.send_is_due = false;
            if std::mem::replace(&mut link.sending, true) {
                return;
            }
        }
        loop {
            let now = self.read_clock();
            let refused = {
                let mut state = lock(&self.state);
                let link = &mut state.links[process];
                let requests = std::mem::take(&mut link.outbox);
                if requests.is_empty() {
                    link.sending = false;
                    break;
                }
                if link.connected {
                    state.transmit(process, requests, now.nanos(), self.now());
                    continue;
                }
                state.cover("rejected without a connection");
                requests
            };
            let failure = || Failure::new(FailureKind::Passing, "no connection");
            let replies = refused.into_iter().map(|request| (request, Reply::Refused(failure()))).collect();
            self.deliver(process, replies, now, None);
        }
    }

    /// Delivers replies to an engine, and records orphaned commands.
    fn deliver(
        &self,
        process: usize,
        mut replies: Vec<(Request, Reply)>,
        sent: BootInstant,
        epoch: Option<u64>,
    ) {
        let now = self.read_clock();
        {
            let mut state = lock(&self.state);
            let list = &mut state.links[process].orphaned;
            take_leaves(list, &mut replies, epoch, now);
        }
        let Some(engine) = self.engine(process) else { return };
        let mut effects = EventEffects::default();
        let mut orphaned = Vec::new();
        for (request, reply) in replies {
            orphaned.extend(engine.on_reply(request, reply, sent, now, &mut effects));
        }
        self.finish(process, effects);
        let settled = {
            let mut state = lock(&self.state);
            let list = &mut state.links[process].orphaned;
            for (key, token) in orphaned {
                match epoch {
                    Some(epoch) => list.add(key, token, epoch),
                    None => list.add_unsent(key, token),
                }
            }
            state.arm_clean_up(process, self.now());
            state.settled(process)
        };
        settled.into_iter().for_each(Waker::wake);
    }

    /// Handles replies that arrive at a process.
    pub(super) fn answer(&self, packet: &Packet, replies: Vec<Reply>) {
        if self.engine(packet.process).is_none() {
            return;
        }
        let answered = {
            let mut state = lock(&self.state);
            if state.held_up.is_some_and(|(from, _)| packet.number >= from) {
                state.schedule(self.now() + MS, Event::Reply(packet.clone(), replies));
                return;
            }
            let link = &mut state.links[packet.process];
            let pairs = packet.requests.iter().zip(replies);
            pairs
                .filter_map(|((id, ..), reply)| Some((link.pending.remove(id)?.0, reply)))
                .collect::<Vec<_>>()
        };
        if answered.is_empty() {
            return; // the connection was closed before
        }
        let sent = BootInstant::from_nanos(packet.sent);
        self.deliver(packet.process, answered, sent, Some(packet.epoch));
    }

    /// Closes the connection of a process. Requests that were sent on it get no reply.
    pub(super) fn disconnect(&self, process: usize, back_in: u64, moved: bool) {
        let (pending, epoch) = {
            let mut state = lock(&self.state);
            let now = self.now();
            let link = &mut state.links[process];
            let (pending, epoch) = (std::mem::take(&mut link.pending), link.epoch);
            (link.connected, link.epoch, link.last_arrival) = (false, epoch + 1, now);
            state.schedule(now + back_in, Event::Connect { process, moved });
            (pending, epoch)
        };
        for (_, (request, sent)) in pending {
            let failure = Failure::new(FailureKind::Passing, "no reply").with_connection_lost();
            let replies = vec![(request, Reply::Unknown(failure))];
            self.deliver(process, replies, BootInstant::from_nanos(sent), Some(epoch));
        }
    }

    /// Closes the connection if the reply is still missing.
    pub(super) fn time_out(&self, process: usize, id: u64) {
        let (is_missing, back_in) = {
            let mut state = lock(&self.state);
            let most = state.profile.delay;
            (state.links[process].pending.contains_key(&id), state.random.millis(most))
        };
        if is_missing {
            lock(&self.state).cover("a reply too late");
            self.disconnect(process, back_in, false);
        }
    }

    /// Reconnects a process, if the server is up.
    pub(super) fn connect(&self, process: usize, moved: bool) {
        {
            let mut state = lock(&self.state);
            if !state.is_up {
                state.schedule(self.now() + 20 * MS, Event::Connect { process, moved });
                return;
            }
            if std::mem::replace(&mut state.links[process].connected, true) {
                return;
            }
            state.links[process].orphaned.retry_now(|_| true);
            state.arm_clean_up(process, self.now());
        }
        self.report(process, |engine, now, effects| {
            engine.on_reconnect(moved, &|_| true, now, effects);
        });
    }

    /// Handles requests that arrive at the server.
    pub(super) fn arrive(&self, packet: Packet, answered: bool) {
        let now = self.now();
        let mut state = lock(&self.state);
        let is_held_up = |(from, what)| packet.number >= from && what == HeldUp::Requests;
        if state.held_up.is_some_and(is_held_up) || !state.is_up {
            let event = Event::Arrive { packet, answered };
            return state.schedule(now + MS, event);
        }
        if now > packet.sent + LATEST_ARRIVAL {
            state.cover("executed after its cleanup");
            for (_, key, token, _) in &packet.requests {
                state.invariants.late.insert((Name::clone(key), *token));
            }
        }
        let mut replies = Vec::new();
        for (_, key, token, command) in &packet.requests {
            let reply = state.run(key, *token, *command, now);
            state.trace_line(|| format!("server: {key} {token:?} {command:?} -> {reply:?}"));
            replies.push(reply);
        }
        if answered {
            let most = state.profile.delay;
            let delay = state.profile.distance * MS + state.random.millis(most);
            state.schedule(now + delay, Event::Reply(packet, replies));
        }
    }

    /// Delivers a grant to a process.
    pub(super) fn on_grant(
        &self,
        process: usize,
        epoch: u64,
        (key, token): (&Name, Token),
        offer: crate::protocol::foreign_clients::Grant,
    ) {
        let is_received = {
            let state = lock(&self.state);
            state.links[process].connected && state.links[process].epoch == epoch
        };
        if is_received {
            self.report(process, |engine, now, effects| engine.on_grant(key, token, offer, now, effects));
        }
    }

    /// Cleans up the orphaned commands of a process that are due.
    pub(super) fn clean_up(&self, process: usize) {
        if self.engine(process).is_none() {
            return;
        }
        {
            let mut state = lock(&self.state);
            let now = self.now();
            let link = &mut state.links[process];
            link.clean_up_at = u64::MAX;
            if !link.connected {
                return; // the reconnect schedules it
            }
            for (key, token) in link.orphaned.due_now(BootInstant::from_nanos(now)) {
                link.outbox.push(Request::new(key, token, Command::Withdraw));
            }
            state.arm_clean_up(process, now);
        }
        self.send(process);
    }

    /// Sleeps by the clock of the simulation.
    pub(super) fn sleep(self: &Arc<Self>, nanos: u64) -> Sleep {
        Sleep { net: Arc::clone(self), until: self.now().saturating_add(nanos), timer: None }
    }
}

impl State {
    pub(super) fn schedule(&mut self, time: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((time, self.count)));
        self.what.insert(self.count, event);
    }

    /// Returns the time of the next event.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.events.peek().map(|Reverse((time, _))| *time)
    }

    pub(super) fn next(&mut self) -> Option<(u64, Event)> {
        let Reverse((time, id)) = self.events.pop()?;
        Some((time, self.what.remove(&id)?))
    }

    pub(super) fn cover(&mut self, what: &'static str) {
        *self.coverage.entry(what).or_default() += 1;
        self.trace_line(|| what.to_owned());
    }

    pub(super) fn trace_line(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(line());
        }
    }

    /// Schedules the driver of a process.
    pub(super) fn arm(&mut self, process: usize, due: u64, now: u64) {
        if due >= BootInstant::LAST.nanos() || due >= self.links[process].drive_at {
            return;
        }
        self.links[process].drive_at = due;
        let most = self.profile.driver_late;
        let late = self.random.millis(most);
        self.schedule(due.max(now) + late, Event::Drive { process, due });
    }

    fn arm_clean_up(&mut self, process: usize, now: u64) {
        let due = self.links[process].orphaned.due().nanos();
        if due < self.links[process].clean_up_at && due < BootInstant::LAST.nanos() {
            self.links[process].clean_up_at = due;
            self.schedule(due.max(now), Event::CleanUp { process });
        }
    }

    fn settled(&mut self, process: usize) -> Vec<Waker> {
        let link = &mut self.links[process];
        if link.is_settled() { std::mem::take(&mut link.settled) } else { Vec::new() }
    }

    fn transmit(&mut self, process: usize, requests: Vec<Request>, sent: u64, now: u64) {
        let together = requests.len() == 1 || self.random.chance(60);
        if !together {
            self.cover("sent one by one");
        }
        let mut packets = vec![Vec::new()];
        for request in requests {
            if !together && !packets.last().is_none_or(Vec::is_empty) {
                packets.push(Vec::new());
            }
            self.count += 1;
            let id = self.count;
            packets.last_mut().expect("it has one").push((
                id,
                Name::clone(&request.key),
                request.token,
                request.command,
            ));
            self.trace_line(|| {
                format!(
                    "process {process} sends {:?} {:?} for {}",
                    request.token, request.command, request.key
                )
            });
            self.links[process].pending.insert(id, (request, sent));
        }
        for requests in packets {
            self.transmit_packet(process, requests, sent, now);
        }
    }

    fn transmit_packet(
        &mut self,
        process: usize,
        requests: Vec<(u64, Name, Token, Command)>,
        sent: u64,
        now: u64,
    ) {
        self.packets += 1;
        let id = requests.first().map_or(0, |(id, ..)| *id);
        let (delay, lost, doubled) = (self.profile.delay, self.profile.lost, self.profile.doubled);
        let (request_lost, reply_lost) = (self.random.chance(lost), self.random.chance(lost));
        let arrival = (now + 1_000 + self.profile.distance * MS + self.random.millis(delay))
            .max(self.links[process].last_arrival);
        self.links[process].last_arrival = arrival;
        let (number, epoch) = (self.packets, self.links[process].epoch);
        let packet = Packet { process, number, epoch, sent, requests };
        self.schedule(now + TIMEOUT, Event::TimeOut { process, id });
        if request_lost {
            // It is in a socket that is not read, perhaps forever.
            self.cover("a request lost");
            if self.random.chance(50) {
                self.cover("a request run late");
                let late = arrival + self.random.millis(2 * TIMEOUT / MS);
                self.schedule(late, Event::Arrive { packet, answered: false });
            }
            return;
        }
        if reply_lost {
            self.cover("a reply lost");
        }
        // Only a proxy can duplicate a request. A duplicated yield would yield twice.
        let yields = packet.requests.iter().any(|(.., command)| matches!(command, Command::Yield { .. }));
        if self.random.chance(doubled) && !yields {
            self.cover("a request doubled");
            for (_, key, token, _) in &packet.requests {
                self.invariants.late.insert((Name::clone(key), *token));
            }
            let late = arrival + self.random.millis(TIMEOUT / MS);
            self.schedule(late, Event::Arrive { packet: packet.clone(), answered: false });
        }
        self.schedule(arrival, Event::Arrive { packet, answered: !reply_lost });
    }

    /// Executes a command at the server, and schedules the grants that it causes.
    pub(super) fn run(&mut self, key: &Name, token: Token, command: Command, now: u64) -> Reply {
        let missed_subscribers = self.profile.missed_subscribers;
        let subscribers: Vec<_> = self
            .links
            .iter()
            .map(|link| (link.id, link.connected && link.engine.strong_count() > 0))
            .filter(|(_, is_connected)| *is_connected)
            .map(|(id, _)| (id, !(missed_subscribers > 0 && self.random.chance(missed_subscribers))))
            .collect();
        let mut granted = Vec::new();
        let grant_lease = Duration::from_millis(self.profile.grant_lease);
        let reply = self.server.run((key, token, command), now, grant_lease, |token, offer| {
            let subscriber = subscribers.iter().find(|(id, _)| *id == token.process());
            // A subscriber that the server does not see may still receive the grant.
            granted.extend(subscriber.map(|_| (token, offer)));
            subscriber.is_some_and(|(_, is_subscribed)| *is_subscribed)
        });
        for (token, offer) in granted {
            let Some(process) = self.links.iter().position(|link| link.id == token.process()) else {
                continue;
            };
            let (delay, lost, doubled) =
                (3 * self.profile.delay, self.profile.grants_lost, self.profile.grants_doubled);
            if self.random.chance(lost) {
                self.cover("a grant lost");
                continue;
            }
            let epoch = self.links[process].epoch;
            let times = if self.random.chance(doubled) { 2 } else { 1 };
            if times == 2 {
                self.cover("a grant doubled");
            }
            for _ in 0..times {
                let after = self.profile.distance * MS + self.random.millis(delay);
                self.schedule(
                    now + after,
                    Event::Grant { process, epoch, key: Name::clone(key), token, offer },
                );
            }
        }
        reply
    }

    /// Stops the server, and with it all connections. Each process notices within 30 ms.
    pub(super) fn stop_server(&mut self, now: u64, back_in: u64, moved: bool) {
        self.is_up = false;
        self.schedule(now + back_in, Event::Up);
        for process in 0..self.links.len() {
            let notices = self.random.millis(30);
            self.schedule(now + notices, Event::Disconnect { process, back_in, moved });
        }
        // Requests that have not arrived were in its sockets.
        self.what.retain(|_, event| !matches!(event, Event::Arrive { .. }));
        let what = &self.what;
        self.events.retain(|Reverse((_, id))| what.contains_key(id));
    }

    pub(super) fn start_server(&mut self) {
        self.is_up = true;
    }

    /// Excludes all tokens of these keys so far from the checks, since their locks may be lost
    /// unnoticed.
    pub(super) fn taint(&mut self, keys: &BTreeSet<Name>) {
        for key in keys {
            for link in &self.links {
                self.invariants.tainted.insert((Name::clone(key), link.id.shown()), link.latest);
            }
        }
    }
}

impl Link {
    fn is_settled(&self) -> bool {
        self.outbox.is_empty() && self.pending.is_empty() && self.orphaned.is_empty()
    }
}

/// How long after it was sent a command is still cleaned up (`protocol::orphans`).
pub(super) const LATEST_ARRIVAL: u64 = TIMEOUT + 1_000 * MS;

/// The backend of one process.
pub(super) struct SimulatedBackend {
    net: Arc<Net>,
    process: usize,
}

impl std::fmt::Debug for SimulatedBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedBackend").field("process", &self.process).finish_non_exhaustive()
    }
}

impl Backend for SimulatedBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::SERVER
    }

    fn attach(&self, _: Weak<dyn BackendEvents>) {}

    fn submit(&self, request: Request) {
        let mut state = lock(&self.net.state);
        let now = self.net.now();
        state.check_push(self.process, &request, now);
        let link = &mut state.links[self.process];
        let next = match request.command {
            Command::Yield { next, .. } => next,
            _ => request.token,
        };
        link.latest = link.latest.max(Some(request.token)).max(Some(next));
        link.outbox.push(request);
    }

    fn flush(&self, _now: BootInstant, _effects: &mut EventEffects) {
        self.net.flush(self.process);
    }

    fn due_earlier(&self, due: BootInstant) {
        lock(&self.net.state).arm(self.process, due.nanos(), self.net.now());
    }

    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.net.sleep(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }

    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let mut timeout = self.net.sleep(TIMEOUT);
        Box::pin(std::future::poll_fn(move |cx| {
            {
                let link = &mut lock(&self.net.state).links[self.process];
                if link.is_settled() {
                    return Poll::Ready(());
                }
                link.settled.push(cx.waker().clone());
            }
            Pin::new(&mut timeout).poll(cx)
        }))
    }

    fn close(&self) {
        // Nothing is pushed after this, and no task is left to notify.
    }
}

/// A sleep by the clock of the simulation.
pub(super) struct Sleep {
    net: Arc<Net>,
    until: u64,
    timer: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.net.now() >= this.until {
            return Poll::Ready(());
        }
        let mut state = lock(&this.net.state);
        let timer = *this.timer.get_or_insert_with(|| {
            state.count += 1;
            let timer = state.count;
            state.schedule(this.until, Event::Timer { timer });
            timer
        });
        let replaced = state.timers.insert(timer, cx.waker().clone());
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let waker = self.timer.and_then(|timer| lock(&self.net.state).timers.remove(&timer));
        drop(waker);
    }
}
