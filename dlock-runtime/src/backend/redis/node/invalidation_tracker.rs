//! Key tracking: the server reports the next change of each key that was read over a connection.
//!
//! ```text
//!  a long hold          -- GET ------->  the server tracks the key, for one change
//!  its renewal          -- renew ----->  a write, not reported to its sender (NOLOOP), then a read: tracked again
//!  a foreign lock       -- GET ------->  tracked
//!                       <-- invalidate-  a hint: the holder verifies, which tracks the key again; a waiter tries again
//! ```
//!
//! Only holds that last are tracked (`protocol::invalidation`): a lock that is released at once
//! costs nothing here, and there is no connection before the first long hold. An invalidation is
//! not proof. If the server refuses tracking, or the connection is lost, holds are confirmed by
//! their renewals, and foreign locks are checked every `poll_interval`.
//!
//! The state of the key knows whether a hold is tracked: once it has been verified, its renewals
//! are sent over this connection, and each tracks the key again. This module knows which foreign
//! locks are tracked, since the server reports each key that it stops tracking.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::backend::Request;
use crate::backend::redis::node::Node;
use crate::backend::redis::node::health::NodeConnection;
use crate::backend::redis::transport::backoff::Backoff;
use crate::backend::redis::transport::connection::Connection;
use crate::backend::redis::transport::inbound::Pushes;
use crate::backend::redis::transport::keepalive::Keepalive;
use crate::bounds::{LONGEST_VALUE, MAX_WAITERS};
use crate::key::Name;
use crate::protocol::command::{Command, FailureKind};
use crate::sync::lock;
use crate::telemetry;
use crate::token::{PREFIX, Token};

/// The tracked keys of one node.
#[derive(Default)]
pub(crate) struct InvalidationTracker {
    state: Mutex<TrackerState>,
    /// Whether a key ever had to be tracked: there is no connection before.
    is_wanted: AtomicBool,
    first: Notify,
    /// Notified when foreign locks must be tracked.
    more: Notify,
    /// Notified when the connection must be replaced.
    broken: Notify,
    /// Whether `dlock.tracking_disabled` has been reported.
    has_reported: AtomicBool,
}

#[derive(Default)]
struct TrackerState {
    connection: Option<TrackingConnection>,
    /// The keys of foreign locks that are tracked, or will be.
    foreign_locks: HashSet<Name>,
    /// Those that are not tracked yet.
    untracked: Vec<Name>,
}

/// The connection with key tracking.
#[derive(Clone)]
pub(crate) struct TrackingConnection {
    pub(crate) timed: Connection,
    /// The same connection, without a timeout for replies.
    pub(crate) untimed: Connection,
    /// An epoch of its own, since no other connection shares its order.
    pub(crate) epoch: u64,
}

impl InvalidationTracker {
    /// Removes the requests that must be sent over the tracking connection, and returns them with
    /// it.
    pub(crate) fn take_tracked(
        &self,
        requests: &mut Vec<Request>,
    ) -> Option<(TrackingConnection, Vec<Request>)> {
        // The usual case: short holds are not renewed.
        if !requests.iter().any(is_sent_over_tracking) {
            return None;
        }
        let state = lock(&self.state);
        let Some(tracking) = state.connection.clone() else {
            if requests.iter().any(|request| request.command == Command::Verify) {
                self.request_connection();
            }
            return None;
        };
        let (tracked, others) = std::mem::take(requests).into_iter().partition(is_sent_over_tracking);
        *requests = others;
        Some((tracking, tracked))
    }

    /// Tracks the key of a foreign lock that a task of this process waits for.
    pub(crate) fn note_foreign_lock(&self, key: &Name) {
        let mut state = lock(&self.state);
        if state.connection.is_none() {
            self.request_connection();
        } else if state.foreign_locks.insert(Name::clone(key)) {
            state.untracked.push(Name::clone(key));
            self.more.notify_one();
        }
    }

    /// Replaces the connection with this epoch. Nothing more is sent over it.
    pub(crate) fn give_up(&self, epoch: u64) {
        let given_up = lock(&self.state).connection.take_if(|connection| connection.epoch == epoch);
        if given_up.is_some() {
            self.broken.notify_one();
        }
    }

