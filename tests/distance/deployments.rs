//! Hand-offs at a distance in the deployments other than one server with the native layout.

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::{Proxy, RedisServer, acl, within};

use super::hand_offs::{assert_none_is_lost_at, few};
use super::{Far, LONG, millis};

const ROUND_TRIP: u64 = 300;

/// The lease of each lock of [`few`].
const LEASE: Duration = Duration::from_secs(10);

/// Contends through `proxies`, which are in front of all servers of the URL.
async fn assert_none_is_lost(url: &str, proxies: &[&Proxy]) {
    assert_none_is_lost_at(&few(ROUND_TRIP), url, proxies).await;
}

#[tokio::test]
async fn no_hold_is_lost_with_redisson_layout() {
    let far = Far::start_near();
    far.server.allow(acl::documented_for_redisson());

    assert_none_is_lost(&far.proxy.url_with("?layout=redisson"), &[&far.proxy]).await;
}

#[tokio::test]
async fn no_hold_is_lost_over_a_distant_quorum() {
    let servers = [(); 3].map(|()| RedisServer::builder().also_allow(acl::IN_A_QUORUM).start());
    let proxies = servers.each_ref().map(Proxy::in_front_of);
    let [first, second, third] = proxies.each_ref().map(|proxy| proxy.port());
    let hosts = format!("127.0.0.1:{first},127.0.0.1:{second},127.0.0.1:{third}");
    let url = format!("redis+quorum://{}{hosts}?lease=10s", servers[0].access());
    // A vote counts after the longest lease and its margin. No event reports the age of a server,
    // whose uptime is in whole seconds.
    tokio::time::sleep(LEASE + Duration::from_millis(2_200)).await;

    assert_none_is_lost(&url, &proxies.each_ref()).await;
}

#[tokio::test]
async fn no_hold_is_lost_behind_a_distant_sentinel() {
    let server = RedisServer::builder().also_allow(acl::BEHIND_SENTINELS).start();
    let proxy = Proxy::in_front_of(&server);
    let monitor = format!("sentinel monitor mymaster 127.0.0.1 {} 1", proxy.port());
    let sentinel = RedisServer::builder().sentinel().line(&monitor).start();
    let of_sentinel = Proxy::in_front_of(&sentinel);
    let url = format!("redis+sentinel://{}127.0.0.1:{}/mymaster", server.access(), of_sentinel.port());

    assert_none_is_lost(&url, &[&proxy, &of_sentinel]).await;
}

#[tokio::test]
async fn no_hold_is_lost_in_a_distant_cluster() {
    let server = RedisServer::builder().of_a_cluster(LONG).also_allow(acl::IN_A_CLUSTER).start();
    let proxy = Proxy::in_front_of(&server);
    // The slot map names the proxy, so that the server is reached only through it.
    server.call(&["CONFIG", "SET", "cluster-announce-port", &proxy.port().to_string()]);
    server.call(&["CONFIG", "SET", "cluster-announce-ip", "127.0.0.1"]);
    let slots: Vec<_> = (0..16_384).map(|slot| slot.to_string()).collect();
    let words: Vec<_> = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(|slot| &**slot)).collect();
    server.call(&words);
    let url = format!("redis+cluster://{}127.0.0.1:{}", server.access(), proxy.port());
    let is_up = async {
        while LockManager::connect(&url).await.is_err() {
            tokio::time::sleep(millis(20)).await;
        }
    };
    within(LONG, "the cluster", is_up).await;

    assert_none_is_lost(&url, &[&proxy]).await;
}

/// The replica is near its primary: its acknowledgement must arrive within 2/5 of the response
/// timeout.
#[tokio::test]
async fn no_hold_is_lost_with_replica_acks() {
    let master = RedisServer::builder().line("repl-diskless-sync-delay 0").also_allow(acl::WITH_ACKS).start();
    let _replica = RedisServer::builder().line(&format!("replicaof 127.0.0.1 {}", master.port())).start();
    let proxy = Proxy::in_front_of(&master);
    until_it_has_a_replica(&master).await;

    assert_none_is_lost(&proxy.url_with("?replica_acks=1"), &[&proxy]).await;
}

/// 300 ms is below the response timeout, and above 2/5 of it, the limit of `WAIT`.
#[tokio::test]
async fn a_replica_that_acknowledges_late_names_the_option() {
    let master = RedisServer::builder().line("repl-diskless-sync-delay 0").also_allow(acl::WITH_ACKS).start();
    let proxy = Proxy::start(master.port());
    let _replica = RedisServer::builder().line(&format!("replicaof 127.0.0.1 {}", proxy.port())).start();
    until_it_has_a_replica(&master).await;
    proxy.round_trip(millis(ROUND_TRIP));
    let url = master.url_with("?replica_acks=1");
    let manager = LockManager::connect(&url).await.expect("`WAIT` is allowed");

    let acquired = manager.lock("order:7").acquire().await.map(drop);
    let report = dlock_runtime::doctor(&url).await.expect("a URL").to_string();

    let error = acquired.expect_err("it is acknowledged too late").to_string();
    assert!(error.contains("raise `response_timeout`"), "{error}");
    assert!(report.contains("raise `response_timeout`"), "{report}");
}

async fn until_it_has_a_replica(master: &RedisServer) {
    let has_replica = async {
        while master.call(&["WAIT", "1", "100"]).integer() != Some(1) {
            tokio::time::sleep(millis(5)).await;
        }
    };
    within(LONG, "the replica", has_replica).await;
}
