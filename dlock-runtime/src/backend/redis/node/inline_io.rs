//! What drives a connection: whoever has something to send has it sent here and now, and a task does all else.
//!
//! ```text
//!  caller --begins--> [ a request is queued, the connection is polled: it is written ] --ends--> waits for its answer
//!  task   --woken---> [ the connection is polled: answers are read                   ]
//! ```
//!
//! A request that is only queued has another thread woken to write it, which on an idle machine takes as long as the server takes to
//! answer; and on a busy one that thread comes too late to keep the server at work. So a connection is polled by one thread at a time,
//! whichever: nobody waits for another, as who polls looks again for those who came meanwhile. What wakes the connection when nobody
//! polls it wakes the task.
//!
//! Connections whose answers count together have one task (`SharedDriver`): several would be spread over the threads of a runtime, each of
//! which is woken for its answer, and takes the processor from the servers that have still to give theirs.
//!
//! Not here: what is asked and answered (`exchange`), how a connection is made (`dial`).

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

/// What drives a connection, until it is dropped.
pub(crate) struct InlineDriver {
    shared: Arc<DriverState>,
    /// Where it has one of its own.
    task: Option<AbortHandle>,
}

/// The task of several connections.
#[derive(Default)]
pub(crate) struct SharedDriver {
    task: Arc<AtomicWaker>,
    /// Connections that the task has not seen yet.
    started: Mutex<Vec<DriverTask>>,
    /// Held by the task: what is left of one that has ended must not be woken in place of the next.
    running: tokio::sync::Mutex<()>,
}

/// What the task and those who send share.
struct DriverState {
    connection: Mutex<Option<DrivenConnection>>,
    turn: Arc<PollLock>,
    /// Nobody polls it any more.
    is_over: AtomicBool,
    /// Told when that is so.
    ended: Notify,
}

/// Writes requests and reads answers whenever it is polled.
type DrivenConnection = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Whose turn it is; what the connection wakes.
struct PollLock {
    state: AtomicU8,
    /// Whether the task is to poll.
    is_due: AtomicBool,
    /// Who is woken while nobody polls.
    task: Arc<AtomicWaker>,
}

/// Nobody polls.
const FREE: u8 = 0;
/// Somebody does.
const TAKEN: u8 = 1;
/// Somebody does, and has to look again.
const AGAIN: u8 = 2;

impl InlineDriver {
    /// Leaves the connection to `tender`, or starts a task for it, on the current runtime.
    pub(crate) fn start(
        connection: impl Future<Output = ()> + Send + 'static,
        tender: Option<&SharedDriver>,
    ) -> Self {
        let task = tender.map(|tender| Arc::clone(&tender.task)).unwrap_or_default();
        let turn = Arc::new(PollLock { state: AtomicU8::new(FREE), is_due: AtomicBool::new(true), task });
        let connection = Mutex::new(Some(Box::pin(connection) as DrivenConnection));
        let (is_over, ended) = (AtomicBool::new(false), Notify::new());
        let shared = Arc::new(DriverState { connection, turn, is_over, ended });
        let tending = DriverTask(Arc::clone(&shared));
        let task = match tender {
            Some(tender) => {
                lock(&tender.started).push(tending);
                shared.turn.task.wake();
                None
            }
            None => Some(tokio::spawn(in_one_process(tending.run())).abort_handle()),
        };
        Self { shared, task }
    }

    /// Returns when the connection has ended: the other end has closed it, or is gone. It is for one who waits.
    pub(crate) async fn ended(&self) {
        self.shared.ended.notified().await;
    }

    /// Does what gives the connection something to send, and has it sent. Where somebody else is about the connection, he does.
    pub(crate) fn send(&self, ask: impl FnOnce()) {
        let turn = self.shared.begin();
        ask();
        let Some(turn) = turn else { return };
        // Not by what the task that sends has left of its share.
        let _ = tokio::task::unconstrained(async { turn.go() }).now_or_never();
    }
}

impl Drop for InlineDriver {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
        self.shared.end();
        self.shared.turn.wake_the_task(); // it forgets what has ended
    }
}

