//! The lanes of a shard: in a row without gaps, found by their keys, with the times at which something is due for them.
//!
//! A lane that is of no use any more is taken out and the last one moves into its place, so that a row is as long as it has lanes, and
//! a place is known only while the shard is locked.
//!
//! Not here: what a lane is (`protocol::key_state`), the lock over it (`shard`).

use hashbrown::HashTable;

use crate::engine::acquisition::AcquisitionRef;
use crate::engine::deadline_heap::{HeapIndex, Things, Timers};
use crate::engine::row::Row;
use crate::key::Name;
use crate::protocol::deadline::BootInstant;
use crate::protocol::key_state::KeyState;

/// The lanes of a shard.
#[derive(Debug, Default)]
pub(super) struct KeyTable {
    row: Row<KeyEntry>,
    /// The places of all, by the hashes of their keys.
    by_key: HashTable<u32>,
    timers: Timers,
    /// Keys that were contended when their lanes were taken out, by their hashes: the last for each place.
    contended: [Option<u32>; REMEMBERED],
}

/// One lane. There is one for every lock that is held. The key is known by who sits in it.
#[derive(Debug)]
struct KeyEntry {
    key_state: KeyState<AcquisitionRef>,
    hash: Hash,
    /// Where its time stands.
    timer: HeapIndex,
}

/// What is noted beside a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyMeta {
    /// Whether its lock is contended, as far as the lane knows.
    pub(super) contended: bool,
    /// When something is due for it.
    pub(super) due: BootInstant,
}

/// The hash of a key, and beside it whether its lock is contended, as far as the lane knows.
#[derive(Clone, Copy, Debug)]
struct Hash(u32);

impl KeyEntry {
    fn is_of(&self, key: &str, hash: u32) -> bool {
        self.hash.get() == hash && self.key().is_some_and(|of| **of == *key)
    }

    fn key(&self) -> Option<&Name> {
        self.key_state.acquisition().map(|acquisition| acquisition.key.name())
    }
}

