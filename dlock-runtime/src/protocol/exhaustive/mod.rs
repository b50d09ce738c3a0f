//! Model checking: every schedule of a small model of the protocol, not a random sample.
//!
//! A state contains the key states, the servers, and the messages in flight. A step is one of
//! these: a message arrives or is lost, a timer fires, a task starts, ends, or is cancelled, a
//! server restarts, or one unit of time passes. Steps occur in any order, so a message or a process
//! may be arbitrarily slow until a horizon. After the horizon nothing is lost, and time passes only
//! if no other step is possible, so every path ends.
//!
//! ```text
//! one_server   key states, the queue in the server, grants
//! quorum       votes of three servers
//! state        compares states by their debug output
//! ```
//!
//! `DLOCK_EXHAUSTIVE=2` (3, ...) sets larger bounds than the default of 1.
//!
//! See also `simulation`, which covers many tasks, long times, and drifting clocks.

mod one_server;
mod quorum;
mod state;

use stateright::{Checker, HasDiscoveries, Model};
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use super::simulation::campaign::env_number;

/// Returns the size of the bounds. The default is 1.
fn scope() -> usize {
    env_number("DLOCK_EXHAUSTIVE").map_or(1, |scope| usize::try_from(scope.max(1)).unwrap_or(usize::MAX))
}

/// Visits every state and returns their number.
///
/// # Errors
///
/// Returns the path to a state that violates a property, or the name of a property that never
/// holds.
fn check<M>(what: &str, model: M) -> Result<usize, String>
where
    M: Model + Send + Sync + 'static,
    M::State: Hash + Clone + Debug + Send + Sync + PartialEq,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let started = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker =
        model.checker().threads(threads).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    let seconds = started.elapsed().as_secs_f64();
    for property in checker.model().properties() {
        let found = checker.discovery(property.name);
        match (property.expectation, found) {
            (stateright::Expectation::Sometimes, None) if checker.is_done() => {
                return Err(format!("never: {}", property.name));
            }
            (stateright::Expectation::Sometimes, _) | (_, None) => {}
            (_, Some(path)) => {
                let steps: Vec<_> = path.into_actions().iter().map(|step| format!("  {step:?}")).collect();
                return Err(format!("{} (one of {states} states)\n{}", property.name, steps.join("\n")));
            }
        }
    }
    println!("campaign: exhaustive: {states} states, 0 violations, {seconds:.1} s, depth {depth}, {what}");
    Ok(states)
}
