//! [`RecordOperation`], an event of a record as a script for Redis and as the pure rule in memory.
//!
//! ```text
//! {1, attempt, step, result ..}                       Started
//! {2, function}                                       KeyReused
//! {3, fingerprint, function, version, phase, ..}      Completed, Running, Crashed
//! 1 | 0 | -1 | -2 | -3                                Done | NotOwner | Absent | StillRunning | HasCompleted
//! {4, ..}, nil                                        Snapshot
//! ```

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::store_call::{StoreOperation, StoreScript, StoreSlot, shown, text};
use crate::clock::millis;
use crate::engine::call::unusable_reply;
use crate::error::LossCause;
use crate::protocol::failure::Failure;
use crate::protocol::idempotency::event::{BeginCall, IdempotencyEvent, IdempotencyReply, RecordSnapshot};
use crate::protocol::idempotency::{
    self, CallIdentity, IdempotencyRecord, OnCrash, StepResult, StoredResult,
};
use crate::protocol::owner_lease::LeaseReply;
use crate::protocol::script_reply::ScriptReply;
use crate::token::{ProcessId, Token};

/// An event of a record, as an operation of a store.
#[derive(Debug)]
pub(super) struct RecordOperation(pub(super) IdempotencyEvent);

macro_rules! script {
    ($file:literal) => {
        StoreScript::new(concat!(include_str!("scripts/lib.lua"), include_str!(concat!("scripts/", $file))))
    };
}

static BEGIN: StoreScript = script!("begin.lua");
static RENEW: StoreScript = script!("renew.lua");
static END_LEASE: StoreScript = script!("end_lease.lua");
static STORE_STEP: StoreScript = script!("store_step.lua");
static COMPLETE: StoreScript = script!("complete.lua");
static FORGET: StoreScript = script!("forget.lua");
static DEQUEUE: StoreScript = script!("dequeue.lua");
static RESOLVE: StoreScript = script!("resolve.lua");
static REMOVE: StoreScript = script!("remove.lua");
static READ: StoreScript = script!("read.lua");

impl StoreOperation for RecordOperation {
    fn script(&self) -> &'static StoreScript {
        match &self.0 {
            IdempotencyEvent::Begin(_) => &BEGIN,
            IdempotencyEvent::Renew { .. } => &RENEW,
            IdempotencyEvent::EndLease { .. } => &END_LEASE,
            IdempotencyEvent::StoreStep { .. } => &STORE_STEP,
            IdempotencyEvent::Complete { .. } => &COMPLETE,
            IdempotencyEvent::Forget { .. } => &FORGET,
            IdempotencyEvent::Dequeue { .. } => &DEQUEUE,
            IdempotencyEvent::Resolve { .. } => &RESOLVE,
            IdempotencyEvent::Remove { .. } => &REMOVE,
            IdempotencyEvent::Read => &READ,
        }
    }

    fn arguments(&self) -> Vec<Cow<'_, [u8]>> {
        match &self.0 {
            IdempotencyEvent::Begin(call) => begin_arguments(call),
            IdempotencyEvent::Renew { token, lease, ttl } => {
                vec![shown(token), shown(lease), shown(ttl)]
            }
            IdempotencyEvent::EndLease { token } => vec![shown(token)],
            IdempotencyEvent::StoreStep { token, name, result, ttl } => {
                vec![shown(token), shown(ttl), text(name), Cow::Owned(step_to_bytes(result))]
            }
            IdempotencyEvent::Complete { token, result, ttl } => {
                let (kind, bytes) = result_arguments(result);
                vec![shown(token), shown(ttl), kind, bytes]
            }
            IdempotencyEvent::Forget { token, has_run, ttl } => {
                vec![shown(token), shown(ttl), text(if *has_run { "1" } else { "0" })]
            }
            IdempotencyEvent::Dequeue { waiter } => vec![text(waiter)],
            IdempotencyEvent::Resolve { result, replaces, ttl } => {
                let (kind, bytes) = result_arguments(result);
                vec![shown(ttl), kind, bytes, text(if *replaces { "1" } else { "0" })]
            }
            IdempotencyEvent::Remove { completed } => vec![text(if *completed { "1" } else { "0" })],
            IdempotencyEvent::Read => Vec::new(),
        }
    }

    fn needs_acks(&self) -> bool {
        matches!(
            self.0,
            IdempotencyEvent::Begin(_)
                | IdempotencyEvent::Renew { .. }
                | IdempotencyEvent::StoreStep { .. }
                | IdempotencyEvent::Complete { .. }
                | IdempotencyEvent::Forget { .. } // it must not overtake the events before it
        )
    }

    fn is_repeatable(&self) -> bool {
        !matches!(self.0, IdempotencyEvent::Resolve { .. } | IdempotencyEvent::Remove { .. })
    }

    fn is_cleanup(&self) -> bool {
        matches!(self.0, IdempotencyEvent::Forget { has_run: false, .. } | IdempotencyEvent::Dequeue { .. })
    }

    fn has_large_reply(&self) -> bool {
        true
    }

    fn apply(&self, slot: &mut StoreSlot, now: u64) -> ScriptReply {
        let value = slot.value.take().and_then(|value| value.downcast::<IdempotencyRecord>().ok());
        let mut record = value.map(|record| *record);
        let (reply, wake) = idempotency::apply(&mut record, &self.0, now);
        slot.wake = wake;
        slot.expires = record.as_ref().map_or(0, IdempotencyRecord::expires);
        slot.value = record.map(|record| Box::new(record) as Box<dyn Any + Send>);
        encode(&reply)
    }
}

