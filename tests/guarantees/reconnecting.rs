//! Calls made while a lost connection is being replaced.
//!
//! They wait for the first two attempts to connect. Once both have failed, calls are rejected
//! immediately.

use std::time::Duration;

use dlock_runtime::scheduled::Schedule;
use dlock_runtime::{Error, LockManager};
use dlock_tests::cluster::ClusterFleet;
use dlock_tests::quorum::QuorumFleet;
use dlock_tests::world::name;
use dlock_tests::{Authority, Moment, Proxy, RedisServer, Worker, acl, overrun, within};

use super::{LONG, SLACK, WORKER, manager_of};

/// Enough rounds: the failure that these tests exclude occurred in every round.
const ROUNDS: usize = 12;

/// The default limit of a single try.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Closes all connections at once. A second command could close the one that replaces the first,
/// whose failure rejects the waiting calls.
fn kill_connections(server: &RedisServer) {
    server.call(&["CLIENT", "KILL", "SKIPME", "yes"]);
}

/// Acquires and releases a lock with single tries, each right after `cut`.
async fn take_after_each(manager: &LockManager, cut: impl Fn()) {
    for round in 0..ROUNDS {
        cut();
        let guard = manager.lock(&*format!("order:{round}")).lease(LONG).acquire().await;
        let guard = guard.unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert!(guard.release().await.is_ok(), "round {round}");
    }
}

#[tokio::test]
async fn a_single_try_right_after_connections_were_killed_succeeds() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;

    take_after_each(&manager, || kill_connections(&server)).await;
}

#[tokio::test]
async fn a_single_try_right_after_a_reset_succeeds() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url()).await.expect("it is open");

    take_after_each(&manager, || proxy.reset_all()).await;
}

#[tokio::test]
async fn a_single_try_right_after_a_cut_succeeds_with_redisson_layout() {
    let server = RedisServer::start();
    server.allow(dlock_tests::acl::documented_for_redisson());
    let manager = LockManager::connect(&server.url_with("?layout=redisson")).await.expect("it is open");

    take_after_each(&manager, || kill_connections(&server)).await;
}

#[tokio::test]
async fn a_single_try_right_after_a_cut_succeeds_in_a_cluster() {
    let fleet = ClusterFleet::start();
    let manager = LockManager::connect(&fleet.url_with("")).await.expect("the cluster takes managers");

    take_after_each(&manager, || fleet.servers().iter().for_each(kill_connections)).await;
}

#[tokio::test]
async fn a_single_try_right_after_a_cut_succeeds_over_a_quorum() {
    let mut fleet = QuorumFleet::start(3).await;
    let manager = fleet.manager("").await;

    for round in 0..ROUNDS {
        fleet.servers().iter().for_each(kill_connections);
        let guard = manager.lock(&*format!("order:{round}")).acquire().await;
        let guard = guard.unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert!(guard.release().await.is_ok(), "round {round}");
    }
}

#[tokio::test]
async fn a_single_try_right_after_a_cut_succeeds_behind_a_sentinel() {
    let server = RedisServer::builder().also_allow(acl::BEHIND_SENTINELS).start();
    let monitor = format!("sentinel monitor mymaster 127.0.0.1 {} 1", server.port());
    let sentinel = RedisServer::builder().sentinel().line(&monitor).start();
    let url = format!("redis+sentinel://{}127.0.0.1:{}/mymaster", server.access(), sentinel.port());
    let manager = LockManager::connect(&url).await.expect("the sentinel reports the server");

    take_after_each(&manager, || [&server, &sentinel].into_iter().for_each(kill_connections)).await;
}

#[tokio::test]
async fn a_single_try_right_after_a_cut_succeeds_over_tls_and_sockets() {
    let server = RedisServer::start();
    let url = format!("redis+unix://{}", server.socket().display());
    let manager = LockManager::connect(&url).await.expect("it listens on the socket");
    take_after_each(&manager, || kill_connections(&server)).await;

    let Some(authority) = Authority::of_servers() else { return };
    let server = RedisServer::builder().tls(authority.sign("127.0.0.1"), &authority).start();
    let builder = LockManager::builder(&server.tls_url()).tls_ca_pem(authority.pem());
    let manager = builder.connect().await.expect("its authority is trusted");
    take_after_each(&manager, || kill_connections(&server)).await;
}

