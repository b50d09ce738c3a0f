//! Connecting through sentinels: what `connect` checks, and its errors.

use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::sentinel::{MASTER, start_sentinel};
use dlock_tests::{RedisServer, acl, within};

const SOON: Duration = Duration::from_secs(10);

/// Returns a closed port.
fn dead_port() -> u16 {
    let mut server = RedisServer::start();
    server.kill();
    server.port()
}

async fn connect(url: &str) -> Result<LockManager, Error> {
    within(SOON, "the outcome of connecting", LockManager::connect(url)).await
}

#[track_caller]
fn assert_remedy(refused: Result<LockManager, Error>, remedy: &str) {
    match refused {
        Err(Error::Config { part, problem, .. }) => {
            assert!(&*part == "server" && problem.contains(remedy), "{part}: {problem}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn one_sentinel_that_answers_is_enough() {
    let master = RedisServer::start();
    let sentinel = start_sentinel(master.port());
    let (dead, port) = (dead_port(), sentinel.port());

    let manager = connect(&format!("redis+sentinel://127.0.0.1:{dead},127.0.0.1:{port}/{MASTER}")).await;
    let guard = manager.expect("one replies").lock("order:7").acquire().await.expect("the lock is free");

    assert_eq!(master.call(&["EXISTS", "dlock:order:7"]).integer(), Some(1));
    assert!(guard.release().await.is_ok());
}

#[tokio::test]
async fn sentinels_that_are_all_away_are_unavailable_and_named() {
    let dead = dead_port();

    let refused = connect(&format!("redis+sentinel://127.0.0.1:{dead}/{MASTER}")).await;

    let Err(Error::Unavailable { reason, .. }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains(&format!("127.0.0.1:{dead}")) && reason.contains("26379"), "{reason}");
}

#[tokio::test]
async fn unknown_master_name_is_rejected_with_a_remedy() {
    let master = RedisServer::start();
    let sentinel = start_sentinel(master.port());

    let refused = connect(&format!("redis+sentinel://127.0.0.1:{}/shop-mastre", sentinel.port())).await;

    assert_remedy(refused, "knows no master `shop-mastre`: the path of the url must be the name");
}

#[tokio::test]
async fn redis_that_is_no_sentinel_is_rejected_with_a_remedy() {
    let server = RedisServer::start();

    let refused = connect(&format!("redis+sentinel://127.0.0.1:{}/{MASTER}", server.port())).await;

    assert_remedy(refused, "is not a sentinel: write the addresses of sentinels before the `/`");
}

#[tokio::test]
async fn a_master_that_is_a_replica_by_its_own_word_is_not_used() {
    let master = RedisServer::start();
    let replica = RedisServer::builder().line(&format!("replicaof 127.0.0.1 {}", master.port())).start();
    let sentinel = start_sentinel(replica.port());

    let refused = connect(&format!("redis+sentinel://127.0.0.1:{}/{MASTER}", sentinel.port())).await;

    // A sentinel that monitors a replica finds its master eventually, and may already have done so.
    match refused {
        Err(Error::Unavailable { reason, .. }) => {
            assert!(reason.contains("it reports another role"), "{reason}");
        }
        other => assert!(other.is_ok(), "{other:?}"),
    }
    assert_eq!(replica.command_count("set"), 0);
}

#[tokio::test]
async fn a_sentinel_may_have_its_own_password() {
    let master = RedisServer::builder().password("sesame").start();
    let sentinel = RedisServer::builder()
        .sentinel()
        .password("knock")
        .line(&format!("sentinel monitor {MASTER} 127.0.0.1 {} 2", master.port()))
        .line(&format!("sentinel auth-pass {MASTER} sesame"))
        .start();
    let url = format!("redis+sentinel://:sesame@127.0.0.1:{}/{MASTER}", sentinel.port());

    assert_remedy(connect(&url).await, "write `?sentinel_password=..`");
    assert_remedy(
        connect(&format!("{url}?sentinel_password=wrong")).await,
        "refused the user or the password",
    );
    let manager =
        connect(&format!("{url}?sentinel_password=knock")).await.expect("both passwords are correct");

    assert!(manager.lock("order:7").acquire().await.is_ok());
}

#[tokio::test]
async fn documented_users_suffice_for_sentinels_and_locks() {
    let master = RedisServer::start();
    let sentinel = start_sentinel(master.port());
    acl::give_user(&master, "dlock", &[], &[]);
    acl::give_user(&sentinel, "dlock-watch", &[], &[]);
    let access = "sentinel_user=dlock-watch&sentinel_password=password";
    let url = format!("redis+sentinel://dlock:password@127.0.0.1:{}/{MASTER}?{access}", sentinel.port());

    assert_remedy(connect(&url).await, "allow it `+role`");
    acl::give_user(&master, "dlock", &[], &["+role"]);
    let manager = connect(&url).await.expect("both users have the permissions");
    let listens = || {
        let clients = sentinel.call(&["CLIENT", "LIST"]).text().unwrap_or_default().to_owned();
        clients.lines().any(|client| client.contains("user=dlock-watch") && client.contains(" sub=1 "))
    };
    let subscribed = async {
        while !listens() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(SOON, "the subscription", subscribed).await;

    assert!(manager.lock("order:7").acquire().await.is_ok());
}

#[tokio::test]
async fn a_lazy_manager_finds_its_primary_later() {
    let master = RedisServer::start();
    let sentinel = start_sentinel(master.port());
    sentinel.pause();
    let url = format!("redis+sentinel://127.0.0.1:{}/{MASTER}?connect=lazy", sentinel.port());
    let locks = connect(&url).await.expect("it waits for no sentinel");

    let tried = locks.lock("order:7").acquire().await;
    let patient = tokio::spawn(locks.lock("order:7").wait(SOON).acquire());
    sentinel.resume();
    let waited = within(SOON, "the primary", patient).await.expect("no panic");

    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    waited.expect("the sentinel replies").release().await.expect("it is held");
}
