//! The rules of the record of an idempotent call: `(event, now) -> (new record, reply, wake-ups)`.
//!
//! ```text
//!            Begin                 Complete
//!   absent ---------> Running ----------------> Completed | NotStored
//!     ^                |  ^ |  lease over: Begin with Rerun or Resume
//!     |  Forget        |  | +--> Running, next attempt
//!     +----------------+  | Begin
//!     |   with steps   v  |
//!     |           Forgotten        every state: its time to live is over, or Remove
//!     +-----------------+
//! ```
//!
//! Invariants:
//!
//! - At most one token owns a running record, and only its owner changes it.
//! - If the owner or the call has [`OnCrash::Fail`], a record whose lease is over never starts
//!   again.
//! - Once an attempt has ended its lease, no late renewal or start of its token brings it back.
//! - A call with another identity changes nothing and gets nothing of the record.
//! - Every event of a token can be repeated: the second time it changes nothing. A start that is
//!   repeated after its attempt was forgotten may start it again, so it must be forgotten again.
//!
//! ```text
//! record            the record, and what each event does to it
//! event             the events and their replies
//! call_identity     what tells one call from another under the same key
//! stored_result     results of calls and of steps
//! ```
//!
//! The scripts in `idempotent/scripts` implement the same rules, and a contract test compares them.

mod call_identity;
pub(crate) mod event;
#[cfg(test)]
mod exhaustive;
mod record;
#[cfg(test)]
mod simulation;
mod stored_result;
#[cfg(test)]
mod tests;

pub(crate) use call_identity::{CallIdentity, is_same_call};
pub use event::OnCrash;
pub(crate) use record::{IdempotencyRecord, apply};
pub(crate) use stored_result::{StepResult, StoredResult};

/// The maximum number of processes that wait for one record. A process beyond it checks on its own.
pub(crate) const MAX_WAITING_PROCESSES: usize = 128;

/// The maximum number of steps of one record.
pub(crate) const MAX_STEPS: usize = 64;

/// The maximum length of the name of a step, in bytes.
pub(crate) const LONGEST_STEP_NAME: usize = 64;

/// The maximum length of a stored result, in bytes.
pub(crate) const LONGEST_RESULT: usize = 64 << 10;

/// The maximum length of all stored step results of a record together, in bytes. All of them are
/// sent to an attempt that resumes.
pub(crate) const LONGEST_STEPS: usize = 1 << 20;
