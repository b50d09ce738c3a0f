//! Keeps a node connected: connects, reconnects after a backoff, and checks the connection
//! meanwhile.
//!
//! ```text
//!            opened: scripts loaded, subscribed        closed, out of service, two timeouts, moved
//!  Connecting ---------------------------------> Ready (an epoch) -----------------------------> Backoff
//!      ^                                                                                           |
//!      +------------------------ 5 ms to 1 s, with jitter, without end ----------------------------+
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::backend::redis::node::health::NodeConnection;
use crate::backend::redis::node::replica_acks::ReplicaAckConnection;
use crate::backend::redis::node::{Node, NodeState, Reconnecting};
use crate::backend::redis::topology::discovery::FailedCheck;
use crate::backend::redis::transport::backoff::{Backoff, PROVEN};
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::backend::redis::transport::keepalive::Keepalive;
use crate::clock::boot_time;
use crate::protocol::command::{Failure, FailureKind};
use crate::sync::lock;
use crate::telemetry;

impl Node {
    /// Keeps the node connected, forever. The result of the first attempt is sent to `first`; if it
    /// fails, this returns.
    pub(crate) async fn run(self: Arc<Self>, first: Option<oneshot::Sender<Result<(), Failure>>>) {
        let _running = self.running.lock().await;
        let _down_on_drop = DownOnDrop(&self);
        tokio::select! {
            () = self.supervise(first) => {}
            () = self.discovery.watch(&self.jitter) => {}
            () = self.reject_expired() => {}
        }
    }

    /// Rejects requests that have waited for a connection for too long, forever.
    async fn reject_expired(&self) {
        loop {
            let waiting_changed = self.waiting_changed.notified();
            let (expired, next) = match &mut *lock(&self.state) {
                NodeState::Reconnecting(Reconnecting { failure, waiting, .. }) => {
                    let expired = waiting.take_expired(boot_time());
                    (Some((expired, failure.clone())), waiting.next_expiry())
                }
                _ => (None, None),
            };
            if let Some((expired, failure)) = expired {
                self.reject(expired, &failure);
            }
            match next {
                Some(until) => tokio::select! {
                    () = tokio::time::sleep(until.since(boot_time())) => {}
                    () = waiting_changed => {}
                },
                None => waiting_changed.await,
            }
        }
    }

    /// Connects, uses the connection until it is lost, and connects again after a backoff.
    async fn supervise(self: &Arc<Self>, mut first: Option<oneshot::Sender<Result<(), Failure>>>) {
        let mut backoff = Backoff::new(&self.jitter);
        let mut last_server: Option<String> = None;
        let mut unproven = 0_u32;
        let mut may_repeat = false;
        loop {
            let opened = tokio::select! {
                biased;
                () = self.discovery.primary_changed() => continue, // the primary has changed meanwhile
                opened = self.discovery.find(|target| self.open_connection(target, unproven)) => opened,
            };
            let mut worked = Duration::ZERO;
            match (opened, first.take()) {
                (Ok(connection), first) => {
                    let connection = Arc::new(connection);
                    self.on_connected(&connection);
                    if first.is_some_and(|first| first.send(Ok(())).is_err()) {
                        return;
                    }
                    let server = connection.target.shown.to_string();
                    let is_other = last_server.replace(server.clone()).is_some_and(|last| last != server);
                    let moved = is_other || self.discovery.misses_writes_while_away();
                    let failure = self.serve(&connection, moved).await;
                    self.on_connection_lost(&connection);
                    may_repeat = matches!(*lock(&self.state), NodeState::Reconnecting(_));
                    telemetry::disconnected(&failure.reason);
                    (worked, unproven) = if connection.is_proven() {
                        (PROVEN, 0)
                    } else {
                        (Duration::ZERO, unproven.saturating_add(1))
                    };
                }
                (Err(failure), Some(first)) => {
                    let _ = first.send(Err(failure));
                    return;
                }
                // Whatever cut the last connection may have cut this attempt too, before a call
                // that waits for it was made.
                (Err(failure), None) if may_repeat && failure.kind == FailureKind::Passing => {
                    may_repeat = false;
                    continue;
                }
                (Err(failure), None) => self.set_down(&failure),
            }
            tokio::select! {
                biased;
                () = self.discovery.primary_changed() => {}
                () = self.reconnect_now.notified() => backoff = Backoff::new(&self.jitter),
                () = backoff.pause(worked) => {}
            }
        }
    }

