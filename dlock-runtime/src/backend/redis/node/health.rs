//! An open connection, and whether it still works.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::backend::redis::encoding::scripts::Loaded;
use crate::backend::redis::node::pipeline::PipelineBatch;
use crate::backend::redis::node::replica_acks::ReplicaAckConnection;
use crate::backend::redis::transport::backoff::PROVEN;
use crate::backend::redis::transport::connect_target::{ConnectTarget, NewConnection};
use crate::backend::redis::transport::connection::Connection;
use crate::backend::redis::transport::in_flight::InFlight;
use crate::backend::redis::transport::inline_io::InlineDriver;
use crate::backend::redis::transport::subscriber::Subscriber;
use crate::backend::store_call::StoreScript;
use crate::protocol::command::{Failure, FailureKind};
use crate::sync::lock;

/// An open connection to a node, with its requests in flight.
pub(crate) struct NodeConnection {
    pub(crate) timed: Connection,
    /// The same connection, without a timeout for replies.
    pub(crate) untimed: Connection,
    /// The hashes of the scripts; `None` if the server has no `SCRIPT LOAD`.
    pub(crate) scripts: Option<Loaded>,
    /// The hashes of the other scripts that the server has.
    store_scripts: Mutex<HashSet<&'static str>>,
    /// The driver, which senders poll.
    pub(crate) driver: Arc<InlineDriver>,
    /// The server.
    pub(crate) target: Arc<ConnectTarget>,
    /// The number of this connection, unique in the manager.
    pub(crate) epoch: u64,
    /// The second connection, for writes that replicas must acknowledge.
    pub(crate) acks: Option<ReplicaAckConnection>,
    /// The pub/sub connection, until it is taken; `None` if the server refused to open it.
    subscriber: Mutex<Option<Subscriber>>,
    /// Notified when the connection is given up.
    pub(crate) broken: Notify,
    /// Notified to check the server at once.
    pub(crate) check_now: Notify,
    health: Mutex<ConnectionHealth>,
    /// Whether the connection is given up: nothing more is written to it.
    is_given_up: AtomicBool,
    opened: Instant,
    /// How many consecutive connections before this one were lost before they were of use.
    pub(crate) unproven_before: u32,
    /// The batches in flight.
    pub(crate) in_flight: Arc<InFlight<PipelineBatch>>,
}

/// How many consecutive replies were late, and why the connection is given up.
#[derive(Default)]
struct ConnectionHealth {
    consecutive_timeouts: u32,
    /// Whether a reply was received.
    has_replied: bool,
    failure: Option<Failure>,
}

impl NodeConnection {
    pub(crate) fn new(
        opened: NewConnection,
        target: Arc<ConnectTarget>,
        epoch: u64,
        acks: Option<ReplicaAckConnection>,
        subscriber: Option<Subscriber>,
    ) -> Self {
        let NewConnection { timed, untimed, scripts, driver } = opened;
        Self {
            timed,
            untimed,
            scripts: scripts.map(Loaded::new),
            store_scripts: Mutex::default(),
            driver: Arc::new(driver),
            target,
            epoch,
            acks,
            subscriber: Mutex::new(subscriber),
            broken: Notify::new(),
            check_now: Notify::new(),
            health: Mutex::default(),
            is_given_up: AtomicBool::new(false),
            opened: Instant::now(),
            unproven_before: 0,
            in_flight: InFlight::new(),
        }
    }

    /// Waits until the server closes the connection, or the network loses it.
    pub(crate) async fn ended(&self) {
        self.driver.ended().await;
    }

    /// Takes the pub/sub connection, to receive its messages.
    pub(crate) fn take_subscriber(&self) -> Option<Subscriber> {
        lock(&self.subscriber).take()
    }

    /// Returns `true` if the server has run the script on this connection, so that its hash
    /// suffices.
    pub(crate) fn has_script(&self, script: &'static StoreScript) -> bool {
        lock(&self.store_scripts).contains(script.hash())
    }

    /// Notes that the server has run the script.
    pub(crate) fn note_script(&self, script: &'static StoreScript) {
        lock(&self.store_scripts).insert(script.hash());
    }

    /// Notes that a reply was received.
    pub(crate) fn answered(&self) {
        let mut health = lock(&self.health);
        (health.consecutive_timeouts, health.has_replied) = (0, true);
    }

