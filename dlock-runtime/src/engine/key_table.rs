//! The keys of a shard: found by name, with a deadline for each.
//!
//! The entries are in a vector without gaps. If a key has no state left, the last entry moves to
//! its index, so an index is valid only while the shard is locked.

use hashbrown::HashTable;

use crate::engine::acquisition::AcquisitionRef;
use crate::engine::chunked_vec::ChunkedVec;
use crate::engine::deadline_heap::{DeadlineHeap, HeapIndex, HeapItems};
use crate::key::Name;
use crate::protocol::deadline::BootInstant;
use crate::protocol::key_state::KeyState;

/// The keys of a shard.
#[derive(Debug, Default)]
pub(super) struct KeyTable {
    entries: ChunkedVec<KeyEntry>,
    /// The indexes of all entries, by the hashes of their keys.
    by_key: HashTable<u32>,
    deadlines: DeadlineHeap,
    /// Hashes of keys that were contended when they were removed: the last for each slot.
    contended: [Option<u32>; REMEMBERED],
}

/// The state of one key. There is one for every held lock. Its acquisition has the name of the key.
#[derive(Debug)]
struct KeyEntry {
    key_state: KeyState<AcquisitionRef>,
    hash: Hash,
    /// The index of its deadline.
    deadline: HeapIndex,
}

/// Metadata of a key, in addition to its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyMeta {
    /// Whether the lock is contended, as last observed.
    pub(super) contended: bool,
    /// The next deadline.
    pub(super) due: BootInstant,
}

/// The hash of a key, and in its first bit whether the lock is contended, as last observed.
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
    /// Returns the index of `key`, or `None` if it has no state.
    pub(super) fn find(&self, key: &str, hash: u32) -> Option<u32> {
        let matches = |at: &u32| self.entry(*at).is_some_and(|entry| entry.is_of(key, hash));
        self.by_key.find(spread(hash), matches).copied()
    }

    /// Returns the index of `key`, which is added if necessary.
    pub(super) fn find_or_add(&mut self, key: &Name, hash: u32) -> u32 {
        if let Some(at) = self.find(key, hash) {
            return at;
        }
        let at = u32::try_from(self.entries.len()).expect("no process has four billion locks");
        let contended = self.contended.get(contended_slot(hash)) == Some(&Some(hash));
        self.entries.push(KeyEntry {
            key_state: KeyState::new(),
            hash: Hash::new(hash, contended),
            deadline: HeapIndex::NONE,
        });
        let entries = &self.entries;
        self.by_key.insert_unique(spread(hash), at, |at: &u32| spread_of(entries, *at));
        at
    }

    /// Returns the state of a key and its metadata.
    pub(super) fn key_state(&mut self, at: u32) -> Option<(&mut KeyState<AcquisitionRef>, KeyMeta)> {
        let entry = self.entries.get_mut(at)?;
        let meta = KeyMeta { contended: entry.hash.is_contended(), due: self.deadlines.due(entry.deadline) };
        Some((&mut entry.key_state, meta))
    }

    pub(super) fn key(&self, at: u32) -> Option<&Name> {
        self.entry(at).and_then(KeyEntry::key)
    }

    /// Records the metadata of a key after an event. A key without state is removed.
    pub(super) fn update(&mut self, at: u32, meta: KeyMeta) {
        let Some(entry) = self.entries.get_mut(at) else { return };
        if entry.key_state.is_idle() {
            let hash = entry.hash.get();
            self.remember(hash, meta.contended);
            self.remove(at, hash);
        } else {
            entry.hash = Hash::new(entry.hash.get(), meta.contended);
            self.deadlines.set(&mut self.entries, at, meta.due);
        }
    }

    /// Returns the first deadline and the index of its key.
    pub(super) fn first_due(&self) -> Option<(BootInstant, u32)> {
        self.deadlines.first()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Name> {
        self.entries.iter().filter_map(KeyEntry::key)
    }

    /// Returns the number of keys, and how many of them have a deadline.
    #[cfg(test)]
    pub(super) fn count(&self) -> (usize, usize) {
        (self.entries.len(), self.entries.iter().filter(|entry| entry.deadline != HeapIndex::NONE).count())
    }

    /// Remembers whether a removed key was contended, for its next acquisition.
    fn remember(&mut self, hash: u32, contended: bool) {
        let Some(slot) = self.contended.get_mut(contended_slot(hash)) else { return };
        if contended {
            *slot = Some(hash);
        } else if *slot == Some(hash) {
            *slot = None;
        }
    }

    fn remove(&mut self, at: u32, hash: u32) {
        if let Ok(found) = self.by_key.find_entry(spread(hash), |of| *of == at) {
            found.remove();
        }
        self.deadlines.set(&mut self.entries, at, BootInstant::NEVER);
        self.entries.swap_remove(at);
        if let Some(moved) = self.entries.get(at) {
            let last = u32::try_from(self.entries.len()).unwrap_or(u32::MAX); // its previous index
            self.deadlines.renumber(moved.deadline, at);
            if let Some(of) = self.by_key.find_mut(spread(moved.hash.get()), |of| *of == last) {
                *of = at;
            }
        }
        self.shrink();
    }

    /// Frees memory after most keys were removed.
    fn shrink(&mut self) {
        let (used, capacity) = (self.entries.len(), self.by_key.capacity());
        if capacity > MIN_CAPACITY && used < capacity / 4 {
            let entries = &self.entries;
            self.by_key.shrink_to(capacity / 2, |at| spread_of(entries, *at));
        }
    }

    fn entry(&self, at: u32) -> Option<&KeyEntry> {
        self.entries.get(at)
    }
}