    /// Opens the connections of one [`NodeConnection`], and checks the role of the server.
    async fn open_connection(
        &self,
        target: Arc<ConnectTarget>,
        unproven_before: u32,
    ) -> Result<NodeConnection, Failure> {
        let attempt = target.attempt();
        let commands = async {
            let mut opened =
                target.connect(self.encoding().scripts(), &self.shared.runtimes, attempt).await?;
            self.discovery.check(&target, &mut opened.timed).await?;
            Ok(opened)
        };
        let channels = self.shared.namespaces.own().channels(self.process, &target.owner);
        let (commands, acks, subscriber) =
            tokio::join!(commands, target.connect_for_acks(attempt), target.try_subscribe(&channels));
        let (commands, acks) = (commands?, acks?);
        if let Err(failure) = &subscriber {
            self.report_no_subscription(self.shared.namespaces.own().name(), failure);
        }
        let acks = acks.map(|connection| {
            let (epoch, sink) = (self.shared.next_epoch(), Arc::clone(&self.sink));
            ReplicaAckConnection::new(connection, epoch, Arc::clone(&target), sink)
        });
        let mut connection =
            NodeConnection::new(commands, target, self.shared.next_epoch(), acks, subscriber.ok());
        connection.unproven_before = unproven_before;
        Ok(connection)
    }

    /// Makes a new connection the node's own.
    fn on_connected(self: &Arc<Self>, connection: &Arc<NodeConnection>) {
        self.shared.runtimes.adopt(connection.driver.downgrade());
        if connection.acks.is_some() {
            self.spawn(connection, Arc::clone(self).run_acks(Arc::clone(connection)));
        }
        self.send_waiting(connection);
        let target = &connection.target;
        telemetry::connected(&target.shown, &self.process.shown(), &target.owner);
        self.shared.cleanup.more.notify_one(); // queued cleanups can be sent now
    }

    /// Sends the waiting requests over a new connection, and makes the node ready.
    fn send_waiting(self: &Arc<Self>, connection: &Arc<NodeConnection>) {
        loop {
            let waiting = match &mut *lock(&self.state) {
                NodeState::Reconnecting(Reconnecting { waiting, .. }) if !waiting.is_empty() => {
                    // Still locked: a later barrier finds them waiting, or in a generation.
                    Some((waiting.take(), self.generations.enter()))
                }
                _ => None,
            };
            // Requests that arrive while these are sent wait behind them, so that the requests of
            // one key keep their order.
            let Some((waiting, generation)) = waiting else {
                if self.try_set_ready(connection) {
                    return;
                }
                continue;
            };
            for (requests, route_history) in waiting {
                self.send(connection, requests, route_history, &generation); // holds no lock
            }
        }
    }

    /// Makes the node ready, unless requests wait. Returns `true` if it is ready.
    fn try_set_ready(&self, connection: &Arc<NodeConnection>) -> bool {
        let mut state = lock(&self.state);
        if let NodeState::Reconnecting(Reconnecting { waiting, .. }) = &*state
            && !waiting.is_empty()
        {
            return false;
        }
        let before = std::mem::replace(&mut *state, NodeState::Ready(Arc::clone(connection)));
        drop(state);
        drop(before); // holds no lock
        true
    }

