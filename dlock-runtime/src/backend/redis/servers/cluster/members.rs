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
use crate::backend::redis::answers::{Answers, Redirects};
use crate::backend::redis::node::Node;
use crate::backend::redis::node::batch::Passage;
use crate::backend::redis::node::link::{Grant, Route};
use crate::backend::redis::servers::address::Address;
use crate::backend::redis::servers::cluster::Cluster;
use crate::backend::redis::servers::cluster::redirects::Elsewhere;
use crate::backend::redis::servers::cluster::slots::Slot;
use crate::clock::boot_time;
use crate::key::Name;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootTime;
use crate::sync::lock;

/// A master of a cluster.
pub(super) struct Member {
    pub(super) address: Address,
    pub(super) route: Arc<Route>,
    pub(super) node: Arc<Node>,
    /// What runs the node, once something does.
    pub(super) running: OnceCell<AbortHandle>,
    /// Whether it was given slots since it could be reached last.
    gained: AtomicBool,
    needed: Mutex<Instant>,
    /// How far the first attempt to connect is; changed with the cluster's state locked.
    opening: AtomicU8,
    /// Requests that wait for that attempt, in their order.
    waiting: Mutex<Vec<Waiting>>,
}

/// No key of its slots has been used.
const UNUSED: u8 = 0;
/// The first attempt to connect has not ended.
const OPENING: u8 = 1;
/// The first attempt to connect has ended.
const OPEN: u8 = 2;

/// A request that waits for the first attempt to connect to its master.
pub(super) struct Waiting {
    pub(super) request: Request,
    pub(super) passage: Passage,
    since: BootTime,
}

impl Member {
    pub(super) fn new(address: Address, route: Arc<Route>, node: Arc<Node>) -> Self {
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
    pub(super) fn begin_opening(&self) -> bool {
        self.opening.compare_exchange(UNUSED, OPENING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Has a request wait for the first attempt to connect.
    pub(super) fn enqueue(&self, request: Request, passage: Passage) {
        lock(&self.waiting).push(Waiting { request, passage, since: boot_time() });
    }

    /// Notes that the first attempt to connect has ended, and returns the requests that waited for it.
    pub(super) fn finish_opening(&self) -> Vec<Waiting> {
        self.opening.store(OPEN, Ordering::Release);
        std::mem::take(&mut *lock(&self.waiting))
    }

    /// Takes out the requests that wait and of which `is_wanted` says so.
    pub(super) fn take_waiting(&self, is_wanted: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        lock(&self.waiting).extract_if(.., |waiting| is_wanted(waiting)).collect()
    }

    /// Returns when the request began to wait that has waited for longest.
    pub(super) fn waiting_since(&self) -> Option<BootTime> {
        lock(&self.waiting).first().map(|waiting| waiting.since)
    }

    /// Notes that it was given slots while it cannot be reached: it is worth a try, whatever it was before.
    pub(super) fn has_gained(&self) {
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

impl Waiting {
    /// Returns for how long it has waited at `now`.
    pub(super) fn waited(&self, now: BootTime) -> Duration {
        now.since(self.since)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(running) = self.running.get() {
            running.abort();
        }
    }
}

/// Who is told what the server at one address says.
pub(super) struct Voice {
    pub(super) cluster: Weak<Cluster>,
    pub(super) address: Address,
}

impl Answers for Voice {
    fn replies(&self, replies: Vec<(Request, Reply)>, sent: BootTime, epoch: Option<u64>) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.engine.replies(replies, sent, epoch);
        }
    }

    /// The servers of a cluster hand each message on to all others, and we listen to every master in use: it is passed on once, from the
    /// one that serves the key, or from any while that one cannot be heard. It is no proof: who published it saw only those who listen there.
    fn granted(&self, grant: Grant) {
        let Some(cluster) = self.cluster.upgrade() else { return };
        let owner = lock(&cluster.state).table.owner(Slot::of(&grant.key)).cloned();
        let counts =
            owner.is_none_or(|owner| owner.address == self.address || !owner.node.is_told_of(&grant.key));
        if counts {
            cluster.engine.granted(grant);
        }
    }

    fn rung(&self, key: &Name) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.engine.rung(key);
        }
    }

    fn connected(&self, moved: bool) {
        let Some(cluster) = self.cluster.upgrade() else { return };
        let Some(member) = cluster.known(&self.address) else { return };
        cluster.finish_opening(&member);
        let moved = member.gained.swap(false, Ordering::AcqRel) || moved;
        cluster.look_again(moved, |slot| {
            lock(&cluster.state).table.owner(slot).is_some_and(|owner| Arc::ptr_eq(owner, &member))
        });
        cluster.parked.notify_one();
    }

    fn disconnected(&self) {
        if let Some(cluster) = self.cluster.upgrade() {
            if let Some(member) = cluster.known(&self.address) {
                cluster.finish_opening(&member);
            }
            cluster.doubt.notify_one();
        }
    }

    fn redirects(&self) -> Option<&dyn Redirects> {
        Some(self)
    }
}

impl Redirects for Voice {
    fn read(&self, answer: &Value) -> Option<Elsewhere> {
        Elsewhere::read(answer, &self.address)
    }

    fn follow(&self, sent_away: Vec<(Request, Elsewhere)>, passage: Passage) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.follow(&self.address, sent_away, passage);
        }
    }
}

/// How long a server is kept that serves no slot: what it was asked is answered by then, and one that slots are moving to has some.
const KEPT_FOR: Duration = Duration::from_secs(10);
