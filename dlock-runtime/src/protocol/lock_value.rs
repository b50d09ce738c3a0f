//! The value of a lock's key: the token of the holder, then the tokens of the waiters, in order.
//!
//! ```text
//! value := holder { waiter }          tokens of one fixed width; any other value is a foreign client's
//! ```
//!
//! A value with more than [`MAX_WAITERS`] waiters also counts as foreign. No command here creates
//! one, and scripts read only enough of a value to recognize it.

use std::collections::VecDeque;

use crate::bounds::MAX_WAITERS;
use crate::token::Token;

/// The value of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockValue {
    holder: Token,
    waiters: VecDeque<Token>,
}

/// The effect of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseEffect {
    /// No token waits: the key must be deleted.
    Freed,
    /// This waiter is the new holder, for a grant lease, and was notified.
    Granted(Token),
    /// The token is not the holder: nothing changed.
    NotOwner,
}

/// The position of a token in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueuePosition {
    /// The token is the holder.
    Holder,
    /// The token is queued.
    Queued,
    /// The queue is full.
    Full,
    /// The token is neither holder nor queued.
    Gone,
}

impl LockValue {
    /// Creates the value of a lock that `holder` has acquired.
    pub(crate) fn held_by(holder: Token) -> Self {
        Self { holder, waiters: VecDeque::new() }
    }

    /// Returns the holder.
    pub(crate) fn holder(&self) -> Token {
        self.holder
    }

    /// Returns the number of waiters.
    pub(crate) fn waiters(&self) -> usize {
        self.waiters.len()
    }

    /// Returns the holder and the waiters.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn tokens(&self) -> impl Iterator<Item = Token> {
        std::iter::once(self.holder).chain(self.waiters.iter().copied())
    }

    /// Returns the position of `token`.
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
            position => position,
        }
    }

    /// Releases the lock that `token` holds. `notify` publishes a grant and returns whether a
    /// subscriber received it. A waiter without a subscriber is skipped in the same step, so the
    /// lock is never free in between.
    pub(crate) fn release(&mut self, token: Token, mut notify: impl FnMut(Token) -> bool) -> ReleaseEffect {
        if self.holder != token {
            return ReleaseEffect::NotOwner;
        }
        while let Some(next) = self.waiters.pop_front() {
            if notify(next) {
                self.holder = next;
                return ReleaseEffect::Granted(next);
            }
        }
        ReleaseEffect::Freed
    }

    /// Releases the lock that `token` holds and removes all waiters. `notify` is called for each of
    /// them.
    pub(crate) fn free(&mut self, token: Token, notify: impl FnMut(Token)) -> ReleaseEffect {
        if self.holder != token {
            return ReleaseEffect::NotOwner;
        }
        self.waiters.drain(..).for_each(notify);
        ReleaseEffect::Freed
    }

    /// Releases the lock regardless of its holder.
    pub(crate) fn force_release(&mut self, notify: impl FnMut(Token) -> bool) -> ReleaseEffect {
        self.release(self.holder, notify)
    }

    /// Removes `token` from the queue. If it is the holder, this is a release.
    pub(crate) fn leave(&mut self, token: Token, notify: impl FnMut(Token) -> bool) -> ReleaseEffect {
        self.waiters.retain(|waiter| *waiter != token);
        self.release(token, notify)
    }

    /// Grants the lock to the first live waiter and appends `next` to the queue. If there is none,
    /// the holder keeps the lock.
    pub(crate) fn hand_off(
        &mut self,
        token: Token,
        next: Token,
        notify: impl FnMut(Token) -> bool,
    ) -> ReleaseEffect {
        let effect = self.release(token, notify);
        if let ReleaseEffect::Granted(_) = effect {
            self.waiters.push_back(next);
        }
        effect
    }
}

#[cfg(test)]
mod tests;
