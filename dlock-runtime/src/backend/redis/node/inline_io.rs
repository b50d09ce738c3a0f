//! The driver of a connection. A sender polls the connection itself, and a task polls it otherwise.
//!
//! ```text
//!  caller --locks--> [ a request is enqueued, the connection is polled: it is written ] --unlocks--> waits for the reply
//!  task   --woken--> [ the connection is polled: replies are read                     ]
//! ```
//!
//! If a request were only enqueued, another thread would have to wake up and write it. On an idle
//! machine that takes as long as the server takes to reply, and on a busy one it comes too late to
//! keep the server busy. So one thread at a time polls the connection, and no thread waits for
//! another: a thread that finds the connection locked requests another poll. A wake-up of the
//! connection wakes the task if no thread polls.
//!
//! Connections whose replies are needed together share one task ([`SharedDriver`]). Several tasks
//! would run on several threads, and take the processor from servers that have not replied yet.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::FutureExt;
use futures_util::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::fork::in_one_process;
use crate::sync::lock;
use crate::telemetry;

/// The driver of one connection. The connection ends when it is dropped.
pub(crate) struct InlineDriver {
    shared: Arc<DriverState>,
    /// The task of the connection, unless a [`SharedDriver`] drives it.
    task: Option<AbortHandle>,
}

/// A task that drives several connections.
#[derive(Default)]
pub(crate) struct SharedDriver {
    task: Arc<AtomicWaker>,
    /// Connections that the task has not seen yet.
    started: Mutex<Vec<PollTask>>,
    /// Held by the task: a late wake-up must not reach an ended task instead of the next one.
    running: tokio::sync::Mutex<()>,
}

/// The state that the task and the senders share.
struct DriverState {
    connection: Mutex<Option<DrivenConnection>>,
    poll_lock: Arc<PollLock>,
    /// Whether the connection has ended: it is not polled again.
    has_ended: AtomicBool,
    /// Notified when the connection has ended.
    ended: Notify,
}

/// A future that writes requests and reads replies when it is polled.
type DrivenConnection = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A lock for polling, and the waker of the connection.
struct PollLock {
    state: AtomicU8,
    /// Whether the task must poll.
    is_due: AtomicBool,
    /// The waker of the task.
    task: Arc<AtomicWaker>,
}

/// No thread polls.
const UNLOCKED: u8 = 0;
/// A thread polls.
const LOCKED: u8 = 1;
/// A thread polls, and must poll again.
const REPOLL: u8 = 2;

impl InlineDriver {
    /// Has `shared_driver` drive the connection, or spawns a task for it on the current runtime.
    pub(crate) fn start(
        connection: impl Future<Output = ()> + Send + 'static,
        shared_driver: Option<&SharedDriver>,
    ) -> Self {
        let task = shared_driver.map(|shared_driver| Arc::clone(&shared_driver.task)).unwrap_or_default();
        let poll_lock =
            Arc::new(PollLock { state: AtomicU8::new(UNLOCKED), is_due: AtomicBool::new(true), task });
        let connection = Mutex::new(Some(Box::pin(connection) as DrivenConnection));
        let (has_ended, ended) = (AtomicBool::new(false), Notify::new());
        let shared = Arc::new(DriverState { connection, poll_lock, has_ended, ended });
        let driver_task = PollTask(Arc::clone(&shared));
        let task = match shared_driver {
            Some(shared_driver) => {
                lock(&shared_driver.started).push(driver_task);
                shared.poll_lock.task.wake();
                None
            }
            None => Some(tokio::spawn(in_one_process(driver_task.run())).abort_handle()),
        };
        Self { shared, task }
    }

    /// Waits until the connection has ended. At most one task may wait.
    pub(crate) async fn ended(&self) {
        self.shared.ended.notified().await;
    }

    /// Runs `enqueue`, and polls the connection so that the request is written. If another thread
    /// polls the connection, that thread writes it.
    pub(crate) fn send(&self, enqueue: impl FnOnce()) {
        let guard = self.shared.try_lock();
        enqueue();
        let Some(guard) = guard else { return };
        // The poll must not count against the budget of the sending task.
        let _ = tokio::task::unconstrained(async { guard.poll() }).now_or_never();
    }
}

impl Drop for InlineDriver {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
        self.shared.end();
        self.shared.poll_lock.wake_task(); // so that it drops the connection
    }
}

