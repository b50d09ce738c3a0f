//! The hand-off budget: for how long the tasks of one process hand a lock on to each other before other processes get their turn.
//!
//! ```text
//!   begun                    half                     whole
//!     |---- handed on --------|---- handed on ---------|  offered to others: they wait, or may
//!                             |
//!                             | asked: does anybody else wait?   nobody: begun anew here, or when that is heard
//!                             |----------- half --------------->|
//! ```
//!
//! Who waits elsewhere only the server knows. It is asked while the tasks go on, so that they do not stop for the answer where it is that
//! nobody waits; and they go on for as long as that is on its way, within its timeout. Who comes just after the server has looked waits
//! for one and a half budgets, or for the next answer where the server is farther away than that. From then on the lock is contended, and
//! is offered without a question until nobody takes it.
//!
//! It is a task that lets go that asks: a timer for each turn would cost more. So where turns are longer than half a budget nobody may have
//! asked by its end, and the lock is offered.
//!
//! The answer decides about fairness and nothing else: no hold is believed for longer by it.
//!
//! Not here: what an offer comes to (`hold`), the server's queue (`value`).

use crate::protocol::ProtocolConfig;
use crate::protocol::deadline::BootInstant;

/// What a process has of its budget: since when it counts, in nanoseconds of the clock, of which the last two bits say what is known of
/// others. There is one for every lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HandoffBudget(u64);

/// What becomes of a lock that one task lets go of and another one of its process waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandoffDecision {
    /// It is handed on here.
    HandOff,
    /// It is handed on here, and the server is asked who else waits.
    HandOffAndProbe,
    /// It is offered to other processes.
    Yield,
}

impl HandoffBudget {
    /// A budget that begins at `since`.
    pub(super) fn begun(since: BootInstant) -> Self {
        Self(since.nanos() & !NOTES)
    }

    /// Returns since when it counts.
    pub(super) fn since(self) -> BootInstant {
        BootInstant::from_nanos(self.0 & !NOTES)
    }

    /// Returns what becomes of the lock when a task lets go of it at `now`. Where it `is_contended` others are known to want it.
    pub(super) fn next(
        self,
        now: BootInstant,
        is_contended: bool,
        rules: &ProtocolConfig,
    ) -> HandoffDecision {
        let had = now.since(self.since());
        match self.0 & NOTES {
            IS_ASKED if had < rules.handoff_budget.saturating_add(rules.response_timeout) => {
                HandoffDecision::HandOff
            }
            _ if had >= rules.handoff_budget => HandoffDecision::Yield,
            0 if !is_contended && rules.has_queue() && had >= rules.handoff_budget / 2 => {
                HandoffDecision::HandOffAndProbe
            }
            _ => HandoffDecision::HandOff,
        }
    }

    /// The server is asked who else waits.
    pub(super) fn ask(&mut self) {
        self.0 = self.0 & !NOTES | IS_ASKED;
    }

    /// Returns what it is at `now`, as the server has said whether there was `nobody` else when it was asked at `sent`.
    pub(super) fn answered(
        self,
        sent: BootInstant,
        now: BootInstant,
        nobody: bool,
        rules: &ProtocolConfig,
    ) -> Self {
        match nobody {
            _ if self.0 & NOTES != IS_ASKED => self, // it is the answer to a question before the last offer
            true => Self::begun(sent.plus(rules.handoff_budget / 2).max(now)),
            false => Self(self.0 & !NOTES | MAY_WAIT),
        }
    }

    /// Returns what a task has of it for which the server has to be asked something else first: nobody waits for the answer any more.
    pub(super) fn left(self) -> Self {
        Self(self.0 & !IS_ASKED)
    }
}

/// Somebody else waits, or may.
const MAY_WAIT: u64 = 1;

/// The server is asked, and has not answered.
const IS_ASKED: u64 = 2;

/// The bits of all that is known of others; none of them where nothing is.
const NOTES: u64 = MAY_WAIT | IS_ASKED;

#[cfg(test)]
mod tests;
