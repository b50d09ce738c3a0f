//! A simulation of a quorum: two or three clients contend for one key of three or five servers.
//!
//! Requests and replies are delayed, lost, or duplicated, a lost request may still be executed
//! later, and some requests cannot be sent. Clients freeze, are cancelled, and have drifting
//! clocks. Servers restart without their data, but within one lease never more of them than a
//! majority tolerates.
//!
//! The invariants are that no two clients consider the lock held at once (J1), that at the end
//! nothing is left on the servers (J6), and that every attempt gets an outcome (J8). An invariant
//! that cannot fail proves nothing, so tests also run the model with seeded bugs, and each must be
//! detected.
//!
//! The shared parts of simulations are in `protocol::simulation`.

mod fault_profile;
mod model;

use fault_profile::{ALL, Bug, CoveragePoint, FaultProfile};
use model::QuorumModel;

use crate::protocol::simulation::campaign::Campaign;
use crate::protocol::simulation::shrink::Simulation;

/// Returns the simulation with a seeded bug.
const fn simulation(bug: Bug) -> Simulation<FaultProfile, Bug> {
    Simulation {
        bug,
        profile: FaultProfile::from_seed,
        run: |profile, bug, choices, trace| QuorumModel::new(profile, bug, choices, trace).run(),
        shrink_candidates: FaultProfile::shrink_candidates,
    }
}

#[test]
fn no_schedule_lets_two_clients_hold_a_quorum_lock() {
    let campaign = Campaign::from_env(50_000);
    let coverage = campaign.check("several servers", &simulation(Bug::None), ALL);
    let holds = coverage.count(CoveragePoint::Held as usize);
    assert!(!campaign.is_full_size || holds > 80_000, "{holds} holds prove little");
}

#[test]
fn every_seeded_bug_violates_its_invariant() {
    for (bug, invariant) in [
        (Bug::HalfIsMajority, "J1"),
        (Bug::DeadlineFromReply, "J1"),
        (Bug::NoCleanup, "J6"),
        (Bug::RestartedServersVote, "J1"),
        (Bug::FastClocksAgeServers, "J1"),
    ] {
        let simulation = simulation(bug);
        let detected = (0..20_000).find_map(|seed| Some((seed, simulation.run(seed).err()?)));
        let Some((seed, violation)) = detected else { panic!("{bug:?} is not detected") };
        println!("{bug:?} is detected at seed {seed}: {}", simulation.report(seed));
        assert!(violation.invariant.starts_with(invariant), "{bug:?} at seed {seed}: {violation:?}");
    }
}
