//! The batches in flight of one [`NodeConnection`]. They are completed where their replies are
//! read.
//!
//! ```text
//!  caller --first poll: enqueued--> connection --replies: waker--> completed by the thread that polls the connection
//! ```
//!
//! No task lies in between: each would cost a switch of tasks, and on an idle machine one of
//! threads. So completions run inside a waker, on the connection's task or in the call of a sender,
//! and hold no lock but that of the connection. A sender to several servers may see replies of one
//! server before the next has its request.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::backend::redis::node::completion_queue::{CompletionQueue, InFlightBatch};
use crate::backend::redis::node::health::NodeConnection;
use crate::backend::redis::node::pipeline::{PipelineBatch, TimeoutSource};
use crate::clock::boot_time;
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;

/// The batches in flight of one [`NodeConnection`], and their timeouts.
#[derive(Default)]
pub(crate) struct InFlight {
    state: Mutex<InFlightState>,
    /// Notified when the timeout watch must be armed, or can be disarmed.
    more: Notify,
}

#[derive(Default)]
struct InFlightState {
    is_closed: bool,
    /// The queue of the connection for commands.
    commands: CompletionQueue,
    /// The queue of the connection for key tracking.
    tracked: CompletionQueue,
    /// The tasks that end with the connection.
    tasks: Vec<AbortHandle>,
    /// The number of tasks above which finished ones are removed.
    task_limit: usize,
    watch: TimeoutWatch,
    /// How many requests of callers were sent together last. If there were several, more are
    /// likely.
    last_callers: usize,
    /// When they were sent.
    sent: Option<BootInstant>,
    /// Whether the last batch came alone: no caller waits for it, and none was sent shortly before.
    is_alone: bool,
}

/// The state of the task that finds late batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum TimeoutWatch {
    /// A timer is set, and nothing was sent since.
    #[default]
    Armed,
    /// A timer is set, and a batch was sent since.
    Active,
    /// No timer is set: the task waits for a notification.
    Disarmed,
}

impl InFlight {
    /// Sends a batch, which is completed when its replies are read. Drops it if the connection is
    /// given up.
    pub(crate) fn start(&self, batch: PipelineBatch) {
        let (connection, is_tracked, count) =
            (Arc::downgrade(batch.connection()), batch.is_tracked(), batch.caller_count());
        let driver = batch.driver();
        let replies = batch.start(TimeoutSource::Connection);
        let entry = Arc::new(InFlightBatch::new(connection, is_tracked, batch, replies));
        let mut state = lock(&self.state);
        if state.is_closed {
            drop(state);
            return entry.abandon_unsent();
        }
        state.queue(is_tracked).push(Arc::clone(&entry));
        let was_disarmed = state.on_sent(entry.sent, count);
        drop(state);
        match driver {
            Some(driver) => driver.send(|| entry.poll()),
            None => entry.poll(),
        }
        // After the write: on an idle machine the watch may get the processor before the server
        // does.
        if was_disarmed && lock(&self.state).rearm() {
            self.more.notify_one();
        }
    }

    #[cfg(test)]
    pub(super) fn push(&self, entry: &Arc<InFlightBatch>) {
        lock(&self.state).commands.push(Arc::clone(entry));
    }

    /// Drops `what` when all batches in flight on the connection for commands are completed.
    pub(crate) fn drop_behind(&self, connection: &Arc<NodeConnection>, what: Box<dyn Send>) {
        let last = Arc::new(InFlightBatch::barrier(Arc::downgrade(connection), boot_time(), what));
        lock(&self.state).commands.push(last);
        self.complete(false);
    }

    /// Completes batches of a queue while the first one is done. If another thread does so, it
    /// continues.
    pub(super) fn complete(&self, is_tracked: bool) {
        let mut count = 0;
        loop {
            let mut state = lock(&self.state);
            if count == MAX_COMPLETIONS && !state.is_closed {
                state.queue(is_tracked).pause();
                return self.more.notify_one(); // this may be a task with other work to do
            }
            let Some(next) = state.queue(is_tracked).next(count > 0) else { return };
            let disarms = state.on_completed();
            drop(state);
            if disarms {
                self.more.notify_one();
            }
            next.complete(); // holds no lock
            count += 1;
        }
    }

    /// Aborts `task` when the connection is given up.
    pub(crate) fn adopt(&self, task: AbortHandle) {
        let mut state = lock(&self.state);
        if state.is_closed {
            drop(state);
            return task.abort();
        }
        state.tasks.push(task);
        if state.tasks.len() > state.task_limit {
            state.tasks.retain(|task| !task.is_finished());
            state.task_limit = MIN_TASK_LIMIT.max(state.tasks.len() * 2);
        }
    }

