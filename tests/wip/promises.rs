//! What the lock promises over a real Redis: under a frozen server, theft, black holes and killed processes.
//!
//! Times are judged on the boot clock. What a test measures, it says in its assertion; slack for a busy machine is a named constant.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::resp::Reply;
use dlock_tests::world::{FOREIGN, ids_in, name};
use dlock_tests::{Moment, Proxy, RedisServer, Worker, within};
use tokio::sync::oneshot;

const LONG: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(1);
/// How long a lease is believed in: it ends one per cent and 2 ms early.
const BELIEVED: Duration = Duration::from_millis(988);
/// How late a loss may be told.
const TOLD: Duration = Duration::from_millis(50);
/// How late a process may be scheduled on a busy machine.
const SLACK: Duration = Duration::from_millis(100);

const WORKER: &str = env!("CARGO_BIN_EXE_lock-worker");

async fn manager_of(server: &RedisServer) -> LockManager {
    LockManager::connect(&server.url()).await.expect("the server takes managers")
}

/// Returns when `count` contenders of other processes stand behind the holder of `key`.
async fn until_waiting(server: &RedisServer, key: &str, count: usize) {
    let come = async {
        while ids_in(server.call(&["GET", &name(key)]).text().unwrap_or_default()) <= count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(Duration::from_secs(10), &format!("{count} waiting for {key}"), come).await;
}

/// A body that notes the boot clock at every poll, ticking for ever.
async fn tick(last_poll: &AtomicU64) {
    loop {
        last_poll.store(Moment::now().nanos(), Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

// The key

#[tokio::test]
async fn a_lock_is_one_key_with_its_name_and_a_ttl() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;

    let held = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let (keys, ttl) = (server.call(&["KEYS", "*"]), server.call(&["PTTL", "dlock:order:7"]));
    held.release().await.expect("it was held");

    assert_eq!(keys.texts(), ["dlock:order:7"]);
    assert!(ttl.integer().is_some_and(|ttl| (28_000..=30_000).contains(&ttl)), "{ttl:?}");
    assert_eq!(server.call(&["DBSIZE"]), Reply::Integer(0));
}

#[tokio::test]
async fn a_namespace_of_the_url_replaces_the_default_one() {
    let server = RedisServer::start();
    let shop = LockManager::connect(&server.url_with("?namespace=shop")).await.expect("a good URL");
    let bare = LockManager::connect(&server.url_with("?namespace=")).await.expect("a good URL");

    let _of_shop = shop.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let _bare = bare.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");

    let mut keys = server.call(&["KEYS", "*"]).texts();
    keys.sort();
    assert_eq!(keys, ["order:7", "shop:order:7"]);
}

#[tokio::test]
async fn an_uncontended_lock_costs_one_set_and_one_script() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    manager.lock("warm").lease(LONG).acquire().await.expect("free").release().await.expect("held");
    let (sets, scripts) = (server.command_count("set"), server.command_count("evalsha"));

    for _ in 0..20 {
        manager.lock("order:7").lease(LONG).acquire().await.expect("free").release().await.expect("held");
    }

    assert_eq!(server.command_count("set") - sets, 20);
    assert_eq!(server.command_count("evalsha") - scripts, 20);
    assert_eq!(server.command_count("eval"), 0);
}

/// P4.
#[tokio::test]
async fn every_key_has_a_ttl_at_every_instant() {
    const KEYS_WITHOUT_TTL: &str = "local bad = {} \
        for _, key in ipairs(redis.call('KEYS', '*')) do \
          if redis.call('PTTL', key) == -1 then bad[#bad + 1] = key end \
        end return bad";
    let server = Arc::new(RedisServer::start());
    let stop = Arc::new(AtomicBool::new(false));
    let mut contenders = Vec::new();
    for _ in 0..3 {
        let manager = manager_of(&server).await;
        for task in 0..8 {
            let lock = manager.lock(format!("key:{}", task % 4).as_str()).lease(LEASE).wait(LONG);
            let stop = Arc::clone(&stop);
            contenders.push(tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let guard = lock.acquire().await.expect("its turn comes");
                    guard.fencing_token().await.expect("it is held");
                    guard.release().await.expect("it was held");
                }
            }));
        }
    }

    let scanned = Arc::clone(&server);
    let scan = tokio::task::spawn_blocking(move || {
        let bad = (0..500).map(|_| scanned.call(&["EVAL", KEYS_WITHOUT_TTL, "0"]));
        bad.filter(|reply| *reply != Reply::List(Vec::new())).collect::<Vec<_>>()
    });
    let bad = scan.await.expect("the scan does not panic");
    stop.store(true, Ordering::SeqCst);
    for contender in contenders {
        contender.await.expect("no contender panics");
    }

    assert_eq!(bad, []);
}

