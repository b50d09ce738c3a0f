//! Partitions the keys of an engine into shards, each behind its own lock.

use crate::engine::acquisition::SharedAcquisition;
use crate::engine::effects::Effects;
use crate::engine::key_table::KeyTable;
use crate::engine::renewal_failure::RenewalFailures;
use crate::key::Name;
use crate::protocol::deadline::BootInstant;
use crate::protocol::key_state::Action;
use crate::sync::shared::atomic::{AtomicU64, Ordering};
use crate::sync::shared::{Mutex, lock};

/// All shards of an engine.
#[derive(Debug)]
pub(super) struct Shards {
    shards: Box<[Shard]>,
    hasher: Hashing,
}

/// Random, so that a client cannot choose keys that collide. Simulations need the same shards in
/// each replay.
#[cfg(not(any(test, dlock_shuttle)))]
type Hashing = std::hash::RandomState;
#[cfg(any(test, dlock_shuttle))]
type Hashing = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// One shard.
#[derive(Debug)]
pub(super) struct Shard {
    slots: Mutex<Slots>,
    /// The first deadline of its keys, readable without the lock.
    due: AtomicU64,
}

/// The part of a shard behind its lock.
#[derive(Debug, Default)]
pub(super) struct Slots {
    pub(super) table: KeyTable,
    /// Empty between events. Kept for its capacity.
    pub(super) actions: Vec<Action<SharedAcquisition>>,
    pub(super) renewal_failures: RenewalFailures,
}

impl Shards {
    pub(super) fn new() -> Self {
        let shards = (0..SHARDS)
            .map(|_| Shard { slots: Mutex::default(), due: AtomicU64::new(BootInstant::NEVER.nanos()) });
        Self { shards: shards.collect(), hasher: Hashing::default() }
    }

    /// Returns the shard of `key`, and the hash that finds the key in it.
    pub(super) fn of_key(&self, key: &str) -> (&Shard, u64) {
        use std::hash::BuildHasher;
        let hash = self.hasher.hash_one(key);
        let at = usize::try_from((hash >> 32) % SHARDS).unwrap_or_default();
        let shard = self.shards.get(at).expect("there are SHARDS shards, and `at` is a remainder of SHARDS");
        (shard, hash)
    }

    /// Locks all shards.
    #[cfg(test)]
    pub(super) fn lock_all(&self) -> impl Sized + '_ {
        self.shards.iter().map(|shard| lock(&shard.slots)).collect::<Vec<_>>()
    }

    /// Leaks all keys without dropping them.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.shards));
    }

    /// Returns the first deadline and its shard.
    pub(super) fn first_due(&self) -> (BootInstant, Option<&Shard>) {
        let dues = self.shards.iter().map(|shard| (shard.due(), shard));
        dues.min_by_key(|(due, _)| *due).map_or((BootInstant::NEVER, None), |(due, shard)| (due, Some(shard)))
    }

    /// Returns the number of keys, and how many of them have a deadline.
    #[cfg(test)]
    pub(super) fn count(&self) -> (usize, usize) {
        let counts = self.shards.iter().map(|shard| shard.read(|slots| slots.table.count()));
        counts.fold((0, 0), |(keys, due), more| (keys + more.0, due + more.1))
    }

    /// Returns the keys with state. Locks one shard at a time, since there can be very many keys.
    pub(super) fn keys(&self) -> impl Iterator<Item = Name> + '_ {
        self.shards.iter().flat_map(|shard| lock(&shard.slots).table.keys().cloned().collect::<Vec<_>>())
    }
}

impl Shard {
    /// Reads the shard. `read` may change it, unless that changes a deadline.
    pub(super) fn read<R>(&self, read: impl FnOnce(&mut Slots) -> R) -> R {
        read(&mut lock(&self.slots))
    }

    /// Changes the shard, and publishes its first deadline.
    pub(super) fn change<R>(
        &self,
        effects: &mut Effects<'_>,
        change: impl FnOnce(&mut Slots, &mut Effects<'_>) -> R,
    ) -> R {
        let mut slots = lock(&self.slots);
        let result = change(&mut slots, effects);
        let due = slots.table.first_due().map_or(BootInstant::NEVER, |(due, _)| *due);
        // Written only under the lock. If it does not change, a reader without the lock needs no
        // notification.
        if self.due.load(Ordering::Relaxed) != due.nanos()
            && self.due.swap(due.nanos(), Ordering::SeqCst) > due.nanos()
        {
            effects.due(due);
        }
        result
    }

    /// Returns the first deadline.
    pub(super) fn due(&self) -> BootInstant {
        BootInstant::from_nanos(self.due.load(Ordering::SeqCst))
    }
}

/// Enough that tasks on 24 cores rarely contend, and few enough to scan all for the next deadline.
const SHARDS: u64 = if cfg!(any(dlock_loom, dlock_shuttle)) { 2 } else { 16 };

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn keys_are_spread_over_all_shards() {
        let shards = Shards::new();
        let mut counts = HashMap::new();
        for number in 0..16_000 {
            let (shard, hash) = shards.of_key(&format!("order:{number}"));
            assert_eq!(shards.of_key(&format!("order:{number}")).1, hash, "the same for each call");
            *counts.entry(std::ptr::from_ref(shard)).or_insert(0) += 1;
        }

        let (least, most) = (counts.values().min(), counts.values().max());
        assert!(counts.len() == 16 && least > Some(&700) && most < Some(&1_300), "{counts:?}");
    }
}
