//! What is under way on one connection: it is dealt with in the order in which it was sent, by one thread at a time.
//!
//! ```text
//!  sent --> [ under way | answered | late | under way ]     the first of them is dealt with as soon as it is over, then the next one
//! ```
//!
//! ReplySink come in by whoever polls the connection, and by who sends where his comes before he has done so: two threads may hear of two
//! of them side by side. What is sent on to another server on the first of them must not come behind what is sent on on the second.
//!
//! Not here: what is late, and when nothing is heard any more (`exchange`), what answers lead to (`batch`).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};

use redis::{RedisResult, Value};

use crate::backend::redis::node::health::NodeConnection;
use crate::backend::redis::node::pipeline::{Answered, PipelineBatch};
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;
use crate::telemetry;

/// One batch under way, or what is to be done when all before it are dealt with.
pub(super) struct InFlightBatch {
    link: Weak<NodeConnection>,
    /// Whether that is the one that tells of changes: it has no order with the one for commands.
    is_tracked: bool,
    pub(super) sent: BootInstant,
    /// How often it was woken since somebody began to look at it; 0 while nobody does.
    wakes: AtomicUsize,
    stage: Mutex<BatchState>,
    /// Whether it can be dealt with.
    is_over: AtomicBool,
}

enum BatchState {
    InFlight(PipelineBatch, Answered),
    Answered(PipelineBatch, RedisResult<Vec<Value>>),
    PendingRepairs(PipelineBatch),
    /// Whatever this is, it is dropped: a batch is answered then.
    ConnectionClosed(Box<dyn Send>),
    DealtWith,
}

impl InFlightBatch {
    pub(super) fn new(
        link: Weak<NodeConnection>,
        is_tracked: bool,
        batch: PipelineBatch,
        answered: Answered,
    ) -> Self {
        let sent = batch.sent();
        Self::at(link, is_tracked, sent, BatchState::InFlight(batch, answered), false)
    }

    /// One of the connection for commands that is over already: `what` is dropped when it is dealt with.
    pub(super) fn over(link: Weak<NodeConnection>, sent: BootInstant, what: Box<dyn Send>) -> Self {
        Self::at(link, false, sent, BatchState::ConnectionClosed(what), true)
    }

    /// One of which nothing ever comes.
    #[cfg(test)]
    pub(super) fn empty(sent: BootInstant) -> Self {
        Self::at(Weak::new(), false, sent, BatchState::DealtWith, false)
    }

