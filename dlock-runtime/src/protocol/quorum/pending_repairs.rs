//! The servers that may still create the key of a held token, because a command has no reply yet.
//!
//! If the token is released there before that command runs, the release has no effect. The release
//! must therefore be repeated until it is known to follow the command. See also `orphans`, which
//! does that.

use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::command::Reply;
use crate::protocol::quorum::FollowUp;
use crate::token::Token;

/// Tokens that hold a lock, and the servers that may still create their keys.
#[derive(Debug, Default)]
pub(crate) struct PendingRepairs {
    /// Entries for which an acquire or a repair ended without a reply.
    unverified: BTreeSet<(Token, usize)>,
    /// The number of repairs in flight. The reply to one says nothing about the others.
    in_flight: BTreeMap<(Token, usize), u32>,
}

impl PendingRepairs {
    /// Records the follow-up actions of a command of `token`.
    pub(crate) fn remember(&mut self, token: Token, follows: &[(usize, FollowUp)]) {
        for (server, follow) in follows {
            match follow {
                FollowUp::Unverified => self.mark_unverified((token, *server)),
                FollowUp::Repair(_) => {
                    *self.in_flight.entry((token, *server)).or_default() += 1;
                    if self.in_flight.len() > MAX_ENTRIES {
                        self.in_flight.pop_first(); // the key of this token expires with its TTL
                    }
                }
                FollowUp::Withdraw | FollowUp::Orphan => {}
            }
        }
    }

    /// Records the reply to a repair of `token`.
    ///
    /// If the reply is unknown, the reply to a later repair does not change that.
    pub(crate) fn on_repaired(&mut self, token: Token, server: usize, reply: &Reply) {
        let entry = (token, server);
        let Some(count) = self.in_flight.get_mut(&entry) else { return };
        *count -= 1;
        if *count == 0 {
            self.in_flight.remove(&entry);
        }
        if matches!(reply, Reply::Unknown(_)) {
            self.mark_unverified(entry);
        }
    }

    /// Forgets a token that was released at a server. Returns `true` if the server may still create
    /// its key.
    pub(crate) fn on_released(&mut self, token: Token, server: usize) -> bool {
        let entry = (token, server);
        // No short-circuit: the token is removed from both.
        self.unverified.remove(&entry) | self.in_flight.remove(&entry).is_some()
    }

    fn mark_unverified(&mut self, entry: (Token, usize)) {
        self.unverified.insert(entry);
        if self.unverified.len() > MAX_ENTRIES {
            self.unverified.pop_first(); // the key of this token expires with its TTL
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.unverified.is_empty() && self.in_flight.is_empty()
    }
}

/// Bounds the memory of each of the two collections.
const MAX_ENTRIES: usize = 10_000;

#[cfg(test)]
mod tests;
