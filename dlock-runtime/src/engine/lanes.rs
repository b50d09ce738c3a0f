//! The lanes of a shard: in a row without gaps, found by their keys, with the times at which something is due for them.
//!
//! A lane that is of no use any more is taken out and the last one moves into its place, so that a row is as long as it has lanes, and
//! a place is known only while the shard is locked.
//!
//! Not here: what a lane is (`protocol::lane`), the lock over it (`shard`).

use hashbrown::HashTable;

use crate::engine::row::Row;
use crate::engine::timers::{Place, Things, Timers};
use crate::engine::turn::Seat;
use crate::key::Name;
use crate::protocol::deadline::BootTime;
use crate::protocol::lane::Lane;

/// The lanes of a shard.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    row: Row<Entry>,
    /// The places of all, by the hashes of their keys.
    by_key: HashTable<u32>,
    timers: Timers,
    /// Keys that were contended when their lanes were taken out, by their hashes: the last for each place.
    contended: [Option<u32>; REMEMBERED],
}

/// One lane. There is one for every lock that is held. The key is known by who sits in it.
#[derive(Debug)]
struct Entry {
    lane: Lane<Seat>,
    hash: Hash,
    /// Where its time stands.
    timer: Place,
}

/// What is noted beside a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note {
    /// Whether its lock is contended, as far as the lane knows.
    pub(super) contended: bool,
    /// When something is due for it.
    pub(super) due: BootTime,
}

/// The hash of a key, and beside it whether its lock is contended, as far as the lane knows.
#[derive(Clone, Copy, Debug)]
struct Hash(u32);

impl Entry {
    fn is_of(&self, key: &str, hash: u32) -> bool {
        self.hash.get() == hash && self.key().is_some_and(|of| **of == *key)
    }

    fn key(&self) -> Option<&Name> {
        self.lane.seat().map(|seat| seat.key.name())
    }
}

impl Lanes {
    /// Returns the place of the lane of `key`, where there is one.
    pub(super) fn find(&self, key: &str, hash: u32) -> Option<u32> {
        let is_it = |at: &u32| self.entry(*at).is_some_and(|entry| entry.is_of(key, hash));
        self.by_key.find(spread(hash), is_it).copied()
    }

    /// Returns the place of the lane of `key`, which is made where there is none.
    pub(super) fn find_or_add(&mut self, key: &Name, hash: u32) -> u32 {
        if let Some(at) = self.find(key, hash) {
            return at;
        }
        let at = u32::try_from(self.row.len()).expect("no process has four billion locks");
        let contended = self.contended.get(place_of(hash)) == Some(&Some(hash));
        self.row.push(Entry { lane: Lane::new(), hash: Hash::new(hash, contended), timer: Place::NOWHERE });
        let row = &self.row;
        self.by_key.insert_unique(spread(hash), at, |at: &u32| spread_of(row, *at));
        at
    }

    /// Returns the lane, and what is noted beside it: whether its lock is contended, and when something is due for it.
    pub(super) fn lane(&mut self, at: u32) -> Option<(&mut Lane<Seat>, Note)> {
        let entry = self.row.get_mut(at)?;
        let note = Note { contended: entry.hash.is_contended(), due: self.timers.due(entry.timer) };
        Some((&mut entry.lane, note))
    }

    pub(super) fn key(&self, at: u32) -> Option<&Name> {
        self.entry(at).and_then(Entry::key)
    }

    /// Notes what has become of a lane. One that is of no use any more is taken out.
    pub(super) fn note(&mut self, at: u32, note: Note) {
        let Some(entry) = self.row.get_mut(at) else { return };
        if entry.lane.is_idle() {
            let hash = entry.hash.get();
            self.remember(hash, note.contended);
            self.remove(at, hash);
        } else {
            entry.hash = Hash::new(entry.hash.get(), note.contended);
            self.timers.set(&mut self.row, at, note.due);
        }
    }