    /// Completes the requests in flight on a lost connection. New requests wait for the attempts to
    /// replace it.
    fn on_connection_lost(&self, connection: &Arc<NodeConnection>) {
        if !connection.may_await_replacement() {
            return self.set_down(&connection.failure());
        }
        self.listening.store(false, Ordering::Release);
        self.tracking.close();
        let (mut behind_barrier, mut generations) = (Vec::new(), Vec::new());
        {
            let mut state = lock(&self.state);
            if let NodeState::Ready(_) = &*state {
                *state = NodeState::reconnecting(Arc::clone(connection));
            }
            if let NodeState::Reconnecting(Reconnecting { waiting, response_timeout, .. }) = &mut *state
                && let Some(acks) = &connection.acks
            {
                let mut unsent = Vec::new();
                for (generation, request) in acks.take_unsent(|_| true) {
                    // A barrier must not wait for the next connection.
                    let to = if generation.is_ended() { &mut behind_barrier } else { &mut unsent };
                    to.push(request);
                    generations.push(generation);
                }
                waiting.push_first(unsent, boot_time(), *response_timeout);
            }
        }
        connection.in_flight.close(); // holds no lock
        self.reject(behind_barrier, &connection.failure());
        drop(generations); // holds no lock: a barrier may send requests
        if let NodeState::Reconnecting(Reconnecting { lost, .. }) = &mut *lock(&self.state) {
            *lost = None;
        }
        self.waiting_changed.notify_one();
        // The writer may be on a runtime that is blocked, and nothing watches it now.
        self.shared.wake.notify_one();
        self.sink.disconnected();
    }

    /// Completes the requests in flight and rejects the waiting ones, with `failure`.
    fn set_down(&self, failure: &Failure) {
        self.listening.store(false, Ordering::Release);
        self.tracking.close();
        let before = std::mem::replace(&mut *lock(&self.state), NodeState::Down(failure.clone()));
        match before {
            NodeState::Ready(connection) => connection.in_flight.close(), // holds no lock
            NodeState::Reconnecting(Reconnecting { mut waiting, lost, .. }) => {
                if let Some(connection) = lost {
                    connection.in_flight.close();
                }
                self.reject(waiting.take().flat_map(|(requests, _)| requests).collect(), failure);
            }
            NodeState::Down(_) => {}
        }
        self.shared.wake.notify_one(); // as when the connection is lost
        self.sink.disconnected();
    }

    /// Completes all requests. New ones are rejected until the node runs.
    pub(crate) fn end(&self) {
        let text = format!("the connection to {} is being replaced", self.discovery);
        self.set_down(&Failure::new(FailureKind::Passing, text));
    }

    /// Runs the tasks of a connection until one of them fails, and returns the failure.
    async fn serve(self: &Arc<Self>, connection: &NodeConnection, moved: bool) -> Failure {
        tokio::select! {
            biased;
            () = self.discovery.primary_changed() => {
                connection.give_up_because("is no longer the master, according to Sentinel");
            }
            () = connection.ended() => connection.give_up_ended(),
            () = connection.broken.notified() => {}
            () = self.run_subscriber(connection, moved) => {}
            () = self.check_health(connection) => {}
            () = self.run_tracking(connection) => {}
            () = connection.in_flight.run_timeouts(
                connection.target.response_timeout,
                &self.shared.runtimes,
                || self.shared.has_queued(),
            ) => {}
        }
        connection.failure()
    }

    /// Checks the connection and the role of its server: when a `PING` is due, every second if the
    /// role matters, and on a late reply.
    async fn check_health(&self, connection: &NodeConnection) {
        let mut keepalive = Keepalive::new();
        loop {
            let checks_now = connection.check_now.notified();
            if let Some(every) = self.discovery.look_every() {
                let _ = tokio::time::timeout(every, checks_now).await;
            } else if keepalive.before_ping(checks_now).await.is_none() && connection.in_flight.has_commands()
            {
                continue; // a reply is outstanding, which shows the same
            }
            let mut client = connection.timed.clone();
            let look = self.discovery.look(&connection.target, &mut client);
            match self.shared.runtimes.watch(look).await {
                Ok(()) => connection.check_answered(),
                Err(FailedCheck { failure, is_late }) => connection.unanswered(&failure, !is_late),
            }
        }
    }
}

/// Sets the node down when [`Node::run`] ends: by returning, by a panic, or with its runtime.
///
/// Otherwise requests in flight would keep their connection open, and no task would notice that
/// they are late.
struct DownOnDrop<'a>(&'a Node);

