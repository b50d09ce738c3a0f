//! A node over a server of the test: requests that are sent while a connection is used, is blocked,
//! or is given up.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;

use crate::backend::Request;
use crate::backend::redis::node::pipeline::{ConnectionKind, PipelineBatch, RouteHistory};
use crate::backend::redis::node::test_node::{TestNode, acquire};
use crate::backend::redis::topology::LoadHint;
use crate::protocol::command::Command;

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
    )
    .send();

    assert_eq!(test.told(), [("a".to_owned(), false), ("b".to_owned(), false)]);
    assert!(connection.in_flight.check_idle());
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
