//! Where a token that holds may come to stand late, since a server did not say whether it took it. That is to be thought of when it
//! lets go: a leave that comes before what it undoes undoes nothing.
//!
//! Not here: what is undone, and how that is proved (`abandon`).

use std::collections::BTreeSet;

use crate::protocol::command::Reply;
use crate::protocol::quorum::Follow;
use crate::token::Token;

/// Tokens that hold, and servers where they may come to stand.
#[derive(Debug, Default)]
pub(crate) struct Late {
    /// By an acquire or a repair that had no answer.
    unsure: BTreeSet<(Token, usize)>,
    /// By a repair that is not answered yet.
    repairing: BTreeSet<(Token, usize)>,
}

impl Late {
    /// Remembers what follows from a ballot on a command of `token`.
    pub(crate) fn remember(&mut self, token: Token, follows: &[(usize, Follow)]) {
        for (server, follow) in follows {
            match follow {
                Follow::Unsure => keep(&mut self.unsure, (token, *server)),
                Follow::Repair(_) => keep(&mut self.repairing, (token, *server)),
                Follow::Leave | Follow::Abandon => {}
            }
        }
    }

    /// A server has answered to a repair of `token`, or will not: then no answer to a later repair makes up for it.
    pub(crate) fn repaired(&mut self, token: Token, server: usize, reply: &Reply) {
        let place = (token, server);
        if self.repairing.remove(&place) && matches!(reply, Reply::Unknown(_)) {
            keep(&mut self.unsure, place);
        }
    }

    /// The token has let go at a server, and is forgotten there. Returns whether it may come to stand there all the same.
    pub(crate) fn let_go(&mut self, token: Token, server: usize) -> bool {
        let place = (token, server);
        // Both are forgotten, whichever it was.
        self.unsure.remove(&place) | self.repairing.remove(&place)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.unsure.is_empty() && self.repairing.is_empty()
    }
}

fn keep(places: &mut BTreeSet<(Token, usize)>, place: (Token, usize)) {
    places.insert(place);
    if places.len() > MOST {
        places.pop_first(); // the oldest is left to its time to live
    }
}

const MOST: usize = 10_000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::command::{Failure, FailureKind};
    use crate::token::TokenSource;

    const REPAIR: Follow = Follow::Repair(Duration::from_secs(30));

    fn unknown() -> Reply {
        Reply::Unknown(Failure::new(FailureKind::Passing, "no answer"))
    }

    fn repairing() -> (Late, Token) {
        let (mut late, token) = (Late::default(), TokenSource::of_process(1).next());
        late.remember(token, &[(0, Follow::Leave), (2, REPAIR)]);
        (late, token)
    }

    #[test]
    fn a_token_may_come_to_stand_where_its_repair_is_on_its_way_and_not_where_it_was_answered() {
        let (mut late, token) = repairing();
        assert!(!late.let_go(token, 0));
        assert!(late.let_go(token, 2));

        let (mut late, token) = repairing();
        late.repaired(token, 2, &Reply::Ours);
        assert!(!late.let_go(token, 2));
    }

    #[test]
    fn a_repair_that_was_answered_does_not_make_up_for_an_earlier_one_that_was_not() {
        let (mut late, token) = repairing();
        late.repaired(token, 2, &unknown());

        late.remember(token, &[(2, REPAIR)]);
        late.repaired(token, 2, &Reply::Ours);

        assert!(late.let_go(token, 2));
        assert!(late.is_empty());
    }

    #[test]
    fn what_is_answered_after_the_lock_was_let_go_of_is_not_remembered() {
        let (mut late, token) = repairing();
        assert!(late.let_go(token, 2));

        late.repaired(token, 2, &unknown());

        assert!(late.is_empty());
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let (mut late, tokens) = (Late::default(), TokenSource::of_process(1));
        let (first, second) = (tokens.next(), tokens.next());
        for token in [first, second].into_iter().chain((2..=MOST).map(|_| tokens.next())) {
            late.remember(token, &[(0, Follow::Unsure)]);
        }

        assert!(!late.let_go(first, 0));
        assert!(late.let_go(second, 0));
    }
}
