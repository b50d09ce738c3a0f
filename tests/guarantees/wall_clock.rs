//! C4: a step of a client's wall clock affects neither leases nor waits, which use another clock.

use std::sync::Arc;
use std::time::Duration;

use dlock_runtime::Error;
use dlock_tests::{Moment, RedisServer, WallClock, Worker};

use super::{LEASE, LONG, REPORTED_WITHIN, SLACK, WORKER, manager_of, until_waiting};

const HOUR: i64 = 3_600;

fn clock() -> Option<Arc<WallClock>> {
    match WallClock::new() {
        Ok(clock) => Some(clock),
        Err(reason) => {
            println!("SKIPPED: steps of a client's clock: {reason}");
            None
        }
    }
}

/// Steps the clock and checks that the worker observes the step.
async fn step(clock: &WallClock, worker: &mut Worker, seconds: i64) {
    let before = wall(worker).await;
    clock.step_to(seconds);
    let after = wall(worker).await;
    assert!(before.abs_diff(after) > 3_000, "the worker's wall clock does not step: {before} {after}");
}

async fn wall(worker: &mut Worker) -> u64 {
    worker.send("wall -");
    worker.event("wall", "-").await.detail.parse().expect("seconds")
}

#[tokio::test]
async fn a_client_wall_clock_step_does_not_change_holds() {
    let Some(clock) = clock() else { return };
    for seconds in [HOUR, -HOUR] {
        let server = RedisServer::start();
        let other = manager_of(&server).await;
        let mut worker = Worker::spawn_by(&clock, WORKER, &[server.url()]).await;
        worker.send("acquire order:7 1000 0");
        worker.event("acquired", "order:7").await;
        worker.send("run order:8 1000 0");
        worker.event("entered", "order:8").await;

        step(&clock, &mut worker, seconds).await;
        tokio::time::sleep(LEASE * 2).await;
        worker.send("check order:7");
        worker.event("held", "order:7").await;
        let taken = other.lock("order:7").lease(LONG).try_acquire().await.expect("the server replies");
        // Conversely, a hold that the frozen server cannot renew ends on time.
        server.pause();
        let frozen = Moment::now();
        let lost = worker.event_or_failure("left", "order:8").await;
        let reported = lost.at.since(frozen);
        server.resume();
        clock.step_to(0);

        assert!(taken.is_none(), "stepped by {seconds} s: another got in");
        assert!(lost.detail.starts_with("Lost"), "{lost:?}");
        assert!(
            reported < LEASE + REPORTED_WITHIN + SLACK,
            "stepped by {seconds} s: reported {reported:?} after the freeze"
        );
        assert!(reported > LEASE / 2, "stepped by {seconds} s: reported after {reported:?}, with time left");
    }
}

#[tokio::test]
async fn a_client_wall_clock_step_does_not_change_waits() {
    let Some(clock) = clock() else { return };
    for seconds in [HOUR, -HOUR] {
        let server = RedisServer::start();
        let holder = manager_of(&server).await;
        let _held = holder.lock("order:7").lease(LONG).acquire().await.expect("it is free");
        let mut worker = Worker::spawn_by(&clock, WORKER, &[server.url()]).await;
        let began = Moment::now();
        worker.send("acquire order:7 1000 1500");
        until_waiting(&server, "order:7", 1).await;

        step(&clock, &mut worker, seconds).await;
        let refused = worker.event_or_failure("acquired", "order:7").await;
        let took = refused.at.since(began);
        clock.step_to(0);

        assert!(refused.detail.starts_with("Contended"), "{refused:?}");
        let wait = Duration::from_millis(1_500);
        assert!(took >= wait && took < wait + SLACK, "stepped by {seconds} s: {took:?}");
    }
}

/// The server generates fencing tokens, so a client's clock does not affect them.
#[tokio::test]
async fn tokens_do_not_depend_on_the_client_wall_clock() {
    let Some(clock) = clock() else { return };
    let server = RedisServer::start();
    let mut worker = Worker::spawn_by(&clock, WORKER, &[server.url()]).await;
    let lock = manager_of(&server).await.lock("order:7").lease(LONG).wait(LONG);
    let mut tokens = Vec::new();

    for seconds in [HOUR, -HOUR, 0] {
        worker.send("acquire order:7 30000 30000");
        worker.event("acquired", "order:7").await;
        worker.send("token order:7");
        let token = worker.event("token", "order:7").await.detail;
        tokens.push(token.parse::<u64>().expect("a number"));
        worker.send("release order:7");
        worker.event("released", "order:7").await;
        step(&clock, &mut worker, seconds).await;
        let between = lock.run(async |guard| guard.fencing_token().await).await;
        let between: Result<_, Error> = between.expect("the lock is granted");
        tokens.push(between.expect("it is held").get());
    }

    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}
