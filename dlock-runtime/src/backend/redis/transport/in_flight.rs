//! The batches in flight on the connections to one server. They are completed where their replies
//! are read.
//!
//! ```text
//!  caller --first poll: enqueued--> connection --replies: waker--> completed by the thread that polls the connection
//! ```
//!
//! No task lies in between: each would cost a switch of tasks, and on an idle machine one of
//! threads. So completions run inside a waker, on the connection's task or in the call of a sender,
//! and hold no lock but that of the connection. A sender to several servers may see replies of one
//! server before the next has its request.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::backend::redis::runtimes::Runtimes;
use crate::backend::redis::transport::completion_queue::{
    Batch, Completer, CompletionQueue, InFlightBatch, PendingReplies,
};
use crate::backend::redis::transport::inline_io::InlineDriver;
use crate::clock::boot_time;
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;

/// The batches in flight on the connections to one server, and their timeouts.
pub(crate) struct InFlight<B> {
    state: Mutex<InFlightState<B>>,
    /// Notified when the watch must check.
    more: Notify,
}

struct InFlightState<B> {
    is_closed: bool,
    /// The queue of the connection for commands.
    commands: CompletionQueue<B>,
    /// The queue of the connection for key tracking.
    tracked: CompletionQueue<B>,
    /// The tasks that end with the connection.
    tasks: Vec<AbortHandle>,
    /// The number of tasks above which finished ones are removed.
    task_limit: usize,
    /// Whether the watch has a timer. Otherwise it waits for a notification.
    is_watched: bool,
    /// How many requests of callers were sent together last. If there were several, more are
    /// likely.
    last_callers: usize,
}

/// The result of one check by the watch.
struct WatchResult<B> {
    /// The batches that are late.
    late: Vec<Arc<InFlightBatch<B>>>,
    /// Whether a batch has been in flight for [`WATCH_INTERVAL`].
    has_slow: bool,
    /// When to check again; `None` if nothing is in flight.
    next: Option<Duration>,
}