/// Returns what forgets an attempt whose body has not run.
pub(super) fn undo_of_begin(token: Token, ttl: Duration) -> Arc<dyn StoreOperation> {
    Arc::new(RecordOperation(IdempotencyEvent::Forget { token, has_run: false, ttl: millis(ttl) }))
}

fn begin_arguments(call: &BeginCall) -> Vec<Cow<'_, [u8]>> {
    let on_crash = match call.on_crash {
        OnCrash::Fail => "fail",
        OnCrash::Rerun => "rerun",
        OnCrash::Resume => "resume",
    };
    vec![
        shown(&call.token),
        shown(&call.lease),
        shown(&call.ttl),
        text(on_crash),
        text(&call.identity.fingerprint),
        text(&call.previous_fingerprint),
        text(&call.identity.function),
        text(&call.identity.version),
        text(call.waiter.as_deref().unwrap_or_default()),
    ]
}

fn result_arguments(result: &StoredResult) -> (Cow<'_, [u8]>, Cow<'_, [u8]>) {
    match result {
        StoredResult::Bytes { bytes, is_error: false } => (text("ok"), Cow::Borrowed(bytes)),
        StoredResult::Bytes { bytes, is_error: true } => (text("err"), Cow::Borrowed(bytes)),
        StoredResult::NotStored => (text("none"), text("")),
    }
}

/// Writes a step's result: `+` and the bytes, or `-` if it is not stored.
fn step_to_bytes(result: &StepResult) -> Vec<u8> {
    result.as_ref().map_or_else(|| b"-".to_vec(), |bytes| [b"+", &bytes[..]].concat())
}

fn step_from_bytes(bytes: &[u8]) -> Option<StepResult> {
    match bytes.split_first()? {
        (b'+', bytes) => Some(Some(bytes.to_vec())),
        (b'-', []) => Some(None),
        _ => None,
    }
}

fn int(number: impl TryInto<i64>) -> ScriptReply {
    ScriptReply::Int(number.try_into().unwrap_or(i64::MAX))
}

