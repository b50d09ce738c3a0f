//! Connecting to a cluster: what `connect` checks, and its errors.

use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

use dlock_runtime::{Credentials, Error, Lock, LockManager};
use dlock_tests::sentinel::End;
use dlock_tests::{Answer, Authority, ClusterFleet, HostileServer, RedisServer, acl, within};

use crate::locks::until_ids_in;
use crate::order::of_a_cluster;

const LONG: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_secs(10);

async fn connect(url: &str) -> Result<LockManager, Error> {
    within(SOON, "the outcome of connecting", LockManager::connect(url)).await
}

/// A node that has joined no other node.
fn standalone_node() -> RedisServer {
    RedisServer::builder().of_a_cluster(Duration::from_secs(2)).start()
}

#[track_caller]
fn assert_config(refused: Result<LockManager, Error>, remedy: &str) {
    match refused {
        Err(Error::Config { part, problem, .. }) => {
            assert!(&*part == "server" && problem.contains(remedy), "{part}: {problem}");
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_unavailable(refused: Result<LockManager, Error>, words: &str) {
    match refused {
        Err(Error::Unavailable { reason, .. }) => assert!(reason.contains(words), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn servers_that_are_all_away_are_unavailable_and_named() {
    let mut server = RedisServer::start();
    server.kill();

    let refused = connect(&format!("redis+cluster://127.0.0.1:{0},localhost:{0}", server.port())).await;

    assert_unavailable(refused, &format!(":{}", server.port()));
}

#[tokio::test]
async fn standalone_server_error_names_the_redis_scheme() {
    let server = RedisServer::start();

    assert_config(
        connect(&format!("redis+cluster://127.0.0.1:{}", server.port())).await,
        "write `redis://host:port`",
    );
}

#[tokio::test]
async fn cluster_with_unserved_slots_is_unavailable() {
    let server = standalone_node();
    let url = format!("redis+cluster://127.0.0.1:{}", server.port());

    assert_unavailable(connect(&url).await, "no primary serves 16384 of its slots");
    server.call(&["CLUSTER", "ADDSLOTSRANGE", "0", "16382"]);
    assert_unavailable(connect(&url).await, "no primary serves 1 of its slots");
}

#[tokio::test]
async fn cluster_node_error_names_the_cluster_scheme() {
    let fleet = ClusterFleet::start();
    let manager = connect(&fleet.server(fleet.masters()[0]).url())
        .await
        .expect("a node of a cluster accepts connections");

    let refused = manager.lock(fleet.key_in(1, "order")).acquire().await;

    let Err(Error::Config { problem, .. }) = &refused else { panic!("{refused:?}") };
    assert!(problem.contains("write `redis+cluster://host:port`"), "{problem}");
}

/// Returns the number of clients of each master, without replicas and this test's own connection.
fn clients(fleet: &ClusterFleet) -> Vec<usize> {
    let count = |port: &u16| {
        let list = fleet.server(*port).call(&["CLIENT", "LIST", "TYPE", "normal"]);
        let subscribed = fleet.server(*port).call(&["CLIENT", "LIST", "TYPE", "pubsub"]);
        let lines = |reply: &dlock_tests::resp::Reply| reply.text().unwrap_or_default().lines().count();
        lines(&list) + lines(&subscribed) - 1
    };
    fleet.masters().iter().map(count).collect()
}

async fn until_clients(fleet: &ClusterFleet, what: &str, are: impl Fn(&[usize]) -> bool) {
    let seen = async {
        while !are(&clients(fleet)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(SOON, what, seen).await;
}

#[tokio::test]
async fn a_master_is_connected_to_when_a_key_of_its_slots_is_used() {
    let fleet = ClusterFleet::start();
    until_clients(&fleet, "no client", |clients| clients == [0; 3]).await;
    let manager = connect(&fleet.url_with("")).await.expect("it is up");

    until_clients(&fleet, "no client after connecting", |clients| clients == [0; 3]).await;
    let guard = manager.lock(fleet.key_in(1, "order")).acquire().await.expect("it is free");
    let used = clients(&fleet);
    until_clients(&fleet, "clients of one master", |clients| clients[1] >= 2 && clients[0] + clients[2] == 0)
        .await;
    manager.ready().await.expect("the master in use replies");
    let others = [0, 2].map(|part| manager.lock(fleet.key_in(part, "order")));
    let others = futures_util::future::join_all(others.iter().map(Lock::acquire)).await;
    until_clients(&fleet, "clients of all", |clients| clients.iter().all(|count| *count >= 2)).await;

    assert!(used[1] >= 2 && used[0] + used[2] == 0, "{used:?}");
    assert!(guard.check().is_ok() && others.iter().all(Result::is_ok), "{others:?}");
}

#[tokio::test]
async fn a_manager_without_a_used_key_is_ready() {
    let fleet = ClusterFleet::start();
    let manager = connect(&fleet.url_with("")).await.expect("it is up");

    manager.ready().await.expect("a master replies");
}

#[tokio::test]
async fn first_waiter_of_a_manager_on_a_master_is_granted() {
    let fleet = ClusterFleet::start();
    for part in 0..3 {
        let key = fleet.key_in(part, "order");
        let (holder, waiter) = (connect(&fleet.url_with("")).await, connect(&fleet.url_with("")).await);
        let (holder, waiter) = (holder.expect("it is up"), waiter.expect("it is up"));
        let guard = holder.lock(&*key).acquire().await.expect("it is free");
        let lock = waiter.lock(&*key).wait(LONG);
        let waits = tokio::spawn(async move { lock.acquire().await });
        until_ids_in(&fleet, &key, 2).await;

        let released = std::time::Instant::now();
        guard.release().await.expect("it is held");
        let granted = within(SOON, "the grant", waits).await.expect("no panic");

        assert!(granted.is_ok(), "{granted:?}");
        assert!(released.elapsed() < Duration::from_millis(500), "{:?}", released.elapsed());
    }
}

#[tokio::test]
async fn hold_survives_the_move_of_its_slot_to_an_unused_master() {
    let fleet = ClusterFleet::start();
    let manager = connect(&fleet.url_with("")).await.expect("it is up");
    let key = fleet.key_in(0, "order");
    let slot = fleet.slot(&key);
    let guard = manager.lock(&*key).lease(Duration::from_secs(2)).acquire().await.expect("it is free");

    fleet.begin_to_move(slot, fleet.masters()[2]);
    fleet.finish_the_move(slot, fleet.masters()[2]);
    tokio::time::sleep(Duration::from_secs(3)).await; // longer than the lease: it is renewed on the new master
    let checked = guard.check();
    let released = guard.release().await;

    assert!(checked.is_ok(), "{checked:?}");
    assert!(released.is_ok(), "{released:?}");
}

/// A master accepts connections and does not reply, so connecting takes longer than a call waits.
#[tokio::test]
async fn a_call_that_waits_for_the_first_connection_to_a_master_says_so() {
    let fleet = ClusterFleet::start();
    let key = fleet.key_in(1, "order");
    let manager = connect(&fleet.url_with("?connect_timeout=20s")).await.expect("it is up");
    fleet.server(fleet.masters()[1]).pause();

    let refused = within(SOON, "the call", manager.lock(key).acquire()).await;

    fleet.server(fleet.masters()[1]).resume();
    match refused {
        Err(Error::Unavailable { reason, .. }) => {
            assert!(reason.contains("was not established after"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_master_that_is_away_is_unavailable_for_its_keys_alone() {
    let mut fleet = ClusterFleet::start();
    let manager = connect(&fleet.url_with("?response_timeout=500ms")).await.expect("it is up");
    let keys = [0, 1, 2].map(|part| fleet.key_in(part, "order"));
    fleet.break_master(1, End::Pause);

    let began = std::time::Instant::now();
    let refused = manager.lock(&*keys[1]).try_acquire().await;
    let took = began.elapsed();
    let others = [manager.lock(&*keys[0]).try_acquire().await, manager.lock(&*keys[2]).try_acquire().await];

    assert!(refused.as_ref().is_err_and(Error::is_unavailable), "{refused:?}");
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(others.iter().all(|other| matches!(other, Ok(Some(_)))), "{others:?}");
}

/// Two servers that each report the other as the owner of every slot.
fn redirecting_servers() -> [HostileServer; 2] {
    let ports: Arc<OnceLock<[u16; 2]>> = Arc::default();
    let server = |other: usize| {
        let ports = Arc::clone(&ports);
        HostileServer::start(move |request| {
            let Some(ports) = ports.get() else { return Answer::Close };
            if matches!(request.name(), "SET" | "EVALSHA") {
                return Answer::Raw(format!("-MOVED 1 127.0.0.1:{}\r\n", ports[other]).into_bytes());
            }
            of_a_cluster(request, ports[0])
        })
    };
    let redirecting_servers = [server(1), server(0)];
    ports.set([redirecting_servers[0].port(), redirecting_servers[1].port()]).expect("they are set once");
    redirecting_servers
}

#[tokio::test]
async fn redirect_loop_between_servers_is_unavailable() {
    let redirecting_servers = redirecting_servers();
    let manager = connect(&format!("redis+cluster://127.0.0.1:{}", redirecting_servers[0].port())).await;
    let manager = manager.expect("their replies are those of a cluster");

    let refused = within(SOON, "the refusal", manager.lock("order:7").acquire()).await;

    let Err(Error::Unavailable { reason, .. }) = &refused else { panic!("{refused:?}") };
    assert!(reason.contains("serves its slot"), "{reason}");
    let sent: usize = redirecting_servers.iter().map(|server| server.count("SET")).sum();
    assert!((2..=6).contains(&sent), "{sent}");
}

/// The guide on operating, which documents the user of this test.
const OPERATING: &str = include_str!("../../dlock-runtime/src/docs/operating.md");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documented_user_suffices_in_a_cluster_with_a_callback() {
    let fleet = ClusterFleet::start_with(|server| server.password("sesame").line("masterauth sesame"));
    let line = OPERATING.lines().find(|line| line.starts_with("ACL SETUSER dlock "));
    let words: Vec<_> = line.expect("the guide has the line").split(' ').collect();
    let allow_all = |words: &[&str]| {
        for server in fleet.servers() {
            assert_eq!(server.call(words).text(), Some("OK"));
        }
    };
    allow_all(&words);
    let url = fleet.url_with("").replace(fleet.servers()[0].access(), "");
    let with_user = acl::as_user(&url);

    assert_config(connect(&url).await, "write `:password@` or `user:password@` before the host");
    assert_config(connect(&with_user).await, "allow it `+cluster|info +cluster|slots +asking +role`");
    allow_all(&["ACL", "SETUSER", "dlock", "+cluster|info", "+cluster|slots", "+asking", "+role"]);
    let ours = connect(&with_user).await.expect("the user has the permissions");
    let give = || async { Ok(Credentials::new("dlock", "password")) };
    let theirs =
        LockManager::builder(&url).credentials(give).connect().await.expect("the callback returns the user");

    let [here, there] = [0, 1].map(|part| fleet.key_in(part, "order"));
    let old = ours.lock(&*here).lease(LONG).acquire().await.expect("the lock is free");
    let (slot, to) = (fleet.slot(&here), fleet.masters()[1]);
    fleet.begin_to_move(slot, to);
    let new = theirs
        .lock(format!("new{{dlock:{here}}}"))
        .acquire()
        .await
        .expect("it is acquired on the new master");
    let other = theirs.lock(&*there).acquire().await.expect("the lock is free");
    for guard in [old, new, other] {
        guard.release().await.expect("it was held");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_server_is_reached_over_tls() {
    let Some(authority) = Authority::of_servers() else { return };
    let fleet = ClusterFleet::start_with(|server| {
        let server = server.tls(authority.sign("127.0.0.1"), &authority);
        server.line("tls-cluster yes").line("tls-replication yes")
    });
    let url = fleet.servers()[0].tls_url().replace("rediss://", "rediss+cluster://");
    // The first call on a master waits for its connection.
    let url = format!("{url}{}response_timeout=5s", if url.contains('?') { '&' } else { '?' });
    let manager = LockManager::builder(&url)
        .tls_ca_pem(authority.pem())
        .connect()
        .await
        .expect("its authority is trusted");

    for key in fleet.keys_on_each("order") {
        let held = manager.lock(&*key).lease(LONG).acquire().await.expect("the lock is free");
        held.fencing_token().await.expect("it is held");
        held.release().await.expect("it was held");
    }

    let over_tls = |port: &u16| fleet.server(*port).command_count("evalsha") > 0;
    assert!(fleet.masters().iter().all(over_tls));
}

#[tokio::test]
async fn a_lazy_manager_finds_its_cluster_later() {
    let fleet = ClusterFleet::start();
    fleet.servers().iter().for_each(RedisServer::pause);
    let locks = connect(&fleet.url_with("?connect=lazy")).await.expect("it waits for no server");

    let tried = locks.lock("order:7").acquire().await;
    let patient = tokio::spawn(locks.lock("order:7").wait(LONG).acquire());
    fleet.servers().iter().for_each(RedisServer::resume);
    let waited = within(LONG, "the cluster", patient).await.expect("no panic");

    let Err(Error::Unavailable { reason, .. }) = tried else { panic!("{tried:?}") };
    assert!(reason.contains("has not been found yet"), "{reason}");
    waited.expect("the cluster is up").release().await.expect("it is held");
    assert!(locks.ready().await.is_ok());
}

#[tokio::test]
async fn a_call_right_after_a_lazy_start_waits_for_the_cluster() {
    let fleet = ClusterFleet::start();

    for attempt in 0..5 {
        let locks = connect(&fleet.url_with("?connect=lazy")).await.expect("it is up");
        let acquired = locks.lock("order:7").acquire().await;
        assert!(acquired.is_ok(), "attempt {attempt}: {acquired:?}");
        acquired.expect("it was acquired").release().await.expect("it is held");
    }
}

#[tokio::test]
async fn a_lazy_manager_of_a_cluster_reports_what_is_wrong_to_its_calls() {
    let server = RedisServer::start();
    let url = format!("redis+cluster://127.0.0.1:{}?connect=lazy", server.port());
    let locks = connect(&url).await.expect("it waits for no server");

    for _ in 0..2 {
        let refused = locks.lock("order:7").acquire().await.map(drop);
        let Err(Error::Unavailable { reason, .. }) = refused else { panic!("{refused:?}") };
        assert!(reason.contains("write `redis://host:port`"), "{reason}");
    }
}
