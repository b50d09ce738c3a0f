//! [`StoredResult`] of a call, and [`StepResult`] of a step.

/// A stored result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StoredResult {
    /// A value, or an error that is replayed.
    Bytes { bytes: Vec<u8>, is_error: bool },
    /// The call has completed, and its result is not stored.
    NotStored,
}

/// The result of a step: `None` if it has completed and its result is not stored.
pub(crate) type StepResult = Option<Vec<u8>>;
