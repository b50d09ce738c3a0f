//! Who is told what the server answers to a release: a task that waits for it, the log, or nobody.
//!
//! A release that only the log is told of is *unanswered* for as long as a task would wait for it. Their number is bounded, and that
//! is the back-pressure: beyond the bound a release has a task that waits for it.
//!
//! Not here: what is done about an answer (`protocol`), how it is told in the log (`telemetry`).

use tokio::sync::oneshot;

use crate::engine::turn::SharedTurn;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootTime;
use crate::sync::shared::atomic::{AtomicUsize, Ordering};
use crate::telemetry::Hold;

/// Who is to be told the answer to a release.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Told<'a> {
    Nobody,
    /// Whoever lets go.
    Caller,
    /// The log of the call, which has ended by then.
    Log(&'a Hold),
}

/// Who lets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The call whose turn it is, as it is polled: to wake it would have it polled once more for nothing.
    TheCall,
    /// Whoever has its guard.
    AHolder,
}

/// What letting go has come to.
#[derive(Debug)]
pub(crate) enum LetGo {
    /// The server is not asked, or nobody is told what it says.
    Done,
    /// The log will be told.
    Logged,
    /// The server was asked, and this is told what it says.
    Asked(oneshot::Receiver<Reply>),
}

impl LetGo {
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
pub(crate) enum Answer {
    /// Somebody who waits for it.
    Caller(oneshot::Sender<Reply>),
    /// The log of the call that has let go of this turn.
    Log(SharedTurn, Hold),
}

impl Told<'_> {
    /// Begins a release of `turn`.
    pub(super) fn begin(self, turn: &SharedTurn, unanswered: &Unanswered) -> (Option<Answer>, LetGo) {
        match self {
            Self::Nobody => (None, LetGo::Done),
            Self::Log(telemetry) if unanswered.one_more() => {
                (Some(Answer::Log(SharedTurn::clone(turn), telemetry.clone())), LetGo::Logged)
            }
            Self::Caller | Self::Log(_) => {
                let (answer, receiver) = oneshot::channel();
                (Some(Answer::Caller(answer)), LetGo::Asked(receiver))
            }
        }
    }
}

impl Answer {
    /// Gives the answer that came at `now`, with nothing locked: whoever is told is foreign code.
    pub(super) fn give(self, reply: Reply, now: BootTime) {
        match self {
            Self::Caller(answer) => drop(answer.send(reply)),
            Self::Log(turn, telemetry) => telemetry.let_go_behind(&turn.key, &reply, || turn.held_for(now)),
        }
    }
}

/// How many releases that the log alone is told of have not been answered.
#[derive(Debug, Default)]
pub(super) struct Unanswered(AtomicUsize);

impl Unanswered {
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
    pub(super) fn one_less(&self, answer: Option<&Answer>) {
        if let Some(Answer::Log(..)) = answer {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Enough that calls hardly ever wait while the server keeps up, and few enough that what may be left behind when it does not is
/// soon said.
const MOST_UNANSWERED: usize = 1_024;
