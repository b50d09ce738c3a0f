//! [`FunctionCall`], a call of a function with `#[scheduled]`: by a timer, by a runner at a tick,
//! or by a runner that learns the job of the function.
//!
//! ```text
//! timer                 begins a tick, and runs the body if the tick runs here
//! runner, at a tick     runs the body under the runner's run
//! runner, at its start  reports its job to the runner; the body does not run
//! ```

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Waker};
use std::time::SystemTime;

use crate::config::config;
use crate::error::Result;
use crate::manager::LockManager;
use crate::scheduled::job_call::JobExecution;
use crate::scheduled::run_lease::RunLease;
use crate::scheduled::run_output::RunOutput;
use crate::scheduled::schedule::Schedule;
use crate::scheduled::tick::Tick;
use crate::sync::lock;

tokio::task_local! {
    /// Where a function reports its job to a runner that calls it for that.
    static LEARNED: Arc<OnceLock<FunctionJob>>;
    /// The run of the runner that calls the function.
    static OFFERED: OfferedRun;
}

/// One call of an annotated function.
#[derive(Debug)]
pub(crate) struct FunctionCall<R> {
    /// The manager of the function, or the problem that there is none.
    pub(crate) manager: Result<LockManager>,
    /// Whether the function names its manager.
    pub(crate) names_manager: bool,
    pub(crate) name: &'static str,
    pub(crate) slot: Option<SystemTime>,
    pub(crate) schedule: &'static Schedule,
    pub(crate) output: RunOutput<R>,
    /// Returns the output of a call that does not run its tick.
    pub(crate) not_run: fn() -> R,
}

/// The job of an annotated function, as a runner needs it.
#[derive(Debug)]
pub(super) struct FunctionJob {
    pub(super) name: &'static str,
    pub(super) schedule: &'static Schedule,
    has_slot: bool,
    /// The manager, if the function names one.
    manager: Option<LockManager>,
}

/// A run under which one call of the function runs its body.
#[derive(Debug)]
struct OfferedRun {
    name: &'static str,
    run: Mutex<Option<(Tick, RunLease)>>,
}

impl<R> FunctionCall<R> {
    /// Runs the body if this call runs the tick, or under the run of the runner that calls it.
    pub(crate) async fn run<F, Fut>(self, body: F) -> R
    where
        F: FnOnce(Tick, RunLease) -> Fut,
        Fut: Future<Output = R>,
    {
        if LEARNED.try_with(|learned| drop(learned.set(self.job()))).is_ok() {
            // The runner polls this future once, and drops it.
            return std::future::pending().await;
        }
        if let Some((tick, lease)) = self.offered_run() {
            return body(tick, lease).await;
        }
        match self.begin().await {
            Ok(Some(execution)) => {
                let body = async move |tick, lease| body(tick, lease).await;
                execution.body(body, &self.output).await
            }
            Ok(None) => (self.not_run)(),
            Err(error) => (self.output.of_error)(error),
        }
    }

    async fn begin(&self) -> Result<Option<JobExecution>> {
        self.manager.as_ref().map_err(Clone::clone)?.job(self.name).begin(self.schedule, self.slot).await
    }

    fn job(&self) -> FunctionJob {
        FunctionJob {
            name: self.name,
            schedule: self.schedule,
            has_slot: self.slot.is_some(),
            manager: self.manager.as_ref().ok().filter(|_| self.names_manager).cloned(),
        }
    }

    /// Takes the run of the runner that calls this function. A second call under the same run gets
    /// none.
    fn offered_run(&self) -> Option<(Tick, RunLease)> {
        let take = |offered: &OfferedRun| {
            if offered.name == self.name { lock(&offered.run).take() } else { None }
        };
        OFFERED.try_with(take).ok().flatten()
    }
}

/// Learns the job of the annotated function that `call` calls, by polling the returned future once.
/// The function's body does not run.
///
/// # Errors
///
/// [`Error::Config`](crate::Error::Config) if there is no such function, or a runner with this
/// manager cannot call it.
pub(super) fn learn<Fut: Future>(manager: &LockManager, call: impl FnOnce() -> Fut) -> Result<FunctionJob> {
    let learned = Arc::new(OnceLock::new());
    LEARNED.sync_scope(Arc::clone(&learned), || {
        let _ = pin!(call()).poll(&mut Context::from_waker(Waker::noop()));
    });
    let Some(job) = Arc::into_inner(learned).and_then(OnceLock::into_inner) else {
        let problem = "`add_scheduled` got a closure that does not call a function with `#[scheduled]` before its first await: write `move || nightly_report(db.clone())`, with `#[scheduled]` below other attributes of the function, or use `add` with a name and a schedule";
        return Err(config("jobs", problem));
    };
    let name = job.name;
    if job.has_slot {
        let problem = format!(
            "`{name}` has a `slot`, which callers choose, and a runner has none: write `cron` or `every` instead"
        );
        return Err(config("jobs", problem));
    }
    if job.manager.as_ref().is_some_and(|named| named.id() != manager.id()) {
        let problem = format!(
            "`{name}` names another `manager` than that of this runner, so ticks that its timers run could run again here: use one manager"
        );
        return Err(config("jobs", problem));
    }
    Ok(job)
}

/// Polls `call` so that the function `name` runs its body under `run`.
pub(super) async fn under_run<Fut: Future>(
    name: &'static str,
    run: (Tick, RunLease),
    call: Fut,
) -> Fut::Output {
    OFFERED.scope(OfferedRun { name, run: Mutex::new(Some(run)) }, call).await
}
