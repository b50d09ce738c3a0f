//! What an event leads to once nothing is locked any more: tasks to wake, answers to give, a backend to set off.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use crate::engine::acquisition::Wakers;
use crate::engine::release_completion::ReleaseCompletion;
use crate::key::Name;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootInstant;
use crate::token::Token;

/// Effects that wait for the locks to be free.
#[derive(Default)]
#[must_use = "tasks that are not woken sleep for ever"]
pub(crate) struct Effects {
    wake: SmallList<Waker>,
    answers: SmallList<(ReleaseCompletion, Reply, BootInstant)>,
    /// The waker of a call that lets go as it is polled: it is only dropped, with nothing locked, as a waker may be the last that knows of
    /// a task.
    spared: Option<Waker>,
    /// Requests were pushed.
    pub(super) flush: bool,
    /// How many have been let in, less those who have let go.
    pub(super) holders: i64,
    /// There was nobody left who holds.
    pub(super) drained: bool,
    /// Commands whose outcome is unknown and that nobody waits for any more.
    pub(super) abandoned: Vec<(Name, Token)>,
    /// Something has come due earlier than before.
    pub(super) earlier: Option<BootInstant>,
}

impl Effects {
    pub(super) fn wakes(&mut self, wakers: Wakers) {
        let Wakers { own, lookers } = wakers;
        if let Some(own) = own {
            self.wake.push(own);
        }
        for (_, waker) in lookers {
            self.wake.push(waker);
        }
    }

    /// Takes a waker that nobody need wake.
    pub(super) fn discard_waker(&mut self, waker: Option<Waker>) {
        self.spared = waker;
    }

    pub(crate) fn answer(&mut self, to: Option<ReleaseCompletion>, reply: Reply, now: BootInstant) {
        if let Some(to) = to {
            self.answers.push((to, reply, now));
        }
    }

    pub(super) fn due(&mut self, due: BootInstant) {
        self.earlier = Some(self.earlier.map_or(due, |earlier| earlier.min(due)));
    }

    /// Gives the answers and wakes the tasks. Wakers and subscribers are foreign code: one that panics keeps nobody else asleep.
    pub(crate) fn wake(mut self) {
        self.wake_all();
    }

    /// Does the same where moving them would cost more than it does.
    pub(super) fn wake_all(&mut self) {
        self.answers.each(|(answer, reply, now)| answer.give(reply, now));
        self.wake.each(Waker::wake);
    }
}

/// A list that takes no memory while it has two at most, as after most events: who lets go, and who is next.
struct SmallList<T> {
    first: Option<T>,
    second: Option<T>,
    more: Vec<T>,
}

impl<T> Default for SmallList<T> {
    fn default() -> Self {
        Self { first: None, second: None, more: Vec::new() }
    }
}

impl<T> SmallList<T> {
    fn push(&mut self, one: T) {
        if self.first.is_none() {
            self.first = Some(one);
        } else if self.second.is_none() {
            self.second = Some(one);
        } else {
            self.more.push(one);
        }
    }

    /// Takes out all and does something with each, in their order, whichever of them panics.
    fn each(&mut self, mut done: impl FnMut(T)) {
        let mut done = |one| drop(catch_unwind(AssertUnwindSafe(|| done(one))));
        let Some(first) = self.first.take() else { return };
        done(first);
        let Some(second) = self.second.take() else { return };
        done(second);
        std::mem::take(&mut self.more).into_iter().for_each(done);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    /// Counts how often it is woken, and panics then where it is told to.
    #[derive(Default)]
    struct Bell {
        rung: AtomicUsize,
        panics: bool,
    }

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.rung.fetch_add(1, Ordering::SeqCst);
            assert!(!self.panics, "this panic is part of the test");
        }
    }

    #[test]
    fn a_waker_that_panics_keeps_nobody_else_asleep() {
        for at in 0..4 {
            let bells: Vec<_> =
                (0..4).map(|of| Arc::new(Bell { panics: of == at, ..Bell::default() })).collect();
            let mut effects = Effects::default();

            bells.iter().cloned().map(Waker::from).for_each(|waker| effects.wake.push(waker));
            effects.wake();

            assert!(bells.iter().all(|bell| bell.rung.load(Ordering::SeqCst) == 1), "{at}");
        }
    }
}
