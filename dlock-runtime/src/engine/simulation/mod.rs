//! The engine against a world that loses, delays, stops and cancels: whole schedules, each from a seed, under a clock that the world sets.
//!
//! Everything is real but the server and the way to it: managers, guards, `Lock::run`, the watchdog, hand-over, joins, releases in the
//! background. A world has up to three processes on one server. Their tasks are polled by an executor of its own, which drops them at
//! any await, and never wakes a task by a waker that is not its latest.
//!
//! | variable | |
//! |---|---|
//! | `DLOCK_ENGINE_SEEDS` | how many worlds; 2,000 unless set |
//! | `DLOCK_ENGINE_FROM` | the first seed; 0 unless set |
//! | `DLOCK_ENGINE_SEED` | one world alone, whose story is told if it fails |
//!
//! `weather` is what a world is like, `world` what happens in it, `network` and `server` what is between its processes, `calls` what
//! their tasks do, `executor` who polls them, `judges` what must never be; `cancel` drops every
//! public future at every await, one after the other. Not here: schedules of the rules alone (`protocol::simulation`).

mod calls;
mod cancel;
mod executor;
mod judges;
mod network;
mod server;
mod weather;
mod world;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use self::world::World;
use crate::simulated::number;
use crate::sync::lock;

/// What has to happen in every campaign: a fault that happens no more finds nothing.
const FAULTS: &[&str] = &[
    "a body panics",
    "a body stopped",
    "a call joins",
    "a connection cut",
    "a driver stopped",
    "a fork",
    "a grant doubled",
    "a grant lost",
    "a guard forgotten",
    "a hint",
    "a jump of the clock",
    "a lock forced",
    "a loss told",
    "a poll without a wake-up",
    "a process stopped",
    "a promotion",
    "a renewal put off",
    "a reply lost",
    "a request doubled",
    "a request lost",
    "a request run late",
    "a request under a hold dropped",
    "a restart with data",
    "a restart without data",
    "a run far away while nothing goes wrong",
    "a run lost",
    "a run lost when its body had completed",
    "a run lost by a fork",
    "a shutdown",
    "a spawned call joins",
    "a task dropped at a time",
    "an answer too late",
    "another lock inside",
    "hints missed",
    "refused at once",
    "refused: contended",
    "refused: deadlock",
    "refused: forked",
    "refused: lost before its start",
    "refused: shut down",
    "refused: unavailable",
    "run when nobody could undo it any more",
    "sent one by one",
    "tasks stopped",
    "the clock jumped in the middle",
    "two calls join side by side",
];

/// Runs the worlds of these seeds on all cores, until too many fail. Returns how many it took, the seeds that failed, and how often each
/// thing happened.
fn run_all(from: u64, count: u64) -> (u64, Vec<(u64, String)>, BTreeMap<&'static str, u64>) {
    let (next, failed) = (AtomicU64::new(from), Mutex::new(Vec::new()));
    let happened = Mutex::new(BTreeMap::new());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    if lock(&failed).len() > 20 {
                        return;
                    }
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count {
                        return;
                    }
                    match World::of_seed(seed, false).run() {
                        Ok(world) => {
                            let mut happened = lock(&happened);
                            for (what, times) in &lock(&world.net.state).happened {
                                *happened.entry(*what).or_default() += times;
                            }
                        }
                        Err(wrong) => lock(&failed).push((seed, wrong)),
                    }
                }
            });
        }
    });
    let (mut failed, happened) =
        (failed.into_inner().unwrap_or_default(), happened.into_inner().unwrap_or_default());
    failed.sort();
    (next.into_inner().min(from + count) - from, failed, happened)
}

#[test]
fn no_schedule_of_the_engine_breaks_a_promise() {
    if let Some(seed) = number("DLOCK_ENGINE_SEED") {
        if let Err(story) = World::of_seed(seed, true).run() {
            panic!("DLOCK_ENGINE_SEED={seed}: {story}");
        }
        return;
    }
    let (from, count) =
        (number("DLOCK_ENGINE_FROM").unwrap_or(0), number("DLOCK_ENGINE_SEEDS").unwrap_or(2_000));
    assert!(count > 0, "no seeds are asked for: that proves nothing");
    let begun = Instant::now();

    let (done, failed, happened) = run_all(from, count);

    let took = begun.elapsed().as_secs_f64();
    println!(
        "campaign: engine: {done} schedules, seeds {from}..{}, {} violations, {took:.1} s",
        from + done,
        failed.len()
    );
    println!("{happened:?}");
    let lines: Vec<_> = failed
        .iter()
        .map(|(seed, wrong)| {
            format!("DLOCK_ENGINE_SEED={seed}: {}", wrong.lines().next().unwrap_or_default())
        })
        .collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
    let missing: Vec<_> = FAULTS.iter().filter(|fault| !happened.contains_key(**fault)).collect();
    assert!(count < 2_000 || missing.is_empty(), "never happened: {missing:?}");
}
