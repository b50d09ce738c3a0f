//! What is to be undone: commands without an answer, of servers that have one list.
//!
//! Not here: when an effect is known to be undone (`protocol::abandon`), who sends the leaves (`servers`).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::Request;
use crate::clock::boot_time;
use crate::protocol::abandon::AbandonList;
use crate::protocol::command::{Command, Reply};
use crate::protocol::deadline::BootTime;
use crate::sync::lock;
use crate::token::Token;

/// A list of what is to be undone.
#[derive(Debug, Default)]
pub(super) struct Undoing {
    list: Mutex<AbandonList>,
    /// Told when something is to be undone, or can be.
    pub(super) more: Notify,
}

impl Undoing {
    /// Notes what is to be undone, of commands that went out on the connection of `epoch`; of none where they were not sent.
    pub(super) fn add(&self, abandoned: Vec<(Arc<str>, Token)>, epoch: Option<u64>) {
        if abandoned.is_empty() {
            return;
        }
        let mut list = lock(&self.list);
        for (key, token) in abandoned {
            match epoch {
                Some(epoch) => list.add(key, token, epoch),
                None => list.add_unsent(key, token),
            }
        }
        drop(list);
        self.more.notify_one();
    }

    /// Takes out of `replies` those to leaves of what is to be undone.
    pub(super) fn left(&self, replies: &mut Vec<(Request, Reply)>, epoch: Option<u64>, now: BootTime) {
        let mut list = lock(&self.list);
        if !list.is_empty() {
            replies.retain(|(request, reply)| {
                // What was not sent is refused, and a refusal proves nothing: no epoch will do.
                !(request.command.lets_go()
                    && list.left(request.token, reply, epoch.unwrap_or_default(), now))
            });
        }
    }

    /// Returns the leaves that are due; each is answered by [`left`](Self::left).
    pub(super) fn due_leaves(&self) -> Vec<Request> {
        let due = lock(&self.list).due_now(boot_time());
        let leave = |(key, token)| Request::new(key, token, Command::Leave);
        due.into_iter().map(leave).collect()
    }

    /// Has leaves that got no answer said at once, of keys that `concerns` takes: their server is there again.
    pub(super) fn hasten(&self, concerns: impl Fn(&str) -> bool) {
        lock(&self.list).hasten(concerns);
        self.more.notify_one();
    }

    /// Returns in how long the next leave is due.
    pub(super) fn due_in(&self) -> Duration {
        lock(&self.list).due().since(boot_time())
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.list).is_empty()
    }
}
