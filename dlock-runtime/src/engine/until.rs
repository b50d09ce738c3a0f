//! Until when a hold is believed, in one word: each call asks for it twice and each poll of a body once, without a lock.
//!
//! Not here: when that is moved and why (`protocol::hold`), what a turn has beside it (`turn`).

use crate::error::LossCause;
use crate::protocol::deadline::{BootTime, Deadline};
use crate::sync::shared::atomic::{AtomicU64, Ordering};

/// Until when a hold is or was believed, and what ends it then: nanoseconds of the engine's clock, of which the last bit says that it is
/// `max_hold`, and the one before that the turn has ended or was lost. 0 while nothing was held. It is changed under the lane's lock, as
/// the phase is.
#[derive(Debug, Default)]
pub(super) struct Until(AtomicU64);

impl Until {
    /// Returns whether the hold is believed at `now`.
    pub(super) fn is_after(&self, now: BootTime) -> bool {
        let written = self.0.load(Ordering::Acquire);
        written & ENDED == 0 && now < BootTime::from_nanos(written & !NOTES)
    }

    /// It is not believed any more, whenever it would have ended.
    pub(super) fn end(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) | ENDED, Ordering::Release);
    }

    /// It is believed from now on.
    pub(super) fn begin(&self, deadline: Deadline, ends: BootTime) {
        self.0.store(Self::written(deadline, ends), Ordering::Release);
    }

    /// It is believed for longer, unless it has ended.
    pub(super) fn prolong(&self, deadline: Deadline, ends: BootTime) {
        let known = self.0.load(Ordering::Relaxed);
        if known & ENDED == 0 {
            self.0.store(known.max(Self::written(deadline, ends)), Ordering::Release);
        }
    }

    /// Returns until when it is or was believed, and what ends it then.
    pub(super) fn get(&self) -> (BootTime, LossCause) {
        let written = self.0.load(Ordering::Acquire);
        let cause = if written & BY_MAX_HOLD == 0 { LossCause::Expired } else { LossCause::MaxHold };
        (BootTime::from_nanos(written & !NOTES), cause)
    }

    fn written(deadline: Deadline, ends: BootTime) -> u64 {
        let by = if ends < deadline.at() { BY_MAX_HOLD } else { 0 };
        deadline.at().min(ends).nanos() & !NOTES | by
    }
}

/// What the last bits of [`Until`] say.
const BY_MAX_HOLD: u64 = 1;
const ENDED: u64 = 2;
const NOTES: u64 = BY_MAX_HOLD | ENDED;
