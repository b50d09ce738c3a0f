//! The runtimes of a manager's connections: the manager's own thread, and the runtime of its
//! callers.
//!
//! The own thread keeps time, renews leases, and opens and checks connections. Requests are written
//! and replies are read on the callers' runtime while it makes progress: a task that waits for a
//! reply is then resumed by the thread that reads it, and a lone call is as fast as a bare
//! connection. If the callers' runtime is blocked or ends, the own thread does both.
//!
//! ```text
//!          Running  --a reply is late-->  Probed  --the probe has not run for 10 ms-->  Blocked
//!          ^  ^                             |                                              |
//!          |  +--------the probe has run----+                                              |
//!          +----------the probe has run, and the return delay has passed-------------------+
//!
//!  from each state: the runtime has ended --> Ended
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use once_cell::sync::OnceCell;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::backend::redis::boot_timer;
use crate::clock::boot_time;
use crate::fork::in_one_process;
use crate::sync::lock;

/// The runtimes of a manager's connections.
#[derive(Default)]
pub(crate) struct Runtimes {
    /// The runtime of the manager's own thread.
    own: OnceCell<Handle>,
    /// The runtime of the callers, if the manager was connected on one that has I/O, until it ends.
    callers: Mutex<Option<Handle>>,
    state: Mutex<CallersState>,
    return_delay: Mutex<ReturnDelay>,
    /// Whether connections are driven on the callers' runtime.
    uses_callers: AtomicBool,
    /// The connections that move. Locked while they move.
    connections: Mutex<Vec<Weak<dyn Movable>>>,
    /// Notified when connections have moved to the own thread, which must then write what is
    /// queued.
    pub(super) has_left_callers: Notify,
    /// Notified when connections have moved back, where they must be watched.
    pub(super) has_returned_to_callers: Notify,
}

/// An open connection that can move to another runtime.
pub(crate) trait Movable: Send + Sync {
    /// Moves the connection: the task that polls it, and its socket.
    /// `is_own` is `true` for the runtime of the manager's own thread.
    fn move_to(self: Arc<Self>, runtime: &Handle, is_own: bool);
}

/// The state of the callers' runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum CallersState {
    /// It makes progress.
    #[default]
    Running,
    /// A probe was spawned on it and has not run yet.
    Probed(Instant),
    /// A probe has not run in time.
    Blocked,
    /// It has ended.
    Ended,
}

impl Runtimes {
    /// Sets the runtime of the manager's own thread.
    pub(super) fn set_own(&self, own: Handle) {
        let _ = self.own.set(own);
    }

    /// Returns the runtime of the manager's own thread, once it has started.
    pub(super) fn own(&self) -> Option<&Handle> {
        self.own.get()
    }

    /// Uses the current runtime as the runtime of the callers, if it has I/O.
    pub(super) fn set_callers(&self) {
        if let Ok(callers) = Handle::try_current()
            && has_io()
        {
            *lock(&self.callers) = Some(callers);
            self.uses_callers.store(true, Ordering::Release);
        }
    }

    fn callers(&self) -> Option<Handle> {
        lock(&self.callers).clone()
    }

    /// Returns `true` if requests are written and replies are read on the callers' runtime.
    pub(super) fn uses_callers(&self) -> bool {
        self.uses_callers.load(Ordering::Acquire)
    }

