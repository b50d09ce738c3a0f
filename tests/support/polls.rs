//! A future that is polled a few times and then dropped: cancellation at every await point.
//!
//! A future is suspended at the await point that its last poll ended at, so dropping it after its 1st, 2nd, 3rd .. poll drops it at
//! each of them in turn.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::sync::Notify;

/// How a future fared that was given a number of polls.
#[derive(Debug, PartialEq, Eq)]
pub enum Polled<T> {
    /// It ended with this.
    Done(T),
    /// It was dropped after its last poll.
    Dropped,
    /// It was dropped sooner: it had not asked for its next poll for a while. More polls make no difference.
    Stuck,
}

/// Polls `future` up to `polls` times, each but the first when it asks for it, and then drops it.
pub async fn poll_times<F: Future>(polls: usize, future: F) -> Polled<F::Output> {
    let mut future = pin!(future);
    let asked = Arc::new(Wakes(Notify::new()));
    let waker = Waker::from(Arc::clone(&asked));
    for nth in 0..polls {
        if nth > 0 && tokio::time::timeout(PATIENCE, asked.0.notified()).await.is_err() {
            return Polled::Stuck;
        }
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Polled::Done(output);
        }
    }
    Polled::Dropped
}

/// Polls `future` once, to be woken by `waker`.
pub fn poll_with<F: Future>(waker: &Waker, future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

/// What a waker does that panics, as an application's may.
#[derive(Debug, Default)]
pub struct Panics(AtomicBool);

impl Panics {
    /// Returns once it has panicked; looks again every millisecond of tokio's clock.
    pub async fn until_it_has(&self) {
        while !self.0.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
        panic!("the waker's own panic");
    }
}

struct Wakes(Notify);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A wake before the wait is kept.
        self.0.notify_one();
    }
}

/// Far above an answer over loopback, far below every time-out of the engine.
const PATIENCE: Duration = Duration::from_millis(60);

#[cfg(test)]
mod tests {
    use super::*;

    async fn three_awaits() -> u8 {
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        7
    }

    #[tokio::test]
    async fn a_future_is_dropped_at_the_await_that_its_last_poll_reached() {
        assert_eq!(poll_times(0, three_awaits()).await, Polled::Dropped);
        assert_eq!(poll_times(3, three_awaits()).await, Polled::Dropped);
        assert_eq!(poll_times(4, three_awaits()).await, Polled::Done(7));
    }

    #[tokio::test]
    async fn a_future_that_nothing_wakes_is_stuck() {
        assert_eq!(poll_times(2, std::future::pending::<()>()).await, Polled::Stuck);
    }
}