// P1: the body and its deadline

#[tokio::test]
async fn a_frozen_server_stops_the_body_before_the_lease_ends() {
    let server = RedisServer::start();
    let lock = manager_of(&server).await.lock("order:7").lease(LEASE);
    let last_poll = Arc::new(AtomicU64::new(0));
    let of_body = Arc::clone(&last_poll);
    let (entered, has_entered) = oneshot::channel();
    let call = tokio::spawn(async move {
        lock.run(async |_guard| {
            let _ = entered.send(());
            tick(&of_body).await;
        })
        .await
    });
    has_entered.await.expect("the body starts");

    server.pause();
    let frozen = Moment::now();
    let outcome = within(LEASE * 3, "the loss", call).await.expect("the call does not panic");
    let told = Moment::now();

    let last_poll = Moment::from_nanos(last_poll.load(Ordering::SeqCst));
    assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
    // Whatever was renewed was sent before the server froze.
    assert!(last_poll < frozen + BELIEVED, "polled {:?} after the freeze", last_poll.since(frozen));
    assert!(told < frozen + LEASE + TOLD + SLACK, "told {:?} after the freeze", told.since(frozen));
}

#[tokio::test]
async fn a_process_that_was_frozen_past_its_lease_does_not_poll_its_body_again() {
    let server = RedisServer::start();
    let mut frozen = Worker::spawn(WORKER, &[server.url()]).await;
    let mut other = Worker::spawn(WORKER, &[server.url()]).await;
    frozen.send("run order:7 1000 0");
    frozen.event("entered", "order:7").await;

    frozen.pause();
    let stopped = Moment::now();
    other.send("acquire order:7 30000 30000");
    let taken = other.event("acquired", "order:7").await;
    frozen.resume();
    let failed = frozen.event_or_failure("left", "order:7").await;

    assert!(taken.at < stopped + LEASE + Duration::from_millis(250), "{:?}", taken.at.since(stopped));
    assert!(failed.detail.starts_with("Lost"), "{failed:?}");
    let last_poll = failed.detail.rsplit_once("last_poll=").and_then(|(_, nanos)| nanos.parse().ok());
    let last_poll = Moment::from_nanos(last_poll.expect("the worker says when it was polled last"));
    assert!(last_poll < taken.at, "polled {:?} after the next holder", last_poll.since(taken.at));
}

#[tokio::test]
async fn a_blocked_body_is_not_polled_after_its_lease_though_the_server_is_away() {
    let server = RedisServer::start();
    let lock = manager_of(&server).await.lock("order:7").lease(LEASE);
    let went_on = Arc::new(AtomicBool::new(false));
    let of_body = Arc::clone(&went_on);

    let outcome = lock
        .run(async |_guard| {
            server.pause();
            // The worker is blocked, which no timer of its runtime can see.
            std::thread::sleep(LEASE * 2);
            tokio::task::yield_now().await;
            of_body.store(true, Ordering::SeqCst);
        })
        .await;
    server.resume();

    assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
    assert!(!went_on.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_body_that_blocks_its_only_worker_keeps_its_lease() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;

    let outcome = manager
        .lock("order:7")
        .lease(LEASE)
        .run(async |guard| {
            std::thread::sleep(LEASE * 3);
            guard.check()
        })
        .await;

    assert!(matches!(outcome, Ok(Ok(()))), "{outcome:?}");
}

// P2: only our own

#[tokio::test]
async fn a_deleted_key_is_noticed_by_the_next_renewal_and_never_made_again() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let held = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");

    server.call(&["DEL", "dlock:order:7"]);
    let deleted = Moment::now();
    within(LONG, "the loss", held.lost()).await;
    let told = deleted.elapsed();
    tokio::time::sleep(LEASE).await;

    assert!(told < LEASE / 3 + SLACK, "{told:?}");
    assert_eq!(server.call(&["EXISTS", "dlock:order:7"]), Reply::Integer(0));
    drop(held);
}

