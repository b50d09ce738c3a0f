//! One call of an annotated function: its key, its lock, and its body.
//!
//! The call is part of the function's future, so it is small: values that are known at compile time
//! are in a [`Callsite`], and errors are boxed. The function's return type decides what an error
//! becomes: see `outcome` in dlock-macros.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use once_cell::sync::OnceCell;

use crate::body::Body;
use crate::config::namespace_problem;
use crate::error::{Error, Result};
use crate::guard::LockGuard;
use crate::key::{IntoLockKey, KeyBuilder, LockKey};
use crate::manager::LockManager;
use crate::options::{OnLost, Options};
use crate::run::{Acquiring, Releasing, Running};
use crate::telemetry::CallSpan;

/// The properties that all calls of an annotated function have in common.
#[derive(Debug)]
pub struct Callsite {
    name: &'static str,
    options: Options,
    namespace: Option<&'static str>,
    runs_unlocked: bool,
}

impl Callsite {
    /// Describes a function. `name` is its name in spans.
    ///
    /// # Panics
    ///
    /// Panics at compile time if the options contradict each other:
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
    /// These options do not contradict each other:
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

    /// Sets the namespace of the function's keys, instead of the manager's.
    ///
    /// # Panics
    ///
    /// Panics at compile time if the namespace is invalid.
    #[must_use]
    #[track_caller]
    pub const fn namespace(self, namespace: &'static str) -> Self {
        if let Some(problem) = namespace_problem(namespace) {
            panic!("{}", problem);
        }
        Self { namespace: Some(namespace), ..self }
    }

    /// Makes the body run without the lock if the server is unavailable.
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

/// One call of an annotated function. It is created before the body, so that it is dropped after
/// it.
#[derive(Debug)]
pub struct Call {
    site: &'static Callsite,
    manager: Option<LockManager>,
    /// The options if they differ from those of the site.
    options: Option<Box<Options>>,
    /// `None` until it is set, and if no manager is installed.
    key: Option<std::result::Result<LockKey, Box<Error>>>,
    telemetry: CallSpan,
    guard: OnceCell<LockGuard>,
}

impl Call {
    /// Begins a call that uses the installed manager.
    #[must_use]
    pub fn new(site: &'static Callsite) -> Self {
        Self::begin(crate::global::manager().ok(), site)
    }

    /// Begins a call that uses `manager`.
    #[must_use]
    pub fn under(manager: &LockManager, site: &'static Callsite) -> Self {
        Self::begin(Some(manager.clone()), site)
    }

    fn begin(manager: Option<LockManager>, site: &'static Callsite) -> Self {
        Self { site, manager, options: None, key: None, telemetry: CallSpan::none(), guard: OnceCell::new() }
    }

    /// Returns the options of this call.
    #[must_use]
    pub fn options(&self) -> &Options {
        self.options.as_deref().unwrap_or(&self.site.options)
    }

    /// Sets the options of this call.
    #[must_use]
    pub fn with_options(self, options: Options) -> Self {
        Self { options: Some(Box::new(options)), ..self }
    }

    /// Starts the key of this call.
    pub fn template(&self) -> KeyBuilder {
        KeyBuilder::new(self.namespace())
    }

    /// Sets the key of this call, and applies the overrides of the manager, which take precedence
    /// over all options. [`run`](Self::run) reports an invalid key.
    #[must_use]
    pub fn key(mut self, key: impl IntoLockKey) -> Self {
        let changes = self.manager.as_ref().and_then(|manager| manager.overrides().changes(self.site.name));
        if let Some(changes) = changes {
            let mut options = *self.options();
            changes.apply(&mut options);
            self = self.with_options(options);
        }
        let key = self
            .manager
            .as_ref()
            .map(|_| key.into_lock_key(self.namespace()).map_err(|error| Box::new(error.into())));
        let telemetry = CallSpan::begin(Some(self.site.name), key.as_ref().and_then(|key| key.as_ref().ok()));
        Self { key, telemetry, ..self }
    }

    /// Returns the function's own namespace, or the manager's.
    fn namespace(&self) -> &str {
        let of_manager = || self.manager.as_ref().map_or("", LockManager::namespace);
        self.site.namespace.unwrap_or_else(of_manager)
    }

    /// Acquires the lock without a body: for `fallback`, which needs the arguments if that fails.
    ///
    /// # Errors
    ///
    /// Any error that keeps a body from starting.
    pub fn acquire(&self) -> impl Future<Output = Result<()>> + use<'_> {
        let mut entering = self.entering();
        poll_fn(move |cx| self.poll_entering(&mut entering, cx))
    }

