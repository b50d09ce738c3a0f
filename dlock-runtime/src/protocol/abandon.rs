//! Commands without an answer, and how their effect is undone.
//!
//! A timeout and a broken pipe both mean "unknown": the command may have run, or may still run when a frozen server wakes up and
//! reads what is left in a socket. So its token is told to *leave*: on the next good connection until that succeeds, and, where
//! that connection is another than the one it was sent on, once more a while later. The key's time to live is the last bound.
//!
//! Not here: sending (`backend/redis`). A backend that always answers has nothing to abandon.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::deadline::BootTime;
use crate::token::Token;

/// The tokens that may still have an effect.
#[derive(Debug, Default)]
pub(crate) struct AbandonList {
    entries: VecDeque<Abandoned>,
}

/// One token that may still have an effect on one key.
#[derive(Clone, Debug)]
pub(crate) struct Abandoned {
    pub(crate) key: Arc<str>,
    pub(crate) token: Token,
    /// The connection that the unanswered command was sent on.
    epoch: u64,
    /// Whether a leave has succeeded already.
    left_once: bool,
    due: BootTime,
}

impl AbandonList {
    /// Adds a token whose command was sent on the connection of `epoch`.
    pub(crate) fn add(&mut self, key: Arc<str>, token: Token, epoch: u64) {
        if self.entries.len() >= MOST {
            self.entries.pop_front();
        }
        self.entries.push_back(Abandoned { key, token, epoch, left_once: false, due: BootTime::START });
    }

    /// Takes out what is to be left now, on a connection that works.
    pub(crate) fn take_due(&mut self, now: BootTime) -> Vec<Abandoned> {
        let (due, later) = std::mem::take(&mut self.entries).into_iter().partition(|entry| entry.due <= now);
        self.entries = later;
        Vec::from(due)
    }

    /// Notes the answer to a leave that was sent at `now` on the connection of `epoch`; `answered` where there was one.
    pub(crate) fn left(&mut self, mut entry: Abandoned, answered: bool, epoch: u64, now: BootTime) {
        // A connection keeps its order: a leave that was answered there has run after the command it undoes.
        let proved = answered && (entry.left_once || entry.epoch == epoch);
        if proved {
            return;
        }
        entry.left_once |= answered;
        entry.due = now.plus(if answered { ONCE_MORE } else { RETRY });
        self.entries.push_back(entry);
    }

    /// Returns when the next leave is due; [`BootTime::NEVER`] where none is.
    pub(crate) fn due(&self) -> BootTime {
        self.entries.iter().map(|entry| entry.due).min().unwrap_or(BootTime::NEVER)
    }
}

/// A server that was frozen reads its old sockets well within this after it wakes up.
const ONCE_MORE: Duration = Duration::from_secs(1);

/// A leave that was refused or got no answer is said again after this.
const RETRY: Duration = Duration::from_millis(100);

/// What is beyond is left to the keys' times to live: a list without a bound would outlive a server that never comes back.
const MOST: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::TokenSource;

    fn at(ms: u64) -> BootTime {
        BootTime::from_nanos(ms * 1_000_000)
    }

    fn abandoned_on(epoch: u64) -> (AbandonList, Abandoned) {
        let mut list = AbandonList::default();
        list.add("k".into(), TokenSource::new().next(), epoch);
        let entry = list.take_due(at(0)).remove(0);
        (list, entry)
    }

    #[test]
    fn a_leave_on_the_same_connection_is_proof() {
        let (mut list, entry) = abandoned_on(1);

        list.left(entry, true, 1, at(10));

        assert_eq!(list.due(), BootTime::NEVER);
    }

    #[test]
    fn a_leave_on_another_connection_is_said_once_more_a_second_later() {
        let (mut list, entry) = abandoned_on(1);

        list.left(entry, true, 2, at(10));

        assert_eq!(list.due(), at(1_010));
        let again = list.take_due(at(1_010)).remove(0);
        list.left(again, true, 2, at(1_010));
        assert_eq!(list.due(), BootTime::NEVER);
    }

    #[test]
    fn a_leave_without_an_answer_is_repeated() {
        let (mut list, entry) = abandoned_on(1);

        list.left(entry, false, 2, at(10));

        assert_eq!(list.take_due(at(110)).len(), 1);
    }
}
