//! A node: one Redis, as far as we can reach it.
//!
//! ```text
//!            opened: scripts loaded, subscribed        broken, out of service, two timeouts, elsewhere
//!  Connecting ---------------------------------> Ready (an epoch) -------------------------------------> Backoff
//!      ^                                                                                                   |
//!      +--------------------------- 10 ms to 1 s, with jitter, without end --------------------------------+
//! ```
//!
//! While it is ready, what it is given leaves at once, in pipelines. During the first attempt to replace a lost connection
//! (`Reconnecting`) requests wait for the end of that attempt (`waiting`); after it has failed (`Down`) they are refused at once. A request
//! that was written never waits: its outcome is unknown. Where its server is it asks each time that it connects (`whereabouts`): a master
//! moves.
//!
//! | file | owns |
//! |---|---|
//! | `link`, `dial`, `resolve`, `tls`, `backoff` | a connection: made, over which network, by which address, whom we trust, made again |
//! | `connection`, `inbound`, `framing` | a connection of the client: what drives it, what came over it, which replies are too large |
//! | `health` | a connection in use, and when it is given up |
//! | `beat` | when connections are asked whether they are alive |
//! | `pump` | what sends requests at once, and reads answers |
//! | `batch`, `exchange`, `line` | requests that go out together, what is under way, and in which order it is dealt with |
//! | `hearing` | messages: grants, and the bells |
//! | `bells`, `shards` | a channel per key that rings when its lock is let go of |
//! | `tracking` | being told of changes of keys |
//! | `acks` | what replicas must have before it counts |
//! | `waiting` | requests that wait for a new connection |
//!
//! Not here: how to connect (`link`), when a connection is done for (`health`), how grants and bells are heard of (`hearing`,
//! `bells`), what becomes of requests (`batch`), who gives them (`servers`), who is told the answers (`answers`).

pub(super) mod acks;
pub(super) mod backoff;
pub(super) mod batch;
pub(super) mod beat;
pub(super) mod bells;
pub(super) mod connection;
mod dial;
pub(super) mod exchange;
mod framing;
pub(super) mod health;
pub(super) mod hearing;
pub(super) mod inbound;
mod line;
pub(super) mod link;
pub(super) mod pump;
mod resolve;
#[cfg(test)]
pub(super) mod rig;
pub(super) mod shards;
#[cfg(feature = "tls")]
pub(super) mod tls;
pub(super) mod tracking;
mod waiting;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::sync::{Notify, oneshot};

use crate::backend::Request;
use crate::backend::redis::answers::Answers;
use crate::backend::redis::layout::Layout;
use crate::backend::redis::node::acks::Acks;
use crate::backend::redis::node::backoff::{Backoff, PROVEN};
use crate::backend::redis::node::batch::{Batch, Passage, Way};
use crate::backend::redis::node::beat::{Beat, Idleness, Use};
use crate::backend::redis::node::bells::Bells;
use crate::backend::redis::node::health::Link;
use crate::backend::redis::node::link::Route;
use crate::backend::redis::node::tracking::Tracking;
use crate::backend::redis::node::waiting::WaitingRequests;
use crate::backend::redis::servers::Traffic;
use crate::backend::redis::servers::whereabouts::Whereabouts;
use crate::backend::redis::shared::Shared;
use crate::clock::boot_time;
use crate::config::Settings;
use crate::engine::Engine;
use crate::key::Name;
use crate::protocol::command::{Command, Enqueue, Failure, FailureKind, Reply};
use crate::sync::lock;
use crate::telemetry;
use crate::token::ProcessId;

/// The node.
pub(crate) struct Node {
    shared: Arc<Shared>,
    /// Who draws the jitter.
    pub(crate) engine: Weak<Engine>,
    /// Who is told what the server says.
    pub(crate) answers: Arc<dyn Answers>,
    pub(crate) grant_lease: Duration,
    /// Whose grants are listened for.
    pub(crate) process: ProcessId,
    pub(crate) whereabouts: Whereabouts,
    state: Mutex<State>,
    /// Whether there is a connection for messages.
    pub(crate) listening: AtomicBool,
    /// Whether it has been reported that the server does not let us subscribe.
    has_told_not_listening: AtomicBool,
    /// The namespaces in which we can be told of grants over it.
    subscribed: Mutex<HashSet<Arc<str>>>,
    /// Told when there is reason to try to connect again at once.
    hope: Notify,
    pub(crate) bells: Bells,
    pub(crate) tracking: Tracking,
    idleness: Arc<Idleness>,
    /// Told when requests wait for a connection.
    waits: Notify,
    /// Held by what runs the node: what is left of one that has ended must not meddle with the next.
    running: tokio::sync::Mutex<()>,
}

