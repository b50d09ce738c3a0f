//! AtomicDeadline when a hold is believed, in one word: each call asks for it twice and each poll of a body once, without a lock.
//!
//! Not here: when that is moved and why (`protocol::hold`), what a turn has beside it (`turn`).

use crate::error::LossCause;
use crate::protocol::deadline::{BootInstant, Deadline};
use crate::sync::shared::atomic::{AtomicU64, Ordering};

/// AtomicDeadline when a hold is or was believed, and what ends it then: nanoseconds of the engine's clock, whose last bits are [`NOTES`]. 0 while
/// nothing was held. It is changed under the lane's lock, as the phase is.
#[derive(Debug, Default)]
pub(super) struct AtomicDeadline(AtomicU64);

impl AtomicDeadline {
    /// Returns whether the hold is believed at `now`.
    pub(super) fn is_after(&self, now: BootInstant) -> bool {
        let written = self.0.load(Ordering::Acquire);
        written & ENDED == 0 && now < BootInstant::from_nanos(written & !NOTES)
    }

    /// It is not believed any more, whenever it would have ended.
    pub(super) fn end(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) | ENDED, Ordering::Release);
    }

    /// It is believed from now on. `is_unconfirmed`: by a grant that the server has not confirmed.
    pub(super) fn begin(&self, deadline: Deadline, ends: BootInstant, is_unconfirmed: bool) {
        let confirmed = if is_unconfirmed { 0 } else { CONFIRMED };
        self.0.store(Self::written(deadline, ends) | confirmed, Ordering::Release);
    }

    /// The server has confirmed it: it is believed for longer, unless it has ended.
    pub(super) fn extend(&self, deadline: Deadline, ends: BootInstant) {
        let known = self.0.load(Ordering::Relaxed);
        if known & ENDED == 0 {
            let later = (known & !CONFIRMED).max(Self::written(deadline, ends));
            self.0.store(later | CONFIRMED, Ordering::Release);
        }
    }

    /// Returns until when it is or was believed, and what ends it then.
    pub(super) fn get(&self) -> (BootInstant, LossCause) {
        let written = self.0.load(Ordering::Acquire);
        let cause = match written & (BY_MAX_HOLD | CONFIRMED) {
            0 => LossCause::GrantUnconfirmed,
            CONFIRMED => LossCause::Expired,
            _ => LossCause::MaxHold,
        };
        (BootInstant::from_nanos(written & !NOTES), cause)
    }

    fn written(deadline: Deadline, ends: BootInstant) -> u64 {
        let by = if ends < deadline.at() { BY_MAX_HOLD } else { 0 };
        deadline.at().min(ends).nanos() & !NOTES | by
    }
}

/// What ends it is `max_hold`.
const BY_MAX_HOLD: u64 = 1;
/// The turn has ended or was lost.
const ENDED: u64 = 2;
/// The hold is no grant, or one that the server has confirmed.
const CONFIRMED: u64 = 4;
const NOTES: u64 = BY_MAX_HOLD | ENDED | CONFIRMED;