impl<B: Batch> InFlight<B> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(InFlightState::new()), more: Notify::new() })
    }

    /// Sends a batch with `count` requests of callers over the connection of `driver`. It is
    /// completed when its `replies` are read, and dropped if the connection is given up.
    ///
    /// Without `driver`, it is sent over the connection for key tracking, which no sender polls.
    pub(crate) fn start(
        self: &Arc<Self>,
        batch: B,
        replies: PendingReplies,
        driver: Option<&InlineDriver>,
        count: usize,
    ) {
        let is_tracked = driver.is_none();
        let entry = Arc::new(InFlightBatch::new(self.completer(), is_tracked, batch, replies));
        let mut state = lock(&self.state);
        if state.is_closed {
            drop(state);
            return entry.abandon_unsent();
        }
        state.queue(is_tracked).push(Arc::clone(&entry));
        state.last_callers = count;
        drop(state);
        match driver {
            Some(driver) => driver.send(|| entry.poll()),
            None => entry.poll(),
        }
        // After the write: on an idle machine the watch may get the processor before the server
        // does.
        let needs_watch = lock(&self.state).needs_watch();
        if needs_watch {
            self.more.notify_one();
        }
    }

    fn completer(self: &Arc<Self>) -> Weak<dyn Completer> {
        Arc::downgrade(self) as Weak<dyn Completer>
    }

    #[cfg(test)]
    pub(super) fn push(&self, entry: &Arc<InFlightBatch<B>>) {
        lock(&self.state).commands.push(Arc::clone(entry));
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
    /// one. Otherwise, the caller must leave the next request to the writer, and the watch starts.
    pub(crate) fn check_idle(&self) -> bool {
        let mut state = lock(&self.state);
        if state.is_empty() && state.last_callers < 2 {
            return true;
        }
        let starts = state.start_watch();
        drop(state);
        if starts {
            self.more.notify_one();
        }
        false
    }

    /// Starts the watch, which finds out if the writer is blocked.
    pub(crate) fn watch_writer(&self) {
        if lock(&self.state).start_watch() {
            self.more.notify_one();
        }
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

    /// Completes late batches, and those that other threads have left, forever. Also finds out
    /// whether the callers' runtime is blocked, if requests are in flight or `has_queued` returns
    /// `true`.
    pub(crate) async fn run_timeouts(
        &self,
        response_timeout: Duration,
        runtimes: &Arc<Runtimes>,
        has_queued: impl Fn() -> bool,
    ) {
        loop {
            let (more, returned) = (self.more.notified(), runtimes.has_returned_to_callers.notified());
            let (WatchResult { late, has_slow, next }, has_queued) = {
                let mut state = lock(&self.state);
                let uses_callers = runtimes.uses_callers();
                // A request that is queued later finds the watch as it is set here.
                let has_queued = uses_callers && has_queued();
                let interval = if uses_callers { WATCH_INTERVAL } else { response_timeout };
                (state.watch(boot_time(), response_timeout, interval, has_queued), has_queued)
            };
            for entry in late {
                entry.mark_late();
            }
            self.complete_all();
            if has_slow || has_queued {
                runtimes.check_callers();
            }
            tokio::select! {
                () = tokio::time::sleep(next.unwrap_or_default()), if next.is_some() => {}
                () = more => {}
                () = returned => {} // the interval is shorter now
            }
        }
    }

    fn complete_all(&self) {
        self.complete(false);
        self.complete(true);
    }
}

impl<B: Batch> Completer for InFlight<B> {
    /// If another thread completes batches of the queue, it continues.
    fn complete(&self, is_tracked: bool) {
        let mut count = 0;
        loop {
            let mut state = lock(&self.state);
            if count == MAX_COMPLETIONS && !state.is_closed {
                state.queue(is_tracked).pause();
                return self.more.notify_one(); // this may be a task with other work to do
            }
            let Some(next) = state.queue(is_tracked).next(count > 0) else { return };
            drop(state);
            next.complete(); // holds no lock
            count += 1;
        }
    }
}

impl<B: Batch> InFlightState<B> {
    fn new() -> Self {
        Self {
            is_closed: false,
            commands: CompletionQueue::default(),
            tracked: CompletionQueue::default(),
            tasks: Vec::new(),
            task_limit: 0,
            is_watched: false,
            last_callers: 0,
        }
    }

    fn queue(&mut self, is_tracked: bool) -> &mut CompletionQueue<B> {
        if is_tracked { &mut self.tracked } else { &mut self.commands }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<InFlightBatch<B>>> {
        self.commands.iter().chain(self.tracked.iter())
    }

    fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.tracked.is_empty()
    }

    /// Returns `true` if the watch must be notified: it has no timer.
    fn start_watch(&mut self) -> bool {
        !std::mem::replace(&mut self.is_watched, true)
    }

    /// Returns `true` if the watch must be notified because a batch is in flight.
    fn needs_watch(&mut self) -> bool {
        !self.is_empty() && self.start_watch()
    }

    /// Checks the batches in flight. If there are none, and no request is queued, the watch needs
    /// no timer.
    fn watch(
        &mut self,
        now: BootInstant,
        timeout: Duration,
        interval: Duration,
        has_queued: bool,
    ) -> WatchResult<B> {
        let mut result =
            WatchResult { late: Vec::new(), has_slow: false, next: has_queued.then_some(interval) };
        for queue in [&self.commands, &self.tracked] {
            for entry in queue.iter().filter(|entry| !entry.is_done()) {
                let left = entry.sent.plus(timeout).since(now);
                if !left.is_zero() {
                    result.has_slow |= now.since(entry.sent) >= interval;
                    let wait = left.min(interval);
                    result.next = Some(result.next.map_or(wait, |next| next.min(wait)));
                    break;
                }
                result.late.push(Arc::clone(entry));
            }
        }
        self.is_watched = result.next.is_some();
        result
    }
}

/// The number of batches that one thread completes before it leaves the rest to the watch.
pub(super) const MAX_COMPLETIONS: usize = 16;

const MIN_TASK_LIMIT: usize = 16;

/// How often replies and queued requests are checked while callers write and read on their own
/// runtime, which may be blocked.
const WATCH_INTERVAL: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt;
    use tokio::runtime::{Builder, Handle};
    use tokio::sync::oneshot;

    use super::*;
    use crate::backend::redis::tests::is_notified;
    use crate::backend::redis::transport::tests::fake_batch::{Completions, FakeBatch};

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(50);

    fn ms(ms: u64) -> BootInstant {
        BootInstant::from_nanos(ms * 1_000_000)
    }

    fn of_state(sent: u64) -> Arc<InFlightBatch<FakeBatch>> {
        Arc::new(InFlightBatch::empty(ms(sent)))
    }

    #[test]
    fn the_watch_finds_late_and_slow_batches_and_the_next_deadline() {
        let (timeout, interval) = (Duration::from_millis(100), Duration::from_millis(40));
        let mut state = InFlightState::new();
        let sent = [0, 10, 20].map(of_state);
        sent[0].abandon();
        for sent in sent {
            state.commands.push(sent);
        }
        let mut watch = |now, has_queued| {
            let WatchResult { late, has_slow, next } = state.watch(ms(now), timeout, interval, has_queued);
            for late in &late {
                late.mark_late();
            }
            assert_eq!(state.is_watched, next.is_some());
            (late.iter().map(|late| late.sent).collect::<Vec<_>>(), has_slow, next)
        };

        assert_eq!(watch(30, false), (vec![], false, Some(interval)), "the first one is done");
        assert_eq!(watch(50, false), (vec![], true, Some(interval)));
        assert_eq!(watch(90, false), (vec![], true, Some(Duration::from_millis(20))));
        assert_eq!(watch(110, false), (vec![ms(10)], true, Some(Duration::from_millis(10))));
        assert_eq!(watch(121, true), (vec![ms(20)], false, Some(interval)), "a request is queued");
        assert_eq!(watch(122, false), (vec![], false, None));
    }

    #[test]
    fn the_watch_is_notified_once_per_busy_period() {
        let mut state = InFlightState::new();
        assert!(!state.needs_watch(), "nothing is in flight");

        state.commands.push(of_state(0));
        assert!(state.needs_watch());
        assert!(!state.needs_watch(), "it has been notified");

        state.commands = CompletionQueue::default();
        let result = state.watch(ms(5), LONG, LONG, false);
        assert!(result.next.is_none() && !state.is_watched);
        state.commands.push(of_state(6));
        assert!(state.needs_watch());
    }

    /// Starts a batch that never gets a reply.
    fn start(in_flight: &Arc<InFlight<FakeBatch>>, completions: &Arc<Completions>) {
        let batch = FakeBatch::new("a", boot_time(), completions);
        in_flight.start(batch, Box::pin(std::future::pending()), None, 1);
    }

    #[tokio::test]
    async fn a_late_batch_is_completed_once() {
        let (in_flight, completions, runtimes) = (InFlight::new(), Arc::default(), Arc::default());

        start(&in_flight, &completions);
        tokio::select! {
            () = in_flight.run_timeouts(SHORT, &runtimes, || false) => {}
            () = completions.until(1) => {}
        }
        in_flight.close();

        assert_eq!(completions.all(), [("a".to_owned(), false)]);
    }

    #[tokio::test]
    async fn a_batch_after_an_idle_period_times_out() {
        let (in_flight, completions, runtimes) = (InFlight::new(), Arc::default(), Arc::default());
        let mut watch = Box::pin(in_flight.run_timeouts(SHORT, &runtimes, || false));
        assert!((&mut watch).now_or_never().is_none() && !lock(&in_flight.state).is_watched);

        start(&in_flight, &completions);
        let completed = async {
            tokio::select! {
                () = watch => {}
                () = completions.until(1) => {}
            }
        };

        assert!(tokio::time::timeout(LONG, completed).await.is_ok());
        assert_eq!(completions.all(), [("a".to_owned(), false)]);
    }

    /// Returns a watch that counts its checks for queued requests in `checks`.
    fn watch_of<'a>(
        in_flight: &'a InFlight<FakeBatch>,
        runtimes: &'a Arc<Runtimes>,
        checks: &'a AtomicUsize,
    ) -> Pin<Box<impl Future<Output = ()>>> {
        Box::pin(in_flight.run_timeouts(LONG, runtimes, || {
            assert!(in_flight.state.try_lock().is_err(), "a request that is queued now is missed");
            checks.fetch_add(1, Ordering::SeqCst);
            false
        }))
    }

    #[tokio::test]
    async fn queued_requests_are_checked_from_when_the_writer_has_one() {
        let (in_flight, runtimes, checks) = (InFlight::new(), Arc::default(), AtomicUsize::new(0));
        Runtimes::set_callers(&runtimes);
        let mut watch = watch_of(&in_flight, &runtimes, &checks);

        assert!((&mut watch).now_or_never().is_none());
        assert!((&mut watch).now_or_never().is_none());
        assert_eq!(checks.load(Ordering::SeqCst), 1, "it waits");
        in_flight.watch_writer();

        assert!((&mut watch).now_or_never().is_none());
        assert_eq!(checks.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn queued_requests_are_checked_when_a_blocked_runtime_continues() {
        let (in_flight, completions, checks) = (InFlight::new(), Arc::default(), AtomicUsize::new(0));
        let (runtimes, mut callers) = (Arc::<Runtimes>::default(), Builder::new_current_thread());
        let callers = callers.enable_all().build().expect("a runtime can be made");
        runtimes.set_own(Handle::current());
        {
            let _context = callers.enter();
            runtimes.set_callers();
        }
        while runtimes.uses_callers() {
            runtimes.check_callers(); // no thread drives it
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        start(&in_flight, &completions);
        let mut watch = watch_of(&in_flight, &runtimes, &checks);
        assert!((&mut watch).now_or_never().is_none());
        assert_eq!(checks.load(Ordering::SeqCst), 0, "the own thread writes");

        let (end, ended) = oneshot::channel::<()>();
        let continues = std::thread::spawn(move || callers.block_on(ended));
        let checked = async {
            while checks.load(Ordering::SeqCst) == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let checked = async {
            tokio::select! {
                () = watch => {}
                () = checked => {}
            }
        };

        assert!(tokio::time::timeout(LONG / 2, checked).await.is_ok(), "it waits for a late reply");
        drop(end);
        assert!(continues.join().expect("it only waits").is_err(), "nothing was sent");
    }

    #[test]
    fn a_caller_sends_if_nothing_is_in_flight_or_likely_to_follow() {
        for (callers, is_idle) in [(0, true), (1, true), (2, false), (3, false)] {
            let in_flight = InFlight::<FakeBatch>::new();
            lock(&in_flight.state).last_callers = callers;

            assert_eq!(in_flight.check_idle(), is_idle, "{callers} requests were sent together");
            assert_eq!(lock(&in_flight.state).is_watched, !is_idle);
        }
        let in_flight = InFlight::<FakeBatch>::new();
        assert!(!in_flight.has_commands());

        in_flight.push(&of_state(0));

        assert!(in_flight.has_commands() && !in_flight.check_idle());
        assert!(is_notified(&in_flight.more), "the watch is notified");
        assert!(!in_flight.check_idle());
        assert!(!is_notified(&in_flight.more), "it has a timer");
    }

    #[test]
    fn a_batch_on_the_connection_for_tracking_is_no_command() {
        let (in_flight, completions) = (InFlight::new(), Arc::default());

        start(&in_flight, &completions);

        assert!(!in_flight.has_commands() && !in_flight.check_idle());
        in_flight.close();
        assert!(in_flight.check_idle());
    }

    #[tokio::test]
    async fn tasks_end_with_the_connection() {
        let in_flight = InFlight::<FakeBatch>::new();
        let endless: Vec<_> = (0..3).map(|_| tokio::spawn(std::future::pending::<()>())).collect();
        let [first, second, late] = &endless[..] else { panic!("there are three tasks") };
        in_flight.adopt(first.abort_handle());
        in_flight.adopt(second.abort_handle());
        tokio::task::yield_now().await;
        assert!(!first.is_finished() && !second.is_finished());

        in_flight.close();
        in_flight.adopt(late.abort_handle());

        for task in endless {
            assert!(task.await.is_err_and(|error| error.is_cancelled()));
        }
    }

    #[tokio::test]
    async fn finished_tasks_are_removed_once_there_are_many() {
        let in_flight = InFlight::<FakeBatch>::new();
        let adopt = async |is_finished: bool| {
            let task = tokio::spawn(async move {
                if !is_finished {
                    std::future::pending::<()>().await;
                }
            });
            while is_finished && !task.is_finished() {
                tokio::task::yield_now().await;
            }
            in_flight.adopt(task.abort_handle());
            lock(&in_flight.state).tasks.len()
        };

        assert_eq!(adopt(true).await, 0);
        for count in 1..=MIN_TASK_LIMIT {
            assert_eq!(adopt(true).await, count);
        }
        assert_eq!(adopt(true).await, 0, "the limit is exceeded");
        for count in 1..=MIN_TASK_LIMIT + 1 {
            assert_eq!(adopt(false).await, count, "it runs");
        }
        assert_eq!(lock(&in_flight.state).task_limit, 2 * (MIN_TASK_LIMIT + 1));
        in_flight.close();
    }

    #[test]
    fn all_batches_of_a_closed_connection_are_completed_at_once() {
        let (in_flight, completions) = (InFlight::new(), Arc::default());
        for _ in 0..3 * MAX_COMPLETIONS {
            start(&in_flight, &completions);
        }

        in_flight.close();
        assert_eq!(completions.all().len(), 3 * MAX_COMPLETIONS);
        start(&in_flight, &completions);

        assert_eq!(completions.all().len(), 3 * MAX_COMPLETIONS + 1, "it is closed");
        assert!(lock(&in_flight.state).is_empty());
    }

    /// Waits until the watch has found out that the callers' runtime is blocked.
    async fn assert_watch_leaves_callers(in_flight: &InFlight<FakeBatch>, has_queued: bool) {
        let (runtimes, mut callers) = (Arc::<Runtimes>::default(), Builder::new_current_thread());
        let callers = callers.enable_all().build().expect("a runtime can be made");
        runtimes.set_own(Handle::current());
        {
            let _context = callers.enter();
            runtimes.set_callers();
        }
        let has_left = async {
            while runtimes.uses_callers() {
                tokio::time::sleep(Duration::from_millis(1)).await; // no thread drives it
            }
        };
        let found = async {
            tokio::select! {
                () = in_flight.run_timeouts(LONG, &runtimes, || has_queued) => {}
                () = has_left => {}
            }
        };
        assert!(tokio::time::timeout(LONG / 2, found).await.is_ok(), "queued: {has_queued}");
        callers.shutdown_background();
    }

    #[tokio::test]
    async fn a_slow_batch_or_a_queued_request_finds_a_blocked_runtime() {
        let (in_flight, completions) = (InFlight::new(), Arc::default());
        assert_watch_leaves_callers(&in_flight, true).await;

        start(&in_flight, &completions);
        assert_watch_leaves_callers(&in_flight, false).await;
    }
}
