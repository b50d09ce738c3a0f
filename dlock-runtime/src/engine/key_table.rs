//! The keys of a shard: found by name, with a deadline for each.

use std::collections::BTreeSet;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::engine::acquisition::SharedAcquisition;
use crate::key::Name;
use crate::protocol::deadline::BootInstant;
use crate::protocol::key_state::KeyState;

/// The keys of a shard.
#[derive(Debug, Default)]
pub(super) struct KeyTable {
    /// Boxed, so that the unused capacity of the table takes little memory.
    entries: HashTable<Box<KeyEntry>>,
    /// The deadlines of the keys that have one.
    deadlines: BTreeSet<(BootInstant, Name)>,
    /// Hashes of keys that were contended when they were removed: the last for each slot.
    contended: [Option<u64>; REMEMBERED],
}

/// The state of one key. There is one for every held lock.
#[derive(Debug)]
pub(super) struct KeyEntry {
    key: Name,
    hash: u64,
    pub(super) state: KeyState<SharedAcquisition>,
    /// Whether the lock is contended, as last observed.
    pub(super) contended: bool,
}

impl KeyTable {
    /// Returns the state of `key`, or `None` if it has none.
    pub(super) fn get(&self, key: &str, hash: u64) -> Option<&KeyState<SharedAcquisition>> {
        self.entries.find(hash, |entry| *entry.key == *key).map(|entry| &entry.state)
    }

    /// Applies `change` to the entry of `key`, which is added if necessary. If the key has no state
    /// afterwards, it is removed.
    pub(super) fn change<R>(&mut self, key: &Name, hash: u64, change: impl FnOnce(&mut KeyEntry) -> R) -> R {
        let found =
            self.entries.entry(hash, |entry| entry.hash == hash && entry.key == *key, |entry| entry.hash);
        let mut entry = match found {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(vacant) => vacant.insert(Box::new(KeyEntry {
                key: Name::clone(key),
                hash,
                state: KeyState::new(),
                contended: self.contended.contains(&Some(hash)),
            })),
        };
        let before = entry.get().state.next_timeout();
        let result = change(entry.get_mut());
        let KeyEntry { ref state, contended, .. } = **entry.get();
        let due = state.next_timeout();
        if due != before {
            let mut deadline = (before, Name::clone(key));
            self.deadlines.remove(&deadline);
            if due != BootInstant::NEVER {
                deadline.0 = due;
                self.deadlines.insert(deadline);
            }
        }
        if state.is_idle() {
            entry.remove();
            self.remember(hash, contended);
            self.shrink();
        }
        result
    }

    /// Returns the first deadline and its key.
    pub(super) fn first_due(&self) -> Option<&(BootInstant, Name)> {
        self.deadlines.first()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Name> {
        self.entries.iter().map(|entry| &entry.key)
    }

    /// Returns the number of keys, and how many of them have a deadline.
    #[cfg(test)]
    pub(super) fn count(&self) -> (usize, usize) {
        (self.entries.len(), self.deadlines.len())
    }

    /// Remembers whether a removed key was contended, for its next acquisition.
    fn remember(&mut self, hash: u64, contended: bool) {
        let Some(slot) = self.contended.get_mut(contended_slot(hash)) else { return };
        if contended {
            *slot = Some(hash);
        } else if *slot == Some(hash) {
            *slot = None;
        }
    }

    /// Frees memory after most keys were removed.
    fn shrink(&mut self) {
        let (used, capacity) = (self.entries.len(), self.entries.capacity());
        if capacity > MIN_CAPACITY && used < capacity / 4 {
            self.entries.shrink_to(capacity / 2, |entry| entry.hash);
        }
    }
}

/// Returns the slot that remembers whether a key with this hash was contended.
fn contended_slot(hash: u64) -> usize {
    usize::try_from(hash).unwrap_or_default() % REMEMBERED
}

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

    const LEASE: Duration = Duration::from_secs(30);

    fn key(number: u32) -> LockKey {
        LockKey::new(format!("order:{number}")).expect("a key")
    }

