//! What a world notes and decides for the test kit: who was let in how often, who is cut off, and what is to be undone after that.
//!
//! Not here: what a test asks of it (`testing`), what a world does with it (`backend::memory`).

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use crate::key::Name;
use crate::protocol::command::{Failure, FailureKind, Reply};
use crate::sync::lock;
use crate::token::{ProcessId, Token};

/// The notes of one world. Its lock is the last that anybody takes.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Pages>);

#[derive(Debug, Default)]
struct Pages {
    /// The managers that stand for other processes: they are not counted, and no outage reaches them.
    elsewhere: HashSet<ProcessId>,
    /// How often tasks were let in, for each key.
    admitted: HashMap<Name, u64>,
    /// How many outages there are at present.
    outages: usize,
    /// What could not be let go during an outage.
    abandoned: Vec<(Name, Token)>,
}

impl Ledger {
    /// Notes that a manager stands for other processes.
    pub(super) fn is_elsewhere(&self, process: ProcessId) {
        lock(&self.0).elsewhere.insert(process);
    }

    /// Notes that a task was let in.
    pub(crate) fn admitted(&self, key: &Name, process: ProcessId) {
        let mut pages = lock(&self.0);
        if !pages.elsewhere.contains(&process) {
            *pages.admitted.entry(Name::clone(key)).or_default() += 1;
        }
    }

    /// Returns how often tasks were let in.
    pub(super) fn admissions(&self, key: &Name) -> u64 {
        lock(&self.0).admitted.get(key).copied().unwrap_or_default()
    }

    /// Returns what a manager is answered during an outage.
    pub(crate) fn refusal(&self, process: ProcessId) -> Option<Reply> {
        let pages = lock(&self.0);
        let cut_off = pages.outages > 0 && !pages.elsewhere.contains(&process);
        cut_off
            .then(|| Reply::Refused(Failure::new(FailureKind::Passing, "the test has made it unavailable")))
    }

    /// Keeps for the end of an outage what cannot be let go before, and returns what can.
    pub(crate) fn abandon(&self, abandoned: Vec<(Name, Token)>) -> Vec<(Name, Token)> {
        if abandoned.is_empty() {
            return abandoned;
        }
        let mut pages = lock(&self.0);
        if pages.outages == 0 {
            return abandoned;
        }
        pages.abandoned.extend(abandoned);
        Vec::new()
    }

    pub(super) fn outage_begins(&self) {
        lock(&self.0).outages += 1;
    }

    /// Ends one outage. Returns what is to be let go, if it was the last.
    pub(super) fn outage_ends(&self) -> Option<Vec<(Name, Token)>> {
        let mut pages = lock(&self.0);
        pages.outages = pages.outages.saturating_sub(1);
        (pages.outages == 0).then(|| std::mem::take(&mut pages.abandoned))
    }
}
