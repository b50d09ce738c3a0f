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
//! - With [`CrashPolicy::Fail`], a record whose lease is over never starts again.
//! - A call with another identity changes nothing and gets nothing of the record.
//! - Every event of a token can be repeated: the second time it changes nothing.
//!
//! The scripts in `idempotent/scripts` implement the same rules, and a contract test compares them.

pub(crate) mod event;
#[cfg(test)]
mod exhaustive;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
pub(crate) mod verdict;

use std::collections::BTreeMap;

use crate::protocol::idempotency::event::{BeginCall, IdempotencyEvent, IdempotencyReply, RecordSnapshot};
use crate::protocol::idempotency::verdict::is_same_call;
use crate::token::Token;

/// What a call does to a record whose attempt has crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CrashPolicy {
    /// Reports it. The body starts at most once.
    Fail,
    /// Starts again, without the completed steps.
    Rerun,
    /// Starts again, with the completed steps.
    Resume,
}

/// What tells one call from another under the same key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct CallIdentity {
    /// The fingerprint of the payload; empty if there is none.
    pub(crate) fingerprint: String,
    /// The name of the function.
    pub(crate) function: String,
    /// The version and the type of the result.
    pub(crate) version: String,
}

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

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Running { lease_end: u64 },
    Completed(StoredResult),
    Forgotten,
}

/// The record of one key. Times are in milliseconds of the server's clock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IdempotencyRecord {
    phase: Phase,
    owner: Option<Token>,
    attempt: u32,
    identity: CallIdentity,
    /// Whether the attempt follows one that crashed.
    has_crashed: bool,
    created: u64,
    done: Option<u64>,
    /// The processes that are notified when the record changes.
    waiters: Vec<String>,
    steps: BTreeMap<String, StepResult>,
    expires: u64,
}

impl IdempotencyRecord {
    /// Returns when the record ends.
    pub(crate) fn expires(&self) -> u64 {
        self.expires
    }

    fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running { .. })
    }

    /// Returns the rest of the lease; `None` if the record is not running, or its lease is over.
    fn lease_left(&self, now: u64) -> Option<u64> {
        match self.phase {
            Phase::Running { lease_end } => lease_end.checked_sub(now).filter(|left| *left > 0),
            _ => None,
        }
    }

    fn owns(&self, token: Token) -> bool {
        self.owner == Some(token) && self.is_running()
    }
}

/// Applies `event` at `now`. Returns the reply and the processes to notify.
pub(crate) fn apply(
    slot: &mut Option<IdempotencyRecord>,
    event: &IdempotencyEvent,
    now: u64,
) -> (IdempotencyReply, Vec<String>) {
    if slot.as_ref().is_some_and(|record| record.expires <= now) {
        *slot = None;
    }
    let reply = match event {
        IdempotencyEvent::Begin(call) => return (begin(slot, call, now), Vec::new()),
        IdempotencyEvent::Read => {
            let snapshot = slot.as_ref().map(|record| Box::new(record.snapshot(now)));
            return (IdempotencyReply::Snapshot(snapshot), Vec::new());
        }
        event => match slot.as_mut() {
            Some(record) => record.change(event, now),
            None => return (IdempotencyReply::Absent, Vec::new()),
        },
    };
    match reply {
        Changed::Reply(reply) => (reply, Vec::new()),
        Changed::Announced => {
            let waiters = slot.as_mut().map(|record| std::mem::take(&mut record.waiters));
            (IdempotencyReply::Done, waiters.unwrap_or_default())
        }
        Changed::Deleted => {
            let waiters = slot.take().map(|record| record.waiters);
            (IdempotencyReply::Done, waiters.unwrap_or_default())
        }
    }
}

/// What an event has done to a record.
enum Changed {
    Reply(IdempotencyReply),
    /// The record has left its phase, and its waiters are notified.
    Announced,
    /// The record is to be deleted, and its waiters are notified.
    Deleted,
}

fn begin(slot: &mut Option<IdempotencyRecord>, call: &BeginCall, now: u64) -> IdempotencyReply {
    let Some(record) = slot.as_mut() else {
        let record = slot.insert(IdempotencyRecord {
            phase: Phase::Running { lease_end: now + call.lease },
            owner: Some(call.token),
            attempt: 1,
            identity: call.identity.clone(),
            has_crashed: false,
            created: now,
            done: None,
            waiters: Vec::new(),
            steps: BTreeMap::new(),
            expires: now + call.ttl,
        });
        return record.started();
    };
    if !is_same_call(&record.identity, &call.identity, &call.previous_fingerprint) {
        return IdempotencyReply::KeyReused;
    }
    if record.owns(call.token) {
        return record.start(call, now); // its first reply was lost
    }
    if let Some(lease_left) = record.lease_left(now) {
        let is_queued = call.waiter.as_ref().is_some_and(|waiter| record.enqueue(waiter));
        return IdempotencyReply::Running { identity: record.identity.clone(), lease_left, is_queued };
    }
    match &record.phase {
        Phase::Completed(result) => {
            let result = result.clone();
            IdempotencyReply::Completed { identity: record.identity.clone(), result }
        }
        Phase::Running { .. } if call.on_crash == CrashPolicy::Fail => {
            IdempotencyReply::Crashed { identity: record.identity.clone(), attempt: record.attempt }
        }
        Phase::Running { .. } => {
            if call.on_crash == CrashPolicy::Rerun {
                record.steps.clear();
            }
            record.has_crashed = true;
            record.attempt += 1;
            record.start(call, now)
        }
        Phase::Forgotten => {
            record.attempt += 1;
            record.start(call, now)
        }
    }
}