impl HeapItems for ChunkedVec<KeyEntry> {
    fn index_of(&mut self, item: u32) -> Option<&mut HeapIndex> {
        self.get_mut(item).map(|entry| &mut entry.deadline)
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

/// Spreads a hash, since the table uses its first and its last bits.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 33 | u64::from(hash)
}

fn spread_of(entries: &ChunkedVec<KeyEntry>, at: u32) -> u64 {
    entries.get(at).map_or(0, |entry| spread(entry.hash.get()))
}

/// Returns the slot that remembers whether a key with this hash was contended.
fn contended_slot(hash: u32) -> usize {
    usize::try_from(hash).unwrap_or_default() % REMEMBERED
}

/// The bits of a hash.
pub(super) const HASH: u32 = u32::MAX >> 1;

/// The number of remembered keys. For a contended key, the next call saves a round trip. If another
/// key has replaced it, the call costs the same as without this memory.
const REMEMBERED: usize = 8;

/// Capacity that is not worth freeing.
const MIN_CAPACITY: usize = 64;

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

    const NO_META: KeyMeta = KeyMeta { contended: false, due: BootInstant::NEVER };
    const LEASE: Duration = Duration::from_secs(30);

    fn key(number: u32) -> LockKey {
        LockKey::new(format!("order:{number}")).expect("a key")
    }

    /// A task contends for the lock, whose next deadline is `due`.
    fn join(table: &mut KeyTable, key: LockKey, hash: u32, due: u64) {
        let at = table.find_or_add(key.name(), hash);
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
        let (key_state, mut meta) = table.key_state(at).expect("it was added");
        let (rules, tokens, contended) =
            (&ProtocolConfig::DEFAULT, &TokenSource::of_process(1), &mut meta.contended);
        key_state.join(
            waiter,
            &mut EventContext { now: BootInstant::START, rules, tokens, actions: &mut Vec::new(), contended },
        );
        table.update(at, KeyMeta { due: BootInstant::from_nanos(due), ..meta });
    }

    fn remove(table: &mut KeyTable, at: u32) {
        *table.key_state(at).expect("it was added").0 = KeyState::new();
        table.update(at, NO_META);
    }

    #[test]
    fn an_entry_stays_small() {
        assert!(size_of::<KeyEntry>() <= 88, "{}", size_of::<KeyEntry>());
    }

    #[test]
    fn contention_is_remembered_after_a_key_is_removed() {
        let mut table = KeyTable::default();
        let [hash, same_slot, adjacent] = [7, 7 + 8, 8];
        let mut add_and_remove = |number: u32, hash: u32, contended: Option<bool>| {
            let at = table.find_or_add(key(number).name(), hash);
            let (_, meta) = table.key_state(at).expect("it was added");
            table.update(at, KeyMeta { contended: contended.unwrap_or(meta.contended), ..meta });
            meta.contended
        };

        assert!(!add_and_remove(1, hash, Some(true)));
        assert!(add_and_remove(1, hash, None) && add_and_remove(1, hash, None));
        assert!(!add_and_remove(2, adjacent, Some(true)) && !add_and_remove(3, same_slot, None));
        assert!(add_and_remove(1, hash, Some(false)), "its slot is its own");
        assert!(!add_and_remove(1, hash, Some(true)));
        assert!(!add_and_remove(3, same_slot, Some(true)));
        assert!(!add_and_remove(1, hash, None), "another key has its slot");
        assert!(add_and_remove(3, same_slot, None) && add_and_remove(2, adjacent, None));
    }

    #[test]
    fn metadata_of_a_key_with_state_is_kept() {
        let mut table = KeyTable::default();
        for (number, contended) in [(1, true), (2, false)] {
            let hash = if contended { HASH } else { 0 };
            join(&mut table, key(number), hash, 7);
            let at = table.find(key(number).name(), hash).expect("it was added");
            let meta = KeyMeta { contended, due: BootInstant::from_nanos(9) };

            table.update(at, meta);

            assert_eq!(table.key_state(at).map(|(_, meta)| meta), Some(meta));
            assert_eq!(table.find(key(number).name(), hash), Some(at), "its hash is unchanged");
        }
        assert_eq!(table.count(), (2, 2));
    }

    #[test]
    fn keys_are_found_after_others_were_removed() {
        let mut table = KeyTable::default();
        let hash = |number: u32| number % 7; // many of one hash

        for number in 0..500 {
            join(&mut table, key(number), hash(number), 1_000 - u64::from(number));
        }
        for number in (0..500).filter(|number| number % 5 != 0) {
            let at = table.find(key(number).name(), hash(number)).expect("it was added");
            remove(&mut table, at);
        }

        for number in 0..500 {
            let at = table.find(key(number).name(), hash(number));
            assert_eq!(at.is_some(), number % 5 == 0, "{number}");
            let Some(at) = at else { continue };
            assert_eq!(table.key(at), Some(key(number).name()), "{number}");
            let due = table.key_state(at).map(|(_, meta)| meta.due.nanos());
            assert_eq!(due, Some(1_000 - u64::from(number)), "{number}");
        }
        let first = table.first_due().expect("something is due");
        assert_eq!(table.key(first.1), Some(key(495).name()));
        assert_eq!((table.keys().count(), table.count()), (100, (100, 100)));
        assert!(table.by_key.capacity() <= 400, "{}", table.by_key.capacity());
    }
}
