//! A fleet of replicas with one job, simulated: clocks that differ by up to half a period, lost and
//! late messages, outages, requests that are given up, crashes, frozen processes, deployments of
//! another schedule, and a server whose clock steps back.
//!
//! ```text
//! DLOCK_JOB_SEEDS   the number of schedules; 5,000 by default
//! DLOCK_JOB_SEED    runs only this seed
//! ```
//!
//! ```text
//! fleet         the replicas, the server, and the messages between them
//! starts        every start, and the invariants that it must keep
//! ```

mod fleet;
mod starts;

use crate::protocol::simulation::campaign::env_number;

/// The events that a campaign must include. A fault that does not happen finds nothing.
#[derive(Clone, Copy, Debug, Default)]
struct JobCoverage {
    starts: u64,
    restarts: u64,
    corrected_clocks: u64,
    lost_replies: u64,
    crashes: u64,
    freezes: u64,
    waits: u64,
    skips_for_waiting: u64,
    cancels: u64,
    late_ends: u64,
    steps_back: u64,
    requested: u64,
    outages: u64,
    missed: u64,
    given_back: u64,
    schedule_changes: u64,
}

impl JobCoverage {
    fn add(&mut self, other: &Self) {
        self.starts += other.starts;
        self.restarts += other.restarts;
        self.corrected_clocks += other.corrected_clocks;
        self.lost_replies += other.lost_replies;
        self.crashes += other.crashes;
        self.freezes += other.freezes;
        self.waits += other.waits;
        self.skips_for_waiting += other.skips_for_waiting;
        self.cancels += other.cancels;
        self.late_ends += other.late_ends;
        self.steps_back += other.steps_back;
        self.requested += other.requested;
        self.outages += other.outages;
        self.missed += other.missed;
        self.given_back += other.given_back;
        self.schedule_changes += other.schedule_changes;
    }

    fn least(&self) -> u64 {
        let Self { starts, restarts, corrected_clocks, lost_replies, crashes, freezes, .. } = *self;
        let Self { waits, skips_for_waiting, cancels, late_ends, steps_back, requested, .. } = *self;
        let Self { outages, missed, given_back, schedule_changes, .. } = *self;
        let all = [starts, restarts, corrected_clocks, lost_replies, crashes, freezes];
        let others = [waits, skips_for_waiting, cancels, late_ends, steps_back, requested];
        let of_catch_up = [outages, missed, given_back, schedule_changes];
        all.into_iter().chain(others).chain(of_catch_up).min().unwrap_or_default()
    }
}

#[test]
fn no_tick_starts_twice_in_a_simulated_fleet() {
    let one = env_number("DLOCK_JOB_SEED");
    let seeds = one.map_or_else(|| 0..env_number("DLOCK_JOB_SEEDS").unwrap_or(5_000), |seed| seed..seed + 1);
    assert!(!seeds.is_empty(), "DLOCK_JOB_SEEDS is 0: a campaign without seeds proves nothing");
    let mut coverage = JobCoverage::default();
    for seed in seeds.clone() {
        match fleet::run(seed) {
            Ok(of_seed) => coverage.add(&of_seed),
            Err(violation) => panic!("DLOCK_JOB_SEED={seed}: {violation}"),
        }
    }
    println!("jobs: {} schedules, 0 violations, {coverage:?}", seeds.end - seeds.start);
    assert!(seeds.end - seeds.start < 1_000 || coverage.least() >= 10, "{coverage:?}");
}
