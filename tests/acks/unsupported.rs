//! If replicas cannot be waited for, connecting fails at once.

use dlock_runtime::{Error, LockManager};
use dlock_tests::RedisServer;

#[track_caller]
fn assert_part(refused: Result<LockManager, Error>, wanted: &str, why: &str) {
    match refused {
        Err(Error::Config { part, problem, .. }) => {
            assert!(&*part == wanted && problem.contains(why), "{part}: {problem}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn memory_has_no_replicas() {
    assert_part(LockManager::connect("memory://?replica_acks=1").await, "replica_acks", "has no replicas");
    assert!(LockManager::connect("memory://?replica_acks=0").await.is_ok());
}

#[tokio::test]
async fn replica_acks_must_be_a_number() {
    for value in ["all", "-1", "256", ""] {
        let url = format!("redis://127.0.0.1/?replica_acks={value}");
        assert_part(LockManager::connect(&url).await, "replica_acks", "a number of replicas");
    }
}

#[tokio::test]
async fn user_without_wait_permission_is_rejected() {
    let server = RedisServer::builder().line("user default on nopass ~* &* +@all -wait").start();

    assert_part(LockManager::connect(&server.url_with("?replica_acks=1")).await, "server", "'wait'");
    assert!(LockManager::connect(&server.url()).await.is_ok());
}
