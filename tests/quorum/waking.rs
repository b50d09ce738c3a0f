//! Wake-up of waiters when a lock is released: by a message from any server, without polling.

use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::quorum::{Fate, LEASE, subscribers};
use dlock_tests::world::name;
use dlock_tests::{Moment, Proxy, QuorumFleet, RedisServer, within};

const SOON: Duration = Duration::from_secs(10);
/// The delay of each reply.
const DELAY: Duration = Duration::from_millis(20);
/// No waiter polls during a test.
const NO_POLL: &str = "&poll_interval=60s";

async fn until_subscribed(server: &RedisServer, key: &str, count: i64) {
    let subscribed = async {
        while subscribers(server, key) != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(SOON, &format!("{key}: {count} subscribers"), subscribed).await;
}

/// Waits until `manager` knows which servers are down.
///
/// It still waits for their votes while it tries to reconnect to them. Such a vote decides a try if
/// the message of one server arrives before the release at the other. `up` is a server that is not
/// down, and `key` is not locked yet.
async fn until_no_vote_is_awaited(manager: &LockManager, up: &RedisServer, key: &str) {
    // Of the two servers that are up, one refuses the lock.
    up.call(&["SET", &name(key), "another client"]);
    let knows_all = async {
        loop {
            let tried = Moment::now();
            let refused = manager.lock(key).acquire().await.expect_err("it is taken on one server");
            assert!(matches!(refused, Error::Contended { .. } | Error::Unavailable { .. }), "{refused}");
            if tried.elapsed() < Duration::from_millis(50) {
                return;
            }
        }
    };
    within(SOON, "a try that waits for no vote", knows_all).await;
}

/// Spawns a task of `manager` that waits for `key`, and returns the time of its acquire.
fn wait_for(manager: &LockManager, key: &str) -> tokio::task::JoinHandle<Moment> {
    let lock = manager.lock(key).wait(SOON);
    tokio::spawn(async move {
        let held = lock.acquire().await.expect("it is released in time");
        let at = Moment::now();
        drop(held);
        at
    })
}

#[tokio::test]
async fn a_waiter_is_woken_by_whichever_servers_are_left() {
    let mut fleet = QuorumFleet::start(3).await;
    // The second connect that times out shows that a server is down.
    let options = format!("{NO_POLL}&connect_timeout=500ms");
    let (ours, theirs) = (fleet.manager(&options).await, fleet.manager(&options).await);
    for few in [vec![], vec![0], vec![1], vec![2]] {
        let key = format!("woken:{few:?}");
        fleet.befall(&few, Fate::Frozen);
        let up = (0..3).find(|at| !few.contains(at)).expect("most servers are up");
        if !few.is_empty() {
            until_no_vote_is_awaited(&theirs, &fleet.servers()[up], &format!("probe:{few:?}")).await;
        }
        let held = ours.lock(&*key).wait(SOON).acquire().await.expect("the lock is free");
        let waiter = wait_for(&theirs, &key);
        until_subscribed(&fleet.servers()[up], &key, 1).await;
        tokio::time::sleep(Duration::from_millis(50)).await;

        let released = Moment::now();
        drop(held);
        let woken = within(SOON, &key, waiter).await.expect("it does not panic").since(released);

        println!("{key}: woken after {woken:?}");
        assert!(woken < Duration::from_millis(100), "{key}: {woken:?}");
        fleet.heal(&few, Fate::Frozen);
    }
}

#[tokio::test]
async fn a_release_between_the_try_and_the_sleep_is_not_missed() {
    let fleet = QuorumFleet::start(3).await;
    let (ours, theirs) = (fleet.manager(NO_POLL).await, fleet.manager(NO_POLL).await);

    for round in 0..100_u64 {
        let key = format!("between:{round}");
        let held = ours.lock(&*key).wait(SOON).acquire().await.expect("the lock is free");
        let waiter = wait_for(&theirs, &key);
        // At an arbitrary point in the waiter's first three round trips.
        tokio::time::sleep(Duration::from_micros(round * 30)).await;
        drop(held);

        // This is before the lease expires, when the waiter tries again anyway.
        within(LEASE / 2, &key, waiter).await.expect("it does not panic");
    }
}

/// A release between a waiter's try and its subscription sends a message that the waiter does not
/// receive.
#[tokio::test]
async fn waiter_checks_once_more_after_subscribing() {
    let mut fleet = QuorumFleet::start(3).await;
    let ours = fleet.manager(NO_POLL).await;
    let proxies: Vec<_> = fleet.servers().iter().map(Proxy::in_front_of).collect();
    let mut url = fleet.url_with(NO_POLL);
    for (server, proxy) in fleet.servers().iter().zip(&proxies) {
        url = url.replace(&format!(":{}", server.port()), &format!(":{}", proxy.port()));
    }
    let theirs = LockManager::connect(&url).await.expect("the quorum is up");
    let held = ours.lock("order:7").wait(SOON).acquire().await.expect("the lock is free");

    for proxy in &proxies {
        proxy.delay_replies(DELAY);
        proxy.note_requests();
    }
    let waiter = wait_for(&theirs, "order:7");
    let has_checked = |proxy: &Proxy| {
        let sent = proxy.noted();
        let subscribed = sent.iter().find(|sent| sent.name == "SUBSCRIBE").map(|sent| sent.at + DELAY);
        sent.iter()
            .any(|sent| sent.name == "EVALSHA" && subscribed.is_some_and(|subscribed| sent.at >= subscribed))
    };
    let checked = async {
        while !proxies.iter().all(has_checked) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    // This is before the lease expires, when the waiter tries again anyway.
    within(LEASE / 2, "a check at each server after the subscription", checked).await;

    drop(held);
    within(SOON, "the waiter", waiter).await.expect("it does not panic");
}

#[tokio::test]
async fn channels_are_unsubscribed_when_no_task_waits() {
    let mut fleet = QuorumFleet::start(3).await;
    let (ours, theirs) = (fleet.manager(NO_POLL).await, fleet.manager(NO_POLL).await);
    let held = ours.lock("order:7").wait(SOON).acquire().await.expect("the lock is free");
    let waiter = wait_for(&theirs, "order:7");
    until_subscribed(&fleet.servers()[0], "order:7", 1).await;

    drop(held);
    within(SOON, "the waiter", waiter).await.expect("it does not panic");

    until_subscribed(&fleet.servers()[0], "order:7", 0).await;
}

#[tokio::test]
async fn after_its_connection_was_cut_a_waiter_listens_again() {
    let mut fleet = QuorumFleet::start(3).await;
    let (ours, theirs) = (fleet.manager(NO_POLL).await, fleet.manager(NO_POLL).await);
    let held = ours.lock("order:7").wait(SOON).acquire().await.expect("the lock is free");
    let waiter = wait_for(&theirs, "order:7");
    for server in fleet.servers() {
        until_subscribed(server, "order:7", 1).await;
        server.call(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
    for server in fleet.servers() {
        until_subscribed(server, "order:7", 1).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;

    let released = Moment::now();
    drop(held);
    let woken = within(SOON, "the waiter", waiter).await.expect("it does not panic").since(released);

    assert!(woken < Duration::from_millis(100), "{woken:?}");
}

#[tokio::test]
async fn forged_messages_cause_a_bounded_rate_of_tries() {
    let mut fleet = QuorumFleet::start(3).await;
    let (ours, theirs) = (fleet.manager(NO_POLL).await, fleet.manager(NO_POLL).await);
    let _held = ours.lock("order:7").wait(SOON).acquire().await.expect("the lock is free");
    let waiter = wait_for(&theirs, "order:7");
    let server = &fleet.servers()[0];
    until_subscribed(server, "order:7", 1).await;
    let channel = format!("dlock:free:{}", name("order:7"));
    let mut forger = server.raw().await;
    let (before, begun) = (server.command_count("set"), Moment::now());

    while begun.elapsed() < Duration::from_millis(500) {
        let mut flood = redis::pipe();
        (0..100).for_each(|_| {
            flood.cmd("PUBLISH").arg(&channel).arg("x").ignore();
        });
        flood.query_async::<()>(&mut forger).await.expect("the server accepts the messages");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }

    let tries = server.command_count("set") - before;
    println!("{tries} tries in {:?}", begun.elapsed());
    assert!((2..=300).contains(&tries), "{tries} tries in half a second");
    waiter.abort();
}
