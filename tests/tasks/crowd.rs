//! T7 and T8: a thousand waiters on one key, more processes than a queue has places, and ten thousand keys at a time.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::{RedisServer, within};
use tokio::task::JoinSet;

use super::{KEY, LONG, PROMPT, assert_nothing_is_left, manager_of, until_waiting};

/// Lets each of `managers` have `tasks` tasks want one lock, all of which wait before the first has it; returns how many turns there
/// were.
async fn take_turns(server: &RedisServer, managers: &[LockManager], tasks: usize) -> usize {
    let first = manager_of(server).await.lock(KEY).lease(LONG).acquire().await.expect("it is free");
    let (inside, tokens) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
    let mut calls = JoinSet::new();
    for manager in managers.iter().cycle().take(managers.len() * tasks) {
        let lock = manager.lock(KEY).lease(LONG).wait(LONG);
        let (inside, tokens) = (Arc::clone(&inside), Arc::clone(&tokens));
        calls.spawn(async move {
            lock.run(async |guard| {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold at once");
                let token = guard.fencing_token().await.expect("it is held");
                tokens.lock().unwrap_or_else(PoisonError::into_inner).push(token);
                inside.fetch_sub(1, Ordering::SeqCst);
            })
            .await
        });
    }
    until_waiting(server, KEY, managers.len().min(MOST_PLACES)).await;

    first.release().await.expect("it is held");
    while let Some(ended) = within(LONG, "the next turn", calls.join_next()).await {
        ended.expect("one at a time").expect("its turn comes");
    }

    let tokens = tokens.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "tokens fall in the order of holding");
    tokens.len()
}

#[tokio::test]
async fn a_thousand_waiters_of_one_key_all_have_their_turn_one_at_a_time() {
    let server = RedisServer::start();
    let mut managers = Vec::new();
    for _ in 0..4 {
        managers.push(manager_of(&server).await);
    }

    let turns = take_turns(&server, &managers, 250).await;

    assert_eq!(turns, 1_000);
    assert_nothing_is_left(&server, PROMPT).await;
}

/// Who finds the queue full polls.
#[tokio::test]
async fn more_processes_than_a_queue_has_places_all_have_their_turn() {
    let server = RedisServer::start();
    let mut managers = Vec::new();
    for _ in 0..MOST_PLACES + 12 {
        managers.push(manager_of(&server).await);
    }

    let turns = take_turns(&server, &managers, 1).await;

    assert_eq!(turns, MOST_PLACES + 12);
    assert_nothing_is_left(&server, PROMPT).await;
}

#[tokio::test]
async fn ten_thousand_keys_are_held_beyond_their_lease_and_let_go_of() {
    const KEYS: u32 = 10_000;
    let lease = Duration::from_secs(4);
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let mut calls = JoinSet::new();
    for number in 0..KEYS {
        let lock = manager.lock(format!("order:{number}")).lease(lease).wait(LONG);
        calls.spawn(async move { lock.acquire().await });
    }
    let mut held = Vec::new();
    while let Some(call) = within(LONG, "all locks", calls.join_next()).await {
        held.push(call.expect("no panic").expect("it is free"));
    }

    tokio::time::sleep(lease + lease / 4).await;
    let lost = held.iter().filter(|guard| guard.check().is_err()).count();
    let keys = server.call(&["DBSIZE"]).integer();
    let dying = server.call(&["EVAL", ABOUT_TO_DIE, "0"]).integer();
    drop(held);

    assert_eq!((lost, keys, dying), (0, Some(i64::from(KEYS)), Some(0)));
    assert_nothing_is_left(&server, Duration::from_secs(5)).await;
}

/// How many keys have no end, or less than a second to live.
const ABOUT_TO_DIE: &str = "local dying = 0 \
    for _, key in ipairs(redis.call('KEYS', '*')) do \
      if redis.call('PTTL', key) < 1000 then dying = dying + 1 end \
    end return dying";
/// So many can stand behind the holder in the value of a lock.
const MOST_PLACES: usize = 128;
