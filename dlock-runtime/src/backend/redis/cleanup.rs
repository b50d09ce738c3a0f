//! Cleanup after commands without a reply, for servers that share one queue.
//!
//! See also `protocol::orphans`, which decides when a cleanup is complete.

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

/// The tokens that must be cleaned up.
#[derive(Debug, Default)]
pub(super) struct CleanupQueue {
    list: Mutex<OrphanedTokens>,
    /// Notified when a token is added or can be retried.
    pub(super) more: Notify,
}

impl CleanupQueue {
    /// Adds tokens of commands that were sent on the connection `epoch`. `None`: they were not
    /// sent.
    pub(super) fn add(&self, orphaned: Vec<(Name, Token)>, epoch: Option<u64>) {
        if orphaned.is_empty() {
            return;
        }
        let mut list = lock(&self.list);
        for (key, token) in orphaned {
            match epoch {
                Some(epoch) => list.add(key, token, epoch),
                None => list.add_unsent(key, token),
            }
        }
        drop(list);
        self.more.notify_one();
    }

    /// Removes the replies to withdrawals of queued tokens from `replies`.
    pub(super) fn on_withdrawal_replies(
        &self,
        replies: &mut Vec<(Request, Reply)>,
        epoch: Option<u64>,
        now: BootInstant,
    ) {
        let is_retried = take_leaves(&mut lock(&self.list), replies, epoch, now);
        if is_retried {
            self.more.notify_one(); // the cleanup task does not know this deadline yet
        }
    }

    /// Returns the withdrawals that are due. Their replies go to
    /// [`on_withdrawal_replies`](Self::on_withdrawal_replies).
    pub(super) fn due_withdrawals(&self) -> Vec<Request> {
        let due = lock(&self.list).due_now(boot_time());
        let withdrawal = |(key, token)| Request::new(key, token, Command::Withdraw);
        due.into_iter().map(withdrawal).collect()
    }

    /// Retries unanswered withdrawals of keys for which `concerns` returns `true`, because their
    /// server is reachable again.
    pub(super) fn retry_now(&self, concerns: impl Fn(&str) -> bool) {
        lock(&self.list).retry_now(concerns);
        self.more.notify_one();
    }

    /// Returns the time until the next withdrawal is due.
    pub(super) fn due_in(&self) -> Duration {
        lock(&self.list).due().since(boot_time())
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.list).is_empty()
    }
}

