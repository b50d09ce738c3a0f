//! What the same operations cost where locks stand in another way, or elsewhere: in Redisson's layout, on servers that vote, with replicas,
//! behind Sentinel, in a cluster; and what it costs to be told of a theft.

use std::time::Duration;

use dlock_runtime::{LockGuard, LockManager};
use dlock_tests::quorum::QuorumFleet;
use dlock_tests::resp::Reply;
use dlock_tests::sentinel::{MASTER, start_sentinel};
use dlock_tests::{Proxy, RedisServer, within};

use super::slow::hand_over;
use super::wire::{ROUND_TRIP, STEADY, Wire, assert_takes, cost, time};
use super::{LONG, call, hold, release};

async fn connect(url: &str) -> LockManager {
    LockManager::connect(url).await.expect("the servers take managers")
}

#[tokio::test]
async fn in_redissons_layout_a_call_sends_two_commands_in_two_trips() {
    let wire = Wire::to(RedisServer::builder().line("save \"\"").start());
    let manager = wire.manager_with("?tracking=off&layout=redisson&response_timeout=5s").await;

    let cost = wire.cost(call(&manager, "order:7")).await;

    cost.is("2 EVALSHA", "2 evalsha, 1 exists, 1 hdel, 1 hset, 2 hstrlen, 1 pexpire, 1 publish");
    wire.proxy.round_trip(ROUND_TRIP);
    assert_takes(2, "a call", async || time(call(&manager, "order:7")).await).await;
}

#[tokio::test]
async fn in_redissons_layout_who_waits_listens_looks_and_tries_again() {
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
                holder.ready().await.expect("the server answers");
            };
            within(LONG, "the look behind the subscription", heard).await;
            release(guard).await;
            waits.await.expect("the waiter does not panic");
        })
        .await;

    // Refused, subscribed, refused; the holder's release; taken and let go of.
    assert_eq!(cost.sent, "5 EVALSHA, 1 SUBSCRIBE");
}

/// Five servers that vote, each behind a network of its own.
struct Voters {
    wires: Vec<Wire>,
    url: String,
}

impl Voters {
    async fn start() -> Self {
        let wires: Vec<_> = (0..5).map(|_| Wire::start()).collect();
        let hosts: Vec<_> = wires.iter().map(|wire| format!("127.0.0.1:{}", wire.proxy.port())).collect();
        let url = format!("redis+quorum://{}?tracking=off&lease=2s&poll_interval=60s", hosts.join(","));
        // Twice the lease that is waited for, so that a busy server's answer is waited for twice as long.
        QuorumFleet::until_old_enough().await;
        QuorumFleet::until_old_enough().await;
        Self { wires, url }
    }
}

#[tokio::test]
async fn servers_that_vote_are_all_asked_for_each_call_and_twice_for_a_fencing_token() {
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
            manager.shutdown(LONG).await; // all five have answered
        };
        cost(&wires, call).await
    };

    let plain = cost_of_a_call(false).await;
    let fenced = cost_of_a_call(true).await;

    plain.is("5 EVALSHA, 5 SET", "5 del, 5 evalsha, 5 getrange, 5 publish, 5 set");
    // What each issues, and the highest of it made known to all.
    assert_eq!(fenced.sent, "15 EVALSHA, 5 SET");
}

#[tokio::test]
async fn servers_that_vote_take_the_trips_of_the_majority() {
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

/// Takes a lock with the lease of its manager: the word of a server counts once it has been up for the longest.
async fn hold_for_the_least(manager: &LockManager) -> LockGuard {
    manager.lock("order:7").wait(LONG).acquire().await.expect("the lock comes")
}

#[tokio::test]
async fn what_replicas_must_acknowledge_is_one_command_more_and_their_trip() {
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

/// Checks what a call and a hand-over cost where a grant is confirmed before its task starts.
async fn assert_grants_are_confirmed_first(wire: &Wire, url: &str) {
    let (manager, other) = (connect(url).await, connect(url).await);
    // In a cluster the first call on a master connects to it.
    call(&manager, "order:7").await;
    call(&other, "order:7").await;

    let alone = wire.cost(call(&manager, "order:7")).await;
    let hands_over = wire
        .cost(async {
            hand_over(wire, [&manager, &other]).await;
        })
        .await;

    assert_eq!(alone.sent, "1 EVALSHA, 1 SET");
    // Two that acquire, of which one queues up; two releases and a confirmation.
    assert_eq!(hands_over.sent, "4 EVALSHA, 2 SET");
    wire.proxy.round_trip(ROUND_TRIP);
    assert_takes(2, "a call", async || time(call(&manager, "order:7")).await).await;
    assert_takes(2, "a hand-over", async || hand_over(wire, [&manager, &other]).await).await;
}

#[tokio::test]
async fn behind_sentinels_a_grant_is_confirmed_by_one_trip_and_one_command_more() {
    let wire = Wire::to(RedisServer::builder().line("save \"\"").start());
    let sentinel = start_sentinel(wire.proxy.port());
    let url = format!("redis+sentinel://127.0.0.1:{}/{MASTER}{STEADY}", sentinel.port());

    assert_grants_are_confirmed_first(&wire, &url).await;
}

#[tokio::test]
async fn in_a_cluster_a_grant_is_confirmed_by_one_trip_and_one_command_more() {
    let wire = Wire::to(RedisServer::builder().of_a_cluster(Duration::from_secs(5)).start());
    let slots: Vec<_> = (0..16_384).map(|slot| slot.to_string()).collect();
    let words: Vec<_> = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(|slot| &**slot)).collect();
    assert_eq!(wire.server.call(&words), Reply::Status("OK".to_owned()));
    wire.server.call(&["CONFIG", "SET", "cluster-announce-port", &wire.proxy.port().to_string()]);
    if !format!("{:?}", wire.server.call(&["CLUSTER", "SLOTS"])).contains(&wire.proxy.port().to_string()) {
        println!("SKIPPED: trips in a cluster: this server tells no other port than its own");
        return;
    }
    let is_up = async {
        while !wire.server.call(&["CLUSTER", "INFO"]).text().is_some_and(|told| told.contains("state:ok")) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(LONG, "the cluster is up", is_up).await;
    let url = format!("redis+cluster://127.0.0.1:{}{STEADY}", wire.proxy.port());

    assert_grants_are_confirmed_first(&wire, &url).await;
}

#[tokio::test]
async fn a_hold_that_lives_is_checked_once_so_that_its_theft_is_told() {
    let wire = Wire::start();
    let manager = wire.manager_with("").await;
    // The first that lives has the connection made over which changes are told, and is checked again over that.
    let first = hold(&manager, "first").await;
    let _ = wire.proxy.on_request(b"TRACKING").await;
    let _ = wire.proxy.on_request(b"GETRANGE").await;
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

    assert_eq!(cost.sent, "2 EVALSHA, 1 GETRANGE, 1 SET"); // checked, renewed, let go of
}
