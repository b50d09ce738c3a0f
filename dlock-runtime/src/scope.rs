//! The locks that the current call chain holds.
//!
//! A scope is one hold that a body runs under. Scopes nest, and the task that polls the body has
//! the innermost.

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
    /// The manager of the lock, to compare. An `Arc` would be a contended count for two threads at
    /// each call.
    manager: ProcessId,
    /// The acquisition that holds the lock.
    root: SharedAcquisition,
    /// The nesting depth of the scope within that hold.
    depth: usize,
    parent: Option<Arc<Scope>>,
}

impl Scope {
    /// Returns the innermost scope of the task that is being polled.
    pub(crate) fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(|current| current.as_ref().map(Current::scope)).ok().flatten()
    }

    /// Returns the innermost scope of the call chain that holds `key` in `engine`.
    pub(crate) fn of_key<'a>(scope: &'a Arc<Self>, engine: &Engine, key: &LockKey) -> Option<&'a Arc<Self>> {
        Self::chain(scope).find(|scope| scope.is_of(engine) && scope.root.key == *key)
    }

    /// Returns all positions of the call chain in the wait-for graph of `engine`.
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

/// The scope of a body, which is created on first use, as most bodies never use it.
#[derive(Debug)]
pub(crate) enum ScopeSlot {
    /// Not created yet; the value is the enclosing scope.
    Inside(Option<Arc<Scope>>),
    Made(Arc<Scope>),
}

impl ScopeSlot {
    /// Opens a scope inside the current one.
    pub(crate) fn new() -> Self {
        Self::Inside(Scope::current())
    }

    /// Runs `inside`, such as a poll of the body, within the scope of `held`.
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
    /// `RetainedHold` here, without an allocation, until it is used.
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

    /// Returns the scope if it has been used.
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

/// Runs a future, such as one that is spawned, within the current scope.
pub(crate) fn with_current_scope<F: Future>(future: F) -> impl Future<Output = F::Output> {
    CURRENT.scope(Scope::current().map(Current::Made), future)
}
