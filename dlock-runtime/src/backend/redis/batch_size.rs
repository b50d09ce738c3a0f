//! How many queued requests justify a write of their own while others are in flight.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Learns how many requests are usually pending, and derives the size of a batch from it.
///
/// A batch that holds all requests of all tasks makes client and server alternate: one sleeps while
/// the other works. A batch of one costs a system call per request. The best size lies between, and
/// depends on how many requests are pending.
#[derive(Debug, Default)]
pub(super) struct BatchSize {
    /// The largest number of pending requests at recent writes.
    ///
    /// The number itself drops with each batch of replies. A size that followed it would send small
    /// batches whenever the tasks begin to ask again, and with 64 tasks that costs a sixth.
    peak: AtomicUsize,
}

impl BatchSize {
    /// Returns the size of a batch while `pending` requests are unanswered or queued.
    pub(super) fn of(&self, pending: usize) -> usize {
        let pending = pending.max(self.peak.load(Ordering::Relaxed));
        if pending <= FEW {
            (pending / FEW_FRACTION).max(1)
        } else {
            (pending / MANY_FRACTION).max(LARGE_BATCH)
        }
    }

    /// Takes note of a write while `pending` requests are unanswered, those of the write included.
    pub(super) fn on_write(&self, pending: usize) {
        // One call writes at a time. If that were broken, the peak would only be less exact.
        let peak = self.peak.load(Ordering::Relaxed);
        let faded = peak.saturating_sub(peak.div_ceil(FADING));
        self.peak.store(pending.max(faded), Ordering::Relaxed);
    }
}

/// Up to here a batch is a sixth of the pending requests. All requests in one batch give 0.6 of the
/// throughput with 8 and with 16 tasks, and 0.75 with 32. Beyond, large batches are better.
const FEW: usize = 48;

/// A fourth gives a tenth to a fifth less with 8 to 32 tasks, and an eighth a quarter less with 16.
/// If tasks start after a pause, the fractions from a third to an eighth are equal within the
/// noise.
const FEW_FRACTION: usize = 6;

/// With 64 tasks, batches of 8 to 32 requests give a third more than all in one. If client and
/// server share two cores, each write is a switch: 32 gives a tenth more than 16, for 0.96 x the
/// processor time.
pub(super) const LARGE_BATCH: usize = 32;

/// With 1,000 tasks, batches of 16 gain nothing. An eighth of the pending requests gains a sixth.
const MANY_FRACTION: usize = 8;

/// A write lowers the peak by this part of it: from 64 to 32 in 16 writes.
const FADING: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_a_part_of_the_pending_requests() {
        let size = BatchSize::default();

        for (pending, expected) in
            [(1, 1), (8, 1), (11, 1), (12, 2), (16, 2), (32, 5), (48, 8), (49, 32), (256, 32), (1_024, 128)]
        {
            assert_eq!(size.of(pending), expected, "{pending} are pending");
        }
    }

    #[test]
    fn the_size_does_not_follow_each_batch_of_replies() {
        let size = BatchSize::default();
        size.on_write(64);

        for pending in [3, 40, 20, 64] {
            assert_eq!(size.of(pending), 32);
            size.on_write(pending);
        }
    }

    #[test]
    fn the_size_follows_a_load_that_has_gone() {
        let size = BatchSize::default();
        size.on_write(16_384);

        for _ in 0..300 {
            size.on_write(8);
        }

        assert_eq!(size.of(8), 1);
    }
}
