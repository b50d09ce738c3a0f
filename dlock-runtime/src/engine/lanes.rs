//! The lanes of a shard: in a row without gaps, found by their keys, with the times at which something is due for them.
//!
//! A lane that is of no use any more is taken out and the last one moves into its place, so that a row is as long as it has lanes, and
//! a place is known only while the shard is locked.
//!
//! Not here: what a lane is (`protocol::lane`), the lock over it (`shard`).

use hashbrown::HashTable;

use crate::engine::row::Row;
use crate::engine::timers::Timers;
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

/// One lane. There is one for every lock that is held.
#[derive(Debug)]
struct Entry {
    key: Name,
    lane: Lane<Seat>,
    hash: u32,
    /// Whether its lock is contended, as far as the lane knows.
    contended: bool,
}

impl Lanes {
    /// Returns the place of the lane of `key`, where there is one.
    pub(super) fn find(&self, key: &str, hash: u32) -> Option<u32> {
        let is_it = |at: &u32| self.entry(*at).is_some_and(|entry| *entry.key == *key);
        self.by_key.find(spread(hash), is_it).copied()
    }

    /// Returns the place of the lane of `key`, which is made where there is none.
    pub(super) fn find_or_add(&mut self, key: &Name, hash: u32) -> u32 {
        if let Some(at) = self.find(key, hash) {
            return at;
        }
        let at = u32::try_from(self.row.len()).expect("no process has four billion locks");
        let contended = self.contended.get(place_of(hash)) == Some(&Some(hash));
        self.row.push(Entry { key: Name::clone(key), lane: Lane::new(), hash, contended });
        self.timers.push();
        let row = &self.row;
        let hash_of = |at: &u32| row.get(*at).map_or(0, |entry| spread(entry.hash));
        self.by_key.insert_unique(spread(hash), at, hash_of);
        at
    }

    /// Returns the lane, and whether its lock is contended.
    pub(super) fn lane_and_hint(&mut self, at: u32) -> Option<(&mut Lane<Seat>, &mut bool)> {
        self.row.get_mut(at).map(|entry| (&mut entry.lane, &mut entry.contended))
    }

    pub(super) fn key(&self, at: u32) -> Option<&Name> {
        self.entry(at).map(|entry| &entry.key)
    }

    /// Returns under which time the lane stands.
    pub(super) fn armed(&self, at: u32) -> BootTime {
        self.timers.due(at)
    }

    /// Notes what has become of a lane: when something is due for it, or that it is of no use any more.
    pub(super) fn note(&mut self, at: u32, due: BootTime, is_idle: bool) {
        if is_idle {
            self.remember(at);
            self.remove(at);
        } else {
            self.timers.set(at, due);
        }
    }

    /// Returns when something is due first, and for whom.
    pub(super) fn first_due(&self) -> Option<(BootTime, u32)> {
        self.timers.first()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Name> {
        self.row.iter().map(|entry| &entry.key)
    }

    /// Returns how many lanes there are, and for how many of them something is due.
    #[cfg(test)]
    pub(super) fn count(&self) -> (usize, usize) {
        let places = 0..u32::try_from(self.row.len()).unwrap_or(u32::MAX);
        (self.row.len(), places.filter(|at| self.timers.due(*at) != BootTime::NEVER).count())
    }

    /// Takes note of whether a lane is contended, for the next one of its key.
    fn remember(&mut self, at: u32) {
        let Some((hash, contended)) = self.entry(at).map(|of| (of.hash, of.contended)) else {
            return;
        };
        let Some(place) = self.contended.get_mut(place_of(hash)) else { return };
        if contended {
            *place = Some(hash);
        } else if *place == Some(hash) {
            *place = None;
        }
    }

    fn remove(&mut self, at: u32) {
        let Some(last) = self.row.len().checked_sub(1).and_then(|last| u32::try_from(last).ok()) else {
            return;
        };
        let hash_of = |row: &Row<Entry>, at: u32| row.get(at).map_or(0, |entry| spread(entry.hash));
        if let Ok(found) = self.by_key.find_entry(hash_of(&self.row, at), |of| *of == at) {
            found.remove();
        }
        if let Some(moved) = self.by_key.find_mut(hash_of(&self.row, last), |of| *of == last) {
            *moved = at;
        }
        self.row.swap_remove(at);
        self.timers.swap_remove(at);
        self.give_room_back();
    }

    /// What a crowd has used is given back when it has gone.
    fn give_room_back(&mut self) {
        let (used, room) = (self.row.len(), self.by_key.capacity());
        if room > LITTLE && used < room / 4 {
            let row = &self.row;
            let hash_of = |at: &u32| row.get(*at).map_or(0, |entry| spread(entry.hash));
            self.by_key.shrink_to(room / 2, hash_of);
        }
    }

    fn entry(&self, at: u32) -> Option<&Entry> {
        self.row.get(at)
    }
}

/// The table looks at the first and at the last bits of a hash.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

/// Returns where it is remembered whether a key with this hash is contended.
fn place_of(hash: u32) -> usize {
    usize::try_from(hash).unwrap_or_default() % REMEMBERED
}

/// How many keys are remembered: of a few that many processes want the next call saves a trip, and a key that another one has taken the
/// place of costs its call what it costs anyway.
const REMEMBERED: usize = 8;

/// So little room that it is not worth giving back.
const LITTLE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> Name {
        format!("order:{number}").into()
    }

    #[test]
    fn an_entry_stays_small() {
        assert!(size_of::<Entry>() <= 96, "{}", size_of::<Entry>());
    }

    #[test]
    fn that_a_key_was_contended_is_remembered_until_it_is_not_or_another_has_its_place() {
        let mut lanes = Lanes::default();
        let [hash, of_another, beside] = [7, 7 + 8, 8];
        let mut come_and_go = |number: u32, hash: u32, contended: Option<bool>| {
            let at = lanes.find_or_add(&key(number), hash);
            let (_, hint) = lanes.lane_and_hint(at).expect("it was added");
            let was = std::mem::replace(hint, contended.unwrap_or(*hint));
            lanes.note(at, BootTime::NEVER, true);
            was
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
    fn lanes_are_found_whoever_came_and_went() {
        let mut lanes = Lanes::default();
        let hash = |number: u32| number % 7; // many of one hash

        for number in 0..500 {
            lanes.find_or_add(&key(number), hash(number));
        }
        for number in (0..500).filter(|number| number % 5 != 0) {
            let at = lanes.find(&key(number), hash(number)).expect("it was added");
            lanes.note(at, BootTime::NEVER, true);
        }

        for number in 0..500 {
            let at = lanes.find(&key(number), hash(number));
            assert_eq!(at.is_some(), number % 5 == 0, "{number}");
            assert!(at.is_none_or(|at| lanes.key(at) == Some(&key(number))), "{number}");
        }
        assert_eq!(lanes.keys().count(), 100);
        assert!(lanes.by_key.capacity() <= 400, "{}", lanes.by_key.capacity());
    }
}
