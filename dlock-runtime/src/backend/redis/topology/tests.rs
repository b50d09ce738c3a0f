//! Tests of [`Topology`].

use super::*;
use crate::backend::redis::node::test_node::{TestNode, acquire};
use crate::protocol::command::Command;

const LONG: Duration = Duration::from_secs(20);

#[tokio::test]
async fn withdrawals_are_queued_once_the_server_is_connected() {
    let orphaned = || {
        let request = acquire("k");
        (vec![(request.key, request.token)], Some(1))
    };
    let (down, ready) = (TestNode::down(LONG), TestNode::new(LONG).await);
    for test in [&down, &ready] {
        let topology = Topology::One(Arc::clone(&test.node));
        assert_eq!(topology.clean_up(&test.shared, LONG), LONG, "there is nothing to clean up");
        let (tokens, epoch) = orphaned();
        test.shared.cleanup.add(tokens, epoch);
    }

    assert_eq!(Topology::One(Arc::clone(&down.node)).clean_up(&down.shared, LONG), LONG);
    assert!(!down.shared.has_queued());
    Topology::One(Arc::clone(&ready.node)).clean_up(&ready.shared, LONG);

    let queued: Vec<_> = ready.shared.take().iter().map(|request| request.command).collect();
    assert_eq!(queued, [Command::Withdraw]);
}

#[tokio::test]
async fn a_writer_that_is_blocked_is_noticed() {
    let test = TestNode::new(LONG).await;
    let blocked = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    {
        let _entered = blocked.enter();
        test.shared.runtimes.set_callers();
    }
    test.shared.push(acquire("k"));

    Topology::One(Arc::clone(&test.node)).watch_writer();

    let left = test.shared.runtimes.has_left_callers.notified();
    tokio::time::timeout(LONG, left).await.expect("the writer is blocked");
    blocked.shutdown_background();
}

#[tokio::test]
async fn a_server_is_connected_and_receives_requests() {
    let mut test = TestNode::down(LONG);
    test.shared.runtimes.set_own(tokio::runtime::Handle::current());
    let topology = Topology::One(Arc::clone(&test.node));
    let (first, connected) = oneshot::channel::<Result<(), Failure>>();
    let asked = async {
        connected.await.expect("it tells").expect("the server takes connections");
        assert_eq!(topology.traffic(&test.shared), LoadHint::Idle);
        topology.take(vec![acquire("k")]);
        test.asked().await
    };

    tokio::select! {
        ended = topology.run(Some(first)) => panic!("it runs forever: {ended:?}"),
        asked = tokio::time::timeout(LONG, asked) => assert_eq!(asked.as_deref(), Ok("k")),
    }
}
