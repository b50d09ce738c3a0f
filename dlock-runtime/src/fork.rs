//! Detection of `fork`: a child process must not use its parent's connections.
//!
//! After `fork` without `exec`, the child has a copy of the parent's memory, and shares its
//! sockets, timers, and epoll instances. If both used the manager, they would send the same token
//! twice, read each other's replies, and release each other's locks. So a manager belongs to the
//! process that created it:
//!
//! - Each entry point checks [`ForkDetector::is_forked`] before it locks a mutex: a thread that
//!   does not exist in the child may have held the mutex at the `fork`.
//! - [`InOneProcess`] wraps each task and each socket. In the child it is not polled, and it is
//!   leaked instead of dropped: dropping a socket deregisters it from the epoll instance, which the
//!   parent shares.
//! - [`PerProcess`] is a static that is empty in the child.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use once_cell::race::OnceBox;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::error::Error;
use crate::key::LockKey;

/// Remembers the process that created it.
///
/// It compares a counter that a `pthread_atfork` handler increments in the child. `getpid` is a
/// system call: it takes 360 ns on a virtual machine, and a hand-off in memory, which takes 1 us,
/// would need three.
#[derive(Debug)]
pub(crate) struct ForkDetector {
    created: forkguard::Guard,
    /// Whether a simulation treats this process as forked.
    #[cfg(test)]
    simulated: std::sync::atomic::AtomicBool,
}

impl ForkDetector {
    pub(crate) fn new() -> Self {
        Self {
            created: forkguard::new(),
            #[cfg(test)]
            simulated: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// Returns `true` if the current process is not the one that created this.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        #[cfg(test)]
        if self.simulated.load(std::sync::atomic::Ordering::Relaxed) {
            return true;
        }
        self.created.clone().detected_fork() // without `clone`, a check would reset the detection
    }

    /// Treats the current process as forked from now on.
    #[cfg(test)]
    pub(crate) fn simulate_fork(&self) {
        self.simulated.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Returns the error of a request to a manager that another process connected.
#[cold]
pub(crate) fn forked_error(key: Option<LockKey>) -> Error {
    Error::Unavailable { key, reason: FORKED.into() }
}

/// Why a request of a forked process is refused, and what to do.
pub(crate) const FORKED: &str =
    "this process was forked after the lock manager had connected; connect after the fork";

/// A value for the process that created it. In a forked process it is not polled, and leaked, not
/// dropped.
#[derive(Debug)]
pub(crate) struct InOneProcess<T> {
    /// Always `Some`; an `Option` so that it can be leaked.
    inner: Option<T>,
    detector: ForkDetector,
}

impl<T> InOneProcess<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self { inner: Some(inner), detector: ForkDetector::new() }
    }

    /// Returns the inner value, in the process that created it.
    fn get(&mut self) -> Option<&mut T> {
        if self.detector.is_forked() { None } else { self.inner.as_mut() }
    }
}

/// Wraps a task. In a forked process, it stays pending for ever.
pub(crate) fn in_one_process<F: Future>(task: F) -> InOneProcess<Pin<Box<F>>> {
    InOneProcess::new(Box::pin(task))
}

impl<T> Drop for InOneProcess<T> {
    fn drop(&mut self) {
        if self.detector.is_forked() {
            std::mem::forget(self.inner.take());
        }
    }
}

impl<F: Future + Unpin> Future for InOneProcess<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.get().map_or(Poll::Pending, |task| Pin::new(task).poll(cx))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for InOneProcess<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.get().map_or(Poll::Pending, |stream| Pin::new(stream).poll_read(cx, buffer))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for InOneProcess<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get().map_or(Poll::Pending, |stream| Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get().map_or(Poll::Pending, |stream| Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get().map_or(Poll::Pending, |stream| Pin::new(stream).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get().map_or(Poll::Pending, |stream| Pin::new(stream).poll_write_vectored(cx, bytes))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }
}

/// A static with one value per process: a child starts with an empty one.
pub(crate) struct PerProcess<T> {
    node: OnceBox<ProcessValue<T>>,
}

/// The value of one process, and the static of its child.
struct ProcessValue<T> {
    value: T,
    detector: ForkDetector,
    child: PerProcess<T>,
}

impl<T: Default> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { node: OnceBox::new() }
    }

    /// Returns the value of the current process.
    pub(crate) fn get(&self) -> &T {
        let mut node = self.node();
        while node.detector.is_forked() {
            node = node.child.node();
        }
        &node.value
    }

