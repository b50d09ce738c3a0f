//! Key tracking: the server tells at once when anybody changes a key that was read over a connection of its own.
//!
//! ```text
//!  a hold that lives    -- GET ------->  the server notes that the key was read: it is armed, for one change
//!  its renewal          -- renew ----->  written, which is not told to who wrote it (NOLOOP), and read last: armed again
//!  a stranger's lock    -- GET ------->  armed
//!                      <-- changed ---   a hint: who holds checks, which arms it again; who waits looks again
//! ```
//!
//! Only what lives for a while is armed (`protocol::invalidation`): a lock that is taken and let go of at once costs nothing here, and before the
//! first that lives there is no connection. What is told proves nothing. Where the server does not let us, or the connection is away,
//! holds are confirmed by their renewals, and a stranger's lock is looked at every `poll_interval`.
//!
//! Which holds are armed their lanes know, as far as it matters: one that has been checked has its renewals sent over this connection, and
//! each arms its key. What is remembered here is which locks of strangers are, since the server says each key that it forgets.
//!
//! Not here: who is told (`answers`), what a hint leads to (`protocol::invalidation`), pipelines (`batch`).

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::backend::Request;
use crate::backend::redis::node::Node;
use crate::backend::redis::node::backoff::Backoff;
use crate::backend::redis::node::connection::Connection;
use crate::backend::redis::node::health::NodeConnection;
use crate::backend::redis::node::inbound::Pushes;
use crate::backend::redis::node::keepalive::{Pulse, Use};
use crate::bounds::{LONGEST_VALUE, MAX_WAITERS};
use crate::clock::boot_time;
use crate::key::Name;
use crate::protocol::command::{Command, FailureKind};
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;
use crate::telemetry;
use crate::token::{PREFIX, Token};

/// The keys of which a node's server tells.
#[derive(Default)]
pub(crate) struct InvalidationTracker {
    state: Mutex<TrackerState>,
    /// Whether there ever was something to be told of: before that there is no connection.
    is_wanted: AtomicBool,
    first: Notify,
    /// Told that there are strangers to be armed.
    more: Notify,
    /// Told when the connection is to be made anew.
    broken: Notify,
    /// Whether somebody has been told that the server does not let us.
    has_told: AtomicBool,
}

#[derive(Default)]
struct TrackerState {
    wire: Option<TrackingConnection>,
    /// When something was asked over the connection last.
    asked: Option<BootInstant>,
    /// Keys of strangers' locks that are armed, or to be armed.
    strangers: HashSet<Name>,
    /// Those that are to be armed.
    to_arm: Vec<Name>,
}

/// The connection that keys are read over.
#[derive(Clone)]
pub(crate) struct TrackingConnection {
    pub(crate) connection: Connection,
    /// The same, over which nobody finds out that answers are late.
    pub(crate) untimed: Connection,
    /// One of its own, as no other connection keeps its order.
    pub(crate) epoch: u64,
}

impl InvalidationTracker {
    /// Takes out of `requests` those that arm their keys or keep them armed, and returns them with the way that they go.
    pub(crate) fn take_out(&self, requests: &mut Vec<Request>) -> Option<(TrackingConnection, Vec<Request>)> {
        // Most hold up nobody: what lives for a moment only is not renewed.
        if !requests.iter().any(|request| request.command.is_renewal()) {
            return None;
        }
        let mut state = lock(&self.state);
        let Some(wire) = state.wire.clone() else {
            if requests.iter().any(|request| request.command == Command::Verify) {
                self.want();
            }
            return None;
        };
        let (tracked, others) = std::mem::take(requests).into_iter().partition(arms);
        *requests = others;
        if !tracked.is_empty() {
            state.asked = Some(boot_time());
        }
        Some((wire, tracked))
    }

    /// A stranger has the lock of `key`, and somebody here waits for it.
    pub(crate) fn note_foreign_lock(&self, key: &Name) {
        let mut state = lock(&self.state);
        if state.wire.is_none() {
            self.want();
        } else if state.strangers.insert(Name::clone(key)) {
            state.to_arm.push(Name::clone(key));
            self.more.notify_one();
        }
    }

    /// The connection has failed.
    pub(crate) fn give_up(&self) {
        self.broken.notify_one();
    }

    /// Nothing is told any more.
    pub(crate) fn close(&self) {
        let before = std::mem::take(&mut *lock(&self.state));
        drop(before); // with nothing locked
    }

    fn want(&self) {
        if !self.is_wanted.swap(true, Ordering::AcqRel) {
            self.first.notify_one();
        }
    }

    async fn until_wanted(&self) {
        if !self.is_wanted.load(Ordering::Acquire) {
            self.first.notified().await;
        }
    }

    fn open(&self, wire: TrackingConnection) {
        *lock(&self.state) = TrackerState { wire: Some(wire), ..TrackerState::default() };
    }

    /// Returns which key the server means, which has told us once and forgets that we read it.
    fn changed<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        let key = std::str::from_utf8(key).ok()?;
        lock(&self.state).forget(key);
        Some(key)
    }

    fn is_told_first(&self) -> bool {
        !self.has_told.swap(true, Ordering::AcqRel)
    }
}

impl TrackerState {
    /// The server tells no more of this stranger's lock.
    fn forget(&mut self, key: &str) {
        self.strangers.remove(key);
        if self.strangers.capacity() > LITTLE && self.strangers.len() < self.strangers.capacity() / 4 {
            self.strangers.shrink_to(self.strangers.len() * 2);
        }
    }
}

/// Returns whether a request arms its key, or keeps it armed: a check, or a renewal of what has been checked.
fn arms(request: &Request) -> bool {
    match request.command {
        Command::Verify => true,
        Command::Renew { .. } => request.is_tracked,
        _ => false,
    }
}