enum State {
    Ready(Arc<Link>),
    /// The first attempt to replace a lost connection is under way, or about to begin.
    Reconnecting(Reconnecting),
    Down(Failure),
}

struct Reconnecting {
    /// Why the connection was lost.
    failure: Failure,
    waiting: WaitingRequests,
    /// How long the server has to reply.
    response_timeout: Duration,
    /// The lost connection, until what is under way on it is answered.
    lost: Option<Arc<Link>>,
}

/// What becomes of requests that a node is given.
enum Taken {
    Send(Arc<Link>, Vec<Request>),
    Refuse(Failure, Vec<Request>),
    Wait,
}

impl Node {
    pub(crate) fn new(
        whereabouts: Whereabouts,
        shared: Arc<Shared>,
        engine: Weak<Engine>,
        answers: Arc<dyn Answers>,
        process: ProcessId,
        settings: &Settings,
    ) -> Self {
        let text = format!("not connected to {whereabouts} yet");
        let state = Mutex::new(State::Down(Failure::new(FailureKind::Passing, text)));
        let grant_lease = settings.rules.grant_lease;
        let (listening, bells) =
            (AtomicBool::new(false), Bells::new(Layout::of(settings, &whereabouts), Arc::clone(&shared)));
        Self {
            shared,
            engine,
            answers,
            grant_lease,
            process,
            whereabouts,
            state,
            listening,
            has_told_not_listening: AtomicBool::new(false),
            subscribed: Mutex::default(),
            hope: Notify::new(),
            bells,
            tracking: Tracking::default(),
            idleness: Arc::default(),
            waits: Notify::new(),
            running: tokio::sync::Mutex::default(),
        }
    }

    /// Returns how locks stand in the server.
    pub(crate) fn layout(&self) -> Layout {
        self.bells.layout
    }

    /// Sends requests, keeps them for the connection that is being made, or answers them. It is done when this returns: no task lies in
    /// between.
    pub(crate) fn take(self: &Arc<Self>, requests: Vec<Request>, passage: Passage) {
        // With nothing locked: what cannot be sent is answered at once, and who hears of that may ask for something again.
        match self.place(requests, passage) {
            Taken::Send(link, requests) => self.send(&link, requests, passage),
            Taken::Refuse(failure, requests) => self.refuse(requests, &failure),
            Taken::Wait => self.waits.notify_one(),
        }
    }

    fn place(&self, requests: Vec<Request>, passage: Passage) -> Taken {
        let mut state = lock(&self.state);
        if let State::Ready(link) = &*state {
            if !link.is_given_up() {
                return Taken::Send(Arc::clone(link), requests);
            }
            // What runs the node has not seen yet that the connection is lost.
            if !link.may_be_waited_for() {
                return Taken::Refuse(link.failure(), requests);
            }
            *state = State::reconnecting(Arc::clone(link));
        }
        match &mut *state {
            State::Ready(link) => Taken::Send(Arc::clone(link), requests),
            State::Down(failure) => Taken::Refuse(failure.clone(), requests),
            State::Reconnecting(Reconnecting { failure, waiting, response_timeout, .. }) => {
                match waiting.push(requests, passage, boot_time(), *response_timeout) {
                    Ok(()) => Taken::Wait,
                    Err(requests) => Taken::Refuse(failure.clone(), requests),
                }
            }
        }
    }

    fn link(&self) -> Result<Arc<Link>, Failure> {
        match &*lock(&self.state) {
            State::Ready(link) => Ok(Arc::clone(link)),
            State::Down(failure) | State::Reconnecting(Reconnecting { failure, .. }) => Err(failure.clone()),
        }
    }

    /// Returns what is under way. What a bell has to be heard for, or replicas are waited for, is put in order on one thread.
    pub(crate) fn traffic(&self) -> Traffic {
        if self.layout() == Layout::Native { self.under_way() } else { Traffic::OfTheDriver }
    }

