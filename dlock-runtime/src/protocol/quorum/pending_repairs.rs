//! The servers that may still create the key of a held token, and those that do not have it.
//!
//! A server may still create the key, because a command has no reply yet. If the token is released
//! there before that command runs, the release has no effect. The release must therefore be
//! repeated until it is known to follow the command. See also `orphans`, which does that.
//!
//! If a server did not run the acquire, for example because it is down, and its key was not
//! repaired since, a release that fails there is not repeated. Otherwise each hold would leave a
//! token to clean up at a server that is down.

use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::command::Reply;
use crate::protocol::quorum::FollowUp;
use crate::token::Token;

/// Tokens that hold a lock, with the servers that may still create their keys, and those without.
#[derive(Debug, Default)]
pub(crate) struct PendingRepairs {
    /// Entries for which an acquire or a repair ended without a reply.
    unverified: BTreeSet<(Token, usize)>,
    /// The number of repairs in flight. The reply to one says nothing about the others.
    in_flight: BTreeMap<(Token, usize), u32>,
    /// The servers without the key, by token.
    absent: BTreeMap<Token, Vec<usize>>,
}

impl PendingRepairs {
    /// Records the follow-up actions of a command of `token`.
    pub(crate) fn remember(&mut self, token: Token, follows: &[(usize, FollowUp)]) {
        for (server, follow) in follows {
            match follow {
                FollowUp::Unverified => self.mark_unverified((token, *server)),
                FollowUp::Absent => {
                    self.absent.entry(token).or_default().push(*server);
                    if self.absent.len() > MAX_ENTRIES {
                        self.absent.pop_first(); // its releases are repeated although nothing is left
                    }
                }
                FollowUp::Repair(_) => {
                    if let Some(servers) = self.absent.get_mut(&token) {
                        servers.retain(|absent| absent != server);
                    }
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

    /// Handles the vote of a server on a command that ends the hold of `token`: completes the
    /// follow-up actions. `is_over`: every server has voted.
    pub(crate) fn on_end(
        &mut self,
        (token, server): (Token, usize),
        is_over: bool,
        follows: &mut Vec<(usize, FollowUp)>,
    ) {
        let absent = self.absent.get(&token).map_or(&[][..], |servers| servers);
        follows.retain(|(server, follow)| *follow != FollowUp::Orphan || !absent.contains(server));
        if is_over {
            self.absent.remove(&token);
        }
        if self.on_released(token, server) {
            follows.push((server, FollowUp::Orphan));
        }
    }

    /// Forgets a token that was released at a server. Returns `true` if the server may still create
    /// its key.
    fn on_released(&mut self, token: Token, server: usize) -> bool {
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
        self.unverified.is_empty() && self.in_flight.is_empty() && self.absent.is_empty()
    }
}

/// Bounds the memory of each of the three collections.
const MAX_ENTRIES: usize = 10_000;

#[cfg(test)]
mod tests;
