//! Floods in replies about records and owners. Replies about records may be longer than those of
//! locks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dlock_runtime::Error;
use dlock_runtime::idempotent::IdempotentRecord;
use dlock_runtime::scheduled::Schedule;
use dlock_tests::{Answer, Request, within};
use futures_util::future::join_all;
use tokio::task::JoinSet;

use super::topology::{DESCRIPTIONS, has_the_reason};
use super::{LONG, alone, assert_bounded, connect, reported, server};

/// Asserts that a call has failed, and that a flood is the reason.
fn assert_flooded<T: std::fmt::Debug>(outcome: &Result<T, Error>, flood: &str) {
    let Err(Error::Unavailable { reason, .. }) = outcome else { panic!("{flood}: {outcome:?}") };
    assert!(has_the_reason(reason), "{flood}: {reason}");
}

#[tokio::test]
async fn a_flood_in_a_reply_about_a_record_starts_no_body() {
    let _alone = alone().await;
    let schedule = Schedule::every(Duration::from_secs(3_600)).expect("a valid period");
    for (first, again) in DESCRIPTIONS {
        let server = server(move |request| {
            matches!(request.name(), "EVAL" | "EVALSHA").then_some(Answer::Flood(first, again))
        });
        let manager = connect(&server.url()).await.expect("the handshake succeeds");

        let (called, ran) = assert_bounded(first, async {
            let (call, job) = (manager.idempotent("charge:7"), manager.job("report"));
            let called = call.run_attached(async |_| -> Result<(), Error> { panic!("a body starts") });
            let called = within(LONG, "the call", called).await.map(drop);
            let ran = job.run(&schedule, async |_| -> Result<(), Error> { panic!("a body starts") });
            (called, within(LONG, "the job", ran).await)
        })
        .await;

        assert_flooded(&called, first);
        assert_flooded(&ran, first);
        reported(server.port(), "dlock.disconnected", "sent").await;
    }
}

/// Each reply is within its limits. The replies of one pipeline are kept until it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_bounded_if_all_replies_are_as_long_as_allowed() {
    let _alone = alone().await;
    let text = vec![b'a'; (4 << 20) - 64];
    let reply = [format!("${}\r\n", text.len()).as_bytes(), &text, b"\r\n"].concat();
    let server = server(move |request| {
        matches!(request.name(), "EVAL" | "EVALSHA" | "SET").then(|| Answer::Raw(reply.clone()))
    });
    let url = format!("{}?response_timeout=20s&tracking=off", server.url());
    let manager = connect(&url).await.expect("the handshake succeeds");

    let outcomes = assert_bounded("long replies", async {
        let calls = (0..18).map(|number| {
            let call = manager.idempotent(format!("charge:{number}"));
            let body = async |_: IdempotentRecord| -> Result<(), Error> { panic!("a body starts") };
            tokio::spawn(async move { call.run_attached(body).await.map(drop) })
        });
        let called = within(LONG, "the calls", join_all(calls)).await;
        // Locks use the same connection.
        let locks = (0..64).map(|number| {
            let lock = manager.lock(format!("order:{number}")).retry(0);
            tokio::spawn(async move { lock.acquire().await.map(drop) })
        });
        called.into_iter().chain(within(LONG, "the locks", join_all(locks)).await)
    })
    .await;

    for outcome in outcomes {
        assert!(outcome.expect("no body starts").is_err());
    }
}

/// Calls that wait for the connection are sent together, but their replies are not kept together.
#[tokio::test]
async fn a_long_reply_is_kept_until_the_next_one_at_most() {
    let _alone = alone().await;
    let (are_waiting, replies) = (Arc::new(OnceLock::new()), AtomicUsize::new(0));
    let may_connect = Arc::clone(&are_waiting);
    let server = server(move |request| {
        may_connect.wait();
        let is_call = matches!(request.name(), "EVAL" | "EVALSHA");
        is_call.then(|| match replies.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => Answer::Raw(b"$1\r\na\r\n".to_vec()),
            _ => Answer::Silence,
        })
    });
    let url = format!("{}?connect=lazy&response_timeout=20s&tracking=off", server.url());
    let manager = connect(&url).await.expect("it waits for no server");
    let mut calls = JoinSet::new();
    for number in 0..18 {
        let call = manager.idempotent(format!("charge:{number}"));
        let body = async |_: IdempotentRecord| -> Result<(), Error> { panic!("a body starts") };
        calls.spawn(async move { call.run_attached(body).await.map(drop) });
    }
    tokio::task::yield_now().await; // each call is polled once
    are_waiting.set(()).expect("they wait");

    for _ in 0..2 {
        let called = within(Duration::from_secs(10), "a call that has its reply", calls.join_next()).await;
        assert!(called.expect("it was spawned").expect("no body starts").is_err());
    }
}

/// The reply to the request for a result may be lost, but not the result.
#[tokio::test]
async fn a_flood_in_the_reply_to_an_end_does_not_hide_the_value() {
    let _alone = alone().await;
    let (first, again) = DESCRIPTIONS[0];
    // Of the scripts of a record, only `begin` has a crash policy.
    let is_begin = |request: &Request| (5..12).any(|position| request.word(position) == "fail");
    let server = server(move |request| match request.name() {
        "EVAL" | "EVALSHA" if is_begin(request) => Some(Answer::Raw(b"*2\r\n:1\r\n:1\r\n".to_vec())),
        "EVAL" | "EVALSHA" => Some(Answer::Flood(first, again)),
        _ => None,
    });
    let manager = connect(&server.url()).await.expect("the handshake succeeds");

    let ran = assert_bounded(first, async {
        let call = manager.idempotent("charge:7");
        within(LONG, "the call", call.run_attached(async |_| Ok::<_, Error>(7))).await
    })
    .await;

    assert_eq!(ran.expect("the caller gets its value").into_value(), 7);
}
