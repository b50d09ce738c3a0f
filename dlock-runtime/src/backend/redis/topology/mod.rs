//! The servers that serve the keys, for each kind of deployment.
//!
//! | module | contents |
//! |---|---|
//! | `cluster` | a Redis Cluster: which node serves a key |
//! | `quorum` | several independent servers that vote |
//! | `sentinel` | finds the primary through Sentinel |
//! | `send_queue` | keeps the order of requests to several nodes |
//! | `discovery` | where a node's server is, and when it moves |

pub(super) mod cluster;
pub(super) mod discovery;
pub(super) mod quorum;
mod send_queue;
pub(super) mod sentinel;
#[cfg(test)]
mod tests;

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

/// The servers of a manager.
pub(crate) enum Topology {
    /// One server with all keys.
    One(Arc<Node>),
    /// The primaries of a cluster, each with the keys of its slots.
    Cluster(Arc<Cluster>),
    /// Several servers with all keys, of which a majority decides.
    Quorum(Arc<Quorum>),
}

/// The load of the connections that a new request would use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadHint {
    /// Nothing is in flight. Any thread may send.
    Idle,
    /// Other requests are in flight. Any thread may send.
    Busy,
    /// Only the driver sends.
    DriverOnly,
}

impl Topology {
    /// Sends requests, or answers them if they cannot be sent.
    pub(crate) fn take(&self, requests: Vec<Request>) {
        match self {
            Self::Cluster(cluster) => cluster.take(requests),
            Self::Quorum(quorum) => quorum.take(requests),
            Self::One(node) => node.take(requests, RouteHistory::default()),
        }
    }

    /// Sends the rest of a long queue, which the threads that were sending have left.
    pub(crate) fn send_rest(&self) {
        match self {
            Self::One(_) => {} // its requests never wait in a queue of the topology
            Self::Cluster(cluster) => cluster.send(),
            Self::Quorum(quorum) => quorum.send(),
        }
    }

    /// Returns the load of the connections that the queued requests would use.
    pub(crate) fn traffic(&self, shared: &CommandQueue) -> LoadHint {
        match self {
            Self::One(node) => node.traffic(),
            // The requests would not be sent now in any case, so the primary does not matter.
            Self::Cluster(_) if !shared.is_alone() && !shared.is_write_due(false) => LoadHint::DriverOnly,
            Self::Cluster(cluster) => cluster.traffic(shared.first_key().as_deref()),
            Self::Quorum(quorum) => quorum.traffic(),
        }
    }

    /// Finds out whether the writer on the callers' runtime, which has requests to write, is
    /// blocked. If so, the driver writes them.
    pub(crate) fn watch_writer(&self) {
        match self {
            Self::One(node) => node.watch_writer(),
            Self::Cluster(cluster) => cluster.watch_writer(),
            Self::Quorum(_) => {} // the driver is the writer
        }
    }

    /// Queues the withdrawals that are due and can be sent, and returns the time until the next, at
    /// most `longest`.
    pub(crate) fn clean_up(&self, shared: &CommandQueue, longest: Duration) -> Duration {
        let is_ready = match self {
            Self::One(node) => node.is_ready(),
            Self::Cluster(cluster) => cluster.is_ready(),
            Self::Quorum(quorum) => return quorum.clean_up(longest),
        };
        if !is_ready {
            return longest;
        }
        shared.push_all(shared.cleanup.due_withdrawals());
        shared.cleanup.due_in().min(longest)
    }

    /// Keeps connections open, forever. `first` receives the outcome of the first attempt to
    /// connect. If that fails, the topology does not try again.
    ///
    /// # Errors
    ///
    /// Fails if a task panicked.
    pub(crate) async fn run(
        &self,
        first: Option<oneshot::Sender<Result<(), Failure>>>,
    ) -> Result<(), JoinError> {
        let mut tasks = JoinSet::new(); // aborts its tasks when dropped
        match self {
            Self::One(node) => tasks.spawn(in_one_process(Arc::clone(node).run(first))),
            Self::Cluster(cluster) => tasks.spawn(in_one_process(Arc::clone(cluster).run(first))),
            Self::Quorum(quorum) => return quorum.run(first).await,
        };
        tasks.join_next().await.unwrap_or(Ok(()))
    }
}

/// Parses a reply of any kind of server.
#[cfg(any(test, fuzzing))]
pub(super) fn read_value(value: &redis::Value) {
    cluster::read_value(value);
    sentinel::read_value(value);
}

/// Parses a message of any kind of server.
#[cfg(any(test, fuzzing))]
pub(super) fn read_message(message: &[u8]) {
    sentinel::read_message(message);
}