impl SharedDriver {
    /// Drives its connections, forever. They end when this is dropped.
    pub(crate) async fn run(&self) {
        let _running = self.running.lock().await;
        let mut driven = Vec::new();
        poll_fn(|cx| {
            self.task.register(cx.waker());
            driven.append(&mut lock(&self.started));
            driven.retain(|driver_task: &PollTask| !driver_task.0.drive_shared());
            Poll::<()>::Pending
        })
        .await;
    }
}

impl fmt::Debug for SharedDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedDriver").finish_non_exhaustive()
    }
}

impl DriverState {
    /// Locks the connection for polling; `None` if another thread has locked it.
    fn try_lock(&self) -> Option<PollGuard<'_>> {
        let begun =
            self.poll_lock.state.compare_exchange(UNLOCKED, LOCKED, Ordering::AcqRel, Ordering::Acquire);
        begun.is_ok().then(|| PollGuard(self))
    }

    /// Polls the connection if it was woken. Returns `true` if the connection has ended.
    fn drive_shared(&self) -> bool {
        if self.poll_lock.is_due.swap(false, Ordering::AcqRel) {
            while !self.poll_lock.request_repoll() {
                if let Some(guard) = self.try_lock() {
                    guard.poll();
                    break;
                }
            }
        }
        self.has_ended.load(Ordering::Acquire)
    }

    /// Drops the connection, or has the thread that polls it drop it.
    fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        while !self.poll_lock.request_repoll() {
            if let Some(guard) = self.try_lock() {
                return guard.poll();
            }
        }
    }

    /// Polls the connection, and drops it if it has ended.
    fn poll(&self) {
        let waker = Waker::from(Arc::clone(&self.poll_lock));
        let mut connection = lock(&self.connection);
        let mut has_ended = self.has_ended.load(Ordering::Acquire);
        if let Some(connection) = connection.as_mut().filter(|_| !has_ended) {
            let polled = || connection.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
            has_ended = catch_unwind(AssertUnwindSafe(polled)).unwrap_or_else(|_| {
                telemetry::actor_failed(&"a connection panicked");
                true
            });
        }
        if has_ended {
            self.has_ended.store(true, Ordering::Release);
            *connection = None;
            self.ended.notify_one();
        }
    }
}

/// A lock for polling. If it is dropped without a poll, the task is woken.
struct PollGuard<'a>(&'a DriverState);

impl PollGuard<'_> {
    fn poll(self) {
        let poll_lock = &self.0.poll_lock;
        for _ in 0..MAX_POLLS {
            poll_lock.state.swap(LOCKED, Ordering::AcqRel);
            self.0.poll();
            if poll_lock.state.compare_exchange(LOCKED, UNLOCKED, Ordering::AcqRel, Ordering::Acquire).is_ok()
            {
                return std::mem::forget(self);
            }
        }
    }
}

impl Drop for PollGuard<'_> {
    fn drop(&mut self) {
        self.0.poll_lock.state.swap(UNLOCKED, Ordering::AcqRel);
        if self.0.has_ended.load(Ordering::Acquire) {
            self.0.end(); // there may be no task anymore
        } else {
            self.0.poll_lock.wake_task();
        }
    }
}

impl PollLock {
    /// Requests another poll from the thread that polls. Returns `false` if no thread polls.
    fn request_repoll(&self) -> bool {
        // Written even if it is set: the next poll must see all that happened before this call.
        let again = |state| (state != UNLOCKED).then_some(REPOLL);
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, again).is_ok()
    }

    fn wake_task(&self) {
        self.is_due.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl Wake for PollLock {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.request_repoll() {
            self.wake_task();
        }
    }
}

/// The share of a task: the connection ends with the runtime of the task.
struct PollTask(Arc<DriverState>);

