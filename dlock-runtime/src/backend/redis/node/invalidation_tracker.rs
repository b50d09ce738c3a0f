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
        if !requests.iter().any(|request| request.command.is_renewal()) {
            return None;
        }
        let state = lock(&self.state);
        let Some(tracking) = state.connection.clone() else {
            if requests.iter().any(|request| request.command == Command::Verify) {
                self.request_connection();
            }
            return None;
        };
        let (tracked, others) = std::mem::take(requests).into_iter().partition(is_tracked_read);
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
fn is_tracked_read(request: &Request) -> bool {
    match request.command {
        Command::Verify => true,
        Command::Renew { .. } => request.is_tracked,
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
                    let (timed, epoch) = (target.timed(&untimed), self.shared.next_epoch());
                    self.tracking.open(TrackingConnection { timed, untimed, epoch });
                    self.on_invalidations_missed();
                    self.receive_invalidations(&mut pushes).await;
                    self.tracking.close();
                    has_worked = true;
                }
                Err(failure) => {
                    if !self.tracking.has_reported.swap(true, Ordering::AcqRel) {
                        telemetry::not_tracking(&failure.reason);
                    }
                    failures += 1;
                    // A server that closes the connection each time does not have the command.
                    if failure.kind != FailureKind::Passing || (failures >= MAX_FAILURES && !has_worked) {
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
