//! [`JobSite`], a call of a function with `#[scheduled]`: by a timer, by a runner at a tick,
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

/// The job of an annotated function, for one call.
#[derive(Debug)]
pub struct JobSite {
    /// The manager of the function, or the problem that there is none.
    manager: Result<LockManager>,
    /// Whether the function names its manager.
    names_manager: bool,
    name: &'static str,
    slot: Option<SystemTime>,
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
    run: Mutex<Option<Tick>>,
}

impl JobSite {
    /// Returns the job of the installed manager.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self { manager: crate::global::manager(), names_manager: false, name, slot: None }
    }

    /// Returns the job of `manager`.
    #[must_use]
    pub fn under(manager: &LockManager, name: &'static str) -> Self {
        Self { manager: Ok(manager.clone()), names_manager: true, name, slot: None }
    }

    /// Sets the slot that the caller has chosen.
    #[must_use]
    pub fn slot(self, slot: SystemTime) -> Self {
        Self { slot: Some(slot), ..self }
    }

    /// Runs the body if this call runs the tick, or under the run of the runner that calls it.
    /// `not_run` returns the output of a call that does not run its tick.
    pub(crate) async fn run<R, F, Fut>(
        self,
        schedule: &'static Schedule,
        output: &RunOutput<R>,
        not_run: fn() -> R,
        body: F,
    ) -> R
    where
        F: FnOnce(Tick) -> Fut,
        Fut: Future<Output = R>,
    {
        if LEARNED.try_with(|learned| drop(learned.set(self.job(schedule)))).is_ok() {
            // The runner polls this future once, and drops it.
            return std::future::pending().await;
        }
        if let Some(tick) = self.offered_run() {
            return body(tick).await;
        }
        match self.begin(schedule).await {
            Ok(Some(execution)) => {
                let body = async move |tick| body(tick).await;
                execution.body(body, output).await
            }
            Ok(None) => not_run(),
            Err(error) => (output.of_error)(error),
        }
    }

    async fn begin(&self, schedule: &Schedule) -> Result<Option<JobExecution>> {
        self.manager.as_ref().map_err(Clone::clone)?.job(self.name).begin(schedule, self.slot).await
    }

    fn job(&self, schedule: &'static Schedule) -> FunctionJob {
        FunctionJob {
            name: self.name,
            schedule,
            has_slot: self.slot.is_some(),
            manager: self.manager.as_ref().ok().filter(|_| self.names_manager).cloned(),
        }
    }

    /// Takes the run of the runner that calls this function. A second call under the same run gets
    /// none.
    fn offered_run(&self) -> Option<Tick> {
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
pub(super) async fn under_run<Fut: Future>(name: &'static str, run: Tick, call: Fut) -> Fut::Output {
    OFFERED.scope(OfferedRun { name, run: Mutex::new(Some(run)) }, call).await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_site_has_the_slot_and_the_manager_that_it_names() {
        let slot = SystemTime::UNIX_EPOCH + Duration::from_secs(60);
        let locks = LockManager::in_new_memory();

        let (current, named) = (JobSite::new("nightly"), JobSite::under(&locks, "nightly").slot(slot));

        assert!(!current.names_manager && current.slot.is_none() && current.manager.is_err());
        assert_eq!((named.names_manager, named.slot, named.name), (true, Some(slot), "nightly"));
        assert_eq!(named.manager.expect("it was given").id(), locks.id());
    }
}
