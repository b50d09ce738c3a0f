//! The cost of a call, in commands.

use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::resp::Reply;
use dlock_tests::{Moment, RedisServer, until, within};

use super::{LONG, PausedBody, Runs, server};

/// Returns the number of scripts that clients have sent.
fn scripts(server: &RedisServer) -> u64 {
    server.command_count("eval") + server.command_count("evalsha")
}

async fn manager(server: &RedisServer) -> LockManager {
    // No check while calls wait.
    LockManager::connect(&server.url_with("?grant_lease=60s")).await.expect("the server takes managers")
}

#[tokio::test]
async fn a_first_call_costs_two_commands_and_a_replay_one() {
    let server = server();
    let (manager, runs) = (manager(&server).await, Runs::default());
    for key in ["cold", "warm"] {
        let before = scripts(&server);
        runs.run(&manager.idempotent(key)).await.expect("it runs");
        assert_eq!(scripts(&server) - before, 2, "{key}");

        runs.run(&manager.idempotent(key)).await.expect("it is replayed");
        assert_eq!(scripts(&server) - before, 3, "{key}");
    }
}

#[tokio::test]
async fn a_thousand_duplicates_of_a_process_cost_two_commands() {
    let server = server();
    // On a busy machine too, the duplicates end before their first check, at half a `grant_lease`.
    let two = LockManager::connect(&server.url_with("?grant_lease=10s")).await.expect("it connects");
    let one = manager(&server).await;
    let paused = PausedBody::default();
    let call = one.idempotent("k");
    let first = call.run_attached(async |_| paused.run().await);
    let others = async {
        paused.begun().await;
        let before = scripts(&server);
        let call = two.idempotent("k").wait(LONG);
        let duplicates = (0..1_000).map(|_| {
            let call = call.clone();
            tokio::spawn(async move { call.run(async |_| Ok::<_, Error>(8)).await })
        });
        let duplicates: Vec<_> = duplicates.collect();
        until("a duplicate asks", async || scripts(&server) > before).await;
        paused.end();
        for duplicate in duplicates {
            let outcome = within(LONG, "a duplicate", duplicate).await.expect("it does not panic");
            assert_eq!(*outcome.expect("it is replayed").value(), 7);
        }
        before
    };
    let (_, before) = tokio::join!(first, others);

    assert_eq!(scripts(&server) - before, 3, "two of the duplicates, and the end of the first call");
}

/// The rule: two commands together, and one check per half `grant_lease` while they wait.
#[tokio::test]
async fn a_thousand_waiting_duplicates_check_as_often_as_one() {
    const GRANT_LEASE: Duration = Duration::from_millis(300);
    let server = server();
    let two = LockManager::connect(&server.url_with("?grant_lease=300ms")).await.expect("it connects");
    let one = manager(&server).await;
    let paused = PausedBody::default();
    let call = one.idempotent("k");
    let first = call.run_attached(async |_| paused.run().await);
    let others = async {
        paused.begun().await;
        let (start, before) = (Moment::now(), scripts(&server));
        let call = two.idempotent("k").wait(LONG);
        let calls = (0..1_000).map(|_| call.run(async |_| Ok::<_, Error>(8)));
        let leaves = async {
            until("four checks", async || scripts(&server) - before >= 5).await;
            paused.end();
        };
        let (outcomes, ()) = tokio::join!(futures_util::future::join_all(calls), leaves);
        (outcomes, start.elapsed(), before)
    };
    let (_, (outcomes, waited, before)) = tokio::join!(first, others);

    assert!(outcomes.into_iter().all(|outcome| outcome.is_ok_and(|outcome| *outcome.value() == 7)));
    let end_of_the_first_call = 1;
    let asked = scripts(&server) - before - end_of_the_first_call;
    let checks = waited.as_millis() / (GRANT_LEASE / 2).as_millis();
    let most = 2 + u64::try_from(checks).expect("it is short");
    assert!((5..=most).contains(&asked), "{asked} questions in {waited:?}, of at most {most}");
}

#[tokio::test]
async fn duplicates_of_a_local_call_cost_nothing() {
    let server = server();
    let (manager, runs) = (manager(&server).await, Runs::default());
    let before = scripts(&server);
    let call = manager.idempotent("k").wait(LONG);

    let calls = (0..1_000).map(|_| runs.run(&call));
    let outcomes = futures_util::future::join_all(calls).await;

    assert!(outcomes.into_iter().all(|outcome| outcome.is_ok_and(|(value, _)| value == 1)));
    assert_eq!((runs.count(), scripts(&server) - before), (1, 2));
}

#[tokio::test]
async fn forged_messages_cause_a_bounded_rate_of_questions() {
    let server = server();
    let (one, two) = (manager(&server).await, manager(&server).await);
    let paused = PausedBody::default();
    let call = one.idempotent("k");
    let first = call.run_attached(async |_| paused.run().await);
    let waiting = two.idempotent("k").wait(LONG);
    let flood = async {
        let before = scripts(&server);
        until("a duplicate asks", async || scripts(&server) > before).await;
        let Reply::List(channels) = server.call(&["PUBSUB", "CHANNELS", "dlock:grant:*"]) else {
            panic!("channels are a list")
        };
        let (start, before) = (Moment::now(), scripts(&server));
        let mut messages = 0;
        while start.elapsed() < Duration::from_millis(300) {
            for channel in channels.iter().filter_map(Reply::text) {
                server.call(&["PUBLISH", channel, "changed|dlock:k##idem"]);
                messages += 1;
            }
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        let (took, asked) = (start.elapsed(), scripts(&server) - before);
        paused.end();
        (took, asked, messages)
    };
    let others = async {
        paused.begun().await; // otherwise, the other call could be the first
        // The flood reads its first count before the duplicate asks.
        let (flooded, again) = tokio::join!(flood, waiting.run(async |_| Ok::<_, Error>(8)));
        (again, flooded)
    };
    let (_, (again, (took, asked, messages))) = tokio::join!(first, others);

    assert_eq!(again.expect("it is replayed").into_value(), 7);
    let most = u64::try_from(took.as_millis()).expect("it is short") / 5 + 2;
    assert!((1..=most).contains(&asked), "{messages} messages in {took:?} cause {asked} questions");
}
