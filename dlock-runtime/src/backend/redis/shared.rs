//! What the engine's side and the driver's share: what is queued, what is to be undone, and when to wake.
//!
//! Not here: who takes it and sends it (`driver`, `servers`).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use once_cell::sync::OnceCell;
use tokio::sync::Notify;

use crate::backend::Request;
use crate::backend::redis::undoing::Undoing;
use crate::sync::lock;

/// What both sides use.
#[derive(Debug, Default)]
pub(super) struct Shared {
    outbox: Mutex<Vec<Request>>,
    /// Tells the driver that something is in the outbox, or due.
    pub(super) wake: Notify,
    /// Until when the driver sleeps; 0 while it is awake.
    pub(super) asleep_until: AtomicU64,
    /// What is to be undone, on whichever server the key lives.
    pub(super) undoing: Undoing,
    /// The same, where each server has a list of its own.
    pub(super) undoing_of_servers: OnceCell<Vec<Arc<Undoing>>>,
    /// How many connections there were, to all servers: no two have one epoch.
    epochs: AtomicU64,
    /// How many requests have not been answered.
    pending: AtomicUsize,
    pub(super) settled: Notify,
    /// Where timers can be had that do not need the caller's runtime.
    pub(super) runtime: OnceCell<tokio::runtime::Handle>,
}

impl Shared {
    pub(super) fn push(&self, request: Request) {
        self.pending.fetch_add(1, Ordering::AcqRel);
        lock(&self.outbox).push(request);
    }

    /// Queues requests that the driver is to send.
    pub(super) fn push_all(&self, requests: Vec<Request>) {
        if requests.is_empty() {
            return;
        }
        for request in requests {
            self.push(request);
        }
        self.wake.notify_one();
    }

    pub(super) fn take(&self) -> Vec<Request> {
        std::mem::take(&mut *lock(&self.outbox))
    }

    /// Returns the epoch of a new connection: from 1, and never the same again.
    pub(super) fn next_epoch(&self) -> u64 {
        self.epochs.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// So many requests less are pending.
    pub(super) fn answered(&self, count: usize) {
        if count > 0 && self.pending.fetch_sub(count, Ordering::AcqRel) == count {
            self.settled.notify_waiters();
        }
    }

    /// Returns whether something is not answered or not undone yet.
    pub(super) fn has_more(&self) -> bool {
        let of_servers = self.undoing_of_servers.get().into_iter().flatten();
        self.pending.load(Ordering::Acquire) > 0
            || !self.undoing.is_empty()
            || of_servers.into_iter().any(|undoing| !undoing.is_empty())
    }
}
