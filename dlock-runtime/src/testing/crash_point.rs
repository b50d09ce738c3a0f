//! [`CrashPoint`], where a test has an idempotent call crash.

/// Where the attempt of an idempotent call crashes; see
/// [`TestLocks::crash_at`](crate::testing::TestLocks::crash_at).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CrashPoint {
    /// The step with this name has run, and its result is not stored.
    InStep(String),
    /// The body has ended, and its result is not stored.
    BeforeResult,
    /// The result is stored, and the caller does not get it.
    AfterResult,
}
