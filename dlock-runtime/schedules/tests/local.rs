//! Orders of what the threads of one process do with what they share of the engine: drawn, since there are too many to try all.
//!
//! The models stand beside the engine (`engine::interleavings`), since they use what nobody else may. A seed is fifty schedules of each
//! model: those of an even seed have every thread go on as likely as every other, those of an odd one go by priorities that
//! change now and then (PCT), which finds what few changes at the right places lead to.
//!
//! | variable | |
//! |---|---|
//! | `DLOCK_SHUTTLE` | how many schedules of each model; 400 unless set |
//! | `DLOCK_SHUTTLE_FROM` | the first seed; 0 unless set |
//! | `DLOCK_SHUTTLE_SEED` | one seed alone: it fails in the same schedule again |

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use dlock_schedules::{Model, models, tally};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

/// How many schedules a seed is.
const OF_A_SEED: u64 = 50;

/// How many changes of priority there are in a schedule by priorities, and one.
const DEPTH: usize = 4;

/// No schedule is as long by far; one in which threads go round in circles is.
const MOST_STEPS: usize = 200_000;

/// What a thread's stack takes; polls of a build that is not optimised are deep.
const STACK: usize = 256 * 1024;

/// Returns the number that a variable says, if it is set.
fn number(variable: &str) -> Option<u64> {
    let said = std::env::var(variable).ok()?;
    Some(said.parse().unwrap_or_else(|_| panic!("{variable} is no number: {said}")))
}

/// Runs the schedules of a seed. Returns in which of them the model failed, if it did, and what was said then.
fn run_seed(model: &Model, seed: u64) -> (u64, std::thread::Result<()>) {
    let schedules = Arc::new(AtomicU64::new(0));
    let (counted, run) = (Arc::clone(&schedules), model.run);
    let each = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        run();
    };
    let mut config = Config::new();
    config.stack_size = STACK;
    config.max_steps = MaxSteps::FailAfter(MOST_STEPS);
    config.failure_persistence = FailurePersistence::None; // a seed is shorter
    config.silence_warnings = true; // that is said in `engine::interleavings`
    let many = usize::try_from(OF_A_SEED).expect("it is small");
    let ran = catch_unwind(AssertUnwindSafe(|| {
        if seed.is_multiple_of(2) {
            Runner::new(RandomScheduler::new_from_seed(seed, many), config).run(each)
        } else {
            Runner::new(PctScheduler::new_from_seed(seed, DEPTH, many), config).run(each)
        }
    }));
    (schedules.load(Ordering::Relaxed), ran.map(drop))
}

/// Runs the seeds of a model one after the other until it fails. Returns how many schedules there were, and what is wrong with them.
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
    let (said, is_right) = model.judge(ran);
    let said = format!("{}: seed {seed}, schedule {schedule}: {}", model.name, said.unwrap_or_default());
    println!("{said}, {took:.1} s");
    (
        all,
        (!is_right)
            .then(|| format!("{said}\nagain: DLOCK_SHUTTLE_SEED={seed} cargo test -p dlock-schedules")),
    )
}

#[test]
fn no_drawn_order_of_threads_breaks_a_promise_and_each_planted_fault_is_found() {
    let one = number("DLOCK_SHUTTLE_SEED");
    let from = one.or_else(|| number("DLOCK_SHUTTLE_FROM")).unwrap_or(0);
    let schedules = if one.is_some() { 1 } else { number("DLOCK_SHUTTLE").unwrap_or(400) };
    let seeds = from..from + schedules.div_ceil(OF_A_SEED);

    let (begun, mut schedules, mut wrong) = (Instant::now(), 0, Vec::new());
    for model in models() {
        let (ran, what) = run_seeds(&model, seeds.clone());
        schedules += if model.fault.is_none() { ran } else { 0 };
        wrong.extend(what);
    }

    // Some of it is rare, and one seed alone has only what it has.
    let seeds_are_enough = seeds.end - seeds.start >= 8;
    for (what, times) in tally() {
        println!("{times:>8} {what}");
        if times == 0 && seeds_are_enough {
            wrong.push(format!("it never happened: {what}"));
        }
    }
    let (Range { start, end }, took) = (seeds, begun.elapsed().as_secs_f64());
    println!(
        "campaign: shuttle: {schedules} schedules, seeds {start}..{end}, {} violations, {took:.1} s",
        wrong.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(schedules > 0, "nothing was run");
}
