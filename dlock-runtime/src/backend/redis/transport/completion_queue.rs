//! The batches in flight on one connection. They are completed in the order in which they were
//! sent, by one thread at a time.
//!
//! ```text
//!  sent --> [ in flight | replied | late | in flight ]     the first is completed as soon as it is done, then the next
//! ```
//!
//! The order matters for redirects: two threads may see the replies of two batches at the same
//! time, and a request of the first batch must be redirected before a request of the second.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};

use redis::{RedisResult, Value};

use crate::protocol::deadline::BootInstant;
use crate::sync::lock;
use crate::telemetry;

/// Requests that are sent together in one pipeline. To drop them completes them without replies.
pub(crate) trait Batch: Send + 'static {
    /// Returns when the batch was sent: before the first byte.
    fn sent(&self) -> BootInstant;

    /// Completes the requests with their replies.
    fn complete(self, answers: RedisResult<Vec<Value>>);

    /// Completes the requests, whose replies are late.
    fn time_out(self);
}

/// A future that sends a batch and returns its replies.
pub(crate) type PendingReplies = Pin<Box<dyn Future<Output = RedisResult<Vec<Value>>> + Send>>;

/// Completes the batches of a connection in their order.
pub(super) trait Completer: Send + Sync {
    /// Completes batches of a queue while the first one is done.
    fn complete(&self, is_tracked: bool);
}

/// One batch in flight.
pub(super) struct InFlightBatch<B> {
    completer: Weak<dyn Completer>,
    /// Whether it is on the connection for key tracking, which has a queue of its own.
    is_tracked: bool,
    pub(super) sent: BootInstant,
    /// How many wake-ups have come since a thread began to poll; 0 if no thread polls.
    wakes: AtomicUsize,
    state: Mutex<BatchState<B>>,
    /// Whether it can be completed.
    is_done: AtomicBool,
}

enum BatchState<B> {
    InFlight(B, PendingReplies),
    Replied(B, RedisResult<Vec<Value>>),
    Late(B),
    /// Its connection is closed. To drop the batch completes its requests.
    Dropped(B),
    Completed,
}

impl<B: Batch> InFlightBatch<B> {
    pub(super) fn new(
        completer: Weak<dyn Completer>,
        is_tracked: bool,
        batch: B,
        answered: PendingReplies,
    ) -> Self {
        let sent = batch.sent();
        Self::at(completer, is_tracked, sent, BatchState::InFlight(batch, answered))
    }

    /// Creates a batch that never gets a reply.
    #[cfg(test)]
    pub(super) fn empty(sent: BootInstant) -> Self {
        Self::at(Weak::<super::in_flight::InFlight<B>>::new(), false, sent, BatchState::Completed)
    }

    fn at(completer: Weak<dyn Completer>, is_tracked: bool, sent: BootInstant, state: BatchState<B>) -> Self {
        let (wakes, state, is_done) = (AtomicUsize::new(0), Mutex::new(state), AtomicBool::new(false));
        Self { completer, is_tracked, sent, wakes, state, is_done }
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }

    /// Polls for the replies. If another thread polls, that thread polls again.
    pub(super) fn poll(self: Arc<Self>) {
        let mut seen = 1;
        if self.wakes.fetch_add(seen, Ordering::AcqRel) > 0 {
            return;
        }
        let waker = Waker::from(Arc::clone(&self));
        while seen > 0 {
            // A panic must not unwind into the task that polls the connection.
            let looked = catch_unwind(AssertUnwindSafe(|| self.poll_once(&mut Context::from_waker(&waker))));
            if looked.is_err() {
                self.abandon();
                telemetry::actor_failed(&"reading a reply panicked");
            }
            seen = self.wakes.fetch_sub(seen, Ordering::AcqRel) - seen;
        }
        if let Some(completer) = self.completer.upgrade().filter(|_| self.is_done()) {
            completer.complete(self.is_tracked);
        }
    }

    fn poll_once(&self, cx: &mut Context<'_>) {
        self.end(|state| {
            let BatchState::InFlight(_, answered) = state else { return None };
            let Poll::Ready(answers) = answered.as_mut().poll(cx) else { return None };
            Some(|batch| BatchState::Replied(batch, answers))
        });
    }

