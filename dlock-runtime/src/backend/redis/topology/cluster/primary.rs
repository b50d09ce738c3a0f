//! A master of a cluster, and what becomes of what it says.
//!
//! ```text
//!  Unused --a request, or a key whose slot moves here--> Opening (requests wait) --connected, or failed--> Open
//! ```
//!
//! A master is connected to when a key of its slots is used. Requests wait for the first attempt to connect; from then on a master
//! that cannot be reached refuses them at once.
//!
//! Not here: which slots it serves (`slots`), the connection to it (`node`).

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use once_cell::sync::OnceCell;
use redis::Value;
use tokio::task::AbortHandle;

use crate::backend::Request;
use crate::backend::redis::node::Node;
use crate::backend::redis::node::connect::{ConnectTarget, GrantMessage};
use crate::backend::redis::node::pipeline::RouteHistory;
use crate::backend::redis::reply_sink::{RedirectHandler, ReplySink};
use crate::backend::redis::topology::address::Address;
use crate::backend::redis::topology::cluster::Cluster;
use crate::backend::redis::topology::cluster::redirects::Redirect;
use crate::backend::redis::topology::cluster::slot_map::Slot;
use crate::clock::boot_time;
use crate::key::Name;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;

/// A master of a cluster.
pub(super) struct Primary {
    pub(super) address: Address,
    pub(super) route: Arc<ConnectTarget>,
    pub(super) node: Arc<Node>,
    /// What runs the node, once something does.
    pub(super) running: OnceCell<AbortHandle>,
    /// Whether it was given slots since it could be reached last.
    gained: AtomicBool,
    needed: Mutex<Instant>,
    /// How far the first attempt to connect is; changed with the cluster's state locked.
    opening: AtomicU8,
    /// Requests that wait for that attempt, in their order.
    waiting: Mutex<Vec<WaitingForConnection>>,
}

/// No key of its slots has been used.
const UNUSED: u8 = 0;
/// The first attempt to connect has not ended.
const OPENING: u8 = 1;
/// The first attempt to connect has ended.
const OPEN: u8 = 2;

/// A request that waits for the first attempt to connect to its master.
pub(super) struct WaitingForConnection {
    pub(super) request: Request,
    pub(super) passage: RouteHistory,
    since: BootInstant,
}

impl Primary {
    pub(super) fn new(address: Address, route: Arc<ConnectTarget>, node: Arc<Node>) -> Self {
        let (running, needed) = (OnceCell::new(), Mutex::new(Instant::now()));
        let (opening, waiting) = (AtomicU8::new(UNUSED), Mutex::default());
        Self { address, route, node, running, gained: AtomicBool::new(true), needed, opening, waiting }
    }

    /// Returns `true` if it is to be connected to: a key of its slots has been used.
    pub(super) fn is_used(&self) -> bool {
        self.opening.load(Ordering::Acquire) != UNUSED
    }

    /// Returns `true` if the first attempt to connect has ended.
    pub(super) fn is_open(&self) -> bool {
        self.opening.load(Ordering::Acquire) == OPEN
    }

    /// Notes that it is to be connected to. Returns `true` if it was not before.
    pub(super) fn start_connecting(&self) -> bool {
        self.opening.compare_exchange(UNUSED, OPENING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Has a request wait for the first attempt to connect.
    pub(super) fn enqueue(&self, request: Request, passage: RouteHistory) {
        lock(&self.waiting).push(WaitingForConnection { request, passage, since: boot_time() });
    }

    /// Notes that the first attempt to connect has ended, and returns the requests that waited for it.
    pub(super) fn finish_connecting(&self) -> Vec<WaitingForConnection> {
        self.opening.store(OPEN, Ordering::Release);
        std::mem::take(&mut *lock(&self.waiting))
    }

    /// Takes out the requests that wait and of which `is_wanted` says so.
    pub(super) fn take_waiting(
        &self,
        is_wanted: impl Fn(&WaitingForConnection) -> bool,
    ) -> Vec<WaitingForConnection> {
        lock(&self.waiting).extract_if(.., |waiting| is_wanted(waiting)).collect()
    }

    /// Returns when the request began to wait that has waited for longest.
    pub(super) fn waiting_since(&self) -> Option<BootInstant> {
        lock(&self.waiting).first().map(|waiting| waiting.since)
    }

    /// Notes that it was given slots while it cannot be reached: it is worth a try, whatever it was before.
    pub(super) fn on_slot_gained(&self) {
        self.gained.store(true, Ordering::Release);
        self.node.try_again();
    }

    /// Notes that it is needed.
    pub(super) fn is_needed(&self) {
        *lock(&self.needed) = Instant::now();
    }

    /// Returns whether nobody has needed it for so long that all it was asked is answered.
    pub(super) fn is_forgotten(&self) -> bool {
        lock(&self.needed).elapsed() > KEPT_FOR
    }
}

impl WaitingForConnection {
    /// Returns for how long it has waited at `now`.
    pub(super) fn waited(&self, now: BootInstant) -> Duration {
        now.since(self.since)
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        if let Some(running) = self.running.get() {
            running.abort();
        }
    }
}

/// Who is told what the server at one address says.
pub(super) struct PrimaryReplySink {
    pub(super) cluster: Weak<Cluster>,
    pub(super) address: Address,
}

impl ReplySink for PrimaryReplySink {
    fn on_replies(&self, replies: Vec<(Request, Reply)>, sent: BootInstant, epoch: Option<u64>) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.engine.on_replies(replies, sent, epoch);
        }
    }

    /// The servers of a cluster hand each message on to all others, and we listen to every master in use: it is passed on once, from the
    /// one that serves the key, or from any while that one cannot be heard. It is no proof: who published it saw only those who listen there.
    fn on_grant(&self, grant: GrantMessage) {
        let Some(cluster) = self.cluster.upgrade() else { return };
        let owner = lock(&cluster.state).table.owner(Slot::of(&grant.key)).cloned();
        let counts =
            owner.is_none_or(|owner| owner.address == self.address || !owner.node.is_told_of(&grant.key));
        if counts {
            cluster.engine.on_grant(grant);
        }
    }

    fn on_key_event(&self, key: &Name) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.engine.on_key_event(key);
        }
    }

    fn connected(&self, moved: bool) {
        let Some(cluster) = self.cluster.upgrade() else { return };
        let Some(member) = cluster.known(&self.address) else { return };
        cluster.finish_connecting(&member);
        let moved = member.gained.swap(false, Ordering::AcqRel) || moved;
        cluster.take_wakers(moved, |slot| {
            lock(&cluster.state).table.owner(slot).is_some_and(|owner| Arc::ptr_eq(owner, &member))
        });
        cluster.parked.notify_one();
    }

    fn disconnected(&self) {
        if let Some(cluster) = self.cluster.upgrade() {
            if let Some(member) = cluster.known(&self.address) {
                cluster.finish_connecting(&member);
            }
            cluster.doubt.notify_one();
        }
    }

    fn redirects(&self) -> Option<&dyn RedirectHandler> {
        Some(self)
    }
}

impl RedirectHandler for PrimaryReplySink {
    fn read(&self, answer: &Value) -> Option<Redirect> {
        Redirect::read(answer, &self.address)
    }

    fn follow(&self, sent_away: Vec<(Request, Redirect)>, passage: RouteHistory) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.follow(&self.address, sent_away, passage);
        }
    }
}

/// How long a server is kept that serves no slot: what it was asked is answered by then, and one that slots are moving to has some.
const KEPT_FOR: Duration = Duration::from_secs(10);
