//! [`Holds`]: the holds of one key.

use crate::protocol::hold::Hold;
use crate::token::Token;

/// The holds that the server has granted to this process.
///
/// An exclusive lock has at most one. That is an invariant of the lock, which [`insert`] checks in
/// debug builds, and not of this type: a hold is found by its token or its acquisition, and an
/// event of the whole key visits all holds. Callers that a kind with several holds must revise are
/// those that contend after a loss (`mark_all_lost`, `check_holds`) and `deferral`. The one hold is
/// stored in place, since there is a `Holds` for every held lock.
///
/// [`insert`]: Self::insert
#[derive(Clone, Debug)]
pub(super) struct Holds<A>(Option<Hold<A>>);

impl<A: Clone + PartialEq> Holds<A> {
    pub(super) const fn new() -> Self {
        Self(None)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Hold<A>> {
        self.0.iter()
    }

    /// Returns the holds under which a body may run: those that are not being yielded.
    pub(super) fn active(&self) -> impl Iterator<Item = &Hold<A>> {
        self.0.iter().filter(|hold| !hold.is_yielded)
    }

    /// Like [`active`](Self::active), to change them.
    pub(super) fn active_mut(&mut self) -> impl Iterator<Item = &mut Hold<A>> {
        self.0.iter_mut().filter(|hold| !hold.is_yielded)
    }

    /// Returns the hold that is being yielded.
    pub(super) fn yielded(&self) -> Option<&Hold<A>> {
        self.0.iter().find(|hold| hold.is_yielded)
    }

    /// Returns the hold with this token.
    pub(super) fn with_token(&mut self, token: Token) -> Option<&mut Hold<A>> {
        self.0.iter_mut().find(|hold| hold.token == token)
    }

    /// Returns the hold of the acquisition.
    pub(super) fn of_acquisition(&mut self, acquisition: &A) -> Option<&mut Hold<A>> {
        self.active_mut().find(|hold| hold.acquisition == *acquisition)
    }

    /// Adds a hold that the server has granted.
    pub(super) fn insert(&mut self, hold: Hold<A>) {
        debug_assert!(self.is_empty(), "an exclusive lock has one holder");
        self.0 = Some(hold);
    }

    /// Removes the hold with this token.
    pub(super) fn remove(&mut self, token: Token) {
        self.0.take_if(|hold| hold.token == token);
    }
}

#[cfg(test)]
mod tests;
