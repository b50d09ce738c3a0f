//! A part of the lanes, behind a lock of its own.
//!
//! Not here: what happens to a lane under the lock (`engine`).

use crate::engine::acquisition::AcquisitionRef;
use crate::engine::effects::Effects;
use crate::engine::key_table::{HASH, KeyTable};
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

/// Random, so that nobody can choose keys that meet; a simulation that is replayed needs the same shards again.
#[cfg(not(any(test, dlock_shuttle)))]
type Hashing = std::hash::RandomState;
#[cfg(any(test, dlock_shuttle))]
type Hashing = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// One of them.
#[derive(Debug)]
pub(super) struct Shard {
    slots: Mutex<Slots>,
    /// When the first of its lanes is due, readable without the lock.
    due: AtomicU64,
}

/// What its lock guards.
#[derive(Debug, Default)]
pub(super) struct Slots {
    pub(super) lanes: KeyTable,
    /// Empty, and kept for its room.
    pub(super) actions: Vec<Action<AcquisitionRef>>,
}

impl Shards {
    pub(super) fn new() -> Self {
        let shards = (0..SHARDS)
            .map(|_| Shard { slots: Mutex::default(), due: AtomicU64::new(BootInstant::NEVER.nanos()) });
        Self { shards: shards.collect(), hasher: Hashing::default() }
    }

    /// Returns the shard of `key`, and the hash by which it is found there.
    pub(super) fn of_key(&self, key: &str) -> (&Shard, u32) {
        use std::hash::BuildHasher;
        let hash = self.hasher.hash_one(key);
        let at = usize::try_from((hash >> 32) % SHARDS).unwrap_or_default();
        let shard = self.shards.get(at).expect("there are SHARDS shards, and `at` is a remainder of SHARDS");
        (shard, u32::try_from(hash & u64::from(HASH)).unwrap_or_default())
    }

    /// Locks all of them.
    #[cfg(test)]
    pub(super) fn lock_all(&self) -> impl Sized + '_ {
        self.shards.iter().map(|shard| lock(&shard.slots)).collect::<Vec<_>>()
    }

    /// Forgets all lanes without dropping them.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.shards));
    }

    /// Returns when something is due first, and in which of them.
    pub(super) fn first_due(&self) -> (BootInstant, Option<&Shard>) {
        let dues = self.shards.iter().map(|shard| (shard.due(), shard));
        dues.min_by_key(|(due, _)| *due).map_or((BootInstant::NEVER, None), |(due, shard)| (due, Some(shard)))
    }

    /// Returns how many lanes there are, and how many of them are due some day.
    #[cfg(test)]
    pub(super) fn count(&self) -> (usize, usize) {
        let counts = self.shards.iter().map(|shard| shard.poll_state(|slots| slots.lanes.count()));
        counts.fold((0, 0), |(lanes, due), more| (lanes + more.0, due + more.1))
    }

    /// Returns the keys of which something is remembered, those of one shard at a time: there may be very many.
    pub(super) fn keys(&self) -> impl Iterator<Item = Name> + '_ {
        self.shards.iter().flat_map(|shard| lock(&shard.slots).lanes.keys().cloned().collect::<Vec<_>>())
    }
}

impl Shard {
    /// Looks at what stands in it, or changes what leaves all times as they are.
    pub(super) fn poll_state<R>(&self, look: impl FnOnce(&mut Slots) -> R) -> R {
        look(&mut lock(&self.slots))
    }

    /// Changes what stands in it, and notes when something is due next.
    pub(super) fn change<R>(
        &self,
        effects: &mut Effects,
        change: impl FnOnce(&mut Slots, &mut Effects) -> R,
    ) -> R {
        let mut slots = lock(&self.slots);
        let result = change(&mut slots, effects);
        let due = slots.lanes.first_due().map_or(BootInstant::NEVER, |(due, _)| due);
        // It is written under the lock alone; who reads it without is told of nothing new where it stays what it was.
        if self.due.load(Ordering::Relaxed) != due.nanos()
            && self.due.swap(due.nanos(), Ordering::SeqCst) > due.nanos()
        {
            effects.due(due);
        }
        result
    }

    /// Returns when something is due for it first.
    pub(super) fn due(&self) -> BootInstant {
        BootInstant::from_nanos(self.due.load(Ordering::SeqCst))
    }
}

/// Enough that tasks of two dozen cores seldom meet, few enough to look at all of them for the next timer.
const SHARDS: u64 = if cfg!(any(dlock_loom, dlock_shuttle)) { 2 } else { 16 };
