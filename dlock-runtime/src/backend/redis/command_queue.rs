//! What the engine's side and the driver's share: what is queued, what is to be undone, and when to wake.
//!
//! Not here: who takes it and sends it (`driver`, `servers`).

use std::future::Future;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use once_cell::sync::OnceCell;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::backend::Request;
use crate::backend::redis::cleanup::CleanupQueue;
use crate::backend::redis::namespaces::Namespaces;
use crate::fork::in_one_process;
use crate::key::Name;
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;

/// What both sides use.
#[derive(Debug, Default)]
pub(super) struct CommandQueue {
    outbox: Mutex<Vec<Request>>,
    /// Tells the driver that something is in the outbox, or due.
    pub(super) wake: Notify,
    /// AtomicDeadline when the driver sleeps, as far as it has been told; 0 while it is awake.
    asleep_until: AtomicU64,
    /// What is to be undone, on whichever server the key lives.
    pub(super) undoing: CleanupQueue,
    /// The same, where each server has a list of its own.
    pub(super) undoing_of_servers: OnceCell<Vec<Arc<CleanupQueue>>>,
    /// How many connections there were, to all servers: no two have one epoch.
    epochs: AtomicU64,
    /// How many requests have not been answered.
    pending: AtomicUsize,
    pub(super) settled: Notify,
    /// The runtime of the driver.
    runtime: Mutex<Option<Handle>>,
    /// Told when the driver is on another one.
    moved: Notify,
    /// The namespaces whose keys are used.
    pub(super) namespaces: Namespaces,
}

impl CommandQueue {
    /// Starts with the manager's own namespace.
    pub(super) fn new(namespace: &str) -> Self {
        Self { namespaces: Namespaces::new(namespace), ..Self::default() }
    }

    /// Runs a task on the runtime of the driver; on none while it moves, and then whatever needs it is dropped.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
        let runtime = self.runtime()?;
        Some(runtime.spawn(in_one_process(task)).abort_handle())
    }

    /// The driver is on `runtime` from now on, or on none for a moment.
    pub(super) fn moves_to(&self, runtime: Option<Handle>) {
        *lock(&self.runtime) = runtime;
        self.moved.notify_waiters();
    }

    fn runtime(&self) -> Option<Handle> {
        lock(&self.runtime).clone()
    }

    /// WaitGraph, by the timers of the driver's runtime, and of the next one where that ends.
    pub(super) async fn sleep(self: Arc<Self>, time: Duration) {
        let since = Instant::now();
        loop {
            let moved = self.moved.notified();
            if let Some(runtime) = self.runtime() {
                let left = time.saturating_sub(since.elapsed());
                if runtime.spawn(async move { tokio::time::sleep(left).await }).await.is_ok() {
                    return;
                }
            }
            moved.await;
        }
    }

    pub(super) fn push(&self, request: Request) {
        self.pending.fetch_add(1, Ordering::AcqRel);
        lock(&self.outbox).push(request);
    }

    /// Queues requests that the driver is to send.
    pub(super) fn push_all(&self, requests: Vec<Request>) {
        if requests.is_empty() {
            return;
        }
        for request in requests {
            self.push(request);
        }
        self.wake.notify_one();
    }

    /// Something is due at `due`: a driver that would sleep for longer is woken, and sleeps no longer than until then.
    pub(super) fn wakes_by(&self, due: BootInstant) {
        let sleeps_longer = |until: u64| due.nanos() < until;
        if sleeps_longer(self.asleep_until.load(Ordering::SeqCst))
            && sleeps_longer(self.asleep_until.fetch_min(due.nanos(), Ordering::SeqCst))
        {
            self.wake.notify_one();
        }
    }

    /// The driver is awake: it is told until when it was to sleep, and of nothing until it does again.
    pub(super) fn wakes_up(&self) -> BootInstant {
        BootInstant::from_nanos(self.asleep_until.swap(0, Ordering::SeqCst))
    }

    /// The driver sleeps from now on; what has come due earlier meanwhile it finds out itself.
    pub(super) fn falls_asleep(&self, until: BootInstant) {
        self.asleep_until.store(until.nanos(), Ordering::SeqCst);
    }

    /// Returns whether somebody waits for the answer to what is queued.
    pub(super) fn is_awaited(&self) -> bool {
        lock(&self.outbox).iter().any(Request::is_awaited)
    }

    /// Returns whether nothing is under way but what is queued.
    pub(super) fn is_alone(&self) -> bool {
        let queued = lock(&self.outbox).len();
        queued >= self.pending.load(Ordering::Acquire)
    }

    /// Returns the key of what is queued first.
    pub(super) fn first_key(&self) -> Option<Name> {
        lock(&self.outbox).first().map(|request| Name::clone(&request.key))
    }

    /// Returns whether what is queued is worth a write of its own, though others are under way.
    pub(super) fn is_much(&self) -> bool {
        let queued = lock(&self.outbox).len();
        queued >= MUCH && queued * PARTS >= self.pending.load(Ordering::Acquire)
    }

    pub(super) fn take(&self) -> Vec<Request> {
        std::mem::take(&mut *lock(&self.outbox))
    }

    /// Returns the epoch of a new connection: from 1, and never the same again.
    pub(super) fn next_epoch(&self) -> u64 {
        self.epochs.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// So many requests less are pending.
    pub(super) fn answered(&self, count: usize) {
        if count > 0 && self.pending.fetch_sub(count, Ordering::AcqRel) == count {
            self.settled.notify_waiters();
        }
    }

    /// Returns whether something is not answered or not undone yet.
    pub(super) fn has_more(&self) -> bool {
        let of_servers = self.undoing_of_servers.get().into_iter().flatten();
        self.pending.load(Ordering::Acquire) > 0
            || !self.undoing.is_empty()
            || of_servers.into_iter().any(|undoing| !undoing.is_empty())
    }
}

