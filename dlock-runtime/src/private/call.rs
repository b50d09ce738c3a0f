//! One call of an annotated function: its key, its lock and its body.
//!
//! The call is part of the function's future, so it is small: what is known at compile time stands in a [`Site`], errors are boxed.
//!
//! Not here: what becomes of an error (`outcome`).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use once_cell::sync::OnceCell;

use crate::body::Body;
use crate::config::is_namespace;
use crate::error::{Error, Result};
use crate::guard::LockGuard;
use crate::key::{IntoLockKey, KeyBuilder, LockKey};
use crate::manager::LockManager;
use crate::options::{OnLost, Options};
use crate::run::{Acquiring, Releasing, Running};
use crate::telemetry::CallSpan;

/// An annotated function: what all its calls have in common.
#[derive(Debug)]
pub struct Site {
    name: &'static str,
    options: Options,
    namespace: Option<&'static str>,
    runs_unlocked: bool,
}

impl Site {
    /// Describes a function. `name` labels spans and metrics.
    ///
    /// # Panics
    ///
    /// Panics where it is made, which is in the compiler, when the options contradict each other:
    ///
    /// ```compile_fail,E0080
    /// # use std::time::Duration;
    /// # use dlock_runtime::{Error, distributed_lock};
    /// const LEASE: Duration = Duration::from_secs(30);
    ///
    /// #[distributed_lock(key = "a", lease = LEASE, max_hold = "10s")]
    /// async fn f() -> Result<(), Error> {
    ///     Ok(())
    /// }
    /// # fn main() { drop(f()) }
    /// ```
    ///
    /// and does not when they can all be kept:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_runtime::{Error, distributed_lock};
    /// const LEASE: Duration = Duration::from_secs(5);
    ///
    /// #[distributed_lock(key = "a", lease = LEASE, max_hold = "10s")]
    /// async fn f() -> Result<(), Error> {
    ///     Ok(())
    /// }
    /// # fn main() { drop(f()) }
    /// ```
    #[must_use]
    #[track_caller]
    pub const fn new(name: &'static str, options: Options) -> Self {
        if let Some((_, problem)) = options.contradiction() {
            panic!("{}", problem);
        }
        Self { name, options, namespace: None, runs_unlocked: false }
    }

    /// Puts the keys of the function into a namespace of their own, in place of the manager's.
    ///
    /// # Panics
    ///
    /// Panics where it is made for what cannot be part of a namespace.
    #[must_use]
    #[track_caller]
    pub const fn namespace(self, namespace: &'static str) -> Self {
        assert!(
            is_namespace(namespace),
            "`namespace` cannot have white space, control characters, braces or angle brackets"
        );
        Self { namespace: Some(namespace), ..self }
    }

    /// Has the body run without the lock where the server cannot be asked.
    #[must_use]
    pub const fn runs_unlocked(self) -> Self {
        Self { runs_unlocked: true, ..self }
    }

    /// Returns the function's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

/// One call of an annotated function: made before the body, so that it is dropped after it.
#[derive(Debug)]
pub struct Call {
    site: &'static Site,
    manager: Option<LockManager>,
    /// None until it is set, and where no manager is installed.
    key: Option<std::result::Result<LockKey, Box<Error>>>,
    telemetry: CallSpan,
    guard: OnceCell<LockGuard>,
}

impl Call {
    /// Begins a call under the installed manager.
    #[must_use]
    pub fn new(site: &'static Site) -> Self {
        Self::begin(crate::global::current().ok(), site)
    }

    /// Begins a call under a manager of its own.
    #[must_use]
    pub fn under(manager: &LockManager, site: &'static Site) -> Self {
        Self::begin(Some(manager.clone()), site)
    }

    fn begin(manager: Option<LockManager>, site: &'static Site) -> Self {
        Self { site, manager, key: None, telemetry: CallSpan::none(), guard: OnceCell::new() }
    }

    /// Starts the key of this call.
    pub fn template(&self) -> KeyBuilder {
        KeyBuilder::new(self.namespace())
    }

    /// Sets the key of this call, which begins with it; a bad one is reported by [`run`](Self::run).
    #[must_use]
    pub fn key(self, key: impl IntoLockKey) -> Self {
        let key = self.manager.as_ref().map(|_| key.into_lock_key(self.namespace()).map_err(Box::new));
        let telemetry = CallSpan::begin(Some(self.site.name), key.as_ref().and_then(|key| key.as_ref().ok()));
        Self { key, telemetry, ..self }
    }

    /// The function's own namespace, or the manager's.
    fn namespace(&self) -> &str {
        let of_manager = || self.manager.as_ref().map_or("", LockManager::namespace);
        self.site.namespace.unwrap_or_else(of_manager)
    }

    /// Takes the lock, without a body yet: for `fallback`, whose arguments must be whole when it fails.
    ///
    /// # Errors
    ///
    /// Every cause for which a body cannot start.
    pub fn acquire(&self) -> Acquire<'_> {
        Acquire { call: self, entering: self.entering() }
    }

