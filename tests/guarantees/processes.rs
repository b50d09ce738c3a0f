//! Liveness with real processes that are killed, wait, and hand off.

use std::process::Command;
use std::time::Duration;

use dlock_tests::{Moment, RedisServer, Worker};

use super::{LEASE, LONG, WORKER, manager_of, until_waiting};

#[tokio::test]
async fn the_lock_of_a_killed_process_is_free_within_its_lease() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let mut holder = Worker::spawn(WORKER, &[server.url()]).await;
    holder.send("acquire order:7 1000 0");
    holder.event("acquired", "order:7").await;
    let lock = manager.lock("order:7").lease(LONG).wait(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until_waiting(&server, "order:7", 1).await;

    holder.kill();
    let killed = Moment::now();
    let granted = waiter.await.expect("the waiter does not panic");
    let took = killed.elapsed();

    assert!(granted.is_ok(), "{granted:?}");
    assert!(took < LEASE + Duration::from_millis(250), "{took:?}");
}

#[tokio::test]
async fn a_killed_waiter_does_not_hold_up_those_behind_it() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let held = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let mut dead = Worker::spawn(WORKER, &[server.url()]).await;
    let mut alive = Worker::spawn(WORKER, &[server.url()]).await;
    dead.send("acquire order:7 30000 30000");
    until_waiting(&server, "order:7", 1).await;
    alive.send("acquire order:7 30000 30000");
    until_waiting(&server, "order:7", 2).await;
    dead.kill();

    let released = Moment::now();
    held.release().await.expect("it was held");
    let granted = alive.event("acquired", "order:7").await;

    // The server may not have detected that the killed process's connection is closed. Then its
    // grant lease of 1 s is the bound.
    assert!(granted.at < released + Duration::from_millis(1_250), "{:?}", granted.at.since(released));
}

#[tokio::test]
async fn a_release_reaches_the_next_process_within_five_milliseconds() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let mut next = Worker::spawn(WORKER, &[server.url()]).await;
    let mut took = Vec::new();

    for _ in 0..50 {
        let held =
            manager.lock("order:7").lease(LONG).wait(LONG).acquire().await.expect("the lock is granted");
        next.send("acquire order:7 30000 30000");
        until_waiting(&server, "order:7", 1).await;
        let released = Moment::now();
        held.release().await.expect("it was held");
        took.push(next.event("acquired", "order:7").await.at.since(released));
        next.send("release order:7");
        next.event("released", "order:7").await;
    }

    took.sort();
    assert!(took[25] < Duration::from_millis(5), "median of {took:?}");
    assert!(took[49] < Duration::from_millis(250), "longest of {took:?}");
}

#[tokio::test]
async fn alternating_processes_get_rising_fencing_tokens() {
    let server = RedisServer::start();
    let mut workers =
        [Worker::spawn(WORKER, &[server.url()]).await, Worker::spawn(WORKER, &[server.url()]).await];
    let mut tokens = Vec::new();

    for round in 0..6 {
        let worker = &mut workers[round % 2];
        worker.send("acquire order:7 30000 30000");
        worker.event("acquired", "order:7").await;
        worker.send("token order:7");
        let token = worker.event("token", "order:7").await.detail;
        tokens.push(token.parse::<u64>().expect("a token is a number"));
        worker.send("release order:7");
        worker.event("released", "order:7").await;
    }

    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}

#[test]
fn the_worker_ends_with_its_input() {
    let server = RedisServer::start();

    // Standard input is empty and ends immediately.
    let mut command = Command::new(WORKER);
    let output = command.arg(server.url()).stdin(std::process::Stdio::null()).output();

    assert!(output.is_ok_and(|output| output.status.success()));
}