impl SharedDriver {
    /// Drives the connections that are left to it, without end. They end with it.
    pub(crate) async fn run(&self) {
        let _running = self.running.lock().await;
        let mut tended = Vec::new();
        poll_fn(|cx| {
            self.task.register(cx.waker());
            tended.append(&mut lock(&self.started));
            tended.retain(|tending: &DriverTask| !tending.0.drive_shared());
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
    /// Begins a turn, unless somebody else has his.
    fn begin(&self) -> Option<PollGuard<'_>> {
        let begun = self.turn.state.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Acquire);
        begun.is_ok().then(|| PollGuard(self))
    }

    /// The task's turn, where it was woken for this connection. Returns whether that has ended.
    fn drive_shared(&self) -> bool {
        if self.turn.is_due.swap(false, Ordering::AcqRel) {
            while !self.turn.request_repoll() {
                if let Some(turn) = self.begin() {
                    turn.go();
                    break;
                }
            }
        }
        self.is_over.load(Ordering::Acquire)
    }

    /// Drops the connection, or leaves that to whoever is about it.
    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        while !self.turn.request_repoll() {
            if let Some(turn) = self.begin() {
                return turn.go();
            }
        }
    }

    /// Polls the connection, and drops it where it has ended.
    fn poll(&self) {
        let waker = Waker::from(Arc::clone(&self.turn));
        let mut connection = lock(&self.connection);
        let mut is_over = self.is_over.load(Ordering::Acquire);
        if let Some(connection) = connection.as_mut().filter(|_| !is_over) {
            let polled = || connection.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
            is_over = catch_unwind(AssertUnwindSafe(polled)).unwrap_or_else(|_| {
                telemetry::actor_failed(&"a connection panicked");
                true
            });
        }
        if is_over {
            self.is_over.store(true, Ordering::Release);
            *connection = None;
            self.ended.notify_one();
        }
    }
}

/// A turn that has begun. Its end is that of what was asked meanwhile, or the task is woken.
struct PollGuard<'a>(&'a DriverState);

impl PollGuard<'_> {
    fn go(self) {
        let turn = &self.0.turn;
        for _ in 0..IN_ONE_GO {
            turn.state.swap(TAKEN, Ordering::AcqRel);
            self.0.poll();
            if turn.state.compare_exchange(TAKEN, FREE, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return std::mem::forget(self);
            }
        }
    }
}

impl Drop for PollGuard<'_> {
    fn drop(&mut self) {
        self.0.turn.state.swap(FREE, Ordering::AcqRel);
        if self.0.is_over.load(Ordering::Acquire) {
            self.0.end(); // there may be no task any more
        } else {
            self.0.turn.wake_the_task();
        }
    }
}

impl PollLock {
    /// Has whoever polls look again; returns whether somebody does.
    fn request_repoll(&self) -> bool {
        // Written where it says so already, too: who polls again then sees all that came before this.
        let again = |state| (state != FREE).then_some(AGAIN);
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, again).is_ok()
    }

    fn wake_the_task(&self) {
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
            self.wake_the_task();
        }
    }
}

/// The task's hold of it: when its runtime ends, so does the connection.
struct DriverTask(Arc<DriverState>);

