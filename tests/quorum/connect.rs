//! Connecting to a quorum, and the errors of server lists that cannot form one.

use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::quorum::{Fate, LEASE};
use dlock_tests::{QuorumFleet, RedisServer, acl, within};

const SOON: Duration = Duration::from_secs(10);

fn url_of(servers: &[&RedisServer]) -> String {
    let hosts: Vec<_> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    format!("redis+quorum://{}", hosts.join(","))
}

#[track_caller]
fn assert_config(refused: Result<LockManager, Error>, remedy: &str) {
    match refused {
        Err(Error::Config { problem, .. }) => assert!(problem.contains(remedy), "{problem}"),
        other => panic!("{remedy}: {other:?}"),
    }
}

#[tokio::test]
async fn two_hosts_are_no_quorum() {
    assert_config(LockManager::connect("redis+quorum://h1,h2").await, "name three hosts");
}

#[tokio::test]
async fn options_unsupported_by_a_quorum_are_rejected() {
    assert_config(LockManager::connect("redis+quorum://h1,h2,h3?replica_acks=1").await, "leave it out");
    assert_config(LockManager::connect("redis+quorum://h1,h2,h3?layout=redisson").await, "leave it out");
    assert_config(LockManager::connect("redis+quorum://h1,h2,h3?yield_to_foreign=on").await, "leave it out");
}

#[tokio::test]
async fn one_server_under_two_names_is_rejected() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let hosts = format!("127.0.0.1:{0},127.0.0.1:{1},localhost:{0}", one.port(), two.port());

    let refused = LockManager::connect(&format!("redis+quorum://{hosts}")).await;

    assert_config(refused, "name each server of a quorum once");
}

#[tokio::test]
async fn replica_and_cluster_node_are_rejected_with_a_remedy() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let replica = RedisServer::builder().line(&format!("replicaof 127.0.0.1 {}", one.port())).start();
    let of_cluster = RedisServer::builder().line("cluster-enabled yes").start();

    let with_replica = LockManager::connect(&url_of(&[&one, &two, &replica])).await;
    let with_cluster = LockManager::connect(&url_of(&[&one, &two, &of_cluster])).await;

    assert_config(with_replica, "name independent primaries");
    assert_config(with_cluster, "write `redis+cluster://`");
}

