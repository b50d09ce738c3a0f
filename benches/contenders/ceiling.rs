//! The ceiling: a mutex in the memory of one process, which sends nothing.
//!
//! No lock over a network is faster.

use std::sync::Arc;
use std::time::Duration;

use dlock_bench_peer::{Library, Result};
use tokio::sync::{Mutex, OwnedMutexGuard};

/// One fair mutex for all keys: the scenarios with a ceiling use only one key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ceiling(Arc<Mutex<()>>);

impl Library for Ceiling {
    type Guard = OwnedMutexGuard<()>;

    async fn lock(&self, _key: &str, _wait: Duration, _lease: Duration) -> Result<OwnedMutexGuard<()>> {
        Ok(Arc::clone(&self.0).lock_owned().await)
    }

    async fn unlock(&self, guard: OwnedMutexGuard<()>) -> Result<()> {
        drop(guard);
        Ok(())
    }
}
