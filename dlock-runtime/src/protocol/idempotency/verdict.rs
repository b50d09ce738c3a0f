//! [`Verdict`]: what a call does about the record that it finds.

use crate::protocol::idempotency::call_identity::{CallIdentity, is_same_call};
use crate::protocol::idempotency::event::IdempotencyReply;
use crate::protocol::idempotency::stored_result::StoredResult;

/// The reaction of a call to a record that it does not own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Returns the stored result.
    Replay { bytes: Vec<u8>, is_error: bool },
    /// Fails: the key belongs to another call. The function is that of the record, if it differs;
    /// otherwise, the payload does.
    KeyReused { function: Option<String> },
    /// Waits, or fails if it may not wait.
    Running { lease_left: u64, is_queued: bool },
    /// Fails: an attempt crashed.
    Crashed { attempt: u32 },
    /// Fails: the result is not stored.
    NotStored,
    /// Fails: the result has this other version.
    OtherVersion(String),
}

impl Verdict {
    /// Returns what a call with this identity does about `reply`; `None` if the reply is not about
    /// a record. `previous`: the call's fingerprint under the secret before the current one.
    ///
    /// One reply serves all calls of a process that wait for the same key, so each call compares
    /// its own identity, and does so first.
    pub(crate) fn of(reply: &IdempotencyReply, call: &CallIdentity, previous: &str) -> Option<Self> {
        let reused = |function: &String| {
            let is_other = *function != call.function;
            Some(Self::KeyReused { function: is_other.then(|| function.clone()) })
        };
        let identity = match reply {
            IdempotencyReply::KeyReused { function } => return reused(function),
            IdempotencyReply::Completed { identity, .. }
            | IdempotencyReply::Running { identity, .. }
            | IdempotencyReply::Crashed { identity, .. } => identity,
            _ => return None,
        };
        if !is_same_call(identity, call, previous) {
            return reused(&identity.function);
        }
        Some(match reply {
            IdempotencyReply::Completed { result: StoredResult::NotStored, .. } => Self::NotStored,
            IdempotencyReply::Completed { result: StoredResult::Bytes { bytes, is_error }, .. } => {
                if identity.version == call.version {
                    Self::Replay { bytes: bytes.clone(), is_error: *is_error }
                } else {
                    Self::OtherVersion(identity.version.clone())
                }
            }
            IdempotencyReply::Running { lease_left, is_queued, .. } => {
                Self::Running { lease_left: *lease_left, is_queued: *is_queued }
            }
            IdempotencyReply::Crashed { attempt, .. } => Self::Crashed { attempt: *attempt },
            _ => return None,
        })
    }
}
