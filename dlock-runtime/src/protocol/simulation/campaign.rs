//! Many seeds, on all processors.
//!
//! ```text
//! DLOCK_SIM_SEEDS   how many seeds
//! DLOCK_SIM_FROM    the first of them
//! DLOCK_SIM_SEED    this one alone
//! ```

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::Wrong;
use super::shrink::Worlds;
use super::tally::Tally;

/// The seeds of one campaign.
#[derive(Clone, Debug)]
pub(in crate::protocol) struct Campaign {
    seeds: std::ops::Range<u64>,
    /// Whether it is as large as one that is to show every fault.
    pub(in crate::protocol) is_whole: bool,
}

/// What became of a campaign: what was seen, and the first seed of those that broke a promise.
#[derive(Debug)]
struct Outcome {
    seen: Tally,
    broken: Option<u64>,
}

impl Campaign {
    /// The campaign that the environment asks for, of `seeds` seeds where it says nothing.
    pub(in crate::protocol) fn asked_for(seeds: u64) -> Self {
        if let Some(seed) = number("DLOCK_SIM_SEED") {
            return Self { seeds: seed..seed + 1, is_whole: false };
        }
        let (from, count) =
            (number("DLOCK_SIM_FROM").unwrap_or(0), number("DLOCK_SIM_SEEDS").unwrap_or(seeds));
        assert!(count > 0, "no seeds are asked for: that proves nothing");
        Self { seeds: from..from + count, is_whole: count >= seeds }
    }

    /// Runs every seed in these worlds, and returns what was seen.
    ///
    /// # Panics
    ///
    /// Panics if one breaks a promise, and tells its story; or if something of `all` that can happen happened too seldom.
    pub(in crate::protocol) fn prove<W: Clone, B: Copy + Sync>(
        &self,
        what: &str,
        worlds: &Worlds<W, B>,
        all: &[(usize, &str)],
    ) -> Tally {
        let Outcome { seen, broken } = self.run(what, |seed| worlds.run(seed));
        println!("seen: {}", seen.told(all.iter().map(|(_, name)| *name)));
        if let Some(seed) = broken {
            panic!("seed {seed}: {}", worlds.tell(seed));
        }
        for (what, name) in all.iter().filter(|_| self.is_whole) {
            assert!(seen.count(*what) >= 10, "{name}: too few to prove anything");
        }
        seen
    }

    /// Runs every seed, until one breaks a promise, and says how it went.
    fn run(&self, what: &str, run: impl Fn(u64) -> Result<Tally, Box<Wrong>> + Sync) -> Outcome {
        let begun = Instant::now();
        let (next, broken) = (AtomicU64::new(self.seeds.start), AtomicU64::new(u64::MAX));
        let (seen, violations) = (Mutex::new(Tally::new()), AtomicU64::new(0));
        let work = || {
            let mut mine = Tally::new();
            while broken.load(Ordering::Relaxed) == u64::MAX {
                let from = next.fetch_add(AT_ONCE, Ordering::Relaxed);
                if from >= self.seeds.end {
                    break;
                }
                for seed in from..(from + AT_ONCE).min(self.seeds.end) {
                    if let Ok(tally) = run(seed) {
                        mine.add(&tally);
                    } else {
                        violations.fetch_add(1, Ordering::Relaxed);
                        broken.fetch_min(seed, Ordering::Relaxed);
                    }
                }
            }
            seen.lock().expect("nobody panics with it").add(&mine);
        };
        std::thread::scope(|scope| {
            for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(work);
            }
        });
        let Self { seeds, .. } = self;
        let done = next.into_inner().min(seeds.end) - seeds.start;
        println!(
            "campaign: core: {done} schedules, seeds {}..{}, {} violations, {:.1} s, {what}",
            seeds.start,
            seeds.start + done,
            violations.into_inner(),
            begun.elapsed().as_secs_f64()
        );
        let broken = broken.into_inner();
        Outcome {
            seen: seen.into_inner().expect("nobody panics with it"),
            broken: (broken < u64::MAX).then_some(broken),
        }
    }
}

/// Returns the number that a variable says, if it is set.
///
/// # Panics
///
/// Panics if it says none: something else would be run than is asked for.
pub(in crate::protocol) fn number(variable: &str) -> Option<u64> {
    let said = std::env::var(variable).ok()?;
    Some(said.parse().unwrap_or_else(|_| panic!("{variable} is no number: {said}")))
}

/// So many seeds are taken at once.
const AT_ONCE: u64 = 64;
