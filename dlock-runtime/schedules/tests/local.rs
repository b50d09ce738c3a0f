//! Orders of what the threads of one process do with what they share of the engine: drawn, since there are too many to try all.
//!
//! The models stand beside the engine (`engine::interleavings`), since they use what nobody else may. A seed is fifty schedules of each
//! model: those of an even seed have every thread go on as likely as every other, those of an odd one go by priorities that
//! change now and then (PCT), which finds what few changes at the right places lead to.
//!
//! | variable | |
//! |---|---|
//! | `DLOCK_SHUTTLE` | how many schedules of each model; 500 unless set |
//! | `DLOCK_SHUTTLE_FROM` | the first seed; 0 unless set |
//! | `DLOCK_SHUTTLE_SEED` | one seed alone: it fails in the same schedule again |

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use dlock_schedules::{Model, models};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

/// How many schedules a seed is.
const OF_A_SEED: u64 = 50;

/// How many changes of priority there are in a schedule by priorities, and one.
const DEPTH: usize = 4;

/// No schedule is as long by far; one in which threads go round in circles is.
const MOST_STEPS: usize = 200_000;

/// Returns the number that a variable says, if it is set.
fn number(variable: &str) -> Option<u64> {
    let said = std::env::var(variable).ok()?;
    Some(said.parse().unwrap_or_else(|_| panic!("{variable} is no number: {said}")))
}

/// Runs the schedules of a seed. Returns in which of them the model failed, if it did, and how.
fn run_seed(model: &Model, seed: u64) -> Result<(), (u64, String)> {
    let schedules = Arc::new(AtomicU64::new(0));
    let (counted, run) = (Arc::clone(&schedules), model.run);
    let each = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        run();
    };
    let mut config = Config::new();
    config.stack_size = 256 * 1024;
    config.max_steps = MaxSteps::FailAfter(MOST_STEPS);
    config.failure_persistence = FailurePersistence::None; // a seed is shorter
    let many = usize::try_from(OF_A_SEED).expect("it is small");
    let ran = catch_unwind(AssertUnwindSafe(|| {
        if seed % 2 == 0 {
            Runner::new(RandomScheduler::new_from_seed(seed, many), config).run(each)
        } else {
            Runner::new(PctScheduler::new_from_seed(seed, DEPTH, many), config).run(each)
        }
    }));
    ran.map(drop).map_err(|panic| {
        let told = panic.downcast_ref::<String>().cloned();
        let told = told.or_else(|| panic.downcast_ref::<&str>().map(|told| (*told).to_owned()));
        (schedules.load(Ordering::Relaxed), told.unwrap_or_else(|| "it panicked".to_owned()))
    })
}

/// Runs the seeds of a model one after the other until it fails. Returns how many did not, and the one that did.
fn run_seeds(model: &Model, seeds: impl Iterator<Item = u64>) -> (u64, Option<(u64, u64, String)>) {
    let mut sound = 0;
    for seed in seeds {
        match run_seed(model, seed) {
            Ok(()) => sound += 1,
            Err((schedule, told)) => return (sound, Some((seed, schedule, told))),
        }
    }
    (sound, None)
}

#[test]
fn no_drawn_order_of_threads_breaks_a_promise_and_each_planted_fault_is_found() {
    let seeds = match number("DLOCK_SHUTTLE_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let from = number("DLOCK_SHUTTLE_FROM").unwrap_or(0);
            from..from + number("DLOCK_SHUTTLE").unwrap_or(500).div_ceil(OF_A_SEED)
        }
    };
    let (begun, mut schedules, mut broken, mut missed) = (Instant::now(), 0, Vec::new(), Vec::new());
    for model in models() {
        let begun = Instant::now();
        let (sound, failed) = run_seeds(&model, seeds.clone());
        let took = begun.elapsed().as_secs_f64();
        match (failed, model.is_faulty) {
            (None, false) => {
                schedules += sound * OF_A_SEED;
                println!("{}: {} schedules, {took:.1} s", model.name, sound * OF_A_SEED);
            }
            (Some((seed, schedule, told)), true) => {
                println!("{}: found by seed {seed} in schedule {schedule}, {took:.1} s: {told}", model.name);
            }
            (Some((seed, schedule, told)), false) => {
                broken
                    .push(format!("{}: DLOCK_SHUTTLE_SEED={seed} (schedule {schedule}): {told}", model.name));
            }
            (None, true) => missed.push(model.name),
        }
    }
    println!(
        "campaign: shuttle: {schedules} schedules, seeds {}..{}, {} violations, {:.1} s",
        seeds.start,
        seeds.end,
        broken.len(),
        begun.elapsed().as_secs_f64()
    );
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(missed.is_empty(), "planted faults that were not found: {missed:#?}");
    assert!(schedules > 0, "nothing was run");
}
