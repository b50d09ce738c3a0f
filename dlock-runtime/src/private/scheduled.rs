//! One call of a function with `#[scheduled]`: its job, its tick, and its body.
//!
//! See `scheduled` for the jobs.

use std::fmt::Display;
use std::future::Future;
use std::marker::PhantomData;
use std::time::{Duration, SystemTime};

use crate::error::Error;
use crate::manager::LockManager;
pub use crate::scheduled::{CrashedRun, FailedRun, Overlap, Schedule, Tick};

/// The job of an annotated function, for one call.
#[derive(Debug)]
pub struct JobSite {
    manager: Result<LockManager, Error>,
    name: &'static str,
    slot: Option<SystemTime>,
}

impl JobSite {
    /// Returns the job of the installed manager.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self { manager: crate::global::manager(), name, slot: None }
    }

    /// Returns the job of `manager`.
    #[must_use]
    pub fn under(manager: &LockManager, name: &'static str) -> Self {
        Self { manager: Ok(manager.clone()), name, slot: None }
    }

    /// Sets the slot that the caller has chosen.
    #[must_use]
    pub fn slot(self, slot: SystemTime) -> Self {
        Self { slot: Some(slot), ..self }
    }
}

/// Returns the schedule of an expression that the attribute has checked.
#[must_use]
pub fn cron(expression: &str) -> Schedule {
    Schedule::deferred(Schedule::cron(expression))
}

/// Returns the schedule of a period. One that is invalid is reported when the job runs.
#[must_use]
pub fn every(period: Duration) -> Schedule {
    Schedule::deferred(Schedule::every(period))
}

/// Returns a schedule for slots that callers choose.
#[must_use]
pub fn any_slot() -> Schedule {
    every(Duration::from_secs(1))
}

/// The return type of an annotated function.
#[derive(Debug)]
pub struct Returns<R>(PhantomData<fn() -> R>);

/// Checks the return type `R`.
#[must_use]
pub fn returns<R: JobResult>() -> Returns<R> {
    Returns(PhantomData)
}

/// A return type with values for "this call did not run the tick", and for errors of the store.
#[diagnostic::on_unimplemented(
    message = "a scheduled function returns `Result<Option<T>, E>`, not `{Self}`",
    label = "return `Result<Option<T>, E>`, where `E: From<dlock_runtime::Error> + Display`",
    note = "a call that does not run its tick returns `Ok(None)`, and the text of an error is recorded"
)]
pub trait JobResult {
    /// The value of a run.
    type Value;
    /// The error of a run.
    type Error: From<Error> + Display;

    /// Returns the result by its parts.
    ///
    /// # Errors
    ///
    /// The error of the run.
    fn into_result(self) -> Result<Option<Self::Value>, Self::Error>;

    /// Builds the result.
    fn from_result(result: Result<Option<Self::Value>, Self::Error>) -> Self;
}

impl<T, E: From<Error> + Display> JobResult for Result<Option<T>, E> {
    type Value = T;
    type Error = E;

    fn into_result(self) -> Self {
        self
    }

    fn from_result(result: Self) -> Self {
        result
    }
}

/// Runs the body if this call runs the tick.
pub async fn run<R, F, Fut>(site: JobSite, schedule: &Schedule, _returns: Returns<R>, body: F) -> R
where
    R: JobResult,
    F: FnOnce(Tick) -> Fut,
    Fut: Future<Output = R>,
{
    let manager = match site.manager {
        Ok(manager) => manager,
        Err(error) => return R::from_result(Err(error.into())),
    };
    let job = manager.job(site.name);
    let body = async move |tick| body(tick).await.into_result();
    let ran = match site.slot {
        Some(slot) => job.run_slot(slot, schedule, body).await,
        None => job.run(schedule, body).await,
    };
    R::from_result(ran.map(Option::flatten))
}
