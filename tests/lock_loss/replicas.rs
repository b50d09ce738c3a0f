//! A server without the key takes over (A3), or an old primary continues to run after a failover.
//!
//! The new primary has another address, like after a failover for a process that starts later. See
//! also `tests/sentinel` and `tests/cluster` for managers that follow a failover.

use std::time::Duration;

use dlock_runtime::Error;
use dlock_tests::resp::Reply;
use dlock_tests::{Moment, Proxy, RedisServer, acl, within};

use super::{Holder, LEASE, NAME, SOON, assert_kept, assert_lost_and_fenced};

/// A primary and a replica that copies it over a network that can be cut.
struct Pair {
    master: RedisServer,
    network: Proxy,
    replica: RedisServer,
}

impl Pair {
    async fn start(of_master: &[&str]) -> Self {
        let builder = of_master
            .iter()
            .fold(RedisServer::builder().also_allow(acl::WITH_ACKS), |builder, line| builder.line(line));
        let master = builder.line("repl-diskless-sync-delay 0").start();
        let network = Proxy::start(master.port());
        let replica = RedisServer::builder().line(&format!("replicaof 127.0.0.1 {}", network.port())).start();
        until_replicated(&master, &replica).await;
        Self { master, network, replica }
    }
}

/// Waits until the replica has all writes so far.
pub(super) async fn until_replicated(master: &RedisServer, replica: &RedisServer) {
    let marker = format!("{:?}", Moment::now());
    let replicated = async {
        while replica.call(&["EXISTS", &marker]) != Reply::Integer(1) {
            // A server with `min-replicas-to-write` rejects this until a replica is connected.
            master.call(&["SET", &marker, "x"]);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(Duration::from_secs(20), "a replica that has everything", replicated).await;
}

pub(super) fn promote(replica: &RedisServer) {
    assert_eq!(replica.call(&["REPLICAOF", "NO", "ONE"]), Reply::Status("OK".to_owned()));
}

#[tokio::test]
async fn a_failover_before_replication_loses_the_lock() {
    let mut pair = Pair::start(&[]).await;
    pair.network.hold_replies();
    let first = Holder::of(&pair.master).await;

    pair.master.kill();
    promote(&pair.replica);

    assert_lost_and_fenced(&first, &pair.replica.url()).await;
}

#[tokio::test]
async fn a_failover_after_replication_keeps_the_lock() {
    let pair = Pair::start(&[]).await;
    let first = Holder::of(&pair.master).await;
    until_replicated(&pair.master, &pair.replica).await;

    promote(&pair.replica);

    assert_kept(first, &pair.replica.url()).await;
}

#[tokio::test]
async fn an_isolated_old_primary_keeps_renewing() {
    let pair = Pair::start(&[]).await;
    pair.network.hold_replies();
    let first = Holder::of(&pair.master).await;

    promote(&pair.replica);

    assert_lost_and_fenced(&first, &pair.replica.url()).await;
    tokio::time::sleep(LEASE + LEASE / 6).await;
    assert!(first.guard.check().is_ok(), "the old primary has renewed it: {:?}", first.guard.check());
}

#[tokio::test]
async fn an_isolated_primary_with_min_replicas_stops_renewing() {
    let pair = Pair::start(&["min-replicas-to-write 1", "min-replicas-max-lag 1"]).await;
    let first = Holder::of(&pair.master).await;

    pair.network.hold_replies();
    pair.network.hold_requests();
    promote(&pair.replica);

    within(LEASE + SOON, "the loss", first.guard.lost()).await;
    assert!(matches!(first.guard.check(), Err(Error::Lost { .. })));
}

#[tokio::test]
async fn a_replica_added_later_lacks_acknowledged_locks() {
    let pair = Pair::start(&[]).await;
    let known = RedisServer::builder().line(&format!("replicaof 127.0.0.1 {}", pair.master.port())).start();
    until_replicated(&pair.master, &known).await;
    pair.network.hold_replies();
    let first = Holder::at(&pair.master.url_with("?replica_acks=1")).await;
    assert_eq!(known.call(&["EXISTS", NAME]), Reply::Integer(1), "it was acknowledged");

    promote(&pair.replica);

    assert_lost_and_fenced(&first, &pair.replica.url()).await;
}
