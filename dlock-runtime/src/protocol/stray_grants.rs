//! Grants for tokens that nobody here waits for.
//!
//! A waiter may give up while its grant is on the way; the lock is passed on by telling that token to leave. Anybody who may publish
//! can send such messages, though: so only tokens that this manager has given are answered, and only so many in a second. What is
//! not answered costs a grant lease.

use crate::protocol::deadline::BootInstant;

/// How many strangers are still answered in the present second.
#[derive(Debug)]
pub(crate) struct StrayGrantFilter {
    since: BootInstant,
    answered: u32,
}

impl StrayGrantFilter {
    pub(crate) const fn new() -> Self {
        Self { since: BootInstant::START, answered: 0 }
    }

    /// Returns whether one more is answered at `now`.
    pub(crate) fn may_answer(&mut self, now: BootInstant) -> bool {
        if now.since(self.since) >= SECOND {
            *self = Self { since: now, answered: 0 };
        }
        self.answered += 1;
        self.answered <= MOST_A_SECOND
    }
}

const SECOND: std::time::Duration = std::time::Duration::from_secs(1);

const MOST_A_SECOND: u32 = 100;

#[cfg(test)]
mod tests;