    /// Ends the wait for replies, because they are late.
    pub(super) fn mark_late(&self) {
        self.end(|_| Some(BatchState::Late));
    }

    /// Ends the wait for replies, because the connection is closed.
    pub(super) fn abandon(&self) {
        self.end(|_| Some(BatchState::Dropped));
    }

    /// Completes a batch at once that is in no queue.
    pub(super) fn abandon_unsent(&self) {
        self.abandon();
        self.complete();
    }

    /// Ends the wait for replies with the state that `how` returns, unless that is `None`.
    fn end<F: FnOnce(B) -> BatchState<B>>(&self, how: impl FnOnce(&mut BatchState<B>) -> Option<F>) {
        let mut state = lock(&self.state);
        let Some(next) = how(&mut state) else { return };
        let answered = match std::mem::replace(&mut *state, BatchState::Completed) {
            BatchState::InFlight(batch, answered) => {
                *state = next(batch);
                Some(answered)
            }
            other => {
                *state = other;
                None
            }
        };
        self.is_done.store(true, Ordering::Release);
        drop(state);
        drop(answered); // holds no lock
    }

    /// Completes the batch.
    pub(super) fn complete(&self) {
        let state = std::mem::replace(&mut *lock(&self.state), BatchState::Completed);
        let dealt = catch_unwind(AssertUnwindSafe(|| match state {
            BatchState::Replied(batch, answers) => batch.complete(answers),
            BatchState::Late(batch) => batch.time_out(),
            BatchState::Dropped(batch) => drop(batch),
            BatchState::InFlight(..) | BatchState::Completed => {}
        }));
        if dealt.is_err() {
            telemetry::actor_failed(&"the handling of a reply panicked");
        }
    }
}

impl<B: Batch> Wake for InFlightBatch<B> {
    fn wake(self: Arc<Self>) {
        self.poll();
    }
}

/// The batches of one connection, in the order in which they were sent.
pub(super) struct CompletionQueue<B> {
    queue: VecDeque<Arc<InFlightBatch<B>>>,
    is_completing: bool,
}

impl<B> Default for CompletionQueue<B> {
    fn default() -> Self {
        Self { queue: VecDeque::new(), is_completing: false }
    }
}