    fn at(
        link: Weak<NodeConnection>,
        is_tracked: bool,
        sent: BootInstant,
        stage: BatchState,
        is_over: bool,
    ) -> Self {
        let (wakes, stage, is_over) = (AtomicUsize::new(0), Mutex::new(stage), AtomicBool::new(is_over));
        Self { link, is_tracked, sent, wakes, stage, is_over }
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Looks whether the answers are there, unless somebody is about it, who looks again then.
    pub(super) fn look(self: Arc<Self>) {
        let mut seen = 1;
        if self.wakes.fetch_add(seen, Ordering::AcqRel) > 0 {
            return;
        }
        let waker = Waker::from(Arc::clone(&self));
        while seen > 0 {
            // Who polls the connection is foreign: it must not end by what happens here.
            let looked = catch_unwind(AssertUnwindSafe(|| self.look_once(&mut Context::from_waker(&waker))));
            if looked.is_err() {
                self.abandon();
                telemetry::actor_failed(&"an answer could not be read");
            }
            seen = self.wakes.fetch_sub(seen, Ordering::AcqRel) - seen;
        }
        if let Some(link) = self.link.upgrade().filter(|_| self.is_over()) {
            link.exchanges.deal(self.is_tracked);
        }
    }

    fn look_once(&self, cx: &mut Context<'_>) {
        self.end(|stage| {
            let BatchState::InFlight(_, answered) = stage else { return None };
            let Poll::Ready(answers) = answered.as_mut().poll(cx) else { return None };
            Some(|batch| BatchState::Answered(batch, answers))
        });
    }

    /// The answers have not come in time.
    pub(super) fn is_late(&self) {
        self.end(|_| Some(BatchState::PendingRepairs));
    }

    /// Nobody will hear of any.
    pub(super) fn abandon(&self) {
        self.end(|_| Some(|batch| BatchState::ConnectionClosed(Box::new(batch))));
    }

    /// Has it answered here and now, where it stands in no line.
    pub(super) fn abandon_unsent(&self) {
        self.abandon();
        self.deal();
    }

    /// Ends what is under way by what is returned, where that is anything.
    fn end<F: FnOnce(PipelineBatch) -> BatchState>(&self, how: impl FnOnce(&mut BatchState) -> Option<F>) {
        let mut stage = lock(&self.stage);
        let Some(next) = how(&mut stage) else { return };
        let answered = match std::mem::replace(&mut *stage, BatchState::DealtWith) {
            BatchState::InFlight(batch, answered) => {
                *stage = next(batch);
                Some(answered)
            }
            other => {
                *stage = other;
                None
            }
        };
        self.is_over.store(true, Ordering::Release);
        drop(stage);
        drop(answered); // with nothing locked
    }

    /// Deals with it.
    pub(super) fn deal(&self) {
        let stage = std::mem::replace(&mut *lock(&self.stage), BatchState::DealtWith);
        let dealt = catch_unwind(AssertUnwindSafe(|| match stage {
            BatchState::Answered(batch, answers) => {
                if let Some(again) = batch.end(answers) {
                    again.send();
                }
            }
            BatchState::PendingRepairs(batch) => batch.give_up_waiting(),
            BatchState::ConnectionClosed(what) => drop(what),
            BatchState::InFlight(..) | BatchState::DealtWith => {}
        }));
        if dealt.is_err() {
            telemetry::actor_failed(&"an answer could not be dealt with");
        }
    }
}

impl Wake for InFlightBatch {
    fn wake(self: Arc<Self>) {
        self.look();
    }
}

/// Those of one connection, in the order in which they were sent.
#[derive(Default)]
pub(super) struct CompletionQueue {
    queue: VecDeque<Arc<InFlightBatch>>,
    is_dealt_with: bool,
}

impl CompletionQueue {
    pub(super) fn push(&mut self, exchange: Arc<InFlightBatch>) {
        self.queue.push_back(exchange);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<InFlightBatch>> {
        self.queue.iter()
    }

    /// Returns what is to be dealt with next, to whom nobody else is about it. Where there is nothing he is about it no more.
    pub(super) fn next(&mut self, is_about_it: bool) -> Option<Arc<InFlightBatch>> {
        if self.is_dealt_with && !is_about_it {
            return None;
        }
        self.is_dealt_with = self.queue.front().is_some_and(|first| first.is_over());
        if self.is_dealt_with { self.queue.pop_front() } else { None }
    }

    /// Leaves what is next to others.
    pub(super) fn leave(&mut self) {
        self.is_dealt_with = false;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redis::Value;
    use tokio::sync::oneshot;

    use super::*;
    use crate::backend::redis::node::in_flight::IN_ONE_GO;
    use crate::backend::redis::node::pipeline::{RouteHistory, Way};
    use crate::backend::redis::node::test_node::{TestNode, acquire};

    const LONG: Duration = Duration::from_secs(20);

    /// What a test has answered when it likes.
    fn under_way(rig: &TestNode, key: &str) -> (Arc<InFlightBatch>, oneshot::Sender<()>) {
        let link = rig.link();
        let batch =
            PipelineBatch::new(&rig.node, &link, Way::Commands, [acquire(key)], RouteHistory::default());
        let (answer, answered) = oneshot::channel();
        let answered = Box::pin(async move {
            answered.await.map_err(|_| std::io::Error::from(std::io::ErrorKind::BrokenPipe))?;
            Ok(vec![Value::Okay])
        });
        let exchange = Arc::new(InFlightBatch::new(Arc::downgrade(&link), false, batch, answered));
        link.exchanges.push(&exchange);
        Arc::clone(&exchange).look();
        (exchange, answer)
    }

    fn keys(rig: &TestNode) -> Vec<String> {
        rig.told().into_iter().map(|(key, _)| key).collect()
    }

    /// Says when it is dropped.
    struct ConnectionClosed(Arc<AtomicBool>);

    impl Drop for ConnectionClosed {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn what_is_heard_out_of_order_is_dealt_with_in_the_order_in_which_it_was_sent() {
        let rig = TestNode::new(LONG).await;
        let [a, b, c] = ["a", "b", "c"].map(|key| under_way(&rig, key).1);

        b.send(()).expect("it is waited for");
        drop(c);
        assert!(rig.told().is_empty());
        a.send(()).expect("it is waited for");

        assert_eq!(
            rig.told(),
            [("a", true), ("b", true), ("c", false)].map(|(key, ours)| (key.to_owned(), ours))
        );
    }

    #[tokio::test]
    async fn what_is_heard_while_another_is_dealt_with_follows_it_on_the_thread_that_deals() {
        let rig = TestNode::new(LONG).await;
        let [a, b] = ["a", "b"].map(|key| under_way(&rig, key).1);
        let (other, threads) = (Mutex::new(Some(b)), Arc::new(Mutex::new(Vec::new())));
        let seen = Arc::clone(&threads);
        rig.on_reply(move |_, _| {
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

        assert_eq!(keys(&rig), ["a", "b"]);
        assert_eq!(*lock(&threads), [std::thread::current().id(); 2]);
    }

    #[tokio::test]
    async fn what_is_late_holds_up_nothing() {
        let rig = TestNode::new(LONG).await;
        let ((late, _a), (_, b)) = (under_way(&rig, "a"), under_way(&rig, "b"));
        b.send(()).expect("it is waited for");

        late.is_late();
        rig.link().exchanges.deal(false);

        assert_eq!(keys(&rig), ["a", "b"]);
    }

    #[tokio::test]
    async fn what_is_to_come_behind_all_comes_when_they_are_dealt_with_also_where_the_link_is_given_up() {
        for is_given_up in [false, true] {
            let mut rig = TestNode::new(LONG).await;
            let is_dropped = Arc::new(AtomicBool::new(false));
            let answers = ["a", "b"].map(|key| under_way(&rig, key).1);
            rig.node.drop_behind(ConnectionClosed(Arc::clone(&is_dropped)));
            let (last, seen) = (Arc::clone(&is_dropped), Arc::new(Mutex::new(Vec::new())));
            let before = Arc::clone(&seen);
            rig.on_reply(move |_, _| lock(&before).push(last.load(Ordering::SeqCst)));
            assert!(!is_dropped.load(Ordering::SeqCst));

            if is_given_up {
                rig.stop().await;
            } else {
                for answer in answers.into_iter().rev() {
                    answer.send(()).expect("it is waited for");
                }
            }

            assert!(is_dropped.load(Ordering::SeqCst), "given up: {is_given_up}");
            assert_eq!(*lock(&seen), [false, false], "given up: {is_given_up}");
        }
    }

    #[tokio::test]
    async fn who_deals_with_much_leaves_the_rest_to_who_watches() {
        let rig = TestNode::new(LONG).await;
        let keys: Vec<_> = (0..40).map(|number| number.to_string()).collect();
        let mut answers: Vec<_> = keys.iter().map(|key| under_way(&rig, key).1).collect();
        let first = answers.remove(0);
        for answer in answers {
            answer.send(()).expect("it is waited for");
        }

        first.send(()).expect("it is waited for");
        let here = rig.told().len();
        rig.until_told(40).await;

        assert_eq!(here, IN_ONE_GO);
        assert_eq!(self::keys(&rig), keys);
    }
}
