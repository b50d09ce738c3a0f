//! A master that is the master no longer, without a fail-over that is told of.

use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::sentinel::{MASTER, start_sentinel};
use dlock_tests::world::name;
use dlock_tests::{RedisServer, within};

const LONG: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_secs(10);

async fn manager_of(sentinel: &RedisServer) -> LockManager {
    let url = format!("redis+sentinel://127.0.0.1:{}/{MASTER}", sentinel.port());
    LockManager::connect(&url).await.expect("the sentinel names a master")
}

#[tokio::test]
async fn a_demotion_that_no_sentinel_tells_is_found_out_by_the_servers_role() {
    // It would take every write that is sent to it: nothing but its role says what it is.
    let demoted = RedisServer::builder().line("replica-read-only no").start();
    let other = RedisServer::start();
    let sentinel = start_sentinel(demoted.port());
    let manager = manager_of(&sentinel).await;
    assert!(manager.lock("order:7").lease(LONG).acquire().await.is_ok());

    demoted.call(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    // As it becomes a replica it may load what the other has; any other refusal is that of its role.
    let found_out = async {
        loop {
            match manager.lock("order:8").lease(LONG).acquire().await {
                Err(Error::Unavailable { reason, .. }) if reason.contains("by its own word") => break,
                Err(Error::Unavailable { reason, .. }) if !reason.contains("LOADING") => panic!("{reason}"),
                Ok(_) | Err(Error::Unavailable { .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
                other => panic!("{other:?}"),
            }
        }
    };
    within(Duration::from_secs(2), "the refusal", found_out).await;
}

#[tokio::test]
async fn a_switch_that_was_missed_is_caught_up_with_when_the_sentinel_is_listened_to_again() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let sentinel = start_sentinel(old.port());
    let manager = manager_of(&sentinel).await;

    sentinel.call(&["SENTINEL", "REMOVE", MASTER]);
    sentinel.call(&["SENTINEL", "MONITOR", MASTER, "127.0.0.1", &new.port().to_string(), "2"]);
    // Nothing has been told; it is asked again where it had to be listened to anew.
    let moved = async {
        let mut number = 0;
        loop {
            sentinel.call(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            let key = format!("order:{number}");
            let _guard = manager.lock(&*key).lease(LONG).acquire().await;
            if new.call(&["EXISTS", &name(&key)]).integer() == Some(1) {
                return;
            }
            number += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };

    within(SOON, "the move", moved).await;
    assert_eq!(old.call(&["ROLE"]).texts()[0], "master");
}

#[tokio::test]
async fn a_hold_that_the_new_master_does_not_have_is_lost_before_its_renewal_is_due() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let sentinel = start_sentinel(old.port());
    let manager = manager_of(&sentinel).await;
    let held = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");

    sentinel.call(&["SENTINEL", "REMOVE", MASTER]);
    sentinel.call(&["SENTINEL", "MONITOR", MASTER, "127.0.0.1", &new.port().to_string(), "2"]);
    sentinel.call(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let lost = within(LONG / 6, "the loss", held.lost()).await;

    assert_eq!(lost, dlock_runtime::LossCause::NotOwner);
}