    /// Returns when something is due first, and for whom.
    pub(super) fn first_due(&self) -> Option<(BootTime, u32)> {
        self.timers.first()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Name> {
        self.row.iter().filter_map(Entry::key)
    }

    /// Returns how many lanes there are, and for how many of them something is due.
    #[cfg(test)]
    pub(super) fn count(&self) -> (usize, usize) {
        (self.row.len(), self.row.iter().filter(|entry| entry.timer != Place::NOWHERE).count())
    }

    /// Takes note of whether a lane was contended, for the next one of its key.
    fn remember(&mut self, hash: u32, contended: bool) {
        let Some(place) = self.contended.get_mut(place_of(hash)) else { return };
        if contended {
            *place = Some(hash);
        } else if *place == Some(hash) {
            *place = None;
        }
    }

    fn remove(&mut self, at: u32, hash: u32) {
        if let Ok(found) = self.by_key.find_entry(spread(hash), |of| *of == at) {
            found.remove();
        }
        self.timers.set(&mut self.row, at, BootTime::NEVER);
        self.row.swap_remove(at);
        if let Some(moved) = self.row.get(at) {
            let last = u32::try_from(self.row.len()).unwrap_or(u32::MAX); // where it stood
            self.timers.renumber(moved.timer, at);
            if let Some(of) = self.by_key.find_mut(spread(moved.hash.get()), |of| *of == last) {
                *of = at;
            }
        }
        self.give_room_back();
    }

    /// What a crowd has used is given back when it has gone.
    fn give_room_back(&mut self) {
        let (used, room) = (self.row.len(), self.by_key.capacity());
        if room > LITTLE && used < room / 4 {
            let row = &self.row;
            self.by_key.shrink_to(room / 2, |at| spread_of(row, *at));
        }
    }

    fn entry(&self, at: u32) -> Option<&Entry> {
        self.row.get(at)
    }
}

impl Things for Row<Entry> {
    fn place(&mut self, thing: u32) -> Option<&mut Place> {
        self.get_mut(thing).map(|entry| &mut entry.timer)
    }
}

impl Hash {
    fn new(hash: u32, contended: bool) -> Self {
        Self(hash & HASH | if contended { !HASH } else { 0 })
    }

    fn get(self) -> u32 {
        self.0 & HASH
    }

    fn is_contended(self) -> bool {
        self.0 & !HASH != 0
    }
}

/// The table looks at the first and at the last bits of a hash.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 33 | u64::from(hash)
}

fn spread_of(row: &Row<Entry>, at: u32) -> u64 {
    row.get(at).map_or(0, |entry| spread(entry.hash.get()))
}

/// Returns where it is remembered whether a key with this hash is contended.
fn place_of(hash: u32) -> usize {
    usize::try_from(hash).unwrap_or_default() % REMEMBERED
}

/// The bits of a hash.
pub(super) const HASH: u32 = u32::MAX >> 1;

/// How many keys are remembered: of a few that many processes want the next call saves a trip, and a key that another one has taken the
/// place of costs its call what it costs anyway.
const REMEMBERED: usize = 8;