#[tokio::test]
async fn error_without_a_majority_names_the_required_number() {
    let mut fleet = QuorumFleet::start_young(3);
    fleet.befall(&[0, 2], Fate::Killed);

    let refused = LockManager::connect(&fleet.url_with("")).await;

    match refused {
        Err(Error::Unavailable { reason, .. }) => {
            assert!(reason.starts_with("a quorum needs 2 of 3 servers"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn majority_suffices_to_connect_and_late_servers_join() {
    let mut fleet = QuorumFleet::start(3).await;
    fleet.befall(&[1], Fate::Killed);
    let manager = within(SOON, "the majority", fleet.manager("")).await;
    let _held = manager.lock("order:7").wait(SOON).acquire().await.expect("two of three servers are up");
    assert!(manager.ready().await.is_ok());

    fleet.heal(&[1], Fate::Killed);

    let whole = async {
        while fleet.holding("order:7") < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(SOON, "a renewal writes the missing key", whole).await;
}

#[tokio::test]
async fn silent_server_does_not_delay_connecting() {
    let mut fleet = QuorumFleet::start(3).await;
    fleet.befall(&[2], Fate::Frozen);

    let manager = within(Duration::from_secs(1), "the majority", fleet.manager("")).await;

    assert!(manager.lock("order:7").wait(SOON).acquire().await.is_ok());
}

#[tokio::test]
async fn servers_that_have_just_come_up_are_waited_for() {
    let fleet = QuorumFleet::start_young(3);
    let manager = fleet.manager("").await;

    let refused = manager.lock("order:7").acquire().await;
    assert!(
        matches!(&refused, Err(Error::Unavailable { reason, .. }) if reason.contains("less than a lease ago")),
        "{refused:?}"
    );

    assert!(manager.lock("order:7").wait(3 * LEASE).acquire().await.is_ok());
}

#[tokio::test]
async fn a_password_is_printed_by_nothing() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::builder().password("sesame7").start()).collect();
    let hosts: Vec<_> = servers.iter().map(|at| format!("127.0.0.1:{}", at.port())).collect();
    let url = |password: &str| format!("redis+quorum://:{password}@{}", hosts.join(","));

    let manager = LockManager::connect(&url("sesame7")).await.expect("the password is correct");
    let refused = LockManager::connect(&url("hunter2")).await;

    assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
    let shown = format!(
        "{manager:?} {refused:?} {}",
        refused.as_ref().map_or_else(ToString::to_string, |_| String::new())
    );
    assert!(!shown.contains("sesame7") && !shown.contains("hunter2"), "{shown}");
}

#[tokio::test]
async fn inspect_and_force_release_follow_the_majority() {
    let mut fleet = QuorumFleet::start(3).await;
    let (ours, operator) = (fleet.manager("").await, fleet.manager("").await);
    let held = ours.lock("order:7").wait(SOON).acquire().await.expect("the lock is free");
    fleet.befall(&[0], Fate::Killed);

    let seen = operator.inspect("order:7").await.expect("a majority replies").expect("it is held");
    assert_eq!(seen.holder(), Some(&*ours.id()));

    assert!(operator.force_release("order:7").await.expect("a majority replies"));
    assert!(operator.inspect("order:7").await.expect("a majority replies").is_none());
    assert!(within(SOON, "the loss", held.lost()).await == dlock_runtime::LossCause::NotOwner);
}

/// The guide on operating, which documents the user of the next test.
const OPERATING: &str = include_str!("../../dlock-runtime/src/docs/operating.md");

#[tokio::test]
async fn the_documented_user_may_do_all_that_a_quorum_needs() {
    let line = OPERATING
        .lines()
        .find(|line| line.starts_with("ACL SETUSER dlock "))
        .expect("the guide has the line");
    let more = ["&dlock:free:*", "+info", "+unsubscribe"];
    assert!(OPERATING.contains(&format!("`{}` on every server", more.join(" "))));
    let mut fleet = QuorumFleet::start(3).await;
    let words: Vec<_> = line.split(' ').collect();
    for server in fleet.servers() {
        assert_eq!(server.call(&words).text(), Some("OK"));
    }
    let url = acl::as_user(&fleet.url_with("&poll_interval=60s"));
    assert_config(LockManager::connect(&url).await, "allow it `+info`");
    let words: Vec<_> = words.into_iter().chain(more).collect();
    for server in fleet.servers() {
        assert_eq!(server.call(&words).text(), Some("OK"));
    }

    let managers = [LockManager::connect(&url).await, LockManager::connect(&url).await];
    let [ours, theirs] = managers.map(|manager| manager.expect("the user has the permissions"));
    let held = ours.lock("order:7").wait(SOON).acquire().await.expect("the lock is free");
    assert!(held.fencing_token().await.is_ok());
    let waiter = tokio::spawn(async move { theirs.lock("order:7").wait(SOON).acquire().await.map(drop) });
    tokio::time::sleep(Duration::from_millis(300)).await;
    held.release().await.expect("it was held");

    // No waiter polls within this time, so this one was woken by a message.
    assert!(within(SOON, "the waiter", waiter).await.expect("it does not panic").is_ok());
}

#[tokio::test]
async fn a_lazy_manager_of_a_quorum_connects_later() {
    let mut fleet = QuorumFleet::start(3).await;
    fleet.befall(&[0, 1, 2], Fate::Frozen);
    let locks = LockManager::connect(&fleet.url_with("&connect=lazy")).await.expect("it waits for no server");

    let tried = locks.lock("order:7").acquire().await;
    let patient = tokio::spawn(locks.lock("order:7").wait(SOON).acquire());
    fleet.heal(&[0, 1, 2], Fate::Frozen);
    let waited = within(SOON, "a majority", patient).await.expect("no panic");

    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    waited.expect("a majority is up").release().await.expect("it is held");
}
