//! [`IdempotencyRecord`], the record of one key, and what each event does to it.

use std::collections::BTreeMap;

use crate::protocol::idempotency::MAX_WAITING_PROCESSES;
use crate::protocol::idempotency::call_identity::{CallIdentity, is_same_call};
use crate::protocol::idempotency::event::{
    BeginCall, IdempotencyEvent, IdempotencyReply, OnCrash, RecordSnapshot,
};
use crate::protocol::idempotency::stored_result::{StepResult, StoredResult};
use crate::token::Token;

/// The phase of a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RecordPhase {
    /// `lease_end` is `None` if the owner has ended its lease.
    Running {
        lease_end: Option<u64>,
    },
    Completed(StoredResult),
    Forgotten,
}

/// The record of one key. Times are in milliseconds of the server's clock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IdempotencyRecord {
    phase: RecordPhase,
    /// `None` after an operator has stored the result.
    owner: Option<Token>,
    attempt: u32,
    identity: CallIdentity,
    /// The crash policy of the owner of the attempt.
    on_crash: OnCrash,
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

    pub(super) fn is_running(&self) -> bool {
        matches!(self.phase, RecordPhase::Running { .. })
    }

    /// Returns the rest of the lease; `None` if the record is not running, or its lease is over.
    pub(super) fn lease_left(&self, now: u64) -> Option<u64> {
        match self.phase {
            RecordPhase::Running { lease_end } => lease_end?.checked_sub(now).filter(|left| *left > 0),
            _ => None,
        }
    }

    pub(super) fn owns(&self, token: Token) -> bool {
        self.owner == Some(token) && self.is_running()
    }

    /// Returns `true` if the owner has ended its lease: late events of it do not bring it back.
    fn has_ended(&self) -> bool {
        self.phase == RecordPhase::Running { lease_end: None }
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
        RecordChange::Reply(reply) => (reply, Vec::new()),
        RecordChange::Announced => {
            let waiters = slot.as_mut().map(|record| std::mem::take(&mut record.waiters));
            (IdempotencyReply::Done, waiters.unwrap_or_default())
        }
        RecordChange::Deleted => {
            let waiters = slot.take().map(|record| record.waiters);
            (IdempotencyReply::Done, waiters.unwrap_or_default())
        }
    }
}

/// The effect of an event on a record.
enum RecordChange {
    Reply(IdempotencyReply),
    /// The record has left its phase, and its waiters are notified.
    Announced,
    /// The record is to be deleted, and its waiters are notified.
    Deleted,
}

