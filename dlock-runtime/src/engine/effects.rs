//! What an event leads to once nothing is locked any more: tasks to wake, answers to give, a backend to set off.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use tokio::sync::oneshot;

use crate::protocol::command::Reply;
use crate::protocol::deadline::BootTime;
use crate::token::Token;

/// Effects that wait for the locks to be free.
#[derive(Default)]
#[must_use = "tasks that are not woken sleep for ever"]
pub(crate) struct Effects {
    wake: Vec<Waker>,
    answers: Vec<(oneshot::Sender<Reply>, Reply)>,
    /// Requests were pushed.
    pub(super) flush: bool,
    /// Commands whose outcome is unknown and that nobody waits for any more.
    pub(super) abandoned: Vec<(Arc<str>, Token)>,
    /// Something has come due earlier than before.
    pub(super) earlier: Option<BootTime>,
}

impl Effects {
    pub(super) fn wakes(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        self.wake.extend(wakers);
    }

    pub(super) fn answer(&mut self, to: Option<oneshot::Sender<Reply>>, reply: Reply) {
        self.answers.extend(to.map(|to| (to, reply)));
    }

    pub(super) fn due(&mut self, due: BootTime) {
        self.earlier = Some(self.earlier.map_or(due, |earlier| earlier.min(due)));
    }

    /// Gives the answers and wakes the tasks. Wakers are foreign code: one that panics keeps nobody else asleep.
    pub(crate) fn wake(self) {
        for (answer, reply) in self.answers {
            let _ = catch_unwind(AssertUnwindSafe(|| answer.send(reply)));
        }
        for waker in self.wake {
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}
