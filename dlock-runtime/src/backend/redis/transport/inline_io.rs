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
//! The task starts on the manager's own thread, and moves between the manager's [`Runtimes`].

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::FutureExt;
use futures_util::task::AtomicWaker;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::backend::redis::runtimes::{Movable, Runtimes};
use crate::backend::redis::transport::movable_stream::Relocation;
use crate::fork::in_one_process;
use crate::sync::lock;
use crate::telemetry;

/// The driver of one connection. The connection ends when it is dropped.
pub(crate) struct InlineDriver {
    shared: Arc<DriverState>,
}

/// The state that the task and the senders share.
struct DriverState {
    connection: Mutex<Option<DrivenConnection>>,
    poll_lock: Arc<PollLock>,
    /// The current task.
    task: Mutex<CurrentTask>,
    /// Moves the socket with the task.
    relocation: Arc<Relocation>,
    runtimes: Arc<Runtimes>,
    /// Whether the connection has ended: it is not polled again.
    has_ended: AtomicBool,
    /// Notified when the connection has ended.
    ended: Notify,
}

/// The task that polls the connection.
#[derive(Default)]
struct CurrentTask {
    /// Its number: only the latest task registers its waker.
    number: u64,
    abort: Option<AbortHandle>,
}

/// A future that writes requests and reads replies when it is polled.
type DrivenConnection = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A lock for polling, and the waker of the connection.
struct PollLock {
    state: AtomicU8,
    /// Whether the task must poll.
    is_due: AtomicBool,
    /// The waker of the task.
    task: AtomicWaker,
}

/// No thread polls.
const UNLOCKED: u8 = 0;
/// A thread polls.
const LOCKED: u8 = 1;
/// A thread polls, and must poll again.
const REPOLL: u8 = 2;

impl InlineDriver {
    /// Spawns a task for the connection on the current runtime. `relocation` is that of its socket.
    pub(crate) fn start(
        connection: impl Future<Output = ()> + Send + 'static,
        relocation: Arc<Relocation>,
        runtimes: &Arc<Runtimes>,
    ) -> Self {
        let shared = Arc::new(DriverState {
            connection: Mutex::new(Some(Box::pin(connection))),
            poll_lock: Arc::new(PollLock {
                state: AtomicU8::new(UNLOCKED),
                is_due: AtomicBool::new(true),
                task: AtomicWaker::new(),
            }),
            task: Mutex::default(),
            relocation,
            runtimes: Arc::clone(runtimes),
            has_ended: AtomicBool::new(false),
            ended: Notify::new(),
        });
        shared.spawn(&Handle::current(), true);
        Self { shared }
    }

    /// Returns a reference that does not keep the connection open.
    pub(crate) fn downgrade(&self) -> Weak<dyn Movable> {
        let connection: Weak<DriverState> = Arc::downgrade(&self.shared);
        connection
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
        self.shared.end(); // first: the end of the task must not look like that of its runtime
        let abort = lock(&self.shared.task).abort.take();
        if let Some(task) = abort {
            task.abort();
        }
        self.shared.poll_lock.wake_task(); // so that it drops the connection
    }
}

impl Movable for DriverState {
    fn move_to(self: Arc<Self>, runtime: &Handle, is_own: bool) {
        self.relocation.request(runtime);
        self.spawn(runtime, is_own);
    }
}

impl DriverState {
    /// Replaces the task by one on `runtime`.
    fn spawn(self: &Arc<Self>, runtime: &Handle, is_own: bool) {
        let (number, before) = {
            let mut task = lock(&self.task);
            task.number += 1;
            (task.number, task.abort.take())
        };
        if let Some(before) = before {
            before.abort();
        }
        self.poll_lock.is_due.store(true, Ordering::Release);
        let new = PollTask { driver: Arc::clone(self), number, is_on_own: is_own };
        // Holds no lock: a runtime that has ended drops the task here.
        let spawned = runtime.spawn(in_one_process(new.run())).abort_handle();
        let mut task = lock(&self.task);
        if task.number == number && !self.has_ended.load(Ordering::Acquire) {
            task.abort = Some(spawned);
        } else {
            drop(task);
            spawned.abort();
        }
    }

