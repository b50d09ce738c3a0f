//! What is between the processes of a world and its server: requests and replies that are late, lost, doubled, or come when nobody
//! expects them any more; and the backend of each process, which owns its commands to their end as that of Redis does.
//!
//! A connection keeps its order. Where an answer is missed it is given up: what was sent on it is answered [`Reply::Unknown`], and may
//! run much later.
//!
//! Not here: when it happens (`world`), what the server makes of a command (`server`), what is judged (`judges`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use super::judges::Judges;
use super::server::Server;
use super::weather::{Random, Weather};
use super::world::Event;
use crate::backend::redis::take_leaves;
use crate::backend::{Backend, Request};
use crate::clock::SetClock;
use crate::engine::Engine;
use crate::engine::effects::Effects;
use crate::key::Name;
use crate::protocol::command::{Command, Failure, FailureKind, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::orphans::OrphanedTokens;
use crate::sync::lock;
use crate::token::{ProcessId, Token};

/// How long a server may take for an answer.
pub(super) const TIMEOUT: u64 = 500 * MS;
pub(super) const MS: u64 = 1_000_000;

/// All that is not a process's own: the server, the ways to it, and what is known of all of it. Everything happens on one thread, and
/// nobody calls an engine with this locked.
pub(super) struct Net {
    pub(super) clock: Arc<SetClock>,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    pub(super) random: Random,
    pub(super) weather: Weather,
    pub(super) server: Server,
    pub(super) links: Vec<Link>,
    pub(super) judges: Judges,
    pub(super) timers: BTreeMap<u64, Waker>,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    what: BTreeMap<u64, Event>,
    count: u64,
    is_up: bool,
    /// From which packet on they are held up on their way, or their replies are.
    pub(super) held_up: Option<(u64, HeldUp)>,
    /// How many packets were sent.
    pub(super) packets: u64,
    /// How often each thing happened.
    pub(super) happened: BTreeMap<&'static str, u64>,
    /// What happened, where somebody wants to read it.
    pub(super) story: Option<Vec<String>>,
}

/// The way from one process to the server.
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
    abandoned: OrphanedTokens,
    pub(super) drive_at: u64,
    undo_at: u64,
    /// The latest of its tokens.
    pub(super) latest: Option<Token>,
    settled: Vec<Waker>,
}

/// What is held up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldUp {
    Requests,
    Replies,
}

/// Requests that travel together.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) process: usize,
    number: u64,
    epoch: u64,
    sent: u64,
    requests: Vec<(u64, Name, Token, Command)>,
}

impl Net {
    pub(super) fn new(seed: u64, weather: Weather, told: bool) -> Arc<Self> {
        let random = Random::of_seed(seed ^ 0x5eed);
        let mut server = Server::default();
        server.drift = weather.drift;
        let state = State {
            random,
            weather,
            server,
            links: Vec::new(),
            judges: Judges::default(),
            timers: BTreeMap::new(),
            events: BinaryHeap::new(),
            what: BTreeMap::new(),
            count: 0,
            is_up: true,
            held_up: None,
            packets: 0,
            happened: BTreeMap::new(),
            story: told.then(Vec::new),
        };
        Arc::new(Self { clock: Arc::default(), state: Mutex::new(state) })
    }

