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

pub(super) mod backoff;
mod completion_queue;
pub(super) mod connect;
pub(super) mod connection;
mod framing;
pub(super) mod health;
pub(super) mod in_flight;
pub(super) mod inbound;
pub(super) mod inline_io;
pub(super) mod invalidation_tracker;
pub(super) mod keepalive;
pub(super) mod pipeline;
pub(super) mod release_channels;
pub(super) mod replica_acks;
mod resolve;
pub(super) mod sharded_subscriber;
mod stream;
pub(super) mod subscriber_task;
#[cfg(test)]
pub(super) mod test_node;
#[cfg(feature = "tls")]
pub(super) mod tls;
mod waiting_requests;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::sync::{Notify, oneshot};

use crate::backend::Request;
use crate::backend::redis::command_queue::CommandQueue;
use crate::backend::redis::encoding::LockEncoding;
use crate::backend::redis::node::backoff::{Backoff, PROVEN};
use crate::backend::redis::node::connect::ConnectTarget;
use crate::backend::redis::node::health::NodeConnection;
use crate::backend::redis::node::invalidation_tracker::InvalidationTracker;
use crate::backend::redis::node::keepalive::{Beat, Idleness, Use};
use crate::backend::redis::node::pipeline::{PipelineBatch, RouteHistory, Way};
use crate::backend::redis::node::release_channels::ReleaseChannels;
use crate::backend::redis::node::replica_acks::ReplicaAckConnection;
use crate::backend::redis::node::waiting_requests::WaitingRequests;
use crate::backend::redis::reply_sink::ReplySink;
use crate::backend::redis::topology::LoadHint;
use crate::backend::redis::topology::discovery::Discovery;
use crate::clock::boot_time;
use crate::config::Settings;
use crate::engine::Engine;
use crate::key::Name;
use crate::protocol::command::{Command, EnqueueMode, Failure, FailureKind, Reply};
use crate::sync::lock;
use crate::telemetry;
use crate::token::ProcessId;

/// The node.
pub(crate) struct Node {
    shared: Arc<CommandQueue>,
    /// Who draws the jitter.
    pub(crate) engine: Weak<Engine>,
    /// Who is told what the server says.
    pub(crate) answers: Arc<dyn ReplySink>,
    pub(crate) grant_lease: Duration,
    /// Whose grants are listened for.
    pub(crate) process: ProcessId,
    pub(crate) whereabouts: Discovery,
    state: Mutex<NodeState>,
    /// Whether there is a connection for messages.
    pub(crate) listening: AtomicBool,
    /// Whether it has been reported that the server does not let us subscribe.
    has_told_not_listening: AtomicBool,
    /// The namespaces in which we can be told of grants over it.
    subscribed: Mutex<HashSet<Arc<str>>>,
    /// Told when there is reason to try to connect again at once.
    hope: Notify,
    pub(crate) bells: ReleaseChannels,
    pub(crate) tracking: InvalidationTracker,
    idleness: Arc<Idleness>,
    /// Told when requests wait for a connection.
    waits: Notify,
    /// Held by what runs the node: what is left of one that has ended must not meddle with the next.
    running: tokio::sync::Mutex<()>,
}

enum NodeState {
    Ready(Arc<NodeConnection>),
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
    lost: Option<Arc<NodeConnection>>,
}

/// What becomes of requests that a node is given.
enum Taken {
    Send(Arc<NodeConnection>, Vec<Request>),
    Refuse(Failure, Vec<Request>),
    Wait,
}

