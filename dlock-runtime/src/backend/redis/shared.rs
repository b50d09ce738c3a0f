//! What the engine's side and the driver's share: what is queued, what is to be undone, and when to wake.
//!
//! Not here: who takes it and sends it (`driver`, `node`).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use once_cell::sync::OnceCell;
use tokio::sync::Notify;

use crate::backend::Request;
use crate::clock::boot_time;
use crate::protocol::abandon::AbandonList;
use crate::protocol::command::Command;
use crate::sync::lock;
use crate::token::Token;

/// What both sides use.
#[derive(Debug, Default)]
pub(super) struct Shared {
    outbox: Mutex<Vec<Request>>,
    /// Tells the driver that something is in the outbox, or due.
    pub(super) wake: Notify,
    /// Until when the driver sleeps; 0 while it is awake.
    pub(super) asleep_until: AtomicU64,
    pub(super) abandoned: Mutex<AbandonList>,
    /// Tells the driver that something is to be undone, or can be.
    pub(super) abandoned_more: Notify,
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

    /// Notes what is to be undone, of commands that went out on the connection of `epoch`; of none where they were not sent.
    pub(super) fn abandon(&self, abandoned: Vec<(Arc<str>, Token)>, epoch: Option<u64>) {
        if abandoned.is_empty() {
            return;
        }
        let mut list = lock(&self.abandoned);
        for (key, token) in abandoned {
            match epoch {
                Some(epoch) => list.add(key, token, epoch),
                None => list.add_unsent(key, token),
            }
        }
        drop(list);
        self.abandoned_more.notify_one();
    }

    /// Queues the leaves that are due.
    pub(super) fn push_due_leaves(&self) {
        let due = lock(&self.abandoned).due_now(boot_time());
        if due.is_empty() {
            return;
        }
        for (key, token) in due {
            self.push(Request { key, token, command: Command::Leave, answer: None });
        }
        self.wake.notify_one();
    }

    /// Returns whether something is not answered or not undone yet.
    pub(super) fn has_more(&self) -> bool {
        self.pending.load(Ordering::Acquire) > 0 || !lock(&self.abandoned).is_empty()
    }
}
