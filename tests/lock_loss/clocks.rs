//! The server's wall clock steps (A1), or differs from that of its replica (A4).

use std::sync::Arc;
use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::resp::Reply;
use dlock_tests::{RedisServer, WallClock, acl};

use super::replicas::{promote, until_replicated};
use super::{Holder, KEY, NAME, assert_loss_is_reported, assert_lost_and_fenced};

/// Returns a clock that can be stepped, or prints why there is none.
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
    assert_loss_is_reported(&first).await;
}

#[tokio::test]
async fn a_step_back_extends_dead_locks_and_tokens_rise() {
    let Some(clock) = clock() else { return };
    let server = RedisServer::builder().wall_clock(&clock).start();
    let first = Holder::of(&server).await;
    let before = first.token;
    first.guard.release().await.expect("it is held");

    server.call(&["SET", NAME, "of a dead process", "PX", "300"]);
    clock.step_to(-3_600);
    tokio::time::sleep(Duration::from_millis(600)).await;
    let left = server.call(&["EXISTS", NAME]);
    server.call(&["DEL", NAME]);
    let second = Holder::of(&server).await;

    assert_eq!(left, Reply::Integer(1), "its 300 ms have expired");
    assert_eq!(second.token.get(), before.get() + 1);
}

/// The only case in which a later holder has a lower token. The safety guide describes it.
#[tokio::test]
async fn a_counter_lost_during_a_step_back_starts_lower() {
    let Some(clock) = clock() else { return };
    let server = RedisServer::builder().wall_clock(&clock).start();
    let first = Holder::of(&server).await;

    server.call(&["FLUSHALL"]);
    clock.step_to(-3_600);
    let second = Holder::of(&server).await;

    assert!(second.token < first.token, "{} {}", second.token, first.token);
}

/// A replica stores the time at which a key expires, not its TTL.
#[tokio::test]
async fn a_promoted_replica_with_a_clock_ahead_expires_leases() {
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

/// An acknowledgment of a replica does not cover the time at which it expires the lock.
#[tokio::test]
async fn an_acknowledged_lock_expires_on_a_replica_with_a_clock_ahead() {
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

/// In the opposite case no lock is lost, but the lock of a dead holder lives longer.
#[tokio::test]
async fn a_promoted_replica_with_a_clock_behind_extends_locks() {
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
    let seen = other.inspect(KEY).await.expect("the server replies").expect("it is held");
    let left = seen.remaining().expect("it has a TTL");
    assert!(left > Duration::from_secs(40), "{left:?}");
}
