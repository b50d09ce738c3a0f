//! Broken connections, lost replies, and runtimes without timers.
//!
//! A lock whose lease has time left stays held, and new locks are granted.

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::{Moment, Proxy, RedisServer, thread_within, within};

use super::{LONG, manager_of, time_to_live, until_waiting};

#[tokio::test]
async fn killed_connections_are_replaced_before_the_next_request() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;

    server.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    server.call(&["CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes"]);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let granted = manager.lock("order:7").lease(LONG).acquire().await;

    assert!(granted.is_ok(), "{granted:?}");
}

/// Returns the kernel's timers of the connections to `port`, as in `/proc/net/tcp`.
///
/// Each pair is the kind of timer (2 is keepalive) and the hundredths of a second until it fires.
fn timers_of_connections_to(port: u16) -> Option<Vec<(u8, u32)>> {
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let to = format!(":{port:04X}");
    let timers = table.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [_, _, remote, "01", _, timer, ..] = *fields else { return None };
        let (timer, ends) = timer.split_once(':').filter(|_| remote.ends_with(&to))?;
        Some((timer.parse().ok()?, u32::from_str_radix(ends, 16).ok()?))
    });
    Some(timers.collect())
}

#[tokio::test]
async fn the_kernel_probes_silent_connections() {
    let server = RedisServer::start();
    if timers_of_connections_to(server.port()).is_none() {
        return println!("SKIPPED: keepalive of connections: there is no /proc/net/tcp here");
    }
    let manager = manager_of(&server).await;
    let _held = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");

    // One connection for commands, one for messages, and, once a hold is 100 ms old, one for
    // invalidations. A connection with unacknowledged data has another timer.
    let all_kept_alive = async {
        loop {
            let timers = timers_of_connections_to(server.port()).unwrap_or_default();
            if timers.len() == 3 && timers.iter().all(|(timer, ends)| *timer == 2 && *ends <= 500) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };

    within(LONG, "keepalive of all three", all_kept_alive).await;
}

#[tokio::test]
async fn a_killed_command_connection_is_replaced_before_a_request() {
    let server = RedisServer::start();
    let manager = LockManager::connect(&server.url_with("?tracking=off")).await.expect("it is open");

    server.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    // A count of connections would also count the one that runs this query.
    let name = format!(" name={} ", manager.owner());
    let connected = async {
        while !server.call(&["CLIENT", "LIST"]).text().is_some_and(|list| list.contains(&name)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(Duration::from_secs(3), "a new connection", connected).await;

    let granted = manager.lock("order:7").lease(LONG).acquire().await;
    assert!(granted.is_ok(), "{granted:?}");
}

#[tokio::test]
async fn a_lost_renewal_reply_does_not_lose_a_valid_hold() {
    let lease = Duration::from_secs(3);
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    // Otherwise an invalidation checks the lock earlier.
    let url = proxy.url_with("?response_timeout=300ms&tracking=off");
    let manager = LockManager::connect(&url).await.expect("it is open");
    let held = manager.lock("order:7").lease(lease).wait(LONG).acquire().await.expect("the lock is free");

    let answer = proxy.on_reply(b":1\r\n");
    proxy.swallow_replies();
    // A connection that has lost a reply must carry no further reply.
    within(LONG, "the answer", answer).await;
    proxy.pass();
    let lost = tokio::time::timeout(lease * 2, held.lost()).await;

    assert!(lost.is_err(), "{lost:?}");
    assert!(held.check().is_ok(), "{:?}", held.check());
    assert!(held.release().await.is_ok());
}

#[tokio::test]
async fn a_lost_confirmation_does_not_lose_a_valid_hold() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let holder = manager_of(&server).await;
    // Replies are in request order, so the dropped request must be the last one in flight.
    let url = proxy.url_with("?response_timeout=300ms&tracking=off");
    let waiter = LockManager::connect(&url).await.expect("it is open");
    let held = holder.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let lock = waiter.lock("order:7").lease(LONG).wait(LONG);
    let call = tokio::spawn(async move { lock.acquire().await });
    until_waiting(&server, "order:7", 1).await;

    proxy.drop_next_requests(1);
    let confirmation = proxy.on_request(b"dlock:order:7");
    drop(held);
    let guard = within(LONG, "the lock", call).await.expect("no panic").expect("the lock is granted");
    within(LONG, "the confirmation", confirmation).await;
    let confirmed = async {
        while time_to_live(&server, "order:7") < LONG / 2 {
            assert!(guard.check().is_ok(), "{:?}", guard.check());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(LONG, "the second confirmation", confirmed).await;

    assert!(guard.check().is_ok(), "{:?}", guard.check());
    assert!(guard.release().await.is_ok());
}

#[tokio::test]
async fn a_connection_is_dropped_after_two_missing_replies() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let url = proxy.url_with("?response_timeout=100ms");
    let manager = LockManager::connect(&url).await.expect("it is open");

    // The proxy silently breaks this connection. A new connection would work.
    proxy.drop_next_requests(1);
    let started = Moment::now();
    let granted = manager.lock("order:7").lease(LONG).wait(LONG).acquire().await;

    assert!(granted.is_ok(), "{granted:?}");
    assert!(started.elapsed() < SOON, "it took {:?}", started.elapsed());
}

#[tokio::test]
async fn a_grant_missed_without_subscription_is_found_afterwards() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let holder = manager_of(&server).await;
    // The waiter polls after an eighth of this.
    let waiter = LockManager::connect(&proxy.url_with("?grant_lease=30s")).await.expect("it is open");
    let held = holder.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let lock = waiter.lock("order:7").lease(LONG).wait(LONG);
    let call = tokio::spawn(async move { lock.acquire().await });
    until_waiting(&server, "order:7", 1).await;

    proxy.refuse();
    server.call(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    held.release().await.expect("it was held");
    proxy.accept();
    let accepted = Moment::now();
    let granted = within(LONG, "the lock", call).await.expect("no panic");

    assert!(granted.is_ok(), "{granted:?}");
    assert!(accepted.elapsed() < SOON, "it took {:?}", accepted.elapsed());
}

#[test]
fn a_manager_works_and_ends_on_a_runtime_without_timers() {
    let server = RedisServer::start();
    let url = server.url();

    let released = thread_within(Duration::from_secs(5), "the runtime without timers", move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be made");
        runtime.block_on(async {
            let manager = LockManager::connect(&url).await.expect("the server takes managers");
            let released = manager.lock("order:7").lease(LONG).acquire().await.expect("free").release().await;
            let _held = manager.lock("order:8").lease(LONG).acquire().await.expect("the lock is free");
            manager.shutdown(Duration::from_millis(100)).await;
            released
        })
    });

    assert!(released.is_ok(), "{released:?}");
    assert_eq!(time_to_live(&server, "order:8"), Duration::ZERO);
}

/// Long before a periodic check would find it.
const SOON: Duration = Duration::from_secs(2);