    /// Returns the same where what bells are heard for only looks: its order does not matter.
    pub(crate) fn under_way(&self) -> Traffic {
        match &*lock(&self.state) {
            State::Ready(link) if link.acks.is_none() => {
                if link.exchanges.is_idle() {
                    Traffic::Idle
                } else {
                    Traffic::Busy
                }
            }
            _ => Traffic::OfTheDriver,
        }
    }

    /// Drops `what` when all is dealt with that is under way on the connection for commands; at once where there is none. What waits for
    /// a connection is refused then: another server may have its keys, and what goes there must not come before it.
    pub(crate) fn drop_behind(&self, what: impl Send + 'static) {
        let waiting = match &mut *lock(&self.state) {
            State::Reconnecting(Reconnecting { failure, waiting, lost, .. }) => {
                Some((failure.clone(), waiting.take(), lost.clone()))
            }
            _ => None,
        };
        if let Some((failure, waiting, lost)) = waiting {
            self.refuse(waiting.flat_map(|(requests, _)| requests).collect(), &failure);
            if let Some(link) = lost {
                link.exchanges.drop_behind(&link, Box::new(what)); // replies of the lost connection may not be handled yet
            }
        } else if let Ok(link) = self.link() {
            link.exchanges.drop_behind(&link, Box::new(what));
        }
    }

    /// Returns the epoch of a new connection.
    pub(crate) fn next_epoch(&self) -> u64 {
        self.shared.next_epoch()
    }

    /// Asks the server something over the connection for commands: when it is answered, so is all that was sent before.
    pub(crate) async fn ask(&self, question: &Pipeline) -> Result<Vec<Value>, Failure> {
        let link = self.link()?;
        let mut connection = link.connection.clone();
        connection.inbound().allow_descriptions(1);
        let answers = connection.send_packed_commands(question, 0, question.len()).await;
        if answers.is_ok() {
            connection.inbound().allow_descriptions(0); // a late reply may still come, and is as large
        }
        answers.map_err(|error| link.route.lost(error, connection.inbound()))
    }

    /// Has it try to connect again at once, however often it has failed.
    pub(crate) fn try_again(&self) {
        self.hope.notify_one();
    }

