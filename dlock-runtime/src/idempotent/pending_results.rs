//! [`PendingResults`], the number of calls whose end the server has not confirmed.

use std::sync::Arc;

use crate::sync::shared::atomic::{AtomicUsize, Ordering};

/// Counts the ends of calls that are sent in the background.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingResults(Arc<AtomicUsize>);

impl PendingResults {
    /// Counts an end until the returned value is dropped.
    pub(super) fn add(&self) -> PendingResult {
        self.0.fetch_add(1, Ordering::AcqRel);
        PendingResult(self.clone())
    }

    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// The end of one call.
#[derive(Debug)]
pub(super) struct PendingResult(PendingResults);

impl Drop for PendingResult {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}
