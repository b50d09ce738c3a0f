//! Ballots against worlds that lose, delay and forget: whole schedules, each from a seed.
//!
//! Two or three clients want one key of three or five servers. Requests and answers are delayed, lost or doubled, lost ones may still be
//! executed later, clients freeze, give up and have clocks of their own, and servers are started again empty: no more of them in one
//! lease than a majority can spare.
//!
//! Judged: no two believe in the lock at once, and in the end nothing is left. A judge that cannot fail proves nothing: each rule that
//! it is to guard is broken on purpose, and the worlds must notice.
//!
//! Not here: queues, tasks and limits, which are the lane's, and what all simulations share (`protocol::simulation`).

mod weather;
mod world;

use weather::{ALL, Bug, Seen, Weather};
use world::World;

use crate::protocol::simulation::campaign::Campaign;
use crate::protocol::simulation::shrink::Worlds;

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
fn no_schedule_lets_two_believe_in_a_lock_of_several_servers() {
    let campaign = Campaign::asked_for(50_000);
    let seen = campaign.prove("several servers", &worlds(Bug::None), ALL);
    let holds = seen.count(Seen::Held as usize);
    assert!(!campaign.is_whole || holds > 80_000, "{holds} holds prove little");
}

#[test]
fn every_rule_that_is_broken_is_noticed() {
    for (bug, judge) in [
        (Bug::HalfIsEnough, "J1"),
        (Bug::DeadlineFromTheReply, "J1"),
        (Bug::NothingIsUndone, "J6"),
        (Bug::WhoForgotIsAsked, "J1"),
    ] {
        let worlds = worlds(bug);
        let caught = (0..20_000).find_map(|seed| Some((seed, worlds.run(seed).err()?)));
        let Some((seed, wrong)) = caught else { panic!("{bug:?} is not noticed") };
        println!("{bug:?} is noticed at seed {seed}: {}", worlds.tell(seed));
        assert!(wrong.judge.starts_with(judge), "{bug:?} at seed {seed}: {wrong:?}");
    }
}
