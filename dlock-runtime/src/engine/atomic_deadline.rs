//! The deadline of a hold in one atomic word.
//!
//! Each call reads it twice and each poll of a body once, without a lock. See `protocol::hold` for
//! when the deadline moves.

use crate::error::LossCause;
use crate::protocol::deadline::{BootInstant, Deadline};
use crate::sync::shared::atomic::{AtomicU64, Ordering};

/// Until when a hold is or was valid, and what ends it then.
///
/// The value is in nanoseconds of the engine's clock, and its last bits are [`FLAGS`]. It is 0
/// while nothing was held. It changes under the lock of the key's shard, as [`AcquisitionState`]
/// does.
///
/// [`AcquisitionState`]: super::acquisition::AcquisitionState
#[derive(Debug, Default)]
pub(super) struct AtomicDeadline(AtomicU64);

impl AtomicDeadline {
    /// Returns `true` if the hold is valid at `now`.
    pub(super) fn is_valid_at(&self, now: BootInstant) -> bool {
        let word = self.0.load(Ordering::Acquire);
        word & ENDED == 0 && now < BootInstant::from_nanos(word & !FLAGS)
    }

    /// Marks the hold as invalid, regardless of its deadline.
    pub(super) fn end(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) | ENDED, Ordering::Release);
    }

    /// Sets the first deadline. `is_unconfirmed`: of a grant that the server has not confirmed.
    pub(super) fn begin(&self, deadline: Deadline, ends: BootInstant, is_unconfirmed: bool) {
        let confirmed = if is_unconfirmed { 0 } else { CONFIRMED };
        self.0.store(Self::word(deadline, ends) | confirmed, Ordering::Release);
    }

    /// Moves the deadline to a later time, which the server has confirmed, unless the hold has
    /// ended.
    pub(super) fn extend(&self, deadline: Deadline, ends: BootInstant) {
        let known = self.0.load(Ordering::Relaxed);
        if known & ENDED == 0 {
            let later = (known & !CONFIRMED).max(Self::word(deadline, ends));
            self.0.store(later | CONFIRMED, Ordering::Release);
        }
    }

    /// Returns the deadline, and what ends the hold then.
    pub(super) fn get(&self) -> (BootInstant, LossCause) {
        let word = self.0.load(Ordering::Acquire);
        let cause = match word & (BY_MAX_HOLD | CONFIRMED) {
            0 => LossCause::GrantUnconfirmed,
            CONFIRMED => LossCause::Expired,
            _ => LossCause::MaxHold,
        };
        (BootInstant::from_nanos(word & !FLAGS), cause)
    }

    fn word(deadline: Deadline, ends: BootInstant) -> u64 {
        let by = if ends < deadline.at() { BY_MAX_HOLD } else { 0 };
        deadline.at().min(ends).nanos() & !FLAGS | by
    }
}

/// `max_hold` ends the hold.
const BY_MAX_HOLD: u64 = 1;
/// The acquisition was released or lost.
const ENDED: u64 = 2;
/// The hold did not begin with a grant, or the server has confirmed the grant.
const CONFIRMED: u64 = 4;
const FLAGS: u64 = BY_MAX_HOLD | ENDED | CONFIRMED;