impl DriverTask {
    /// Drives the one connection, until it has ended.
    async fn run(self) {
        poll_fn(|cx| {
            self.0.turn.task.register(cx.waker());
            if self.0.drive_shared() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Drop for DriverTask {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// How often who polls looks again before he leaves it to the task: it may be one that has its own work to do.
const IN_ONE_GO: usize = 4;

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

    /// A connection that says on which thread it has dealt with what.
    fn connection(
        mut told: UnboundedReceiver<u32>,
        say: mpsc::Sender<(u32, ThreadId)>,
    ) -> impl Future<Output = ()> {
        poll_fn(move |cx| {
            while let Poll::Ready(word) = told.poll_recv(cx) {
                let Some(word) = word else { return Poll::Ready(()) };
                say.send((word, thread::current().id())).expect("the test listens");
            }
            Poll::Pending
        })
    }

    fn has_ended(pump: &InlineDriver) -> bool {
        pump.shared.is_over.load(Ordering::SeqCst)
    }

    /// Starts a pump whose task is never polled, as one of a busy runtime.
    fn alone() -> (Runtime, InlineDriver, UnboundedSender<u32>, mpsc::Receiver<(u32, ThreadId)>) {
        let ((tell, told), (say, said), runtime) = (unbounded_channel(), mpsc::channel(), runtime());
        let pump = runtime.block_on(async { InlineDriver::start(connection(told, say), None) });
        (runtime, pump, tell, said)
    }

    #[test]
    fn what_is_sent_leaves_here_and_now() {
        let (_runtime, pump, tell, said) = alone();

        pump.send(|| tell.send(7).expect("the connection listens"));

        assert_eq!(said.try_recv(), Ok((7, thread::current().id())));
    }

    #[test]
    fn what_nobody_sends_is_the_tasks() {
        let ((tell, told), (say, said)) = (unbounded_channel(), mpsc::channel());
        let task = thread::spawn(move || {
            runtime().block_on(async {
                let pump = InlineDriver::start(connection(told, say), None);
                while !has_ended(&pump) {
                    tokio::task::yield_now().await;
                }
            });
        });

        tell.send(7).expect("the connection listens");
        assert_eq!(
            said.recv_timeout(SOON).map(|(word, thread)| (word, thread == task.thread().id())),
            Ok((7, true))
        );

        drop(tell);
        task.join().expect("it ends with the connection");
    }

    #[test]
    fn who_comes_meanwhile_does_not_wait_and_is_seen_to_by_who_is_about_it() {
        let (_runtime, pump, tell, said) = alone();

        pump.send(|| {
            thread::scope(|scope| {
                let other = scope.spawn(|| pump.send(|| tell.send(7).expect("the connection listens")));
                other.join().expect("it does not wait");
            });
            assert!(said.try_recv().is_err(), "it is not his turn");
        });

        assert_eq!(said.try_recv(), Ok((7, thread::current().id())));
    }

    #[test]
    fn who_sends_from_inside_of_a_turn_is_seen_to_by_it() {
        let ((tell, mut told), (say, said)) = (unbounded_channel::<u32>(), mpsc::channel());
        let (place, runtime) = (Arc::new(Mutex::new(None::<Arc<InlineDriver>>)), runtime());
        let (inner, ask) = (Arc::clone(&place), tell.clone());
        let connection = poll_fn(move |cx| {
            while let Poll::Ready(Some(word)) = told.poll_recv(cx) {
                say.send(word).expect("the test listens");
                let pump = lock(&inner).clone().filter(|_| word < 3);
                if let Some(pump) = pump {
                    pump.send(|| ask.send(word + 1).expect("the connection listens")); // as a reply may
                }
            }
            Poll::Pending
        });
        let pump = Arc::new(runtime.block_on(async { InlineDriver::start(connection, None) }));
        *lock(&place) = Some(Arc::clone(&pump));

        pump.send(|| tell.send(1).expect("the connection listens"));

        assert_eq!(said.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
        assert!(pump.shared.begin().is_some(), "the turn is over");
        *lock(&place) = None;
    }

    #[test]
    fn nothing_is_left_lying_whoever_sends_when() {
        const EACH: u32 = 20_000;
        for tender in [None, Some(Arc::<SharedDriver>::default())] {
            let ((tell, told), (say, said)) = (unbounded_channel(), mpsc::channel());
            let (pass, pump) = mpsc::channel();
            let task = thread::spawn(move || {
                runtime().block_on(async {
                    let pump = Arc::new(InlineDriver::start(connection(told, say), tender.as_deref()));
                    let _tending = tender.map(|tender| tokio::spawn(async move { tender.run().await }));
                    let _ = pass.send(Arc::clone(&pump));
                    while !has_ended(&pump) {
                        tokio::task::yield_now().await;
                    }
                });
            });
            let pump = pump.recv().expect("it has started");

            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for word in 0..EACH {
                            pump.send(|| tell.send(word).expect("the connection listens"));
                            if word % 7 == 0 {
                                tell.send(word).expect("the connection listens");
                            }
                        }
                    });
                }
            });

            for _ in 0..3 * (EACH + EACH.div_ceil(7)) {
                said.recv_timeout(SOON).expect("all that was sent arrives");
            }
            drop(tell);
            task.join().expect("it ends with the connection");
        }
    }