/// So little room that it is not worth giving back.
const LITTLE: usize = 64;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::turn::Turn;
    use crate::key::LockKey;
    use crate::options::Options;
    use crate::protocol::Rules;
    use crate::protocol::lane::Cx;
    use crate::protocol::patience::{Limits, Patience};
    use crate::protocol::queue::Waiter;
    use crate::token::TokenSource;

    const NOTHING: Note = Note { contended: false, due: BootTime::NEVER };
    const LEASE: Duration = Duration::from_secs(30);

    fn key(number: u32) -> LockKey {
        LockKey::new(format!("order:{number}")).expect("a key")
    }

    /// A task wants the lock, of which something is due at `due`.
    fn join(lanes: &mut Lanes, key: LockKey, hash: u32, due: u64) {
        let at = lanes.find_or_add(key.name(), hash);
        let options = Options::new();
        let limits = Limits {
            retries: 0,
            wait: None,
            backoff: options.backoff,
            response_timeout: LEASE,
            only_whether: false,
        };
        let patience = Patience::new(BootTime::START, limits, 1);
        let waiter = Waiter { seat: Seat(Turn::new(key)), terms: options.terms(LEASE), patience };
        let (lane, mut note) = lanes.lane(at).expect("it was added");
        let (rules, tokens, contended) = (&Rules::DEFAULT, &TokenSource::of_process(1), &mut note.contended);
        lane.join(
            waiter,
            &mut Cx { now: BootTime::START, rules, tokens, actions: &mut Vec::new(), contended },
        );
        lanes.note(at, Note { due: BootTime::from_nanos(due), ..note });
    }

    fn leave(lanes: &mut Lanes, at: u32) {
        *lanes.lane(at).expect("it was added").0 = Lane::new();
        lanes.note(at, NOTHING);
    }

    #[test]
    fn an_entry_stays_small() {
        assert!(size_of::<Entry>() <= 88, "{}", size_of::<Entry>());
    }

    #[test]
    fn that_a_key_was_contended_is_remembered_until_it_is_not_or_another_has_its_place() {
        let mut lanes = Lanes::default();
        let [hash, of_another, beside] = [7, 7 + 8, 8];
        let mut come_and_go = |number: u32, hash: u32, contended: Option<bool>| {
            let at = lanes.find_or_add(key(number).name(), hash);
            let (_, note) = lanes.lane(at).expect("it was added");
            lanes.note(at, Note { contended: contended.unwrap_or(note.contended), ..note });
            note.contended
        };

        assert!(!come_and_go(1, hash, Some(true)));
        assert!(come_and_go(1, hash, None) && come_and_go(1, hash, None));
        assert!(!come_and_go(2, beside, Some(true)) && !come_and_go(3, of_another, None));
        assert!(come_and_go(1, hash, Some(false)), "nobody has its place");
        assert!(!come_and_go(1, hash, Some(true)));
        assert!(!come_and_go(3, of_another, Some(true)));
        assert!(!come_and_go(1, hash, None), "another has its place");
        assert!(come_and_go(3, of_another, None) && come_and_go(2, beside, None));
    }

    #[test]
    fn what_is_noted_of_a_lane_that_stays_is_kept() {
        let mut lanes = Lanes::default();
        for (number, contended) in [(1, true), (2, false)] {
            let hash = if contended { HASH } else { 0 };
            join(&mut lanes, key(number), hash, 7);
            let at = lanes.find(key(number).name(), hash).expect("it was added");
            let note = Note { contended, due: BootTime::from_nanos(9) };

            lanes.note(at, note);

            assert_eq!(lanes.lane(at).map(|(_, note)| note), Some(note));
            assert_eq!(lanes.find(key(number).name(), hash), Some(at), "its hash is what it was");
        }
        assert_eq!(lanes.count(), (2, 2));
    }

    #[test]
    fn lanes_are_found_whoever_came_and_went() {
        let mut lanes = Lanes::default();
        let hash = |number: u32| number % 7; // many of one hash

        for number in 0..500 {
            join(&mut lanes, key(number), hash(number), 1_000 - u64::from(number));
        }
        for number in (0..500).filter(|number| number % 5 != 0) {
            let at = lanes.find(key(number).name(), hash(number)).expect("it was added");
            leave(&mut lanes, at);
        }

        for number in 0..500 {
            let at = lanes.find(key(number).name(), hash(number));
            assert_eq!(at.is_some(), number % 5 == 0, "{number}");
            let Some(at) = at else { continue };
            assert_eq!(lanes.key(at), Some(key(number).name()), "{number}");
            let due = lanes.lane(at).map(|(_, note)| note.due.nanos());
            assert_eq!(due, Some(1_000 - u64::from(number)), "{number}");
        }
        let first = lanes.first_due().expect("something is due");
        assert_eq!(lanes.key(first.1), Some(key(495).name()));
        assert_eq!((lanes.keys().count(), lanes.count()), (100, (100, 100)));
        assert!(lanes.by_key.capacity() <= 400, "{}", lanes.by_key.capacity());
    }
}
