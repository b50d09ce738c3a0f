//! The effects of an event: tasks to wake, replies to deliver, a backend to flush.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use crate::engine::acquisition::Wakers;
use crate::engine::release_completion::ReleaseCompletion;
use crate::key::Name;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootInstant;
use crate::token::Token;

/// Effects to run once no lock is held.
#[derive(Default)]
#[must_use = "tasks that are not woken sleep forever"]
pub(crate) struct Effects {
    wake: SmallList<Waker>,
    answers: SmallList<(ReleaseCompletion, Reply, BootInstant)>,
    /// The waker of a call that releases while it is polled. It is only dropped, with nothing
    /// locked: a waker may be the last reference to a task.
    discarded: Option<Waker>,
    /// Requests were pushed.
    pub(super) flush: bool,
    /// The number of grants minus the number of releases.
    pub(super) holders: i64,
    /// The last holder has released.
    pub(super) drained: bool,
    /// Commands whose outcome is unknown and whose callers have gone.
    pub(super) orphaned: Vec<(Name, Token)>,
    /// The next deadline of the engine has become earlier.
    pub(super) earlier: Option<BootInstant>,
}

impl Effects {
    pub(super) fn wakes(&mut self, wakers: Wakers) {
        let Wakers { own, observers } = wakers;
        if let Some(own) = own {
            self.wake.push(own);
        }
        observers.into_values().for_each(|waker| self.wake.push(waker));
    }

    /// Takes a waker that need not be woken.
    pub(super) fn discard_waker(&mut self, waker: Option<Waker>) {
        self.discarded = waker;
    }

    pub(crate) fn answer(&mut self, to: Option<ReleaseCompletion>, reply: Reply, now: BootInstant) {
        if let Some(to) = to {
            self.answers.push((to, reply, now));
        }
    }

    pub(super) fn due(&mut self, due: BootInstant) {
        self.earlier = Some(self.earlier.map_or(due, |earlier| earlier.min(due)));
    }

    /// Delivers the replies and wakes the tasks.
    ///
    /// Wakers and subscribers are foreign code: if one panics, the others are still woken.
    pub(crate) fn wake(mut self) {
        self.wake_all();
    }

    /// Like [`wake`](Self::wake), without the cost of a move.
    pub(super) fn wake_all(&mut self) {
        self.answers.drain_each(|(completion, reply, now)| completion.complete(reply, now));
        self.wake.drain_each(Waker::wake);
    }
}

/// A list that does not allocate for up to two elements, as after most events: the task that
/// releases, and the next one.
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

    /// Removes all elements and calls `done` with each, in order, even if a call panics.
    fn drain_each(&mut self, mut done: impl FnMut(T)) {
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

    /// Counts how often it is woken, and then panics if `panics` is set.
    #[derive(Default)]
    struct CountingWaker {
        woken: AtomicUsize,
        panics: bool,
    }

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.woken.fetch_add(1, Ordering::SeqCst);
            assert!(!self.panics, "this panic is part of the test");
        }
    }

    #[test]
    fn all_tasks_are_woken_if_one_waker_panics() {
        for at in 0..4 {
            let counters: Vec<_> = (0..4)
                .map(|of| Arc::new(CountingWaker { panics: of == at, ..CountingWaker::default() }))
                .collect();
            let mut effects = Effects::default();

            counters.iter().cloned().map(Waker::from).for_each(|waker| effects.wake.push(waker));
            effects.wake();

            assert!(counters.iter().all(|counter| counter.woken.load(Ordering::SeqCst) == 1), "{at}");
        }
    }
}