    #[test]
    fn one_task_polls_those_of_its_connections_that_have_something_and_forgets_what_has_ended() {
        let (tender, polls, runtime) = (SharedDriver::default(), [0; 3].map(AtomicUsize::new), runtime());
        let polls = Arc::new(polls);
        let ((say, said), mut tell) = (mpsc::channel(), Vec::new());
        let mut pumps: Vec<_> = (0..3)
            .map(|number| {
                let (asked, told) = unbounded_channel();
                let (polls, mut inner) = (Arc::clone(&polls), Box::pin(connection(told, say.clone())));
                tell.push(asked);
                let counted = poll_fn(move |cx| {
                    polls[number].fetch_add(1, Ordering::SeqCst);
                    inner.as_mut().poll(cx)
                });
                InlineDriver::start(counted, Some(&tender))
            })
            .collect();
        let counts = || [0, 1, 2].map(|number| polls[number].load(Ordering::SeqCst));
        let mut task = Box::pin(tender.run());
        let mut run = || assert!(runtime.block_on(async { (&mut task).now_or_never() }).is_none());

        run();
        assert_eq!(counts(), [1; 3], "each is polled when it is new");
        tell[1].send(7).expect("the connection listens");
        run();
        assert_eq!((counts(), said.try_iter().count()), ([1, 2, 1], 1));
        let ended = Arc::downgrade(&pumps[1].shared);
        drop(pumps.remove(1));
        run();
        assert_eq!((counts(), ended.strong_count()), ([1, 2, 1], 0));

        drop(task);
        assert!(pumps.iter().all(has_ended), "the others end with it");
    }

    /// Says when it is dropped.
    struct Dropped(Arc<AtomicUsize>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_connection_goes_with_the_pump_and_with_the_runtime_and_when_it_panics() {
        let start = |runtime: &Runtime, panics: bool| {
            let dropped = Arc::new(AtomicUsize::new(0));
            let note = Dropped(Arc::clone(&dropped));
            let pump = runtime.block_on(async {
                InlineDriver::start(
                    poll_fn(move |_| {
                        let _note = &note;
                        assert!(!panics, "this panic is part of the test");
                        Poll::Pending
                    }),
                    None,
                )
            });
            (pump, dropped)
        };
        let runtime = runtime();

        let (pump, dropped) = start(&runtime, false);
        drop(pump);
        assert_eq!(dropped.load(Ordering::SeqCst), 1, "it goes with the pump");

        let (pump, dropped) = start(&runtime, true);
        pump.send(|| {});
        assert_eq!(dropped.load(Ordering::SeqCst), 1, "it has panicked");

        let (_pump, dropped) = start(&runtime, false);
        drop(runtime);
        assert_eq!(dropped.load(Ordering::SeqCst), 1, "it goes with the runtime");
    }

    #[test]
    fn a_connection_that_is_given_up_while_it_is_polled_goes_then() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (note, place) = (Dropped(Arc::clone(&dropped)), Arc::new(Mutex::new(None::<InlineDriver>)));
        let (gone, runtime) = (Arc::clone(&place), runtime());
        let pump = runtime.block_on(async {
            InlineDriver::start(
                poll_fn(move |_| {
                    let _note = &note;
                    drop(lock(&gone).take()); // as a reply may
                    Poll::Pending
                }),
                None,
            )
        });
        let shared = Arc::clone(&pump.shared);
        *lock(&place) = Some(pump);

        shared.begin().expect("nobody polls").go();

        assert_eq!(dropped.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_connection_that_is_given_up_in_the_last_poll_of_a_turn_goes_then() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (note, place) = (Dropped(Arc::clone(&dropped)), Arc::new(Mutex::new(None::<InlineDriver>)));
        let (gone, runtime, mut polls) = (Arc::clone(&place), runtime(), 0);
        let pump = runtime.block_on(async {
            InlineDriver::start(
                poll_fn(move |cx| {
                    let _note = &note;
                    polls += 1;
                    if polls == IN_ONE_GO {
                        drop(lock(&gone).take());
                    }
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }),
                None,
            )
        });
        let shared = Arc::clone(&pump.shared);
        *lock(&place) = Some(pump);

        shared.begin().expect("nobody polls").go();

        assert_eq!(dropped.load(Ordering::SeqCst), 1);
    }
}
