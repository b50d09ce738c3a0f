//! [`CalendarError`], which says what is wrong with a schedule, and what to write.

/// A schedule is invalid.
///
/// The text names the wrong part and says what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part}: {problem}")]
#[non_exhaustive]
pub struct CalendarError {
    /// The wrong part: `cron`, `tz`, or `every`.
    pub part: &'static str,
    /// The problem, and what to write.
    pub problem: String,
}

impl CalendarError {
    pub(crate) fn new(part: &'static str, problem: impl Into<String>) -> Self {
        Self { part, problem: problem.into() }
    }
}
