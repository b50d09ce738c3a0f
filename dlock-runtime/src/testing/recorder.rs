//! The records of the test kit for one store in memory: acquisitions, outages, and pending
//! releases.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use crate::key::Name;
use crate::protocol::command::{Failure, FailureKind, Reply};
use crate::sync::lock;
#[cfg(feature = "idempotent")]
use crate::testing::crash_point::CrashPoint;
use crate::token::{ProcessId, Token};

/// The records of one store. Its mutex is the last in the lock order.
#[derive(Debug, Default)]
pub(crate) struct Recorder(Mutex<RecordedEvents>);

#[derive(Debug, Default)]
struct RecordedEvents {
    /// The managers that act for other processes: not counted, and not affected by outages.
    elsewhere: HashSet<ProcessId>,
    /// The managers whose processes have crashed. The store gets nothing from them.
    crashed: HashSet<ProcessId>,
    /// The number of acquisitions for each key.
    admitted: HashMap<Name, u64>,
    /// Where the next attempt of a record crashes.
    #[cfg(feature = "idempotent")]
    crashes: HashMap<Name, CrashPoint>,
    /// The number of current outages.
    outages: usize,
    /// The tokens that could not be released during an outage.
    abandoned: Vec<(Name, Token)>,
}

impl Recorder {
    /// Records that a manager acts for other processes.
    pub(super) fn is_elsewhere(&self, process: ProcessId) {
        lock(&self.0).elsewhere.insert(process);
    }

    /// Has the next attempt of `record` crash at `point`.
    #[cfg(feature = "idempotent")]
    pub(super) fn crash_at(&self, record: Name, point: CrashPoint) {
        lock(&self.0).crashes.insert(record, point);
    }

    /// Returns `true`, once, if the attempt of `record` crashes at `point`.
    #[cfg(feature = "idempotent")]
    pub(crate) fn takes_crash(&self, record: &Name, point: &CrashPoint) -> bool {
        let mut pages = lock(&self.0);
        let is_here = pages.crashes.get(record) == Some(point);
        if is_here {
            pages.crashes.remove(record);
        }
        is_here
    }

    /// Counts an acquisition.
    pub(crate) fn on_acquired(&self, key: &Name, process: ProcessId) {
        let mut pages = lock(&self.0);
        if !pages.elsewhere.contains(&process) {
            *pages.admitted.entry(Name::clone(key)).or_default() += 1;
        }
    }

    /// Returns the number of acquisitions.
    pub(super) fn admissions(&self, key: &Name) -> u64 {
        lock(&self.0).admitted.get(key).copied().unwrap_or_default()
    }

    /// Records that the process of a manager has crashed.
    pub(super) fn has_crashed(&self, process: ProcessId) {
        lock(&self.0).crashed.insert(process);
    }

    /// Returns the reply for a manager whose process has crashed, or during an outage; `None` if it
    /// is not affected.
    pub(crate) fn refusal(&self, process: ProcessId) -> Option<Reply> {
        let pages = lock(&self.0);
        if pages.crashed.contains(&process) {
            // It is permanent, so nothing is sent again.
            let failure = Failure::new(FailureKind::Lasting, "the test has crashed this process");
            return Some(Reply::Refused(failure));
        }
        let cut_off = pages.outages > 0 && !pages.elsewhere.contains(&process);
        cut_off.then(|| Reply::Refused(Failure::new(FailureKind::Passing, "the test simulates an outage")))
    }

    /// Keeps tokens until the end of an outage; returns those that can be released now. Tokens of a
    /// crashed process are not released.
    pub(crate) fn abandon(&self, mut abandoned: Vec<(Name, Token)>) -> Vec<(Name, Token)> {
        if abandoned.is_empty() {
            return abandoned;
        }
        let mut pages = lock(&self.0);
        abandoned.retain(|(_, token)| !pages.crashed.contains(&token.process()));
        if pages.outages == 0 {
            return abandoned;
        }
        pages.abandoned.extend(abandoned);
        Vec::new()
    }

    pub(super) fn outage_begins(&self) {
        lock(&self.0).outages += 1;
    }

    /// Ends one outage. Returns the tokens to release if it was the last.
    pub(super) fn outage_ends(&self) -> Option<Vec<(Name, Token)>> {
        let mut pages = lock(&self.0);
        pages.outages = pages.outages.saturating_sub(1);
        (pages.outages == 0).then(|| std::mem::take(&mut pages.abandoned))
    }
}