    /// Returns whether requests are sent.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(&*lock(&self.state), State::Ready(..))
    }

    /// Returns `true` if requests may be under way, or wait for a connection.
    pub(crate) fn may_have_requests(&self) -> bool {
        !matches!(&*lock(&self.state), State::Down(_))
    }

    /// Returns whether there is a connection for messages.
    pub(crate) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::Acquire)
    }

    /// Returns whether messages about a key are received: its grants, or, in other layouts, its bell.
    pub(crate) fn is_told_of(&self, key: &str) -> bool {
        if !self.is_listening() || self.layout() != Layout::Native {
            return self.is_listening();
        }
        // A key of a namespace that is not known (yet) is taken for one of the manager's own: its grants are published elsewhere.
        let namespace = self.shared.namespaces.of_key(key);
        let is_its_own = |name: &str| {
            name.is_empty() || key.strip_prefix(name).is_some_and(|behind| behind.starts_with(':'))
        };
        is_its_own(namespace.name()) && lock(&self.subscribed).contains(namespace.name())
    }

    /// Has a connection whenever one can be had. `first` is told how the first attempt to connect ended; after a failure there is no
    /// second.
    pub(crate) async fn run(self: Arc<Self>, first: Option<oneshot::Sender<Result<(), Failure>>>) {
        let _running = self.running.lock().await;
        let _stands_down = StandsDown(&self);
        tokio::select! {
            () = self.supervise(first) => {}
            () = self.whereabouts.watch(&self.engine) => {}
            () = self.refuse_expired() => {}
        }
    }

    /// Refuses requests that have waited for a connection for too long, without end.
    async fn refuse_expired(&self) {
        loop {
            let waits = self.waits.notified();
            let (expired, next) = match &mut *lock(&self.state) {
                State::Reconnecting(Reconnecting { failure, waiting, .. }) => {
                    let expired = waiting.take_expired(boot_time());
                    (Some((expired, failure.clone())), waiting.next_expiry())
                }
                _ => (None, None),
            };
            if let Some((expired, failure)) = expired {
                self.refuse(expired, &failure);
            }
            match next {
                Some(until) => tokio::select! {
                    () = tokio::time::sleep(until.since(boot_time())) => {}
                    () = waits => {}
                },
                None => waits.await,
            }
        }
    }

    async fn supervise(self: &Arc<Self>, mut first: Option<oneshot::Sender<Result<(), Failure>>>) {
        let mut backoff = Backoff::new(&self.engine);
        let mut last: Option<String> = None;
        let mut useless = 0_u32;
        loop {
            let opened = tokio::select! {
                biased;
                () = self.whereabouts.news() => continue, // it moved while we went to where it was
                opened = self.whereabouts.find(|route| self.open_at(route, useless)) => opened,
            };
            let mut worked = Duration::ZERO;
            match (opened, first.take()) {
                (Ok(link), told) => {
                    let link = Arc::new(link);
                    self.stand_ready(&link);
                    if told.is_some_and(|told| told.send(Ok(())).is_err()) {
                        return;
                    }
                    let here = link.route.shown.to_string();
                    let moved = last.replace(here.clone()).is_some_and(|last| last != here);
                    let failure = self.serve(&link, moved).await;
                    self.lose(&link);
                    telemetry::disconnected(&failure.reason);
                    (worked, useless) = if link.is_proven() {
                        (PROVEN, 0)
                    } else {
                        (Duration::ZERO, useless.saturating_add(1))
                    };
                }
                (Err(failure), Some(told)) => {
                    let _ = told.send(Err(failure));
                    return;
                }
                (Err(failure), None) => {
                    self.idleness.failed();
                    self.stand_down(&failure);
                }
            }
            tokio::select! {
                biased;
                () = self.whereabouts.news() => {}
                () = self.hope.notified() => backoff = Backoff::new(&self.engine),
                () = backoff.pause(worked) => {}
            }
        }
    }

    /// Opens a connection to a server and checks that it is the one that is wanted.
    async fn open_at(&self, route: Arc<Route>, useless_before: u32) -> Result<Link, Failure> {
        let commands = async {
            let mut opened = route.connect(self.layout()).await?;
            self.whereabouts.check(&route, &mut opened.connection).await?;
            Ok(opened)
        };
        let channel = self.shared.namespaces.own().grant_channel(self.process);
        let (commands, acks, ear) = tokio::join!(commands, route.connect_for_acks(), route.listen(&channel));
        let (commands, acks) = (commands?, acks?);
        if let Err(failure) = &ear {
            self.report_not_listening(failure);
        }
        let acks = acks.map(|connection| {
            let (epoch, answers) = (self.shared.next_epoch(), Arc::clone(&self.answers));
            Acks::new(connection, epoch, Arc::clone(&route), answers)
        });
        // Where nobody finds out that the other side has ended a connection, it is asked often.
        let beat = match commands.pump {
            Some(_) => Beat::new(&self.idleness),
            None => Beat::new(&Arc::new(Idleness::limited())),
        };
        let mut link = Link::new(commands, route, self.shared.next_epoch(), acks, ear.ok(), beat);
        link.useless_before = useless_before;
        Ok(link)
    }

    fn stand_ready(self: &Arc<Self>, link: &Arc<Link>) {
        if link.acks.is_some() {
            self.spawn(link, Arc::clone(self).send_for_acks(Arc::clone(link)));
        }
        self.send_waiting(link);
        telemetry::connected(&link.route.shown, &self.process.shown());
        self.shared.undoing.more.notify_one(); // what is to be undone can be
    }

    /// Has requests sent over a new connection from now on, those that wait for it first.
    fn send_waiting(self: &Arc<Self>, link: &Arc<Link>) {
        loop {
            let waiting = match &mut *lock(&self.state) {
                State::Reconnecting(Reconnecting { waiting, .. }) if !waiting.is_empty() => {
                    Some(waiting.take())
                }
                _ => None,
            };
            // Until they have left, what comes meanwhile waits behind them: requests on one key leave in their order.
            let Some(waiting) = waiting else {
                if self.is_made_ready(link) {
                    return;
                }
                continue;
            };
            for (requests, passage) in waiting {
                self.send(link, requests, passage); // with nothing locked
            }
        }
    }

    /// Makes `link` the connection that requests are sent over, unless some wait.
    fn is_made_ready(&self, link: &Arc<Link>) -> bool {
        let mut state = lock(&self.state);
        if let State::Reconnecting(Reconnecting { waiting, .. }) = &*state
            && !waiting.is_empty()
        {
            return false;
        }
        let before = std::mem::replace(&mut *state, State::Ready(Arc::clone(link)));
        drop(state);
        drop(before);
        true
    }

    /// The connection is lost: what was written is answered, and what comes now waits for the first attempt to replace it.
    fn lose(&self, link: &Arc<Link>) {
        if !link.may_be_waited_for() {
            return self.stand_down(&link.failure());
        }
        self.listening.store(false, Ordering::Release);
        self.tracking.close();
        {
            let mut state = lock(&self.state);
            if let State::Ready(_) = &*state {
                *state = State::reconnecting(Arc::clone(link));
            }
            if let State::Reconnecting(Reconnecting { waiting, response_timeout, lost, .. }) = &mut *state {
                *lost = None; // it is closed here
                if let Some(acks) = &link.acks {
                    waiting.push_first(acks.take_unsent(), boot_time(), *response_timeout);
                }
            }
        }
        link.exchanges.close(); // with nothing locked
        self.waits.notify_one();
        self.answers.disconnected();
    }

    fn stand_down(&self, failure: &Failure) {
        self.listening.store(false, Ordering::Release);
        self.tracking.close();
        let before = std::mem::replace(&mut *lock(&self.state), State::Down(failure.clone()));
        match before {
            State::Ready(link) => link.exchanges.close(), // with nothing locked
            State::Reconnecting(Reconnecting { mut waiting, lost, .. }) => {
                if let Some(link) = lost {
                    link.exchanges.close();
                }
                self.refuse(waiting.take().flat_map(|(requests, _)| requests).collect(), failure);
            }
            State::Down(_) => {}
        }
        self.answers.disconnected();
    }

    /// Uses a connection until it is to be given up, and returns why.
    async fn serve(self: &Arc<Self>, link: &Link, moved: bool) -> Failure {
        tokio::select! {
            biased;
            () = self.whereabouts.news() => {
                self.idleness.failed();
                link.give_up_since("is the master no longer, by what a sentinel says");
            }
            () = link.ended() => {
                let idle = link.beat.idle_at(boot_time(), link.exchanges.commands_sent());
                self.idleness.ended(Use::Commands, idle);
                link.give_up_ended();
            }
            () = link.broken.notified() => self.idleness.failed(),
            () = self.hear(link, moved) => {}
            () = self.examine(link) => {}
            () = self.track(link) => {}
            () = link.beat.keep() => {}
            () = link.exchanges.watch(link.route.response_timeout) => {}
        }
        link.failure()
    }

    /// Finds out that a connection is dead, or its server not what it was, before somebody needs it.
    async fn examine(&self, link: &Link) {
        let mut pulse = link.beat.pulse();
        loop {
            let doubted = link.doubt.notified();
            if let Some(every) = self.whereabouts.look_every() {
                let _ = tokio::time::timeout(every, doubted).await;
                link.beat.ride(boot_time());
            } else if pulse.before_a_ping(doubted).await.is_none() && link.exchanges.has_commands() {
                continue; // what is under way is answered, or gives it up
            }
            if let Err(failure) = self.whereabouts.look(&link.route, &mut link.connection.clone()).await {
                link.give_up(failure);
            }
        }
    }

    /// Answers what cannot be sent.
    fn refuse(&self, requests: Vec<Request>, failure: &Failure) {
        if requests.is_empty() {
            return;
        }
        // Whatever keeps us from connecting, what was asked for may be had once we are connected. Nothing of it was written.
        let failure = Failure { kind: FailureKind::Passing, connection_lost: false, ..failure.clone() };
        let replies =
            requests.into_iter().map(|request| (request, Reply::Refused(failure.clone()))).collect();
        self.answers.replies(replies, boot_time(), None);
    }

    /// Sends requests in pipelines that are short enough not to hold up others. Those whose bell is not heard yet wait for that.
    fn send(self: &Arc<Self>, link: &Arc<Link>, mut requests: Vec<Request>, passage: Passage) {
        let is_upkeep = requests.iter().any(|request| request.command.is_upkeep());
        let beside = if link.acks.is_some() { Way::Acks } else { Way::Commands };
        if requests.iter().any(|request| !self.bells.lets_go(request)) {
            let (now, later): (Vec<_>, Vec<_>) =
                requests.into_iter().partition(|request| self.bells.lets_go(request));
            let (node, patience) = (Arc::clone(self), link.route.response_timeout);
            let keys = later.iter().map(|request| Name::clone(&request.key)).collect();
            let batch = Batch::new(self, link, beside.clone(), later, passage);
            let listened = async move { node.bells.listen(keys, patience).await };
            self.spawn(link, batch.exchange_after(listened));
            requests = now;
        }
        // What another server has sent here waits for nothing of this one.
        let is_sent_here = passage != Passage::default();
        let way = if is_sent_here { beside } else { Way::Commands };
        if let Some(acks) = link.acks.as_ref().filter(|_| !is_sent_here) {
            requests = acks.keep(requests);
        }
        if !is_sent_here && let Some((wire, tracked)) = self.tracking.take_out(&mut requests) {
            self.send_over(link, &Way::Tracked(wire), tracked, passage);
        }
        self.send_over(link, &way, requests, passage);
        if is_upkeep {
            link.beat.ride(boot_time());
        }
    }

    /// Returns whether an answer tells that somebody who queues nobody has a lock that is waited for. In other layouts a bell rings.
    pub(crate) fn is_a_strangers(&self, command: Command, reply: &Reply) -> bool {
        matches!((command, reply), (Command::Enqueue { mode: Enqueue::First, .. }, Reply::NotQueued { .. }))
            && self.layout() == Layout::Native
    }

    fn send_over(self: &Arc<Self>, link: &Arc<Link>, way: &Way, requests: Vec<Request>, passage: Passage) {
        let mut requests = requests.into_iter().map(|request| self.without_an_ear(request)).peekable();
        while requests.peek().is_some() {
            let batch = Batch::new(self, link, way.clone(), requests.by_ref().take(LONGEST_BATCH), passage);
            // What waits for replicas waits in its own order, by the timers of the driver.
            if let Way::Acks = way {
                self.spawn(link, batch.exchange());
            } else {
                batch.send();
            }
        }
    }

    /// Runs something for as long as the link is used.
    fn spawn(&self, link: &Link, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(task) = self.shared.spawn(task) {
            link.exchanges.adopt(task);
        }
    }

    /// Sends what replicas must acknowledge, one pipeline after the other, without end.
    async fn send_for_acks(self: Arc<Self>, link: Arc<Link>) {
        let Some(acks) = &link.acks else { return };
        loop {
            let requests = acks.next().await.into_iter().map(|request| self.without_an_ear(request));
            Batch::new(&self, &link, Way::Acks, requests, Passage::default()).exchange().await;
        }
    }

    /// Where nobody can tell us of a grant of the key we queue nowhere: the next release would take us for dead.
    fn without_an_ear(&self, mut request: Request) -> Request {
        if let Command::Enqueue { mode: mode @ Enqueue::First, .. } = &mut request.command
            && !self.is_told_of(&request.key)
        {
            *mode = Enqueue::Peek;
        }
        request
    }
}

impl State {
    /// The connection of `link` is lost, and the first attempt to replace it begins.
    fn reconnecting(link: Arc<Link>) -> Self {
        let (failure, waiting) = (link.failure(), WaitingRequests::default());
        let response_timeout = link.route.response_timeout;
        Self::Reconnecting(Reconnecting { failure, waiting, response_timeout, lost: Some(link) })
    }
}

/// However what runs a node ends: by itself, by a panic, or with its runtime. Else what is under way would keep its connection open, since
/// nobody is left to find that it is not answered.
struct StandsDown<'a>(&'a Node);

impl Drop for StandsDown<'_> {
    fn drop(&mut self) {
        let text = format!("the connection to {} is made anew", self.0.whereabouts);
        self.0.stand_down(&Failure::new(FailureKind::Passing, text));
    }
}

/// Ten thousand renewals in pipelines of this length leave other calls their place between them.
const LONGEST_BATCH: usize = 100;