    /// Joins a process. Returns its backend.
    pub(super) fn join(self: &Arc<Self>, id: ProcessId) -> Arc<Wire> {
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
            abandoned: OrphanedTokens::default(),
            drive_at: u64::MAX,
            undo_at: u64::MAX,
            latest: None,
            settled: Vec::new(),
        });
        Arc::new(Wire { net: Arc::clone(self), process })
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.peek()
    }

    fn poll_state(&self) -> BootInstant {
        crate::clock::Clock::Set(Arc::clone(&self.clock)).now()
    }

    fn engine(&self, process: usize) -> Option<Arc<Engine>> {
        lock(&self.state).links[process].engine.upgrade()
    }

    /// Does what is due in a process, as its driver would.
    pub(super) fn drive(&self, process: usize) {
        lock(&self.state).links[process].drive_at = u64::MAX;
        let Some(engine) = self.engine(process) else { return };
        let now = self.poll_state();
        let mut effects = Effects::default();
        let due = engine.tick(now, &mut effects);
        effects.wake();
        self.send(process, &engine);
        lock(&self.state).arm(process, due.nanos().max(now.nanos()), now.nanos());
    }

    /// Sends what a process has queued; whoever does already looks again.
    pub(super) fn send(&self, process: usize, engine: &Engine) {
        {
            let link = &mut lock(&self.state).links[process];
            link.send_is_due = false;
            if std::mem::replace(&mut link.sending, true) {
                return;
            }
        }
        loop {
            let now = self.poll_state();
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
                state.happens("refused at once");
                requests
            };
            let failure = || Failure::new(FailureKind::Passing, "no connection");
            let replies = refused.into_iter().map(|request| (request, Reply::Refused(failure()))).collect();
            self.deliver(process, engine, replies, now, None);
        }
    }

    /// Tells an engine what it is answered, and notes what is to be undone.
    fn deliver(
        &self,
        process: usize,
        engine: &Engine,
        mut replies: Vec<(Request, Reply)>,
        sent: BootInstant,
        epoch: Option<u64>,
    ) {
        let now = self.poll_state();
        {
            let mut state = lock(&self.state);
            let list = &mut state.links[process].abandoned;
            take_leaves(list, &mut replies, epoch, now);
        }
        let mut effects = Effects::default();
        let abandoned = engine.on_replies(now, sent, replies, &mut effects);
        effects.wake();
        let settled = {
            let mut state = lock(&self.state);
            let list = &mut state.links[process].abandoned;
            for (key, token) in abandoned {
                match epoch {
                    Some(epoch) => list.add(key, token, epoch),
                    None => list.add_unsent(key, token),
                }
            }
            state.arm_undoing(process, self.now());
            state.settled(process)
        };
        settled.into_iter().for_each(Waker::wake);
    }

    /// Replies arrive at a process.
    pub(super) fn answer(&self, packet: &Packet, replies: Vec<Reply>) {
        let Some(engine) = self.engine(packet.process) else { return };
        let answered = {
            let mut state = lock(&self.state);
            if state.held_up.is_some_and(|(from, _)| packet.number >= from) {
                state.at(self.now() + MS, Event::ReleaseCompletion(packet.clone(), replies));
                return;
            }
            let link = &mut state.links[packet.process];
            let pairs = packet.requests.iter().zip(replies);
            pairs
                .filter_map(|((id, ..), reply)| Some((link.pending.remove(id)?.0, reply)))
                .collect::<Vec<_>>()
        };
        if answered.is_empty() {
            return; // the connection was given up before
        }
        let sent = BootInstant::from_nanos(packet.sent);
        self.deliver(packet.process, &engine, answered, sent, Some(packet.epoch));
    }

    /// A process gives its connection up: nothing that was sent on it will be answered.
    pub(super) fn cut(&self, process: usize, back_in: u64, moved: bool) {
        let (pending, epoch) = {
            let mut state = lock(&self.state);
            let now = self.now();
            let link = &mut state.links[process];
            let (pending, epoch) = (std::mem::take(&mut link.pending), link.epoch);
            (link.connected, link.epoch, link.last_arrival) = (false, epoch + 1, now);
            state.at(now + back_in, Event::Connect { process, moved });
            (pending, epoch)
        };
        let Some(engine) = self.engine(process) else { return };
        for (_, (request, sent)) in pending {
            let failure = Failure::new(FailureKind::Passing, "no answer").with_connection_lost();
            let reply = Reply::Unknown(failure);
            self.deliver(
                process,
                &engine,
                vec![(request, reply)],
                BootInstant::from_nanos(sent),
                Some(epoch),
            );
        }
    }

    /// An answer is late: if it is still missing the connection is given up.
    pub(super) fn time_out(&self, process: usize, id: u64) {
        let (is_missing, back_in) = {
            let mut state = lock(&self.state);
            let most = state.weather.delay;
            (state.links[process].pending.contains_key(&id), state.random.millis(most))
        };
        if is_missing {
            lock(&self.state).happens("an answer too late");
            self.cut(process, back_in, false);
        }
    }

    /// A process has a connection again, if there is a server.
    pub(super) fn connect(&self, process: usize, moved: bool) {
        {
            let mut state = lock(&self.state);
            if !state.is_up {
                state.at(self.now() + 20 * MS, Event::Connect { process, moved });
                return;
            }
            if std::mem::replace(&mut state.links[process].connected, true) {
                return;
            }
            state.links[process].abandoned.retry_now(|_| true);
            state.arm_undoing(process, self.now());
        }
        if let Some(engine) = self.engine(process) {
            engine.on_reconnect(moved, |_| true);
        }
    }

    /// Requests arrive at the server.
    pub(super) fn arrive(&self, packet: Packet, answered: bool) {
        let now = self.now();
        let mut state = lock(&self.state);
        let is_held_up = |(from, what)| packet.number >= from && what == HeldUp::Requests;
        if state.held_up.is_some_and(is_held_up) || !state.is_up {
            let event = Event::Arrive { packet, answered };
            return state.at(now + MS, event);
        }
        if now > packet.sent + LATEST {
            state.happens("run when nobody could undo it any more");
            for (_, key, token, _) in &packet.requests {
                state.judges.late.insert((Name::clone(key), *token));
            }
        }
        let mut replies = Vec::new();
        for (_, key, token, command) in &packet.requests {
            let reply = state.run(key, *token, *command, now);
            state.note(|| format!("server: {key} {token:?} {command:?} -> {reply:?}"));
            replies.push(reply);
        }
        if answered {
            let most = state.weather.delay;
            let delay = state.weather.distance * MS + state.random.millis(most);
            state.at(now + delay, Event::ReleaseCompletion(packet, replies));
        }
    }

    /// A message tells a process of a grant.
    pub(super) fn on_grant(
        &self,
        process: usize,
        epoch: u64,
        (key, token): (&Name, Token),
        offer: crate::protocol::foreign_clients::Grant,
    ) {
        let (Some(engine), is_heard) = (self.engine(process), {
            let state = lock(&self.state);
            state.links[process].connected && state.links[process].epoch == epoch
        }) else {
            return;
        };
        if is_heard {
            let (now, mut effects) = (self.poll_state(), Effects::default());
            engine.on_grant(key, token, offer, now, &mut effects);
            effects.wake();
        }
    }

    /// A process undoes what is due.
    pub(super) fn undo(&self, process: usize) {
        let Some(engine) = self.engine(process) else { return };
        {
            let mut state = lock(&self.state);
            let now = self.now();
            let link = &mut state.links[process];
            link.undo_at = u64::MAX;
            if !link.connected {
                return; // it is hastened once there is a connection
            }
            for (key, token) in link.abandoned.due_now(BootInstant::from_nanos(now)) {
                link.outbox.push(Request::new(key, token, Command::Withdraw));
            }
            state.arm_undoing(process, now);
        }
        self.send(process, &engine);
    }

    /// Sleeps by the clock of the world.
    pub(super) fn sleep(self: &Arc<Self>, nanos: u64) -> Sleep {
        Sleep { net: Arc::clone(self), until: self.now().saturating_add(nanos), timer: None }
    }
}