impl Drop for DownOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    use super::*;
    use crate::backend::Request;
    use crate::backend::redis::node::pipeline::RouteHistory;
    use crate::backend::redis::node::test_node::{TestNode, acquire};
    use crate::backend::redis::tests::{is_notified, within_limit};
    use crate::backend::redis::topology::discovery::Discovery;
    use crate::protocol::command::Command;

    struct SetOnDrop(Arc<AtomicBool>);

    impl Drop for SetOnDrop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    /// Returns a node that has lost its connection, with two waiting requests, and the connection.
    async fn reconnecting() -> (TestNode, Arc<NodeConnection>) {
        let test = TestNode::new(Duration::from_secs(30)).await;
        let connection = test.connection();
        let mut state = NodeState::reconnecting(Arc::clone(&connection));
        if let NodeState::Reconnecting(Reconnecting { lost, .. }) = &mut state {
            *lost = None;
        }
        *lock(&test.node.state) = state;
        for key in ["{7}a", "{8}b"] {
            test.node.take(vec![acquire(key)], RouteHistory::default());
        }
        (test, connection)
    }

    #[tokio::test]
    async fn waiting_requests_of_moved_slots_leave_before_the_barrier() {
        let (test, _connection) = reconnecting().await;
        let is_dropped = Arc::new(AtomicBool::new(false));
        let take = |slot: &str| -> Vec<_> {
            let taken = test.node.take_unwritten(|request| request.key.starts_with(slot)).into_iter();
            taken.map(|request| request.key.to_string()).collect()
        };

        assert_eq!((take("{7}"), take("{7}")), (vec!["{7}a".to_owned()], vec![]));
        test.node.drop_behind(SetOnDrop(Arc::clone(&is_dropped)));

        assert!(is_dropped.load(Ordering::SeqCst), "no request is in flight");
        assert_eq!(take("{8}"), ["{8}b"]);
        assert!(test.told().is_empty());
    }

    #[tokio::test]
    async fn a_barrier_waits_for_requests_that_are_being_sent() {
        let (test, connection) = reconnecting().await;
        connection.in_flight.close(); // completes each request when it is sent
        let (is_dropped, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (node, barrier, order) = (Arc::clone(&test.node), Arc::clone(&is_dropped), Arc::clone(&seen));
        test.on_reply(move |key, _| {
            if key == "{7}a" {
                assert!(node.take_unwritten(|_| true).is_empty());
                node.drop_behind(SetOnDrop(Arc::clone(&barrier)));
            }
            lock(&order).push((key.to_owned(), barrier.load(Ordering::SeqCst)));
        });

        test.node.send_waiting(&connection);

        assert_eq!(*lock(&seen), [("{7}a".to_owned(), false), ("{8}b".to_owned(), false)]);
        assert!(is_dropped.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn a_barrier_waits_for_a_request_that_is_sent_again() {
        let test = TestNode::new(LONG).await;
        test.set_replies("EVALSHA", "-NOSCRIPT No matching script\r\n", 1);
        let (is_dropped, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (barrier, before) = (Arc::clone(&is_dropped), Arc::clone(&seen));
        test.on_reply(move |_, _| lock(&before).push(barrier.load(Ordering::SeqCst)));

        test.node.take(vec![Request { command: Command::RELEASE, ..acquire("a") }], RouteHistory::default());
        test.node.drop_behind(SetOnDrop(Arc::clone(&is_dropped)));
        test.until_replied(1).await;

        assert_eq!((test.commands("EVALSHA").len(), test.commands("EVAL").len()), (1, 1));
        assert_eq!(*lock(&seen), [false]);
        assert!(is_dropped.load(Ordering::SeqCst));
    }

    /// Returns a node whose acquire of `written` is in flight. That of `unsent` waits for it, since
    /// replicas must acknowledge both.
    async fn with_an_unsent_request() -> TestNode {
        let mut test = TestNode::down_with(Discovery::Fixed, |settings| {
            settings.rules.replica_acks = 1;
            settings.rules.response_timeout = LONG;
        });
        test.set_reply("WAIT 1", ":1\r\n");
        test.connect().await;
        test.hold();
        test.node.take(vec![acquire("written")], RouteHistory::default());
        assert_eq!(test.asked().await, "written");
        test.node.take(vec![acquire("unsent")], RouteHistory::default());
        test
    }

    /// Otherwise they would be sent to the old primary, after later requests to the new one.
    #[tokio::test]
    async fn unsent_requests_before_a_barrier_are_refused_when_the_connection_is_lost() {
        let test = with_an_unsent_request().await;
        let is_dropped = Arc::new(AtomicBool::new(false));
        test.node.drop_behind(SetOnDrop(Arc::clone(&is_dropped)));
        assert!(!is_dropped.load(Ordering::SeqCst));

        test.resume();
        test.connection().give_up_because("has moved away");
        test.until_replied(2).await;
        while !is_dropped.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }

        let mut told = test.told();
        told.sort();
        assert_eq!(told, [("unsent".to_owned(), false), ("written".to_owned(), false)]);
        assert_eq!(test.commands("SET").len(), 1);
    }

    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn requests_wait_for_a_connection_before_they_are_rejected() {
        let test = TestNode::down_with(Discovery::Fixed, |settings| {
            settings.lazy = true;
            settings.rules.response_timeout = Duration::from_millis(20);
        });
        let node = Arc::clone(&test.node);
        let begun = boot_time();
        let rejected = async {
            test.node.take(vec![acquire("a")], RouteHistory::default());
            test.until_replied(1).await;
            test.node.take(vec![acquire("b")], RouteHistory::default());
            test.until_replied(2).await;
        };

        tokio::select! {
            () = node.reject_expired() => unreachable!("it runs forever"),
            () = rejected => {}
        }

        assert_eq!(test.told(), [("a".to_owned(), false), ("b".to_owned(), false)]);
        assert!(boot_time().since(begun) >= Duration::from_millis(2 * 18), "they wait");
    }

    #[tokio::test]
    async fn unsent_requests_leave_over_the_next_connection() {
        let test = with_an_unsent_request().await;

        test.resume();
        test.connection().give_up_because("has moved away");
        test.until_replied(2).await;

        assert_eq!(test.told(), [("written".to_owned(), false), ("unsent".to_owned(), true)]);
    }

    #[tokio::test]
    async fn a_failed_first_attempt_is_reported_and_ends_the_node() {
        let test = TestNode::down(LONG);
        test.shared.runtimes.set_own(tokio::runtime::Handle::current());
        test.set_reply("SCRIPT", "-NOAUTH Authentication required.\r\n");
        let (first, connected) = oneshot::channel();

        Arc::clone(&test.node).run(Some(first)).await;

        let failure = connected.await.expect("it tells").expect_err("the server refuses");
        assert!(failure.reason.contains("NOAUTH"), "{failure:?}");
        assert!(!test.node.is_ready() && !test.node.may_have_requests());
    }

    #[tokio::test]
    async fn a_lost_connection_is_reported_before_the_next_one() {
        let test = TestNode::new(LONG).await;
        let first = test.connection();

        first.give_up_because("has moved away");
        test.until_event("disconnected").await;
        while !test.node.is_ready() {
            tokio::task::yield_now().await;
        }

        let second = test.connection();
        assert!(second.epoch > first.epoch);
        assert_eq!((first.unproven_before, second.unproven_before), (0, 1));
    }

    #[tokio::test]
    async fn a_proven_connection_resets_the_count_of_useless_ones() {
        let test = TestNode::new(LONG).await;
        for (is_proven, unproven_before) in [(false, 1), (false, 2), (true, 0), (false, 1)] {
            let lost = test.connection();
            if is_proven {
                lost.answered();
            }
            lost.give_up_because("has moved away");
            while !test.node.is_ready() || Arc::ptr_eq(&test.connection(), &lost) {
                tokio::task::yield_now().await;
            }

            assert_eq!(test.connection().unproven_before, unproven_before);
        }
        let moved = |event: &String| event == "connected moved=true";
        assert!(!test.events().iter().any(moved), "it is the same server");
    }

    #[tokio::test]
    async fn an_ended_node_rejects_requests() {
        let mut test = TestNode::new(LONG).await;
        test.hold();
        test.node.take(vec![acquire("a")], RouteHistory::default());
        test.asked().await;

        test.stop().await;
        test.node.take(vec![acquire("b")], RouteHistory::default());

        assert_eq!(test.told(), [("a".to_owned(), false), ("b".to_owned(), false)]);
        assert!(!test.node.may_have_requests());
        assert_eq!(test.events().last().map(String::as_str), Some("disconnected"));
    }

    #[tokio::test]
    async fn a_server_that_replies_to_nothing_is_given_up_by_its_checks() {
        let test = TestNode::new(LONG).await;
        let connection = test.connection();
        test.set_reply("PING", "-LOADING Redis is loading the dataset in memory\r\n");

        connection.check_now.notify_one();
        test.until_event("disconnected").await;

        assert!(connection.failure().reason.contains("out of service"), "{:?}", connection.failure());
    }

    /// The response timeout of a server that stalls.
    const SHORT: Duration = Duration::from_secs(1);

    /// Returns a node whose role is checked every second, and its connection.
    async fn with_checked_role() -> (TestNode, Arc<NodeConnection>) {
        let mut test = TestNode::down_with(Discovery::Primary, |settings| {
            settings.rules.response_timeout = SHORT;
        });
        test.connect().await;
        let connection = test.connection();
        (test, connection)
    }

    /// Waits until the server has received the next check on the connection for commands.
    async fn until_checked(test: &TestNode) {
        let checks = test.connections("ROLE").len();
        let is_received = async {
            while test.connections("ROLE").len() == checks {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        within_limit("a check", is_received).await;
    }

    #[tokio::test]
    async fn one_late_check_does_not_end_a_connection() {
        let (test, connection) = with_checked_role().await;
        for _ in 0..2 {
            let stall = test.stall("ROLE");
            until_checked(&test).await;
            tokio::time::sleep(SHORT * 5 / 4).await;
            drop(stall);
            until_checked(&test).await; // its reply ends the row of late replies
            until_checked(&test).await;
        }
        test.node.take(vec![acquire("a")], RouteHistory::default());
        test.until_replied(1).await;

        assert_eq!(test.told(), [("a".to_owned(), true)]);
        assert!(Arc::ptr_eq(&test.connection(), &connection) && !connection.is_given_up());
    }

    #[tokio::test]
    async fn two_late_checks_in_a_row_end_a_connection() {
        let (test, connection) = with_checked_role().await;
        let _stall = test.stall("ROLE");
        until_checked(&test).await;
        let begun = Instant::now();

        test.until_event("disconnected").await;

        assert!(begun.elapsed() > SHORT * 3 / 2, "it waits for two replies");
        assert!(connection.failure().reason.ends_with("did not reply in time"), "{:?}", connection.failure());
    }

    /// Returns what becomes of a request that waits while `attempts` to connect fail after a loss.
    async fn sent_after_failed_attempts(attempts: usize, error: &str) -> bool {
        let test = TestNode::new(LONG).await;
        let scripts = test.node.encoding().scripts().len();
        test.set_replies("SCRIPT", error, attempts * scripts);

        test.connection().give_up_because("has moved away");
        test.node.take(vec![acquire("a")], RouteHistory::default());
        test.until_replied(1).await;

        test.told()[0].1
    }

    #[tokio::test]
    async fn requests_wait_for_two_attempts_to_replace_a_connection() {
        const PASSING: &str = "-LOADING Redis is loading the dataset in memory\r\n";

        assert!(sent_after_failed_attempts(0, PASSING).await);
        assert!(sent_after_failed_attempts(1, PASSING).await);
        assert!(!sent_after_failed_attempts(2, PASSING).await);
    }

    #[tokio::test]
    async fn requests_do_not_wait_after_a_lasting_failure() {
        assert!(!sent_after_failed_attempts(1, "-WRONGPASS invalid username-password pair\r\n").await);
    }

    #[tokio::test]
    async fn a_request_to_try_again_is_kept_for_the_next_pause() {
        let test = TestNode::down(LONG);

        test.node.try_again();

        assert!(is_notified(&test.node.reconnect_now));
    }

    #[tokio::test]
    async fn an_idle_connection_is_checked() {
        let mut test = TestNode::down(LONG);
        test.set_reply("SUBSCRIBE", ""); // the loss of a subscription would cause a check, too
        test.connect().await;
        let connection = test.connections("SCRIPT")[0];
        tokio::time::pause();
        let begun = tokio::time::Instant::now();
        let limit = Instant::now() + LONG; // real time, like the server's replies

        while !test.connections("PING").contains(&connection) {
            assert!(Instant::now() < limit, "it was not checked");
            std::thread::sleep(Duration::from_millis(1));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }

        assert!(begun.elapsed() > Duration::from_secs(30));
    }
}
