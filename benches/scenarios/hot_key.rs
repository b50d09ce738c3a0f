//! 64 tasks of one process want one key, and the body is empty: how often the lock changes hands.
//!
//! Acquisitions by the task that had the lock last do not count. Every entry looks whether somebody else is inside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use dlock_runtime::{LockManager, distributed_lock};
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

use crate::Failure;
use crate::report::Goal;
use crate::scenarios::Bench;
use crate::server::Work;
use crate::usage::float;

const TASKS: u64 = 64;

#[distributed_lock(key = "hot", lease = "30s", wait = "60s", manager = locks)]
async fn enter(locks: &LockManager, room: &Room, task: u64) -> Result<(), dlock_runtime::Error> {
    if room.inside.swap(true, Relaxed) {
        room.overlap.store(true, Relaxed);
    }
    if room.last.swap(task, Relaxed) != task {
        room.changes.fetch_add(1, Relaxed);
    }
    room.inside.store(false, Relaxed);
    Ok(())
}

/// What the lock guards.
#[derive(Debug)]
struct Room {
    inside: AtomicBool,
    overlap: AtomicBool,
    last: AtomicU64,
    changes: AtomicU64,
}

/// One round.
#[derive(Debug)]
struct Round {
    changes_per_second: f64,
    commands_per_change: f64,
    /// Entries of the busiest task to those of the one that had the fewest.
    share: f64,
}

pub(crate) async fn measure(mut bench: Bench<'_>) -> Result<(), Failure> {
    let locks = LockManager::connect(&bench.server.url()).await?;
    let mut info = bench.server.connect().await?;
    let span = Duration::from_millis(if bench.short { 500 } else { 1_500 });
    run(&locks, span / 4, &mut info).await?; // warms it up
    let mut rounds = Vec::new();
    for _ in 0..bench.rounds {
        rounds.push(run(&locks, span, &mut info).await?);
    }
    let each = |figure: fn(&Round) -> f64| rounds.iter().map(figure).collect();
    bench.add("hand-overs", "/s", each(|round| round.changes_per_second), Some(Goal::AtLeast(200_000.0)));
    // None but that of the yield, which comes once in every hand-off budget of 20 ms.
    bench.add(
        "commands per hand-over",
        "",
        each(|round| round.commands_per_change),
        Some(Goal::AtMost(0.01)),
    );
    bench.add("share of tasks, max to min", "x", each(|round| round.share), None);
    Ok(())
}

async fn run(
    locks: &LockManager,
    span: Duration,
    info: &mut MultiplexedConnection,
) -> Result<Round, Failure> {
    let room = Arc::new(Room {
        inside: AtomicBool::new(false),
        overlap: AtomicBool::new(false),
        last: AtomicU64::new(u64::MAX),
        changes: AtomicU64::new(0),
    });
    let before = Work::of(info).await?;
    let begun = Instant::now();
    let mut running = JoinSet::new();
    for task in 0..TASKS {
        let (locks, room) = (locks.clone(), Arc::clone(&room));
        running.spawn(async move {
            let mut entries: u64 = 0;
            while begun.elapsed() < span {
                enter(&locks, &room, task).await?;
                entries += 1;
            }
            Ok::<_, dlock_runtime::Error>(entries)
        });
    }
    let (mut most, mut fewest) = (0, u64::MAX);
    while let Some(done) = running.join_next().await {
        let entries = done??;
        (most, fewest) = (most.max(entries), fewest.min(entries));
    }
    let took = begun.elapsed().as_secs_f64();
    let commands = Work::of(info).await?.since(before).commands;
    if room.overlap.load(Relaxed) {
        return Err("two tasks were inside at once".into());
    }
    let changes = float(room.changes.load(Relaxed));
    Ok(Round {
        changes_per_second: changes / took,
        commands_per_change: float(commands) / changes.max(1.0),
        share: float(most) / float(fewest.max(1)),
    })
}
