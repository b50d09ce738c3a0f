//! Connections that break, answers that are lost, runtimes without timers: a hold that has time left stays, and new ones are given.

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::{Moment, Proxy, RedisServer, thread_within, within};

use super::{LONG, manager_of, time_to_live, until_waiting};

#[tokio::test]
async fn a_manager_whose_connections_were_killed_has_new_ones_before_they_are_asked_for() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;

    server.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    server.call(&["CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes"]);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let granted = manager.lock("order:7").lease(LONG).acquire().await;

    assert!(granted.is_ok(), "{granted:?}");
}

/// Returns the timers of the connections to a port that the kernel has, as `/proc/net/tcp` writes them: which one it is (2 is that of
/// keepalive), and in how many hundredths of a second it ends.
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
async fn the_kernel_finds_out_whether_the_other_end_of_a_silent_connection_is_there() {
    let server = RedisServer::start();
    if timers_of_connections_to(server.port()).is_none() {
        return println!("SKIPPED: keepalive of connections: there is no /proc/net/tcp here");
    }
    let manager = manager_of(&server).await;
    let _held = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");

    // One for commands, one for messages, and one that tells of thefts, once a hold is a tenth of a second old. While something is under
    // way on a connection its timer is another.
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
async fn a_connection_for_commands_that_alone_was_ended_is_made_anew_before_it_is_asked_for() {
    let server = RedisServer::start();
    let manager = LockManager::connect(&server.url_with("?tracking=off")).await.expect("it is open");

    server.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let connected = async {
        // The last thing that one for commands says before it is asked for anything. To count them would count those of who asks, too.
        while !server.call(&["CLIENT", "LIST"]).text().is_some_and(|list| list.contains("cmd=script")) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(Duration::from_secs(3), "a new connection", connected).await;

    let granted = manager.lock("order:7").lease(LONG).acquire().await;
    assert!(granted.is_ok(), "{granted:?}");
}

#[tokio::test]
async fn a_renewal_whose_answer_is_lost_does_not_lose_a_hold_that_has_time_left() {
    let lease = Duration::from_secs(2);
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let url = proxy.url_with("?response_timeout=100ms&tracking=off"); // else it is asked about before
    let manager = LockManager::connect(&url).await.expect("it is open");
    let held = manager.lock("order:7").lease(lease).acquire().await.expect("the lock is free");

    let answer = proxy.on_reply(b":1\r\n");
    proxy.swallow_replies();
    // The connection that has lost one carries no further answer.
    within(LONG, "the answer", answer).await;
    proxy.pass();
    let lost = tokio::time::timeout(lease * 2, held.lost()).await;

    assert!(lost.is_err(), "{lost:?}");
    assert!(held.check().is_ok(), "{:?}", held.check());
    assert!(held.release().await.is_ok());
}

#[tokio::test]
async fn a_confirmation_that_is_lost_does_not_lose_a_hold_that_has_time_left() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let holder = manager_of(&server).await;
    // Answers come in the order of the requests: one that is dropped must be the last that is under way.
    let url = proxy.url_with("?response_timeout=100ms&tracking=off");
    let waiter = LockManager::connect(&url).await.expect("it is open");
    let held = holder.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let lock = waiter.lock("order:7").lease(LONG).wait(LONG);
    let call = tokio::spawn(async move { lock.acquire().await });
    until_waiting(&server, "order:7", 1).await;

    proxy.drop_next_requests(1);
    let confirmation = proxy.on_request(b"dlock:order:7");
    drop(held);
    let guard = within(LONG, "the lock", call).await.expect("no panic").expect("its turn comes");
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
async fn a_connection_that_answers_no_more_is_given_up_after_two_answers_that_do_not_come() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let url = proxy.url_with("?response_timeout=100ms");
    let manager = LockManager::connect(&url).await.expect("it is open");

    // This connection is dead without a word; another one would not be.
    proxy.drop_next_requests(1);
    let started = Moment::now();
    let granted = manager.lock("order:7").lease(LONG).wait(LONG).acquire().await;

    assert!(granted.is_ok(), "{granted:?}");
    assert!(started.elapsed() < SOON, "it took {:?}", started.elapsed());
}

#[tokio::test]
async fn what_was_granted_while_nobody_heard_is_asked_for_once_somebody_hears_again() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let holder = manager_of(&server).await;
    // It looks by itself after an eighth of that.
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
fn a_manager_works_on_a_runtime_without_timers_and_ends_there() {
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

/// Long before what is looked at now and then, whatever happens, would have found it.
const SOON: Duration = Duration::from_secs(2);
