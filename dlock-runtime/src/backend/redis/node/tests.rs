//! A node over a server of the test: requests that are sent while a connection is used, is blocked,
//! or is given up.

use tokio::runtime::Builder;

use super::*;
use crate::backend::redis::node::test_node::{TestNode, acquire};
use crate::backend::redis::tests::resp::bulk;
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::backend::tests::test_operation::TestOperation;
use crate::layout::Layout;

const LONG: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_given_up_connection_completes_each_request_once() {
    let mut test = TestNode::new(LONG).await;
    test.hold();
    let connection = test.connection();

    test.node.take(vec![acquire("a")], RouteHistory::default());
    test.stop().await;
    PipelineBatch::new(
        &test.node,
        &connection,
        ConnectionKind::Commands,
        [acquire("b")],
        RouteHistory::default(),
        test.node.generations.enter(),
    )
    .send();

    assert_eq!(test.told(), [("a".to_owned(), false), ("b".to_owned(), false)]);
    assert!(connection.in_flight.check_idle());
}

/// A late reply to an earlier question comes before the reply to the next one.
#[tokio::test]
async fn late_descriptions_do_not_end_the_connection() {
    let test = TestNode::new(Duration::from_secs(1)).await;
    test.set_reply("INFO", &bulk(&"a".repeat(100_000)));
    let (stalled, epoch) = (test.stall("INFO"), test.connection().epoch);
    let mut question = Pipeline::new();
    question.cmd("INFO");

    for _ in 0..2 {
        assert!(test.node.ask(&question).await.is_err(), "there is no reply");
    }
    drop(stalled);
    let answered = test.node.ask(&question).await;

    assert!(answered.is_ok(), "{answered:?}");
    assert_eq!(test.connection().epoch, epoch);
}

#[test]
fn requests_leave_while_the_connections_runtime_is_blocked() {
    let runtime = || Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    let of_connection = runtime();
    let mut test = of_connection.block_on(TestNode::new(LONG));

    for key in ["a", "b"] {
        test.node.take(vec![acquire(key)], RouteHistory::default());

        assert_eq!(runtime().block_on(test.asked()), key);
    }
}

#[tokio::test]
async fn a_completion_can_send_another_request() {
    let test = TestNode::new(LONG).await;
    let node = Arc::downgrade(&test.node);
    test.on_reply(move |key, _| {
        let next = key.parse::<u32>().expect("the keys are numbers") + 1;
        if let Some(node) = node.upgrade().filter(|_| next < 1_000) {
            node.take(vec![acquire(&next.to_string())], RouteHistory::default());
        }
    });

    test.node.take(vec![acquire("0")], RouteHistory::default());
    test.until_replied(1_000).await;

    assert!(test.told().iter().all(|(_, is_ours)| *is_ours));
}

#[tokio::test]
async fn many_renewals_do_not_count_as_load() {
    let test = TestNode::new(LONG).await;
    let renewal = |key| Request { command: Command::Renew { lease: LONG }, ..acquire(key) };

    test.node.take(vec![renewal("a"), renewal("b")], RouteHistory::default());
    test.until_replied(2).await;
    assert_eq!(test.node.traffic(), LoadHint::Idle);

    test.node.take(vec![acquire("a"), acquire("b")], RouteHistory::default());
    test.until_replied(4).await;
    assert_eq!(test.node.traffic(), LoadHint::Busy);
}

#[tokio::test]
async fn a_connection_survives_a_panic_in_a_completion() {
    let test = TestNode::new(LONG).await;
    test.on_reply(|key, _| assert_ne!(key, "a", "this panic is part of the test"));

    test.node.take(vec![acquire("a")], RouteHistory::default());
    test.node.take(vec![acquire("b")], RouteHistory::default());
    test.until_replied(2).await;

    assert_eq!(test.told(), [("a".to_owned(), true), ("b".to_owned(), true)]);
    assert_eq!(test.node.traffic(), LoadHint::Idle, "nothing is in flight");
}