    /// Locks the connection for polling; `None` if another thread has locked it.
    fn try_lock(&self) -> Option<PollGuard<'_>> {
        let begun =
            self.poll_lock.state.compare_exchange(UNLOCKED, LOCKED, Ordering::AcqRel, Ordering::Acquire);
        begun.is_ok().then(|| PollGuard(self))
    }

    /// Polls the connection if it was woken. Returns `true` if the connection has ended.
    fn poll_if_due(&self) -> bool {
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

/// The task that polls a connection, until it has ended or another task replaces this one.
struct PollTask {
    driver: Arc<DriverState>,
    number: u64,
    /// Whether it runs on the manager's own thread.
    is_on_own: bool,
}

impl PollTask {
    async fn run(self) {
        poll_fn(|cx| {
            {
                let task = lock(&self.driver.task);
                if task.number != self.number {
                    return Poll::Ready(());
                }
                // While the task is locked: it must not replace the waker of the next task.
                self.driver.poll_lock.task.register(cx.waker());
            }
            if self.driver.poll_if_due() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Drop for PollTask {
    fn drop(&mut self) {
        let is_current = lock(&self.driver.task).number == self.number;
        if !is_current || self.driver.has_ended.load(Ordering::Acquire) {
            return;
        }
        // The runtime of the task has ended.
        if self.is_on_own {
            self.driver.end();
        } else {
            self.driver.runtimes.on_callers_ended();
        }
    }
}

/// How often a sender polls before it leaves the rest to the task: it may have other work to do.
const MAX_POLLS: usize = 4;

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read};
    use std::net::{SocketAddr, TcpListener};
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpStream;
    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    use super::*;
    use crate::backend::redis::transport::movable_stream::MovableStream;

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

    /// Starts a driver on the current runtime.
    fn start(connection: impl Future<Output = ()> + Send + 'static) -> InlineDriver {
        InlineDriver::start(connection, Relocation::at_home(), &Arc::default())
    }

    fn has_ended(driver: &InlineDriver) -> bool {
        driver.shared.has_ended.load(Ordering::SeqCst)
    }

    /// Starts a driver whose task is never polled, as on a busy runtime.
    fn alone() -> (Runtime, InlineDriver, UnboundedSender<u32>, mpsc::Receiver<(u32, ThreadId)>) {
        let ((sender, receiver), (report, polled), runtime) =
            (unbounded_channel(), mpsc::channel(), runtime());
        let driver = runtime.block_on(async { start(connection(receiver, report)) });
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
                let driver = start(connection(receiver, report));
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
        let driver = Arc::new(runtime.block_on(async { start(connection) }));
        *lock(&place) = Some(Arc::clone(&driver));

        driver.send(|| sender.send(1).expect("the connection listens"));

        assert_eq!(polled.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
        assert!(driver.shared.try_lock().is_some(), "it is unlocked");
        *lock(&place) = None;
    }

    #[test]
    fn no_request_is_lost_under_concurrent_senders_and_moves() {
        const EACH: u32 = 20_000;
        let ((sender, receiver), (report, polled)) = (unbounded_channel(), mpsc::channel());
        let (pass, driver) = mpsc::channel();
        let task = thread::spawn(move || {
            runtime().block_on(async {
                let driver = Arc::new(start(connection(receiver, report)));
                let _ = pass.send((Arc::clone(&driver), Handle::current()));
                while !has_ended(&driver) {
                    tokio::task::yield_now().await;
                }
            });
        });
        let (driver, first) = driver.recv().expect("it has started");
        let second = Builder::new_multi_thread().worker_threads(1).build().expect("a runtime can be made");

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
            scope.spawn(|| {
                for _ in 0..200 {
                    Arc::clone(&driver.shared).move_to(second.handle(), false);
                    thread::yield_now();
                    Arc::clone(&driver.shared).move_to(&first, true);
                }
            });
        });

        for _ in 0..3 * (EACH + EACH.div_ceil(7)) {
            polled.recv_timeout(SOON).expect("all that was sent arrives");
        }
        drop(sender);
        task.join().expect("it ends with the connection");
    }

    #[test]
    fn a_moved_connection_is_polled_on_its_new_runtime_and_outlives_the_old_one() {
        let (first, driver, sender, polled) = alone();
        let second = Builder::new_multi_thread().worker_threads(1).build().expect("a runtime can be made");

        Arc::clone(&driver.shared).move_to(second.handle(), true);
        drop(first);
        sender.send(7).expect("the connection listens");

        let (word, thread) = polled.recv_timeout(SOON).expect("the new task polls");
        assert_eq!(word, 7);
        assert_ne!(thread, thread::current().id());
        assert!(!has_ended(&driver));
        drop(second);
        assert!(has_ended(&driver), "no other runtime is left");
    }

    /// Starts a driver that writes bytes to `address`, and that the callers' runtime drives.
    fn writes_to(
        address: SocketAddr,
        own: &Runtime,
        callers: &Runtime,
    ) -> (InlineDriver, UnboundedSender<u8>) {
        let runtimes = Arc::<Runtimes>::default();
        runtimes.set_own(own.handle().clone());
        callers.block_on(async { runtimes.set_callers() });
        let (sender, mut receiver) = unbounded_channel();
        let driver = own.block_on(async {
            let (stream, relocation) = (TcpStream::connect(address).await, Relocation::at_home());
            let mut stream = MovableStream::new(stream.expect("it connects"), Arc::clone(&relocation));
            let connection = async move {
                while let Some(byte) = receiver.recv().await {
                    if stream.write_u8(byte).await.is_err() {
                        break;
                    }
                }
            };
            InlineDriver::start(connection, relocation, &runtimes)
        });
        runtimes.adopt(driver.downgrade());
        (driver, sender)
    }

    /// The own thread is busy, so it has not moved the connection when the request is sent.
    #[test]
    fn a_request_just_after_the_end_of_the_callers_runtime_is_written() {
        let own = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let (own, callers) = (own.expect("a runtime can be made"), runtime());
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let (driver, sender) = writes_to(listener.local_addr().expect("it is bound"), &own, &callers);
        let (peer, _) = listener.accept().expect("it connects");
        let (report, received) = mpsc::channel();
        thread::spawn(move || {
            BufReader::new(peer).bytes().map_while(Result::ok).try_for_each(|byte| report.send(byte))
        });
        let send = |byte| driver.send(|| sender.send(byte).expect("the connection listens"));
        send(1);
        let is_received = async {
            while received.try_recv() != Ok(1) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        callers.block_on(async { tokio::time::timeout(SOON, is_received).await }).expect("it is written");
        let (unblock, blocked) = mpsc::channel::<()>();
        own.spawn(async move {
            let _ = blocked.recv();
        });

        drop(callers);
        send(2);

        assert!(!has_ended(&driver));
        drop(unblock);
        assert_eq!(received.recv_timeout(SOON), Ok(2));
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
        let start_on = |runtime: &Runtime, panics: bool| {
            let dropped = Arc::new(AtomicUsize::new(0));
            let note = Dropped(Arc::clone(&dropped));
            let driver = runtime.block_on(async {
                start(poll_fn(move |_| {
                    let _note = &note;
                    assert!(!panics, "this panic is part of the test");
                    Poll::Pending
                }))
            });
            (driver, dropped)
        };
        let runtime = runtime();

        let (driver, dropped) = start_on(&runtime, false);
        drop(driver);
        assert_eq!(dropped.load(Ordering::SeqCst), 1, "it goes with the driver");

        let (driver, dropped) = start_on(&runtime, true);
        driver.send(|| {});
        assert_eq!(dropped.load(Ordering::SeqCst), 1, "it has panicked");

        let (_pump, dropped) = start_on(&runtime, false);
        drop(runtime);
        assert_eq!(dropped.load(Ordering::SeqCst), 1, "it ends with the runtime");
    }

    #[test]
    fn a_driver_dropped_during_a_poll_ends_the_connection() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (note, place) = (Dropped(Arc::clone(&dropped)), Arc::new(Mutex::new(None::<InlineDriver>)));
        let (gone, runtime) = (Arc::clone(&place), runtime());
        let driver = runtime.block_on(async {
            start(poll_fn(move |_| {
                let _note = &note;
                drop(lock(&gone).take()); // as a reply may
                Poll::Pending
            }))
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
            start(poll_fn(move |cx| {
                let _note = &note;
                polls += 1;
                if polls == MAX_POLLS {
                    drop(lock(&gone).take());
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            }))
        });
        let shared = Arc::clone(&driver.shared);
        *lock(&place) = Some(driver);

        shared.try_lock().expect("the connection is not being polled").poll();

        assert_eq!(dropped.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn the_end_of_a_connection_is_waited_for() {
        let (_runtime, driver, sender, _polled) = alone();
        assert!(driver.ended().now_or_never().is_none());

        drop(sender);
        driver.send(|| {});

        assert!(driver.ended().now_or_never().is_some() && has_ended(&driver));
    }
}
