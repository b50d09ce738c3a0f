//! Who serves the keys: what the driver knows of the servers, however many they are.
//!
//! | file | owns |
//! |---|---|
//! | `cluster` | several nodes: which one serves a key |
//! | `quorum` | several nodes that vote |
//! | `sentinel` | who says where the master is |
//! | `outgoing` | in which order requests leave for several nodes |
//! | `whereabouts`, `address` | where a node's server is, and when it is elsewhere |
//!
//! Not here: one server (`node`), when something is sent (`driver`).

pub(super) mod address;
pub(super) mod cluster;
pub(super) mod discovery;
pub(super) mod quorum;
mod send_queue;
pub(super) mod sentinel;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};

use crate::backend::Request;
use crate::backend::redis::command_queue::CommandQueue;
use crate::backend::redis::node::Node;
use crate::backend::redis::node::pipeline::RouteHistory;
use crate::backend::redis::topology::cluster::Cluster;
use crate::backend::redis::topology::quorum::Quorum;
use crate::fork::in_one_process;
use crate::protocol::command::Failure;

/// Who serves the keys.
pub(crate) enum Topology {
    /// One server has them all.
    One(Arc<Node>),
    /// The masters of a cluster, each those of its slots.
    Cluster(Arc<Cluster>),
    /// All have them, and a majority decides.
    Quorum(Arc<Quorum>),
}

/// What is under way, where that is of use to who has a request to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadHint {
    /// Nothing that a request could come behind; whoever has one may send it, on any thread.
    Idle,
    /// Others; the same.
    Busy,
    /// The driver alone sends.
    OfTheDriver,
}

impl Topology {
    /// Has requests sent, or answers them while they cannot be sent; here and now.
    pub(crate) fn take(&self, requests: Vec<Request>) {
        match self {
            // And what others have left to be sent.
            Self::Cluster(cluster) => cluster.take(requests),
            Self::Quorum(quorum) => quorum.take(requests),
            Self::One(_) if requests.is_empty() => {}
            Self::One(node) => node.take(requests, RouteHistory::default()),
        }
    }

    /// Returns what is under way to whom what is queued goes to.
    pub(crate) fn traffic(&self, shared: &CommandQueue) -> LoadHint {
        match self {
            Self::One(node) => node.traffic(),
            // Whose master it is would tell nothing that makes it leave.
            Self::Cluster(_) if !shared.is_alone() && !shared.is_much() => LoadHint::OfTheDriver,
            Self::Cluster(cluster) => cluster.traffic(shared.first_key().as_deref()),
            Self::Quorum(quorum) => quorum.traffic(),
        }
    }

    /// Queues the leaves of `shared` that are due and can be sent, and returns how long those that come next have.
    pub(crate) fn undo(&self, shared: &CommandQueue, longest: Duration) -> Duration {
        let is_ready = match self {
            Self::One(node) => node.is_ready(),
            Self::Cluster(cluster) => cluster.is_ready(),
            Self::Quorum(quorum) => return quorum.undo(longest),
        };
        if !is_ready {
            return longest;
        }
        shared.push_all(shared.undoing.due_leaves());
        shared.undoing.due_in().min(longest)
    }

    /// Has connections whenever they can be had, without end. `first` is told how the first attempt to connect ended; after a failure
    /// there is no second.
    ///
    /// # Errors
    ///
    /// Fails if something panicked.
    pub(crate) async fn run(
        &self,
        first: Option<oneshot::Sender<Result<(), Failure>>>,
    ) -> Result<(), JoinError> {
        let mut tasks = JoinSet::new(); // they end with it
        match self {
            Self::One(node) => tasks.spawn(in_one_process(Arc::clone(node).run(first))),
            Self::Cluster(cluster) => tasks.spawn(in_one_process(Arc::clone(cluster).run(first))),
            Self::Quorum(quorum) => return quorum.run(first).await,
        };
        tasks.join_next().await.unwrap_or(Ok(()))
    }
}

/// Reads what may be said by servers of any kind.
#[cfg(any(test, fuzzing))]
pub(super) fn read_value(value: &redis::Value) {
    cluster::read_value(value);
    sentinel::read_value(value);
}

/// Reads what may be published by servers of any kind.
#[cfg(any(test, fuzzing))]
pub(super) fn read_message(message: &[u8]) {
    sentinel::read_message(message);
}
