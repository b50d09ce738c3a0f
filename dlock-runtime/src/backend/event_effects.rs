//! The effects of events that run once nothing is locked: tasks to wake, replies to deliver.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use smallvec::SmallVec;
use tokio::sync::Notify;

use crate::backend::reply_recipient::ReplyRecipient;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootInstant;
use crate::telemetry;

/// Effects to run once no lock is held.
#[derive(Default)]
#[must_use = "tasks that are not woken sleep forever"]
pub(crate) struct EventEffects {
    /// Inline for the task that releases and the next one: a hand-off allocates nothing while the
    /// key is locked.
    wake: SmallVec<[Waker; 2]>,
    /// The notifications of tasks that wait for a change of a key.
    notify: Vec<Arc<Notify>>,
    answers: SmallVec<[(ReplyRecipient, Reply, BootInstant); 1]>,
    /// The waker of a call that releases while it is polled. It is only dropped, with nothing
    /// locked: a waker may be the last reference to a task.
    discarded: Option<Waker>,
    has_requests: bool,
    /// Why a renewal failed, and the number of events that were suppressed before.
    failed_renewal: Option<(Arc<str>, u64)>,
}

impl EventEffects {
    /// Adds a task to wake.
    pub(crate) fn wake_later(&mut self, waker: Waker) {
        self.wake.push(waker);
    }

    /// Adds a task that waits for a notification.
    pub(crate) fn notify_later(&mut self, notify: Arc<Notify>) {
        self.notify.push(notify);
    }

    /// Takes a waker that need not be woken.
    pub(crate) fn discard_waker(&mut self, waker: Option<Waker>) {
        self.discarded = waker;
    }

    /// Adds a reply that arrived at `now`.
    pub(crate) fn answer(&mut self, to: ReplyRecipient, reply: Reply, now: BootInstant) {
        self.answers.push((to, reply, now));
    }

    /// Adds the event of a renewal that failed.
    pub(crate) fn log_failed_renewal(&mut self, reason: Arc<str>, suppressed: u64) {
        self.failed_renewal = Some((reason, suppressed));
    }

    /// Records that a request was submitted.
    pub(crate) fn note_request(&mut self) {
        self.has_requests = true;
    }

    /// Returns `true` if requests were submitted since the last call. The backend must be flushed.
    pub(crate) fn take_has_requests(&mut self) -> bool {
        std::mem::take(&mut self.has_requests)
    }

    /// Delivers the replies and wakes the tasks.
    ///
    /// Wakers and subscribers are foreign code: if one panics, the others are still woken.
    pub(crate) fn run(mut self) {
        self.run_all();
    }

    /// Like [`run`](Self::run), without the cost of a move.
    pub(crate) fn run_all(&mut self) {
        self.answers.drain(..).for_each(|(recipient, reply, now)| guarded(|| recipient.complete(reply, now)));
        self.wake.drain(..).for_each(|waker| guarded(|| waker.wake()));
        self.notify.drain(..).for_each(|notify| guarded(|| notify.notify_one()));
        if let Some((reason, suppressed)) = self.failed_renewal.take() {
            telemetry::renewal_failed(&reason, suppressed);
        }
    }
}

/// Calls foreign code, which may panic.
fn guarded(call: impl FnOnce()) {
    drop(catch_unwind(AssertUnwindSafe(call)));
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake};

    use tokio::sync::oneshot;

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
            let mut effects = EventEffects::default();

            for counter in &counters {
                effects.wake_later(Waker::from(Arc::clone(counter)));
            }
            effects.run();

            assert!(counters.iter().all(|counter| counter.woken.load(Ordering::SeqCst) == 1), "{at}");
        }
    }

    #[test]
    fn a_notification_whose_waker_panics_is_an_effect_like_others() {
        let counter = Arc::new(CountingWaker { panics: true, ..CountingWaker::default() });
        let (notify, mut effects) = (Arc::new(Notify::new()), EventEffects::default());
        let mut notified = pin!(notify.notified());
        let waker = Waker::from(Arc::clone(&counter));
        assert!(notified.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());

        effects.notify_later(Arc::clone(&notify));
        assert_eq!(counter.woken.load(Ordering::SeqCst), 0, "a key may be locked");
        effects.run();

        assert_eq!(counter.woken.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn replies_are_delivered_when_the_effects_run() {
        let (caller, mut receiver) = oneshot::channel();
        let mut effects = EventEffects::default();

        effects.answer(ReplyRecipient::Caller(caller), Reply::Contended, BootInstant::START);
        assert!(receiver.try_recv().is_err(), "nothing is delivered while a key may be locked");
        effects.run_all();

        assert!(matches!(receiver.try_recv(), Ok(Reply::Contended)));
    }

    #[test]
    fn a_discarded_waker_is_kept_until_nothing_is_locked() {
        let counter = Arc::new(CountingWaker::default());
        let mut effects = EventEffects::default();

        effects.discard_waker(Some(Waker::from(Arc::clone(&counter))));
        assert_eq!(Arc::strong_count(&counter), 2);
        effects.run();

        assert_eq!(Arc::strong_count(&counter), 1);
        assert_eq!(counter.woken.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn submitted_requests_are_reported_once() {
        let mut effects = EventEffects::default();
        assert!(!effects.take_has_requests());

        effects.note_request();

        assert!(effects.take_has_requests());
        assert!(!effects.take_has_requests());
    }
}
