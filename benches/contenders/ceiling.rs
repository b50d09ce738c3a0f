//! The ceiling: a mutex in the memory of one process. No lock over a network hands over faster; it sends nothing.

use std::sync::Arc;
use std::time::Duration;

use dlock_bench_peer::{Library, Result};
use tokio::sync::{Mutex, OwnedMutexGuard};

/// One fair mutex for whatever key: who measures the ceiling wants but one.
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
