//! Runs the shuttle models of the engine in random schedules, since there are too many to try all.
//!
//! The models are in `engine::interleavings`, since they use private parts of the engine. A seed is
//! 50 schedules of each model. With an even seed, each thread is equally likely to run next. With
//! an odd seed, threads run by priorities that change up to three times (PCT), which finds faults
//! that need few switches at the right places.
//!
//! | variable | meaning |
//! |---|---|
//! | `DLOCK_SHUTTLE` | the number of schedules of each model; 400 by default |
//! | `DLOCK_SHUTTLE_FROM` | the first seed; 0 by default |
//! | `DLOCK_SHUTTLE_SEED` | one seed; it fails in the same schedule again |

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use dlock_schedules::{Model, coverage, models};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

/// The number of schedules of a seed.
const SCHEDULES_PER_SEED: u64 = 50;

/// The number of priority changes in a PCT schedule, plus one.
const DEPTH: usize = 4;

/// Far more steps than any schedule has, unless its threads loop forever.
const MAX_STEPS: usize = 200_000;

/// The stack size of a thread. Polls of an unoptimized build are deep.
const STACK: usize = 256 * 1024;

/// Returns the number in a variable, or `None` if it is not set.
fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {value}")))
}

/// Runs the schedules of a seed. Returns how many ran, and the panic of the last one if it failed.
fn run_seed(model: &Model, seed: u64) -> (u64, std::thread::Result<()>) {
    let schedules = Arc::new(AtomicU64::new(0));
    let (counted, run) = (Arc::clone(&schedules), model.run);
    let each = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        run();
    };
    let mut config = Config::new();
    config.stack_size = STACK;
    config.max_steps = MaxSteps::FailAfter(MAX_STEPS);
    config.failure_persistence = FailurePersistence::None; // the seed is enough to repeat it
    config.silence_warnings = true; // `engine::interleavings` documents them
    let many = usize::try_from(SCHEDULES_PER_SEED).expect("a small number");
    let ran = catch_unwind(AssertUnwindSafe(|| {
        if seed.is_multiple_of(2) {
            Runner::new(RandomScheduler::new_from_seed(seed, many), config).run(each)
        } else {
            Runner::new(PctScheduler::new_from_seed(seed, DEPTH, many), config).run(each)
        }
    }));
    (schedules.load(Ordering::Relaxed), ran.map(drop))
}

/// Runs the seeds of a model until it fails. Returns the number of schedules, and an unexpected
/// result.
fn run_seeds(model: &Model, seeds: Range<u64>) -> (u64, Option<String>) {
    let (begun, mut all) = (Instant::now(), 0);
    let mut failed = None;
    for seed in seeds {
        let (schedules, ran) = run_seed(model, seed);
        all += schedules;
        if ran.is_err() {
            failed = Some((seed, schedules, ran));
            break;
        }
    }
    let took = begun.elapsed().as_secs_f64();
    let Some((seed, schedule, ran)) = failed else {
        println!("{}: {all} schedules, {took:.1} s", model.name);
        return (all, model.fault.map(|fault| format!("{}: not found: {fault}", model.name)));
    };
    let (message, is_expected) = model.check(ran);
    let message =
        format!("{}: seed {seed}, schedule {schedule}: {}", model.name, message.unwrap_or_default());
    println!("{message}, {took:.1} s");
    (
        all,
        (!is_expected)
            .then(|| format!("{message}\nagain: DLOCK_SHUTTLE_SEED={seed} cargo test -p dlock-schedules")),
    )
}

#[test]
fn shuttle_models_hold_and_seeded_bugs_are_found() {
    let one = number("DLOCK_SHUTTLE_SEED");
    let from = one.or_else(|| number("DLOCK_SHUTTLE_FROM")).unwrap_or(0);
    let schedules = if one.is_some() { 1 } else { number("DLOCK_SHUTTLE").unwrap_or(400) };
    let seeds = from..from + schedules.div_ceil(SCHEDULES_PER_SEED);

    let (begun, mut schedules, mut wrong) = (Instant::now(), 0, Vec::new());
    for model in models() {
        let (ran, what) = run_seeds(&model, seeds.clone());
        schedules += if model.fault.is_none() { ran } else { 0 };
        wrong.extend(what);
    }

    // Some events are rare, so a single seed need not cover all.
    let seeds_are_enough = seeds.end - seeds.start >= 8;
    for (what, times) in coverage() {
        println!("{times:>8} {what}");
        if times == 0 && seeds_are_enough {
            wrong.push(format!("never happened: {what}"));
        }
    }
    let (Range { start, end }, took) = (seeds, begun.elapsed().as_secs_f64());
    println!(
        "campaign: shuttle: {schedules} schedules, seeds {start}..{end}, {} violations, {took:.1} s",
        wrong.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(schedules > 0, "no schedule ran");
}
