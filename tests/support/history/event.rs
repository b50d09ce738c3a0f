//! Events of a history: time, process, task, lock, and kind.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::clock::Moment;

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The time of the event, in nanoseconds of the boot clock.
    pub at: Moment,
    /// The id of the process in which, or to which, it happened.
    pub process: u32,
    /// The number of the task within its process.
    #[serde(default, skip_serializing_if = "is_none")]
    pub task: u32,
    /// The lock; empty if the event is not about a lock.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// The kind of the event.
    #[serde(flatten)]
    pub what: What,
}

/// The kind of an event.
///
/// Each `call` is numbered within its process. A hold has the number of its call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// A lock is requested for at most `limit` milliseconds.
    Try {
        /// The call.
        call: u64,
        /// The limit of the call, in milliseconds.
        limit: u64,
    },
    /// The call ends.
    Outcome {
        /// The call.
        call: u64,
        /// The result.
        answer: Answered,
        /// The text of the error.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        text: String,
    },
    /// The body begins.
    Enter {
        /// The call.
        call: u64,
        /// The end of the time for which the hold is considered valid.
        deadline: Moment,
    },
    /// The hold receives its fencing token.
    Token {
        /// The call.
        call: u64,
        /// The token.
        token: u64,
    },
    /// A poll of the body begins. The timestamp of the event is the clock value at that time.
    Poll {
        /// The call.
        call: u64,
        /// The end of the time for which the hold is considered valid.
        deadline: Moment,
    },
    /// The deadline of the hold moves.
    Renewed {
        /// The call.
        call: u64,
        /// The new end of the time for which the hold is considered valid.
        deadline: Moment,
    },
    /// The body has completed, and the lock is about to be released.
    Exit {
        /// The call.
        call: u64,
    },
    /// The loss of the lock is reported to the holder.
    Lost {
        /// The call.
        call: u64,
        /// The cause that the library reports.
        cause: String,
    },
    /// The guarded resource has replied to a write.
    Write {
        /// The call.
        call: u64,
        /// The fencing token of the write.
        token: u64,
        /// The number of the write among those of its key, as counted by the resource.
        turn: u64,
        /// Whether the resource accepted the write.
        accepted: bool,
        /// The highest token that the resource had accepted before.
        highest: u64,
    },
    /// A fault begins.
    Fault {
        /// The row of the fault list, such as `S7`. A row that ends in `c` may lose locks.
        row: String,
        /// A description of the fault.
        what: String,
        /// The target of the fault.
        to: String,
    },
    /// A fault ends.
    Heal {
        /// The row of the fault list.
        row: String,
    },
    /// The process is stopped.
    Stopped,
    /// The process is resumed.
    Continued,
    /// The process, or one of its threads, was not scheduled on a processor.
    Stalled {
        /// The start of the stall. The timestamp of the event is its end.
        since: Moment,
    },
    /// The process has ended.
    Gone {
        /// Whether the process was killed instead of asked to end.
        killed: bool,
    },
    /// The keys of the server and their TTLs.
    Scan {
        /// The keys.
        keys: Vec<Scanned>,
        /// Whether no lock has been requested for longer than a lease.
        quiet: bool,
    },
    /// The resources of a process that can leak, including those on the server.
    Resources {
        /// Before or after the work.
        phase: Phase,
        /// The number of each kind.
        counts: BTreeMap<String, u64>,
    },
    /// A text was printed or logged.
    Said {
        /// The text.
        text: String,
    },
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answered {
    /// The lock was granted.
    Granted,
    /// The lock is held by another caller.
    Contended,
    /// The server was unavailable.
    Unavailable,
    /// The lock was lost before the body began.
    Lost,
    /// The manager is shut down.
    Shutdown,
    /// The key holds a value that is not a lock.
    WrongKind,
    /// The server rejects the command permanently, for example because of a missing permission.
    Config,
    /// The caller dropped the call.
    Dropped,
    /// An error that no call for a lock may return.
    Other,
}

impl Answered {
    /// Returns the result that corresponds to an error.
    #[must_use]
    pub fn of(error: &dlock_runtime::Error) -> Self {
        use dlock_runtime::Error;
        match error {
            Error::Contended { .. } => Self::Contended,
            Error::Unavailable { .. } => Self::Unavailable,
            Error::Lost { .. } => Self::Lost,
            Error::Shutdown { .. } => Self::Shutdown,
            Error::WrongKind { .. } => Self::WrongKind,
            Error::Config { .. } => Self::Config,
            _ => Self::Other,
        }
    }
}

/// One key of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scanned {
    /// The name of the key.
    pub name: String,
    /// The TTL in milliseconds; negative if the key has none.
    pub ttl: i64,
}

/// The time of a count of resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Before the work, with all connections established.
    Base,
    /// After the work.
    End,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_none(task: &u32) -> bool {
    *task == 0
}
