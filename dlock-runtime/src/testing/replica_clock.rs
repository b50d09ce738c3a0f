//! [`ReplicaClock`], the wall clock of a simulated process.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::backend::memory::MemoryStore;

/// A wall clock that differs from the clock of its store.
#[derive(Debug)]
pub(crate) struct ReplicaClock {
    store: Arc<MemoryStore>,
    /// This clock minus the store's, in milliseconds.
    offset: AtomicI64,
}

impl ReplicaClock {
    pub(super) fn new(store: &Arc<MemoryStore>) -> Self {
        Self { store: Arc::clone(store), offset: AtomicI64::default() }
    }

    pub(super) fn set_offset(&self, offset: i64) {
        self.offset.store(offset, Ordering::Relaxed);
    }

    /// Returns the time in milliseconds since the epoch.
    pub(crate) fn now(&self) -> u64 {
        self.store.wall_clock().saturating_add_signed(self.offset.load(Ordering::Relaxed))
    }
}