/// The pairs of 64 tasks are a third more by writes of 8 to 32 than by none, and 16 are as good as any of these.
pub(super) const MUCH: usize = 16;

/// A thousand tasks gain nothing by writes of 16, and a sixth by those of an eighth of all.
const PARTS: usize = 8;

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::runtime::{Builder, Runtime};

    use super::*;
    use crate::backend::redis::node::test_node::acquire;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().expect("a runtime can be made")
    }

    #[test]
    fn much_is_what_is_worth_a_write_beside_all_that_is_under_way() {
        let shared = CommandQueue::default();
        let push = |count: usize| (0..count).for_each(|_| shared.push(acquire("key")));

        push(MUCH - 1);
        assert!(!shared.is_much());
        push(1);
        assert!(shared.is_much());

        for _ in 0..PARTS {
            assert_eq!(shared.take().len(), MUCH);
            push(MUCH);
        }
        assert!(!shared.is_much(), "there is more under way than it is worth");
        shared.answered(MUCH);
        assert!(shared.is_much());
    }

    #[test]
    fn a_driver_is_woken_once_for_what_comes_due_earlier_and_then_only_for_what_comes_due_before_that() {
        let (shared, at) = (CommandQueue::default(), |ms: u64| BootInstant::from_nanos(ms * 1_000_000));
        let is_woken = || shared.wake.notified().now_or_never().is_some();
        let due = |ms| {
            shared.wakes_by(at(ms));
            is_woken()
        };

        assert!(!due(1), "it is awake, and looks itself");
        shared.falls_asleep(at(500));
        assert!(!due(500) && !due(700));
        assert!(due(100));
        assert!(!due(100) && !due(300), "it has been told of what comes first");
        assert!(due(50));

        assert_eq!(shared.wakes_up(), at(50));
        assert!(!due(20));
        shared.falls_asleep(BootInstant::NEVER);
        assert!(due(600));
    }

    #[test]
    fn a_sleep_goes_on_where_the_driver_goes() {
        let (shared, first, second) = (Arc::new(CommandQueue::default()), runtime(), runtime());
        shared.moves_to(Some(first.handle().clone()));
        let mut sleep = Box::pin(Arc::clone(&shared).sleep(Duration::from_millis(20)));
        assert_eq!((&mut sleep).now_or_never(), None);

        drop(first);
        shared.moves_to(None);
        assert_eq!((&mut sleep).now_or_never(), None, "there is nobody to wake it");
        shared.moves_to(Some(second.handle().clone()));

        second.block_on(sleep);
    }
}
