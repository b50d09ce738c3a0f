//! Leaders in processes that are frozen, killed, or shut down.

use std::time::Duration;

use dlock_runtime::{LockManager, Term};
use dlock_tests::guarded::Guarded;
use dlock_tests::process::WorkerEvent;
use dlock_tests::{Moment, RedisServer, Worker, until, within};
use tokio::sync::mpsc;

use super::{LONG, terms_of_a_run};

const WORKER: &str = env!("CARGO_BIN_EXE_lock-worker");
const LEASE: Duration = Duration::from_millis(500);

/// Waits until a candidate is in the queue of the lock.
async fn until_a_candidate_waits(manager: &LockManager) {
    let lock = async || manager.inspect("leader:indexer").await.expect("the server");
    until("a candidate waits", async || lock().await.is_some_and(|lock| lock.waiters() > 0)).await;
}

#[tokio::test]
async fn the_body_of_a_frozen_leader_is_not_polled_again() {
    let (server, resource) = (RedisServer::start(), RedisServer::start());
    let guarded = Guarded::connect(resource.port(), "leader").await.expect("a server");
    let (mut old, mut new) =
        (Worker::spawn(WORKER, &[server.url()]).await, Worker::spawn(WORKER, &[server.url()]).await);
    old.send("lead indexer 500");
    let of_old: u64 = old.event("leading", "indexer").await.detail.parse().expect("a number");
    guarded.write("index", of_old).await.expect("it is up");
    new.send("lead indexer 500");

    old.pause();
    let leads = new.event("leading", "indexer").await;
    let of_new: u64 = leads.detail.parse().expect("a number");
    assert!(guarded.write("index", of_new).await.expect("it is up").accepted);
    tokio::time::sleep(3 * LEASE).await;
    old.resume();

    let last_poll: u64 = old.event("deposed", "indexer").await.detail.parse().expect("a time");
    assert!(last_poll <= leads.at.nanos(), "it was polled after its successor began");
    assert!(of_new > of_old, "{of_new} after {of_old}");
    // A write of the poll during which it was frozen arrives now.
    assert!(!guarded.write("index", of_old).await.expect("it is up").accepted);
}

/// Returns until when a killed leader certainly led, and the number of its last term.
///
/// That is until `alive`, shortly before it was killed, unless it had lost its lease before, on a
/// busy machine, and reported that.
fn end_of_leader(events: &[WorkerEvent], alive: Moment, first: &WorkerEvent) -> (Moment, u64) {
    let number = |event: &WorkerEvent| event.detail.parse::<u64>().expect("a number");
    let last_term = events.iter().rfind(|event| event.name == "leading").unwrap_or(first);
    let led_until = match events.last() {
        Some(event) if event.name == "deposed" => Moment::from_nanos(number(event)),
        _ => alive,
    };
    (led_until, number(last_term))
}

#[tokio::test]
async fn killed_leaders_never_leave_two_valid_terms() {
    let server = RedisServer::start();
    let mut leader = Worker::spawn(WORKER, &[server.url()]).await;
    leader.send("lead indexer 200");
    let mut last = leader.event("leading", "indexer").await;

    for _ in 0..terms_of_a_run(10) {
        let mut next = Worker::spawn(WORKER, &[server.url()]).await;
        next.send("lead indexer 200");
        let alive = Moment::now();
        leader.kill();
        let killed = Moment::now();
        let leads = next.event("leading", "indexer").await;

        let of_old = leader.last_events().await;
        let (led_until, before) = end_of_leader(&of_old, alive, &last);
        let after: u64 = leads.detail.parse().expect("a number");
        assert!(after > before, "term {after} follows {before}");
        assert!(leads.at >= led_until, "two leaders: {leads:?}, {of_old:?}, {last:?}");
        assert!(leads.at.since(killed) < Duration::from_millis(1_450), "{:?}", leads.at.since(killed));
        (leader, last) = (next, leads);
    }
}

#[tokio::test]
async fn a_shutdown_hands_off_within_ten_milliseconds() {
    let server = RedisServer::start();
    let connect = async || LockManager::connect(&server.url()).await.expect("the server takes managers");
    let (send, mut leads) = mpsc::unbounded_channel();
    let candidate = |manager: LockManager| {
        let send = send.clone();
        tokio::spawn(async move {
            let body = async |_: Term| {
                let _ = send.send(Moment::now());
                std::future::pending::<()>().await;
            };
            manager.leader("indexer").lead(body).await
        })
    };
    let mut leader = connect().await;
    candidate(leader.clone());
    within(LONG, "the first term", leads.recv()).await.expect("it leads");
    let mut took = Vec::new();

    for _ in 0..terms_of_a_run(20) {
        let next = connect().await;
        candidate(next.clone());
        until_a_candidate_waits(&next).await;
        let resigned = Moment::now();
        let stopped = tokio::spawn(async move { leader.shutdown(LONG).await });
        let at = within(LONG, "the next term", leads.recv()).await.expect("it leads");
        took.push(at.since(resigned));
        stopped.await.expect("no panic");
        leader = next;
    }

    took.sort();
    let median = took[took.len() / 2];
    println!("leader: {} hand-offs, median {median:?}, max {:?}", took.len(), took[took.len() - 1]);
    assert!(median < Duration::from_millis(10), "{took:?}");
}

/// A rolling deployment: each process gets SIGTERM, and shuts its manager down.
#[tokio::test]
async fn a_leader_that_gets_sigterm_hands_off_and_ends() {
    let server = RedisServer::start();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let lead = "lead indexer 10000";
    let mut leader = Worker::spawn(WORKER, &[server.url()]).await;
    leader.send(lead);
    let mut last = leader.event("leading", "indexer").await;
    let mut took = Vec::new();

    for _ in 0..terms_of_a_run(5) {
        let mut next = Worker::spawn(WORKER, &[server.url()]).await;
        next.send(lead);
        until_a_candidate_waits(&manager).await;
        let terminated = Moment::now();
        leader.terminate();
        let leads = next.event("leading", "indexer").await;
        took.push(leads.at.since(terminated));

        let last_poll: u64 = leader.event("deposed", "indexer").await.detail.parse().expect("a time");
        leader.event("left", "indexer").await;
        leader.event("shutdown", "-").await;
        until("the process ends", async || leader.has_ended()).await;
        assert!(last_poll <= leads.at.nanos(), "two leaders");
        let number = |event: &WorkerEvent| event.detail.parse::<u64>().expect("a number");
        assert!(number(&leads) > number(&last), "{leads:?} after {last:?}");
        (leader, last) = (next, leads);
    }

    took.sort();
    println!("leader: {} hand-offs after SIGTERM, median {:?}", took.len(), took[took.len() / 2]);
    // The signal, a release, and a message: far below the lease of 10 s.
    assert!(took[took.len() / 2] < Duration::from_millis(100), "{took:?}");
}
