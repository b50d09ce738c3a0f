//! Our backend, as it ships, with its client on a simulated network: whole runs, each from a seed.
//!
//! ```text
//!  clients: managers, engine, driver, node, redis-rs --bytes--> turmoil --> machine --> small Redis --> protocol::record
//!                                                               ^ lost, late, held back  ^ cut, stalled, slow, crashed
//! ```
//!
//! Time is that of turmoil; the boot clocks of the clients go with it, and drift (`crate::simulated`). A run is told by its seed as far as
//! the program goes: what the runtime draws for itself, in which order it looks at what is ready at once, is not.
//!
//! | file | owns |
//! |---|---|
//! | `world` | a run: its network, its time, what is drawn for it |
//! | `clients`, `judges` | who wants locks, and what must never be seen |
//! | `faults`, `machine` | what goes wrong, and with which connections |
//! | `small_redis`, `said` | what a server does, and how it says it |
//! | `contract` | that a real one says the same |
//! | `foreign_values` | how long a real one takes for what other clients can write |
//! | `idleness` | what becomes of connections that nobody uses |
//! | `draws`, `panics` | what a seed decides; panics that somebody catches |

mod clients;
mod contract;
mod draws;
mod faults;
mod foreign_values;
mod idleness;
mod judges;
mod machine;
mod panics;
mod said;
mod small_redis;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::backend::redis::simulation::faults::{Counts, Fault};
use crate::backend::redis::simulation::world::{Outcome, run};
use crate::simulated::number;
use crate::sync::lock;

#[test]
fn no_seed_breaks_a_promise() {
    if let Some(seed) = number("DLOCK_TURMOIL_SEED") {
        return replay(seed);
    }
    let (from, count) =
        (number("DLOCK_TURMOIL_FROM").unwrap_or(0), number("DLOCK_TURMOIL_SEEDS").unwrap_or(5_000));
    assert!(count > 0, "no seeds are asked for: that proves nothing");
    let (next, begun) = (AtomicU64::new(from), Instant::now());
    let all = Mutex::new((Counts::default(), Vec::new(), 0, Duration::ZERO));
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count {
                        return;
                    }
                    let Outcome { violations, counts, holds, lasted, .. } = run(seed, false);
                    let mut all = lock(&all);
                    all.0.add_all(&counts);
                    all.2 += holds;
                    all.3 += lasted;
                    all.1.extend(violations.first().map(|violation| (seed, violation.clone())));
                }
            });
        }
    });
    let (counts, violated, holds, lasted) = all.into_inner().expect("no thread has panicked");
    println!(
        "campaign: turmoil: {count} schedules, seeds {from}..{}, {} violations, {:.1} s",
        from + count,
        violated.len(),
        begun.elapsed().as_secs_f64()
    );
    println!("{holds} holds in {:.0} s of theirs; {:?}", lasted.as_secs_f64(), counts.0);
    assert!(
        violated.is_empty(),
        "replay with DLOCK_TURMOIL_SEED: {:#?}",
        &violated[..violated.len().min(20)]
    );
    if count >= 1_000 {
        assert!(holds as u64 > count, "{holds} holds in {count} runs prove little");
        for name in Fault::NAMES {
            assert!(counts.0.contains_key(name), "nothing ever happened of: {name}");
        }
    }
}

#[test]
fn a_seed_tells_the_same_story_twice() {
    for seed in 0..8 {
        assert_eq!(run(seed, true).trace, run(seed, true).trace, "seed {seed}");
    }
}

/// Shows what happens in a run.
fn replay(seed: u64) {
    let Outcome { violations, trace, .. } = run(seed, true);
    for line in &trace {
        println!("{line}");
    }
    assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
}