/// Returns the command of the request as it is sent.
fn sent(node: &Node, command: Command, key: &str) -> Command {
    node.drop_requests_without_subscription(Request { command, ..acquire(key) }).command
}

fn enqueue(mode: EnqueueMode) -> Command {
    Command::Enqueue { lease: LONG, mode }
}

#[test]
fn messages_are_received_about_subscribed_namespaces_only() {
    let test = TestNode::down(LONG);
    let node = &test.node;
    test.shared.namespaces.add("shop");
    test.shared.namespaces.add("");
    let is_received = || ["dlock:7", "shop:7", "7", "dlocks:7"].map(|key| node.receives_messages_about(key));
    lock(&node.subscribed).extend(["dlock", ""].map(Arc::from));
    assert!(!node.is_listening());
    assert_eq!(is_received(), [false; 4], "there is no connection");

    node.listening.store(true, Ordering::Release);

    assert_eq!(is_received(), [true, false, true, true]);
    lock(&node.subscribed).insert("shop".into());
    assert_eq!(is_received(), [true; 4]);
}

#[test]
fn a_key_of_an_unknown_namespace_is_not_in_the_managers_own() {
    let test = TestNode::down(LONG);
    lock(&test.node.subscribed).insert("dlock".into());
    test.node.listening.store(true, Ordering::Release);

    let is_received =
        ["dlock:7", "shop:7", "dlocks:7", "dlock"].map(|key| test.node.receives_messages_about(key));

    assert_eq!(is_received, [true, false, false, false]);
}

#[test]
fn a_channel_per_key_needs_no_subscribed_namespace() {
    let test = TestNode::down_with(Discovery::Fixed, |settings| settings.layout = Layout::Redisson);
    assert!(!test.node.receives_messages_about("dlock:7"));

    test.node.listening.store(true, Ordering::Release);

    assert!(test.node.receives_messages_about("dlock:7"));
}

#[test]
fn a_waiter_that_receives_no_grants_does_not_queue() {
    let test = TestNode::down(LONG);
    let (join, recheck) = (enqueue(EnqueueMode::Join), enqueue(EnqueueMode::Recheck));

    assert_eq!(sent(&test.node, join, "dlock:7"), enqueue(EnqueueMode::TryOnly));
    assert_eq!(sent(&test.node, recheck, "dlock:7"), recheck);
    test.node.listening.store(true, Ordering::Release);
    lock(&test.node.subscribed).insert("dlock".into());

    assert_eq!(sent(&test.node, join, "dlock:7"), join);
    assert_eq!(sent(&test.node, join, "shop:7"), enqueue(EnqueueMode::TryOnly));
}

#[test]
fn a_lock_is_foreign_if_a_waiter_cannot_queue() {
    let native = TestNode::down(LONG);
    let redisson = TestNode::down_with(Discovery::Fixed, |settings| settings.layout = Layout::Redisson);
    let (join, not_queued) = (enqueue(EnqueueMode::Join), Reply::NotQueued { ttl: None });

    assert!(native.node.is_foreign_lock(join, &not_queued));
    assert!(!native.node.is_foreign_lock(enqueue(EnqueueMode::TryOnly), &not_queued));
    assert!(!native.node.is_foreign_lock(join, &Reply::Queued { ttl: None }));
    assert!(!redisson.node.is_foreign_lock(join, &not_queued), "its channel announces the release");
}

#[test]
fn a_request_that_cannot_be_sent_may_succeed_later() {
    let test = TestNode::down(LONG);
    let failure = Failure::new(FailureKind::Lasting, "the password is wrong").with_connection_lost();
    *lock(&test.node.state) = NodeState::Down(failure);
    let failures = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&failures);
    test.on_reply(move |_, reply| {
        if let Reply::Refused(failure) = reply {
            lock(&log).push((failure.kind, failure.connection_lost, failure.reason.to_string()));
        }
    });

    test.node.take(vec![acquire("a")], RouteHistory::default());
    test.node.take(Vec::new(), RouteHistory::default());

    let expected = (FailureKind::Passing, false, "the password is wrong".to_owned());
    assert_eq!(*lock(&failures), [expected]);
}

