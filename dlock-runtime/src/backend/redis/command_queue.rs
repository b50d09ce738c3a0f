//! The state that the engine's side and the driver share: queued requests, cleanup, and wake-ups.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use once_cell::sync::OnceCell;
use tokio::sync::Notify;

use crate::backend::Request;
use crate::backend::redis::batch_size::{BatchSize, LARGE_BATCH};
use crate::backend::redis::cleanup::CleanupQueue;
use crate::backend::redis::namespaces::Namespaces;
use crate::backend::redis::runtimes::Runtimes;
use crate::key::Name;
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;

/// Sends the queued requests.
pub(super) trait RequestSender: Send + Sync {
    /// Sends the queued requests, or has them sent soon.
    fn flush(&self);
}

/// The state that both sides share.
#[derive(Default)]
pub(super) struct CommandQueue {
    outbox: Mutex<Vec<Request>>,
    /// The driver, once it exists.
    sender: OnceCell<Weak<dyn RequestSender>>,
    /// Wakes the driver when a request is queued or a deadline changes.
    pub(super) wake: Notify,
    /// When the driver's sleep ends, in nanoseconds, lowered by earlier deadlines; 0 while it is
    /// awake.
    asleep_until: AtomicU64,
    /// Tokens to clean up, on any server.
    pub(super) cleanup: CleanupQueue,
    /// The same, if each server has its own queue.
    pub(super) cleanup_of_servers: OnceCell<Vec<Arc<CleanupQueue>>>,
    /// The number of connections so far, to all servers. Each connection has its own epoch.
    epochs: AtomicU64,
    /// The number of unanswered requests.
    pending: AtomicUsize,
    pub(super) settled: Notify,
    batch_size: BatchSize,
    /// The runtimes of the connections.
    pub(super) runtimes: Arc<Runtimes>,
    /// Wakes the writer on the callers' runtime when a request is queued.
    pub(super) wake_writer: Notify,
    /// The namespaces of the keys in use.
    pub(super) namespaces: Namespaces,
}

impl CommandQueue {
    /// Creates a queue with the manager's own namespace.
    pub(super) fn new(namespace: &str) -> Self {
        Self { namespaces: Namespaces::new(namespace), ..Self::default() }
    }

    /// Sets the sender of the queued requests.
    pub(super) fn set_sender(&self, sender: Weak<dyn RequestSender>) {
        let _ = self.sender.set(sender);
    }

    /// Sends the queued requests. The backend's own threads call it after an event that has
    /// submitted requests.
    pub(super) fn flush(&self) {
        if let Some(sender) = self.sender.get().and_then(Weak::upgrade) {
            sender.flush();
        }
    }

    /// Has the queued requests written by the writer on the callers' runtime, or by the driver.
    pub(super) fn wake_writer(&self) {
        if self.runtimes.uses_callers() {
            self.wake_writer.notify_one();
        } else {
            self.wake.notify_one();
        }
    }

    /// Returns `true` if a request is queued.
    pub(super) fn has_queued(&self) -> bool {
        !lock(&self.outbox).is_empty()
    }

    pub(super) fn push(&self, request: Request) {
        self.pending.fetch_add(1, Ordering::AcqRel);
        lock(&self.outbox).push(request);
    }

    /// Queues requests and wakes the driver.
    pub(super) fn push_all(&self, requests: Vec<Request>) {
        if requests.is_empty() {
            return;
        }
        for request in requests {
            self.push(request);
        }
        self.wake.notify_one();
    }

    /// Wakes the driver if it would sleep beyond `due`, and lowers the end of its sleep to `due`.
    pub(super) fn wake_by(&self, due: BootInstant) {
        let sleeps_longer = |until: u64| due.nanos() < until;
        if sleeps_longer(self.asleep_until.load(Ordering::SeqCst))
            && sleeps_longer(self.asleep_until.fetch_min(due.nanos(), Ordering::SeqCst))
        {
            self.wake.notify_one();
        }
    }

    /// Marks the driver as awake, and returns when its sleep would have ended. It is not woken
    /// until it sleeps again.
    pub(super) fn mark_awake(&self) -> BootInstant {
        BootInstant::from_nanos(self.asleep_until.swap(0, Ordering::SeqCst))
    }

    /// Marks the driver as asleep. The driver itself checks for deadlines that were set meanwhile.
    pub(super) fn mark_asleep(&self, until: BootInstant) {
        self.asleep_until.store(until.nanos(), Ordering::SeqCst);
    }

