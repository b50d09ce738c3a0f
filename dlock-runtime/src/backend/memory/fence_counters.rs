//! [`FenceCounters`], the fencing counters of a store in memory.

use std::collections::HashMap;
use std::time::Duration;

use crate::bounds::LAST_FENCE;
use crate::key::Name;
use crate::protocol::command::{Failure, FailureKind, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::fencing;

/// The last fencing token of each key, for `fence_ttl` after its last use.
#[derive(Debug, Default)]
pub(super) struct FenceCounters {
    counters: HashMap<Name, FenceCounter>,
    /// The highest token of the counters that were dropped. A new counter starts above it, so
    /// tokens rise even if the wall clock steps back.
    highest_dropped: Option<u64>,
}

#[derive(Debug)]
struct FenceCounter {
    last: u64,
    expires: BootInstant,
}

impl FenceCounters {
    /// Issues a token for `key` at `micros` since the epoch. Its counter is kept for `ttl`.
    pub(super) fn issue(&mut self, key: &Name, micros: u64, now: BootInstant, ttl: Duration) -> Reply {
        let last = self.counters.get(key).map(|counter| counter.last);
        let Some(token) = fencing::next(last.or(self.highest_dropped), micros) else {
            let reason = format!("its counter in memory has reached {LAST_FENCE}; a new process restarts it");
            return Reply::Refused(Failure::new(FailureKind::FencingCounter, reason));
        };
        if self.counters.len() >= self.counters.capacity() {
            self.drop_expired(now); // before the map grows
        }
        self.counters.insert(Name::clone(key), FenceCounter { last: token, expires: now.plus(ttl) });
        Reply::Fenced(token)
    }

    /// Returns the last token of `key`.
    pub(super) fn last(&self, key: &Name) -> Option<u64> {
        self.counters.get(key).map(|counter| counter.last)
    }

    fn drop_expired(&mut self, now: BootInstant) {
        let Self { counters, highest_dropped } = self;
        counters.retain(|_, counter| {
            let is_kept = now < counter.expires;
            if !is_kept {
                *highest_dropped = (*highest_dropped).max(Some(counter.last));
            }
            is_kept
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(60);

    fn at(secs: u64) -> BootInstant {
        BootInstant::from_nanos(secs * 1_000_000_000)
    }

    fn issue(counters: &mut FenceCounters, key: &str, micros: u64, secs: u64) -> Option<u64> {
        match counters.issue(&key.into(), micros, at(secs), TTL) {
            Reply::Fenced(token) => Some(token),
            Reply::Refused(failure) if failure.kind == FailureKind::FencingCounter => None,
            reply => panic!("{reply:?}"),
        }
    }

    #[test]
    fn tokens_of_a_key_rise_up_to_the_last() {
        let mut counters = FenceCounters::default();

        assert_eq!(issue(&mut counters, "a", 1_000, 0), Some(1_000));
        assert_eq!(issue(&mut counters, "a", 900, 0), Some(1_001));
        assert_eq!(issue(&mut counters, "b", 900, 0), Some(900), "each key has a counter");
        assert_eq!(issue(&mut counters, "a", LAST_FENCE, 0), Some(LAST_FENCE));
        assert_eq!(issue(&mut counters, "a", LAST_FENCE, 0), None);
        assert_eq!(counters.last(&"a".into()), Some(LAST_FENCE));
    }

    #[test]
    fn expired_counters_are_dropped_and_tokens_still_rise() {
        const MANY: u64 = 1_000;
        let mut counters = FenceCounters::default();
        for number in 0..MANY {
            issue(&mut counters, &number.to_string(), MANY + number, number);
        }

        assert!(counters.counters.len() < 500, "{} are kept for a minute", counters.counters.len());
        assert_eq!(counters.last(&(MANY - 60).to_string().as_str().into()), Some(2 * MANY - 60));
        assert_eq!(counters.last(&"0".into()), None);
        assert!(issue(&mut counters, "0", 0, MANY) > Some(MANY), "the clock stepped back");
    }
}
