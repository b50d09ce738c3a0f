//! All clients and two of our managers on one lock, which guards a counter that is read and written
//! 3 ms later.
//!
//! A lost update shows two holders at once. Polling clients acquire the lock with
//! `yield_to_foreign=on`, and starve without it.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::resp::Reply;
use dlock_tests::{Client, Fleet, RedisServer, within};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

use crate::{KEY, LIMIT, LONG, LONG_MS, NAME, manager, start};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_clients_acquire_and_no_update_is_lost() {
    let server = RedisServer::start();
    let (mut fleets, missing) = all_clients(&server).await;
    if !missing.is_empty() {
        println!("SKIPPED: a part of the soak, without {}", missing.join("; "));
    }
    let length = length();

    let holds = soak(&server, &mut fleets, "?yield_to_foreign=on", length).await;

    println!("{length:?} with yield_to_foreign=on: {holds}");
    assert_eq!(counter(&server), holds.total(), "an update was lost: {holds}");
    assert!(holds.ours.iter().all(|holds| *holds > 0), "{holds}");
    assert!(holds.theirs.iter().all(|(_, holds)| *holds > 0), "{holds}");
}

/// Shows that the option has an effect. The behavior without it is not guaranteed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polling_clients_starve_without_yield_to_foreign() {
    let server = RedisServer::start();
    let mut fleet = match start(Client::RedisPy, &server).await {
        Ok(fleet) => vec![fleet],
        Err(missing) => return println!("SKIPPED: {missing}"),
    };

    let ours = soak(&server, &mut fleet, "", STARVING).await;
    let yielding = soak(&server, &mut fleet, "?yield_to_foreign=on", STARVING).await;

    println!("{STARVING:?} with yield_to_foreign=off: {ours}; with yield_to_foreign=on: {yielding}");
    let (without, with) = (ours.theirs[0].1, yielding.theirs[0].1);
    assert!(with > 0 && without * 3 <= with, "without: {without}, with: {with}");
    assert_eq!(counter(&server), ours.total() + yielding.total(), "an update was lost");
}

/// The number of holds of each client.
struct Holds {
    ours: Vec<u64>,
    theirs: Vec<(Client, u64)>,
}

impl Holds {
    fn total(&self) -> u64 {
        self.ours.iter().chain(self.theirs.iter().map(|(_, holds)| holds)).sum()
    }
}

impl std::fmt::Display for Holds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let theirs = self.theirs.iter().fold(String::new(), |mut text, (client, holds)| {
            let _ = write!(text, ", {client:?} {holds}");
            text
        });
        write!(f, "our managers {:?}{theirs}", self.ours)
    }
}

async fn all_clients(server: &RedisServer) -> (Vec<Fleet>, Vec<String>) {
    let (mut fleets, mut missing) = (Vec::new(), Vec::new());
    for client in Client::SET_NX {
        match start(client, server).await {
            Ok(fleet) => fleets.push(fleet),
            Err(why) => missing.push(why),
        }
    }
    (fleets, missing)
}

/// Runs all clients. Our managers hold the lock before the others start, and continue until they
/// have finished.
async fn soak(server: &RedisServer, fleets: &mut [Fleet], options: &str, length: Duration) -> Holds {
    let managers = [manager(server, options).await, manager(server, options).await];
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for (number, manager) in managers.iter().enumerate() {
        for _ in 0..TASKS {
            let (manager, server, over) = (manager.clone(), server.raw().await, Arc::clone(&over));
            tasks.spawn(async move { (number, acquire_repeatedly(&manager, server, &over).await) });
        }
    }
    let taken = async {
        while server.call(&["EXISTS", NAME]) == Reply::Integer(0) {
            tokio::time::sleep(HOLD).await;
        }
    };
    within(LIMIT, "a hold of ours", taken).await;
    for fleet in &mut *fleets {
        let (seconds, hold) = (length.as_secs_f64(), HOLD.as_millis());
        fleet.send(&format!("soak {NAME} {COUNTER} {seconds} {hold} {LONG_MS}"));
    }

    let mut holds = Holds { ours: vec![0; managers.len()], theirs: Vec::new() };
    for fleet in fleets {
        let answer = fleet.answer(length + LIMIT).await;
        let done = answer.strip_prefix("done ").and_then(|holds| holds.parse().ok());
        holds.theirs.push((fleet.client(), done.unwrap_or_else(|| panic!("{:?}: {answer}", fleet.client()))));
    }
    over.store(true, Ordering::Relaxed);
    for (number, taken) in tasks.join_all().await {
        holds.ours[number] += taken;
    }
    holds
}

/// Acquires the lock repeatedly without a pause until `over` is set. Returns the number of holds.
async fn acquire_repeatedly(
    manager: &LockManager,
    mut server: MultiplexedConnection,
    over: &AtomicBool,
) -> u64 {
    let mut holds = 0;
    while !over.load(Ordering::Relaxed) {
        let guard = manager.lock(KEY).lease(LONG).wait(LONG).acquire().await.expect("all holders release");
        let seen: Option<u64> = server.get(COUNTER).await.expect("the server replies");
        tokio::time::sleep(HOLD).await;
        let () = server.set(COUNTER, seen.unwrap_or_default() + 1).await.expect("the server replies");
        guard.release().await.expect("it was held");
        holds += 1;
    }
    holds
}

fn counter(server: &RedisServer) -> u64 {
    server.call(&["GET", COUNTER]).text().and_then(|count| count.parse().ok()).unwrap_or_default()
}

fn length() -> Duration {
    let asked = std::env::var("DLOCK_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(asked.unwrap_or(7))
}

const COUNTER: &str = "counter";

/// Tasks per manager.
const TASKS: usize = 4;

const HOLD: Duration = Duration::from_millis(3);

/// Long enough for several holds of a client that polls every 100 ms.
const STARVING: Duration = Duration::from_millis(2_500);