    /// Forgets the connection.
    pub(crate) fn close(&self) {
        let before = std::mem::take(&mut *lock(&self.state));
        drop(before); // holds no lock
    }

    fn request_connection(&self) {
        if !self.is_wanted.swap(true, Ordering::AcqRel) {
            self.first.notify_one();
        }
    }

    async fn until_wanted(&self) {
        if !self.is_wanted.load(Ordering::Acquire) {
            self.first.notified().await;
        }
    }

    fn open(&self, tracking: TrackingConnection) {
        *lock(&self.state) = TrackerState { connection: Some(tracking), ..TrackerState::default() };
    }

    /// Returns the changed key. The server has stopped tracking it.
    fn on_changed<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        let key = std::str::from_utf8(key).ok()?;
        lock(&self.state).forget(key);
        Some(key)
    }
}

impl TrackerState {
    /// Forgets a foreign lock, because the server has stopped tracking it.
    fn forget(&mut self, key: &str) {
        self.foreign_locks.remove(key);
        if self.foreign_locks.capacity() > MIN_SHRINK_CAPACITY
            && self.foreign_locks.len() < self.foreign_locks.capacity() / 4
        {
            self.foreign_locks.shrink_to(self.foreign_locks.len() * 2);
        }
    }
}

/// Returns `true` if a request tracks its key: a verification, or a renewal of a verified hold.
/// `SetTtl` follows these renewals: one that ran after it would extend the time to live again.
fn is_sent_over_tracking(request: &Request) -> bool {
    match request.command {
        Command::Verify => true,
        Command::Renew { .. } | Command::SetTtl { .. } => request.is_tracked,
        _ => false,
    }
}

impl Node {
    /// Receives invalidations while `connection` is used.
    ///
    /// After each new connection all holds and waiters check their keys, which tracks them again.
    pub(crate) async fn run_tracking(&self, connection: &NodeConnection) {
        if connection.target.tracking {
            self.tracking.until_wanted().await;
            self.run_tracking_until_refused(connection).await;
        }
        std::future::pending::<()>().await;
    }

    async fn run_tracking_until_refused(&self, connection: &NodeConnection) {
        let (target, mut backoff) = (&connection.target, Backoff::new(&self.jitter));
        let (mut failures, mut has_worked) = (0_u32, false);
        loop {
            let since = Instant::now();
            match target.open_for_tracking().await {
                Ok((untimed, mut pushes)) => {
                    (failures, has_worked) = (0, true);
                    self.tracking.has_reported.store(false, Ordering::Release);
                    let (timed, epoch) = (target.timed(&untimed), self.shared.next_epoch());
                    self.tracking.open(TrackingConnection { timed, untimed, epoch });
                    self.on_invalidations_missed();
                    self.receive_invalidations(&mut pushes).await;
                    self.tracking.close();
                }
                Err(failure) => {
                    failures += 1;
                    let is_lasting = failure.kind != FailureKind::Passing;
                    if (is_lasting || failures >= MAX_FAILURES)
                        && !self.tracking.has_reported.swap(true, Ordering::AcqRel)
                    {
                        telemetry::not_tracking(&failure.reason);
                    }
                    // A server that closes the connection each time does not have the command.
                    if is_lasting || (failures >= MAX_FAILURES && !has_worked) {
                        return;
                    }
                }
            }
            backoff.pause(since.elapsed()).await;
        }
    }

    /// Receives invalidations until the connection ends.
    async fn receive_invalidations(&self, pushes: &mut Pushes) {
        let mut keepalive = Keepalive::new();
        loop {
            let next = tokio::select! {
                biased;
                () = self.tracking.broken.notified() => return,
                next = keepalive.before_ping(pushes.next()) => next,
                () = self.tracking.more.notified() => {
                    self.track_foreign_locks().await;
                    continue;
                }
            };
            match next {
                Some(Some(PushInfo { kind: PushKind::Invalidate, data })) => self.on_invalidation(&data),
                Some(Some(_)) => {}
                None if self.ping().await => {}
                Some(None) | None => return,
            }
        }
    }