    /// Spawns a task on the manager's own thread. Before that has started, the task is dropped.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
        Some(self.own()?.spawn(in_one_process(task)).abort_handle())
    }

    /// Sleeps on the manager's own thread, which has timers. If the future is dropped, its task
    /// ends.
    pub(super) async fn sleep(&self, time: Duration) {
        let due = boot_time().plus(time);
        let mut timer = JoinSet::new();
        // The thread has started: only then do callers have the manager.
        if let Some(own) = self.own() {
            timer.spawn_on(boot_timer::sleep_until(due), own);
        }
        let _ = timer.join_next().await;
    }

    /// Moves an open connection to the callers' runtime, and moves it with the others from now on.
    pub(crate) fn adopt(&self, connection: Weak<dyn Movable>) {
        let mut connections = lock(&self.connections);
        connections.retain(|connection| connection.strong_count() > 0);
        if self.uses_callers()
            && let Some(callers) = self.callers()
        {
            move_all(std::slice::from_ref(&connection), &callers, false);
        }
        connections.push(connection);
    }

    /// Called while replies are late: finds out whether the callers' runtime is blocked, and if so,
    /// moves the connections to the own thread.
    pub(crate) fn check_callers(self: &Arc<Self>) {
        if !self.uses_callers() {
            return;
        }
        let now = Instant::now();
        let is_blocked = match &mut *lock(&self.state) {
            state @ CallersState::Running => {
                *state = CallersState::Probed(now);
                false
            }
            CallersState::Probed(since) if now.duration_since(*since) < PROBE_TIMEOUT => return,
            state @ CallersState::Probed(_) => {
                *state = CallersState::Blocked;
                true
            }
            CallersState::Blocked | CallersState::Ended => return,
        };
        if is_blocked {
            return self.move_to_own();
        }
        // On a multi-thread runtime, this also has an idle worker read events if the worker that
        // did so last is blocked.
        let runtimes = Arc::clone(self);
        self.spawn_on_callers(async move { runtimes.on_probe_has_run() });
    }

    /// Waits for the reply to a request that is no batch in flight, for which there is no watch.
    /// Meanwhile, finds out whether the callers' runtime is blocked: it writes the request.
    pub(crate) async fn watch<T>(self: &Arc<Self>, reply: impl Future<Output = T>) -> T {
        let mut reply = pin!(reply);
        loop {
            match tokio::time::timeout(PROBE_TIMEOUT, reply.as_mut()).await {
                Ok(reply) => return reply,
                Err(_) => self.check_callers(),
            }
        }
    }

    /// Spawns a task on the callers' runtime. If it is dropped before its end, that runtime has
    /// ended.
    pub(super) fn spawn_on_callers(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let Some(callers) = self.callers() else { return };
        let mut end = EndDetector(Some(Arc::clone(self)));
        callers.spawn(in_one_process(async move {
            task.await;
            end.0.take();
        }));
    }

    /// Called when a task of the callers' runtime is dropped before its end.
    pub(crate) fn on_callers_ended(self: &Arc<Self>) {
        *lock(&self.state) = CallersState::Ended;
        // A handle would keep the descriptors of the runtime open.
        let callers = lock(&self.callers).take();
        drop(callers);
        let runtimes = Arc::clone(self);
        // On the own thread: a connection that moves may just have spawned the task that was
        // dropped.
        self.spawn(async move { runtimes.move_to_own() });
    }

    fn on_probe_has_run(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        match *state {
            CallersState::Probed(_) => *state = CallersState::Running,
            CallersState::Blocked => {
                let (runtimes, delay) = (Arc::clone(self), lock(&self.return_delay).next(Instant::now()));
                let returns = async move {
                    tokio::time::sleep(delay).await;
                    runtimes.return_to_callers();
                };
                drop(state);
                self.spawn(returns);
            }
            CallersState::Running | CallersState::Ended => {}
        }
    }

    fn move_to_own(&self) {
        let connections = lock(&self.connections);
        self.uses_callers.store(false, Ordering::Release);
        if let Some(own) = self.own() {
            move_all(&connections, own, true);
        }
        drop(connections);
        self.has_left_callers.notify_one();
    }

    fn return_to_callers(&self) {
        let connections = lock(&self.connections);
        {
            let mut state = lock(&self.state);
            if *state != CallersState::Blocked {
                return; // it has ended meanwhile
            }
            *state = CallersState::Running;
        }
        self.uses_callers.store(true, Ordering::Release);
        if let Some(callers) = self.callers() {
            move_all(&connections, &callers, false);
        }
        drop(connections);
        self.has_returned_to_callers.notify_waiters();
    }
}

fn move_all(connections: &[Weak<dyn Movable>], runtime: &Handle, is_own: bool) {
    for connection in connections.iter().filter_map(Weak::upgrade) {
        connection.move_to(runtime, is_own);
    }
}

/// Notices that a task on the callers' runtime is dropped before its end, which sets it to `None`.
struct EndDetector(Option<Arc<Runtimes>>);

impl Drop for EndDetector {
    fn drop(&mut self) {
        if let Some(runtimes) = self.0.take() {
            runtimes.on_callers_ended();
        }
    }
}

/// Returns `true` if the current runtime has I/O. tokio shows it only by a panic, which its message
/// reports.
fn has_io() -> bool {
    let Ok(socket) = std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)) else { return false };
    if socket.set_nonblocking(true).is_err() {
        return false;
    }
    let registered = catch_unwind(AssertUnwindSafe(|| tokio::net::UdpSocket::from_std(socket).is_ok()));
    registered.unwrap_or(false)
}

