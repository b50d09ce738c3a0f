//! How much of what is due for held locks is on its way at once: renewals, and checks whether they are still ours.
//!
//! ```text
//!  due --room?--> sent --> answered        few are on their way: a server that is busy with them lets others wait
//!        | no                              few are in memory: what is on its way costs more than the lock itself
//!        +--> a place in the line, a moment later
//! ```
//!
//! Much may be due at once: the checks of all that was taken in one burst, or what came due while the process was stopped. It goes out as
//! what was sent before is answered. Who finds no room is put off to a place in a line, one after the other, so that nobody is looked at
//! again and again meanwhile, and what else is due for him (his loss, say) keeps its own time. The longer there is a line, the more room:
//! a server that is far away has more on its way to it.
//!
//! How many are few depends on whether the process asks for anything else meanwhile: small parts are in nobody's way, and cost more
//! wake-ups.
//!
//! Not here: what can be put off, and for how long (`protocol::deferral`).

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::protocol::command::Command;
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;

/// The pace of an engine.
#[derive(Debug)]
pub(super) struct RenewalThrottle {
    few: ThrottleLimits,
    /// When something else was sent, to a millisecond.
    others: AtomicU64,
    /// How many renewals and checks are on their way.
    unanswered: AtomicUsize,
    /// Whether there is a line, readable without its lock.
    has_line: AtomicBool,
    line: Mutex<DeferralQueue>,
}

/// How many may be on their way where there is no line.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThrottleLimits {
    /// While the process asks for something else, too.
    pub(super) beside_others: usize,
    /// While it does not.
    pub(super) alone: usize,
}

impl ThrottleLimits {
    /// For a server that is somewhere else. It answers the smaller number in a tenth of a millisecond or so: other calls of the process
    /// hardly feel them. The larger one takes it half of one, and ten thousand locks cost a process a third less processor time than by
    /// the smaller.
    pub(super) const OF_A_SERVER: Self = Self { beside_others: 8, alone: 64 };

    /// For what has not to be spared.
    pub(super) const ALL: Self = Self { beside_others: usize::MAX, alone: usize::MAX };
}

/// The places of those who were put off.
#[derive(Debug)]
struct DeferralQueue {
    /// Since when there is one, if there is.
    since: Option<BootInstant>,
    /// The last place.
    last: BootInstant,
    /// How many have that one.
    taken: usize,
}

impl Default for DeferralQueue {
    fn default() -> Self {
        Self { since: None, last: BootInstant::START, taken: 0 }
    }
}

impl RenewalThrottle {
    pub(super) fn new(few: ThrottleLimits) -> Self {
        let (others, unanswered, has_line) = (AtomicU64::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        Self { few, others, unanswered, has_line, line: Mutex::default() }
    }

    /// A command is sent at `now`.
    pub(super) fn sent(&self, command: Command, now: BootInstant) {
        if command.is_renewal() {
            self.unanswered.fetch_add(1, Ordering::Relaxed);
        } else if now.since(self.others()) >= A_MILLISECOND {
            self.others.store(now.nanos(), Ordering::Relaxed); // seldom: many threads look at it
        }
    }

    /// A command is answered, or will not be.
    pub(super) fn answered(&self, command: Command) {
        if command.is_renewal() {
            self.unanswered.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns how many are on their way.
    #[cfg(test)]
    pub(super) fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::Relaxed)
    }

    /// Returns whether anybody has ever been put off.
    #[cfg(test)]
    pub(super) fn has_deferred(&self) -> bool {
        lock(&self.line).last > BootInstant::START
    }

    /// Returns where in the line to wait, if something that is due at `now` has to.
    pub(super) fn should_defer(&self, now: BootInstant) -> Option<BootInstant> {
        let (unanswered, few) = (self.unanswered.load(Ordering::Relaxed), self.few(now));
        if unanswered < few && !self.has_line.load(Ordering::Relaxed) {
            return None;
        }
        let mut line = lock(&self.line);
        let place =
            if unanswered < line.room(few, now) { line.goes(now) } else { Some(line.place(few, now)) };
        self.has_line.store(line.since.is_some(), Ordering::Relaxed);
        place
    }

    /// Returns how many may be on their way at `now` where there is no line.
    fn few(&self, now: BootInstant) -> usize {
        if now.since(self.others()) < LATELY { self.few.beside_others } else { self.few.alone }
    }

    fn others(&self) -> BootInstant {
        BootInstant::from_nanos(self.others.load(Ordering::Relaxed))
    }
}

impl DeferralQueue {
    /// Returns how many may be on their way at `now`, of which a few always may.
    fn room(&self, few: usize, now: BootInstant) -> usize {
        let Some(since) = self.since.filter(|_| !self.is_over(now)) else {
            return few;
        };
        let times = now.since(since).as_millis() / AS_MANY_MORE_EVERY.as_millis();
        few.saturating_add(MORE.saturating_mul(usize::try_from(times).unwrap_or(usize::MAX)))
    }