impl PollTask {
    /// Drives the connection until it has ended.
    async fn run(self) {
        poll_fn(|cx| {
            self.0.poll_lock.task.register(cx.waker());
            if self.0.drive_shared() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Drop for PollTask {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// How often a sender polls before it leaves the rest to the task: it may have other work to do.
const MAX_POLLS: usize = 4;

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().expect("a runtime can be made")
    }

    /// A connection that reports each number that it received, with the thread that polled it.
    fn connection(
        mut receiver: UnboundedReceiver<u32>,
        report: mpsc::Sender<(u32, ThreadId)>,
    ) -> impl Future<Output = ()> {
        poll_fn(move |cx| {
            while let Poll::Ready(word) = receiver.poll_recv(cx) {
                let Some(word) = word else { return Poll::Ready(()) };
                report.send((word, thread::current().id())).expect("the test listens");
            }
            Poll::Pending
        })
    }

    fn has_ended(driver: &InlineDriver) -> bool {
        driver.shared.has_ended.load(Ordering::SeqCst)
    }

    /// Starts a driver whose task is never polled, as on a busy runtime.
    fn alone() -> (Runtime, InlineDriver, UnboundedSender<u32>, mpsc::Receiver<(u32, ThreadId)>) {
        let ((sender, receiver), (report, polled), runtime) =
            (unbounded_channel(), mpsc::channel(), runtime());
        let driver = runtime.block_on(async { InlineDriver::start(connection(receiver, report), None) });
        (runtime, driver, sender, polled)
    }

    #[test]
    fn a_sender_writes_its_request_itself() {
        let (_runtime, driver, sender, polled) = alone();

        driver.send(|| sender.send(7).expect("the connection listens"));

        assert_eq!(polled.try_recv(), Ok((7, thread::current().id())));
    }

    #[test]
    fn the_task_polls_without_a_sender() {
        let ((sender, receiver), (report, polled)) = (unbounded_channel(), mpsc::channel());
        let task = thread::spawn(move || {
            runtime().block_on(async {
                let driver = InlineDriver::start(connection(receiver, report), None);
                while !has_ended(&driver) {
                    tokio::task::yield_now().await;
                }
            });
        });

        sender.send(7).expect("the connection listens");
        assert_eq!(
            polled.recv_timeout(SOON).map(|(word, thread)| (word, thread == task.thread().id())),
            Ok((7, true))
        );

        drop(sender);
        task.join().expect("it ends with the connection");
    }

    #[test]
    fn a_concurrent_sender_is_served_by_the_polling_thread() {
        let (_runtime, driver, sender, polled) = alone();

        driver.send(|| {
            thread::scope(|scope| {
                let other = scope.spawn(|| driver.send(|| sender.send(7).expect("the connection listens")));
                other.join().expect("it does not wait");
            });
            assert!(polled.try_recv().is_err(), "the other thread polls");
        });

        assert_eq!(polled.try_recv(), Ok((7, thread::current().id())));
    }

    #[test]
    fn a_request_sent_during_a_poll_is_written_by_it() {
        let ((sender, mut receiver), (report, polled)) = (unbounded_channel::<u32>(), mpsc::channel());
        let (place, runtime) = (Arc::new(Mutex::new(None::<Arc<InlineDriver>>)), runtime());
        let (inner, ask) = (Arc::clone(&place), sender.clone());
        let connection = poll_fn(move |cx| {
            while let Poll::Ready(Some(word)) = receiver.poll_recv(cx) {
                report.send(word).expect("the test listens");
                let driver = lock(&inner).clone().filter(|_| word < 3);
                if let Some(driver) = driver {
                    driver.send(|| ask.send(word + 1).expect("the connection listens")); // as a reply may
                }
            }
            Poll::Pending
        });
        let driver = Arc::new(runtime.block_on(async { InlineDriver::start(connection, None) }));
        *lock(&place) = Some(Arc::clone(&driver));

        driver.send(|| sender.send(1).expect("the connection listens"));

        assert_eq!(polled.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
        assert!(driver.shared.try_lock().is_some(), "it is unlocked");
        *lock(&place) = None;
    }

    #[test]
    fn no_request_is_lost_under_concurrent_senders() {
        const EACH: u32 = 20_000;
        for shared_driver in [None, Some(Arc::<SharedDriver>::default())] {
            let ((sender, receiver), (report, polled)) = (unbounded_channel(), mpsc::channel());
            let (pass, driver) = mpsc::channel();
            let task = thread::spawn(move || {
                runtime().block_on(async {
                    let driver =
                        Arc::new(InlineDriver::start(connection(receiver, report), shared_driver.as_deref()));
                    let _running = shared_driver
                        .map(|shared_driver| tokio::spawn(async move { shared_driver.run().await }));
                    let _ = pass.send(Arc::clone(&driver));
                    while !has_ended(&driver) {
                        tokio::task::yield_now().await;
                    }
                });
            });
            let driver = driver.recv().expect("it has started");

            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for word in 0..EACH {
                            driver.send(|| sender.send(word).expect("the connection listens"));
                            if word % 7 == 0 {
                                sender.send(word).expect("the connection listens");
                            }
                        }
                    });
                }
            });

            for _ in 0..3 * (EACH + EACH.div_ceil(7)) {
                polled.recv_timeout(SOON).expect("all that was sent arrives");
            }
            drop(sender);
            task.join().expect("it ends with the connection");
        }
    }

    #[test]
    fn a_shared_driver_polls_only_woken_connections() {
        let (shared_driver, polls, runtime) =
            (SharedDriver::default(), [0; 3].map(AtomicUsize::new), runtime());
        let polls = Arc::new(polls);
        let ((report, polled), mut sender) = (mpsc::channel(), Vec::new());
        let mut drivers: Vec<_> = (0..3)
            .map(|number| {
                let (asked, receiver) = unbounded_channel();
                let (polls, mut inner) = (Arc::clone(&polls), Box::pin(connection(receiver, report.clone())));
                sender.push(asked);
                let counted = poll_fn(move |cx| {
                    polls[number].fetch_add(1, Ordering::SeqCst);
                    inner.as_mut().poll(cx)
                });
                InlineDriver::start(counted, Some(&shared_driver))
            })
            .collect();
        let counts = || [0, 1, 2].map(|number| polls[number].load(Ordering::SeqCst));
        let mut task = Box::pin(shared_driver.run());
        let mut run = || assert!(runtime.block_on(async { (&mut task).now_or_never() }).is_none());

        run();
        assert_eq!(counts(), [1; 3], "each is polled when it is new");
        sender[1].send(7).expect("the connection listens");
        run();
        assert_eq!((counts(), polled.try_iter().count()), ([1, 2, 1], 1));
        let ended = Arc::downgrade(&drivers[1].shared);
        drop(drivers.remove(1));
        run();
        assert_eq!((counts(), ended.strong_count()), ([1, 2, 1], 0));

        drop(task);
        assert!(drivers.iter().all(has_ended), "the others end with it");
    }

    /// Counts drops.
    struct Dropped(Arc<AtomicUsize>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_connection_ends_with_its_driver_runtime_or_panic() {
        let start = |runtime: &Runtime, panics: bool| {
            let dropped = Arc::new(AtomicUsize::new(0));
            let note = Dropped(Arc::clone(&dropped));
            let driver = runtime.block_on(async {
                InlineDriver::start(
                    poll_fn(move |_| {
                        let _note = &note;
                        assert!(!panics, "this panic is part of the test");
                        Poll::Pending
                    }),
                    None,
                )
            });
            (driver, dropped)
        };
        let runtime = runtime();

        let (driver, dropped) = start(&runtime, false);
        drop(driver);
        assert_eq!(dropped.load(Ordering::SeqCst), 1, "it goes with the driver");

        let (driver, dropped) = start(&runtime, true);
        driver.send(|| {});
        assert_eq!(dropped.load(Ordering::SeqCst), 1, "it has panicked");

        let (_pump, dropped) = start(&runtime, false);
        drop(runtime);
        assert_eq!(dropped.load(Ordering::SeqCst), 1, "it ends with the runtime");
    }

    #[test]
    fn a_driver_dropped_during_a_poll_ends_the_connection() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (note, place) = (Dropped(Arc::clone(&dropped)), Arc::new(Mutex::new(None::<InlineDriver>)));
        let (gone, runtime) = (Arc::clone(&place), runtime());
        let driver = runtime.block_on(async {
            InlineDriver::start(
                poll_fn(move |_| {
                    let _note = &note;
                    drop(lock(&gone).take()); // as a reply may
                    Poll::Pending
                }),
                None,
            )
        });
        let shared = Arc::clone(&driver.shared);
        *lock(&place) = Some(driver);

        shared.try_lock().expect("the connection is not being polled").poll();

        assert_eq!(dropped.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_driver_dropped_in_the_last_poll_ends_the_connection() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (note, place) = (Dropped(Arc::clone(&dropped)), Arc::new(Mutex::new(None::<InlineDriver>)));
        let (gone, runtime, mut polls) = (Arc::clone(&place), runtime(), 0);
        let driver = runtime.block_on(async {
            InlineDriver::start(
                poll_fn(move |cx| {
                    let _note = &note;
                    polls += 1;
                    if polls == MAX_POLLS {
                        drop(lock(&gone).take());
                    }
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }),
                None,
            )
        });
        let shared = Arc::clone(&driver.shared);
        *lock(&place) = Some(driver);

        shared.try_lock().expect("the connection is not being polled").poll();

        assert_eq!(dropped.load(Ordering::SeqCst), 1);
    }
}
