//! A node: the connections of a manager to one Redis server.
//!
//! While the node is ready, requests are sent at once, in pipelines. During the first two attempts
//! to replace a lost connection (`Reconnecting`) requests wait; after both have failed (`Down`)
//! they are rejected at once. A request that was written never waits for a new connection: its
//! outcome is unknown.
//!
//! | module | owns |
//! |---|---|
//! | `supervisor` | when a connection is opened, replaced, and checked |
//! | `health` | a connection in use, and when it is given up |
//! | `pipeline` | requests that are sent together: their encoding, and the meaning of their replies |
//! | `subscriber_task`, `grant_message` | pub/sub messages |
//! | `release_channels` | a channel per key that announces releases |
//! | `invalidation_tracker` | key tracking |
//! | `replica_acks` | writes that replicas must acknowledge |
//! | `waiting_requests` | requests that wait for a new connection |
//! | `generations` | barriers behind all requests that were sent |
//!
//! See also `transport`, which opens and drives the connections.

mod generations;
pub(super) mod grant_message;
pub(super) mod health;
pub(super) mod invalidation_tracker;
pub(super) mod pipeline;
pub(super) mod release_channels;
pub(super) mod replica_acks;
pub(super) mod subscriber_task;
mod supervisor;
#[cfg(test)]
pub(super) mod test_node;
#[cfg(test)]
mod tests;
mod waiting_requests;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::backend::redis::command_queue::CommandQueue;
use crate::backend::redis::encoding::plain::PlainEncoding;
use crate::backend::redis::encoding::{self, LockEncoding, ScriptTimes};
use crate::backend::redis::node::generations::{GenerationGuard, Generations};
use crate::backend::redis::node::health::NodeConnection;
use crate::backend::redis::node::invalidation_tracker::InvalidationTracker;
use crate::backend::redis::node::pipeline::{ConnectionKind, PipelineBatch, RouteHistory};
use crate::backend::redis::node::release_channels::ReleaseChannels;
use crate::backend::redis::node::waiting_requests::WaitingRequests;
use crate::backend::redis::reply_sink::ReplySink;
use crate::backend::redis::topology::LoadHint;
use crate::backend::redis::topology::discovery::Discovery;
use crate::backend::{EventReceiver, Request};
use crate::clock::boot_time;
use crate::config::Settings;
use crate::key::Name;
use crate::protocol::command::{Command, EnqueueMode, Failure, FailureKind, Reply};
use crate::sync::lock;
use crate::token::{Jitter, ProcessId};

/// One Redis server, and the connections to it.
pub(crate) struct Node {
    shared: Arc<CommandQueue>,
    pub(crate) jitter: Jitter,
    /// The receiver of events, which knows the keys in use.
    pub(crate) events: EventReceiver,
    /// The receiver of replies and messages.
    pub(crate) sink: Arc<dyn ReplySink>,
    pub(crate) script_times: ScriptTimes,
    /// The process whose grants are received.
    pub(crate) process: ProcessId,
    pub(crate) discovery: Discovery,
    state: Mutex<NodeState>,
    /// The requests that are sent, or are on the way to a connection.
    generations: Arc<Generations>,
    /// Whether there is a pub/sub connection.
    pub(crate) listening: AtomicBool,
    /// The namespaces for which `dlock.subscribe_failed` was reported since they were last
    /// subscribed.
    refused: Mutex<HashSet<Arc<str>>>,
    /// The namespaces whose grants are received over it.
    subscribed: Mutex<HashSet<Arc<str>>>,
    /// Notified to reconnect without waiting for the backoff.
    reconnect_now: Notify,
    pub(crate) release_channels: ReleaseChannels,
    pub(crate) tracking: InvalidationTracker,
    /// Notified when requests start to wait for a connection.
    waiting_changed: Notify,
    /// Held by [`run`](Self::run): the cleanup of an ended run must not affect the next one.
    running: tokio::sync::Mutex<()>,
}

