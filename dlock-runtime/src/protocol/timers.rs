//! [`KeyTimer`]: every reason for which a key wakes up.

/// A reason to call [`on_timeout`](super::key_state::KeyState::on_timeout).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyTimer {
    /// A hold is renewed or confirmed, or a failed renewal is repeated.
    Renewal,
    /// A hold is verified, because its key may have changed.
    Verification,
    /// The lease of a hold ends, and the hold is lost.
    Expiry,
    /// The `max_hold` of a hold ends, and the hold is lost.
    MaxHold,
    /// The key of a hold that has ended is released, or its time to live is set again.
    MinHold,
    /// The contender checks that its token is still in the server's queue.
    QueueCheck,
    /// The contender, which is not queued, tries again.
    Poll,
    /// The `retry` of the head of the local queue allows the next try.
    Retry,
    /// A call ends its wait, or uses up a retry behind another task of this process.
    WaitTimeout,
    /// The cooldown ends.
    Cooldown,
}

impl KeyTimer {
    /// Returns `true` if the work can wait while many renewals are in flight.
    pub(super) const fn is_deferrable(self) -> bool {
        matches!(self, Self::Renewal | Self::Verification)
    }
}

#[cfg(test)]
mod tests;