/// Removes the replies to withdrawals of listed tokens from `replies`.
///
/// Replies to a release that a caller or the log receives are recorded, but stay in `replies`.
/// Returns `true` if a listed token may be retried.
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
        // A request that was not sent is refused, and a refusal proves nothing, so any epoch is
        // correct.
        let is_noted =
            request.command.is_release() && list.left(request.token, reply, epoch.unwrap_or_default(), now);
        noted |= is_noted;
        !is_noted || request.recipient.is_some()
    });
    noted && !list.is_empty()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;
    use crate::backend::redis::tests::{is_notified, unknown};
    use crate::backend::reply_recipient::ReplyRecipient;
    use crate::protocol::command::{Failure, FailureKind};
    use crate::token::TokenSource;

    #[test]
    fn cleanup_is_woken_to_retry_a_withdrawal() {
        let refused = || Reply::Refused(Failure::new(FailureKind::Passing, "out of memory"));
        for (reply, epoch, is_retried) in
            [(refused(), 1, true), (Reply::NotOwner, 2, true), (Reply::NotOwner, 1, false)]
        {
            let (cleanup, token) = (CleanupQueue::default(), TokenSource::new().next());
            cleanup.add(vec![("k".into(), token)], Some(1));
            assert!(is_notified(&cleanup.more));

            let mut replies: Vec<_> =
                cleanup.due_withdrawals().into_iter().map(|withdrawal| (withdrawal, reply.clone())).collect();
            cleanup.on_withdrawal_replies(&mut replies, Some(epoch), boot_time());

            assert!(replies.is_empty());
            assert_eq!(is_notified(&cleanup.more), is_retried, "{reply:?}");
        }
    }

    #[test]
    fn a_release_is_answered_though_its_token_is_being_cleaned_up() {
        let (cleanup, token) = (CleanupQueue::default(), TokenSource::new().next());
        cleanup.add(vec![("k".into(), token)], Some(1)); // an enqueue without a reply, sent before the release
        let (reply, _receiver) = oneshot::channel();
        let release = Request {
            recipient: Some(ReplyRecipient::Caller(reply)),
            ..Request::new("k".into(), token, Command::RELEASE)
        };
        let unknown = Reply::Unknown(Failure::new(FailureKind::Passing, "no reply"));
        let mut replies =
            vec![(release, unknown.clone()), (Request::new("k".into(), token, Command::Withdraw), unknown)];

        cleanup.on_withdrawal_replies(&mut replies, Some(1), BootInstant::START);

        let remaining: Vec<_> = replies.iter().map(|(request, _)| request.command).collect();
        assert_eq!(remaining, [Command::RELEASE]);
    }

    /// Answers the withdrawals that are due with `reply`.
    fn answer(cleanup: &CleanupQueue, reply: &Reply, epoch: u64) {
        let withdrawals = cleanup.due_withdrawals().into_iter();
        let mut replies = withdrawals.map(|withdrawal| (withdrawal, reply.clone())).collect();
        cleanup.on_withdrawal_replies(&mut replies, Some(epoch), boot_time());
    }

    #[test]
    fn unanswered_withdrawals_are_retried_when_their_server_is_back() {
        let (cleanup, token) = (CleanupQueue::default(), TokenSource::new().next());
        assert!(cleanup.is_empty() && cleanup.due_in() > Duration::from_secs(3_600));
        cleanup.add(vec![("k".into(), token)], Some(1));
        assert!(!cleanup.is_empty() && cleanup.due_in().is_zero());
        answer(&cleanup, &unknown(), 2);
        assert!(!cleanup.due_in().is_zero() && cleanup.due_withdrawals().is_empty());

        cleanup.retry_now(|key| key != "k");
        assert!(!cleanup.due_in().is_zero());
        cleanup.more.notified().now_or_never();
        cleanup.retry_now(|key| key == "k");

        assert!(cleanup.due_in().is_zero() && is_notified(&cleanup.more));
        let due = cleanup.due_withdrawals();
        assert!(matches!(due[..], [Request { token: due, command: Command::Withdraw, .. }] if due == token));
    }

    #[test]
    fn any_connection_proves_the_withdrawal_of_an_unsent_command() {
        for (sent_on, is_done) in [(None, true), (Some(9), true), (Some(1), false)] {
            let (cleanup, token) = (CleanupQueue::default(), TokenSource::new().next());
            cleanup.add(vec![("k".into(), token)], sent_on);

            answer(&cleanup, &Reply::NotOwner, 9);

            assert_eq!(cleanup.is_empty(), is_done, "{sent_on:?}");
        }
    }

    #[test]
    fn replies_to_other_requests_are_left_alone() {
        let (cleanup, tokens) = (CleanupQueue::default(), TokenSource::new());
        let (token, other) = (tokens.next(), tokens.next());
        cleanup.add(vec![("k".into(), token)], Some(1));
        cleanup.add(Vec::new(), Some(1));
        cleanup.more.notified().now_or_never();
        let acquire = Command::Acquire { lease: Duration::from_secs(1) };
        let mut replies = vec![
            (Request::new("k".into(), token, acquire), Reply::NotOwner),
            (Request::new("k".into(), other, Command::Withdraw), Reply::NotOwner),
        ];

        cleanup.on_withdrawal_replies(&mut replies, Some(1), boot_time());

        assert_eq!(replies.len(), 2);
        assert!(!cleanup.is_empty() && !is_notified(&cleanup.more));
    }

    #[test]
    fn cleanup_is_not_woken_if_there_is_nothing_to_clean_up() {
        let cleanup = CleanupQueue::default();

        cleanup.add(Vec::new(), Some(1));

        assert!(!is_notified(&cleanup.more));
    }
}
