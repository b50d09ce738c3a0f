//! What stands under a lock's key: the holder's token, then the tokens of those who wait, in order.
//!
//! ```text
//! value := holder { waiter }          each a token of one fixed width; anything else is a foreign client's
//! ```
//!
//! Not here: until when it stands, and which command does what to it (`record`).

use std::collections::VecDeque;

use crate::token::Token;

/// One lock's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockValue {
    holder: Token,
    waiters: VecDeque<Token>,
}

/// How many tokens wait in one value at most; who finds it full polls.
pub(crate) const MAX_WAITERS: usize = 128;

/// What became of the lock when its holder let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LetGo {
    /// Nobody waits: the key is to be deleted.
    Freed,
    /// This waiter is the holder now, for a grant lease, and is told of it.
    Granted(Token),
    /// The token held nothing: nothing changed.
    NotOurs,
}

/// What became of a token that wanted to stand in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is the holder.
    Holder,
    /// It is in the queue.
    Queued,
    /// There was no place for it.
    Full,
    /// It is neither holder nor queued.
    Gone,
}

impl LockValue {
    /// A lock that `holder` has just taken.
    pub(crate) fn held_by(holder: Token) -> Self {
        Self { holder, waiters: VecDeque::new() }
    }

    /// Returns who holds.
    pub(crate) fn holder(&self) -> Token {
        self.holder
    }

    /// Returns how many wait.
    pub(crate) fn waiters(&self) -> usize {
        self.waiters.len()
    }

    /// Returns the holder and those who wait.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn tokens(&self) -> impl Iterator<Item = Token> {
        std::iter::once(self.holder).chain(self.waiters.iter().copied())
    }

    /// Returns where `token` stands.
    pub(crate) fn place_of(&self, token: Token) -> Place {
        if self.holder == token {
            Place::Holder
        } else if self.waiters.contains(&token) {
            Place::Queued
        } else {
            Place::Gone
        }
    }

    /// Adds `token` at the end of the queue.
    pub(crate) fn append(&mut self, token: Token) -> Place {
        match self.place_of(token) {
            Place::Gone if self.waiters.len() >= MAX_WAITERS => Place::Full,
            Place::Gone => {
                self.waiters.push_back(token);
                Place::Queued
            }
            place => place,
        }
    }

    /// Lets `token` go. `told` publishes a grant and returns whether anybody received it: a waiter that nobody listens for is dead
    /// and the next is granted in the same step, so the lock is never free in between.
    pub(crate) fn release(&mut self, token: Token, mut told: impl FnMut(Token) -> bool) -> LetGo {
        if self.holder != token {
            return LetGo::NotOurs;
        }
        while let Some(next) = self.waiters.pop_front() {
            if told(next) {
                self.holder = next;
                return LetGo::Granted(next);
            }
        }
        LetGo::Freed
    }

    /// Lets `token` go, and all who wait with it: each is given to `told`.
    pub(crate) fn free(&mut self, token: Token, told: impl FnMut(Token)) -> LetGo {
        if self.holder != token {
            return LetGo::NotOurs;
        }
        self.waiters.drain(..).for_each(told);
        LetGo::Freed
    }

    /// Lets whoever holds go.
    pub(crate) fn force_release(&mut self, told: impl FnMut(Token) -> bool) -> LetGo {
        self.release(self.holder, told)
    }

    /// Takes `token` out of the queue; as the holder's it is a release.
    pub(crate) fn leave(&mut self, token: Token, told: impl FnMut(Token) -> bool) -> LetGo {
        self.waiters.retain(|waiter| *waiter != token);
        self.release(token, told)
    }

    /// Hands over to the first live waiter and queues `next` behind the others; keeps the lock when nobody waits.
    pub(crate) fn hand_on(&mut self, token: Token, next: Token, told: impl FnMut(Token) -> bool) -> LetGo {
        let outcome = self.release(token, told);
        if let LetGo::Granted(_) = outcome {
            self.waiters.push_back(next);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::TokenSource;

    fn tokens<const N: usize>() -> [Token; N] {
        let source = TokenSource::new();
        std::array::from_fn(|_| source.next())
    }

    #[test]
    fn the_lock_goes_to_those_who_wait_in_their_order() {
        let [a, b, c] = tokens();
        let mut value = LockValue::held_by(a);
        assert_eq!((value.append(b), value.append(c)), (Place::Queued, Place::Queued));

        assert_eq!(value.release(a, |_| true), LetGo::Granted(b));
        assert_eq!(value.release(b, |_| true), LetGo::Granted(c));
        assert_eq!(value.release(c, |_| true), LetGo::Freed);
    }

    #[test]
    fn a_waiter_that_nobody_listens_for_is_passed_over() {
        let [a, dead, c] = tokens();
        let mut value = LockValue::held_by(a);
        value.append(dead);
        value.append(c);

        assert_eq!(value.release(a, |token| token != dead), LetGo::Granted(c));
    }

    #[test]
    fn a_release_that_is_not_the_holders_changes_nothing() {
        let [a, b, c] = tokens();
        let mut value = LockValue::held_by(a);
        value.append(b);
        let before = value.clone();

        assert_eq!(value.release(b, |_| true), LetGo::NotOurs);
        assert_eq!(value.hand_on(b, c, |_| true), LetGo::NotOurs);
        assert_eq!(value, before);
    }

    #[test]
    fn its_holder_alone_frees_a_lock_and_all_who_wait_are_told() {
        let [a, b, c] = tokens();
        let mut value = LockValue::held_by(a);
        value.append(b);
        value.append(c);
        let mut told = Vec::new();

        assert_eq!(value.free(b, |waiter| told.push(waiter)), LetGo::NotOurs);
        assert!(told.is_empty());
        assert_eq!(value.free(a, |waiter| told.push(waiter)), LetGo::Freed);

        assert_eq!(told, [b, c]);
        assert_eq!(value.waiters(), 0);
    }

    #[test]
    fn who_leaves_the_queue_is_never_granted_and_who_leaves_as_holder_hands_over() {
        let [a, b, c] = tokens();
        let mut value = LockValue::held_by(a);
        value.append(b);
        value.append(c);

        assert_eq!(value.leave(b, |_| true), LetGo::NotOurs);
        assert_eq!(value.place_of(b), Place::Gone);
        assert_eq!(value.leave(a, |_| true), LetGo::Granted(c));
    }

    #[test]
    fn a_full_value_takes_no_more() {
        let source = TokenSource::new();
        let mut value = LockValue::held_by(source.next());
        for _ in 0..MAX_WAITERS {
            assert_eq!(value.append(source.next()), Place::Queued);
        }

        assert_eq!(value.append(source.next()), Place::Full);
    }

    #[test]
    fn a_yield_queues_us_behind_all_who_wait() {
        let [a, b, c, next] = tokens();
        let mut value = LockValue::held_by(a);
        value.append(b);
        value.append(c);

        assert_eq!(value.hand_on(a, next, |_| true), LetGo::Granted(b));
        assert_eq!(value.release(b, |_| true), LetGo::Granted(c));
        assert_eq!(value.release(c, |_| true), LetGo::Granted(next));
    }
}
