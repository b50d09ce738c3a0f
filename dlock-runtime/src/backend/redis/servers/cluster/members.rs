//! A master of a cluster, and what becomes of what it says.
//!
//! Not here: which slots it serves (`slots`), the connection to it (`node`).

use std::sync::atomic::{AtomicBool, Ordering};
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
}

impl Member {
    pub(super) fn new(address: Address, route: Arc<Route>, node: Arc<Node>) -> Self {
        let (running, needed) = (OnceCell::new(), Mutex::new(Instant::now()));
        Self { address, route, node, running, gained: AtomicBool::new(true), needed }
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

    /// The servers of a cluster hand each message on to all others, and we listen to every master: it is passed on once, from the one
    /// that serves the key, or from any while that one cannot be heard. It is no proof: who published it saw only those who listen there.
    fn granted(&self, grant: Grant) {
        let Some(cluster) = self.cluster.upgrade() else { return };
        let owner = lock(&cluster.state).table.owner(Slot::of(&grant.key)).cloned();
        let counts = owner.is_none_or(|owner| owner.address == self.address || !owner.node.is_listening());
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
        let moved = member.gained.swap(false, Ordering::AcqRel) || moved;
        cluster.look_again(moved, |slot| {
            lock(&cluster.state).table.owner(slot).is_some_and(|owner| Arc::ptr_eq(owner, &member))
        });
        cluster.parked.notify_one();
    }

    fn disconnected(&self) {
        if let Some(cluster) = self.cluster.upgrade() {
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
