//! The rows of the fault list that befall real servers, networks and processes here.
//!
//! A row *begins* a fault and says when and how it is healed; so two rows can befall one scene at once. A row whose name ends in `c` may
//! lose locks, as the guide on safety says.

mod clocks;
mod network;
mod process;
mod quorum;
mod server;

use std::time::Duration;

use crate::ground::Ground;
use crate::stage::Stage;

/// A row.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    /// Its name in the list.
    pub(crate) name: &'static str,
    /// What it befalls: of two that meet, each befalls something else.
    pub(crate) kind: Kind,
    /// Where it is at home.
    pub(crate) grounds: &'static [Ground],
    /// Breaks something.
    pub(crate) begin: fn(&mut Stage) -> Broken,
}

/// What a row befalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Server,
    Network,
    Process,
}

/// What is broken, until it is healed.
pub(crate) struct Broken {
    /// When to heal it.
    pub(crate) after: Duration,
    /// How.
    pub(crate) heal: Box<dyn FnOnce(&mut Stage)>,
}

impl Broken {
    fn until(after: Duration, heal: impl FnOnce(&mut Stage) + 'static) -> Self {
        Self { after, heal: Box::new(heal) }
    }

    /// What needs no healing; its effects are over after a while.
    fn over_after(after: Duration) -> Self {
        Self::until(after, |_| {})
    }
}

/// Returns all rows.
pub(crate) fn all() -> Vec<Row> {
    [server::ROWS, clocks::ROWS, quorum::ROWS, network::ROWS, process::ROWS].concat()
}
