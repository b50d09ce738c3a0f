//! Bounds the renewals and verifications of held locks that are in flight at once.
//!
//! ```text
//!  due --below limit?--> in flight --> reply
//!          | no
//!          +--> deferred to a slot, at least 1 ms later, and examined again then
//! ```
//!
//! Many can be due at once, such as the verifications after a reconnect, or all renewals that came
//! due while the process was stopped. Each slot holds as many keys as may be in flight, so that no
//! key is examined again and again. Other deadlines of a deferred key, such as that of a loss, do
//! not change. See `protocol::deferral` for what can be deferred and for how long.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::protocol::command::Command;
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;

/// The bound of one engine on renewals and verifications in flight.
#[derive(Debug)]
pub(super) struct RenewalThrottle {
    limit: usize,
    in_flight: AtomicUsize,
    last_slot: Mutex<DeferralSlot>,
}

/// The time to which keys are deferred together.
#[derive(Debug)]
struct DeferralSlot {
    at: BootInstant,
    taken: usize,
}

impl RenewalThrottle {
    pub(super) fn new(limit: usize) -> Self {
        let last_slot = Mutex::new(DeferralSlot { at: BootInstant::START, taken: 0 });
        Self { limit, in_flight: AtomicUsize::new(0), last_slot }
    }

    /// Counts `command` if it is a renewal or a verification.
    pub(super) fn on_sent(&self, command: Command) {
        if command.is_renewal() {
            self.in_flight.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Stops counting `command`, which has its reply or will get none.
    pub(super) fn on_reply(&self, command: Command) {
        if command.is_renewal() {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns until when to defer what is due at `now`, or `None` if the limit is not reached.
    pub(super) fn defer_until(&self, now: BootInstant) -> Option<BootInstant> {
        if self.in_flight.load(Ordering::Relaxed) < self.limit {
            return None;
        }
        let (mut slot, next) = (lock(&self.last_slot), now.plus(BETWEEN_SLOTS));
        if slot.at < next || slot.at > now.plus(LONGEST_DEFERRAL) {
            *slot = DeferralSlot { at: next, taken: 0 };
        } else if slot.taken >= self.limit {
            *slot = DeferralSlot { at: slot.at.plus(BETWEEN_SLOTS), taken: 0 };
        }
        slot.taken += 1;
        Some(slot.at)
    }

    /// Returns how many renewals and verifications are in flight.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Returns `true` if a key was ever deferred.
    #[cfg(test)]
    pub(super) fn has_deferred(&self) -> bool {
        lock(&self.last_slot).at > BootInstant::START
    }
}

const BETWEEN_SLOTS: Duration = Duration::from_millis(1);

/// If more keys are deferred than fit into the slots of this time, several slots share one time.
const LONGEST_DEFERRAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const RENEW: Command = Command::Renew { lease: Duration::from_secs(30) };

    const LIMIT: usize = 32;

    fn at(ms: u64) -> BootInstant {
        BootInstant::from_nanos(1_000_000_000 + ms * 1_000_000)
    }

    /// Returns a throttle with `count` renewals in flight.
    fn busy(count: usize) -> RenewalThrottle {
        let throttle = RenewalThrottle::new(LIMIT);
        (0..count).for_each(|_| throttle.on_sent(RENEW));
        throttle
    }

    #[test]
    fn renewals_are_deferred_at_the_limit_until_a_reply() {
        let throttle = busy(LIMIT - 1);

        assert_eq!(throttle.defer_until(at(0)), None);
        throttle.on_sent(RENEW);
        assert_eq!(throttle.defer_until(at(0)), Some(at(1)));
        throttle.on_reply(RENEW);
        assert_eq!(throttle.defer_until(at(0)), None);
    }

    #[test]
    fn other_commands_are_not_counted() {
        let throttle = busy(LIMIT - 1);

        throttle.on_sent(Command::RELEASE);

        assert_eq!(throttle.defer_until(at(0)), None);
    }

    #[test]
    fn deferred_keys_share_slots_in_order() {
        let throttle = busy(LIMIT);

        let mut slots: Vec<_> = (0..100_000).filter_map(|_| throttle.defer_until(at(0))).collect();

        assert_eq!(slots.len(), 100_000);
        assert!(slots.iter().take(1_000 * LIMIT).is_sorted());
        assert!(slots.chunk_by(|one, other| one == other).all(|slot| slot.len() <= LIMIT));
        slots.sort_unstable();
        assert!(slots.first() == Some(&at(1)) && slots.last().is_some_and(|last| *last <= at(1_001)));
        let largest = slots.chunk_by(|one, other| one == other).map(<[_]>::len).max();
        assert!(largest <= Some(4 * LIMIT), "{largest:?}");
    }

    #[test]
    fn slots_of_the_past_are_not_given_out() {
        let throttle = busy(LIMIT);
        assert_eq!(throttle.defer_until(at(0)), Some(at(1)));

        assert_eq!(throttle.defer_until(at(500)), Some(at(501)));
    }
}
