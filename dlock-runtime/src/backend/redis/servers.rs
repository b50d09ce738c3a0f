//! Who serves the keys: what the driver knows of the servers, however many they are.
//!
//! Not here: one server (`node`), when something is sent (`driver`).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};

use crate::backend::Request;
use crate::backend::redis::node::Node;
use crate::backend::redis::quorum::Quorum;
use crate::backend::redis::shared::Shared;
use crate::protocol::command::Failure;

/// Who serves the keys.
pub(super) enum Servers {
    /// One server has them all.
    One(Arc<Node>),
    /// All have them, and a majority decides.
    Quorum(Arc<Quorum>),
}

impl Servers {
    /// Has requests sent, or answers them while they cannot be sent; here and now.
    pub(super) fn take(&self, requests: Vec<Request>) {
        if requests.is_empty() {
            return;
        }
        match self {
            Self::One(node) => node.take(requests),
            Self::Quorum(quorum) => quorum.take(requests),
        }
    }

    /// Queues the leaves of `shared` that are due and can be sent, and returns how long those that come next have.
    pub(super) fn undo(&self, shared: &Shared, longest: Duration) -> Duration {
        match self {
            Self::One(node) if node.is_ready() => {
                shared.push_all(shared.undoing.due_leaves());
                shared.undoing.due_in().min(longest)
            }
            Self::One(_) => longest,
            Self::Quorum(quorum) => quorum.undo(longest),
        }
    }

    /// Has connections whenever they can be had, without end. `first` is told how the first attempt to connect ended; after a failure
    /// there is no second.
    ///
    /// # Errors
    ///
    /// Fails if something panicked.
    pub(super) async fn run(
        &self,
        first: Option<oneshot::Sender<Result<(), Failure>>>,
    ) -> Result<(), JoinError> {
        let mut nodes = JoinSet::new(); // they end with it
        match self {
            Self::One(node) => nodes.spawn(Arc::clone(node).run(first)),
            Self::Quorum(quorum) => return quorum.run(first).await,
        };
        nodes.join_next().await.unwrap_or(Ok(()))
    }
}
