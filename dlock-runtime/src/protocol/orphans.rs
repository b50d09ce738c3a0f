//! Commands without a reply, and how their effect is cleaned up.
//!
//! After a timeout or a broken connection the outcome is unknown: the command may have run, or may
//! still run when a frozen server resumes and reads its socket. So its token is withdrawn on the
//! next good connection, repeatedly until that succeeds. If that connection is not the one that
//! carried the command, the token is withdrawn once more 1 s later. The time to live of the key is
//! the last bound.
//!
//! An entry stays in the list until its cleanup is proved: a connection that is lost in between
//! loses nothing.
//!
//! All servers of a manager share one list, and no two connections share an epoch: the number of a
//! connection to one server must not prove what was sent to another. If the primary of a key
//! changes, the withdrawal goes to the new one, and no other rule is needed. The effect of the
//! command on the old primary was replicated before the failover, and so before the withdrawal, or
//! it never will be. A withdrawal that only the old primary executed is lost with its other
//! unreplicated writes. A token that reappears this way is passed on when it is granted, and
//! expires with its key.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::key::Name;
use crate::protocol::command::{FailureKind, Reply};
use crate::protocol::deadline::BootInstant;
use crate::token::Token;

/// The tokens whose commands may still have an effect.
#[derive(Clone, Debug, Default)]
pub(crate) struct OrphanedTokens {
    entries: BTreeMap<Token, OrphanedToken>,
}

/// A token whose command may still have an effect on one key.
#[derive(Clone, Debug)]
struct OrphanedToken {
    key: Name,
    /// The connection that carried the unanswered command, or `None` if it was not sent.
    epoch: Option<u64>,
    /// Whether a withdrawal has succeeded.
    withdrawn_once: bool,
    /// When the next withdrawal is due, or [`BootInstant::NEVER`] while one is in flight.
    due: BootInstant,
}

impl OrphanedTokens {
    /// Adds a token whose command was sent on the connection of `epoch`.
    pub(crate) fn add(&mut self, key: Name, token: Token, epoch: u64) {
        self.insert(key, token, Some(epoch));
    }

    /// Adds a token whose release or withdrawal was not sent. The next one that is answered, on any
    /// connection, is proof.
    pub(crate) fn add_unsent(&mut self, key: Name, token: Token) {
        self.insert(key, token, None);
    }

    fn insert(&mut self, key: Name, token: Token, epoch: Option<u64>) {
        if self.entries.len() >= MAX_ENTRIES {
            self.entries.pop_first();
        }
        let new = OrphanedToken { key, epoch, withdrawn_once: false, due: BootInstant::START };
        let entry = self.entries.entry(token).or_insert(new);
        // The first command that was sent used the oldest connection, which must prove it. An
        // unsent command proves nothing about the others.
        entry.epoch = entry.epoch.or(epoch);
        // A withdrawal that succeeded came before what may run now.
        (entry.withdrawn_once, entry.due) = (false, BootInstant::START);
    }

    /// Returns tokens to withdraw now, on a working connection, at most [`MAX_AT_ONCE`]. Each is
    /// answered by [`left`](Self::left).
    pub(crate) fn due_now(&mut self, now: BootInstant) -> Vec<(Name, Token)> {
        let due = self.entries.iter_mut().filter(|(_, entry)| entry.due <= now).take(MAX_AT_ONCE);
        due.map(|(token, entry)| {
            entry.due = BootInstant::NEVER;
            (Name::clone(&entry.key), *token)
        })
        .collect()
    }

    /// Handles the reply to a withdrawal of `token` on the connection of `epoch`. Returns `true` if
    /// the token was in the list.
    pub(crate) fn left(&mut self, token: Token, reply: &Reply, epoch: u64, now: BootInstant) -> bool {
        let Some(entry) = self.entries.get_mut(&token) else { return false };
        match reply {
            // The withdrawal is not permitted, or the key holds something else, so nothing of this
            // token remains.
            Reply::Refused(failure) if failure.kind != FailureKind::Passing => {
                self.entries.remove(&token);
            }
            // A server rule stops the withdrawal half-way. The rule may change, and the key is not
            // touched until then.
            Reply::Unknown(failure) if failure.kind != FailureKind::Passing => {
                entry.due = now.plus(BLOCKED_RETRY_DELAY);
            }
            Reply::Unknown(_) | Reply::Refused(_) => entry.due = now.plus(RETRY_DELAY),
            // A connection preserves order: the withdrawal ran after the command that it undoes.
            _ if entry.epoch.is_none_or(|sent_on| sent_on == epoch) => {
                self.entries.remove(&token);
            }
            // The second withdrawal. A reply that arrives while `due` is set belongs to a duplicate
            // of the first.
            _ if entry.withdrawn_once && entry.due == BootInstant::NEVER => {
                self.entries.remove(&token);
            }
            _ => {
                entry.withdrawn_once = true;
                entry.due = now.plus(SECOND_DELAY);
            }
        }
        true
    }

    /// Makes failed withdrawals due at once for the keys for which `concerns` returns `true`: their
    /// server is back.
    pub(crate) fn retry_now(&mut self, concerns: impl Fn(&str) -> bool) {
        for entry in self.entries.values_mut() {
            if !entry.withdrawn_once && entry.due != BootInstant::NEVER && concerns(&entry.key) {
                entry.due = BootInstant::START;
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns when the next withdrawal is due, or [`BootInstant::NEVER`] if none is.
    pub(crate) fn due(&self) -> BootInstant {
        self.entries.values().map(|entry| entry.due).min().unwrap_or(BootInstant::NEVER)
    }
}

/// The delay of the second withdrawal. A frozen server reads its old sockets well within this time
/// after it resumes.
const SECOND_DELAY: Duration = Duration::from_secs(1);

/// The delay after a withdrawal that was refused or not answered.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The delay after a withdrawal that a rule of the server stopped half-way: time to change the
/// rule.
const BLOCKED_RETRY_DELAY: Duration = Duration::from_secs(30);

/// How many withdrawals are sent before other requests get their turn.
const MAX_AT_ONCE: usize = 1_000;

/// The longest list. Tokens beyond it expire with their keys: an unbounded list would grow for a
/// server that never comes back.
const MAX_ENTRIES: usize = 100_000;

#[cfg(test)]
mod tests;
