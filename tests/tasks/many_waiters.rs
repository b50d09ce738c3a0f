//! T7 and T8: a thousand waiters for one key, more processes than queue entries, and ten thousand
//! keys at once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::{RedisServer, within};
use tokio::task::JoinSet;

use super::{KEY, LONG, PROMPT, assert_nothing_is_left, manager_of, until_waiting};

/// Runs `tasks` tasks of each manager, which all wait for one lock before the first acquires it.
/// Returns the number of holds.
async fn run_tasks(server: &RedisServer, managers: &[LockManager], tasks: usize) -> usize {
    let first = manager_of(server).await.lock(KEY).lease(LONG).acquire().await.expect("it is free");
    let (inside, tokens) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
    let mut calls = JoinSet::new();
    for manager in managers.iter().cycle().take(managers.len() * tasks) {
        let lock = manager.lock(KEY).lease(LONG).wait(LONG);
        let (inside, tokens) = (Arc::clone(&inside), Arc::clone(&tokens));
        calls.spawn(async move {
            lock.run(async |guard| {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two tasks hold the lock");
                let token = guard.fencing_token().await.expect("it is held");
                tokens.lock().unwrap_or_else(PoisonError::into_inner).push(token);
                inside.fetch_sub(1, Ordering::SeqCst);
            })
            .await
        });
    }
    until_waiting(server, KEY, managers.len().min(MAX_QUEUE)).await;

    first.release().await.expect("it is held");
    while let Some(ended) = within(LONG, "the next hold", calls.join_next()).await {
        ended.expect("one at a time").expect("the lock is granted");
    }

    let tokens = tokens.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(
        tokens.is_sorted_by(|earlier, later| earlier < later),
        "tokens do not rise in the order of holds"
    );
    tokens.len()
}

#[tokio::test]
async fn a_thousand_waiters_all_acquire_one_at_a_time() {
    let server = RedisServer::start();
    let mut managers = Vec::new();
    for _ in 0..4 {
        managers.push(manager_of(&server).await);
    }

    let holds = run_tasks(&server, &managers, 250).await;

    assert_eq!(holds, 1_000);
    assert_nothing_is_left(&server, PROMPT).await;
}

/// A process that finds the queue full polls.
#[tokio::test]
async fn more_processes_than_queue_entries_all_acquire() {
    let server = RedisServer::start();
    let mut managers = Vec::new();
    for _ in 0..MAX_QUEUE + 12 {
        managers.push(manager_of(&server).await);
    }

    let holds = run_tasks(&server, &managers, 1).await;

    assert_eq!(holds, MAX_QUEUE + 12);
    assert_nothing_is_left(&server, PROMPT).await;
}

#[tokio::test]
async fn ten_thousand_keys_are_renewed_and_released() {
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
    let expiring = server.call(&["EVAL", COUNT_EXPIRING, "0"]).integer();
    drop(held);

    assert_eq!((lost, keys, expiring), (0, Some(i64::from(KEYS)), Some(0)));
    assert_nothing_is_left(&server, Duration::from_secs(5)).await;
}

/// Counts keys without an expiry or with less than 1 s left.
const COUNT_EXPIRING: &str = "local expiring = 0 \
    for _, key in ipairs(redis.call('KEYS', '*')) do \
      if redis.call('PTTL', key) < 1000 then expiring = expiring + 1 end \
    end return expiring";
/// The maximum number of queue entries behind the holder in a lock's value.
const MAX_QUEUE: usize = 128;