impl State {
    pub(super) fn at(&mut self, time: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((time, self.count)));
        self.what.insert(self.count, event);
    }

    /// Returns when the next event is.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.events.peek().map(|Reverse((time, _))| *time)
    }

    pub(super) fn next(&mut self) -> Option<(u64, Event)> {
        let Reverse((time, id)) = self.events.pop()?;
        Some((time, self.what.remove(&id)?))
    }

    pub(super) fn happens(&mut self, what: &'static str) {
        *self.happened.entry(what).or_default() += 1;
        self.note(|| what.to_owned());
    }

    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(line());
        }
    }

    /// Has a process driven when something is due for it.
    pub(super) fn arm(&mut self, process: usize, due: u64, now: u64) {
        if due >= BootInstant::LAST.nanos() || due >= self.links[process].drive_at {
            return;
        }
        self.links[process].drive_at = due;
        let most = self.weather.driver_late;
        let late = self.random.millis(most);
        self.at(due.max(now) + late, Event::Drive { process, due });
    }

    fn arm_undoing(&mut self, process: usize, now: u64) {
        let due = self.links[process].abandoned.due().nanos();
        if due < self.links[process].undo_at && due < BootInstant::LAST.nanos() {
            self.links[process].undo_at = due;
            self.at(due.max(now), Event::Undo { process });
        }
    }

    fn settled(&mut self, process: usize) -> Vec<Waker> {
        let link = &mut self.links[process];
        if link.is_settled() { std::mem::take(&mut link.settled) } else { Vec::new() }
    }

    fn transmit(&mut self, process: usize, requests: Vec<Request>, sent: u64, now: u64) {
        let together = requests.len() == 1 || self.random.chance(60);
        if !together {
            self.happens("sent one by one");
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
            self.note(|| {
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
        let (delay, lost, doubled) = (self.weather.delay, self.weather.lost, self.weather.doubled);
        let (request_lost, reply_lost) = (self.random.chance(lost), self.random.chance(lost));
        let arrival = (now + 1_000 + self.weather.distance * MS + self.random.millis(delay))
            .max(self.links[process].last_arrival);
        self.links[process].last_arrival = arrival;
        let (number, epoch) = (self.packets, self.links[process].epoch);
        let packet = Packet { process, number, epoch, sent, requests };
        self.at(now + TIMEOUT, Event::TimeOut { process, id });
        if request_lost {
            // It stands in a socket that nobody reads, perhaps for good.
            self.happens("a request lost");
            if self.random.chance(50) {
                self.happens("a request run late");
                let late = arrival + self.random.millis(2 * TIMEOUT / MS);
                self.at(late, Event::Arrive { packet, answered: false });
            }
            return;
        }
        if reply_lost {
            self.happens("a reply lost");
        }
        // Nothing is sent twice over a connection, but by what stands in between; and a yield that is would yield twice.
        let yields = packet.requests.iter().any(|(.., command)| matches!(command, Command::Yield { .. }));
        if self.random.chance(doubled) && !yields {
            self.happens("a request doubled");
            for (_, key, token, _) in &packet.requests {
                self.judges.late.insert((Name::clone(key), *token));
            }
            let late = arrival + self.random.millis(TIMEOUT / MS);
            self.at(late, Event::Arrive { packet: packet.clone(), answered: false });
        }
        self.at(arrival, Event::Arrive { packet, answered: !reply_lost });
    }

    /// The server does a command, and tells who is granted the lock.
    pub(super) fn run(&mut self, key: &Name, token: Token, command: Command, now: u64) -> Reply {
        let unseen = self.weather.unseen;
        let hears: Vec<_> = self
            .links
            .iter()
            .map(|link| (link.id, link.connected && link.engine.strong_count() > 0))
            .filter(|(_, hears)| *hears)
            .map(|(id, _)| (id, !(unseen > 0 && self.random.chance(unseen))))
            .collect();
        let mut granted = Vec::new();
        let grant_lease = Duration::from_millis(self.weather.grant_lease);
        let reply = self.server.run((key, token, command), now, grant_lease, |token, offer| {
            let hears = hears.iter().find(|(id, _)| *id == token.process());
            granted.extend(hears.map(|_| (token, offer))); // whom the server does not see may hear of it all the same
            hears.is_some_and(|(_, is_seen)| *is_seen)
        });
        for (token, offer) in granted {
            let Some(process) = self.links.iter().position(|link| link.id == token.process()) else {
                continue;
            };
            let (delay, lost, doubled) =
                (3 * self.weather.delay, self.weather.grants_lost, self.weather.grants_doubled);
            if self.random.chance(lost) {
                self.happens("a grant lost");
                continue;
            }
            let epoch = self.links[process].epoch;
            let times = if self.random.chance(doubled) { 2 } else { 1 };
            if times == 2 {
                self.happens("a grant doubled");
            }
            for _ in 0..times {
                let after = self.weather.distance * MS + self.random.millis(delay);
                self.at(now + after, Event::Grant { process, epoch, key: Name::clone(key), token, offer });
            }
        }
        reply
    }

    /// The server is away, and all connections with it; processes notice it by and by.
    pub(super) fn goes_down(&mut self, now: u64, back_in: u64, moved: bool) {
        self.is_up = false;
        self.at(now + back_in, Event::Up);
        for process in 0..self.links.len() {
            let notices = self.random.millis(30);
            self.at(now + notices, Event::Cut { process, back_in, moved });
        }
        // What has not arrived was in its sockets.
        self.what.retain(|_, event| !matches!(event, Event::Arrive { .. }));
        let what = &self.what;
        self.events.retain(|Reverse((_, id))| what.contains_key(id));
    }

    pub(super) fn comes_up(&mut self) {
        self.is_up = true;
    }

    /// What was granted of a key so far may not be believed any more, though nobody has been told.
    pub(super) fn taint(&mut self, keys: &BTreeSet<Name>) {
        for key in keys {
            for link in &self.links {
                self.judges.tainted.insert((Name::clone(key), link.id.shown()), link.latest);
            }
        }
    }
}

impl Link {
    fn is_settled(&self) -> bool {
        self.outbox.is_empty() && self.pending.is_empty() && self.abandoned.is_empty()
    }
}

/// What an undone command may still come after (`abandon`).
pub(super) const LATEST: u64 = TIMEOUT + 1_000 * MS;

/// The backend of one process.
pub(super) struct Wire {
    net: Arc<Net>,
    process: usize,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("process", &self.process).finish_non_exhaustive()
    }
}

impl Backend for Wire {
    fn push(&self, request: Request) {
        let mut state = lock(&self.net.state);
        let now = self.net.now();
        state.judge_push(self.process, &request, now);
        let link = &mut state.links[self.process];
        let next = match request.command {
            Command::Yield { next, .. } => next,
            _ => request.token,
        };
        link.latest = link.latest.max(Some(request.token)).max(Some(next));
        link.outbox.push(request);
    }

    fn flush(&self, engine: &Engine, _now: BootInstant, _effects: &mut Effects) {
        {
            let mut state = lock(&self.net.state);
            let gathers = state.weather.gathers;
            if state.random.chance(gathers) {
                if !std::mem::replace(&mut state.links[self.process].send_is_due, true) {
                    let after = state.random.millis(1);
                    state.at(self.net.now() + after, Event::Send { process: self.process });
                }
                return;
            }
        }
        self.net.send(self.process, engine);
    }

    fn due_earlier(&self, due: BootInstant) {
        lock(&self.net.state).arm(self.process, due.nanos(), self.net.now());
    }

    #[cfg(feature = "testing")]
    fn admitted(&self, _: &Name) {}

    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.net.sleep(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }

    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let mut retry_state = self.net.sleep(TIMEOUT);
        Box::pin(std::future::poll_fn(move |cx| {
            {
                let link = &mut lock(&self.net.state).links[self.process];
                if link.is_settled() {
                    return Poll::Ready(());
                }
                link.settled.push(cx.waker().clone());
            }
            Pin::new(&mut retry_state).poll(cx)
        }))
    }

    fn close(&self) {
        // Nothing is pushed any more, and nobody is left who could be told.
    }
}

/// A sleep by the clock of the world.
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
            state.at(this.until, Event::Timer { timer });
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