/// How long a probe may take on a runtime that makes progress. A renewal waits for twice this time
/// if the runtime is blocked.
const PROBE_TIMEOUT: Duration = Duration::from_millis(10);

/// How long connections stay on the own thread after the callers' runtime was blocked.
///
/// A single pause, such as one of a busy machine, costs little. A runtime that blocks often is
/// waited for at most about once per second.
#[derive(Default)]
struct ReturnDelay {
    /// The last delay, and when it ended.
    last: Option<(Duration, Instant)>,
}

impl ReturnDelay {
    const SHORTEST: Duration = Duration::from_millis(20);
    const LONGEST: Duration = Duration::from_secs(1);

    /// Returns the delay from `now` on, when a block has ended. It doubles if that is within the
    /// longest delay after the last return.
    fn next(&mut self, now: Instant) -> Duration {
        let delay = match self.last {
            Some((delay, ended)) if now.saturating_duration_since(ended) < Self::LONGEST => {
                (delay * 2).min(Self::LONGEST)
            }
            _ => Self::SHORTEST,
        };
        self.last = Some((delay, now + delay));
        delay
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, poll_fn};
    use std::rc::Rc;
    use std::sync::mpsc;
    use std::task::Poll;
    use std::thread::{self, ThreadId};

    use futures_util::FutureExt;
    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
    use tokio::sync::oneshot;

    use super::*;
    use crate::backend::redis::tests::is_notified;
    use crate::backend::redis::transport::inline_io::InlineDriver;
    use crate::backend::redis::transport::movable_stream::Relocation;
    use crate::protocol::deadline::BootInstant;
    use crate::simulated;

    const SOON: Duration = Duration::from_secs(20);

    fn multi_thread() -> Runtime {
        Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime can be made")
    }

    /// The runtimes of a manager, and one connection that reports the threads that poll it.
    struct TestRuntimes {
        runtimes: Arc<Runtimes>,
        own: Runtime,
        callers: Option<Runtime>,
        driver: InlineDriver,
        sender: UnboundedSender<()>,
        polled: mpsc::Receiver<ThreadId>,
    }

    impl TestRuntimes {
        fn new() -> Self {
            let (runtimes, own, callers) = (Arc::<Runtimes>::default(), multi_thread(), multi_thread());
            runtimes.set_own(own.handle().clone());
            callers.block_on(async { runtimes.set_callers() });
            let ((sender, mut receiver), (report, polled)) = (unbounded_channel(), mpsc::channel());
            let connection = poll_fn(move |cx| {
                while let Poll::Ready(Some(())) = receiver.poll_recv(cx) {
                    report.send(thread::current().id()).expect("the test listens");
                }
                Poll::<()>::Pending
            });
            let driver =
                own.block_on(async { InlineDriver::start(connection, Relocation::at_home(), &runtimes) });
            runtimes.adopt(driver.downgrade());
            Self { runtimes, own, callers: Some(callers), driver, sender, polled }
        }

        /// Returns the thread that polls the connection.
        fn polling_thread(&self) -> ThreadId {
            self.sender.send(()).expect("the connection listens");
            self.polled.recv_timeout(SOON).expect("it is polled")
        }

        /// Blocks the callers' runtime until the returned value is dropped.
        fn block_callers(&self) -> mpsc::Sender<()> {
            let ((unblock, blocked), (enter, entered)) = (mpsc::channel::<()>(), mpsc::channel());
            self.callers.as_ref().expect("it runs").spawn(async move {
                enter.send(()).expect("the test waits");
                let _ = blocked.recv();
            });
            entered.recv_timeout(SOON).expect("it is blocked");
            unblock
        }

        fn until(&self, what: &str, condition: impl Fn(&Arc<Runtimes>) -> bool) {
            let condition = async {
                while !condition(&self.runtimes) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            self.own.block_on(async { tokio::time::timeout(SOON, condition).await }).expect(what);
        }
    }

    fn thread_of(runtime: &Runtime) -> ThreadId {
        runtime.block_on(runtime.spawn(async { thread::current().id() })).expect("it runs")
    }

    #[test]
    fn a_connection_is_driven_on_the_callers_runtime() {
        let test = TestRuntimes::new();

        assert!(test.runtimes.uses_callers());
        assert_eq!(test.polling_thread(), thread_of(test.callers.as_ref().expect("it runs")));
    }