impl Node {
    pub(crate) fn new(
        whereabouts: Discovery,
        shared: Arc<CommandQueue>,
        engine: Weak<Engine>,
        answers: Arc<dyn ReplySink>,
        process: ProcessId,
        settings: &Settings,
    ) -> Self {
        let text = format!("not connected to {whereabouts} yet");
        let state = Mutex::new(NodeState::Down(Failure::new(FailureKind::Passing, text)));
        let grant_lease = settings.rules.grant_lease;
        let (listening, bells) = (
            AtomicBool::new(false),
            ReleaseChannels::new(LockEncoding::of(settings, &whereabouts), Arc::clone(&shared)),
        );
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
            tracking: InvalidationTracker::default(),
            idleness: Arc::default(),
            waits: Notify::new(),
            running: tokio::sync::Mutex::default(),
        }
    }

    /// Returns how locks stand in the server.
    pub(crate) fn layout(&self) -> LockEncoding {
        self.bells.layout
    }

    /// Sends requests, keeps them for the connection that is being made, or answers them. It is done when this returns: no task lies in
    /// between.
    pub(crate) fn take(self: &Arc<Self>, requests: Vec<Request>, passage: RouteHistory) {
        // With nothing locked: what cannot be sent is answered at once, and who hears of that may ask for something again.
        match self.place(requests, passage) {
            Taken::Send(link, requests) => self.send(&link, requests, passage),
            Taken::Refuse(failure, requests) => self.refuse(requests, &failure),
            Taken::Wait => self.waits.notify_one(),
        }
    }

    fn place(&self, requests: Vec<Request>, passage: RouteHistory) -> Taken {
        let mut state = lock(&self.state);
        if let NodeState::Ready(link) = &*state {
            if !link.is_given_up() {
                return Taken::Send(Arc::clone(link), requests);
            }
            // What runs the node has not seen yet that the connection is lost.
            if !link.may_be_waited_for() {
                return Taken::Refuse(link.failure(), requests);
            }
            *state = NodeState::reconnecting(Arc::clone(link));
        }
        match &mut *state {
            NodeState::Ready(link) => Taken::Send(Arc::clone(link), requests),
            NodeState::Down(failure) => Taken::Refuse(failure.clone(), requests),
            NodeState::Reconnecting(Reconnecting { failure, waiting, response_timeout, .. }) => {
                match waiting.push(requests, passage, boot_time(), *response_timeout) {
                    Ok(()) => Taken::Wait,
                    Err(requests) => Taken::Refuse(failure.clone(), requests),
                }
            }
        }
    }

    fn link(&self) -> Result<Arc<NodeConnection>, Failure> {
        match &*lock(&self.state) {
            NodeState::Ready(link) => Ok(Arc::clone(link)),
            NodeState::Down(failure) | NodeState::Reconnecting(Reconnecting { failure, .. }) => {
                Err(failure.clone())
            }
        }
    }

    /// Returns what is under way. What a bell has to be heard for, or replicas are waited for, is put in order on one thread.
    pub(crate) fn traffic(&self) -> LoadHint {
        if self.layout() == LockEncoding::Native { self.under_way() } else { LoadHint::OfTheDriver }
    }

    /// Returns the same where what bells are heard for only looks: its order does not matter.
    pub(crate) fn under_way(&self) -> LoadHint {
        match &*lock(&self.state) {
            NodeState::Ready(link) if link.acks.is_none() => {
                if link.exchanges.is_idle() {
                    LoadHint::Idle
                } else {
                    LoadHint::Busy
                }
            }
            _ => LoadHint::OfTheDriver,
        }
    }

    /// Drops `what` when all is dealt with that is under way on the connection for commands; at once where there is none. What waits for
    /// a connection is refused then: another server may have its keys, and what goes there must not come before it.
    pub(crate) fn drop_behind(&self, what: impl Send + 'static) {
        let waiting = match &mut *lock(&self.state) {
            NodeState::Reconnecting(Reconnecting { failure, waiting, lost, .. }) => {
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
        matches!(&*lock(&self.state), NodeState::Ready(..))
    }

    /// Returns `true` if requests may be under way, or wait for a connection.
    pub(crate) fn may_have_requests(&self) -> bool {
        !matches!(&*lock(&self.state), NodeState::Down(_))
    }

    /// Returns whether there is a connection for messages.
    pub(crate) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::Acquire)
    }

    /// Returns whether messages about a key are received: its grants, or, in other layouts, its bell.
    pub(crate) fn is_told_of(&self, key: &str) -> bool {
        if !self.is_listening() || self.layout() != LockEncoding::Native {
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
        let _stands_down = NotPrimary(&self);
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
                NodeState::Reconnecting(Reconnecting { failure, waiting, .. }) => {
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
                () = self.whereabouts.primary_changed() => continue, // it moved while we went to where it was
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
                () = self.whereabouts.primary_changed() => {}
                () = self.hope.notified() => backoff = Backoff::new(&self.engine),
                () = backoff.pause(worked) => {}
            }
        }
    }

    /// Opens a connection to a server and checks that it is the one that is wanted.
    async fn open_at(
        &self,
        route: Arc<ConnectTarget>,
        useless_before: u32,
    ) -> Result<NodeConnection, Failure> {
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
            ReplicaAckConnection::new(connection, epoch, Arc::clone(&route), answers)
        });
        // Where nobody finds out that the other side has ended a connection, it is asked often.
        let beat = match commands.pump {
            Some(_) => Beat::new(&self.idleness),
            None => Beat::new(&Arc::new(Idleness::limited())),
        };
        let mut link = NodeConnection::new(commands, route, self.shared.next_epoch(), acks, ear.ok(), beat);
        link.useless_before = useless_before;
        Ok(link)
    }

    fn stand_ready(self: &Arc<Self>, link: &Arc<NodeConnection>) {
        if link.acks.is_some() {
            self.spawn(link, Arc::clone(self).send_for_acks(Arc::clone(link)));
        }
        self.send_waiting(link);
        telemetry::connected(&link.route.shown, &self.process.shown());
        self.shared.undoing.more.notify_one(); // what is to be undone can be
    }

    /// Has requests sent over a new connection from now on, those that wait for it first.
    fn send_waiting(self: &Arc<Self>, link: &Arc<NodeConnection>) {
        loop {
            let waiting = match &mut *lock(&self.state) {
                NodeState::Reconnecting(Reconnecting { waiting, .. }) if !waiting.is_empty() => {
                    Some(waiting.take())
                }
                _ => None,
            };
            // AtomicDeadline they have left, what comes meanwhile waits behind them: requests on one key leave in their order.
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
    fn is_made_ready(&self, link: &Arc<NodeConnection>) -> bool {
        let mut state = lock(&self.state);
        if let NodeState::Reconnecting(Reconnecting { waiting, .. }) = &*state
            && !waiting.is_empty()
        {
            return false;
        }
        let before = std::mem::replace(&mut *state, NodeState::Ready(Arc::clone(link)));
        drop(state);
        drop(before);
        true
    }

    /// The connection is lost: what was written is answered, and what comes now waits for the first attempt to replace it.
    fn lose(&self, link: &Arc<NodeConnection>) {
        if !link.may_be_waited_for() {
            return self.stand_down(&link.failure());
        }
        self.listening.store(false, Ordering::Release);
        self.tracking.close();
        {
            let mut state = lock(&self.state);
            if let NodeState::Ready(_) = &*state {
                *state = NodeState::reconnecting(Arc::clone(link));
            }
            if let NodeState::Reconnecting(Reconnecting { waiting, response_timeout, lost, .. }) = &mut *state
            {
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
        let before = std::mem::replace(&mut *lock(&self.state), NodeState::Down(failure.clone()));
        match before {
            NodeState::Ready(link) => link.exchanges.close(), // with nothing locked
            NodeState::Reconnecting(Reconnecting { mut waiting, lost, .. }) => {
                if let Some(link) = lost {
                    link.exchanges.close();
                }
                self.refuse(waiting.take().flat_map(|(requests, _)| requests).collect(), failure);
            }
            NodeState::Down(_) => {}
        }
        self.answers.disconnected();
    }

    /// Uses a connection until it is to be given up, and returns why.
    async fn serve(self: &Arc<Self>, link: &NodeConnection, moved: bool) -> Failure {
        tokio::select! {
            biased;
            () = self.whereabouts.primary_changed() => {
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
    async fn examine(&self, link: &NodeConnection) {
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

    /// ReplySink what cannot be sent.
    fn refuse(&self, requests: Vec<Request>, failure: &Failure) {
        if requests.is_empty() {
            return;
        }
        // Whatever keeps us from connecting, what was asked for may be had once we are connected. Nothing of it was written.
        let failure = Failure { kind: FailureKind::Passing, connection_lost: false, ..failure.clone() };
        let replies =
            requests.into_iter().map(|request| (request, Reply::Refused(failure.clone()))).collect();
        self.answers.on_replies(replies, boot_time(), None);
    }

    /// Sends requests in pipelines that are short enough not to hold up others. Those whose bell is not heard yet wait for that.
    fn send(self: &Arc<Self>, link: &Arc<NodeConnection>, mut requests: Vec<Request>, passage: RouteHistory) {
        let is_upkeep = requests.iter().any(|request| request.command.is_renewal());
        let beside = if link.acks.is_some() { Way::ReplicaAckConnection } else { Way::Commands };
        if requests.iter().any(|request| !self.bells.lets_go(request)) {
            let (now, later): (Vec<_>, Vec<_>) =
                requests.into_iter().partition(|request| self.bells.lets_go(request));
            let (node, retry_state) = (Arc::clone(self), link.route.response_timeout);
            let keys = later.iter().map(|request| Name::clone(&request.key)).collect();
            let batch = PipelineBatch::new(self, link, beside.clone(), later, passage);
            let listened = async move { node.bells.listen(keys, retry_state).await };
            self.spawn(link, batch.exchange_after(listened));
            requests = now;
        }
        // What another server has sent here waits for nothing of this one.
        let is_sent_here = passage != RouteHistory::default();
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
    pub(crate) fn is_foreign_lock(&self, command: Command, reply: &Reply) -> bool {
        matches!(
            (command, reply),
            (Command::Enqueue { mode: EnqueueMode::Join, .. }, Reply::NotQueued { .. })
        ) && self.layout() == LockEncoding::Native
    }

    fn send_over(
        self: &Arc<Self>,
        link: &Arc<NodeConnection>,
        way: &Way,
        requests: Vec<Request>,
        passage: RouteHistory,
    ) {
        let mut requests =
            requests.into_iter().map(|request| self.drop_requests_without_subscription(request)).peekable();
        while requests.peek().is_some() {
            let batch =
                PipelineBatch::new(self, link, way.clone(), requests.by_ref().take(LONGEST_BATCH), passage);
            // What waits for replicas waits in its own order, by the timers of the driver.
            if let Way::ReplicaAckConnection = way {
                self.spawn(link, batch.exchange());
            } else {
                batch.send();
            }
        }
    }

    /// Runs something for as long as the link is used.
    fn spawn(&self, link: &NodeConnection, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(task) = self.shared.spawn(task) {
            link.exchanges.adopt(task);
        }
    }

    /// Sends what replicas must acknowledge, one pipeline after the other, without end.
    async fn send_for_acks(self: Arc<Self>, link: Arc<NodeConnection>) {
        let Some(acks) = &link.acks else { return };
        loop {
            let requests =
                acks.next().await.into_iter().map(|request| self.drop_requests_without_subscription(request));
            PipelineBatch::new(&self, &link, Way::ReplicaAckConnection, requests, RouteHistory::default())
                .exchange()
                .await;
        }
    }

    /// Where nobody can tell us of a grant of the key we queue nowhere: the next release would take us for dead.
    fn drop_requests_without_subscription(&self, mut request: Request) -> Request {
        if let Command::Enqueue { mode: mode @ EnqueueMode::Join, .. } = &mut request.command
            && !self.is_told_of(&request.key)
        {
            *mode = EnqueueMode::TryOnly;
        }
        request
    }
}

impl NodeState {
    /// The connection of `link` is lost, and the first attempt to replace it begins.
    fn reconnecting(link: Arc<NodeConnection>) -> Self {
        let (failure, waiting) = (link.failure(), WaitingRequests::default());
        let response_timeout = link.route.response_timeout;
        Self::Reconnecting(Reconnecting { failure, waiting, response_timeout, lost: Some(link) })
    }
}

/// However what runs a node ends: by itself, by a panic, or with its runtime. Else what is under way would keep its connection open, since
/// nobody is left to find that it is not answered.
struct NotPrimary<'a>(&'a Node);

impl Drop for NotPrimary<'_> {
    fn drop(&mut self) {
        let text = format!("the connection to {} is made anew", self.0.whereabouts);
        self.0.stand_down(&Failure::new(FailureKind::Passing, text));
    }
}

/// Ten thousand renewals in pipelines of this length leave other calls their place between them.
const LONGEST_BATCH: usize = 100;