    /// Returns `true` if the queued requests justify a write now. `is_idle`: nothing is in flight.
    ///
    /// A few requests are written only if a caller waits for one: a release in the background
    /// leaves together with the next request of its task, which costs less.
    pub(super) fn is_write_due(&self, is_idle: bool) -> bool {
        let outbox = lock(&self.outbox);
        let size = self.batch_size.of(self.pending.load(Ordering::Acquire));
        let is_batch = outbox.len() >= size;
        is_batch && outbox.len() >= LARGE_BATCH
            || (is_batch || is_idle) && outbox.iter().any(Request::is_awaited)
    }

    /// Returns `true` if every pending request is still queued.
    pub(super) fn is_alone(&self) -> bool {
        let queued = lock(&self.outbox).len();
        queued >= self.pending.load(Ordering::Acquire)
    }

    /// Returns the key of the first queued request.
    pub(super) fn first_key(&self) -> Option<Name> {
        lock(&self.outbox).first().map(|request| Name::clone(&request.key))
    }

    pub(super) fn take(&self) -> Vec<Request> {
        let taken = std::mem::take(&mut *lock(&self.outbox));
        if !taken.is_empty() {
            self.batch_size.on_write(self.pending.load(Ordering::Acquire));
        }
        taken
    }

    /// Returns the epoch of a new connection: starts at 1 and is never reused.
    pub(super) fn next_epoch(&self) -> u64 {
        self.epochs.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Subtracts `count` from the pending requests.
    pub(super) fn answered(&self, count: usize) {
        if count > 0 && self.pending.fetch_sub(count, Ordering::AcqRel) == count {
            self.settled.notify_waiters();
        }
    }

    /// Returns `true` if a request is unanswered or a token must be cleaned up.
    pub(super) fn has_more(&self) -> bool {
        let of_servers = self.cleanup_of_servers.get().into_iter().flatten();
        self.pending.load(Ordering::Acquire) > 0
            || !self.cleanup.is_empty()
            || of_servers.into_iter().any(|cleanup| !cleanup.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;
    use crate::backend::redis::node::test_node::acquire;
    use crate::backend::redis::tests::is_notified;
    use crate::backend::reply_recipient::{ReleasedHold, ReplyRecipient};
    use crate::key::LockKey;
    use crate::protocol::command::Command;
    use crate::telemetry::CallSpan;

    #[derive(Debug)]
    struct TestHold(LockKey);

    impl ReleasedHold for TestHold {
        fn key(&self) -> &LockKey {
            &self.0
        }

        fn held_for(&self, _: BootInstant) -> Duration {
            Duration::ZERO
        }

        fn has_expired(&self, _: BootInstant) -> bool {
            false
        }
    }

    /// Returns a release in the background.
    fn release(key: &str) -> Request {
        let hold = TestHold(LockKey::new(key).expect("it is a key"));
        let recipient = Some(ReplyRecipient::Log(Arc::new(hold), CallSpan::none()));
        Request { command: Command::RELEASE, recipient, ..acquire(key) }
    }

    fn queue_of(requests: impl IntoIterator<Item = Request>) -> CommandQueue {
        let shared = CommandQueue::default();
        requests.into_iter().for_each(|request| shared.push(request));
        shared
    }

    #[test]
    fn a_few_requests_are_written_for_a_caller_who_waits() {
        let (awaited, other) = (queue_of([acquire("a")]), queue_of([release("a")]));

        assert!(awaited.is_write_due(true) && awaited.is_write_due(false));
        assert!(!other.is_write_due(true) && !other.is_write_due(false));
        other.push(acquire("b"));
        assert!(other.is_write_due(true) && other.is_write_due(false));
    }

    #[test]
    fn requests_are_collected_until_they_are_a_batch() {
        let shared = queue_of((0..16).map(|_| acquire("in flight")));
        shared.take();

        shared.push(acquire("first"));
        assert!(!shared.is_write_due(false) && shared.is_write_due(true));
        shared.push(acquire("second"));
        shared.push(acquire("third"));
        assert!(shared.is_write_due(false), "it is a sixth of all");
    }

    #[test]
    fn a_large_batch_is_written_although_no_caller_waits() {
        let shared = queue_of((1..LARGE_BATCH).map(|_| release("key")));
        assert!(!shared.is_write_due(false) && !shared.is_write_due(true));

        shared.push(release("key"));

        assert!(shared.is_write_due(false) && shared.is_write_due(true));
    }

    #[test]
    fn a_sleeping_driver_is_woken_only_for_earlier_deadlines() {
        let (shared, at) = (CommandQueue::default(), |ms: u64| BootInstant::from_nanos(ms * 1_000_000));
        let is_woken = || is_notified(&shared.wake);
        let due = |ms| {
            shared.wake_by(at(ms));
            is_woken()
        };

        assert!(!due(1), "it is awake, and checks itself");
        shared.mark_asleep(at(500));
        assert!(!due(500) && !due(700));
        assert!(due(100));
        assert!(!due(100) && !due(300), "it knows an earlier deadline");
        assert!(due(50));

        assert_eq!(shared.mark_awake(), at(50));
        assert!(!due(20));
        shared.mark_asleep(BootInstant::NEVER);
        assert!(due(600));
    }

    /// Counts how often it is flushed.
    #[derive(Default)]
    struct CountingSender(AtomicUsize);

    impl RequestSender for CountingSender {
        fn flush(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_queue_is_settled_when_the_last_request_is_answered() {
        let shared = queue_of([acquire("a"), acquire("b"), acquire("c")]);
        assert!(shared.has_queued() && shared.is_alone());
        assert_eq!(shared.first_key().as_deref(), Some("a"));
        assert_eq!(shared.take().len(), 3);
        assert!(!shared.has_queued() && !shared.is_alone() && shared.first_key().is_none());
        let settled = shared.settled.notified();

        shared.answered(1);
        assert!(shared.has_more());
        let still_pending = shared.settled.notified();
        shared.answered(2);

        assert!(settled.now_or_never().is_some() && still_pending.now_or_never().is_some());
        assert!(!shared.has_more() && shared.is_alone());
    }

    #[test]
    fn only_the_last_reply_settles_a_queue() {
        let shared = queue_of([acquire("a"), acquire("b")]);
        let settled = shared.settled.notified();
        shared.answered(1);
        assert!(settled.now_or_never().is_none(), "one is pending");
        shared.answered(1);
        let settled = shared.settled.notified();

        shared.answered(0);

        assert!(settled.now_or_never().is_none(), "nothing was answered");
    }

    #[test]
    fn cleanup_of_any_server_is_left_to_do() {
        let orphaned = || vec![("a".into(), acquire("a").token)];
        let (one, many) = (CommandQueue::default(), CommandQueue::default());
        let of_servers = vec![Arc::default(), Arc::<CleanupQueue>::default()];
        assert!(many.cleanup_of_servers.set(of_servers).is_ok());
        assert!(!one.has_more() && !many.has_more());

        one.cleanup.add(orphaned(), None);
        many.cleanup_of_servers.get().expect("it is set")[1].add(orphaned(), None);

        assert!(one.has_more() && many.has_more());
    }

    #[test]
    fn each_connection_has_its_own_epoch() {
        let shared = CommandQueue::default();

        assert_eq!([shared.next_epoch(), shared.next_epoch(), shared.next_epoch()], [1, 2, 3]);
    }

    #[test]
    fn queued_withdrawals_wake_the_driver() {
        let shared = CommandQueue::default();

        shared.push_all(Vec::new());
        assert!(!is_notified(&shared.wake));
        shared.push_all(vec![acquire("a"), acquire("b")]);

        assert!(is_notified(&shared.wake));
        assert_eq!(shared.take().len(), 2);
    }

    #[test]
    fn requests_are_flushed_by_the_sender_that_is_set() {
        let (shared, sender) = (CommandQueue::default(), Arc::new(CountingSender::default()));
        shared.flush();

        let weak: Weak<CountingSender> = Arc::downgrade(&sender);
        shared.set_sender(weak);
        shared.flush();

        assert_eq!(sender.0.load(Ordering::SeqCst), 1);
        drop(sender);
        shared.flush();
    }

    #[tokio::test]
    async fn requests_are_written_on_the_callers_runtime_if_there_is_one() {
        let shared = CommandQueue::default();
        shared.wake_writer();
        assert!(is_notified(&shared.wake) && !is_notified(&shared.wake_writer));

        shared.runtimes.set_callers();
        shared.wake_writer();

        assert!(!is_notified(&shared.wake) && is_notified(&shared.wake_writer));
    }

    #[test]
    fn the_size_of_a_batch_is_remembered_after_its_replies() {
        let shared = queue_of((0..64).map(|_| acquire("a")));
        shared.take();
        shared.answered(64);
        shared.push(acquire("first"));

        assert!(!shared.is_write_due(false), "its tasks are likely to send more");

        let unused = queue_of([acquire("first")]);
        assert!(unused.is_write_due(false));
    }
}
