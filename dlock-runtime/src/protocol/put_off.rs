//! What is due for a hold and can wait: questions to the server, while many others have theirs on their way. And what is not due yet
//! and need not wait for that.
//!
//! Not here: when it has to wait or comes early (`engine`), what is asked (`hold`, `hint`).

use crate::protocol::deadline::BootTime;
use crate::protocol::hint::Check;
use crate::protocol::hold::Hold;
use crate::protocol::lane::{Cx, Lane, Stage};

impl<S: Clone + PartialEq> Lane<S> {
    /// Has what is due at `now` be due at `until` instead, where it is only renewals and checks, which can wait so long. Returns whether
    /// they can; else all is as before.
    pub(crate) fn put_off(&mut self, now: BootTime, until: BootTime) -> bool {
        let other = self.queue.due().min(self.kept_due());
        match &mut self.stage {
            Stage::Held(hold) if now < other => hold.put_off(now, until),
            _ => false,
        }
    }

    /// Has what is held renewed now, where it would be by `until`: an early renewal costs what a late one does.
    pub(crate) fn hasten(&mut self, until: BootTime, cx: &mut Cx<'_, S>) {
        if let Stage::Held(hold) = &mut self.stage {
            hold.hasten(until, cx);
        }
    }
}

impl<S: Clone + PartialEq> Hold<S> {
    /// What is over is not renewed any more, and a grant is confirmed in its own time: most are over before.
    fn hasten(&mut self, until: BootTime, cx: &mut Cx<'_, S>) {
        let is_over = !self.deadline().holds_at(cx.now) || cx.now >= self.bounds_due();
        if self.next_renewal <= until && !is_over && !self.is_to_be_confirmed() {
            self.confirm(cx);
        }
    }

    /// A renewal does not wait once half the lease has gone: the rest is for tries that are not answered. Nor does what confirms a grant. A
    /// check does.
    fn put_off(&mut self, now: BootTime, until: BootTime) -> bool {
        if !self.deadline().holds_at(now) || now >= self.bounds_due() {
            return false;
        }
        if self.next_renewal <= now {
            if self.is_to_be_confirmed() || until.plus(self.lease() / 2) > self.deadline().at() {
                return false;
            }
            self.next_renewal = until;
        }
        if self.check != Check::Rests && self.check_at <= now {
            self.check_at = until;
        }
        true
    }
}

#[cfg(test)]
mod tests;