#[test]
fn requests_wait_for_a_first_connection() {
    for (discovery, is_lazy, waits) in [
        (Discovery::Fixed as fn(Arc<ConnectTarget>) -> Discovery, true, true),
        (Discovery::Fixed, false, false),
        (Discovery::Primary, true, true),
        (Discovery::Primary, false, true),
    ] {
        let test = TestNode::down_with(discovery, |settings| settings.lazy = is_lazy);

        assert_eq!(test.node.may_have_requests(), waits);
        test.node.take(vec![acquire("a")], RouteHistory::default());

        assert!(!test.node.is_ready());
        assert_eq!(test.told().is_empty(), waits);
    }
}

#[tokio::test]
async fn requests_after_a_loss_wait_for_the_next_connection() {
    let test = TestNode::new(LONG).await;
    assert!(test.node.is_ready() && test.node.may_have_requests());

    test.connection().give_up_because("has moved away");
    test.node.take(vec![acquire("a")], RouteHistory::default());

    assert!(!test.node.is_ready() && test.node.may_have_requests());
    assert!(test.told().is_empty());
    test.until_replied(1).await;
    assert_eq!(test.told(), [("a".to_owned(), true)]);
}

#[tokio::test]
async fn requests_after_many_useless_connections_are_rejected() {
    let test = TestNode::new(LONG).await;
    let node = &test.node;
    let useless = node
        .discovery
        .find(|target| async move {
            let opened =
                target.connect(node.encoding().scripts(), &node.shared.runtimes, target.attempt()).await?;
            let mut connection = NodeConnection::new(opened, target, 9, None, None);
            connection.unproven_before = u32::MAX;
            Ok(connection)
        })
        .await;
    let useless = Arc::new(useless.expect("the server takes connections"));
    useless.give_up_because("is of no use");
    *lock(&node.state) = NodeState::Ready(useless);

    node.take(vec![acquire("a")], RouteHistory::default());

    assert_eq!(test.told(), [("a".to_owned(), false)]);
}

#[tokio::test]
async fn connections_that_replies_may_overfill_get_shorter_pipelines() {
    let test = TestNode::new(LONG).await;
    let connection = test.connection();
    let call = |has_large_reply| {
        let operation = TestOperation { has_large_reply, ..TestOperation::default() };
        Arc::new(operation).request("a")
    };

    assert_eq!(longest_batch(&connection, &[acquire("a"), call(false)]), 100);
    assert_eq!(longest_batch(&connection, &[acquire("a"), call(true)]), 2);
    connection.untimed.inbound().allow_large_replies();
    assert_eq!(longest_batch(&connection, &[acquire("a"), call(false)]), 4);
    assert_eq!(longest_batch(&connection, &[call(true)]), 2);
}

#[tokio::test]
async fn load_is_known_only_of_a_connection_that_any_thread_may_use() {
    let mut test = TestNode::down_with(Discovery::Fixed, |settings| settings.layout = Layout::Redisson);
    assert_eq!(test.node.under_way(), LoadHint::DriverOnly);

    test.connect().await;

    assert_eq!(test.node.under_way(), LoadHint::Idle);
    assert_eq!(test.node.traffic(), LoadHint::DriverOnly, "the driver orders subscriptions");
}

#[tokio::test]
async fn a_query_returns_the_replies_of_the_server() {
    let test = TestNode::new(LONG).await;
    test.set_reply("ROLE", ":7\r\n");
    let mut question = Pipeline::new();
    question.cmd("PING").cmd("ROLE");

    let replies = test.node.ask(&question).await.expect("the server replies");

    assert_eq!(replies, [Value::SimpleString("PONG".to_owned()), Value::Int(7)]);
}
