//! The backend and its Redis client on a simulated network: complete runs, each generated from a
//! seed.
//!
//! ```text
//!  clients: managers, engine, driver, node, redis-rs --bytes--> turmoil --> host --> Redis stub --> protocol::record
//!                                                               ^ lost, late, held back  ^ cut, stalled, slow, crashed
//! ```
//!
//! Time is turmoil's time. The boot clocks of the clients follow it, with drift
//! (`crate::simulated`). A seed determines a run except for what the runtime randomizes itself: the
//! order in which it polls ready tasks.
//!
//! | module | contents |
//! |---|---|
//! | `model` | one run: its network, its time, its parameters |
//! | `clients`, `invariants` | the clients that use locks, and what must always hold |
//! | `faults`, `host` | the faults, and the connections that they affect |
//! | `floods`, `disconnects` | servers that send without end, and why clients closed connections |
//! | `redis_stub`, `resp` | the server, and its wire protocol |
//! | `contract` | compares the stub with a real server |
//! | `foreign_values` | measures a real server on values that other clients can write |
//! | `parameters`, `panics` | what a seed determines, and the recording of panics |

mod clients;
mod contract;
pub(super) mod disconnects;
mod faults;
mod floods;
mod foreign_values;
mod host;
mod invariants;
mod model;
mod panics;
mod parameters;
mod redis_stub;
mod resp;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::backend::redis::simulation::faults::{Counts, Fault};
use crate::backend::redis::simulation::floods::Flood;
use crate::backend::redis::simulation::model::{Outcome, run};
use crate::backend::redis::simulation::redis_stub::RedisStub;
use crate::simulated::number;
use crate::sync::lock;

#[test]
fn no_seed_breaks_a_promise() {
    if let Some(seed) = number("DLOCK_TURMOIL_SEED") {
        return replay(seed);
    }
    let (from, count) =
        (number("DLOCK_TURMOIL_FROM").unwrap_or(0), number("DLOCK_TURMOIL_SEEDS").unwrap_or(1_500));
    assert!(count > 0, "there are no seeds to run");
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
    println!("{holds} holds in {:.0} simulated s; {:?}", lasted.as_secs_f64(), counts.0);
    assert!(
        violated.is_empty(),
        "replay with DLOCK_TURMOIL_SEED: {:#?}",
        &violated[..violated.len().min(20)]
    );
    if count >= 1_000 {
        assert!(holds as u64 > count, "{holds} holds in {count} runs prove little");
        let floods = Flood::NAMES.into_iter().chain(Flood::REASONS).chain([Flood::CLOSED]);
        for name in Fault::NAMES.into_iter().chain(floods).chain(RedisStub::EFFECTS) {
            assert!(counts.0.contains_key(name), "a fault never occurred: {name}");
        }
    }
}

#[test]
fn a_seed_produces_the_same_trace_twice() {
    for seed in 0..8 {
        assert_eq!(run(seed, true).trace, run(seed, true).trace, "seed {seed}");
    }
}

/// Prints the events of a run.
fn replay(seed: u64) {
    let Outcome { violations, trace, .. } = run(seed, true);
    for line in &trace {
        println!("{line}");
    }
    assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
}
