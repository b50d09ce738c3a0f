//! Limits the replies to grants for tokens that no task waits for.
//!
//! A waiter can give up while its grant is in flight. The lock is then passed on by a withdrawal of
//! that token. But any client that may publish can send such messages. So only grants for tokens of
//! this manager are answered, at most 100 in a second. An unanswered grant costs a grant lease.

use crate::protocol::deadline::BootInstant;

/// Counts the stray grants that were answered in the current second.
#[derive(Debug)]
pub(crate) struct StrayGrantFilter {
    since: BootInstant,
    answered: u32,
}

impl StrayGrantFilter {
    pub(crate) const fn new() -> Self {
        Self { since: BootInstant::START, answered: 0 }
    }

    /// Returns `true` if one more may be answered at `now`.
    pub(crate) fn may_answer(&mut self, now: BootInstant) -> bool {
        if now.since(self.since) >= SECOND {
            *self = Self { since: now, answered: 0 };
        }
        self.answered += 1;
        self.answered <= MAX_PER_SECOND
    }
}

const SECOND: std::time::Duration = std::time::Duration::from_secs(1);

const MAX_PER_SECOND: u32 = 100;

#[cfg(test)]
mod tests;
