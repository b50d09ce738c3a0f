//! A schedule that breaks a promise becomes a short one that breaks the same promise.
//!
//! First the weather is made milder (fewer tasks, faults off), then choices are taken away, many at a time and at last one by one, and
//! those that must stay are made round. Whatever still fails is kept, until nothing can be taken away. It is the same for one seed
//! in every run.

use super::Wrong;
use super::chance::{Chance, Instead, mix};
use super::story::Story;
use super::tally::Tally;

/// How the schedule of a weather goes, where a rule is broken.
pub(in crate::protocol) type Run<W, B> = fn(&W, B, &mut Chance, &mut Story) -> Result<Tally, Box<Wrong>>;

/// A kind of schedules: how one runs, and what would make its weather milder. `B` is the rule that is broken.
#[derive(Clone, Copy, Debug)]
pub(in crate::protocol) struct Worlds<W, B> {
    pub(in crate::protocol) bug: B,
    pub(in crate::protocol) weather: fn(u64) -> W,
    pub(in crate::protocol) run: Run<W, B>,
    /// Each with one thing less.
    pub(in crate::protocol) milder: fn(&W) -> Vec<W>,
}

/// A short schedule, and what is wrong with it.
#[derive(Debug)]
pub(in crate::protocol) struct Short {
    pub(in crate::protocol) wrong: Wrong,
    pub(in crate::protocol) story: Vec<String>,
    /// How many schedules were tried.
    pub(in crate::protocol) tried: u32,
}

impl<W: Clone, B: Copy> Worlds<W, B> {
    /// Runs the schedule of `seed`.
    pub(in crate::protocol) fn run(&self, seed: u64) -> Result<Tally, Box<Wrong>> {
        (self.run)(
            &(self.weather)(seed),
            self.bug,
            &mut Chance::new(seed),
            &mut Story::on_invalidations_missed(),
        )
    }

    /// Shrinks the schedule of a seed, which breaks a promise.
    pub(in crate::protocol) fn shrink(&self, seed: u64) -> Option<Short> {
        let wrong = self.run(seed).err()?;
        let mut schedule = Schedule { seed, weather: (self.weather)(seed), instead: Instead::new() };
        let mut tried = 0;
        let mut fails = |schedule: &Schedule<W>| {
            tried += 1;
            let failed = (self.run)(
                &schedule.weather,
                self.bug,
                &mut schedule.chance(),
                &mut Story::on_invalidations_missed(),
            );
            tried < MOST_TRIES && failed.is_err_and(|other| other.judge == wrong.judge)
        };
        while let Some(less) = (self.milder)(&schedule.weather)
            .into_iter()
            .find_map(|weather| schedule.in_weather(weather).find(|less| fails(less)))
        {
            schedule = less;
        }
        // The first that fails need not be the one that can be told in the fewest words.
        let failing = schedule.in_weather(schedule.weather.clone()).filter(|other| fails(other));
        let failing: Vec<_> = failing.take(AT_MOST).collect();
        let shortest = failing.into_iter().map(|mut schedule| {
            while schedule.take_away(self, &mut fails) | schedule.round(self, &mut fails) {}
            let mut story = Story::told();
            let wrong = (self.run)(&schedule.weather, self.bug, &mut schedule.chance(), &mut story);
            (story.lines(), wrong.err())
        });
        let (story, wrong) = shortest.min_by_key(|(story, _)| story.len())?;
        Some(Short { wrong: *wrong?, story, tried })
    }

    /// Tells the schedule of a seed, which breaks a promise, and how it is seen again.
    pub(in crate::protocol) fn tell(&self, seed: u64) -> String {
        let Some(Short { wrong, story, .. }) = self.shrink(seed) else {
            return format!("seed {seed} breaks no promise");
        };
        let Wrong { judge, said } = wrong;
        let story = story.join("\n  ");
        format!(
            "{judge}: {said}\n  {story}\nagain: DLOCK_SIM_SEED={seed} cargo test -p dlock-runtime protocol"
        )
    }
}

#[derive(Clone)]
struct Schedule<W> {
    seed: u64,
    weather: W,
    instead: Instead,
}

impl<W: Clone> Schedule<W> {
    fn chance(&self) -> Chance {
        Chance::but(self.seed, self.instead.clone())
    }

    /// The same schedule in another weather, and then some with other choices: what breaks a rule does so in many of them.
    fn in_weather(&self, weather: W) -> impl Iterator<Item = Self> + use<W> {
        let others = (0..OTHERS).map(|number| mix(number ^ OTHERS)).map({
            let weather = weather.clone();
            move |seed| Self { seed, weather: weather.clone(), instead: Instead::new() }
        });
        std::iter::once(Self { weather, ..self.clone() }).chain(others)
    }

    fn made<B: Copy>(&self, worlds: &Worlds<W, B>) -> Vec<(super::chance::Choice, u64)> {
        let mut chance = self.chance();
        let _ = (worlds.run)(&self.weather, worlds.bug, &mut chance, &mut Story::on_invalidations_missed());
        chance.made()
    }

    /// Makes choices mild: all, halves, quarters, and so on.
    fn take_away<B: Copy>(&mut self, worlds: &Worlds<W, B>, fails: &mut impl FnMut(&Self) -> bool) -> bool {
        let (mut changed, mut many) = (false, usize::MAX);
        while many > 0 {
            let made = self.made(worlds);
            many = many.min(made.len());
            for some in made.chunks(many.max(1)) {
                let mut less = self.clone();
                less.instead.extend(some.iter().map(|(choice, _)| (*choice, 0)));
                if fails(&less) {
                    (*self, changed) = (less, true);
                }
            }
            many /= 2;
        }
        changed
    }

    /// Makes what is left small, or at least round.
    fn round<B: Copy>(&mut self, worlds: &Worlds<W, B>, fails: &mut impl FnMut(&Self) -> bool) -> bool {
        let mut changed = false;
        for (choice, value) in self.made(worlds) {
            for rounder in [1, value / 100 * 100, value / 10 * 10] {
                if rounder == 0 || rounder >= value {
                    continue;
                }
                let mut less = self.clone();
                less.instead.insert(choice, rounder);
                if fails(&less) {
                    (*self, changed) = (less, true);
                    break;
                }
            }
        }
        changed
    }
}

/// So many other choices are tried in each weather.
const OTHERS: u64 = 50;

/// So many of those that fail are made as short as can be.
const AT_MOST: usize = 10;

/// Enough for any; a bound for the time that a failing test takes.
const MOST_TRIES: u32 = 20_000;
