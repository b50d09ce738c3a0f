//! The hand-off budget: how long tasks of one process hand a lock to each other before other
//! processes get it.
//!
//! ```text
//!   start                    half                     whole
//!     |---- hand-offs --------|---- hand-offs ---------|  yield: other processes wait, or may wait
//!                             |
//!                             | probe: do others wait?   none: a new budget starts here, or at the reply
//!                             |----------- half -------------->|
//! ```
//!
//! Only the server knows the waiters of other processes. It is probed while hand-offs continue, so
//! that no task waits for the reply if there are no waiters. Hand-offs continue while the probe is
//! in flight, within its timeout. A process that enqueues just after the probe waits for one and a
//! half budgets, or until the next reply if the server is farther away than that. From then on the
//! lock is contended, and it is yielded without a probe until no process takes it.
//!
//! The probe is sent at a release: a timer for each hold would cost more. If a hold lasts longer
//! than half a budget, no probe may have been sent by the end of the budget, and the lock is
//! yielded.
//!
//! The reply only affects fairness: no hold is valid for longer because of it.

use crate::protocol::ProtocolConfig;
use crate::protocol::deadline::BootInstant;

/// The budget of one hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HandoffBudget {
    since: BootInstant,
    waiters: OtherWaiters,
}

/// The knowledge of waiters in other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OtherWaiters {
    Unknown,
    /// The server was asked.
    ProbeInFlight,
    /// Other processes wait, or may wait.
    Possible,
}

/// The decision about a released lock for which another task of the process waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandoffDecision {
    /// The next task of this process gets it.
    HandOff,
    /// The next task of this process gets it, and the server is asked for waiters.
    HandOffAndProbe,
    /// It is yielded to other processes.
    Yield,
}

impl HandoffBudget {
    /// Creates a budget that starts at `since`.
    pub(super) fn starting_at(since: BootInstant) -> Self {
        Self { since, waiters: OtherWaiters::Unknown }
    }

    /// Returns the start of the budget.
    pub(super) fn since(self) -> BootInstant {
        self.since
    }

    /// Returns what happens to a lock that is released at `now`. `is_contended`: other processes
    /// are known to want it.
    pub(super) fn next(
        self,
        now: BootInstant,
        is_contended: bool,
        rules: &ProtocolConfig,
    ) -> HandoffDecision {
        let elapsed = now.since(self.since);
        match self.waiters {
            OtherWaiters::ProbeInFlight
                if elapsed < rules.handoff_budget.saturating_add(rules.response_timeout) =>
            {
                HandoffDecision::HandOff
            }
            _ if elapsed >= rules.handoff_budget => HandoffDecision::Yield,
            OtherWaiters::Unknown
                if !is_contended && rules.has_queue() && elapsed >= rules.handoff_budget / 2 =>
            {
                HandoffDecision::HandOffAndProbe
            }
            _ => HandoffDecision::HandOff,
        }
    }

    /// Marks that the probe is in flight.
    pub(super) fn mark_probed(&mut self) {
        self.waiters = OtherWaiters::ProbeInFlight;
    }

    /// Returns the budget at `now`, after the reply to a probe that was sent at `sent`.
    /// `has_no_waiters`: no other process waits.
    pub(super) fn answered(
        self,
        sent: BootInstant,
        now: BootInstant,
        has_no_waiters: bool,
        rules: &ProtocolConfig,
    ) -> Self {
        match has_no_waiters {
            _ if self.waiters != OtherWaiters::ProbeInFlight => self, // the reply to a probe before the last yield
            true => Self::starting_at(sent.plus(rules.handoff_budget / 2).max(now)),
            false => Self { waiters: OtherWaiters::Possible, ..self },
        }
    }

    /// Returns the budget without the probe in flight, for a task that needs another reply of the
    /// server first.
    pub(super) fn without_probe(self) -> Self {
        match self.waiters {
            OtherWaiters::ProbeInFlight => Self { waiters: OtherWaiters::Unknown, ..self },
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests;
