//! The cost of the same operations in other deployments, and the cost of tracking.
//!
//! The deployments are Redisson's layout, a quorum, replicas, Sentinel, and a cluster.

use std::time::Duration;

use dlock_runtime::{LockGuard, LockManager};
use dlock_tests::quorum::QuorumFleet;
use dlock_tests::resp::Reply;
use dlock_tests::sentinel::{MASTER, start_sentinel};
use dlock_tests::{Proxy, RedisServer, until, within};

use super::slow_network::hand_off;
use super::wire::{ROUND_TRIP, STEADY, Wire, assert_takes, cost, time};
use super::{LONG, call, hold, release};

async fn connect(url: &str) -> LockManager {
    LockManager::connect(url).await.expect("the servers take managers")
}

#[tokio::test]
async fn redisson_layout_sends_two_commands_in_two_round_trips() {
    let wire = Wire::to(RedisServer::builder().line("save \"\"").start());
    let manager = wire.manager_with("?tracking=off&layout=redisson&response_timeout=5s").await;

    let cost = wire.cost(call(&manager, "order:7")).await;

    cost.is("2 EVALSHA", "2 evalsha, 1 exists, 1 hdel, 1 hset, 2 hstrlen, 1 pexpire, 1 publish");
    wire.proxy.round_trip(ROUND_TRIP);
    assert_takes(2, "a call", async || time(call(&manager, "order:7")).await).await;
}

#[tokio::test]
async fn a_redisson_layout_waiter_subscribes_checks_and_retries() {
    let wire = Wire::to(RedisServer::builder().line("save \"\"").start());
    let options = "?tracking=off&layout=redisson&poll_interval=60s";
    let (holder, other) = (wire.manager_with(options).await, wire.manager_with(options).await);
    let guard = hold(&holder, "order:7").await;

    let cost = wire
        .cost(async {
            let waits = tokio::spawn(async move { call(&other, "order:7").await });
            let heard = async {
                while wire.proxy.noted().len() < 3 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                holder.ready().await.expect("the server replies");
            };
            within(LONG, "the check after the subscription", heard).await;
            release(guard).await;
            waits.await.expect("the waiter does not panic");
        })
        .await;

    // Rejected, subscribed, rejected; the holder's release; acquired and released.
    assert_eq!(cost.sent, "5 EVALSHA, 1 SUBSCRIBE");
}

/// Five servers of a quorum, each behind a separate network.
struct Voters {
    wires: Vec<Wire>,
    url: String,
}

impl Voters {
    async fn start() -> Self {
        let wires: Vec<_> = (0..5).map(|_| Wire::start()).collect();
        let hosts: Vec<_> = wires.iter().map(|wire| format!("127.0.0.1:{}", wire.proxy.port())).collect();
        let url = format!("redis+quorum://{}?tracking=off&lease=2s&poll_interval=60s", hosts.join(","));
        // Twice, because the lease is two seconds, and the votes must count for that long.
        QuorumFleet::until_old_enough().await;
        QuorumFleet::until_old_enough().await;
        Self { wires, url }
    }
}

#[tokio::test]
async fn a_quorum_call_asks_all_servers_and_fencing_asks_twice() {
    let voters = Voters::start().await;
    let wires: Vec<_> = voters.wires.iter().collect();
    let cost_of_a_call = async |fences: bool| {
        let manager = connect(&voters.url).await;
        let call = async {
            let guard = hold_for_the_least(&manager).await;
            if fences {
                guard.fencing_token().await.map(drop).expect("it is held");
            }
            release(guard).await;
            manager.shutdown(LONG).await; // all five have replied
        };
        cost(&wires, call).await
    };

    let plain = cost_of_a_call(false).await;
    let fenced = cost_of_a_call(true).await;

    plain.is("5 EVALSHA, 5 SET", "5 del, 5 evalsha, 5 getrange, 5 publish, 5 set");
    // Each server issues a token, and the highest is sent to all.
    assert_eq!(fenced.sent, "15 EVALSHA, 5 SET");
}

#[tokio::test]
async fn a_quorum_call_takes_the_round_trips_of_the_majority() {
    let voters = Voters::start().await;
    let manager = connect(&voters.url).await;
    for (wire, more) in voters.wires.iter().zip([0, 0, 0, 100, 100]) {
        wire.proxy.round_trip(ROUND_TRIP + Duration::from_millis(more));
    }

    let call = async || time(async { release(hold_for_the_least(&manager).await).await }).await;
    assert_takes(2, "a call", call).await;
    let fence = async || {
        let guard = hold_for_the_least(&manager).await;
        let token = time(async { guard.fencing_token().await.map(drop).expect("it is held") }).await;
        release(guard).await;
        token
    };
    assert_takes(2, "a fencing token", fence).await;
}

