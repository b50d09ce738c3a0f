//! Runs many seeds on all processors.
//!
//! ```text
//! DLOCK_SIM_SEEDS   the number of seeds
//! DLOCK_SIM_FROM    the first seed
//! DLOCK_SIM_SEED    runs only this seed
//! ```

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::Violation;
use super::coverage::Coverage;
use super::shrink::Simulation;

/// The seeds of one campaign.
#[derive(Clone, Debug)]
pub(in crate::protocol) struct Campaign {
    seeds: std::ops::Range<u64>,
    /// Whether the campaign is large enough that every coverage point must occur.
    pub(in crate::protocol) is_full_size: bool,
}

/// The result of a campaign.
#[derive(Debug)]
struct CampaignResult {
    coverage: Coverage,
    /// The lowest seed that violates an invariant.
    failed_seed: Option<u64>,
}

impl Campaign {
    /// Reads the campaign from the environment. The default is `seeds` seeds from 0.
    pub(in crate::protocol) fn from_env(seeds: u64) -> Self {
        if let Some(seed) = env_number("DLOCK_SIM_SEED") {
            return Self { seeds: seed..seed + 1, is_full_size: false };
        }
        let (from, count) =
            (env_number("DLOCK_SIM_FROM").unwrap_or(0), env_number("DLOCK_SIM_SEEDS").unwrap_or(seeds));
        assert!(count > 0, "DLOCK_SIM_SEEDS is 0: a campaign without seeds proves nothing");
        Self { seeds: from..from + count, is_full_size: count >= seeds }
    }

    /// Runs every seed of `simulation` and returns the coverage.
    ///
    /// # Panics
    ///
    /// Panics with a shrunk trace if a seed violates an invariant. A full-size campaign also panics
    /// if one of the coverage points `all` occurs fewer than ten times.
    pub(in crate::protocol) fn check<P: Clone, B: Copy + Sync>(
        &self,
        what: &str,
        simulation: &Simulation<P, B>,
        all: &[(usize, &str)],
    ) -> Coverage {
        let CampaignResult { coverage, failed_seed } = self.run_seeds(what, |seed| simulation.run(seed));
        println!("coverage: {}", coverage.summary(all.iter().map(|(_, name)| *name)));
        if let Some(seed) = failed_seed {
            panic!("seed {seed}: {}", simulation.report(seed));
        }
        for (point, name) in all.iter().filter(|_| self.is_full_size) {
            assert!(coverage.count(*point) >= 10, "{name}: too few to prove anything");
        }
        coverage
    }

    /// Runs every seed until one violates an invariant, and prints a summary line.
    fn run_seeds(
        &self,
        what: &str,
        run: impl Fn(u64) -> Result<Coverage, Box<Violation>> + Sync,
    ) -> CampaignResult {
        let started = Instant::now();
        let (next, failed_seed) = (AtomicU64::new(self.seeds.start), AtomicU64::new(u64::MAX));
        let (total, violations) = (Mutex::new(Coverage::new()), AtomicU64::new(0));
        let work = || {
            let mut coverage = Coverage::new();
            while failed_seed.load(Ordering::Relaxed) == u64::MAX {
                let from = next.fetch_add(BATCH, Ordering::Relaxed);
                if from >= self.seeds.end {
                    break;
                }
                for seed in from..(from + BATCH).min(self.seeds.end) {
                    if let Ok(of_seed) = run(seed) {
                        coverage.merge(&of_seed);
                    } else {
                        violations.fetch_add(1, Ordering::Relaxed);
                        failed_seed.fetch_min(seed, Ordering::Relaxed);
                    }
                }
            }
            total.lock().expect("no thread panics while it holds the mutex").merge(&coverage);
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
            started.elapsed().as_secs_f64()
        );
        let failed_seed = failed_seed.into_inner();
        CampaignResult {
            coverage: total.into_inner().expect("no thread panics while it holds the mutex"),
            failed_seed: (failed_seed < u64::MAX).then_some(failed_seed),
        }
    }
}

/// Returns the number in an environment variable, or `None` if it is not set.
///
/// # Panics
///
/// Panics if the value is not a number, so that a typing error does not run another campaign.
pub(in crate::protocol) fn env_number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {value}")))
}

/// The number of seeds that a thread takes at a time.
const BATCH: u64 = 64;