    fn on_invalidation(&self, data: &[Value]) {
        let [Value::Array(keys)] = data else {
            // The server was flushed: all keys have changed.
            lock(&self.tracking.state).foreign_locks = HashSet::new();
            return self.on_invalidations_missed();
        };
        for key in keys {
            if let Value::BulkString(key) = key
                && let Some(key) = self.tracking.on_changed(key)
            {
                self.sink.on_key_event(Some(&key.into()));
            }
        }
    }

    /// Has all holds and waiters of this process check their keys.
    fn on_invalidations_missed(&self) {
        self.sink.on_key_event(None);
    }

    /// Reads foreign locks, so that their release is reported. Releases since the last check are
    /// reported now.
    async fn track_foreign_locks(&self) {
        let (tracking, keys) = {
            let mut state = lock(&self.tracking.state);
            (state.connection.clone(), std::mem::take(&mut state.untracked))
        };
        let Some(mut tracking) = tracking else { return };
        if keys.is_empty() {
            return; // two notifications, the first of which has woken the reader, need one read
        }
        let mut pipeline = redis::Pipeline::with_capacity(2 * keys.len());
        for key in &keys {
            // As in the scripts: enough bytes to show that a value is longer than a full queue.
            // `PTTL` distinguishes an absent key from an empty value.
            pipeline.cmd("PTTL").arg(&**key);
            pipeline.cmd("GETRANGE").arg(&**key).arg(0).arg(LONGEST_VALUE);
        }
        let Ok(values) = tracking.timed.send_packed_commands(&pipeline, 0, 2 * keys.len()).await else {
            return self.tracking.give_up(tracking.epoch);
        };
        for (key, replies) in keys.iter().zip(values.chunks(2)) {
            let queue = match replies {
                [Value::Int(-2), _] => 0,
                [_, Value::BulkString(value)] if is_native_value(value) => value.len() / Token::WIDTH,
                [.., Value::ServerError(_)] => {
                    lock(&self.tracking.state).forget(key); // it was not read, so it is checked every `poll_interval`
                    continue;
                }
                _ => continue,
            };
            self.tracking.on_changed(key.as_bytes());
            // If the queue is full, each change of it would wake all waiters that found no place.
            if queue <= MAX_WAITERS {
                self.sink.on_key_event(Some(key));
            }
        }
    }

    async fn ping(&self) -> bool {
        let tracking = lock(&self.tracking.state).connection.clone();
        match tracking {
            Some(mut tracking) => tracking.timed.send_packed_command(&redis::cmd("PING")).await.is_ok(),
            None => false,
        }
    }
}

/// The number of consecutive failures after which tracking is disabled, if commands work meanwhile.
const MAX_FAILURES: u32 = 12;

/// The capacity below which memory is not released.
const MIN_SHRINK_CAPACITY: usize = 64;

