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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> BootInstant {
        BootInstant::START.plus(Duration::from_secs(seconds))
    }

    /// Returns the deadline of a lease of `seconds`, in whole words of the atomic.
    fn lease(seconds: u64) -> Deadline {
        Deadline::of_lease(at(0), Duration::from_secs(seconds))
    }

    /// Returns a hold with a lease of 30 s that ends at `ends`.
    fn begun(ends: BootInstant, is_unconfirmed: bool) -> AtomicDeadline {
        let deadline = AtomicDeadline::default();
        deadline.begin(lease(30), ends, is_unconfirmed);
        deadline
    }

    #[test]
    fn a_hold_is_valid_before_its_deadline_only() {
        assert!(!AtomicDeadline::default().is_valid_at(at(0)), "nothing is held");
        for (ends, is_unconfirmed) in
            [(BootInstant::NEVER, false), (BootInstant::NEVER, true), (at(10), false), (at(10), true)]
        {
            let deadline = begun(ends, is_unconfirmed);

            let (end, _) = deadline.get();
            let last = BootInstant::from_nanos(end.nanos() - 1);
            assert_eq!(end, BootInstant::from_nanos(lease(30).at().min(ends).nanos() & !7));
            assert!(deadline.is_valid_at(at(0)) && deadline.is_valid_at(last) && !deadline.is_valid_at(end));
        }
    }

    #[test]
    fn the_cause_is_what_ends_the_hold_first() {
        for (ends, is_unconfirmed, cause) in [
            (BootInstant::NEVER, false, LossCause::Expired),
            (BootInstant::NEVER, true, LossCause::GrantUnconfirmed),
            (lease(30).at(), false, LossCause::Expired),
            (at(10), false, LossCause::MaxHold),
            (at(10), true, LossCause::MaxHold),
        ] {
            assert_eq!(begun(ends, is_unconfirmed).get().1, cause, "{ends:?} {is_unconfirmed}");
        }
    }

    #[test]
    fn an_ended_hold_stays_invalid_and_keeps_its_deadline() {
        let deadline = begun(BootInstant::NEVER, false);
        let before = deadline.get();

        for _ in 0..3 {
            deadline.end();
            assert!(!deadline.is_valid_at(at(1)));
        }
        deadline.extend(lease(60), BootInstant::NEVER);

        assert!(!deadline.is_valid_at(at(1)));
        assert_eq!(deadline.get(), before);
    }

    #[test]
    fn an_extension_confirms_the_hold_and_never_shortens_it() {
        for is_unconfirmed in [false, true] {
            let deadline = begun(BootInstant::NEVER, is_unconfirmed);
            let first = deadline.get().0;

            deadline.extend(lease(20), BootInstant::NEVER);
            assert_eq!(deadline.get(), (first, LossCause::Expired), "a late reply to an earlier renewal");

            deadline.extend(lease(60), BootInstant::NEVER);
            let end = deadline.get().0;
            assert_eq!(
                deadline.get(),
                (BootInstant::from_nanos(lease(60).at().nanos() & !7), LossCause::Expired)
            );
            assert!(deadline.is_valid_at(first) && !deadline.is_valid_at(end));

            deadline.extend(lease(90), at(70));
            assert_eq!(deadline.get(), (at(70), LossCause::MaxHold));
        }
    }
}