impl KeyTable {
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
        self.row.push(KeyEntry {
            key_state: KeyState::new(),
            hash: Hash::new(hash, contended),
            timer: HeapIndex::NOWHERE,
        });
        let row = &self.row;
        self.by_key.insert_unique(spread(hash), at, |at: &u32| spread_of(row, *at));
        at
    }

    /// Returns the lane, and what is noted beside it: whether its lock is contended, and when something is due for it.
    pub(super) fn key_state(&mut self, at: u32) -> Option<(&mut KeyState<AcquisitionRef>, KeyMeta)> {
        let entry = self.row.get_mut(at)?;
        let note = KeyMeta { contended: entry.hash.is_contended(), due: self.timers.due(entry.timer) };
        Some((&mut entry.key_state, note))
    }

    pub(super) fn key(&self, at: u32) -> Option<&Name> {
        self.entry(at).and_then(KeyEntry::key)
    }

    /// Notes what has become of a lane. One that is of no use any more is taken out.
    pub(super) fn note(&mut self, at: u32, note: KeyMeta) {
        let Some(entry) = self.row.get_mut(at) else { return };
        if entry.key_state.is_idle() {
            let hash = entry.hash.get();
            self.remember(hash, note.contended);
            self.remove(at, hash);
        } else {
            entry.hash = Hash::new(entry.hash.get(), note.contended);
            self.timers.set(&mut self.row, at, note.due);
        }
    }

    /// Returns when something is due first, and for whom.
    pub(super) fn first_due(&self) -> Option<(BootInstant, u32)> {
        self.timers.first()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Name> {
        self.row.iter().filter_map(KeyEntry::key)
    }

    /// Returns how many lanes there are, and for how many of them something is due.
    #[cfg(test)]
    pub(super) fn count(&self) -> (usize, usize) {
        (self.row.len(), self.row.iter().filter(|entry| entry.timer != HeapIndex::NOWHERE).count())
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
        self.timers.set(&mut self.row, at, BootInstant::NEVER);
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

    fn entry(&self, at: u32) -> Option<&KeyEntry> {
        self.row.get(at)
    }
}

impl Things for Row<KeyEntry> {
    fn place(&mut self, thing: u32) -> Option<&mut HeapIndex> {
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

fn spread_of(row: &Row<KeyEntry>, at: u32) -> u64 {
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
    use crate::engine::acquisition::Acquisition;
    use crate::key::LockKey;
    use crate::options::Options;
    use crate::protocol::ProtocolConfig;
    use crate::protocol::key_state::EventContext;
    use crate::protocol::retry_state::{RetryLimits, RetryState};
    use crate::protocol::wait_queue::QueueEntry;
    use crate::token::TokenSource;

    const NOTHING: KeyMeta = KeyMeta { contended: false, due: BootInstant::NEVER };
    const LEASE: Duration = Duration::from_secs(30);

    fn key(number: u32) -> LockKey {
        LockKey::new(format!("order:{number}")).expect("a key")
    }

    /// A task wants the lock, of which something is due at `due`.
    fn join(lanes: &mut KeyTable, key: LockKey, hash: u32, due: u64) {
        let at = lanes.find_or_add(key.name(), hash);
        let options = Options::new();
        let limits = RetryLimits {
            retries: 0,
            wait: None,
            backoff: options.backoff,
            response_timeout: LEASE,
            try_only: false,
        };
        let retry_state = RetryState::new(BootInstant::START, limits, 1);
        let waiter = QueueEntry {
            acquisition: AcquisitionRef(Acquisition::new(key)),
            terms: options.terms(LEASE),
            retry_state,
        };
        let (key_state, mut note) = lanes.key_state(at).expect("it was added");
        let (rules, tokens, contended) =
            (&ProtocolConfig::DEFAULT, &TokenSource::of_process(1), &mut note.contended);
        key_state.join(
            waiter,
            &mut EventContext { now: BootInstant::START, rules, tokens, actions: &mut Vec::new(), contended },
        );
        lanes.note(at, KeyMeta { due: BootInstant::from_nanos(due), ..note });
    }

    fn leave(lanes: &mut KeyTable, at: u32) {
        *lanes.key_state(at).expect("it was added").0 = KeyState::new();
        lanes.note(at, NOTHING);
    }

    #[test]
    fn an_entry_stays_small() {
        assert!(size_of::<KeyEntry>() <= 88, "{}", size_of::<KeyEntry>());
    }

    #[test]
    fn that_a_key_was_contended_is_remembered_until_it_is_not_or_another_has_its_place() {
        let mut lanes = KeyTable::default();
        let [hash, of_another, beside] = [7, 7 + 8, 8];
        let mut come_and_go = |number: u32, hash: u32, contended: Option<bool>| {
            let at = lanes.find_or_add(key(number).name(), hash);
            let (_, note) = lanes.key_state(at).expect("it was added");
            lanes.note(at, KeyMeta { contended: contended.unwrap_or(note.contended), ..note });
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
        let mut lanes = KeyTable::default();
        for (number, contended) in [(1, true), (2, false)] {
            let hash = if contended { HASH } else { 0 };
            join(&mut lanes, key(number), hash, 7);
            let at = lanes.find(key(number).name(), hash).expect("it was added");
            let note = KeyMeta { contended, due: BootInstant::from_nanos(9) };

            lanes.note(at, note);

            assert_eq!(lanes.key_state(at).map(|(_, note)| note), Some(note));
            assert_eq!(lanes.find(key(number).name(), hash), Some(at), "its hash is what it was");
        }
        assert_eq!(lanes.count(), (2, 2));
    }

    #[test]
    fn lanes_are_found_whoever_came_and_went() {
        let mut lanes = KeyTable::default();
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
            let due = lanes.key_state(at).map(|(_, note)| note.due.nanos());
            assert_eq!(due, Some(1_000 - u64::from(number)), "{number}");
        }
        let first = lanes.first_due().expect("something is due");
        assert_eq!(lanes.key(first.1), Some(key(495).name()));
        assert_eq!((lanes.keys().count(), lanes.count()), (100, (100, 100)));
        assert!(lanes.by_key.capacity() <= 400, "{}", lanes.by_key.capacity());
    }
}