fn is_native_value(value: &[u8]) -> bool {
    value.starts_with(PREFIX.as_bytes()) && value.len().is_multiple_of(Token::WIDTH)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;
    use crate::backend::redis::node::pipeline::RouteHistory;
    use crate::backend::redis::node::test_node::{TestNode, acquire};
    use crate::backend::redis::tests::is_notified;
    use crate::backend::redis::tests::resp::{bulk, list, push};
    use crate::token::TokenSource;

    const LONG: Duration = Duration::from_secs(20);
    const RENEW: Command = Command::Renew { lease: LONG };

    fn request(key: &str, command: Command, is_tracked: bool) -> Request {
        Request { command, is_tracked, ..acquire(key) }
    }

    fn keys(requests: &[Request]) -> Vec<&str> {
        requests.iter().map(|request| &*request.key).collect()
    }

    /// Returns a node with a connection that tracks keys, of epoch 7.
    async fn tracking() -> TestNode {
        let test = TestNode::new(LONG).await;
        let connection = test.connection();
        let (timed, untimed) = (connection.timed.clone(), connection.untimed.clone());
        test.node.tracking.open(TrackingConnection { timed, untimed, epoch: 7 });
        test
    }

    #[tokio::test]
    async fn reads_of_tracked_holds_leave_over_the_tracking_connection() {
        let test = tracking().await;
        let mut requests = vec![
            request("acquire", Command::Acquire { lease: LONG }, true),
            request("verify", Command::Verify, false),
            request("tracked", RENEW, true),
            request("untracked", RENEW, false),
            request("kept", Command::SetTtl { ttl: LONG }, true),
            request("kept untracked", Command::SetTtl { ttl: LONG }, false),
            request("released", Command::RELEASE, true),
        ];

        let (connection, tracked) = test.node.tracking.take_tracked(&mut requests).expect("some are tracked");

        assert_eq!((connection.epoch, keys(&tracked)), (7, vec!["verify", "tracked", "kept"]));
        assert_eq!(keys(&requests), ["acquire", "untracked", "kept untracked", "released"]);
        assert!(test.node.tracking.take_tracked(&mut vec![acquire("a")]).is_none());
    }

    #[test]
    fn the_first_verification_or_foreign_lock_requests_a_connection() {
        let is_wanted = |tracker: &InvalidationTracker| tracker.until_wanted().now_or_never().is_some();
        for (command, is_requested) in [(Command::Verify, true), (RENEW, false), (Command::RELEASE, false)] {
            let tracker = InvalidationTracker::default();
            let mut requests = vec![request("a", command, true)];

            assert!(tracker.take_tracked(&mut requests).is_none());

            assert_eq!(is_wanted(&tracker), is_requested, "{command:?}");
            assert_eq!(keys(&requests), ["a"], "it leaves over the usual connection");
        }
        let tracker = InvalidationTracker::default();
        let mut waits = Box::pin(tracker.until_wanted());
        assert!((&mut waits).now_or_never().is_none());

        tracker.note_foreign_lock(&"a".into());

        assert!(waits.now_or_never().is_some());
        assert!(lock(&tracker.state).untracked.is_empty(), "it is tracked after the connection is open");
    }

    #[tokio::test]
    async fn a_foreign_lock_is_tracked_once_until_it_changes() {
        let test = tracking().await;
        let tracker = &test.node.tracking;
        is_notified(&tracker.more);
        let note = || {
            tracker.note_foreign_lock(&"a".into());
            is_notified(&tracker.more)
        };

        assert!(note());
        assert!(!note());
        assert_eq!(tracker.on_changed(b"a"), Some("a"));
        assert!(note());
        assert_eq!(tracker.on_changed(b"\xff"), None);
    }

    #[tokio::test]
    async fn only_the_connection_that_failed_is_given_up() {
        let test = tracking().await;
        let tracker = &test.node.tracking;

        tracker.give_up(6);
        assert!(lock(&tracker.state).connection.is_some() && !is_notified(&tracker.broken));
        tracker.give_up(7);

        assert!(lock(&tracker.state).connection.is_none() && is_notified(&tracker.broken));
        tracker.give_up(7);
        assert!(!is_notified(&tracker.broken));
    }

    #[tokio::test]
    async fn a_closed_tracker_has_no_connection_and_no_keys() {
        let test = tracking().await;
        let tracker = &test.node.tracking;
        tracker.note_foreign_lock(&"a".into());

        tracker.close();

        let state = lock(&tracker.state);
        assert!(state.connection.is_none() && state.foreign_locks.is_empty() && state.untracked.is_empty());
    }

    #[test]
    fn memory_of_many_foreign_locks_is_released() {
        let mut state = TrackerState::default();
        let names: Vec<_> = (0..1_000).map(|number| Name::from(number.to_string())).collect();
        state.foreign_locks.extend(names.iter().cloned());

        for (forgotten, name) in (1..).zip(&names) {
            state.forget(name);

            let (left, capacity) = (names.len() - forgotten, state.foreign_locks.capacity());
            assert_eq!(state.foreign_locks.len(), left);
            assert!(left > 800 || capacity >= 2 * left, "{left} of {capacity} are left");
            assert!(capacity <= MIN_SHRINK_CAPACITY || 5 * left + 64 > capacity, "{left} of {capacity}");
        }
    }

    #[test]
    fn memory_of_a_few_foreign_locks_is_kept() {
        let mut state = TrackerState::default();
        let names: Vec<_> = (0..40).map(|number| Name::from(number.to_string())).collect();
        state.foreign_locks.extend(names.iter().cloned());

        for name in &names {
            state.forget(name);
        }

        assert!(state.foreign_locks.is_empty());
        assert!(state.foreign_locks.capacity() > names.len() / 2);
    }

    #[test]
    fn a_native_value_is_a_sequence_of_tokens() {
        let token = TokenSource::of_process(1).next().to_string();

        assert!(is_native_value(token.as_bytes()) && is_native_value(token.repeat(3).as_bytes()));
        for value in ["", "other", &token[1..], &format!("{token}x"), &"x".repeat(Token::WIDTH)] {
            assert!(!is_native_value(value.as_bytes()), "{value:?}");
        }
    }

    #[tokio::test]
    async fn invalidations_are_reported_with_their_keys() {
        let test = tracking().await;
        let node = &test.node;
        let before = test.events().len();
        for key in ["a", "b"] {
            node.tracking.note_foreign_lock(&key.into());
        }
        let key = |key: &str| Value::BulkString(key.into());

        node.on_invalidation(&[Value::Array(vec![key("a"), Value::Int(1), key("c")])]);
        assert_eq!(lock(&node.tracking.state).foreign_locks.len(), 1);
        node.on_invalidation(&[Value::Nil]);

        let events: Vec<_> =
            test.events().split_off(before).into_iter().filter(|event| event.starts_with("event")).collect();
        assert_eq!(events, ["event a", "event c", "event *"]);
        assert!(lock(&node.tracking.state).foreign_locks.is_empty(), "the server was flushed");
    }

    /// A foreign lock stays tracked. All others may be acquired, or have a queue of this library.
    #[tokio::test]
    async fn waiters_try_again_unless_a_foreign_client_holds_the_lock() {
        let test = tracking().await;
        let node = &test.node;
        let token = TokenSource::of_process(1).next().to_string();
        let full = token.repeat(MAX_WAITERS + 1);
        let places = token.repeat(MAX_WAITERS);
        let mut wanted = Vec::new();
        for (key, ttl, value, is_reported, is_tracked) in [
            ("absent", -2, bulk(""), true, false),
            ("empty", 1_000, bulk(""), false, true),
            ("foreign", 1_000, bulk("other"), false, true),
            ("list", 1_000, "-WRONGTYPE no string\r\n".to_owned(), false, false),
            ("native", 1_000, bulk(&token), true, false),
            ("with places", 1_000, bulk(&places), true, false),
            ("full", 1_000, bulk(&full), false, false),
        ] {
            node.tracking.note_foreign_lock(&key.into());
            test.set_reply(&format!("PTTL {key}"), &format!(":{ttl}\r\n"));
            test.set_reply(&format!("GETRANGE {key}"), &value);
            wanted.push((key, is_reported, is_tracked));
        }

        node.track_foreign_locks().await;

        assert!(lock(&node.tracking.state).untracked.is_empty());
        for (key, is_reported, is_tracked) in wanted {
            assert_eq!(test.events().contains(&format!("event {key}")), is_reported, "{key}");
            assert_eq!(lock(&node.tracking.state).foreign_locks.contains(key), is_tracked, "{key}");
        }
        assert_eq!(test.commands("GETRANGE")[0], format!("GETRANGE absent 0 {LONGEST_VALUE}"));
    }

    /// Two foreign locks at once are read together, and the second notification is left.
    #[tokio::test]
    async fn a_notification_without_keys_does_not_end_the_connection() {
        let test = tracking().await;
        test.set_reply("PTTL", ":1000\r\n");
        test.set_reply("GETRANGE", &bulk("other"));
        for key in ["a", "b"] {
            test.node.tracking.note_foreign_lock(&key.into());
        }

        for _notification in ["a", "b"] {
            test.node.track_foreign_locks().await;
        }

        assert_eq!(test.commands("GETRANGE").len(), 2);
        assert!(lock(&test.node.tracking.state).connection.is_some());
    }

    #[tokio::test]
    async fn a_connection_that_cannot_read_keys_is_given_up() {
        let test = tracking().await;
        assert!(test.node.ping().await);
        test.set_reply("PTTL", ""); // the server closes the connection
        test.node.tracking.note_foreign_lock(&"a".into());

        test.node.track_foreign_locks().await;

        assert!(lock(&test.node.tracking.state).connection.is_none());
        assert!(!test.node.ping().await, "there is no connection");
    }

    #[tokio::test]
    async fn a_refusal_of_tracking_is_final_and_other_failures_are_not() {
        let test = TestNode::new(LONG).await;
        let connection = test.connection();
        let attempts = || test.commands("CLIENT").iter().filter(|of| of.contains("TRACKING")).count();
        test.set_reply("CLIENT TRACKING", "-NOPERM this user may not\r\n");

        let has_reported = || test.node.tracking.has_reported.swap(false, Ordering::AcqRel);

        test.node.run_tracking_until_refused(&connection).await;
        assert!(attempts() == 1 && has_reported());
        test.set_reply("CLIENT TRACKING", "-LOADING not yet\r\n");
        let tries_again = async {
            while attempts() < 4 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };

        tokio::select! {
            () = test.node.run_tracking_until_refused(&connection) => panic!("it has ended"),
            () = tries_again => {}
        }
        assert!(!has_reported(), "it may succeed soon");
    }

    #[tokio::test]
    async fn a_new_tracking_connection_reports_all_keys_and_then_changes() {
        let test = TestNode::new(LONG).await;
        let connection = test.connection();
        let push = push([bulk("invalidate"), list(&["k"])]);
        test.set_reply("CLIENT TRACKING", &format!("+OK\r\n{push}"));
        test.node.tracking.has_reported.store(true, Ordering::Release);

        tokio::select! {
            () = test.node.run_tracking_until_refused(&connection) => panic!("it has ended"),
            () = test.until_event("event k") => {}
        }

        let events: Vec<_> = test.events().into_iter().filter(|event| event.starts_with("event")).collect();
        assert_eq!(events, ["event *", "event k"]);
        let epoch = lock(&test.node.tracking.state).connection.as_ref().map(|of| of.epoch);
        assert!(epoch.is_some_and(|epoch| epoch > connection.epoch), "it has an epoch of its own");
        assert!(Arc::strong_count(&connection) > 1, "commands use their own connection");
        assert!(!test.node.tracking.has_reported.load(Ordering::Acquire), "a later refusal is reported");
    }

    /// The clock is paused after the connect, so an attempt may also fail because it is late.
    #[tokio::test]
    async fn tracking_that_fails_again_and_again_is_disabled() {
        let test = TestNode::new(LONG).await;
        let connection = test.connection();
        test.set_reply("CLIENT TRACKING", ""); // the server closes the connection
        tokio::time::pause();
        let begun = Instant::now();

        let refused = test.node.run_tracking_until_refused(&connection);
        tokio::time::timeout(Duration::from_secs(3_600), refused).await.expect("it ends");

        assert!(begun.elapsed() > Duration::from_secs(3), "it has tried for {:?}", begun.elapsed());
        assert!(test.node.tracking.has_reported.load(Ordering::Acquire));
    }

    #[tokio::test]
    async fn an_idle_tracking_connection_is_checked() {
        let test = TestNode::new(LONG).await;
        let connection = test.connection();
        let is_checked = async {
            test.until_event("event *").await;
            let tracking = *test.connections("CLIENT").last().expect("it was named");
            tokio::time::pause();
            let limit = std::time::Instant::now() + LONG; // real time, like the server's replies
            while !test.connections("PING").contains(&tracking) {
                assert!(std::time::Instant::now() < limit, "it was not checked");
                std::thread::sleep(Duration::from_millis(1));
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };

        tokio::select! {
            () = test.node.run_tracking_until_refused(&connection) => panic!("it has ended"),
            () = is_checked => {}
        }
    }

    #[tokio::test]
    async fn a_redirected_renewal_is_not_tracked() {
        let test = tracking().await;
        test.set_reply("EVALSHA", ":1\r\n");
        let redirected = RouteHistory { hops: 1, ..RouteHistory::default() };
        let own = Some(test.connection().epoch);

        for (count, history) in [(1, RouteHistory::default()), (2, redirected)] {
            test.node.take(vec![request("a", RENEW, true)], history);
            test.until_replied(count).await;
        }
        test.node.take(vec![request("b", RENEW, false)], RouteHistory::default());
        test.until_replied(3).await;

        assert_eq!(test.epochs(), [Some(7), own, own]);
        let reads: Vec<_> = test.commands("EVALSHA").iter().map(|of| of.ends_with(" read")).collect();
        assert_eq!(reads, [true, false, false], "a tracked renewal reads its key last");
    }
}
