//! Reduces a schedule that violates an invariant to a short one that violates the same invariant.
//!
//! The fault profile is reduced first: fewer tasks, faults switched off. Then choices are reset to
//! their harmless value, many at a time and finally one by one. The choices that remain are
//! rounded. A reduced schedule is kept if it still fails. Shrinking ends when no step succeeds, and
//! it is deterministic for a seed.

use super::Violation;
use super::choices::{ChoiceSource, Overrides, mix};
use super::coverage::Coverage;
use super::trace::Trace;

/// Runs the schedule of a fault profile with a seeded bug.
pub(in crate::protocol) type Run<P, B> =
    fn(&P, B, &mut ChoiceSource, &mut Trace) -> Result<Coverage, Box<Violation>>;

/// A family of schedules: how to run one, and how to reduce its fault profile.
///
/// `P` is the type of the fault profile, and `B` the type of the seeded bug.
#[derive(Clone, Copy, Debug)]
pub(in crate::protocol) struct Simulation<P, B> {
    pub(in crate::protocol) bug: B,
    pub(in crate::protocol) profile: fn(u64) -> P,
    pub(in crate::protocol) run: Run<P, B>,
    /// Returns simpler profiles, each with one reduction.
    pub(in crate::protocol) shrink_candidates: fn(&P) -> Vec<P>,
}

/// A short failing schedule, with the invariant that it violates.
#[derive(Debug)]
pub(in crate::protocol) struct ShrunkSchedule {
    pub(in crate::protocol) violation: Violation,
    pub(in crate::protocol) trace: Vec<String>,
    /// The number of schedules that were run.
    pub(in crate::protocol) runs: u32,
}

impl<P: Clone, B: Copy> Simulation<P, B> {
    /// Runs the schedule of `seed`.
    pub(in crate::protocol) fn run(&self, seed: u64) -> Result<Coverage, Box<Violation>> {
        (self.run)(&(self.profile)(seed), self.bug, &mut ChoiceSource::new(seed), &mut Trace::disabled())
    }

    /// Shrinks the schedule of `seed`. Returns `None` if it violates no invariant.
    pub(in crate::protocol) fn shrink(&self, seed: u64) -> Option<ShrunkSchedule> {
        let violation = self.run(seed).err()?;
        let mut schedule = Schedule { seed, profile: (self.profile)(seed), overrides: Overrides::new() };
        let mut runs = 0;
        let mut fails = |schedule: &Schedule<P>| {
            runs += 1;
            let failed =
                (self.run)(&schedule.profile, self.bug, &mut schedule.choices(), &mut Trace::disabled());
            runs < MAX_RUNS && failed.is_err_and(|other| other.invariant == violation.invariant)
        };
        while let Some(simpler) = (self.shrink_candidates)(&schedule.profile)
            .into_iter()
            .find_map(|profile| schedule.with_fault_profile(profile).find(|simpler| fails(simpler)))
        {
            schedule = simpler;
        }
        // The first failing schedule does not always shrink to the shortest trace.
        let failing = schedule.with_fault_profile(schedule.profile.clone()).filter(|other| fails(other));
        let failing: Vec<_> = failing.take(MAX_CANDIDATES).collect();
        let shortest = failing.into_iter().map(|mut schedule| {
            while schedule.reset_choices(self, &mut fails) | schedule.round_choices(self, &mut fails) {}
            let mut trace = Trace::enabled();
            let violation = (self.run)(&schedule.profile, self.bug, &mut schedule.choices(), &mut trace);
            (trace.lines(), violation.err())
        });
        let (trace, violation) = shortest.min_by_key(|(trace, _)| trace.len())?;
        Some(ShrunkSchedule { violation: *violation?, trace, runs })
    }

    /// Returns the shrunk trace of a failing seed, and the command that reproduces it.
    pub(in crate::protocol) fn report(&self, seed: u64) -> String {
        let Some(ShrunkSchedule { violation, trace, .. }) = self.shrink(seed) else {
            return format!("seed {seed} violates no invariant");
        };
        let Violation { invariant, message } = violation;
        let trace = trace.join("\n  ");
        format!(
            "{invariant}: {message}\n  {trace}\nreproduce: DLOCK_SIM_SEED={seed} cargo test -p dlock-runtime protocol"
        )
    }
}

#[derive(Clone)]
struct Schedule<P> {
    seed: u64,
    profile: P,
    overrides: Overrides,
}

impl<P: Clone> Schedule<P> {
    fn choices(&self) -> ChoiceSource {
        ChoiceSource::with_overrides(self.seed, self.overrides.clone())
    }

    /// Returns this schedule with another fault profile, followed by schedules of that profile with
    /// other choices: a bug usually shows in many of them.
    fn with_fault_profile(&self, profile: P) -> impl Iterator<Item = Self> + use<P> {
        let others = (0..ALTERNATIVES).map(|number| mix(number ^ ALTERNATIVES)).map({
            let profile = profile.clone();
            move |seed| Self { seed, profile: profile.clone(), overrides: Overrides::new() }
        });
        std::iter::once(Self { profile, ..self.clone() }).chain(others)
    }

    fn choices_made<B: Copy>(&self, simulation: &Simulation<P, B>) -> Vec<(super::choices::Choice, u64)> {
        let mut choices = self.choices();
        let _ = (simulation.run)(&self.profile, simulation.bug, &mut choices, &mut Trace::disabled());
        choices.made()
    }

    /// Resets choices to zero: all of them, then halves, quarters, and so on.
    fn reset_choices<B: Copy>(
        &mut self,
        simulation: &Simulation<P, B>,
        fails: &mut impl FnMut(&Self) -> bool,
    ) -> bool {
        let (mut changed, mut count) = (false, usize::MAX);
        while count > 0 {
            let made = self.choices_made(simulation);
            count = count.min(made.len());
            for chunk in made.chunks(count.max(1)) {
                let mut simpler = self.clone();
                simpler.overrides.extend(chunk.iter().map(|(choice, _)| (*choice, 0)));
                if fails(&simpler) {
                    (*self, changed) = (simpler, true);
                }
            }
            count /= 2;
        }
        changed
    }

    /// Replaces each remaining choice by one, or by a multiple of 100 or 10.
    fn round_choices<B: Copy>(
        &mut self,
        simulation: &Simulation<P, B>,
        fails: &mut impl FnMut(&Self) -> bool,
    ) -> bool {
        let mut changed = false;
        for (choice, value) in self.choices_made(simulation) {
            for rounded in [1, value / 100 * 100, value / 10 * 10] {
                if rounded == 0 || rounded >= value {
                    continue;
                }
                let mut simpler = self.clone();
                simpler.overrides.insert(choice, rounded);
                if fails(&simpler) {
                    (*self, changed) = (simpler, true);
                    break;
                }
            }
        }
        changed
    }
}

/// The number of other seeds to try with each fault profile.
const ALTERNATIVES: u64 = 50;

/// The number of failing schedules to shrink. The one with the shortest trace is reported.
const MAX_CANDIDATES: usize = 10;

/// Bounds the time of a failing test. A schedule needs far fewer runs.
const MAX_RUNS: u32 = 20_000;
