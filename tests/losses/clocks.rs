//! The server's wall clock steps (A1), or is another than its replica's (A4).

use std::sync::Arc;
use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::resp::Reply;
use dlock_tests::{RedisServer, WallClock, acl};

use super::replicas::{promote, until_replicated};
use super::{Holder, KEY, NAME, assert_lost_and_fenced, assert_told};

/// Returns a clock that can be stepped, or says why there is none.
pub(super) fn clock() -> Option<Arc<WallClock>> {
    match WallClock::new() {
        Ok(clock) => Some(clock),
        Err(reason) => {
            println!("SKIPPED: steps and drift of a server's clock: {reason}");
            None
        }
    }
}

#[tokio::test]
async fn a_clock_that_steps_forward_ends_leases() {
    let Some(clock) = clock() else { return };
    let server = RedisServer::builder().wall_clock(&clock).start();
    let first = Holder::of(&server).await;

    clock.step_to(3_600);

    assert_lost_and_fenced(&first, &server.url()).await;
    assert_told(&first).await;
}

#[tokio::test]
async fn a_clock_that_steps_back_keeps_dead_locks_for_longer_and_tokens_still_rise() {
    let Some(clock) = clock() else { return };
    let server = RedisServer::builder().wall_clock(&clock).start();
    let first = Holder::of(&server).await;
    let before = first.token;
    first.guard.release().await.expect("it is held");

    server.call(&["SET", NAME, "of somebody who is dead", "PX", "300"]);
    clock.step_to(-3_600);
    tokio::time::sleep(Duration::from_millis(600)).await;
    let left = server.call(&["EXISTS", NAME]);
    server.call(&["DEL", NAME]);
    let second = Holder::of(&server).await;

    assert_eq!(left, Reply::Integer(1), "its 300 ms are over");
    assert_eq!(second.token.get(), before.get() + 1);
}

/// The one case in which a later holder has a lower token: the guide names it.
#[tokio::test]
async fn a_counter_that_is_lost_while_the_clock_is_stepped_back_starts_below() {
    let Some(clock) = clock() else { return };
    let server = RedisServer::builder().wall_clock(&clock).start();
    let first = Holder::of(&server).await;

    server.call(&["FLUSHALL"]);
    clock.step_to(-3_600);
    let second = Holder::of(&server).await;

    assert!(second.token < first.token, "{} {}", second.token, first.token);
}

/// A replica keeps *when* a key ends, not how long it lives.
#[tokio::test]
async fn a_promoted_replica_whose_clock_is_ahead_has_ended_the_leases_that_it_holds() {
    let Some(ahead) = clock() else { return };
    let master = RedisServer::start();
    let replica = RedisServer::builder()
        .wall_clock(&ahead)
        .line(&format!("replicaof 127.0.0.1 {}", master.port()))
        .start();
    ahead.step_to(40);
    let first = Holder::of(&master).await;
    until_replicated(&master, &replica).await;

    promote(&replica);

    assert_lost_and_fenced(&first, &replica.url()).await;
}

/// That a replica has acknowledged a lock says nothing of when it lets go of it.
#[tokio::test]
async fn a_lock_that_all_replicas_acknowledged_is_gone_where_the_promoted_one_is_ahead() {
    let Some(ahead) = clock() else { return };
    let master = RedisServer::builder().also_allow(acl::WITH_ACKS).start();
    let replica = RedisServer::builder()
        .wall_clock(&ahead)
        .line(&format!("replicaof 127.0.0.1 {}", master.port()))
        .start();
    ahead.step_to(40);
    until_replicated(&master, &replica).await;
    let first = Holder::at(&master.url_with("?replica_acks=1")).await;

    promote(&replica);

    assert_lost_and_fenced(&first, &replica.url()).await;
}

/// The other way round nothing is lost, but a lock of a dead holder lives for longer.
#[tokio::test]
async fn a_promoted_replica_whose_clock_is_behind_keeps_locks_for_longer() {
    let Some(behind) = clock() else { return };
    let master = RedisServer::start();
    let replica = RedisServer::builder()
        .wall_clock(&behind)
        .line(&format!("replicaof 127.0.0.1 {}", master.port()))
        .start();
    behind.step_to(-40);
    let _first = Holder::of(&master).await;
    until_replicated(&master, &replica).await;

    promote(&replica);

    let other = LockManager::connect(&replica.url()).await.expect("the server takes managers");
    let seen = other.inspect(KEY).await.expect("the server answers").expect("it is held");
    let left = seen.remaining().expect("it has an end");
    assert!(left > Duration::from_secs(40), "{left:?}");
}
