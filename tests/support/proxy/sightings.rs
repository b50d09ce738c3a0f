//! Notifications of bytes that pass, so that tests can wait for events instead of sleeping.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use crate::clock::Moment;

/// A future that completes when the awaited bytes have passed, with the time on the boot clock.
///
/// It never completes if the proxy is dropped first. Use [`within`](crate::within) for a limit.
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
    notify: oneshot::Sender<Moment>,
}

impl Watchers {
    pub(super) fn watch_for(&self, needle: &[u8]) -> Seen {
        let (notify, sighted) = oneshot::channel();
        let mut watchers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|watcher| !watcher.notify.is_closed());
        watchers.push(Watcher { needle: needle.to_vec(), notify });
        Seen { sighted }
    }

    /// Notifies every watcher whose bytes are in `bytes`.
    pub(super) fn saw(&self, bytes: &[u8]) {
        let mut watchers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for watcher in watchers.extract_if(.., |watcher| contains(bytes, &watcher.needle)) {
            let _ = watcher.notify.send(Moment::now());
        }
    }
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    needle.is_empty() || bytes.windows(needle.len()).any(|window| window == needle)
}