#[tokio::test]
async fn a_stolen_key_is_noticed_by_the_next_renewal_and_left_as_it_is() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let held = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");

    server.call(&["SET", "dlock:order:7", FOREIGN, "PX", "60000"]);
    let stolen = Moment::now();
    within(LONG, "the loss", held.lost()).await;
    let told = stolen.elapsed();
    drop(held);
    // Over the same connection, so that whatever the drop sends has been executed.
    manager.lock("order:8").acquire().await.expect("free").release().await.expect("held");

    assert!(told < LEASE / 3 + SLACK, "{told:?}");
    assert_eq!(server.call(&["GET", "dlock:order:7"]), Reply::Text(FOREIGN.to_owned()));
    let ttl = server.call(&["PTTL", "dlock:order:7"]).integer();
    assert!(ttl.is_some_and(|ttl| ttl > 50_000), "{ttl:?}");
}

#[tokio::test]
async fn a_foreign_holder_is_waited_for_and_never_queued_into() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    server.call(&["SET", "dlock:order:7", FOREIGN, "PX", "60000"]);
    let lock = manager.lock("order:7").lease(LONG).wait(LONG);

    let refused = lock.clone().wait(Duration::from_millis(300)).acquire().await;
    let untouched = server.call(&["GET", "dlock:order:7"]);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    server.call(&["DEL", "dlock:order:7"]);
    let granted = within(Duration::from_secs(5), "the lock", waiter).await.expect("no panic");

    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
    assert_eq!(untouched, Reply::Text(FOREIGN.to_owned()));
    assert!(granted.is_ok(), "{granted:?}");
}

#[tokio::test]
async fn flushed_scripts_are_loaded_again() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let held = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");

    server.call(&["SCRIPT", "FLUSH"]);
    let released = held.release().await;

    assert!(released.is_ok(), "{released:?}");
    assert_eq!(server.call(&["EXISTS", "dlock:order:7"]), Reply::Integer(0));
}

#[tokio::test]
async fn a_manager_outlives_a_restart_of_its_server() {
    let mut server = RedisServer::start();
    let manager = manager_of(&server).await;
    let held = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");

    server.kill();
    server.restart();
    within(LEASE * 3, "the loss", held.lost()).await;
    let again = manager.lock("order:7").lease(LONG).wait(Duration::from_secs(5)).acquire().await;

    assert!(again.is_ok(), "{again:?}");
}

// P3: acquiring ends within its limit

#[tokio::test]
async fn acquiring_through_a_black_hole_ends_within_its_wait() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let manager = LockManager::connect(&proxy.url()).await.expect("the way is open");
    proxy.black_hole();
    let wait = Duration::from_millis(800);

    for attempt in 0..3 {
        let started = Moment::now();
        let refused = manager.lock("order:7").lease(LONG).wait(wait).acquire().await;
        let took = started.elapsed();

        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        assert!(took < wait + SLACK, "attempt {attempt}: {took:?}");
    }
}

#[tokio::test]
async fn acquiring_through_a_black_hole_ends_within_its_tries() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let manager = LockManager::connect(&proxy.url()).await.expect("the way is open");
    proxy.black_hole();
    let (delay, response_timeout) = (Duration::from_millis(20), Duration::from_millis(500));

    for retry in [0, 1, 3] {
        let started = Moment::now();
        let refused = manager.lock("order:7").lease(LONG).retry(retry).backoff(delay, delay).acquire().await;
        let took = started.elapsed();

        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        let limit = response_timeout * (retry + 1) + delay * retry;
        assert!(took < limit + SLACK, "{retry} retries: {took:?}");
    }
}

#[tokio::test]
async fn a_hundred_acquirers_of_a_frozen_server_all_end_within_their_limit() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    server.pause();
    let wait = Duration::from_millis(700);

    let started = Moment::now();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..100 {
        let lock = manager.lock(format!("key:{}", number % 10).as_str()).lease(LONG).wait(wait);
        tasks.spawn(async move { lock.acquire().await });
    }
    let outcomes = tasks.join_all().await;
    let took = started.elapsed();
    server.resume();

    // Who stood behind another task of its process cannot tell a slow turn from a server that is away.
    let is_typed = |outcome: &Result<_, Error>| {
        matches!(outcome, Err(Error::Unavailable { .. } | Error::Contended { .. }))
    };
    assert!(outcomes.iter().all(is_typed), "{outcomes:?}");
    assert!(took < wait + SLACK, "{took:?}");
}

