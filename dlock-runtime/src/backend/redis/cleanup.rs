//! What is to be undone: commands without an answer, of servers that have one list.
//!
//! Not here: when an effect is known to be undone (`protocol::orphans`), who sends the leaves (`servers`).

use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::Request;
use crate::clock::boot_time;
use crate::key::Name;
use crate::protocol::command::{Command, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::orphans::OrphanedTokens;
use crate::sync::lock;
use crate::token::Token;

/// A list of what is to be undone.
#[derive(Debug, Default)]
pub(super) struct CleanupQueue {
    list: Mutex<OrphanedTokens>,
    /// Told when something is to be undone, or can be.
    pub(super) more: Notify,
}

impl CleanupQueue {
    /// Notes what is to be undone, of commands that went out on the connection of `epoch`; of none where they were not sent.
    pub(super) fn add(&self, abandoned: Vec<(Name, Token)>, epoch: Option<u64>) {
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
    pub(super) fn left(&self, replies: &mut Vec<(Request, Reply)>, epoch: Option<u64>, now: BootInstant) {
        let is_said_again = take_leaves(&mut lock(&self.list), replies, epoch, now);
        if is_said_again {
            self.more.notify_one(); // who undoes has looked when nothing was known of when that is due
        }
    }

    /// Returns the leaves that are due; each is answered by [`left`](Self::left).
    pub(super) fn due_leaves(&self) -> Vec<Request> {
        let due = lock(&self.list).due_now(boot_time());
        let leave = |(key, token)| Request::new(key, token, Command::Withdraw);
        due.into_iter().map(leave).collect()
    }

    /// Has leaves that got no answer said at once, of keys that `concerns` takes: their server is there again.
    pub(super) fn retry_now(&self, concerns: impl Fn(&str) -> bool) {
        lock(&self.list).retry_now(concerns);
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

/// Takes the replies to leaves of what stands in the list out of `replies`. Those to a release that somebody waits for are noted and
/// stay: he is to be told. Returns whether something of the list may be said again.
pub(crate) fn take_leaves(
    list: &mut OrphanedTokens,
    replies: &mut Vec<(Request, Reply)>,
    epoch: Option<u64>,
    now: BootInstant,
) -> bool {
    if list.is_empty() {
        return false;
    }
    let mut noted = false;
    replies.retain(|(request, reply)| {
        // What was not sent is refused, and a refusal proves nothing: no epoch will do.
        let is_noted =
            request.command.is_release() && list.left(request.token, reply, epoch.unwrap_or_default(), now);
        noted |= is_noted;
        !is_noted || request.answer.is_some()
    });
    noted && !list.is_empty()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;
    use crate::engine::release_completion::ReleaseCompletion;
    use crate::protocol::command::{Failure, FailureKind};
    use crate::token::TokenSource;

    #[test]
    fn who_undoes_is_woken_when_a_leave_is_to_be_said_again() {
        let refused = || Reply::Refused(Failure::new(FailureKind::Passing, "out of memory"));
        for (reply, epoch, is_said_again) in
            [(refused(), 1, true), (Reply::NotOwner, 2, true), (Reply::NotOwner, 1, false)]
        {
            let (undoing, token) = (CleanupQueue::default(), TokenSource::new().next());
            undoing.add(vec![("k".into(), token)], Some(1));
            assert!(undoing.more.notified().now_or_never().is_some());

            let mut replies: Vec<_> =
                undoing.due_leaves().into_iter().map(|leave| (leave, reply.clone())).collect();
            undoing.left(&mut replies, Some(epoch), boot_time());

            assert!(replies.is_empty());
            assert_eq!(undoing.more.notified().now_or_never().is_some(), is_said_again, "{reply:?}");
        }
    }

    #[test]
    fn who_waits_for_a_release_is_answered_though_its_token_is_to_be_undone_already() {
        let (undoing, token) = (CleanupQueue::default(), TokenSource::new().next());
        undoing.add(vec![("k".into(), token)], Some(1)); // an enqueue without an answer, sent before the release
        let (answer, _receiver) = oneshot::channel();
        let release = Request {
            answer: Some(ReleaseCompletion::Caller(answer)),
            ..Request::new("k".into(), token, Command::Release)
        };
        let unknown = Reply::Unknown(Failure::new(FailureKind::Passing, "no answer"));
        let mut replies =
            vec![(release, unknown.clone()), (Request::new("k".into(), token, Command::Withdraw), unknown)];

        undoing.left(&mut replies, Some(1), BootInstant::START);

        let told: Vec<_> = replies.iter().map(|(request, _)| request.command).collect();
        assert_eq!(told, [Command::Release]);
    }
}