    /// Notes that the reply to a check was received. It ends a row of late replies, but does not
    /// prove the connection.
    pub(crate) fn check_answered(&self) {
        lock(&self.health).consecutive_timeouts = 0;
    }

    /// Returns `true` if the connection was of use: it delivered a reply, or has lasted for
    /// [`PROVEN`].
    pub(crate) fn is_proven(&self) -> bool {
        lock(&self.health).has_replied || self.opened.elapsed() >= PROVEN
    }

    /// Returns `true` if requests may wait for the attempts to replace the connection.
    ///
    /// After [`MAX_UNPROVEN`] connections that were of no use, the next one is unlikely to be
    /// better, and comes late.
    pub(crate) fn may_await_replacement(&self) -> bool {
        self.unproven_before < MAX_UNPROVEN || self.is_proven()
    }

    /// Returns `true` if the connection is given up: nothing more is written to it.
    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Acquire)
    }

    /// Notes that a reply is missing. Gives the connection up if it is closed, or after two late
    /// replies in a row.
    pub(crate) fn unanswered(&self, failure: &Failure, gone: bool) {
        let consecutive_timeouts = {
            let mut health = lock(&self.health);
            health.consecutive_timeouts += 1;
            health.consecutive_timeouts
        };
        if gone || consecutive_timeouts >= 2 {
            self.give_up(failure.clone());
        } else {
            self.check_now.notify_one(); // the next reply may come on another connection, or much later
        }
    }

    /// Gives the connection up. The first failure is the reason.
    pub(crate) fn give_up(&self, failure: Failure) {
        lock(&self.health).failure.get_or_insert(failure);
        self.is_given_up.store(true, Ordering::Release);
        self.broken.notify_one();
    }

    /// Gives the connection up because of a reply, or of the role of the server.
    pub(crate) fn give_up_because(&self, what: &str) {
        let text = format!("redis at {} {what}", self.target.shown);
        self.give_up(Failure::new(FailureKind::Passing, text));
    }

    /// Gives the connection up because it has ended by itself, or because a limit was exceeded.
    pub(crate) fn give_up_ended(&self) {
        match self.target.violation(self.timed.inbound()) {
            Some(failure) => self.give_up(failure),
            None => self.give_up_because("has ended the connection"),
        }
    }

    /// Returns why the connection was given up.
    pub(crate) fn failure(&self) -> Failure {
        self.recorded_failure().unwrap_or_else(|| {
            let text = format!("the connection to redis at {} was given up", self.target.shown);
            Failure::new(FailureKind::Passing, text)
        })
    }

    /// Returns the failure of requests that were in flight when the connection was given up.
    pub(crate) fn no_reply_failure(&self) -> Failure {
        let why = self.recorded_failure().map(|failure| format!(": {}", failure.reason)).unwrap_or_default();
        let text =
            format!("the connection to redis at {} was given up before it replied{why}", self.target.shown);
        Failure::new(FailureKind::Passing, text)
    }

    fn recorded_failure(&self) -> Option<Failure> {
        lock(&self.health).failure.clone()
    }
}