    /// Returns the result of `find` for the current process, or for its nearest ancestor with one.
    pub(crate) fn find_latest<'a, R>(&'a self, find: impl Fn(&'a T) -> Option<R>) -> Option<R> {
        let mut node = self.node();
        let mut latest = find(&node.value);
        while node.detector.is_forked() {
            node = node.child.node();
            latest = find(&node.value).or(latest);
        }
        latest
    }

    fn node(&self) -> &ProcessValue<T> {
        // Without a mutex: if several threads initialize it, one of them wins.
        self.node.get_or_init(|| {
            let (value, detector) = (T::default(), ForkDetector::new());
            Box::new(ProcessValue { value, detector, child: Self::new() })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::{self, RecvTimeoutError};
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::sync::lock;
    use crate::telemetry::tests::emitted;
    use crate::{LockManager, LossCause};

    const LONG: Duration = Duration::from_secs(10);

    fn is_refused<T>(request: impl Future<Output = Result<T, Error>>) -> bool {
        request
            .now_or_never()
            .is_some_and(|ended| ended.is_err_and(|error| error.to_string().contains(FORKED)))
    }

    #[test]
    fn forked_process_locks_no_mutex_of_its_parent() {
        let locks = LockManager::in_new_memory();
        let (lock, other) = (locks.lock("order:7").wait(LONG), locks.lock("order:8").wait(LONG));
        let held = lock.acquire().now_or_never().expect("it does not wait").expect("it is free");
        // Nested, so that its observer is not the call itself.
        let mut body = Box::pin(other.run(async |_| other.run(async |_| pending::<()>().await).await));
        assert!(body.as_mut().now_or_never().is_none());
        let mut waiting = Box::pin(lock.acquire());
        assert!(waiting.as_mut().now_or_never().is_none());
        let (leader, idle) = (locks.leader("indexer"), locks.leader("mails"));
        let mut leading = Box::pin(leader.lead(async |_| pending::<()>().await));
        assert!(leading.as_mut().now_or_never().is_none() && leader.is_leader());
        let mut second_call = Box::pin(leader.lead(async |_| ()));
        assert!(second_call.as_mut().now_or_never().is_none(), "it waits for the first one");
        let mut resigning = Box::pin(leader.resign());
        let mut pausing = Box::pin(idle.lead(async |_| ()));
        let (mut watch, mut idle_watch) = (idle.watch(), idle.watch());
        let mut watching = Box::pin(watch.changed());
        assert!(resigning.as_mut().now_or_never().is_none() && pausing.as_mut().now_or_never().is_none());
        assert!(
            watching.as_mut().now_or_never().is_some_and(|leader| leader.is_ok_and(|none| none.is_none()))
        );
        drop(watching);
        let mut watching = Box::pin(watch.changed());
        assert!(watching.as_mut().now_or_never().is_none());
        let (engine, of_held) = (locks.engine(), held.held().expect("there is a hold").root());
        let elections = locks.elections();
        let (locked, is_locked) = mpsc::channel();
        let (ends, has_ended) = mpsc::channel::<()>();

        let is_late = std::thread::scope(|scope| {
            let other_thread = scope.spawn(move || {
                let _waits = (lock_all(engine), elections.lock_all());
                of_held.poll_state(None, |_| {
                    locked.send(()).expect("the test listens");
                    Some(has_ended.recv_timeout(LONG) == Err(RecvTimeoutError::Timeout))
                })
            });
            is_locked.recv().expect("all is locked");
            engine.fork.simulate_fork();
            engine.clock.simulate_fork();

            // With a subscriber: the limit of an event reads the clock.
            let events = emitted(|| assert!(is_refused(waiting.as_mut())));
            assert!(events.iter().any(|line| line.starts_with("WARN dlock.unavailable")), "{events:?}");
            drop(waiting);
            assert!(is_refused(second_call.as_mut()) && is_refused(leading.as_mut()));
            assert!(is_refused(resigning.as_mut()));
            assert!(is_refused(pausing.as_mut()) && is_refused(watching.as_mut()));
            assert!(is_refused(idle.lead(async |_| ())) && is_refused(idle.resign()));
            assert!(is_refused(idle_watch.changed()) && !leader.is_leader());
            let ended = body.as_mut().now_or_never().expect("it ends at once");
            assert!(matches!(ended, Err(Error::Lost { cause: LossCause::Forked, .. })), "{ended:?}");
            drop(body);
            assert!(is_refused(lock.acquire()) && is_refused(lock.try_acquire()));
            assert!(is_refused(lock.run(async |_| ())) && is_refused(locks.ready()));
            assert!(is_refused(locks.inspect("order:7")) && is_refused(locks.force_release("order:7")));
            assert!(is_refused(held.extend(LONG)) && is_refused(held.fencing_token()));
            assert!(is_refused(async { held.check() }) && held.remaining().is_zero());
            assert_eq!(held.lost().now_or_never(), Some(LossCause::Forked));
            // A body that forks while it is stopped because its hold has expired.
            let expired = held.held().expect("there is a hold").lost_error((LossCause::Expired, LONG), false);
            assert!(matches!(expired, Error::Lost { cause: LossCause::Expired, reason: None, .. }));
            assert!(locks.shutdown(LONG).now_or_never().is_some());
            drop(ends);
            other_thread.join().expect("no panic")
        });

        assert_eq!(is_late, Some(false), "it waits for a mutex");
        drop((leading, second_call, resigning, pausing, watching));
        drop((held, lock, other, locks));
    }

    /// Locks the mutexes of an engine and of its clock.
    fn lock_all(engine: &crate::engine::Engine) -> impl Sized + '_ {
        let (_, clock) = engine.event_limits();
        (lock(&engine.wait_graph), engine.lock_shards(), clock.lock())
    }

    #[tokio::test]
    async fn a_socket_is_used_only_in_its_own_process() {
        let (socket, mut peer) = tokio::io::duplex(64);
        let mut socket = InOneProcess::new(socket);
        let (mut read, mut written) = ([0; 8], [0; 8]);
        peer.write_all(b"ping").await.expect("there is room");

        assert!(socket.is_write_vectored());
        assert_eq!(socket.read(&mut read).await.expect("it is open"), 4);
        socket.write_all(b"ab").await.expect("there is room");
        let parts = [io::IoSlice::new(b"c"), io::IoSlice::new(b"d")];
        assert_eq!(socket.write_vectored(&parts).await.expect("there is room"), 2);
        socket.flush().await.expect("it is open");
        assert_eq!(peer.read(&mut written).await.expect("it is open"), 4);
        assert_eq!((&read[..4], &written[..4]), (&b"ping"[..], &b"abcd"[..]));

        peer.write_all(b"ping").await.expect("there is room");
        socket.detector.simulate_fork();
        assert!(socket.read(&mut read).now_or_never().is_none());
        assert!(socket.write(b"ab").now_or_never().is_none());
        assert!(socket.write_vectored(&parts).now_or_never().is_none());
        assert!(socket.flush().now_or_never().is_none() && socket.shutdown().now_or_never().is_none());
        drop(socket);
        assert!(peer.read(&mut written).now_or_never().is_none(), "it is still open");
    }

    #[tokio::test]
    async fn the_end_of_a_socket_is_passed_on_in_its_own_process() {
        let (socket, mut peer) = tokio::io::duplex(64);
        let mut socket = InOneProcess::new(socket);

        socket.shutdown().await.expect("it is open");

        assert_eq!(peer.read(&mut [0; 8]).now_or_never().expect("it is ready").expect("it has ended"), 0);
    }

    #[test]
    fn a_task_is_neither_polled_nor_dropped_in_a_forked_process() {
        for is_forked in [false, true] {
            let alive = std::sync::Arc::new(());
            let of_task = std::sync::Arc::clone(&alive);
            let mut task = in_one_process(async move { std::sync::Arc::strong_count(&of_task) });
            if is_forked {
                task.detector.simulate_fork();
            }

            assert_eq!((&mut task).now_or_never(), (!is_forked).then_some(2));
            drop(task);

            assert_eq!(std::sync::Arc::strong_count(&alive), if is_forked { 2 } else { 1 });
        }
    }

    #[test]
    fn a_static_is_empty_in_each_forked_process() {
        let value = PerProcess::<AtomicU64>::new();
        let found =
            || value.find_latest(|value| Some(value.load(Ordering::Relaxed)).filter(|value| *value > 0));
        assert_eq!(found(), None);
        value.get().store(1, Ordering::Relaxed);
        assert_eq!((value.get().load(Ordering::Relaxed), found()), (1, Some(1)));

        value.node().detector.simulate_fork();

        assert_eq!((value.get().load(Ordering::Relaxed), found()), (0, Some(1)), "that of the parent");
        value.get().store(2, Ordering::Relaxed);
        assert_eq!((value.get().load(Ordering::Relaxed), found()), (2, Some(2)));
    }
}
