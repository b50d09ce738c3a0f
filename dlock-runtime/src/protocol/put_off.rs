//! What is due for a hold and can wait: questions to the server, while many others have theirs on their way.
//!
//! Not here: when it has to wait (`engine`), what is asked (`hold`, `hint`).

use crate::protocol::deadline::BootTime;
use crate::protocol::hint::Check;
use crate::protocol::hold::Hold;
use crate::protocol::lane::{Lane, Stage};

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
}

impl<S: Clone + PartialEq> Hold<S> {
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
