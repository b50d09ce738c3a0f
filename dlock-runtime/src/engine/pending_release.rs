//! Reports the server's reply to a release: to a task that waits for it, or to the log.
//!
//! A background release counts until its reply arrives. At most 1,024 count at a time: that is the
//! back-pressure. Beyond the bound, the caller waits for its release.

use std::time::Duration;

use tokio::sync::oneshot;

use crate::backend::reply_recipient::{ReleasedHold, ReplyRecipient};
use crate::engine::acquisition::{Acquisition, SharedAcquisition};
use crate::key::LockKey;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootInstant;
use crate::sync::shared::atomic::{AtomicUsize, Ordering};
use crate::telemetry::CallSpan;

/// The recipient of the reply to a release.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReleaseReport<'a> {
    /// None: the reply is ignored.
    None,
    /// The caller, or the log if the caller stops waiting.
    Caller,
    /// The log, under the span of the call, which has ended by then.
    Log(&'a CallSpan),
    /// The log, since the guard was dropped. It does not count as a background release, because its
    /// owner cannot wait.
    Dropped,
}

/// The code that releases the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleasedBy {
    /// The call itself while it is polled. Waking it would only cause one more poll.
    Call,
    /// The owner of the guard.
    Guard,
}

/// The outcome of a release.
#[derive(Debug)]
pub(crate) enum PendingRelease {
    /// Nothing was sent, or the reply is ignored.
    Done,
    /// The log will report the reply.
    Logged,
    /// The release was sent. The receiver gets the reply.
    Sent(oneshot::Receiver<Reply>),
}

impl PendingRelease {
    /// Returns the receiver of the reply, or `None` if the caller gets none.
    pub(crate) fn answer(self) -> Option<oneshot::Receiver<Reply>> {
        match self {
            Self::Sent(answer) => Some(answer),
            Self::Done | Self::Logged => None,
        }
    }
}

impl ReleaseReport<'_> {
    /// Begins a release of `acquisition`.
    pub(super) fn begin(
        self,
        acquisition: &SharedAcquisition,
        limit: &BackgroundReleaseLimit,
    ) -> (Option<ReplyRecipient>, PendingRelease) {
        match self {
            Self::None => (None, PendingRelease::Done),
            Self::Dropped => {
                let hold = SharedAcquisition::clone(acquisition) as _;
                (Some(ReplyRecipient::DroppedGuard(hold)), PendingRelease::Logged)
            }
            Self::Log(telemetry) if limit.try_acquire() => (
                Some(ReplyRecipient::Log(SharedAcquisition::clone(acquisition) as _, telemetry.clone())),
                PendingRelease::Logged,
            ),
            Self::Caller | Self::Log(_) => {
                let (reply, receiver) = oneshot::channel();
                let hold = SharedAcquisition::clone(acquisition) as _;
                (Some(ReplyRecipient::Releaser(reply, hold)), PendingRelease::Sent(receiver))
            }
        }
    }
}

impl ReleasedHold for Acquisition {
    fn key(&self) -> &LockKey {
        &self.key
    }

    fn held_for(&self, now: BootInstant) -> Duration {
        Acquisition::held_for(self, now)
    }

    fn has_expired(&self, now: BootInstant) -> bool {
        Acquisition::has_expired(self, now)
    }
}

/// The number of background releases without a reply.
#[derive(Debug, Default)]
pub(super) struct BackgroundReleaseLimit(AtomicUsize);

impl BackgroundReleaseLimit {
    /// Counts one more, unless the limit is reached.
    fn try_acquire(&self) -> bool {
        let more = |count| (count < MAX_BACKGROUND_RELEASES).then_some(count + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Stops counting a release whose reply has arrived, if it was a background release.
    pub(super) fn on_reply(&self, recipient: Option<&ReplyRecipient>) {
        if recipient.is_some_and(ReplyRecipient::is_background) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Enough that calls rarely wait while the server keeps up, and few enough that, if it does not,
/// the releases that may fail are soon reported.
const MAX_BACKGROUND_RELEASES: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::{assert_listed, written};

    #[test]
    fn background_releases_are_bounded() {
        let limit = BackgroundReleaseLimit::default();

        assert_eq!((0..2_000).filter(|_| limit.try_acquire()).count(), MAX_BACKGROUND_RELEASES);
        assert_listed("background releases without a reply", &written(MAX_BACKGROUND_RELEASES));
    }

    #[test]
    fn each_report_has_its_recipient() {
        let (limit, span) = (BackgroundReleaseLimit::default(), CallSpan::none());
        let acquisition = Acquisition::new(LockKey::new("order:7").expect("a key"));
        let begin = |report: ReleaseReport<'_>| report.begin(&acquisition, &limit);

        assert!(matches!(begin(ReleaseReport::None), (None, PendingRelease::Done)));
        let dropped = begin(ReleaseReport::Dropped);
        assert!(matches!(&dropped, (Some(ReplyRecipient::DroppedGuard(_)), PendingRelease::Logged)));
        let caller = begin(ReleaseReport::Caller);
        assert!(matches!(&caller, (Some(ReplyRecipient::Releaser(..)), PendingRelease::Sent(_))));
        assert_eq!(limit.count(), 0);
        let logged = begin(ReleaseReport::Log(&span));
        assert!(matches!(&logged, (Some(ReplyRecipient::Log(..)), PendingRelease::Logged)));
        assert_eq!(limit.count(), 1);
        limit.on_reply(caller.0.as_ref());
        limit.on_reply(dropped.0.as_ref());
        limit.on_reply(None);
        assert_eq!(limit.count(), 1, "only background releases count");
        limit.on_reply(logged.0.as_ref());
        assert_eq!(limit.count(), 0);

        assert_eq!((0..2_000).filter(|_| limit.try_acquire()).count(), MAX_BACKGROUND_RELEASES);
        let (recipient, pending) = begin(ReleaseReport::Log(&span));
        assert!(matches!(recipient, Some(ReplyRecipient::Releaser(..))), "the caller waits beyond the limit");
        assert!(pending.answer().is_some() && logged.1.answer().is_none());
    }

    #[test]
    fn a_released_hold_knows_its_key_and_its_time() {
        let acquisition = Acquisition::new(LockKey::new("order:7").expect("a key"));
        acquisition.end(BootInstant::START);
        let released: &dyn ReleasedHold = &*acquisition;

        let second = BootInstant::START.plus(Duration::from_secs(1));
        assert_eq!((released.key().as_str(), released.held_for(second)), ("order:7", Duration::from_secs(1)));
    }
}