enum NodeState {
    Ready(Arc<NodeConnection>),
    /// One of the first two attempts to replace a lost connection is in progress, or about to
    /// begin. After a lazy start, and for a primary of a cluster: the first attempt of all.
    Reconnecting(Reconnecting),
    Down(Failure),
}

struct Reconnecting {
    /// Why the connection was lost.
    failure: Failure,
    waiting: WaitingRequests,
    /// The response timeout of the lost connection.
    response_timeout: Duration,
    /// The lost connection, until its requests in flight are completed.
    lost: Option<Arc<NodeConnection>>,
}

/// How a node handles requests.
enum Routing {
    Send(Arc<NodeConnection>, Vec<Request>),
    Reject(Failure, Vec<Request>),
    Wait,
}

impl Node {
    pub(crate) fn new(
        discovery: Discovery,
        shared: Arc<CommandQueue>,
        events: EventReceiver,
        sink: Arc<dyn ReplySink>,
        process: ProcessId,
        settings: &Settings,
    ) -> Self {
        let state = Mutex::new(NodeState::unconnected(&discovery, settings));
        let (listening, release_channels) = (
            AtomicBool::new(false),
            ReleaseChannels::new(encoding_of(settings, &discovery), Arc::clone(&shared)),
        );
        Self {
            shared,
            jitter: Jitter::of(process),
            events,
            sink,
            script_times: ScriptTimes::of(settings),
            process,
            discovery,
            state,
            generations: Arc::default(),
            listening,
            refused: Mutex::default(),
            subscribed: Mutex::default(),
            reconnect_now: Notify::new(),
            release_channels,
            tracking: InvalidationTracker::default(),
            waiting_changed: Notify::new(),
            running: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the encoding of locks in the server.
    pub(crate) fn encoding(&self) -> &'static dyn LockEncoding {
        self.release_channels.encoding
    }

    /// Sends requests, lets them wait for a new connection, or rejects them, before it returns.
    pub(crate) fn take(self: &Arc<Self>, requests: Vec<Request>, route_history: RouteHistory) {
        // Holds no lock: rejected requests are completed here, and their completion may call this
        // again.
        match self.route(requests, route_history) {
            Routing::Send(connection, requests) => {
                self.send(&connection, requests, route_history, &self.generations.enter());
            }
            Routing::Reject(failure, requests) => self.reject(requests, &failure),
            Routing::Wait => self.waiting_changed.notify_one(),
        }
    }

    fn route(&self, requests: Vec<Request>, route_history: RouteHistory) -> Routing {
        let mut state = lock(&self.state);
        if let NodeState::Ready(connection) = &*state {
            if !connection.is_given_up() {
                return Routing::Send(Arc::clone(connection), requests);
            }
            // The supervisor has not seen yet that the connection is lost.
            if !connection.may_await_replacement() {
                return Routing::Reject(connection.failure(), requests);
            }
            *state = NodeState::reconnecting(Arc::clone(connection));
        }
        match &mut *state {
            NodeState::Ready(connection) => Routing::Send(Arc::clone(connection), requests),
            NodeState::Down(failure) => Routing::Reject(failure.clone(), requests),
            NodeState::Reconnecting(Reconnecting { failure, waiting, response_timeout, .. }) => {
                match waiting.push(requests, route_history, boot_time(), *response_timeout) {
                    Ok(()) => Routing::Wait,
                    Err(requests) => {
                        let text = format!("too many requests wait for a connection: {}", failure.reason);
                        Routing::Reject(Failure { reason: text.into(), ..failure.clone() }, requests)
                    }
                }
            }
        }
    }

    fn connection(&self) -> Result<Arc<NodeConnection>, Failure> {
        match &*lock(&self.state) {
            NodeState::Ready(connection) => Ok(Arc::clone(connection)),
            NodeState::Down(failure) | NodeState::Reconnecting(Reconnecting { failure, .. }) => {
                Err(failure.clone())
            }
        }
    }

    /// Returns the load of the node.
    ///
    /// Requests that need a release channel or replicas are ordered by the driver, on one thread.
    pub(crate) fn traffic(&self) -> LoadHint {
        if self.encoding().has_queue() { self.under_way() } else { LoadHint::DriverOnly }
    }

    /// Like [`traffic`](Self::traffic), for requests whose order does not matter even if they need
    /// a release channel.
    pub(crate) fn under_way(&self) -> LoadHint {
        match &*lock(&self.state) {
            NodeState::Ready(connection) if connection.acks.is_some() => LoadHint::DriverOnly,
            NodeState::Ready(connection) => {
                if connection.in_flight.check_idle() {
                    LoadHint::Idle
                } else {
                    LoadHint::Busy
                }
            }
            _ => LoadHint::DriverOnly,
        }
    }

    /// Finds out whether the writer, which has requests to write, is blocked.
    pub(crate) fn watch_writer(&self) {
        if let NodeState::Ready(connection) = &*lock(&self.state) {
            connection.in_flight.watch_writer();
        }
    }

    /// Removes the requests that are not written yet and for which `is_taken` returns `true`, in
    /// order: those that wait for a connection, or for earlier requests that replicas acknowledge.
    pub(crate) fn take_unwritten(&self, is_taken: impl Fn(&Request) -> bool) -> Vec<Request> {
        let mut state = lock(&self.state);
        let (connection, waiting) = match &mut *state {
            NodeState::Ready(connection) => (Some(&*connection), Vec::new()),
            NodeState::Reconnecting(Reconnecting { lost, waiting, .. }) => {
                (lost.as_ref(), waiting.take_if(&is_taken))
            }
            NodeState::Down(_) => (None, Vec::new()),
        };
        // Still locked: the supervisor adds those of a lost connection to the waiting ones.
        let acks = connection.and_then(|connection| connection.acks.as_ref());
        let unsent = acks.map(|acks| acks.take_unsent(is_taken)).unwrap_or_default();
        drop(state);
        unsent.into_iter().map(|(_, request)| request).chain(waiting).collect()
    }

    /// Drops `what` once all requests that were sent over any connection are completed or
    /// redirected; at once if there are none. Requests that wait for a connection do not count.
    pub(crate) fn drop_behind(&self, what: impl Send + 'static) {
        self.generations.drop_behind(Box::new(what));
    }

    /// Sends a query over the connection for commands. All requests that were sent before are
    /// answered before it.
    pub(crate) async fn ask(&self, question: &Pipeline) -> Result<Vec<Value>, Failure> {
        let connection = self.connection()?;
        let mut client = connection.timed.clone();
        client.inbound().allow_descriptions(1);
        let replies = client.send_packed_commands(question, 0, question.len());
        let replies = self.shared.runtimes.watch(replies).await;
        if replies.is_ok() {
            client.inbound().end_descriptions(); // this reply is the last one that was outstanding
        }
        replies.map_err(|error| connection.target.connection_failure(error, client.inbound()))
    }

    /// Reconnects at once, without waiting for the backoff.
    pub(crate) fn try_again(&self) {
        self.reconnect_now.notify_one();
    }

    /// Returns `true` if requests are sent at once.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(&*lock(&self.state), NodeState::Ready(..))
    }

