//! What the current call chain holds.
//!
//! A scope is one hold that a body runs under; scopes nest, and the innermost is known to the task that polls the body.
//!
//! Not here: how a nested call waits for its siblings (`protocol::nesting`), how a body is run (`run`).

use std::future::Future;
use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::hold::Held;
use crate::engine::turn::Turn;
use crate::key::LockKey;
use crate::protocol::waits::Place;

/// One hold that the current call runs under.
#[derive(Debug)]
pub(crate) struct Scope {
    engine: Arc<Engine>,
    /// The turn that holds the lock.
    root: Arc<Turn>,
    /// How many calls deep the scope is nested in that hold.
    depth: usize,
    parent: Option<Arc<Scope>>,
}

impl Scope {
    /// Opens the scope of `held` inside the current one.
    pub(crate) fn open(held: &Held) -> Arc<Self> {
        Arc::new(Self {
            engine: Arc::clone(&held.engine),
            root: Arc::clone(held.root()),
            depth: held.depth(),
            parent: Self::current(),
        })
    }

    /// Returns the innermost scope of the task that is being polled.
    pub(crate) fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Clone::clone).ok().flatten()
    }

    /// Returns the innermost scope of the chain that holds `key` in `engine`.
    pub(crate) fn of_key<'a>(
        scope: &'a Arc<Self>,
        engine: &Arc<Engine>,
        key: &LockKey,
    ) -> Option<&'a Arc<Self>> {
        Self::chain(scope).find(|scope| Arc::ptr_eq(&scope.engine, engine) && scope.root.key == *key)
    }

    /// Returns every place that the chain has in `engine`.
    pub(crate) fn places(scope: &Arc<Self>, engine: &Arc<Engine>) -> Vec<Place> {
        Self::chain(scope)
            .filter(|scope| Arc::ptr_eq(&scope.engine, engine))
            .map(|scope| (Arc::clone(scope.root.key.name()), scope.depth))
            .collect()
    }

    pub(crate) fn root(&self) -> &Arc<Turn> {
        &self.root
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Does something, such as polling a body, inside the scope.
    pub(crate) fn enter<R>(scope: &Arc<Self>, inside: impl FnOnce() -> R) -> R {
        CURRENT.sync_scope(Some(Arc::clone(scope)), inside)
    }

    fn chain(scope: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        std::iter::successors(Some(scope), |scope| scope.parent.as_ref())
    }
}

tokio::task_local! {
    static CURRENT: Option<Arc<Scope>>;
}

/// Carries the locks of the current call into a future that is spawned.
///
/// A spawned task does not inherit what the call that spawns it holds: it may outlive it. Where it is awaited inside the body, this
/// lets annotated functions in it join the body's locks instead of waiting for them for ever.
///
/// ```
/// # use dlock_runtime::{in_current_scope, LockManager};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_runtime::Result<()> {
/// # let locks = LockManager::connect("memory://").await?;
/// # let same = locks.clone();
/// locks.lock("order:7").run(async |_guard| {
///     let nested = async move { same.lock("order:7").run(async |_| "joined").await };
///     tokio::spawn(in_current_scope(nested)).await.expect("the task does not panic")
/// }).await??;
/// # Ok(()) }
/// ```
///
/// # Cancel safety
///
/// Dropping it drops the future.
pub fn in_current_scope<F: Future>(future: F) -> impl Future<Output = F::Output> {
    CURRENT.scope(Scope::current(), future)
}