/// The next attempt would come after 160 ms (`backoff`).
const MAX_UNPROVEN: u32 = 4;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::redis::node::test_node::TestNode;
    use crate::backend::redis::tests::is_notified;
    use crate::backend::redis::topology::discovery::Discovery;

    /// Returns a connection that no node uses any more, with the node.
    async fn unused() -> (TestNode, Arc<NodeConnection>) {
        let mut test = TestNode::new(Duration::from_secs(20)).await;
        let connection = test.connection();
        test.stop().await;
        (test, connection)
    }

    /// Returns a new connection to the node's server, after `unproven_before` useless ones.
    async fn new_connection(test: &TestNode, unproven_before: u32) -> NodeConnection {
        let node = &test.node;
        let opened = node.discovery.find(|target| async move {
            let scripts = node.encoding().scripts();
            let opened = target.connect(scripts, &node.shared.runtimes, target.attempt()).await?;
            Ok(NodeConnection::new(opened, target, 9, None, None))
        });
        let connection = opened.await.expect("the server takes connections");
        NodeConnection { unproven_before, ..connection }
    }

    fn failure(reason: &str) -> Failure {
        Failure::new(FailureKind::Passing, reason)
    }

    #[tokio::test]
    async fn two_late_replies_in_a_row_end_a_connection() {
        let (_test, connection) = unused().await;
        is_notified(&connection.check_now);

        for _ in 0..2 {
            connection.unanswered(&failure("late"), false);
            assert!(!connection.is_given_up() && is_notified(&connection.check_now));
            connection.answered();
        }
        connection.unanswered(&failure("late"), false);
        assert!(!connection.is_given_up() && !is_notified(&connection.broken));
        connection.unanswered(&failure("late again"), false);

        assert!(connection.is_given_up() && is_notified(&connection.broken));
        assert_eq!(&*connection.failure().reason, "late again");
    }

    #[tokio::test]
    async fn a_reply_to_a_check_ends_a_row_of_late_replies_only() {
        let (_test, connection) = unused().await;

        for _ in 0..2 {
            connection.unanswered(&failure("late"), false);
            connection.check_answered();
        }

        assert!(!connection.is_given_up() && !connection.is_proven());
    }

    #[tokio::test]
    async fn a_closed_connection_is_given_up_for_its_first_failure() {
        let (_test, connection) = unused().await;
        assert!(connection.failure().reason.ends_with(" was given up"), "{:?}", connection.failure());
        assert!(connection.no_reply_failure().reason.ends_with("before it replied"));

        connection.unanswered(&failure("it is closed"), true);
        connection.give_up_because("has moved away");

        assert!(connection.is_given_up());
        assert_eq!(&*connection.failure().reason, "it is closed");
        assert!(connection.no_reply_failure().reason.ends_with("before it replied: it is closed"));
    }

    #[tokio::test]
    async fn a_reason_names_the_server() {
        let (test, connection) = unused().await;
        connection.give_up_ended();

        let expected = format!("{} has ended the connection", test.node.discovery);
        assert_eq!(*connection.failure().reason, *expected);
    }

    #[tokio::test]
    async fn a_connection_is_proven_by_a_reply_or_by_its_age() {
        let (test, _connection) = unused().await;
        let connections = [new_connection(&test, 0).await, new_connection(&test, 0).await];
        tokio::time::pause();
        let [old, replied] =
            connections.map(|connection| NodeConnection { opened: Instant::now(), ..connection });

        replied.answered();
        assert!(replied.is_proven());
        tokio::time::advance(PROVEN.saturating_sub(Duration::from_nanos(1))).await;
        assert!(!old.is_proven());
        assert!(old.may_await_replacement(), "there were no useless ones before");
        tokio::time::advance(Duration::from_nanos(1)).await;

        assert!(old.is_proven());
    }

    #[tokio::test]
    async fn requests_do_not_wait_after_four_useless_connections() {
        let (test, _connection) = unused().await;
        for (unproven_before, waits) in [(3, true), (4, false), (5, false)] {
            let connection = new_connection(&test, unproven_before).await;

            assert_eq!(connection.may_await_replacement(), waits, "{unproven_before}");
            connection.answered();
            assert!(connection.may_await_replacement(), "it is of use");
        }
    }

    #[tokio::test]
    async fn a_connection_remembers_the_scripts_that_have_run() {
        static RUN: StoreScript = StoreScript::new("return 1");
        static OTHER: StoreScript = StoreScript::new("return 2");
        let (_test, connection) = unused().await;
        assert!(!connection.has_script(&RUN));

        connection.note_script(&RUN);

        assert!(connection.has_script(&RUN) && !connection.has_script(&OTHER));
    }

    #[tokio::test]
    async fn a_subscriber_is_taken_once() {
        let mut test = TestNode::down(Duration::from_secs(20));
        let target = match &test.node.discovery {
            Discovery::Fixed(target) => Arc::clone(target),
            _ => panic!("the test node has a fixed address"),
        };
        test.connect().await;
        let scripts = test.node.encoding().scripts();
        let opened = target.connect(scripts, &test.shared.runtimes, target.attempt()).await;
        let subscriber = target.try_subscribe(&["a".to_owned()]).await.ok();
        let opened = opened.expect("the server takes connections");

        let connection = NodeConnection::new(opened, target, 9, None, subscriber);

        assert!(connection.take_subscriber().is_some());
        assert!(connection.take_subscriber().is_none());
    }
}