/// Writes a reply as the script does.
fn encode(reply: &IdempotencyReply) -> ScriptReply {
    let found = |identity: &CallIdentity, rest: Vec<ScriptReply>| {
        let mut parts = vec![int(3)];
        parts.extend(
            [&identity.fingerprint, &identity.function, &identity.version]
                .map(|part| ScriptReply::text(part)),
        );
        parts.extend(rest);
        ScriptReply::Array(parts)
    };
    match reply {
        IdempotencyReply::Started { attempt, steps } => {
            let steps = steps.iter().flat_map(|(name, result)| {
                [ScriptReply::text(name), ScriptReply::Bytes(step_to_bytes(result))]
            });
            ScriptReply::Array([int(1), int(*attempt)].into_iter().chain(steps).collect())
        }
        IdempotencyReply::KeyReused { function } => {
            ScriptReply::Array(vec![int(2), ScriptReply::text(function)])
        }
        IdempotencyReply::Completed { identity, result: StoredResult::NotStored } => {
            found(identity, vec![ScriptReply::text("T")])
        }
        IdempotencyReply::Completed { identity, result: StoredResult::Bytes { bytes, is_error } } => {
            let kind = if *is_error { "err" } else { "ok" };
            let rest =
                vec![ScriptReply::text("C"), ScriptReply::text(kind), ScriptReply::Bytes(bytes.clone())];
            found(identity, rest)
        }
        IdempotencyReply::Running { identity, lease_left, is_queued } => {
            found(identity, vec![ScriptReply::text("P"), int(*lease_left), int(i64::from(*is_queued))])
        }
        IdempotencyReply::Crashed { identity, attempt } => {
            found(identity, vec![ScriptReply::text("X"), int(*attempt)])
        }
        IdempotencyReply::Done => int(1),
        IdempotencyReply::NotOwner => int(0),
        IdempotencyReply::Absent => int(-1),
        IdempotencyReply::StillRunning => int(-2),
        IdempotencyReply::HasCompleted => int(-3),
        IdempotencyReply::Snapshot(None) => ScriptReply::Nil,
        IdempotencyReply::Snapshot(Some(snapshot)) => encode_snapshot(snapshot),
    }
}

fn encode_snapshot(snapshot: &RecordSnapshot) -> ScriptReply {
    let (kind, bytes) = snapshot.result.as_ref().map_or((text(""), text("")), result_arguments);
    let identity = &snapshot.identity;
    let parts = [
        int(4),
        ScriptReply::text(&snapshot.phase.to_string()),
        int(snapshot.attempt),
        int(snapshot.lease_left),
        int(snapshot.created_ago),
        snapshot.done_ago.map_or(int(-1), int),
        int(snapshot.ttl),
        ScriptReply::text(&identity.fingerprint),
        ScriptReply::text(&identity.function),
        ScriptReply::text(&identity.version),
        ScriptReply::text(&snapshot.process.map_or_else(|| snapshot.holder.clone(), ProcessId::token_prefix)),
        ScriptReply::Bytes(kind.into_owned()),
        ScriptReply::Bytes(bytes.into_owned()),
    ];
    let steps = snapshot.steps.iter().map(|name| ScriptReply::text(name));
    ScriptReply::Array(parts.into_iter().chain(steps).collect())
}

/// Why a reply cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnreadableReply {
    /// No script gives it.
    Unexpected,
    /// It is about a hash that is not a record.
    NoRecord,
}

/// Reads a reply.
pub(super) fn decode(reply: &ScriptReply) -> Result<IdempotencyReply, UnreadableReply> {
    let parts = match reply {
        ScriptReply::Nil => return Ok(IdempotencyReply::Snapshot(None)),
        ScriptReply::Int(1) => return Ok(IdempotencyReply::Done),
        ScriptReply::Int(0) => return Ok(IdempotencyReply::NotOwner),
        ScriptReply::Int(-1) => return Ok(IdempotencyReply::Absent),
        ScriptReply::Int(-2) => return Ok(IdempotencyReply::StillRunning),
        ScriptReply::Int(-3) => return Ok(IdempotencyReply::HasCompleted),
        reply => reply.as_array().ok_or(UnreadableReply::Unexpected)?,
    };
    let about_record = match parts {
        [ScriptReply::Int(1), attempt, steps @ ..] => decode_started(attempt, steps),
        [ScriptReply::Int(2), function] => function.as_bytes().map(|function| {
            let function = String::from_utf8_lossy(function).into_owned();
            IdempotencyReply::KeyReused { function }
        }),
        [ScriptReply::Int(3), fingerprint, function, version, phase, rest @ ..] => {
            identity(fingerprint, function, version)
                .and_then(|identity| decode_found(identity, phase.as_text()?, rest))
        }
        [ScriptReply::Int(4), snapshot @ ..] => {
            decode_snapshot(snapshot).map(|snapshot| IdempotencyReply::Snapshot(Some(Box::new(snapshot))))
        }
        _ => return Err(UnreadableReply::Unexpected),
    };
    about_record.ok_or(UnreadableReply::NoRecord)
}