impl IdempotencyRecord {
    fn start(&mut self, call: &BeginCall, now: u64) -> IdempotencyReply {
        self.phase = Phase::Running { lease_end: now + call.lease };
        self.owner = Some(call.token);
        self.identity = call.identity.clone();
        self.expires = now + call.ttl;
        self.started()
    }

    fn started(&self) -> IdempotencyReply {
        IdempotencyReply::Started { attempt: self.attempt, steps: self.steps.clone() }
    }

    /// Adds a process to those that are notified. Returns `false` if there are too many.
    fn enqueue(&mut self, waiter: &String) -> bool {
        if self.waiters.contains(waiter) {
            return true;
        }
        let has_room = self.waiters.len() < MAX_WAITING_PROCESSES;
        if has_room {
            self.waiters.push(waiter.clone());
        }
        has_room
    }

    fn change(&mut self, event: &IdempotencyEvent, now: u64) -> Changed {
        match event {
            IdempotencyEvent::Begin(_) | IdempotencyEvent::Read => Changed::Reply(IdempotencyReply::Absent),
            IdempotencyEvent::Renew { token, lease, ttl } => self.by_owner(*token, |record| {
                record.phase = Phase::Running { lease_end: now + lease };
                record.expires = now + ttl;
                Changed::Reply(IdempotencyReply::Done)
            }),
            IdempotencyEvent::EndLease { token } => self.by_owner(*token, |record| {
                record.phase = Phase::Running { lease_end: now };
                Changed::Announced
            }),
            IdempotencyEvent::StoreStep { token, name, result, ttl } => self.by_owner(*token, |record| {
                record.steps.insert(name.clone(), result.clone());
                record.expires = now + ttl;
                Changed::Reply(IdempotencyReply::Done)
            }),
            IdempotencyEvent::Complete { token, result, ttl } => self.complete(*token, result, *ttl, now),
            IdempotencyEvent::Forget { token, has_run, ttl } => self.forget(*token, *has_run, *ttl, now),
            IdempotencyEvent::Dequeue { waiter } => {
                self.waiters.retain(|waiting| waiting != waiter);
                Changed::Reply(IdempotencyReply::Done)
            }
            IdempotencyEvent::Resolve { result, ttl } => self.resolve(result, *ttl, now),
            IdempotencyEvent::Remove if self.lease_left(now).is_some() => {
                Changed::Reply(IdempotencyReply::StillRunning)
            }
            IdempotencyEvent::Remove => Changed::Deleted,
        }
    }

    fn by_owner(&mut self, token: Token, change: impl FnOnce(&mut Self) -> Changed) -> Changed {
        if self.owns(token) { change(self) } else { Changed::Reply(IdempotencyReply::NotOwner) }
    }

    /// Stores the result. A late owner may do so as long as no other call has started.
    fn complete(&mut self, token: Token, result: &StoredResult, ttl: u64, now: u64) -> Changed {
        if self.owner == Some(token) && matches!(self.phase, Phase::Completed(_)) {
            return Changed::Reply(IdempotencyReply::Done); // its first reply was lost
        }
        self.by_owner(token, |record| {
            record.store(result, ttl, now);
            Changed::Announced
        })
    }

    fn store(&mut self, result: &StoredResult, ttl: u64, now: u64) {
        self.phase = Phase::Completed(result.clone());
        self.done = Some(now);
        self.steps.clear();
        self.expires = now + ttl;
    }

    /// Undoes the start of an attempt that ended without a result.
    ///
    /// An attempt whose body never ran leaves the record as it was before: if the attempt before it
    /// crashed, that crash is remembered.
    fn forget(&mut self, token: Token, has_run: bool, ttl: u64, now: u64) -> Changed {
        if self.owner == Some(token) && self.phase == Phase::Forgotten {
            return Changed::Reply(IdempotencyReply::Done); // its first reply was lost
        }
        self.by_owner(token, |record| {
            if !has_run && record.has_crashed {
                record.phase = Phase::Running { lease_end: now };
                return Changed::Announced;
            }
            if record.steps.is_empty() {
                return Changed::Deleted;
            }
            record.phase = Phase::Forgotten;
            record.has_crashed = false;
            record.expires = now + ttl;
            Changed::Announced
        })
    }

    /// Stores the result that an operator gives for a call whose outcome is unknown. The owner
    /// cannot change it any more.
    fn resolve(&mut self, result: &StoredResult, ttl: u64, now: u64) -> Changed {
        if self.lease_left(now).is_some() {
            return Changed::Reply(IdempotencyReply::StillRunning);
        }
        if !self.is_running() && self.phase != Phase::Completed(StoredResult::NotStored) {
            return Changed::Reply(IdempotencyReply::NotOwner);
        }
        self.store(result, ttl, now);
        self.owner = None;
        Changed::Announced
    }

    fn snapshot(&self, now: u64) -> RecordSnapshot {
        RecordSnapshot {
            phase: match (&self.phase, self.lease_left(now)) {
                (Phase::Running { .. }, Some(_)) => 'P',
                (Phase::Running { .. }, None) => 'X',
                (Phase::Completed(StoredResult::NotStored), _) => 'T',
                (Phase::Completed(_), _) => 'C',
                (Phase::Forgotten, _) => 'F',
            },
            attempt: self.attempt,
            lease_left: self.lease_left(now).unwrap_or_default(),
            created_ago: now.saturating_sub(self.created),
            done_ago: self.done.map(|done| now.saturating_sub(done)),
            ttl: self.expires.saturating_sub(now),
            identity: self.identity.clone(),
            holder: self.owner.map(|owner| owner.process().shown()).unwrap_or_default(),
            result: match &self.phase {
                Phase::Completed(result) => Some(result.clone()),
                _ => None,
            },
            steps: self.steps.keys().cloned().collect(),
        }
    }
}

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
