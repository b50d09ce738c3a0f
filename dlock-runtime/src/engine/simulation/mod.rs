//! Runs the engine in simulations that lose, delay, stop, and cancel. A seed decides each schedule.
//!
//! All code is the shipped code, except for the server, the network, and the clock: managers,
//! guards, `Lock::run`, renewals, hand-off, joins, background releases. A simulation has up to
//! three processes and one server. Its executor polls their tasks, drops them at any await, and
//! ignores wakers that are not the latest of their task.
//!
//! | variable | meaning |
//! |---|---|
//! | `DLOCK_ENGINE_SEEDS` | the number of simulations; 2,000 by default |
//! | `DLOCK_ENGINE_FROM` | the first seed; 0 by default |
//! | `DLOCK_ENGINE_SEED` | one seed; prints a trace if it fails |
//!
//! | module | contents |
//! |---|---|
//! | `fault_profile` | which faults happen, and how often |
//! | `model` | the simulation: its events and its time |
//! | `network`, `server` | the messages between processes and the server |
//! | `calls` | what tasks do |
//! | `executor` | how tasks are polled |
//! | `invariants` | what must never happen |
//! | `cancel` | drops every public future at every await |

mod calls;
mod cancel;
mod executor;
mod fault_profile;
mod invariants;
mod model;
mod network;
mod server;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use self::model::EngineSimulation;
use crate::simulated::number;
use crate::sync::lock;

/// The events that every campaign must cover. A fault that does not happen finds nothing.
const FAULTS: &[&str] = &[
    "a body panics",
    "a body stopped",
    "a call joins",
    "a connection cut",
    "a driver stopped",
    "a forced release",
    "a fork",
    "a grant doubled",
    "a grant lost",
    "a guard leaked",
    "a jump of the clock",
    "a loss reported",
    "a poll without a wake-up",
    "a process stopped",
    "a promotion",
    "a renewal deferred",
    "a reply lost",
    "a reply too late",
    "a request doubled",
    "a request lost",
    "a request run late",
    "a request under a hold dropped",
    "a restart with data",
    "a restart without data",
    "a run lost after its body completed",
    "a run lost by a fork",
    "a run lost",
    "a run on a distant server without faults",
    "a shutdown",
    "a spawned call joins",
    "a task dropped at a given time",
    "an invalidation",
    "another lock inside",
    "executed after its cleanup",
    "invalidations missed",
    "rejected without a connection",
    "rejected: contended",
    "rejected: deadlock",
    "rejected: forked",
    "rejected: lost before its start",
    "rejected: shut down",
    "rejected: unavailable",
    "sent one by one",
    "tasks stopped",
    "the clock jumped within a step",
    "two calls join concurrently",
];

/// Runs the simulations of these seeds on all cores, until more than 20 fail. Returns how many ran,
/// the seeds that failed, and the coverage.
fn run_all(from: u64, count: u64) -> (u64, Vec<(u64, String)>, BTreeMap<&'static str, u64>) {
    let (next, failed) = (AtomicU64::new(from), Mutex::new(Vec::new()));
    let coverage = Mutex::new(BTreeMap::new());
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
                    match EngineSimulation::of_seed(seed, false).run() {
                        Ok(simulation) => {
                            let mut coverage = lock(&coverage);
                            for (what, times) in &lock(&simulation.net.state).coverage {
                                *coverage.entry(*what).or_default() += times;
                            }
                        }
                        Err(wrong) => lock(&failed).push((seed, wrong)),
                    }
                }
            });
        }
    });
    let (mut failed, coverage) =
        (failed.into_inner().unwrap_or_default(), coverage.into_inner().unwrap_or_default());
    failed.sort();
    (next.into_inner().min(from + count) - from, failed, coverage)
}

#[test]
fn no_schedule_of_the_engine_breaks_a_promise() {
    if let Some(seed) = number("DLOCK_ENGINE_SEED") {
        if let Err(trace) = EngineSimulation::of_seed(seed, true).run() {
            panic!("DLOCK_ENGINE_SEED={seed}: {trace}");
        }
        return;
    }
    let (from, count) =
        (number("DLOCK_ENGINE_FROM").unwrap_or(0), number("DLOCK_ENGINE_SEEDS").unwrap_or(2_000));
    assert!(count > 0, "no seeds to run: that proves nothing");
    let begun = Instant::now();

    let (done, failed, coverage) = run_all(from, count);

    let took = begun.elapsed().as_secs_f64();
    println!(
        "campaign: engine: {done} schedules, seeds {from}..{}, {} violations, {took:.1} s",
        from + done,
        failed.len()
    );
    println!("{coverage:?}");
    let lines: Vec<_> = failed
        .iter()
        .map(|(seed, wrong)| {
            format!("DLOCK_ENGINE_SEED={seed}: {}", wrong.lines().next().unwrap_or_default())
        })
        .collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
    let missing: Vec<_> = FAULTS.iter().filter(|fault| !coverage.contains_key(**fault)).collect();
    assert!(count < 2_000 || missing.is_empty(), "never happened: {missing:?}");
}