    /// Returns `true` if requests may be in flight, or wait for a connection.
    pub(crate) fn may_have_requests(&self) -> bool {
        !matches!(&*lock(&self.state), NodeState::Down(_))
    }

    /// Returns `true` if there is a pub/sub connection.
    pub(crate) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::Acquire)
    }

    /// Returns `true` if messages about `key` are received: its grants or, in other layouts, its
    /// releases.
    pub(crate) fn receives_messages_about(&self, key: &str) -> bool {
        if !self.is_listening() || !self.encoding().has_queue() {
            return self.is_listening();
        }
        // A key of an unknown namespace maps to the manager's own, but its grants are published on
        // another channel.
        let namespace = self.shared.namespaces.of_key(key);
        let is_its_own = |name: &str| {
            name.is_empty() || key.strip_prefix(name).is_some_and(|behind| behind.starts_with(':'))
        };
        is_its_own(namespace.name()) && lock(&self.subscribed).contains(namespace.name())
    }

    /// Completes requests that cannot be sent.
    fn reject(&self, requests: Vec<Request>, failure: &Failure) {
        if requests.is_empty() {
            return;
        }
        // Whatever the reason, the requests may succeed once the node is connected. None of them
        // was written.
        let failure = Failure { kind: FailureKind::Passing, connection_lost: false, ..failure.clone() };
        let replies =
            requests.into_iter().map(|request| (request, Reply::Refused(failure.clone()))).collect();
        self.sink.on_replies(replies, boot_time(), None);
    }

    /// Sends requests in pipelines of at most [`LONGEST_BATCH`]. Those that need a release channel
    /// first wait for the subscription.
    fn send(
        self: &Arc<Self>,
        connection: &Arc<NodeConnection>,
        mut requests: Vec<Request>,
        route_history: RouteHistory,
        generation: &GenerationGuard,
    ) {
        let kind_here =
            if connection.acks.is_some() { ConnectionKind::ReplicaAcks } else { ConnectionKind::Commands };
        let later = self.release_channels.take_unsubscribed(&mut requests);
        if !later.is_empty() {
            let (node, timeout) = (Arc::clone(self), connection.target.response_timeout);
            let keys = later.iter().map(|request| Name::clone(&request.key)).collect();
            let generation = generation.clone();
            let batch =
                PipelineBatch::new(self, connection, kind_here.clone(), later, route_history, generation);
            let listened = async move { node.release_channels.subscribe_to(keys, timeout).await };
            self.spawn(connection, batch.run_after(listened));
        }
        // A redirected request waits for no reply of this server.
        let is_sent_here = route_history != RouteHistory::default();
        let kind = if is_sent_here { kind_here } else { ConnectionKind::Commands };
        if let Some(acks) = connection.acks.as_ref().filter(|_| !is_sent_here) {
            requests = acks.intercept(requests, generation);
        }
        if !is_sent_here && let Some((tracking, tracked)) = self.tracking.take_tracked(&mut requests) {
            let kind = ConnectionKind::Tracking(tracking);
            self.send_over(connection, &kind, tracked, route_history, generation);
        }
        self.send_over(connection, &kind, requests, route_history, generation);
    }

    /// Returns `true` if a reply shows that a client without a queue holds a lock that this process
    /// waits for.
    ///
    /// In other layouts the release channel announces its release.
    pub(crate) fn is_foreign_lock(&self, command: Command, reply: &Reply) -> bool {
        matches!(
            (command, reply),
            (Command::Enqueue { mode: EnqueueMode::Join, .. }, Reply::NotQueued { .. })
        ) && self.encoding().has_queue()
    }

    fn send_over(
        self: &Arc<Self>,
        connection: &Arc<NodeConnection>,
        kind: &ConnectionKind,
        requests: Vec<Request>,
        route_history: RouteHistory,
        generation: &GenerationGuard,
    ) {
        let longest = longest_batch(connection, &requests);
        let mut requests =
            requests.into_iter().map(|request| self.drop_requests_without_subscription(request)).peekable();
        while requests.peek().is_some() {
            let batch = PipelineBatch::new(
                self,
                connection,
                kind.clone(),
                requests.by_ref().take(longest),
                route_history,
                generation.clone(),
            );
            if let ConnectionKind::ReplicaAcks = kind {
                // A pipeline that waits for replicas has its own order, and the timers of the
                // driver: the runtime of this thread may have none, or may be blocked later.
                let _own = self.shared.runtimes.own().map(Handle::enter);
                self.spawn(connection, batch.run());
            } else {
                batch.send();
            }
        }
    }

    /// Spawns a task that ends with the connection.
    fn spawn(&self, connection: &NodeConnection, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(task) = self.shared.runtimes.spawn(task) {
            connection.in_flight.adopt(task);
        }
    }

    /// Sends requests that replicas must acknowledge, one pipeline after the other, forever.
    async fn run_acks(self: Arc<Self>, connection: Arc<NodeConnection>) {
        let Some(acks) = &connection.acks else { return };
        loop {
            let (generation, requests) = acks.next().await;
            let requests =
                requests.into_iter().map(|request| self.drop_requests_without_subscription(request));
            PipelineBatch::new(
                &self,
                &connection,
                ConnectionKind::ReplicaAcks,
                requests,
                RouteHistory::default(),
                generation,
            )
            .run()
            .await;
        }
    }

    /// Replaces an enqueue by a single try if grants of the key are not received.
    ///
    /// Otherwise a release would find no subscriber, and treat the waiter as dead.
    fn drop_requests_without_subscription(&self, mut request: Request) -> Request {
        if let Command::Enqueue { mode: mode @ EnqueueMode::Join, .. } = &mut request.command
            && !self.receives_messages_about(&request.key)
        {
            *mode = EnqueueMode::TryOnly;
        }
        request
    }
}