    #[test]
    fn a_blocked_runtime_loses_its_connections_and_gets_them_back() {
        let test = TestRuntimes::new();
        let unblock = test.block_callers();

        test.until("it is found to be blocked", |runtimes| {
            runtimes.check_callers();
            !runtimes.uses_callers()
        });
        assert_eq!(test.polling_thread(), thread_of(&test.own));
        drop(unblock);
        test.until("it is used again", |runtimes| runtimes.uses_callers());

        let callers = thread_of(test.callers.as_ref().expect("it runs"));
        test.until("the connection returns", |_| test.polling_thread() == callers);
    }

    /// An idle connection is checked like this: the check would fail, and the connection would be
    /// replaced.
    #[test]
    fn a_request_that_is_watched_is_written_though_the_runtime_is_blocked() {
        let test = TestRuntimes::new();
        let _unblock = test.block_callers();

        let written = test.own.block_on(test.runtimes.watch(async {
            test.sender.send(()).expect("the connection listens");
            let polled = async {
                while test.polled.try_recv().is_err() {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(SOON, polled).await
        }));

        assert!(written.is_ok() && !test.runtimes.uses_callers());
    }

    #[test]
    fn connections_return_after_twice_the_time_if_the_runtime_is_blocked_again() {
        let (mut delay, start) = (ReturnDelay::default(), Instant::now());
        let mut now = start;
        let mut delays = Vec::new();
        for _ in 0..8 {
            let next = delay.next(now);
            delays.push(next.as_millis());
            now += next + Duration::from_millis(500);
        }
        assert_eq!(delays, [20, 40, 80, 160, 320, 640, 1000, 1000]);

        assert_eq!(delay.next(now + ReturnDelay::LONGEST), ReturnDelay::SHORTEST);
    }

    #[test]
    fn a_runtime_that_makes_progress_keeps_its_connections() {
        let test = TestRuntimes::new();

        for _ in 0..50 {
            test.runtimes.check_callers();
            test.until("the probe runs", |runtimes| *lock(&runtimes.state) == CallersState::Running);
        }

        assert!(test.runtimes.uses_callers());
    }

    #[test]
    fn the_own_thread_takes_over_when_the_callers_runtime_ends() {
        let mut test = TestRuntimes::new();
        test.runtimes.spawn_on_callers(pending());

        drop(test.callers.take());
        test.until("it has ended", |runtimes| !runtimes.uses_callers());

        assert_eq!(test.polling_thread(), thread_of(&test.own));
        test.runtimes.check_callers();
        test.runtimes.return_to_callers();
        assert!(!test.runtimes.uses_callers(), "an ended runtime is not used again");
        drop(test.driver);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_counts_the_time_that_the_machine_is_suspended() {
        const MINUTE: Duration = Duration::from_secs(60);
        for (suspended, longest) in [(Duration::ZERO, MINUTE), (MINUTE, MINUTE / 4)] {
            let (runtimes, begun) = (Runtimes::default(), Instant::now());
            runtimes.set_own(Handle::current());
            let machine = Rc::new(Cell::new(Duration::ZERO));
            let boot_clock = Rc::clone(&machine);
            let _simulated =
                simulated::begin(move || BootInstant::START.plus(begun.elapsed() + boot_clock.get()));

            let mut sleep = Box::pin(runtimes.sleep(MINUTE));
            let early = tokio::time::timeout(Duration::from_millis(10), &mut sleep).await;
            assert!(early.is_err(), "its timer runs before the suspend");
            machine.set(suspended);
            sleep.await;

            let slept = begun.elapsed();
            assert!(slept <= longest + Duration::from_millis(2), "{slept:?}");
            assert!(slept + suspended >= MINUTE, "{slept:?}");
        }
    }

    #[test]
    fn a_dropped_sleep_leaves_no_task() {
        let (runtimes, own) = (Runtimes::default(), multi_thread());
        runtimes.set_own(own.handle().clone());
        let tasks = || own.metrics().num_alive_tasks();

        let sleep = runtimes.sleep(Duration::from_secs(3_600));
        assert!(sleep.now_or_never().is_none());

        let ended = async {
            while tasks() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        own.block_on(async { tokio::time::timeout(SOON, ended).await }).expect("its task ends");
    }

    #[test]
    fn a_runtime_without_io_is_not_used() {
        let runtimes = Runtimes::default();
        let without_io = Builder::new_current_thread().enable_time().build().expect("a runtime can be made");

        without_io.block_on(async { runtimes.set_callers() });
        assert!(!runtimes.uses_callers());
        runtimes.set_callers();
        assert!(!runtimes.uses_callers(), "there is no runtime");
    }

    #[test]
    fn the_delay_doubles_only_within_a_second_after_a_return() {
        let (mut delay, start) = (ReturnDelay::default(), Instant::now());
        let ended = start + delay.next(start);
        let mut at_the_bound = ReturnDelay { last: delay.last };

        assert_eq!(at_the_bound.next(ended + ReturnDelay::LONGEST), ReturnDelay::SHORTEST);
        let before = ended + ReturnDelay::LONGEST - Duration::from_nanos(1);
        assert_eq!(delay.next(before), ReturnDelay::SHORTEST * 2);
    }

    #[test]
    fn a_runtime_is_blocked_only_after_the_probe_is_late() {
        let test = TestRuntimes::new();
        let check = |state| {
            *lock(&test.runtimes.state) = state;
            test.runtimes.check_callers();
            *lock(&test.runtimes.state)
        };
        let later = CallersState::Probed(Instant::now() + Duration::from_secs(3_600));

        assert_eq!(check(later), later, "the probe has time to run");
        assert!(test.runtimes.uses_callers());
        for state in [CallersState::Blocked, CallersState::Ended] {
            assert_eq!(check(state), state);
            assert!(test.runtimes.uses_callers());
        }
        assert_eq!(check(CallersState::Probed(Instant::now() - PROBE_TIMEOUT)), CallersState::Blocked);
        assert!(!test.runtimes.uses_callers());
    }

    /// Records to which runtimes it moves: `true` is the manager's own.
    #[derive(Default)]
    struct TestConnection(Mutex<Vec<bool>>);

    impl Movable for TestConnection {
        fn move_to(self: Arc<Self>, _runtime: &Handle, is_own: bool) {
            lock(&self.0).push(is_own);
        }
    }

    #[test]
    fn open_connections_move_and_closed_ones_are_forgotten() {
        let test = TestRuntimes::new();
        let (open, closed) = (Arc::<TestConnection>::default(), Arc::<TestConnection>::default());
        let adopt = |connection: &Arc<TestConnection>| {
            let weak: Weak<TestConnection> = Arc::downgrade(connection);
            test.runtimes.adopt(weak);
        };
        adopt(&closed);
        assert_eq!(lock(&test.runtimes.connections).len(), 2);
        drop(closed);

        adopt(&open);
        assert_eq!(lock(&test.runtimes.connections).len(), 2);
        assert_eq!(*lock(&open.0), [false]);
        test.runtimes.move_to_own();
        let late = Arc::<TestConnection>::default();
        adopt(&late);

        assert_eq!(*lock(&open.0), [false, true]);
        assert!(lock(&late.0).is_empty(), "it is driven on the own thread already");
        assert!(is_notified(&test.runtimes.has_left_callers));
    }

    #[test]
    fn a_task_before_the_thread_has_started_is_dropped() {
        let runtimes = Runtimes::default();

        assert!(runtimes.own().is_none() && runtimes.spawn(pending()).is_none());
        assert!(runtimes.sleep(Duration::from_secs(3_600)).now_or_never().is_some());
    }

    #[test]
    fn a_task_that_is_dropped_shows_the_end_of_the_callers_runtime() {
        let (runtimes, own, callers) = (Arc::<Runtimes>::default(), multi_thread(), multi_thread());
        runtimes.set_own(own.handle().clone());
        callers.block_on(async { runtimes.set_callers() });
        let (run, has_run) = oneshot::channel();
        runtimes.spawn_on_callers(async { run.send(()).expect("the test waits") });
        let state = || *lock(&runtimes.state);
        callers.block_on(async {
            has_run.await.expect("it runs");
            // The only worker runs this after the end of the first task.
            tokio::spawn(async {}).await.expect("it does not panic");
        });
        assert_eq!(state(), CallersState::Running, "a task that has completed shows nothing");

        runtimes.spawn_on_callers(pending());
        drop(callers);

        assert_eq!(state(), CallersState::Ended);
        assert!(runtimes.callers().is_none(), "it would keep descriptors open");
        own.block_on(runtimes.has_left_callers.notified());
        assert!(!runtimes.uses_callers());
    }
}
