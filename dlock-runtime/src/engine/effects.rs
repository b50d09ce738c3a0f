//! The effects of an event: tasks to wake, replies to deliver, a backend to flush.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use smallvec::SmallVec;

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
    /// Inline for the task that releases and the next one: a hand-off allocates nothing while the
    /// key is locked.
    wake: SmallVec<[Waker; 2]>,
    answers: SmallVec<[(ReleaseCompletion, Reply, BootInstant); 1]>,
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
        self.wake.extend(own.into_iter().chain(observers.into_values()));
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
        self.answers
            .drain(..)
            .for_each(|(completion, reply, now)| guarded(|| completion.complete(reply, now)));
        self.wake.drain(..).for_each(|waker| guarded(|| waker.wake()));
    }
}

/// Calls foreign code, which may panic.
fn guarded(call: impl FnOnce()) {
    drop(catch_unwind(AssertUnwindSafe(call)));
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