    /// Returns `true` if a batch is in flight on the connection for commands.
    pub(crate) fn has_commands(&self) -> bool {
        !lock(&self.state).commands.is_empty()
    }

    /// Returns `true` if no batch is in flight, and more requests are unlikely to follow the next
    /// one.
    pub(crate) fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        state.is_empty() && state.last_callers < 2
    }

    /// Completes the batches in flight, because the connection is given up.
    pub(crate) fn close(&self) {
        let (in_flight, tasks) = {
            let mut state = lock(&self.state);
            state.is_closed = true;
            (state.all().cloned().collect::<Vec<_>>(), std::mem::take(&mut state.tasks))
        };
        for task in tasks {
            task.abort();
        }
        for entry in in_flight {
            entry.abandon();
        }
        self.complete_all();
    }

    /// Completes late batches, and those that other threads have left, forever.
    pub(crate) async fn run_timeouts(&self, response_timeout: Duration) {
        loop {
            let more = self.more.notified();
            let (late, next) = lock(&self.state).late(boot_time(), response_timeout);
            for entry in late {
                entry.mark_late();
            }
            self.complete_all();
            match next {
                Some(wait) => tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = more => {}
                },
                None => more.await,
            }
        }
    }

    fn complete_all(&self) {
        self.complete(false);
        self.complete(true);
    }
}

impl InFlightState {
    fn queue(&mut self, is_tracked: bool) -> &mut CompletionQueue {
        if is_tracked { &mut self.tracked } else { &mut self.commands }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<InFlightBatch>> {
        self.commands.iter().chain(self.tracked.iter())
    }

    fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.tracked.is_empty()
    }

    /// Notes that a batch is sent with requests of `callers` callers. Returns `true` if the watch
    /// is disarmed.
    fn on_sent(&mut self, sent: BootInstant, callers: usize) -> bool {
        self.is_alone = callers == 0 && self.sent.is_none_or(|last| sent.since(last) > SPARSE_INTERVAL);
        (self.last_callers, self.sent) = (callers, Some(sent));
        let disarms = self.watch == TimeoutWatch::Disarmed;
        if !disarms {
            self.watch = TimeoutWatch::Active;
        }
        disarms
    }

    /// Arms the watch after a batch was sent, unless another thread has, or the batch is completed.
    /// Returns `true` if the watch must be notified.
    fn rearm(&mut self) -> bool {
        let is_told = self.watch == TimeoutWatch::Disarmed && !self.is_empty();
        if is_told {
            self.watch = TimeoutWatch::Active;
        }
        is_told
    }

    /// Notes that a batch is completed. Returns `true` if the watch must be notified, to drop its
    /// timer.
    ///
    /// That is the case after a renewal of a process that sends nothing else: the timer would wake
    /// it in vain. With frequent batches the timer stays, since setting one costs more than a
    /// completion.
    fn on_completed(&mut self) -> bool {
        let disarms = self.is_empty() && self.is_alone && self.watch != TimeoutWatch::Disarmed;
        if disarms {
            self.watch = TimeoutWatch::Armed;
        }
        disarms
    }

    /// Returns the late batches, and when to check again.
    ///
    /// If no batch is in flight, the next one cannot be late before `timeout` has passed. If none
    /// is sent for that long, the watch is disarmed.
    fn late(&mut self, now: BootInstant, timeout: Duration) -> (Vec<Arc<InFlightBatch>>, Option<Duration>) {
        let (mut late, mut next) = (Vec::new(), None);
        for line in [&self.commands, &self.tracked] {
            for entry in line.iter().filter(|entry| !entry.is_done()) {
                let left = entry.sent.plus(timeout).since(now);
                if !left.is_zero() {
                    next = Some(next.map_or(left, |next: Duration| next.min(left)));
                    break;
                }
                late.push(Arc::clone(entry));
            }
        }
        if next.is_some() {
            return (late, next);
        }
        let is_used = self.watch == TimeoutWatch::Active
            && self.sent.is_some_and(|sent| now.since(sent) <= SPARSE_INTERVAL);
        self.watch = if is_used { TimeoutWatch::Armed } else { TimeoutWatch::Disarmed };
        (late, is_used.then_some(timeout))
    }
}

/// The number of batches that one thread completes before it leaves the rest to the watch.
pub(super) const MAX_COMPLETIONS: usize = 16;

const MIN_TASK_LIMIT: usize = 16;