    /// Only this task contends for the lock, whose next deadline is `due`.
    fn join(table: &mut KeyTable, number: u32, hash: u64, due: u64) {
        let (key, options) = (key(number), Options::new());
        let limits = RetryLimits {
            retries: 0,
            wait: Some(Duration::from_nanos(due)),
            backoff: options.backoff,
            response_timeout: LEASE,
            try_only: false,
        };
        let retry_state = RetryState::new(BootInstant::START, limits, 1);
        let (rules, tokens) = (&ProtocolConfig::DEFAULT, &TokenSource::of_process(1));
        table.change(key.name(), hash, |KeyEntry { state, contended, .. }| {
            let waiter = QueueEntry {
                acquisition: Acquisition::new(key.clone()),
                terms: options.terms(LEASE),
                retry_state,
            };
            let (now, actions) = (BootInstant::START, &mut Vec::new());
            *state = KeyState::new();
            state.join(waiter, &mut EventContext { now, rules, tokens, actions, contended });
        });
    }

    fn remove(table: &mut KeyTable, number: u32, hash: u64) {
        table.change(key(number).name(), hash, |entry| entry.state = KeyState::new());
    }

    #[test]
    fn contention_is_remembered_after_a_key_is_removed() {
        let mut table = KeyTable::default();
        let [hash, same_slot, adjacent] = [7, 7 + 8, 8];
        let mut add_and_remove = |number: u32, hash: u64, contended: Option<bool>| {
            table.change(key(number).name(), hash, |entry| {
                let before = entry.contended;
                entry.contended = contended.unwrap_or(before);
                before
            })
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
    fn memory_is_freed_once_most_keys_were_removed() {
        let mut table = KeyTable::default();
        (0..1_000).for_each(|number| join(&mut table, number, u64::from(number), 1));
        assert!(table.entries.capacity() >= 1_000);

        (0..400).for_each(|number| remove(&mut table, number, u64::from(number)));
        assert!(table.entries.capacity() >= 1_000, "it may grow again soon");
        (400..1_000).for_each(|number| remove(&mut table, number, u64::from(number)));

        assert!(table.entries.capacity() <= 2 * MIN_CAPACITY, "{}", table.entries.capacity());
    }

    #[test]
    fn keys_are_found_after_others_were_removed() {
        let mut table = KeyTable::default();
        let hash = |number: u32| u64::from(number % 7); // many of one hash

        for number in 0..500 {
            join(&mut table, number, hash(number), 1_000 - u64::from(number));
        }
        assert_eq!(table.count(), (500, 500));
        for number in (0..500).filter(|number| number % 5 != 0) {
            remove(&mut table, number, hash(number));
        }

        for number in 0..500 {
            let state = table.get(key(number).name(), hash(number));
            assert_eq!(state.is_some(), number % 5 == 0, "{number}");
            let due = state.map(|state| state.next_timeout().nanos());
            assert!(due.is_none_or(|due| due == 1_000 - u64::from(number)), "{number}: {due:?}");
        }
        assert_eq!(table.first_due(), Some(&(BootInstant::from_nanos(505), key(495).name().clone())));
        assert_eq!((table.keys().count(), table.count()), (100, (100, 100)));
        assert!(table.entries.capacity() <= 400, "{}", table.entries.capacity());
    }

    #[test]
    fn a_key_entry_stays_small() {
        // An allocation of up to 120 bytes takes 128 bytes in glibc, the next larger one 144.
        assert!(size_of::<KeyEntry>() <= 120, "{}", size_of::<KeyEntry>());
    }

    #[test]
    fn a_key_has_one_deadline() {
        let mut table = KeyTable::default();
        for due in [7, 9, 5] {
            join(&mut table, 1, 1, due);
            assert_eq!(table.first_due().map(|(due, _)| due.nanos()), Some(due));
            assert_eq!(table.count(), (1, 1));
        }

        remove(&mut table, 1, 1);

        assert_eq!((table.first_due(), table.count()), (None, (0, 0)));
    }
}
