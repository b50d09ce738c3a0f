//! One call of a function with `#[scheduled]`: its job, its tick, and its body.
//!
//! See `scheduled` for the jobs.

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use super::return_types::CarriesLockError;
use crate::error::Error;
pub use crate::scheduled::function::JobSite;
use crate::scheduled::run_output::RunOutput;
pub use crate::scheduled::{CatchUp, CrashedRun, FailedRun, Overlap, Schedule, Tick};

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

/// The return type of an annotated function. Only [`returns`] has bounds on it, so that a type that
/// does not fit is reported once.
#[derive(Debug)]
pub struct Returns<R> {
    output: RunOutput<R>,
    not_run: fn() -> R,
}

/// Checks the return type `R`.
#[must_use]
pub fn returns<R: JobResult>() -> Returns<R> {
    Returns { output: RunOutput { failure: R::failure, of_error: R::of_error }, not_run: R::not_run }
}

/// A return type with values for "this call did not run the tick", and for errors of the store.
#[diagnostic::on_unimplemented(
    message = "a scheduled function returns `Result<Option<T>, E>`, not `{Self}`",
    label = "return `Result<Option<T>, E>`, where `E: From<dlock_runtime::Error> + Display`",
    note = "a call that does not run its tick returns `Ok(None)`, and the text of an error is recorded"
)]
pub trait JobResult: Sized {
    /// Returns the text of a failure, or `None` if the body succeeded.
    fn failure(&self) -> Option<String>;

    /// Returns the output of a call that failed outside its body.
    fn of_error(error: Error) -> Self;

    /// Returns the output of a call that does not run its tick.
    fn not_run() -> Self;
}

impl<T, E: CarriesLockError + RecordedError> JobResult for Result<Option<T>, E> {
    fn failure(&self) -> Option<String> {
        self.as_ref().err().map(ToString::to_string)
    }

    fn of_error(error: Error) -> Self {
        Err(E::carry(error))
    }

    fn not_run() -> Self {
        Ok(None)
    }
}

/// An error whose text is recorded for a tick that failed.
#[diagnostic::on_unimplemented(
    message = "the error type `{Self}` has no text that can be recorded",
    label = "its error type does not implement `Display`",
    note = "the text of an error is in the record of its job and in events: write `impl std::fmt::Display for {Self} {{ .. }}`, or derive it with thiserror: `#[error(\"..\")]`"
)]
pub trait RecordedError: Display {}

#[diagnostic::do_not_recommend]
impl<E: Display> RecordedError for E {}

/// Runs the body if this call runs the tick.
pub async fn run<R, F, Fut>(site: JobSite, schedule: &'static Schedule, returns: Returns<R>, body: F) -> R
where
    F: FnOnce(Tick) -> Fut,
    Fut: Future<Output = R>,
{
    site.run(schedule, &returns.output, returns.not_run, body).await
}

#[cfg(test)]
mod tests {
    use super::*;

    type Output = Result<Option<u8>, Error>;

    #[test]
    fn only_the_text_of_an_error_is_recorded() {
        let Returns { output, not_run } = returns::<Output>();

        assert_eq!((output.failure)(&Ok(Some(7))), None);
        assert_eq!((output.failure)(&Ok(None)), None);
        let failed = (output.of_error)(Error::NotInstalled {});
        assert!((output.failure)(&failed).is_some_and(|text| text.contains("no lock manager is installed")));
        assert!(matches!(not_run(), Ok(None)));
    }
}
