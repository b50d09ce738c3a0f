//! Processes that are killed in the body.

use std::process::Command;
use std::time::Duration;

use dlock_tests::{Moment, Worker};

use super::redis;

const WORKER: &str = env!("CARGO_BIN_EXE_lock-worker");
const LEASE: Duration = Duration::from_secs(1);

/// Starts a run in a process and kills it, while another process has a runner, which leaves out the
/// jobs `off`. Returns the attempt that started, and that of the runner within three leases, with
/// its time since the kill.
async fn after_a_kill(on_crash: &str, off: &str) -> (String, Option<(String, Duration)>) {
    let server = redis();
    let mut dead = Worker::spawn(WORKER, &[server.url()]).await;
    let mut alive = Worker::spawn_as(Command::new(WORKER).arg(server.url()).env("DLOCK_JOBS_OFF", off)).await;
    dead.send(&format!("runner report {} {on_crash}", LEASE.as_millis()));
    let first = dead.event("started", "report").await.detail;
    alive.send(&format!("runner report {} {on_crash}", LEASE.as_millis()));
    // It has found that the tick is running.
    tokio::time::sleep(Duration::from_millis(200)).await;

    dead.kill();
    let killed = Moment::now();
    let second = tokio::time::timeout(3 * LEASE, alive.event("started", "report")).await;

    (first, second.ok().map(|event| (event.detail, event.at.since(killed))))
}

#[tokio::test]
async fn rerun_starts_a_killed_tick_again_within_its_lease() {
    let (first, second) = after_a_kill("rerun", "other").await;
    let (second, took) = second.expect("it starts again");

    let slot = first.split(' ').next().expect("a slot");
    assert_eq!(first, format!("{slot} 1"));
    assert_eq!(second, format!("{slot} 2"));
    assert!(took < LEASE + Duration::from_millis(250), "{took:?}");
}

#[tokio::test]
async fn skip_never_starts_a_killed_tick_again() {
    let (_, second) = after_a_kill("skip", "").await;

    assert!(second.is_none(), "{second:?}");
}

/// A process is frozen in a body for longer than its lease, and continues while another process
/// runs the tick again.
#[tokio::test]
async fn a_frozen_body_is_not_polled_after_its_successor_began() {
    let server = redis();
    let mut old = Worker::spawn(WORKER, &[server.url()]).await;
    let mut new = Worker::spawn(WORKER, &[server.url()]).await;
    old.send(&format!("runner report {} rerun", LEASE.as_millis()));
    let first = old.event("started", "report").await.detail;
    new.send(&format!("runner report {} rerun", LEASE.as_millis()));
    tokio::time::sleep(Duration::from_millis(200)).await;

    old.pause();
    let again = new.event("started", "report").await;
    old.resume();

    let slot = first.split(' ').next().expect("a slot");
    assert_eq!(again.detail, format!("{slot} 2"));
    let last_poll: u64 = old.event("dropped", "report").await.detail.parse().expect("a time");
    assert!(last_poll <= again.at.nanos(), "it was polled after its successor began");
}

#[tokio::test]
async fn a_runner_leaves_out_jobs_that_are_off() {
    let (_, second) = after_a_kill("rerun", "other, report").await;

    assert!(second.is_none(), "{second:?}");
}