fn decode_started(attempt: &ScriptReply, steps: &[ScriptReply]) -> Option<IdempotencyReply> {
    let steps: Option<BTreeMap<_, _>> = steps
        .chunks(2)
        .map(|pair| match pair {
            [name, result] => Some((name.as_text()?.to_owned(), step_from_bytes(result.as_bytes()?)?)),
            _ => None,
        })
        .collect();
    Some(IdempotencyReply::Started { attempt: number(attempt)?, steps: steps? })
}

/// Reads the reply to a renewal.
///
/// # Errors
///
/// The failure if no script gives the reply.
pub(super) fn lease_reply(reply: &ScriptReply) -> Result<LeaseReply, Failure> {
    Ok(match decode(reply).map_err(|_| unusable_reply())? {
        IdempotencyReply::Done => LeaseReply::Renewed,
        _ => LeaseReply::Lost(LossCause::NotOwner),
    })
}

fn number<T: TryFrom<i64>>(reply: &ScriptReply) -> Option<T> {
    T::try_from(reply.as_int()?).ok()
}

fn identity(
    fingerprint: &ScriptReply,
    function: &ScriptReply,
    version: &ScriptReply,
) -> Option<CallIdentity> {
    let owned = |part: &ScriptReply| part.as_text().map(str::to_owned);
    Some(CallIdentity {
        fingerprint: owned(fingerprint)?,
        function: owned(function)?,
        version: owned(version)?,
    })
}

fn decode_found(identity: CallIdentity, phase: &str, rest: &[ScriptReply]) -> Option<IdempotencyReply> {
    Some(match (phase, rest) {
        ("T", []) => IdempotencyReply::Completed { identity, result: StoredResult::NotStored },
        ("C", [kind, bytes]) => {
            let result = decode_result(kind.as_text()?, bytes.as_bytes()?)?;
            IdempotencyReply::Completed { identity, result }
        }
        ("P", [left, is_queued]) => IdempotencyReply::Running {
            identity,
            lease_left: number(left)?,
            is_queued: is_queued.as_int()? == 1,
        },
        ("X", [attempt]) => IdempotencyReply::Crashed { identity, attempt: number(attempt)? },
        _ => return None,
    })
}

fn decode_result(kind: &str, bytes: &[u8]) -> Option<StoredResult> {
    match kind {
        "ok" | "err" => Some(StoredResult::Bytes { bytes: bytes.to_vec(), is_error: kind == "err" }),
        "none" => Some(StoredResult::NotStored),
        _ => None,
    }
}

/// Returns the id of the manager of a token prefix, of which the other half is secret.
fn shown_holder(prefix: &str) -> String {
    match ProcessId::of_token_prefix(prefix) {
        Some(process) => process.shown(),
        None => prefix.chars().take(SHOWN_HOLDER).collect(), // another client wrote it
    }
}

/// The number of characters of a manager's id.
const SHOWN_HOLDER: usize = 12;

fn decode_snapshot(parts: &[ScriptReply]) -> Option<RecordSnapshot> {
    let [
        phase,
        attempt,
        lease_left,
        created,
        done,
        ttl,
        fingerprint,
        function,
        version,
        holder,
        kind,
        bytes,
        steps @ ..,
    ] = parts
    else {
        return None;
    };
    let kind = kind.as_text()?;
    let holder = String::from_utf8_lossy(holder.as_bytes()?);
    Some(RecordSnapshot {
        phase: phase.as_text()?.chars().next()?,
        attempt: number(attempt)?,
        lease_left: number(lease_left)?,
        created_ago: number(created)?,
        done_ago: u64::try_from(done.as_int()?).ok(),
        ttl: number(ttl)?,
        identity: identity(fingerprint, function, version)?,
        process: ProcessId::of_token_prefix(&holder),
        holder: shown_holder(&holder),
        result: if kind.is_empty() { None } else { Some(decode_result(kind, bytes.as_bytes()?)?) },
        steps: steps.iter().map(|name| name.as_text().map(str::to_owned)).collect::<Option<_>>()?,
    })
}