    /// Acquires the lock unless [`acquire`](Self::acquire) has, runs the body, drops it in place,
    /// and releases the lock.
    ///
    /// If the lock is found lost after the body has completed, `keeps` decides whether its value is
    /// returned.
    ///
    /// # Errors
    ///
    /// Any error that keeps the body from starting or stops it, and a loss after the body has
    /// completed.
    pub fn run<'a, F, K>(&'a self, body: Pin<&'a mut Body<F>>, keeps: K) -> Run<'a, F, K>
    where
        F: Future,
        K: Fn(&F::Output) -> bool + Unpin,
    {
        let step =
            if self.guard.get().is_some() { self.started() } else { CallState::Acquiring(self.entering()) };
        Run { call: self, body, keeps, step }
    }

    /// Runs the body to its end under the lock that [`acquire`](Self::acquire) acquired, for
    /// `on_lost = finish`.
    ///
    /// It returns the body's value, so there is no error. A loss is logged.
    pub async fn run_to_end<F: Future>(&self, body: Pin<&mut Body<F>>) -> F::Output {
        debug_assert!(self.site.options.on_lost == OnLost::Finish, "the expansion calls this for no other");
        match self.run(body, |_| true).await {
            Ok(output) => output,
            Err(error) => unreachable!("a body that runs to its end is not stopped: {error}"),
        }
    }

    /// Polls a body, and records whether it has succeeded, for `min_hold_on = ok`.
    pub async fn with_success<F: Future>(&self, body: F, is_error: impl Fn(&F::Output) -> bool) -> F::Output {
        let value = body.await;
        if !is_error(&value)
            && let Some(held) = self.guard().held()
        {
            held.record_success();
        }
        value
    }

    /// Records an error that another value replaces, because the return type cannot carry it.
    ///
    /// It logs the error, unless it is contention, which is expected.
    pub fn swallow(&self, error: &Error) {
        let limits = self.manager.as_ref().map(|manager| manager.engine().event_limits());
        self.telemetry.swallowed(error, limits);
    }

    /// Returns the guard, inside the body.
    pub fn guard(&self) -> &LockGuard {
        self.guard.get().expect("the body is built and polled only after the lock was taken")
    }

    fn entering(&self) -> Option<Acquiring> {
        let (manager, key) = (self.manager.as_ref()?, self.key.as_ref()?);
        Some(Acquiring::new(manager, key, self.options()))
    }

    /// Polls the acquisition. If it succeeds, the guard is set.
    fn poll_entering(&self, entering: &mut Option<Acquiring>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let Some(entering) = entering else { return Poll::Ready(Err(Error::NotInstalled {})) };
        let guard = match (ready!(entering.poll(self.options(), &self.telemetry, cx)), &self.key) {
            (Err(error), Some(Ok(key))) if error.is_unavailable() && self.site.runs_unlocked => {
                self.telemetry.ran_without_lock(key, &error);
                LockGuard::unlocked(key.clone(), *error)
            }
            (entered, _) => LockGuard::new(entered.map_err(|error| *error)?),
        };
        // A call is acquired once. If it happened twice, the second guard would be released here.
        let _ = self.guard.set(guard);
        Poll::Ready(Ok(()))
    }

    /// Returns the first state of the body.
    fn started(&self) -> CallState<'_> {
        self.guard().held().map_or(CallState::Unlocked, |held| CallState::Running(Running::new(held)))
    }
}

/// Runs the body of a call under its lock. See [`Call::run`].
#[must_use = "futures do nothing unless polled"]
pub struct Run<'a, F: Future, K> {
    call: &'a Call,
    body: Pin<&'a mut Body<F>>,
    /// Takes no space.
    keeps: K,
    step: CallState<'a>,
}

