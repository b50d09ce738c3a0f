//! What stands under a lock's key: the holder's token, then the tokens of those who wait, in order.
//!
//! ```text
//! value := holder { waiter }          each a token of one fixed width; anything else is a foreign client's
//! ```
//!
//! A row of tokens with more than [`MAX_WAITERS`] waiters is a foreign client's as well. No command here makes one, and scripts read no
//! more of a value than shows that it is one.
//!
//! Not here: until when it stands, and which command does what to it (`record`).

use std::collections::VecDeque;

use crate::bounds::MAX_WAITERS;
use crate::token::Token;

/// One lock's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockValue {
    holder: Token,
    waiters: VecDeque<Token>,
}

/// What became of the lock when its holder let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseEffect {
    /// Nobody waits: the key is to be deleted.
    Freed,
    /// This waiter is the holder now, for a grant lease, and is told of it.
    Granted(Token),
    /// The token held nothing: nothing changed.
    NotOwner,
}

/// What became of a token that wanted to stand in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueuePosition {
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
    pub(crate) fn position_of(&self, token: Token) -> QueuePosition {
        if self.holder == token {
            QueuePosition::Holder
        } else if self.waiters.contains(&token) {
            QueuePosition::Queued
        } else {
            QueuePosition::Gone
        }
    }

    /// Adds `token` at the end of the queue.
    pub(crate) fn append(&mut self, token: Token) -> QueuePosition {
        match self.position_of(token) {
            QueuePosition::Gone if self.waiters.len() >= MAX_WAITERS => QueuePosition::Full,
            QueuePosition::Gone => {
                self.waiters.push_back(token);
                QueuePosition::Queued
            }
            place => place,
        }
    }

    /// Lets `token` go. `told` publishes a grant and returns whether anybody received it: a waiter that nobody listens for is dead
    /// and the next is granted in the same step, so the lock is never free in between.
    pub(crate) fn release(&mut self, token: Token, mut told: impl FnMut(Token) -> bool) -> ReleaseEffect {
        if self.holder != token {
            return ReleaseEffect::NotOwner;
        }
        while let Some(next) = self.waiters.pop_front() {
            if told(next) {
                self.holder = next;
                return ReleaseEffect::Granted(next);
            }
        }
        ReleaseEffect::Freed
    }

    /// Lets `token` go, and all who wait with it: each is given to `told`.
    pub(crate) fn free(&mut self, token: Token, told: impl FnMut(Token)) -> ReleaseEffect {
        if self.holder != token {
            return ReleaseEffect::NotOwner;
        }
        self.waiters.drain(..).for_each(told);
        ReleaseEffect::Freed
    }

    /// Lets whoever holds go.
    pub(crate) fn force_release(&mut self, told: impl FnMut(Token) -> bool) -> ReleaseEffect {
        self.release(self.holder, told)
    }

    /// Takes `token` out of the queue; as the holder's it is a release.
    pub(crate) fn leave(&mut self, token: Token, told: impl FnMut(Token) -> bool) -> ReleaseEffect {
        self.waiters.retain(|waiter| *waiter != token);
        self.release(token, told)
    }

    /// Hands over to the first live waiter and queues `next` behind the others; keeps the lock when nobody waits.
    pub(crate) fn hand_off(
        &mut self,
        token: Token,
        next: Token,
        told: impl FnMut(Token) -> bool,
    ) -> ReleaseEffect {
        let outcome = self.release(token, told);
        if let ReleaseEffect::Granted(_) = outcome {
            self.waiters.push_back(next);
        }
        outcome
    }
}

#[cfg(test)]
mod tests;
