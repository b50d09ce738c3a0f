//! Commands without an answer, and how their effect is undone.
//!
//! A timeout and a broken pipe both mean "unknown": the command may have run, or may still run when a frozen server wakes up and
//! reads what is left in a socket. So its token is told to *leave*: on the next good connection until that succeeds, and, where
//! that connection is another than the one it was sent on, once more a while later. The key's time to live is the last bound.
//!
//! An entry stays in the list until it is proved: what drops the connection in between loses nothing.
//!
//! All servers of a manager share one list, and no two connections one epoch: the number of a connection to one server must not prove
//! what was sent to another. Where a key's master changes, the leave goes to the new one. It needs no other rule: what a command did on
//! the old master reached the new one before that became a master, or never will, and so before the leave. A leave that the old master
//! answered and the new one never heard of is lost with all else that was; what comes back so is passed on when it is granted, and
//! ends with its time to live.
//!
//! Not here: sending (`backend/redis`). A backend that always answers has nothing to abandon.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::key::Name;
use crate::protocol::command::{FailureKind, Reply};
use crate::protocol::deadline::BootInstant;
use crate::token::Token;

/// The tokens that may still have an effect.
#[derive(Clone, Debug, Default)]
pub(crate) struct OrphanedTokens {
    entries: BTreeMap<Token, OrphanedToken>,
}

/// One token that may still have an effect on one key.
#[derive(Clone, Debug)]
struct OrphanedToken {
    key: Name,
    /// The connection that the unanswered command was sent on; `None` where it never was.
    epoch: Option<u64>,
    /// Whether a leave has succeeded already.
    left_once: bool,
    /// When the next leave is to be sent; [`BootInstant::NEVER`] while one is on its way.
    due: BootInstant,
}

impl OrphanedTokens {
    /// Adds a token whose command was sent on the connection of `epoch`.
    pub(crate) fn add(&mut self, key: Name, token: Token, epoch: u64) {
        self.insert(key, token, Some(epoch));
    }

    /// Adds a token whose release or leave could not be sent: the next that is answered, on any connection, is proof.
    pub(crate) fn add_unsent(&mut self, key: Name, token: Token) {
        self.insert(key, token, None);
    }

    fn insert(&mut self, key: Name, token: Token, epoch: Option<u64>) {
        if self.entries.len() >= MOST {
            self.entries.pop_first();
        }
        // What is in the list already was sent on an older connection, and that is the one to prove it by.
        let new = OrphanedToken { key, epoch, left_once: false, due: BootInstant::START };
        let entry = self.entries.entry(token).or_insert(new);
        // And a leave that has succeeded came before what may run now.
        (entry.left_once, entry.due) = (false, BootInstant::START);
    }

    /// Returns what is to be left now, on a connection that works; each is answered by [`left`](Self::left).
    pub(crate) fn due_now(&mut self, now: BootInstant) -> Vec<(Name, Token)> {
        let due = self.entries.iter_mut().filter(|(_, entry)| entry.due <= now);
        due.map(|(token, entry)| {
            entry.due = BootInstant::NEVER;
            (Name::clone(&entry.key), *token)
        })
        .collect()
    }

    /// Notes the answer to a leave of `token` on the connection of `epoch`. Returns whether the token stands in the list.
    pub(crate) fn left(&mut self, token: Token, reply: &Reply, epoch: u64, now: BootInstant) -> bool {
        let Some(entry) = self.entries.get_mut(&token) else { return false };
        match reply {
            // Nobody can leave where we may not, and nothing of ours stands where something else does.
            Reply::Refused(failure) if failure.kind != FailureKind::Passing => {
                self.entries.remove(&token);
            }
            // A leave that may not do all that it must may do so one day; till then its key's time to live is not ours to hurry.
            Reply::Unknown(failure) if failure.kind != FailureKind::Passing => entry.due = now.plus(SELDOM),
            Reply::Unknown(_) | Reply::Refused(_) => entry.due = now.plus(AGAIN),
            // A connection keeps its order: a leave that was answered there has run after the command it undoes.
            _ if entry.epoch.is_none_or(|sent_on| sent_on == epoch) => {
                self.entries.remove(&token);
            }
            // The one that was sent a while later; an answer that comes before it is due is to a leave that was sent beside the first.
            _ if entry.left_once && entry.due == BootInstant::NEVER => {
                self.entries.remove(&token);
            }
            _ => {
                entry.left_once = true;
                entry.due = now.plus(ONCE_MORE);
            }
        }
        true
    }

    /// Makes leaves due at once that were refused, or got no answer, of keys that `concerns` takes: their server is there again.
    pub(crate) fn retry_now(&mut self, concerns: impl Fn(&str) -> bool) {
        for entry in self.entries.values_mut() {
            if !entry.left_once && entry.due != BootInstant::NEVER && concerns(&entry.key) {
                entry.due = BootInstant::START;
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns when the next leave is due; [`BootInstant::NEVER`] where none is.
    pub(crate) fn due(&self) -> BootInstant {
        self.entries.values().map(|entry| entry.due).min().unwrap_or(BootInstant::NEVER)
    }
}

/// A server that was frozen reads its old sockets well within this after it wakes up.
const ONCE_MORE: Duration = Duration::from_secs(1);

/// A leave that was refused or got no answer is said again after this.
const AGAIN: Duration = Duration::from_secs(1);

/// And one that a rule of the server stops half-way after this, in which somebody may have changed the rule.
const SELDOM: Duration = Duration::from_secs(30);

/// What is beyond is left to the keys' times to live: a list without a bound would outlive a server that never comes back.
const MOST: usize = 100_000;

#[cfg(test)]
mod tests;
