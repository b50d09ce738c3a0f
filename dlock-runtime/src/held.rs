//! What the current call chain holds.
//!
//! A scope is one hold that a body runs under; scopes nest, and the innermost is known to the task that polls the body.
//!
//! Not here: how a nested call waits for its siblings (`protocol::reentrancy`), how a body is run (`run`).

use std::future::Future;
use std::sync::{Arc, OnceLock};

use crate::engine::Engine;
use crate::engine::acquisition::SharedAcquisition;
use crate::engine::hold_guard::HoldGuard;
use crate::key::{LockKey, Name};
use crate::protocol::deadlock::WaitNode;
use crate::token::ProcessId;

/// One hold that the current call runs under.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    /// The manager whose lock it is: to be told apart, and not kept alive, which would cost two threads a contended count at each call.
    manager: ProcessId,
    /// The turn that holds the lock.
    root: SharedAcquisition,
    /// How many calls deep the scope is nested in that hold.
    depth: usize,
    parent: Option<Arc<Scope>>,
}

impl Scope {
    /// Returns the innermost scope of the task that is being polled.
    pub(crate) fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(|current| current.as_ref().map(Current::scope)).ok().flatten()
    }

    /// Returns the innermost scope of the chain that holds `key` in `engine`.
    pub(crate) fn of_key<'a>(scope: &'a Arc<Self>, engine: &Engine, key: &LockKey) -> Option<&'a Arc<Self>> {
        Self::chain(scope).find(|scope| scope.is_of(engine) && scope.root.key == *key)
    }

    /// Returns every place that the chain has in `engine`.
    pub(crate) fn places(scope: &Arc<Self>, engine: &Engine) -> Vec<WaitNode> {
        Self::chain(scope)
            .filter(|scope| scope.is_of(engine))
            .map(|scope| (Name::clone(scope.root.key.name()), scope.depth))
            .collect()
    }

    pub(crate) fn root(&self) -> &SharedAcquisition {
        &self.root
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    fn is_of(&self, engine: &Engine) -> bool {
        self.manager == engine.tokens.process()
    }

    fn chain(scope: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        std::iter::successors(Some(scope), |scope| scope.parent.as_ref())
    }
}

/// The scope of a body that is polled now and then. Most bodies never ask for it, so it is made for the first that does.
#[derive(Debug)]
pub(crate) enum ScopeSlot {
    /// Nobody has asked for it. It stands inside this one.
    Inside(Option<Arc<Scope>>),
    Made(Arc<Scope>),
}

impl ScopeSlot {
    /// Opens a scope inside the current one.
    pub(crate) fn new() -> Self {
        Self::Inside(Scope::current())
    }

    /// Does something, such as polling a body, inside the scope, which is that of `held`.
    pub(crate) fn enter<R>(&mut self, held: &HoldGuard, inside: impl FnOnce() -> R) -> R {
        let current = match &*self {
            Self::Made(scope) => Current::Made(Arc::clone(scope)),
            Self::Inside(parent) => {
                let (manager, root) = (held.engine.tokens.process(), SharedAcquisition::clone(held.root()));
                let scope = Scope { manager, root, depth: held.depth(), parent: parent.clone() };
                Current::Open(scope, OnceLock::new())
            }
        };
        CURRENT.sync_scope(Some(current), || {
            let result = inside();
            let made = CURRENT.with(|current| current.as_ref().and_then(Current::made));
            if let (Some(scope), Self::Inside(_)) = (made, &*self) {
                *self = Self::Made(scope);
            }
            result
        })
    }
}

/// The innermost scope of the task that is being polled.
#[derive(Debug)]
enum Current {
    /// It stands here until somebody asks for it.
    Open(Scope, OnceLock<Arc<Scope>>),
    Made(Arc<Scope>),
}

impl Current {
    fn scope(&self) -> Arc<Scope> {
        match self {
            Self::Open(scope, made) => Arc::clone(made.get_or_init(|| Arc::new(scope.clone()))),
            Self::Made(scope) => Arc::clone(scope),
        }
    }

    /// Returns it where somebody has asked for it.
    fn made(&self) -> Option<Arc<Scope>> {
        match self {
            Self::Open(_, made) => made.get().cloned(),
            Self::Made(_) => None,
        }
    }
}

tokio::task_local! {
    static CURRENT: Option<Current>;
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
    CURRENT.scope(Scope::current().map(Current::Made), future)
}