fn begin(slot: &mut Option<IdempotencyRecord>, call: &BeginCall, now: u64) -> IdempotencyReply {
    let Some(record) = slot.as_mut() else {
        let record = slot.insert(IdempotencyRecord {
            phase: RecordPhase::Running { lease_end: Some(now + call.lease) },
            owner: Some(call.token),
            attempt: 1,
            identity: call.identity.clone(),
            on_crash: call.on_crash,
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
        return IdempotencyReply::KeyReused { function: record.identity.function.clone() };
    }
    let is_owner = record.owns(call.token);
    if is_owner && !record.has_ended() {
        return record.start(call, now); // its first reply was lost
    }
    if let Some(lease_left) = record.lease_left(now) {
        let is_queued = call.waiter.as_ref().is_some_and(|waiter| record.enqueue(waiter));
        return IdempotencyReply::Running { identity: record.identity.clone(), lease_left, is_queued };
    }
    match &record.phase {
        RecordPhase::Completed(result) => {
            let result = result.clone();
            IdempotencyReply::Completed { identity: record.identity.clone(), result }
        }
        RecordPhase::Running { .. }
            if is_owner || [call.on_crash, record.on_crash].contains(&OnCrash::Fail) =>
        {
            IdempotencyReply::Crashed { identity: record.identity.clone(), attempt: record.attempt }
        }
        RecordPhase::Running { .. } => {
            if call.on_crash == OnCrash::Rerun {
                record.steps.clear();
            }
            record.has_crashed = true;
            record.attempt += 1;
            record.start(call, now)
        }
        RecordPhase::Forgotten => {
            record.attempt += 1;
            record.start(call, now)
        }
    }
}

impl IdempotencyRecord {
    fn start(&mut self, call: &BeginCall, now: u64) -> IdempotencyReply {
        self.phase = RecordPhase::Running { lease_end: Some(now + call.lease) };
        self.owner = Some(call.token);
        self.identity = call.identity.clone();
        self.on_crash = call.on_crash;
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

    fn change(&mut self, event: &IdempotencyEvent, now: u64) -> RecordChange {
        match event {
            IdempotencyEvent::Begin(_) | IdempotencyEvent::Read => {
                RecordChange::Reply(IdempotencyReply::Absent)
            }
            IdempotencyEvent::Renew { token, lease, ttl } => self.by_owner(*token, |record| {
                if record.has_ended() {
                    return RecordChange::Reply(IdempotencyReply::NotOwner);
                }
                record.phase = RecordPhase::Running { lease_end: Some(now + lease) };
                record.expires = now + ttl;
                RecordChange::Reply(IdempotencyReply::Done)
            }),
            IdempotencyEvent::EndLease { token } => self.by_owner(*token, Self::end_lease),
            IdempotencyEvent::StoreStep { token, name, result, ttl } => self.by_owner(*token, |record| {
                record.steps.insert(name.clone(), result.clone());
                record.expires = now + ttl;
                RecordChange::Reply(IdempotencyReply::Done)
            }),
            IdempotencyEvent::Complete { token, result, ttl } => self.complete(*token, result, *ttl, now),
            IdempotencyEvent::Forget { token, has_run, ttl } => self.forget(*token, *has_run, *ttl, now),
            IdempotencyEvent::Dequeue { waiter } => {
                self.waiters.retain(|waiting| waiting != waiter);
                RecordChange::Reply(IdempotencyReply::Done)
            }
            IdempotencyEvent::Resolve { result, replaces, ttl } => self.resolve(result, *replaces, *ttl, now),
            IdempotencyEvent::Remove { completed } => match self.phase {
                _ if self.lease_left(now).is_some() => RecordChange::Reply(IdempotencyReply::StillRunning),
                RecordPhase::Completed(_) if !completed => {
                    RecordChange::Reply(IdempotencyReply::HasCompleted)
                }
                _ => RecordChange::Deleted,
            },
        }
    }

    fn end_lease(&mut self) -> RecordChange {
        self.phase = RecordPhase::Running { lease_end: None };
        RecordChange::Announced
    }

    fn by_owner(&mut self, token: Token, change: impl FnOnce(&mut Self) -> RecordChange) -> RecordChange {
        if self.owns(token) { change(self) } else { RecordChange::Reply(IdempotencyReply::NotOwner) }
    }

    /// Stores the result. A late owner may do so as long as no other call has started.
    fn complete(&mut self, token: Token, result: &StoredResult, ttl: u64, now: u64) -> RecordChange {
        if self.owner == Some(token) && matches!(self.phase, RecordPhase::Completed(_)) {
            return RecordChange::Reply(IdempotencyReply::Done); // its first reply was lost
        }
        self.by_owner(token, |record| {
            record.store(result, ttl, now);
            RecordChange::Announced
        })
    }

    fn store(&mut self, result: &StoredResult, ttl: u64, now: u64) {
        self.phase = RecordPhase::Completed(result.clone());
        self.done = Some(now);
        self.steps.clear();
        self.expires = now + ttl;
    }

    /// Undoes the start of an attempt that ended without a result.
    ///
    /// An attempt whose body never ran leaves the record as it was before: if the attempt before it
    /// crashed, that crash is remembered.
    fn forget(&mut self, token: Token, has_run: bool, ttl: u64, now: u64) -> RecordChange {
        if self.owner == Some(token) && self.phase == RecordPhase::Forgotten {
            return RecordChange::Reply(IdempotencyReply::Done); // its first reply was lost
        }
        self.by_owner(token, |record| {
            if !has_run && record.has_crashed {
                return record.end_lease();
            }
            if record.steps.is_empty() {
                return RecordChange::Deleted;
            }
            record.phase = RecordPhase::Forgotten;
            record.has_crashed = false;
            record.expires = now + ttl;
            RecordChange::Announced
        })
    }

    /// Stores the result that an operator gives for a call without one: its outcome is unknown, it
    /// was not stored, or it was an error after steps, one of which may not be readable. The owner
    /// cannot change it any more; an operator can, with `replaces`. The result of a body stays. The
    /// record never ends earlier than without it.
    fn resolve(&mut self, result: &StoredResult, replaces: bool, ttl: u64, now: u64) -> RecordChange {
        if self.lease_left(now).is_some() {
            return RecordChange::Reply(IdempotencyReply::StillRunning);
        }
        let can_store = match &self.phase {
            RecordPhase::Running { .. }
            | RecordPhase::Forgotten
            | RecordPhase::Completed(StoredResult::NotStored) => true,
            RecordPhase::Completed(_) => replaces && self.owner.is_none(),
        };
        if !can_store {
            return RecordChange::Reply(IdempotencyReply::NotOwner);
        }
        let expires = self.expires;
        self.store(result, ttl, now);
        self.expires = self.expires.max(expires);
        self.owner = None;
        RecordChange::Announced
    }

    fn snapshot(&self, now: u64) -> RecordSnapshot {
        RecordSnapshot {
            phase: match (&self.phase, self.lease_left(now)) {
                (RecordPhase::Running { .. }, Some(_)) => 'P',
                (RecordPhase::Running { .. }, None) => 'X',
                (RecordPhase::Completed(StoredResult::NotStored), _) => 'T',
                (RecordPhase::Completed(_), _) => 'C',
                (RecordPhase::Forgotten, _) => 'F',
            },
            attempt: self.attempt,
            lease_left: self.lease_left(now).unwrap_or_default(),
            created_ago: now.saturating_sub(self.created),
            done_ago: self.done.map(|done| now.saturating_sub(done)),
            ttl: self.expires.saturating_sub(now),
            identity: self.identity.clone(),
            process: self.owner.map(Token::process),
            holder: self.owner.map(|owner| owner.process().shown()).unwrap_or_default(),
            result: match &self.phase {
                RecordPhase::Completed(result) => Some(result.clone()),
                _ => None,
            },
            steps: self.steps.keys().cloned().collect(),
        }
    }
}