/// An extension of a tracked hold is sent over the connection with key tracking, which is cut, too.
#[tokio::test]
async fn an_extension_right_after_a_reset_succeeds() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url()).await.expect("it is open");
    let held = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    held.extend(LONG).await.expect("it is held");

    for round in 0..4 * ROUNDS {
        let connected = async {
            while proxy.stats().open < 3 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        within(LONG, "commands, messages, and invalidations", connected).await;
        proxy.reset_all();
        held.extend(LONG).await.unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    held.release().await.expect("it is held");
}

#[tokio::test]
async fn records_right_after_a_cut_wait_for_the_new_connection() {
    let server = RedisServer::builder().also_allow(acl::WITH_RECORDS).also_allow(acl::WITH_JOBS).start();
    let manager = manager_of(&server).await;
    let schedule = Schedule::every(Duration::from_secs(3_600)).expect("a valid period");

    for round in 0..ROUNDS {
        kill_connections(&server);
        let call = manager.idempotent(&*format!("charge:{round}"));
        let ran = call.run(async |_| Ok::<_, Error>(7)).await;
        assert!(ran.as_ref().is_ok_and(|ran| *ran.value() == 7), "round {round}: {ran:?}");
        kill_connections(&server);
        let job = manager.job(&format!("report:{round}"));
        let ran = job.run(&schedule, async |_| Ok::<_, Error>(())).await;
        assert!(ran.is_ok_and(|ran| ran.is_some()), "round {round}");
    }
}

#[tokio::test]
async fn a_single_try_of_a_thawed_process_succeeds() {
    let server = RedisServer::start();
    let mut worker = Worker::spawn(WORKER, &[server.url()]).await;

    for round in 0..ROUNDS {
        worker.pause();
        kill_connections(&server);
        let key = format!("order:{round}");
        worker.send(&format!("acquire {key} 10000 0"));
        worker.resume();
        let event = worker.event_or_failure("acquired", &key).await;
        assert_eq!(event.name, "acquired", "round {round}: {event:?}");
        worker.send(&format!("release {key}"));
        worker.event("released", &key).await;
    }
}

#[tokio::test]
async fn release_ready_and_inspect_wait_for_the_new_connection() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;

    for round in 0..ROUNDS {
        let guard = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
        kill_connections(&server);
        let seen = manager.inspect("order:7").await;
        assert!(matches!(seen, Ok(Some(_))), "round {round}: {seen:?}");
        kill_connections(&server);
        assert!(manager.ready().await.is_ok(), "round {round}");
        kill_connections(&server);
        let token = guard.fencing_token().await;
        assert!(token.is_ok(), "round {round}: {token:?}");
        assert!(guard.release().await.is_ok(), "round {round}");
    }
}

#[tokio::test]
async fn a_sent_acquire_is_cleaned_up_and_retried_with_a_new_token() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let url = proxy.url_with("?response_timeout=5s&tracking=off");
    let manager = LockManager::connect(&url).await.expect("it is open");
    let value = || server.call(&["GET", &name("order:7")]).text().map(str::to_owned);

    let all_arrived = async {
        while proxy.stats().on_their_way > 0 {
            tokio::task::yield_now().await;
        }
    };
    within(LONG, "the replies to the handshake", all_arrived).await;
    let swallowed = proxy.on_reply(b"+OK\r\n");
    proxy.swallow_replies();
    let lock = manager.lock("order:7").lease(LONG);
    let call = tokio::spawn(async move { lock.acquire().await });
    let has_run = async {
        loop {
            match value() {
                Some(token) => break token,
                None => tokio::task::yield_now().await,
            }
        }
    };
    let first = within(LONG, "the acquire", has_run).await;
    // The proxy reads its orders when it delivers: only now is the reply lost for certain.
    within(LONG, "the loss of the reply", swallowed).await;
    proxy.pass(); // a connection that has lost bytes carries no more
    proxy.reset_all();
    let guard = within(LONG, "the lock", call).await.expect("no panic").expect("it was cleaned up");

    assert!(value().is_some_and(|second| second != first), "{first}, {:?}", value());
    assert!(guard.check().is_ok());
    assert!(guard.release().await.is_ok());
    assert_eq!(value(), None);
}

#[tokio::test]
async fn a_call_fails_immediately_after_two_failed_connects() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url()).await.expect("it is open");

    proxy.refuse();
    proxy.reset_all();
    let first = manager.lock("order:7").acquire().await;
    assert!(matches!(first, Err(Error::Unavailable { .. })), "{first:?}");
    let started = Moment::now();
    for _ in 0..ROUNDS {
        let refused = manager.lock("order:7").acquire().await;
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    }

    assert!(started.elapsed() < SLACK, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_single_try_of_a_silent_server_ends_within_its_limit() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url()).await.expect("it is open");

    proxy.black_hole();
    proxy.reset_all();
    for _ in 0..2 {
        let (refused, late) = overrun(RESPONSE_TIMEOUT, manager.lock("order:7").acquire()).await;
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        assert!(late < SLACK, "{late:?}");
    }
}

#[tokio::test]
async fn a_manager_shuts_down_while_calls_wait_for_a_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let manager = LockManager::connect(&proxy.url()).await.expect("it is open");

    proxy.black_hole();
    proxy.reset_all();
    let lock = manager.lock("order:7").wait(LONG);
    let call = tokio::spawn(async move { lock.acquire().await });
    tokio::task::yield_now().await;
    within(Duration::from_secs(5), "the shutdown", manager.shutdown(Duration::ZERO)).await;

    let ended = within(LONG, "the call", call).await.expect("no panic");
    assert!(matches!(ended, Err(Error::Shutdown { .. })), "{ended:?}");
}

#[tokio::test]
async fn a_call_that_is_dropped_while_it_waits_leaves_nothing_behind() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;

    for round in 0..ROUNDS {
        kill_connections(&server);
        let key = format!("order:{round}");
        let lock = manager.lock(&*key).lease(LONG);
        let dropped = tokio::time::timeout(Duration::from_millis(1), lock.acquire()).await;
        drop(dropped); // an acquire in progress, or a guard
        super::until_free(&server, &key, LONG / 2).await;
    }
}
