//! Demotions of a master without an announced failover.

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
async fn unannounced_demotion_is_detected_by_the_role() {
    // The server accepts all writes, so only its role shows that it is a replica.
    let demoted = RedisServer::builder().line("replica-read-only no").start();
    let other = RedisServer::start();
    let sentinel = start_sentinel(demoted.port());
    let manager = manager_of(&sentinel).await;
    assert!(manager.lock("order:7").lease(LONG).acquire().await.is_ok());

    demoted.call(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    // While it becomes a replica, it may be loading data. Any other refusal must name its role.
    let found_out = async {
        loop {
            match manager.lock("order:8").lease(LONG).acquire().await {
                Err(Error::Unavailable { reason, .. }) if reason.contains("it reports another role") => break,
                Err(Error::Unavailable { reason, .. }) if !reason.contains("LOADING") => panic!("{reason}"),
                Ok(_) | Err(Error::Unavailable { .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
                other => panic!("{other:?}"),
            }
        }
    };
    within(Duration::from_secs(2), "the refusal", found_out).await;
}

#[tokio::test]
async fn missed_switch_is_detected_when_resubscribing() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let sentinel = start_sentinel(old.port());
    let manager = manager_of(&sentinel).await;

    sentinel.call(&["SENTINEL", "REMOVE", MASTER]);
    sentinel.call(&["SENTINEL", "MONITOR", MASTER, "127.0.0.1", &new.port().to_string(), "2"]);
    // No switch was announced. The manager queries the sentinel again when it resubscribes.
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
async fn hold_missing_on_the_new_master_is_lost_before_renewal() {
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
