//! The rows of the fault list that are injected into real servers, networks, and processes.
//!
//! A row *begins* a fault, and returns when and how to end it, so that two rows can be active in
//! one scene. A row whose name ends in `c` may lose locks, according to the safety guide.

mod clocks;
mod network;
mod process;
mod quorum;
mod server;

use std::time::Duration;

use crate::ground::Ground;
use crate::stage::Stage;

/// A row of the fault list.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    /// The name of the row in the list.
    pub(crate) name: &'static str,
    /// The target of the row. Two rows at once have different targets.
    pub(crate) kind: Kind,
    /// The environments in which the row applies.
    pub(crate) grounds: &'static [Ground],
    /// Begins the fault.
    pub(crate) begin: fn(&mut Stage) -> Broken,
}

/// The target of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Server,
    Network,
    Process,
}

/// An active fault.
pub(crate) struct Broken {
    /// When to end the fault.
    pub(crate) after: Duration,
    /// How to end the fault.
    pub(crate) heal: Box<dyn FnOnce(&mut Stage)>,
}

impl Broken {
    fn until(after: Duration, heal: impl FnOnce(&mut Stage) + 'static) -> Self {
        Self { after, heal: Box::new(heal) }
    }

    /// A fault that needs no end. Its effects are over after `after`.
    fn over_after(after: Duration) -> Self {
        Self::until(after, |_| {})
    }
}

/// Observations that rows must make at least once if they were played several times, so that the
/// fault reaches its target.
pub(crate) const OBSERVATIONS: [(&str, &str); 3] =
    [("S23", server::LONG), ("S24", server::MESSAGES), ("N13", network::FLOODED)];

/// Returns all rows.
pub(crate) fn all() -> Vec<Row> {
    [server::ROWS, clocks::ROWS, quorum::ROWS, network::ROWS, process::ROWS].concat()
}
