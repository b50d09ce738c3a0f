//! A future that is polled a few times and then dropped: cancellation at every await point.
//!
//! A future is suspended at the await point that its last poll reached. Thus dropping it after the
//! first, second, third, ... poll drops it at each await point in turn.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::sync::Notify;

/// The result of a limited number of polls.
#[derive(Debug, PartialEq, Eq)]
pub enum Polled<T> {
    /// The future completed with this output.
    Done(T),
    /// The future was dropped after its last poll.
    Dropped,
    /// The future was dropped earlier, because it was not woken within 60 ms. More polls make no
    /// difference.
    Stuck,
}

/// Polls `future` up to `polls` times, and then drops it.
///
/// Each poll but the first waits until the future is woken.
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

/// Polls `future` once with `waker`.
pub fn poll_with<F: Future>(waker: &Waker, future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

/// A waker that panics, as a waker of an application may.
#[derive(Debug, Default)]
pub struct Panics(AtomicBool);

impl Panics {
    /// Returns once the waker has panicked. Checks that every millisecond of tokio's clock.
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

/// Far above a reply over loopback, and far below every timeout of the engine.
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
    async fn a_future_without_a_wake_is_stuck() {
        assert_eq!(poll_times(2, std::future::pending::<()>()).await, Polled::Stuck);
    }
}
