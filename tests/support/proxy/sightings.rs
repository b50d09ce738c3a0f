//! Who waits for which bytes to come by, so that tests wait for events and not for time.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use crate::clock::Moment;

/// Ends when the awaited bytes have come by, with the time on the boot clock.
///
/// Never ends if the proxy is dropped first: [`within`](crate::within) gives a test its limit.
#[derive(Debug)]
#[must_use = "a sighting is waited for by awaiting it"]
pub struct Seen {
    sighted: oneshot::Receiver<Moment>,
}

impl Future for Seen {
    type Output = Moment;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Moment> {
        match Pin::new(&mut self.sighted).poll(context) {
            Poll::Ready(Ok(at)) => Poll::Ready(at),
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Sightings {
    pub(super) requests: Watchers,
    pub(super) replies: Watchers,
}

#[derive(Debug, Default)]
pub(super) struct Watchers(Mutex<Vec<Watcher>>);

#[derive(Debug)]
struct Watcher {
    needle: Vec<u8>,
    tell: oneshot::Sender<Moment>,
}

impl Watchers {
    pub(super) fn watch_for(&self, needle: &[u8]) -> Seen {
        let (tell, sighted) = oneshot::channel();
        let mut watchers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|watcher| !watcher.tell.is_closed());
        watchers.push(Watcher { needle: needle.to_vec(), tell });
        Seen { sighted }
    }

    /// Tells everyone who waits for something in `bytes`.
    pub(super) fn saw(&self, bytes: &[u8]) {
        let mut watchers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for watcher in watchers.extract_if(.., |watcher| contains(bytes, &watcher.needle)) {
            let _ = watcher.tell.send(Moment::now());
        }
    }
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    needle.is_empty() || bytes.windows(needle.len()).any(|window| window == needle)
}
