//! One event: when, in which process and task, about which lock, and what.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::clock::Moment;

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, in nanoseconds of the boot clock.
    pub at: Moment,
    /// The id of the process that it happened in, or to.
    pub process: u32,
    /// The number of the task in its process.
    #[serde(default, skip_serializing_if = "is_none")]
    pub task: u32,
    /// The lock that it is about; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// What happened. A `call` is numbered within its process, and the hold that it got has its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// A lock is asked for, for at most `limit` milliseconds.
    Try {
        /// Which call.
        call: u64,
        /// How long it may take, in milliseconds.
        limit: u64,
    },
    /// The call is answered.
    Outcome {
        /// Which call.
        call: u64,
        /// How.
        answer: Answered,
        /// The error's text.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        text: String,
    },
    /// The body begins.
    Enter {
        /// Which call's.
        call: u64,
        /// Until when the hold is believed.
        deadline: Moment,
    },
    /// The hold has its fencing token.
    Token {
        /// Which call's.
        call: u64,
        /// The token.
        token: u64,
    },
    /// A poll of the body begins; the event's stamp is the clock as it was read then.
    Poll {
        /// Which call's.
        call: u64,
        /// Until when the hold is believed.
        deadline: Moment,
    },
    /// The hold is believed for longer.
    Renewed {
        /// Which call's.
        call: u64,
        /// Until when the hold is believed now.
        deadline: Moment,
    },
    /// The body has ended by itself, and the lock is about to be released.
    Exit {
        /// Which call's.
        call: u64,
    },
    /// The holder is told that the lock is lost.
    Lost {
        /// Which call's.
        call: u64,
        /// How, in the library's words.
        cause: String,
    },
    /// The guarded resource has answered a write.
    Write {
        /// Which call's.
        call: u64,
        /// The fencing token that it came with.
        token: u64,
        /// Which write of its key it was, by the resource's own count.
        turn: u64,
        /// Whether the resource took it.
        accepted: bool,
        /// The highest token that the resource had seen before.
        highest: u64,
    },
    /// Something is broken.
    Fault {
        /// The row of the fault list, such as `S7`; a row that ends in `c` may lose locks.
        row: String,
        /// What is done.
        what: String,
        /// To whom.
        to: String,
    },
    /// What was broken works again.
    Heal {
        /// The row of the fault list.
        row: String,
    },
    /// The process stands still from now on.
    Stopped,
    /// The process goes on.
    Continued,
    /// The process, or a thread of it, did not get to run on a processor.
    Stalled {
        /// Since when; the event's stamp is the end.
        since: Moment,
    },
    /// The process is gone.
    Gone {
        /// Whether it was killed, and not asked to end.
        killed: bool,
    },
    /// The keys of the server, with their times to live.
    Scan {
        /// What stands there.
        keys: Vec<Scanned>,
        /// Whether nobody has wanted a lock for longer than a lease.
        quiet: bool,
    },
    /// What a process, or the server for it, has of things that can leak.
    Resources {
        /// Before the work, or after it.
        phase: Phase,
        /// How many of each.
        counts: BTreeMap<String, u64>,
    },
    /// Something was printed or logged.
    Said {
        /// The text.
        text: String,
    },
}

/// How a call was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answered {
    /// The lock is held.
    Granted,
    /// Somebody else has it.
    Contended,
    /// The server could not be asked.
    Unavailable,
    /// It was lost before the body began.
    Lost,
    /// The manager takes no new work.
    Shutdown,
    /// No lock stands there.
    WrongKind,
    /// The server refuses for good, such as without permission.
    Config,
    /// The call was dropped by its caller.
    Dropped,
    /// None of the answers that a call for a lock may give.
    Other,
}

impl Answered {
    /// Returns how a call was answered that did not get its lock.
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
    /// Its name.
    pub name: String,
    /// Its time to live in milliseconds; below zero it has none.
    pub ttl: i64,
}

/// When resources are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Before the work, with everything connected.
    Base,
    /// After it.
    End,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_none(task: &u32) -> bool {
    *task == 0
}
