//! [`IdempotencyEvent`], what can happen to a record, and [`IdempotencyReply`].

use std::collections::BTreeMap;

use crate::protocol::idempotency::call_identity::CallIdentity;
use crate::protocol::idempotency::stored_result::{StepResult, StoredResult};
use crate::token::{ProcessId, Token};

/// An event of a record. Durations are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IdempotencyEvent {
    /// A call starts.
    Begin(BeginCall),
    /// The owner extends its lease. Replies: `Done`, `NotOwner`, or `Absent`.
    Renew { token: Token, lease: u64, ttl: u64 },
    /// The owner has crashed, and its lease ends now. Replies as `Renew`.
    EndLease { token: Token },
    /// A step of the owner has completed. Replies as `Renew`.
    StoreStep { token: Token, name: String, result: StepResult, ttl: u64 },
    /// The call of the owner has completed. Replies as `Renew`.
    Complete { token: Token, result: StoredResult, ttl: u64 },
    /// The call of the owner has ended without a result. `has_run`: its body has started. Replies
    /// as `Renew`.
    Forget { token: Token, has_run: bool, ttl: u64 },
    /// No call of a process waits any more.
    Dequeue { waiter: String },
    /// An operator stores the result of a call that has none; with `replaces`, also instead of a
    /// result that an operator has stored. Replies: `Done`, `Absent`, `StillRunning`, or `NotOwner`
    /// if there is a result.
    Resolve { result: StoredResult, replaces: bool, ttl: u64 },
    /// An operator deletes the record; with `completed`, also that of a completed call. Replies:
    /// `Done`, `Absent`, `StillRunning`, or `HasCompleted`.
    Remove { completed: bool },
    /// Reads the record. Replies: `Snapshot`.
    Read,
}

/// The start of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BeginCall {
    pub(crate) token: Token,
    pub(crate) lease: u64,
    pub(crate) ttl: u64,
    pub(crate) on_crash: OnCrash,
    pub(crate) identity: CallIdentity,
    /// The fingerprint under the secret before the current one; empty if there is none.
    pub(crate) previous_fingerprint: String,
    /// The process to notify when the record changes, if the call waits.
    pub(crate) waiter: Option<String>,
}

/// The reply to an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IdempotencyReply {
    /// The token owns the record, and its body may run.
    Started {
        /// The number of the attempt, from 1.
        attempt: u32,
        /// The steps that earlier attempts have completed.
        steps: BTreeMap<String, StepResult>,
    },
    /// The record belongs to another call, of this function.
    KeyReused { function: String },
    /// The call has completed.
    Completed { identity: CallIdentity, result: StoredResult },
    /// Another token owns the record. `is_queued`: the process will be notified.
    Running { identity: CallIdentity, lease_left: u64, is_queued: bool },
    /// The owner has crashed, and the call may not start again.
    Crashed { identity: CallIdentity, attempt: u32 },
    /// The event has been applied, now or before.
    Done,
    /// Another token owns the record, or none does.
    NotOwner,
    /// There is no record.
    Absent,
    /// The lease of the owner is not over.
    StillRunning,
    /// The call has completed, so its record stays.
    HasCompleted,
    /// The record, or `None` if there is none.
    Snapshot(Option<Box<RecordSnapshot>>),
}

/// A record as operators see it. Durations are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordSnapshot {
    /// `P` running, `X` crashed, `C` completed, `T` completed without a stored result, `F`
    /// forgotten with its steps.
    pub(crate) phase: char,
    pub(crate) attempt: u32,
    pub(crate) lease_left: u64,
    pub(crate) created_ago: u64,
    pub(crate) done_ago: Option<u64>,
    pub(crate) ttl: u64,
    pub(crate) identity: CallIdentity,
    /// The manager that owns or owned the record; `None` after an operator resolved it, and if
    /// another client wrote the record.
    pub(crate) process: Option<ProcessId>,
    /// The id of that manager, or what another client wrote; empty after an operator resolved it.
    pub(crate) holder: String,
    pub(crate) result: Option<StoredResult>,
    /// The names of the completed steps.
    pub(crate) steps: Vec<String>,
}

/// The reaction of a call to an attempt that crashed: its lease ended without a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnCrash {
    /// Every call gets [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown) until an operator
    /// resolves the key or the `ttl` of the record is over. Until then, the body does not start
    /// again.
    ///
    /// If the first attempt was only slow, its late result is stored, and later calls get it; a
    /// late error counts as any other. Its body is dropped if the record is deleted or resolved, or
    /// has not been renewed for a `ttl`. This also holds if the first attempt has this value and a
    /// later call has another one.
    #[default]
    Fail,
    /// The body runs again, from its start.
    Rerun,
    /// The body runs again, and its completed [steps](crate::idempotent::IdempotentRecord::step)
    /// return their stored results.
    Resume,
}