    /// Takes the lock unless [`acquire`](Self::acquire) has, runs the body under it, drops the body in place, releases.
    ///
    /// If the lock is found lost when the body has completed, `keeps` decides whether its value stands all the same.
    ///
    /// # Errors
    ///
    /// Every cause for which the body could not start or could not go on; a loss under a body that has completed.
    pub fn run<'a, F, K>(&'a self, body: Pin<&'a mut Body<F>>, keeps: K) -> Run<'a, F, K>
    where
        F: Future,
        K: Fn(&F::Output) -> bool + Unpin,
    {
        let step =
            if self.guard.get().is_some() { self.started() } else { CallState::Acquiring(self.entering()) };
        Run { call: self, body, keeps, step }
    }

    /// Runs the body to its own end under the lock that [`acquire`](Self::acquire) has taken: what `on_lost = finish` promises.
    ///
    /// Nothing can replace the body's value any more, so there is no error. A loss is logged.
    pub async fn run_to_end<F: Future>(&self, body: Pin<&mut Body<F>>) -> F::Output {
        debug_assert!(self.site.options.on_lost == OnLost::Finish, "the expansion calls this for no other");
        match self.run(body, |_| true).await {
            Ok(output) => output,
            Err(error) => unreachable!("a body that runs to its end is not stopped: {error}"),
        }
    }

    /// Takes note of an error that the function's return type cannot carry and another value stands for: logs it as an error,
    /// unless it is contention, which was expected.
    pub fn swallow(&self, error: &Error) {
        self.telemetry.swallowed(error, self.manager.as_ref().map(|manager| &**manager.engine()));
    }

    /// Returns the hold, inside the body.
    pub fn guard(&self) -> &LockGuard {
        self.guard.get().expect("the body is built and polled only after the lock was taken")
    }

    fn entering(&self) -> Option<Acquiring> {
        let (manager, key) = (self.manager.as_ref()?, self.key.as_ref()?);
        Some(Acquiring::new(manager, key, &self.site.options))
    }

    /// Polls the way to the lock; the guard is there when it has ended well.
    fn poll_entering(&self, entering: &mut Option<Acquiring>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let Some(entering) = entering else { return Poll::Ready(Err(Error::NotInstalled {})) };
        let guard = match (ready!(entering.poll(&self.site.options, &self.telemetry, cx)), &self.key) {
            (Err(error), Some(Ok(key))) if error.is_unavailable() && self.site.runs_unlocked => {
                self.telemetry.unlocked_run(key, &error);
                LockGuard::unlocked(key.clone(), *error)
            }
            (entered, _) => LockGuard::new(entered.map_err(|error| *error)?),
        };
        // A call is asked once; were it twice, the second guard is released here.
        let _ = self.guard.set(guard);
        Poll::Ready(Ok(()))
    }

    /// The body's first step.
    fn started(&self) -> CallState<'_> {
        self.guard().held().map_or(CallState::Unlocked, |held| CallState::Running(Running::new(held)))
    }
}

/// Takes the lock of a call. See [`Call::acquire`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Acquire<'a> {
    call: &'a Call,
    entering: Option<Acquiring>,
}

impl Future for Acquire<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.call.poll_entering(&mut this.entering, cx)
    }
}

/// Runs the body of a call under its lock. See [`Call::run`].
#[must_use = "futures do nothing unless polled"]
pub struct Run<'a, F: Future, K> {
    call: &'a Call,
    body: Pin<&'a mut Body<F>>,
    /// Takes no room.
    keeps: K,
    step: CallState<'a>,
}

/// How far a call is.
enum CallState<'a> {
    Acquiring(Option<Acquiring>),
    Running(Running<'a>),
    Releasing(Releasing<'a>),
    /// The body runs without a lock.
    Unlocked,
}

impl<F, K> Future for Run<'_, F, K>
where
    F: Future,
    K: Fn(&F::Output) -> bool + Unpin,
{
    type Output = Result<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { call, body, keeps, step } = &mut *self;
        let telemetry = &call.telemetry;
        let mut seen = false;
        loop {
            match step {
                CallState::Acquiring(entering) => {
                    ready!(call.poll_entering(entering, cx))?;
                    *step = call.started();
                    // Believed a moment ago, and nothing foreign has run since.
                    seen = telemetry.is_silent();
                }
                CallState::Running(running) => {
                    let on_lost = call.site.options.on_lost;
                    let ended = ready!(running.poll(body.as_mut(), on_lost, seen, telemetry, cx));
                    let options = &call.site.options;
                    *step = CallState::Releasing(Releasing::new(running.held(), ended, options, telemetry));
                }
                CallState::Releasing(leaving) => match ready!(leaving.poll(telemetry, cx)) {
                    Err(error) if !body.as_ref().value().is_some_and(&*keeps) => {
                        return Poll::Ready(Err(error));
                    }
                    _ => break,
                },
                CallState::Unlocked => {
                    let _entered = telemetry.enter();
                    ready!(body.as_mut().poll(cx));
                    break;
                }
            }
        }
        Poll::Ready(Ok(body.as_mut().take()))
    }
}

impl<F: Future, K> fmt::Debug for Run<'_, F, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("call", self.call).finish_non_exhaustive()
    }
}