    /// Gives the next place away; each is for a few. Who finds no room there has another one.
    fn place(&mut self, few: usize, now: BootInstant) -> BootInstant {
        if self.is_over(now) {
            self.since = Some(now);
        }
        let first = now.plus(BETWEEN);
        if self.last < first || self.last > now.plus(LONGEST) {
            (self.last, self.taken) = (first, 0);
        } else if self.taken >= few {
            (self.last, self.taken) = (self.last.plus(BETWEEN), 0);
        }
        self.taken += 1;
        self.last
    }

    /// Somebody finds room at `now`, and has no place: who has the last one, or comes later, ends the line.
    fn goes(&mut self, now: BootInstant) -> Option<BootInstant> {
        if now >= self.last {
            self.since = None;
        }
        None
    }

    /// Returns whether there is none, or nobody has been put off lately.
    fn is_over(&self, now: BootInstant) -> bool {
        self.since.is_none() || now.since(self.last) >= AS_MANY_MORE_EVERY
    }
}

/// For how long somebody who has asked for something is likely to ask for more.
const LATELY: Duration = Duration::from_millis(20);

/// How much more room there is where there has been a line for a while.
const MORE: usize = 32;

/// How far apart places are.
const BETWEEN: Duration = A_MILLISECOND;

const A_MILLISECOND: Duration = Duration::from_millis(1);

/// No place is farther away: where very many are due at once, more have each.
const LONGEST: Duration = Duration::from_secs(1);

/// How long a line lasts before there is room for as many more. A server that is near answers ten thousand in a little more than that; to
/// one that is slow by itself, many more would only be in the way of others.
const AS_MANY_MORE_EVERY: Duration = Duration::from_millis(256);

#[cfg(test)]
mod tests {
    use super::*;

    const RENEW: Command = Command::Renew { lease: Duration::from_secs(30) };

    fn at(ms: u64) -> BootInstant {
        BootInstant::from_nanos(1_000_000_000 + ms * 1_000_000)
    }

    const FEW: usize = MORE;

    /// A pace at which so many are on their way.
    fn busy(count: usize) -> RenewalThrottle {
        busy_at(ThrottleLimits { beside_others: FEW, alone: FEW }, count)
    }

    fn busy_at(few: ThrottleLimits, count: usize) -> RenewalThrottle {
        let pace = RenewalThrottle::new(few);
        (0..count).for_each(|_| pace.sent(RENEW, at(0)));
        pace
    }

    #[test]
    fn who_finds_few_on_their_way_goes_at_once_and_who_finds_more_has_a_place() {
        let pace = busy(FEW - 1);

        assert_eq!(pace.should_defer(at(0)), None);
        pace.sent(RENEW, at(0));
        assert_eq!(pace.should_defer(at(0)), Some(at(1)));
        pace.answered(RENEW);
        assert_eq!(pace.should_defer(at(0)), None);
    }

    #[test]
    fn a_process_that_asks_for_something_else_has_fewer_beside_it_for_a_while() {
        let pace = busy_at(ThrottleLimits { beside_others: 2, alone: 9 }, 8);
        assert_eq!(pace.should_defer(at(0)), None, "it asks for nothing else");

        pace.sent(Command::Release, at(0));

        assert_eq!(pace.should_defer(at(19)), Some(at(20)));
        assert_eq!(pace.should_defer(at(1_000)), None);
    }

    #[test]
    fn a_place_is_for_few_and_the_line_for_all() {
        let pace = busy(FEW);

        let mut places: Vec<_> = (0..100_000).filter_map(|_| pace.should_defer(at(0))).collect();

        assert_eq!(places.len(), 100_000);
        assert!(places.iter().take(1_000 * FEW).is_sorted());
        places.sort_unstable();
        assert!(places.first() == Some(&at(1)) && places.last().is_some_and(|last| *last <= at(1_001)));
        let crowded = places.chunk_by(|one, other| one == other).map(<[_]>::len).max();
        assert!(crowded <= Some(4 * FEW), "{crowded:?}");
    }

    #[test]
    fn a_line_that_is_dealt_with_again_and_again_makes_no_room() {
        let pace = RenewalThrottle::new(ThrottleLimits { beside_others: 2, alone: 2 });
        let (mut waiting, mut most) = (Vec::new(), 0);

        // Five are due each four milliseconds, and what was sent is answered within one.
        for ms in 0..10_000 {
            if ms % 4 == 0 {
                waiting.resize(waiting.len() + 5, at(ms));
            }
            let due: Vec<_> = waiting.extract_if(.., |until| *until <= at(ms)).collect();
            for _ in due {
                match pace.should_defer(at(ms)) {
                    Some(later) => waiting.push(later),
                    None => pace.sent(RENEW, at(ms)),
                }
            }
            most = most.max(pace.unanswered());
            while pace.unanswered() > 0 {
                pace.answered(RENEW);
            }
        }

        assert_eq!(most, 2, "nobody waited for long");
    }

    #[test]
    fn the_longer_there_is_a_line_the_more_room_until_it_is_over() {
        let pace = busy(20 * FEW);
        let room = |now| lock(&pace.line).room(FEW, at(now));

        for now in 0..=1_030 {
            assert!(pace.should_defer(at(now)).is_some());
        }
        assert_eq!((room(255), room(1_030)), (FEW, 5 * FEW));
        assert_eq!(room(1_300), FEW, "nobody was put off for a while");
    }
}