/// Acquires a lock with the lease of its manager: votes count only after the longest lease.
async fn hold_for_the_least(manager: &LockManager) -> LockGuard {
    manager.lock("order:7").wait(LONG).acquire().await.expect("the lock comes")
}

#[tokio::test]
async fn replica_acks_add_one_command_and_the_replica_round_trip() {
    let wire = Wire::to(RedisServer::builder().line("repl-diskless-sync-delay 0").start());
    let theirs = Proxy::start(wire.server.port());
    let replica = RedisServer::builder().line(&format!("replicaof 127.0.0.1 {}", theirs.port())).start();
    let manager = wire.manager_with("?tracking=off&replica_acks=1&response_timeout=5s").await;
    let follows = async {
        loop {
            match manager.lock("first").acquire().await {
                Ok(guard) => break release(guard).await,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    within(LONG, "the replica follows", follows).await;

    let cost = wire.cost(call(&manager, "order:7")).await;

    assert_eq!(cost.sent, "1 EVALSHA, 1 SET, 1 WAIT");
    wire.proxy.round_trip(ROUND_TRIP);
    assert_takes(2, "a call with a replica near by", async || time(call(&manager, "order:7")).await).await;
    theirs.round_trip(ROUND_TRIP);
    assert_takes(3, "a call with a replica far away", async || time(call(&manager, "order:7")).await).await;
    drop(replica);
}

/// Checks the cost of a call and a hand-off if a grant is confirmed before its task starts.
async fn assert_grants_are_confirmed_first(wire: &Wire, url: &str) {
    let (manager, other) = (connect(url).await, connect(url).await);
    // In a cluster, the first call on a primary connects to it.
    call(&manager, "order:7").await;
    call(&other, "order:7").await;

    let alone = wire.cost(call(&manager, "order:7")).await;
    let hands_off = wire
        .cost(async {
            hand_off(wire, [&manager, &other]).await;
        })
        .await;

    assert_eq!(alone.sent, "1 EVALSHA, 1 SET");
    // Two processes acquire, and one of them enqueues. Then two releases and a confirmation.
    assert_eq!(hands_off.sent, "4 EVALSHA, 2 SET");
    wire.proxy.round_trip(ROUND_TRIP);
    assert_takes(2, "a call", async || time(call(&manager, "order:7")).await).await;
    assert_takes(2, "a hand-off", async || hand_off(wire, [&manager, &other]).await).await;
}

#[tokio::test]
async fn with_sentinel_a_grant_is_confirmed_in_one_more_round_trip() {
    let wire = Wire::to(RedisServer::builder().line("save \"\"").start());
    let sentinel = start_sentinel(wire.proxy.port());
    let url = format!("redis+sentinel://127.0.0.1:{}/{MASTER}{STEADY}", sentinel.port());

    assert_grants_are_confirmed_first(&wire, &url).await;
}

#[tokio::test]
async fn in_a_cluster_a_grant_is_confirmed_in_one_more_round_trip() {
    let wire = Wire::to(RedisServer::builder().of_a_cluster(Duration::from_secs(5)).start());
    let slots: Vec<_> = (0..16_384).map(|slot| slot.to_string()).collect();
    let words: Vec<_> = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(|slot| &**slot)).collect();
    assert_eq!(wire.server.call(&words), Reply::Status("OK".to_owned()));
    wire.server.call(&["CONFIG", "SET", "cluster-announce-port", &wire.proxy.port().to_string()]);
    if !format!("{:?}", wire.server.call(&["CLUSTER", "SLOTS"])).contains(&wire.proxy.port().to_string()) {
        println!("SKIPPED: round trips in a cluster: this server announces only its own port");
        return;
    }
    let is_up = async {
        while !wire.server.call(&["CLUSTER", "INFO"]).text().is_some_and(|info| info.contains("state:ok")) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(LONG, "the cluster is up", is_up).await;
    let url = format!("redis+cluster://127.0.0.1:{}{STEADY}", wire.proxy.port());

    assert_grants_are_confirmed_first(&wire, &url).await;
}

#[tokio::test]
async fn a_long_hold_is_checked_once_for_tracking() {
    let wire = Wire::start();
    let manager = wire.manager_with("").await;
    // The first long hold establishes the tracking connection, and is checked again over it.
    let first = hold(&manager, "first").await;
    until("both checks", async || wire.server.command_count("getrange") >= 2).await;
    release(first).await;

    let cost = wire
        .cost(async {
            let lives = manager.lock("order:7").lease(Duration::from_millis(1_500));
            let guard = lives.acquire().await.expect("the lock is free");
            let _checked = wire.proxy.on_request(b"GETRANGE").await;
            let _renewed = wire.proxy.on_request(b"EVALSHA").await;
            release(guard).await;
        })
        .await;

    assert_eq!(cost.sent, "2 EVALSHA, 1 GETRANGE, 1 SET"); // checked, renewed, released
}