impl NodeState {
    /// Returns the state before the first connection.
    ///
    /// If no caller waits for that connection, requests do, as for the replacement of a lost one.
    fn unconnected(discovery: &Discovery, settings: &Settings) -> Self {
        let (waiting, response_timeout) = (WaitingRequests::default(), settings.rules.response_timeout);
        let is_primary = matches!(discovery, Discovery::Primary(_));
        let text = if is_primary {
            let longest = waiting_requests::longest_wait(response_timeout).as_millis();
            format!("the connection to {discovery} was not established after {longest} ms")
        } else {
            format!("not connected to {discovery} yet")
        };
        let failure = Failure::new(FailureKind::Passing, text);
        if !settings.lazy && !is_primary {
            return Self::Down(failure);
        }
        Self::Reconnecting(Reconnecting { failure, waiting, response_timeout, lost: None })
    }

    /// Returns the state after `connection` is lost.
    fn reconnecting(connection: Arc<NodeConnection>) -> Self {
        let (failure, waiting) = (connection.failure(), WaitingRequests::default());
        let response_timeout = connection.target.response_timeout;
        let lost = Some(connection);
        Self::Reconnecting(Reconnecting { failure, waiting, response_timeout, lost })
    }
}

/// Returns the configured encoding, for a server that `discovery` finds.
fn encoding_of(settings: &Settings, discovery: &Discovery) -> &'static dyn LockEncoding {
    match discovery {
        Discovery::Quorum(..) => &PlainEncoding,
        Discovery::Primary(_) => encoding::of_settings(settings, true),
        Discovery::Fixed(_) | Discovery::Sentinel(_) => encoding::of_settings(settings, false),
    }
}

/// Returns how many requests one pipeline may have.
fn longest_batch(connection: &NodeConnection, requests: &[Request]) -> usize {
    if requests.iter().any(|request| request.call.as_ref().is_some_and(|call| call.has_large_reply())) {
        LONGEST_BATCH_OF_CALLS
    } else if connection.untimed.inbound().allows_large_replies() {
        LONGEST_BATCH_BETWEEN_CALLS
    } else {
        LONGEST_BATCH
    }
}

/// Short enough that other requests are sent between 10,000 renewals.
const LONGEST_BATCH: usize = 100;

/// The replies of a pipeline are kept until its last one, and those to calls may have 4 MiB, which
/// decoding copies.
const LONGEST_BATCH_OF_CALLS: usize = 2;

/// A server may send such replies to other requests of the same connection.
const LONGEST_BATCH_BETWEEN_CALLS: usize = 4;
