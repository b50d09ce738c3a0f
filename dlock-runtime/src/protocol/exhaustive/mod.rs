//! Every schedule of a small world, and not just some: the rules under a model checker.
//!
//! A state is all that lanes, servers and wires have; a step is one message that arrives or is lost, a timer that is looked at, a task
//! that comes, ends or gives up, a server that is started again, or a unit of time. Steps come in any order, so a message or a process
//! may be as slow as can be, until a horizon; from then on nothing is lost, and time passes when nothing else is to be done, so that
//! every path ends.
//!
//! ```text
//! one_server   lanes, the queue in the server, grants
//! quorum       ballots over three servers
//! state        states are told apart by what they print
//! ```
//!
//! `DLOCK_EXHAUSTIVE=2` (3, ...) asks for larger bounds than those of every run.
//!
//! Not here: many tasks, long times, and clocks that drift (`simulation`).

mod one_server;
mod quorum;
mod state;

use stateright::{Checker, HasDiscoveries, Model};
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use super::simulation::campaign::number;

/// How large the bounds are to be: 1 in every run.
fn scope() -> usize {
    number("DLOCK_EXHAUSTIVE").map_or(1, |scope| usize::try_from(scope.max(1)).unwrap_or(usize::MAX))
}

/// Visits every state and says how many there are, or returns the path to one that breaks a promise.
fn check<M>(what: &str, model: M) -> Result<usize, String>
where
    M: Model + Send + Sync + 'static,
    M::State: Hash + Clone + Debug + Send + Sync + PartialEq,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let begun = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker =
        model.checker().threads(threads).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    let seconds = begun.elapsed().as_secs_f64();
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
