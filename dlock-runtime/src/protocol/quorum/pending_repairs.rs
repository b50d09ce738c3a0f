//! Where a token that holds may come to stand late, since a server did not say whether it took it. That is to be thought of when it
//! lets go: a leave that comes before what it undoes undoes nothing.
//!
//! Not here: what is undone, and how that is proved (`abandon`).

use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::command::Reply;
use crate::protocol::quorum::FollowUp;
use crate::token::Token;

/// Tokens that hold, and servers where they may come to stand.
#[derive(Debug, Default)]
pub(crate) struct PendingRepairs {
    /// By an acquire or a repair that had no answer.
    unsure: BTreeSet<(Token, usize)>,
    /// By so many repairs that are not answered yet: the answer to one says nothing of the others.
    repairing: BTreeMap<(Token, usize), u32>,
}

impl PendingRepairs {
    /// Remembers what follows from a ballot on a command of `token`.
    pub(crate) fn remember(&mut self, token: Token, follows: &[(usize, FollowUp)]) {
        for (server, follow) in follows {
            match follow {
                FollowUp::Unsure => self.mark_unverified((token, *server)),
                FollowUp::Repair(_) => {
                    *self.repairing.entry((token, *server)).or_default() += 1;
                    if self.repairing.len() > MOST {
                        self.repairing.pop_first(); // whichever it is, it is left to its time to live
                    }
                }
                FollowUp::Leave | FollowUp::Abandon => {}
            }
        }
    }

    /// A server has answered to a repair of `token`, or will not: then no answer to a later repair makes up for it.
    pub(crate) fn repaired(&mut self, token: Token, server: usize, reply: &Reply) {
        let place = (token, server);
        let Some(unanswered) = self.repairing.get_mut(&place) else { return };
        *unanswered -= 1;
        if *unanswered == 0 {
            self.repairing.remove(&place);
        }
        if matches!(reply, Reply::Unknown(_)) {
            self.mark_unverified(place);
        }
    }

    /// The token has let go at a server, and is forgotten there. Returns whether it may come to stand there all the same.
    pub(crate) fn let_go(&mut self, token: Token, server: usize) -> bool {
        let place = (token, server);
        // Both are forgotten, whichever it was.
        self.unsure.remove(&place) | self.repairing.remove(&place).is_some()
    }

    fn mark_unverified(&mut self, place: (Token, usize)) {
        self.unsure.insert(place);
        if self.unsure.len() > MOST {
            self.unsure.pop_first(); // whichever it is, it is left to its time to live
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.unsure.is_empty() && self.repairing.is_empty()
    }
}

const MOST: usize = 10_000;

#[cfg(test)]
mod tests;