/// A batch after a longer pause comes alone, and disarms the watch on completion. A process that
/// shares a lock with a dozen others sends more often, and keeps its timer.
const SPARSE_INTERVAL: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::runtime::Builder;

    use super::*;
    use crate::backend::Request;
    use crate::backend::redis::node::connect_target::NewConnection;
    use crate::backend::redis::node::health::NodeConnection;
    use crate::backend::redis::node::pipeline::{ConnectionKind, RouteHistory};
    use crate::backend::redis::node::test_node::{TestNode, acquire};
    use crate::backend::redis::topology::LoadHint;
    use crate::protocol::command::Command;

    const LONG: Duration = Duration::from_secs(20);
    /// Long enough to connect while many tests share few cores.
    const SHORT: Duration = Duration::from_millis(300);

    fn ms(ms: u64) -> BootInstant {
        BootInstant::from_nanos(ms * 1_000_000)
    }

    fn of_state(sent: u64) -> Arc<InFlightBatch> {
        Arc::new(InFlightBatch::empty(ms(sent)))
    }

    #[test]
    fn the_watch_finds_late_batches_and_the_next_deadline() {
        let timeout = Duration::from_millis(100);
        let mut state =
            InFlightState { watch: TimeoutWatch::Active, sent: Some(ms(100)), ..InFlightState::default() };
        let sent = [0, 10, 20].map(of_state);
        sent[0].abandon();
        for sent in sent {
            state.commands.push(sent);
        }
        let mut late = |now| {
            let (late, next) = state.late(ms(now), timeout);
            for late in &late {
                late.mark_late();
            }
            (late.iter().map(|late| late.sent).collect::<Vec<_>>(), next)
        };

        assert_eq!(late(50), (vec![], Some(Duration::from_millis(60))), "the first one is over");
        assert_eq!(late(110), (vec![ms(10)], Some(Duration::from_millis(10))));
        assert_eq!(late(121), (vec![ms(20)], Some(timeout)), "what is sent meanwhile is not late before");
        assert_eq!(late(221), (vec![], None), "nothing was sent meanwhile");
        assert_eq!(state.watch, TimeoutWatch::Disarmed);

        let mut silent =
            InFlightState { watch: TimeoutWatch::Active, sent: Some(ms(100)), ..InFlightState::default() };
        let (_, next) = silent.late(ms(351), timeout);
        assert!(next.is_none() && silent.watch == TimeoutWatch::Disarmed, "nothing was sent for a while");
    }

    #[test]
    fn the_watch_is_disarmed_only_after_a_single_batch() {
        let mut state = InFlightState { watch: TimeoutWatch::Disarmed, ..InFlightState::default() };
        let mut sent = |at, callers| {
            let disarms = state.on_sent(ms(at), callers);
            state.commands.push(of_state(at));
            let is_told = state.rearm();
            assert_eq!(is_told, disarms);
            assert!(!state.rearm(), "it has been notified, or keeps its timer");
            assert!(!state.on_completed(), "a batch is in flight");
            state.commands = CompletionQueue::default();
            (is_told, state.on_completed())
        };

        assert_eq!(sent(0, 0), (true, true), "it is armed, and disarmed by the reply");
        assert_eq!(sent(251, 1), (false, false), "others are likely to come");
        assert_eq!(sent(501, 0), (false, false), "one came a moment before");
        assert_eq!(sent(752, 0), (false, true));

        let (late, next) = state.late(ms(753), LONG);
        assert!(late.is_empty() && next.is_none() && state.watch == TimeoutWatch::Disarmed);
        assert!(!state.on_completed(), "it is disarmed already");

        assert!(state.on_sent(ms(1_003), 1));
        assert!(!state.rearm() && state.watch == TimeoutWatch::Disarmed, "the reply came at once");
    }

    #[tokio::test]
    async fn a_batch_after_a_renewal_arms_the_watch() {
        let test = TestNode::new(SHORT).await;
        let connection = test.node.connection().expect("it is ready");
        let renewal = Request { command: Command::Renew { lease: LONG }, ..acquire("a") };

        test.node.take(vec![renewal], RouteHistory::default());
        test.until_replied(1).await;
        let disarms = async {
            while lock(&connection.in_flight.state).watch != TimeoutWatch::Disarmed {
                tokio::task::yield_now().await;
            }
        };
        assert!(
            tokio::time::timeout(SHORT / 2, disarms).await.is_ok(),
            "its timer would fire after {SHORT:?}"
        );
        test.hold();
        test.node.take(vec![acquire("b")], RouteHistory::default());

        assert!(tokio::time::timeout(SHORT * 40, test.until_replied(2)).await.is_ok());
        assert_eq!(test.told().last(), Some(&("b".to_owned(), false)));
    }

    #[tokio::test]
    async fn a_late_request_is_completed_once() {
        let mut test = TestNode::new(SHORT).await;
        test.hold();

        test.node.take(vec![acquire("a")], RouteHistory::default());
        test.until_replied(1).await;
        test.stop().await;

        assert_eq!(test.told(), [("a".to_owned(), false)]);
    }

    #[tokio::test]
    async fn a_batch_after_an_idle_period_times_out() {
        let test = TestNode::new(SHORT).await;
        test.hold();
        let open = test.node.connection().expect("it is ready");
        let (timed, untimed) = (open.timed.clone(), open.untimed.clone());
        let opened = NewConnection { timed, untimed, scripts: open.scripts.clone(), driver: None };
        let connection = Arc::new(NodeConnection::new(opened, Arc::clone(&open.target), 1, None, None));
        let mut watch = Box::pin(connection.in_flight.run_timeouts(SHORT));
        assert!(
            (&mut watch).now_or_never().is_none()
                && lock(&connection.in_flight.state).watch == TimeoutWatch::Disarmed
        );

        PipelineBatch::new(
            &test.node,
            &connection,
            ConnectionKind::Commands,
            [acquire("a")],
            RouteHistory::default(),
        )
        .send();
        let told = async {
            tokio::select! {
                () = watch => {}
                () = test.until_replied(1) => {}
            }
        };

        assert!(tokio::time::timeout(SHORT * 40, told).await.is_ok());
        assert_eq!(test.told(), [("a".to_owned(), false)]);
    }

    #[tokio::test]
    async fn a_given_up_connection_completes_each_request_once() {
        let mut test = TestNode::new(LONG).await;
        test.hold();
        let connection = test.node.connection().expect("it is ready");

        test.node.take(vec![acquire("a")], RouteHistory::default());
        test.stop().await;
        PipelineBatch::new(
            &test.node,
            &connection,
            ConnectionKind::Commands,
            [acquire("b")],
            RouteHistory::default(),
        )
        .send();

        assert_eq!(test.told(), [("a".to_owned(), false), ("b".to_owned(), false)]);
        assert!(lock(&connection.in_flight.state).is_empty());
    }

    #[test]
    fn requests_leave_while_the_connections_runtime_is_blocked() {
        let runtime = || Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
        let of_connection = runtime();
        let mut test = of_connection.block_on(TestNode::new(LONG));

        for key in ["a", "b"] {
            test.node.take(vec![acquire(key)], RouteHistory::default());

            assert_eq!(runtime().block_on(test.asked()), key);
        }
    }

    #[tokio::test]
    async fn a_completion_can_send_another_request() {
        let test = TestNode::new(LONG).await;
        let node = Arc::downgrade(&test.node);
        test.on_reply(move |key, _| {
            let next = key.parse::<u32>().expect("the keys are numbers") + 1;
            if let Some(node) = node.upgrade().filter(|_| next < 1_000) {
                node.take(vec![acquire(&next.to_string())], RouteHistory::default());
            }
        });

        test.node.take(vec![acquire("0")], RouteHistory::default());
        test.until_replied(1_000).await;

        assert!(test.told().iter().all(|(_, is_ours)| *is_ours));
    }

    #[tokio::test]
    async fn many_renewals_do_not_count_as_load() {
        let test = TestNode::new(LONG).await;
        let renewal = |key| Request { command: Command::Renew { lease: LONG }, ..acquire(key) };

        test.node.take(vec![renewal("a"), renewal("b")], RouteHistory::default());
        test.until_replied(2).await;
        assert_eq!(test.node.traffic(), LoadHint::Idle);

        test.node.take(vec![acquire("a"), acquire("b")], RouteHistory::default());
        test.until_replied(4).await;
        assert_eq!(test.node.traffic(), LoadHint::Busy);
    }

    #[tokio::test]
    async fn a_connection_survives_a_panic_in_a_completion() {
        let test = TestNode::new(LONG).await;
        test.on_reply(|key, _| assert_ne!(key, "a", "this panic is part of the test"));

        test.node.take(vec![acquire("a")], RouteHistory::default());
        test.node.take(vec![acquire("b")], RouteHistory::default());
        test.until_replied(2).await;

        assert_eq!(test.told(), [("a".to_owned(), true), ("b".to_owned(), true)]);
        assert_eq!(test.node.traffic(), LoadHint::Idle, "nothing is in flight");
    }
}