impl Node {
    /// Has the server tell of changes for as long as `link` is used. After each new connection everything is looked at, which arms what is
    /// to be armed.
    pub(crate) async fn track(&self, link: &NodeConnection) {
        if link.route.tracking {
            self.tracking.until_wanted().await;
            self.track_until_refused(link).await;
        }
        std::future::pending::<()>().await;
    }

    async fn track_until_refused(&self, link: &NodeConnection) {
        let (route, mut backoff) = (&link.route, Backoff::new(&self.engine));
        let (mut failures, mut has_worked) = (0_u32, false);
        loop {
            let since = Instant::now();
            match route.track().await {
                Ok((untimed, mut told)) => {
                    let connection = route.timed(&untimed);
                    self.tracking.open(TrackingConnection { connection, untimed, epoch: self.next_epoch() });
                    self.on_invalidations_missed();
                    let heard = self.tell_changes(&mut told, link.beat.pulse()).await;
                    let heard = lock(&self.tracking.state).asked.map_or(heard, |asked| asked.max(heard));
                    self.idleness.ended(Use::Tracking, link.beat.idle_at(boot_time(), Some(heard)));
                    self.tracking.close();
                    has_worked = true;
                }
                Err(failure) => {
                    self.idleness.failed();
                    if self.tracking.is_told_first() {
                        telemetry::not_tracking(&failure.reason);
                    }
                    failures += 1;
                    // One that closes the connection each time has no such command.
                    if failure.kind != FailureKind::Passing || (failures >= MOST_TRIES && !has_worked) {
                        return;
                    }
                }
            }
            backoff.pause(since.elapsed()).await;
        }
    }

    /// Tells what has changed, until the connection ends, and returns when something was told last.
    async fn tell_changes(&self, told: &mut Pushes, mut pulse: Pulse) -> BootInstant {
        let mut heard = boot_time();
        loop {
            let next = tokio::select! {
                biased;
                () = self.tracking.broken.notified() => return heard,
                next = pulse.before_a_ping(told.next()) => next,
                () = self.tracking.more.notified() => {
                    self.arm_foreign().await;
                    continue;
                }
            };
            match next {
                Some(Some(PushInfo { kind: PushKind::Invalidate, data })) => {
                    heard = boot_time();
                    self.tell_change(&data);
                }
                Some(Some(_)) => {}
                None if self.asks() => {}
                None if self.answers_a_ping().await => {}
                Some(None) | None => return heard,
            }
        }
    }

    fn tell_change(&self, data: &[Value]) {
        let [Value::Array(keys)] = data else {
            // All keys at once: the server was flushed.
            lock(&self.tracking.state).strangers = HashSet::new();
            return self.on_invalidations_missed();
        };
        for key in keys {
            if let Value::BulkString(key) = key
                && let Some(key) = self.tracking.changed(key)
            {
                self.answers.on_key_event(&key.into());
            }
        }
    }

    /// Has everything looked at that somebody here holds or waits for.
    fn on_invalidations_missed(&self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.on_invalidations_missed();
        }
    }

    /// Reads the locks of strangers, so that their release is told. Who let go since he was seen is told now.
    async fn arm_foreign(&self) {
        let (wire, keys) = {
            let mut state = lock(&self.tracking.state);
            (state.wire.clone(), std::mem::take(&mut state.to_arm))
        };
        let Some(mut wire) = wire else { return };
        let mut pipeline = redis::Pipeline::with_capacity(2 * keys.len());
        for key in &keys {
            // As in the scripts: no more than shows that a value is longer than a full queue, and whether '' is an absent key.
            pipeline.cmd("PTTL").arg(&**key);
            pipeline.cmd("GETRANGE").arg(&**key).arg(0).arg(LONGEST_VALUE);
        }
        let Ok(values) = wire.connection.send_packed_commands(&pipeline, 0, 2 * keys.len()).await else {
            return self.tracking.give_up();
        };
        for (key, answers) in keys.iter().zip(values.chunks(2)) {
            let queue = match answers {
                [Value::Int(-2), _] => 0,
                [_, Value::BulkString(value)] if is_ours(value) => value.len() / Token::WIDTH,
                [.., Value::ServerError(_)] => {
                    lock(&self.tracking.state).forget(key); // it was not read, and is looked at every `poll_interval`
                    continue;
                }
                _ => continue,
            };
            self.tracking.changed(key.as_bytes());
            // Where our queue is full, each turn in it would wake all that found no place.
            if queue <= MAX_WAITERS {
                self.answers.on_key_event(key);
            }
        }
    }

    /// Returns whether something is asked over the connection just now, which is answered or gives it up.
    fn asks(&self) -> bool {
        lock(&self.tracking.state).asked.is_some_and(|asked| boot_time().since(asked) < JUST_NOW)
    }

    async fn answers_a_ping(&self) -> bool {
        let wire = lock(&self.tracking.state).wire.clone();
        match wire {
            Some(mut wire) => wire.connection.send_packed_command(&redis::cmd("PING")).await.is_ok(),
            None => false,
        }
    }
}

/// How often tracking is tried in a row over a server that serves commands all the while.
const MOST_TRIES: u32 = 12;

/// So few that their room is not worth giving back.
const LITTLE: usize = 64;

/// Short beside what is missing between two pings and ten seconds.
const JUST_NOW: Duration = Duration::from_millis(100);

fn is_ours(value: &[u8]) -> bool {
    value.starts_with(PREFIX.as_bytes()) && value.len().is_multiple_of(Token::WIDTH)
}
