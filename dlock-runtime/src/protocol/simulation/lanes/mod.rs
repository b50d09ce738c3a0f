//! The rules of one key against a world of one server: queues, tasks and limits, hand-overs, losses.

mod judges;
mod planted;
mod process;
mod seen;
mod server;
mod weather;
mod words;
mod world;

use planted::Bug;
use seen::ALL;
use weather::Weather;
use world::World;

use super::Wrong;
use super::campaign::Campaign;
use super::shrink::Worlds;

/// The worlds in which a rule is broken.
const fn worlds(bug: Bug) -> Worlds<Weather, Bug> {
    Worlds {
        bug,
        weather: Weather::of,
        run: |weather, bug, chance, story| World::new(weather, bug, chance, story).run(),
        milder: Weather::milder,
    }
}

#[test]
fn no_schedule_of_one_server_breaks_a_promise() {
    Campaign::asked_for(100_000).prove("one server", &worlds(Bug::None), ALL);
}

/// The first seed that notices a broken rule.
fn noticed(bug: Bug) -> Option<(u64, Box<Wrong>)> {
    let worlds = worlds(bug);
    (0..20_000).find_map(|seed| Some((seed, worlds.run(seed).err()?)))
}

#[test]
fn every_rule_that_is_broken_is_noticed_by_its_judge() {
    for (bug, judge) in [
        (Bug::DeadlineFromTheReply, "J1"),
        (Bug::AnybodyReleases, "J1 min_hold"),
        (Bug::EveryGrantIsBelieved, "J1"),
        (Bug::ClockStopsInSleep, "J1 J2"),
        (Bug::NobodyWatches, "J2"),
        (Bug::CounterStartsAgain, "J3"),
        (Bug::NobodyAsksAgain, "J5"),
        (Bug::NothingIsUndone, "J6"),
        (Bug::JoinsTwice, "J8"),
        (Bug::StaysThoughGone, "J8"),
        (Bug::NobodyRenews, "J10"),
        (Bug::RenewedIntoBeing, "nobody"),
        (Bug::NothingIsKept, "min_hold"),
    ] {
        let Some((seed, wrong)) = noticed(bug) else { panic!("{bug:?} is not noticed") };
        println!("{bug:?} is noticed at seed {seed} by {}: {}", wrong.judge, wrong.said);
        let first = wrong.judge.split(' ').next().unwrap_or_default();
        assert!(judge.contains(first), "{bug:?} at seed {seed}: {wrong:?}");
    }
}

#[test]
fn a_schedule_that_fails_is_told_as_a_short_story() {
    let bug = Bug::DeadlineFromTheReply;
    let Some((seed, first)) = noticed(bug) else { panic!("{bug:?} is not noticed") };

    let short = worlds(bug).shrink(seed).expect("it fails");
    let told = worlds(bug).tell(seed);

    println!("after {} schedules: {told}", short.tried);
    assert_eq!(short.wrong.judge, first.judge, "another promise than that of seed {seed}");
    assert!(short.story.len() <= 10, "{told}");
    assert!(short.story.iter().all(|line| line.starts_with("at ")), "{told}");
    for words in [
        "wants the lock\n",
        "asks for the lock; the server grants it until",
        "is let in until",
        "believes in the lock, and so does task",
        &format!("again: DLOCK_SIM_SEED={seed} cargo test -p dlock-runtime protocol"),
    ] {
        assert!(told.contains(words), "{words:?} is not in: {told}");
    }
}