/// The progress of a call.
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
                    // The hold was just checked, and no foreign code has run since.
                    seen = telemetry.is_silent();
                }
                CallState::Running(running) => {
                    let on_lost = call.site.options.on_lost;
                    let ended = ready!(running.poll(body.as_mut(), on_lost, seen, telemetry, cx));
                    let options = call.options();
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

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::options::MinHoldOn;

    const SECOND: Duration = Duration::from_secs(1);

    static SITE: Callsite = Callsite::new("orders.place", Options::new().retry(3).min_hold_on(MinHoldOn::Ok))
        .namespace("billing");

    static PLAIN: Callsite = Callsite::new("orders.cancel", Options::new());

    static RUNS_UNLOCKED: Callsite = Callsite::new("orders.show", Options::new()).runs_unlocked();

    async fn in_memory() -> LockManager {
        let builder = LockManager::builder("memory://").namespace("shop").overrides("orders.place: wait=2s");
        builder.connect().await.expect("no server is needed")
    }

    /// Runs a body that returns 7, or the error.
    async fn run(call: &Call) -> Result<u8> {
        let body = pin!(Body::Future { future: std::future::ready(7) });
        call.run(body, |_| false).await
    }

    #[tokio::test]
    async fn options_come_from_site_arguments_and_overrides() {
        let locks = in_memory().await;

        let call = Call::under(&locks, &SITE);
        let options = call.options().lease(5 * SECOND).max_hold(9 * SECOND).min_hold(SECOND).wait(SECOND);
        let call = call.with_options(options).key("order:7");
        let other = Call::under(&locks, &PLAIN);
        let options = other.options().wait(SECOND).retry(2);
        let other = other.with_options(options).key("order:7");

        let Options { lease, max_hold, min_hold, wait, retry, .. } = *call.options();
        assert_eq!((lease, max_hold, min_hold), (Some(5 * SECOND), Some(9 * SECOND), Some(SECOND)));
        assert_eq!((wait, retry), (Some(2 * SECOND), 3), "overrides take precedence");
        assert_eq!((other.options().wait, other.options().retry), (Some(SECOND), 2));
        assert_eq!((SITE.name(), PLAIN.name()), ("orders.place", "orders.cancel"));
        let name = |call: &Call| call.key.clone().map(|key| key.expect("a key").full_name().to_owned());
        assert_eq!(
            (name(&call).as_deref(), name(&other).as_deref()),
            (Some("billing:order:7"), Some("shop:order:7"))
        );
        let built = call.template().text("order:7").build().expect("a key");
        assert_eq!(built.full_name(), "billing:order:7");
    }

    #[tokio::test]
    async fn a_call_holds_its_lock_while_its_body_runs() {
        let locks = in_memory().await;
        let (call, other) = (Call::under(&locks, &PLAIN).key("a"), Call::under(&locks, &PLAIN).key("a"));
        call.acquire().await.expect("it is free");
        assert_eq!(call.guard().key().as_str(), "a");

        let refused = run(&other).await;

        assert!(refused.is_err_and(|error| error.is_contended()));
        assert!(matches!(run(&call).await, Ok(7)));
        assert!(matches!(run(&Call::under(&locks, &PLAIN).key("a")).await, Ok(7)), "it was released");
    }

    #[tokio::test]
    async fn without_a_manager_a_call_is_not_installed() {
        let call = Call::new(&RUNS_UNLOCKED).key("a");

        assert!(matches!(run(&call).await, Err(Error::NotInstalled {})));
        assert!(matches!(call.acquire().await, Err(Error::NotInstalled {})));
    }

    #[tokio::test]
    async fn only_an_unavailable_server_lets_a_body_run_without_its_lock() {
        for (site, is_forked, runs) in
            [(&RUNS_UNLOCKED, true, true), (&RUNS_UNLOCKED, false, false), (&PLAIN, true, false)]
        {
            let locks = in_memory().await;
            let held = locks.lock("a").acquire().await.expect("it is free");
            if is_forked {
                locks.engine().fork.simulate_fork(); // all requests are refused
            }
            let call = Call::under(&locks, site).key("a");

            let ran = run(&call).await;

            assert_eq!(ran.is_ok(), runs, "{site:?}: {ran:?}");
            assert!(!runs || call.guard().check().is_err_and(|error| error.is_unavailable()));
            assert_eq!(ran.is_err_and(|error| error.is_contended()), !is_forked);
            drop(held);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_that_is_kept_replaces_the_loss() {
        static SHORT: Callsite = Callsite::new("short", Options::new().lease(SECOND).renew(false));
        for keeps in [true, false] {
            let locks = in_memory().await;
            let call = Call::under(&locks, &SHORT).key("a");
            let body = pin!(Body::Future {
                future: async {
                    let _ = tokio::time::advance(2 * SECOND).now_or_never();
                    7
                }
            });

            let ended = call.run(body, |value| keeps && *value == 7).await;

            match ended {
                Ok(value) => assert!(keeps && value == 7),
                Err(error) => {
                    assert!(!keeps && matches!(error, Error::Lost { completed: true, .. }), "{error:?}");
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn min_hold_on_success_depends_on_the_value_of_the_body() {
        for (value, is_kept) in [(Ok(7), true), (Err("it failed"), false)] {
            let locks = in_memory().await;
            let call = Call::under(&locks, &SITE);
            let options = call.options().min_hold(10 * SECOND);
            let call = call.with_options(options).key("a");
            let body = pin!(Body::Future { future: call.with_success(async { value }, Result::is_err) });

            let ran = call.run(body, Result::is_err).await;

            assert_eq!(ran.expect("it is free"), value);
            let next = locks.lock(KeyBuilder::new("billing").text("a")).try_acquire();
            assert_eq!(next.await.expect("memory replies").is_none(), is_kept);
        }
    }
}