impl<B: Batch> CompletionQueue<B> {
    pub(super) fn push(&mut self, entry: Arc<InFlightBatch<B>>) {
        self.queue.push_back(entry);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<InFlightBatch<B>>> {
        self.queue.iter()
    }

    /// Returns the next batch to complete. The caller must complete it and call this again with
    /// `continues`, until it returns `None`. Meanwhile it returns `None` to all other callers.
    pub(super) fn next(&mut self, continues: bool) -> Option<Arc<InFlightBatch<B>>> {
        if self.is_completing && !continues {
            return None;
        }
        self.is_completing = self.queue.front().is_some_and(|first| first.is_done());
        if self.is_completing { self.queue.pop_front() } else { None }
    }

    /// Lets any thread complete the next batch.
    pub(super) fn pause(&mut self) {
        self.is_completing = false;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;
    use crate::backend::redis::runtimes::Runtimes;
    use crate::backend::redis::transport::in_flight::{InFlight, MAX_COMPLETIONS};
    use crate::backend::redis::transport::tests::fake_batch::{Completions, FakeBatch, replies};
    use crate::clock::boot_time;

    const LONG: Duration = Duration::from_secs(20);

    /// The batches in flight on one connection, and those that were completed.
    struct TestQueue {
        in_flight: Arc<InFlight<FakeBatch>>,
        completions: Arc<Completions>,
    }

    impl TestQueue {
        fn new() -> Self {
            Self { in_flight: InFlight::new(), completions: Arc::default() }
        }

        /// Starts a batch whose reply comes when the test sends it.
        fn start(&self, name: &str) -> (Arc<InFlightBatch<FakeBatch>>, oneshot::Sender<()>) {
            let batch = FakeBatch::new(name, boot_time(), &self.completions);
            let (reply, replies) = replies();
            let completer = Arc::clone(&self.in_flight) as Arc<dyn Completer>;
            let entry = Arc::new(InFlightBatch::new(Arc::downgrade(&completer), false, batch, replies));
            self.in_flight.push(&entry);
            Arc::clone(&entry).poll();
            (entry, reply)
        }
    }

    #[test]
    fn batches_complete_in_the_order_in_which_they_were_sent() {
        let test = TestQueue::new();
        let [a, b, c] = ["a", "b", "c"].map(|name| test.start(name).1);

        b.send(()).expect("it is waited for");
        drop(c);
        assert!(test.completions.all().is_empty());
        a.send(()).expect("it is waited for");

        assert_eq!(
            test.completions.all(),
            [("a", true), ("b", true), ("c", false)].map(|(name, replied)| (name.to_owned(), replied))
        );
    }

    #[test]
    fn one_thread_completes_batches_that_reply_concurrently() {
        let test = TestQueue::new();
        let [a, b] = ["a", "b"].map(|name| test.start(name).1);
        let (other, threads) = (Mutex::new(Some(b)), Arc::new(Mutex::new(Vec::new())));
        let seen = Arc::clone(&threads);
        test.completions.on_completion(move |_| {
            lock(&seen).push(std::thread::current().id());
            let b = lock(&other).take();
            if let Some(b) = b {
                std::thread::spawn(|| b.send(()))
                    .join()
                    .expect("it does not wait")
                    .expect("it is waited for");
            }
        });

        a.send(()).expect("it is waited for");

        assert_eq!(test.completions.names(), ["a", "b"]);
        assert_eq!(*lock(&threads), [std::thread::current().id(); 2]);
    }

    #[test]
    fn a_late_batch_does_not_block_the_next() {
        let test = TestQueue::new();
        let ((late, _a), (_, b)) = (test.start("a"), test.start("b"));
        b.send(()).expect("it is waited for");

        late.mark_late();
        test.in_flight.complete(false);

        assert_eq!(test.completions.names(), ["a", "b"]);
    }

    #[tokio::test]
    async fn a_thread_completes_a_bounded_number_of_batches() {
        let (test, runtimes) = (TestQueue::new(), Arc::<Runtimes>::default());
        let names: Vec<_> = (0..40).map(|number| number.to_string()).collect();
        let mut answers: Vec<_> = names.iter().map(|name| test.start(name).1).collect();
        let first = answers.remove(0);
        for answer in answers {
            answer.send(()).expect("it is waited for");
        }

        first.send(()).expect("it is waited for");
        let here = test.completions.all().len();
        tokio::select! {
            () = test.in_flight.run_timeouts(LONG, &runtimes, || false) => {}
            () = test.completions.until(40) => {}
        }

        assert_eq!(here, MAX_COMPLETIONS);
        assert_eq!(test.completions.names(), names);
    }

    #[test]
    fn a_wake_up_during_a_poll_polls_again() {
        let (test, mut polls) = (TestQueue::new(), 0);
        let replies = std::future::poll_fn(move |cx: &mut Context<'_>| {
            polls += 1;
            cx.waker().wake_by_ref();
            if polls < 3 { Poll::Pending } else { Poll::Ready(Ok(Vec::new())) }
        });
        let batch = FakeBatch::new("a", boot_time(), &test.completions);

        test.in_flight.start(batch, Box::pin(replies), None, 1);

        assert_eq!(test.completions.all(), [("a".to_owned(), true)]);
    }

    #[test]
    fn a_batch_whose_replies_panic_is_completed_without_them() {
        let test = TestQueue::new();
        let (_, next) = test.start("b");
        let batch = FakeBatch::new("a", boot_time(), &test.completions);
        let replies = std::future::poll_fn(|_| panic!("this panic is part of the test"));

        test.in_flight.start(batch, Box::pin(replies), None, 1);
        next.send(()).expect("it is waited for");

        assert_eq!(
            test.completions.all(),
            [("a", false), ("b", true)].map(|(name, has)| (name.to_owned(), has))
        );
    }
}
