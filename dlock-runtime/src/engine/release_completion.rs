//! Who is told what the server answers to a release: a task that waits for it, the log, or nobody.
//!
//! A release that only the log is told of is *unanswered* for as long as a task would wait for it. Their number is bounded, and that
//! is the back-pressure: beyond the bound a release has a task that waits for it.
//!
//! Not here: what is done about an answer (`protocol`), how it is told in the log (`telemetry`).

use tokio::sync::oneshot;

use crate::engine::acquisition::SharedAcquisition;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootInstant;
use crate::sync::shared::atomic::{AtomicUsize, Ordering};
use crate::telemetry::CallSpan;

/// Who is to be told the answer to a release.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReleaseReport<'a> {
    None,
    /// Whoever lets go.
    Caller,
    /// The log of the call, which has ended by then.
    Log(&'a CallSpan),
}

/// Who lets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleasedBy {
    /// The call whose turn it is, as it is polled: to wake it would have it polled once more for nothing.
    Call,
    /// Whoever has its guard.
    Guard,
}

/// What letting go has come to.
#[derive(Debug)]
pub(crate) enum PendingRelease {
    /// The server is not asked, or nobody is told what it says.
    Done,
    /// The log will be told.
    Logged,
    /// The server was asked, and this is told what it says.
    Asked(oneshot::Receiver<Reply>),
}

impl PendingRelease {
    /// Returns what is told the server's answer, if anything is.
    pub(crate) fn answer(self) -> Option<oneshot::Receiver<Reply>> {
        match self {
            Self::Asked(answer) => Some(answer),
            Self::Done | Self::Logged => None,
        }
    }
}

/// Who is told the answer to a command, beside the rules.
#[derive(Debug)]
pub(crate) enum ReleaseCompletion {
    /// Somebody who waits for it.
    Caller(oneshot::Sender<Reply>),
    /// The log of the call that has let go of this turn.
    Log(SharedAcquisition, CallSpan),
}

impl ReleaseReport<'_> {
    /// Begins a release of `turn`.
    pub(super) fn begin(
        self,
        acquisition: &SharedAcquisition,
        unanswered: &BackgroundReleaseLimit,
    ) -> (Option<ReleaseCompletion>, PendingRelease) {
        match self {
            Self::None => (None, PendingRelease::Done),
            Self::Log(telemetry) if unanswered.one_more() => (
                Some(ReleaseCompletion::Log(SharedAcquisition::clone(acquisition), telemetry.clone())),
                PendingRelease::Logged,
            ),
            Self::Caller | Self::Log(_) => {
                let (answer, receiver) = oneshot::channel();
                (Some(ReleaseCompletion::Caller(answer)), PendingRelease::Asked(receiver))
            }
        }
    }
}

impl ReleaseCompletion {
    /// Gives the answer that came at `now`, with nothing locked: whoever is told is foreign code.
    pub(super) fn give(self, reply: Reply, now: BootInstant) {
        match self {
            Self::Caller(answer) => drop(answer.send(reply)),
            Self::Log(acquisition, telemetry) => {
                telemetry.let_go_behind(&acquisition.key, &reply, || acquisition.held_for(now))
            }
        }
    }
}

/// How many releases that the log alone is told of have not been answered.
#[derive(Debug, Default)]
pub(super) struct BackgroundReleaseLimit(AtomicUsize);

impl BackgroundReleaseLimit {
    /// Counts one more, unless there are as many as may be.
    fn one_more(&self) -> bool {
        let more = |count| (count < MOST_UNANSWERED).then_some(count + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// An answer has come; it counts if it is one for the log.
    pub(super) fn one_less(&self, answer: Option<&ReleaseCompletion>) {
        if let Some(ReleaseCompletion::Log(..)) = answer {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Enough that calls hardly ever wait while the server keeps up, and few enough that what may be left behind when it does not is
/// soon said.
const MOST_UNANSWERED: usize = 1_024;