#[tokio::test]
async fn an_abandoned_attempt_blocks_others_for_at_most_its_lease() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let cut_off = LockManager::connect(&proxy.url()).await.expect("the way is open");
    let other = manager_of(&server).await;
    proxy.swallow_replies();

    let refused = cut_off.lock("order:7").lease(LEASE).acquire().await;
    let started = Moment::now();
    let granted = other.lock("order:7").lease(LONG).wait(LONG).acquire().await;
    let took = started.elapsed();

    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    assert!(granted.is_ok(), "{granted:?}");
    assert!(took < LEASE + SLACK, "{took:?}");
}

#[tokio::test]
async fn an_abandoned_attempt_is_cleaned_up_when_the_way_is_open_again() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let cut_off = LockManager::connect(&proxy.url()).await.expect("the way is open");
    let other = manager_of(&server).await;
    proxy.swallow_replies();
    let refused = cut_off.lock("order:7").lease(LONG).acquire().await;

    proxy.pass();
    proxy.reset_all();
    let started = Moment::now();
    let granted = other.lock("order:7").lease(LONG).wait(LONG).acquire().await;
    let took = started.elapsed();

    assert!(refused.is_err(), "{refused:?}");
    assert!(granted.is_ok(), "{granted:?}");
    assert!(took < Duration::from_secs(5), "the orphan stood until its lease ended: {took:?}");
}

// Liveness, with real processes

#[tokio::test]
async fn the_lock_of_a_killed_process_is_free_within_its_lease() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let mut holder = Worker::spawn(WORKER, &[server.url()]).await;
    holder.send("acquire order:7 1000 0");
    holder.event("acquired", "order:7").await;
    let lock = manager.lock("order:7").lease(LONG).wait(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until_waiting(&server, "order:7", 1).await;

    holder.kill();
    let killed = Moment::now();
    let granted = waiter.await.expect("the waiter does not panic");
    let took = killed.elapsed();

    assert!(granted.is_ok(), "{granted:?}");
    assert!(took < LEASE + Duration::from_millis(250), "{took:?}");
}

#[tokio::test]
async fn a_killed_waiter_does_not_hold_up_those_behind_it() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let held = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let mut dead = Worker::spawn(WORKER, &[server.url()]).await;
    let mut alive = Worker::spawn(WORKER, &[server.url()]).await;
    dead.send("acquire order:7 30000 30000");
    until_waiting(&server, "order:7", 1).await;
    alive.send("acquire order:7 30000 30000");
    until_waiting(&server, "order:7", 2).await;
    dead.kill();

    let released = Moment::now();
    held.release().await.expect("it was held");
    let granted = alive.event("acquired", "order:7").await;

    // The server may not have seen yet that the dead one's connection is closed: then its grant lease of 1 s is the bound.
    assert!(granted.at < released + Duration::from_millis(1_250), "{:?}", granted.at.since(released));
}

#[tokio::test]
async fn a_release_reaches_the_next_process_within_five_milliseconds() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let mut next = Worker::spawn(WORKER, &[server.url()]).await;
    let mut took = Vec::new();

    for _ in 0..50 {
        let held = manager.lock("order:7").lease(LONG).wait(LONG).acquire().await.expect("its turn comes");
        next.send("acquire order:7 30000 30000");
        until_waiting(&server, "order:7", 1).await;
        let released = Moment::now();
        held.release().await.expect("it was held");
        took.push(next.event("acquired", "order:7").await.at.since(released));
        next.send("release order:7");
        next.event("released", "order:7").await;
    }

    took.sort();
    assert!(took[25] < Duration::from_millis(5), "median of {took:?}");
    assert!(took[49] < Duration::from_millis(250), "longest of {took:?}");
}

#[tokio::test]
async fn processes_that_take_turns_get_rising_fencing_tokens() {
    let server = RedisServer::start();
    let mut workers =
        [Worker::spawn(WORKER, &[server.url()]).await, Worker::spawn(WORKER, &[server.url()]).await];
    let mut tokens = Vec::new();

    for turn in 0..6 {
        let worker = &mut workers[turn % 2];
        worker.send("acquire order:7 30000 30000");
        worker.event("acquired", "order:7").await;
        worker.send("token order:7");
        let token = worker.event("token", "order:7").await.detail;
        tokens.push(token.parse::<u64>().expect("a token is a number"));
        worker.send("release order:7");
        worker.event("released", "order:7").await;
    }

    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}

#[test]
fn the_worker_ends_with_its_input() {
    let server = RedisServer::start();

    // Its input is nothing, which ends at once.
    let mut command = Command::new(WORKER);
    let output = command.arg(server.url()).stdin(std::process::Stdio::null()).output();

    assert!(output.is_ok_and(|output| output.status.success()));
}
