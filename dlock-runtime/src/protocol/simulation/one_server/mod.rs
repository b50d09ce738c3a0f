//! A simulation of one server and several processes whose tasks contend for one key.
//!
//! It covers the queues, retry limits, hand-offs, and losses of the protocol.

mod coverage_points;
mod display;
mod fault_profile;
mod invariants;
mod model;
mod process;
mod seeded_bugs;
mod server;

use coverage_points::ALL;
use fault_profile::FaultProfile;
use model::ProtocolModel;
use seeded_bugs::Bug;

use super::Violation;
use super::campaign::Campaign;
use super::shrink::Simulation;

/// Returns the simulation with a seeded bug.
const fn simulation(bug: Bug) -> Simulation<FaultProfile, Bug> {
    Simulation {
        bug,
        profile: FaultProfile::from_seed,
        run: |profile, bug, choices, trace| ProtocolModel::new(profile, bug, choices, trace).run(),
        shrink_candidates: FaultProfile::shrink_candidates,
    }
}

#[test]
fn no_schedule_of_one_server_breaks_a_promise() {
    Campaign::from_env(100_000).check("one server", &simulation(Bug::None), ALL);
}

/// Returns the first seed that detects a bug.
fn detected(bug: Bug) -> Option<(u64, Box<Violation>)> {
    let simulation = simulation(bug);
    (0..20_000).find_map(|seed| Some((seed, simulation.run(seed).err()?)))
}

#[test]
fn every_seeded_bug_violates_its_invariant() {
    for (bug, invariants) in [
        (Bug::DeadlineFromReply, "J1"),
        (Bug::ReleaseByNonOwner, "J1 min_hold"),
        (Bug::TrustsEveryGrant, "J1"),
        (Bug::ClockStopsWhileFrozen, "J1 J2"),
        (Bug::NoHoldTimeout, "J2"),
        (Bug::FencingCounterResets, "J3"),
        (Bug::NoQueueRecheck, "J5"),
        (Bug::NoCleanup, "J6"),
        (Bug::JoinsTwice, "J8"),
        (Bug::CancelledTaskStaysQueued, "J8"),
        (Bug::RenewalsNotSent, "J10"),
        (Bug::RenewalCreatesKey, "restored"),
        (Bug::SetTtlIgnored, "min_hold"),
    ] {
        let Some((seed, violation)) = detected(bug) else { panic!("{bug:?} is not detected") };
        println!("{bug:?} is detected at seed {seed} by {}: {}", violation.invariant, violation.message);
        let first = violation.invariant.split(' ').next().unwrap_or_default();
        assert!(invariants.contains(first), "{bug:?} at seed {seed}: {violation:?}");
    }
}

#[test]
fn a_failing_schedule_shrinks_to_a_short_trace() {
    let bug = Bug::DeadlineFromReply;
    let Some((seed, first)) = detected(bug) else { panic!("{bug:?} is not detected") };

    let short = simulation(bug).shrink(seed).expect("it fails");
    let report = simulation(bug).report(seed);

    println!("after {} schedules: {report}", short.runs);
    assert_eq!(short.violation.invariant, first.invariant, "not the invariant of seed {seed}");
    assert!(short.trace.len() <= 10, "{report}");
    assert!(short.trace.iter().all(|line| line.starts_with("at ")), "{report}");
    for part in [
        "requests the lock\n",
        "sends ACQUIRE; the server grants it until",
        "is granted the lock until",
        "holds the lock at the same time as task",
        &format!("reproduce: DLOCK_SIM_SEED={seed} cargo test -p dlock-runtime protocol"),
    ] {
        assert!(report.contains(part), "{part:?} is not in: {report}");
    }
}
