//! How a call starts, replays, waits, or is rejected.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::store_call::StoreOperation;
use crate::clock::millis;
use crate::engine::late_start::StartUndo;
use crate::engine::store_calls::CallFailure;
use crate::error::{Error, Result};
use crate::idempotent::attempt::{Attempt, RecordTerms, unexpected_reply, unreadable};
use crate::idempotent::execution::Execution;
use crate::idempotent::operation::{RecordOperation, decode, undo_of_begin};
use crate::idempotent::options::{IdempotentOptions, OnUnavailable};
use crate::key::{LockKey, MARKER, Name};
use crate::manager::LockManager;
use crate::printable::shortened;
use crate::protocol::idempotency::event::{BeginCall, IdempotencyEvent, IdempotencyReply};
use crate::protocol::idempotency::{CallIdentity, StoredResult, is_same_call};
use crate::telemetry;
use crate::token::Token;

/// How a call begins.
#[derive(Debug)]
pub(super) enum Begun {
    /// Its body runs.
    Started(Box<Execution>),
    /// It gets a stored result.
    Replayed { bytes: Vec<u8>, is_error: bool },
}

/// The reply to one question to the store.
#[derive(Debug)]
pub(super) enum Asked {
    Started(Box<Execution>),
    /// The record of this or another call.
    Found(IdempotencyReply),
}

/// A call that has not begun.
#[derive(Debug)]
pub(super) struct PendingCall {
    pub(super) manager: LockManager,
    pub(super) key: LockKey,
    pub(super) record: Name,
    terms: RecordTerms,
    pub(super) identity: CallIdentity,
    previous_fingerprint: String,
}

/// Begins the call of `key`.
///
/// # Errors
///
/// As [`run_bytes`](crate::Idempotent::run_bytes).
///
/// # Cancel safety
///
/// If the future is dropped, the call leaves no record.
pub(super) async fn begin(manager: &LockManager, key: LockKey, options: &IdempotentOptions) -> Result<Begun> {
    let call = PendingCall::new(manager, key, options)?;
    let begun = match options.wait {
        _ if !options.is_recorded => Ok(Begun::Started(Box::new(call.without_record()))),
        None => call.begin_now().await,
        Some(wait) => call.wait(wait).await,
    };
    let begun = match begun {
        Err(error @ Error::Unavailable { .. }) if options.on_unavailable == OnUnavailable::Run => {
            telemetry::ran_without_record(&call.key, &error);
            Ok(Begun::Started(Box::new(call.without_record())))
        }
        begun => begun,
    };
    telemetry::idempotent_begun(begun.as_ref().map(|begun| matches!(begun, Begun::Replayed { .. })));
    begun
}

impl PendingCall {
    /// Checks the options of a call.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if an option is out of bounds, or over a quorum; [`Error::Shutdown`];
    /// [`Error::Unavailable`] in a forked process.
    pub(super) fn new(manager: &LockManager, key: LockKey, options: &IdempotentOptions) -> Result<Self> {
        let engine = manager.engine();
        let lease = options.checked_lease(engine.lease)?;
        let fingerprints = options.fingerprints.clone()?;
        manager.check_records(&key, "idempotent", "idempotent calls")?;
        engine.uses(key.namespace());
        let IdempotentOptions { ttl, on_crash, version, result_type, name, longest_result, .. } = options;
        Ok(Self {
            manager: manager.clone(),
            record: record_name(&key),
            key,
            terms: RecordTerms { lease, ttl: *ttl, on_crash: *on_crash, longest_result: *longest_result },
            identity: CallIdentity {
                fingerprint: fingerprints.current,
                function: name.clone(),
                version: format!("{version}:{result_type}"),
            },
            previous_fingerprint: fingerprints.previous,
        })
    }

    /// Returns the start of the call under `token`. `waiter`: the process to notify of changes.
    pub(super) fn begin_call(&self, token: Token, waiter: Option<String>) -> BeginCall {
        BeginCall {
            token,
            lease: millis(self.terms.lease),
            ttl: millis(self.terms.ttl),
            on_crash: self.terms.on_crash,
            identity: self.identity.clone(),
            previous_fingerprint: self.previous_fingerprint.clone(),
            waiter,
        }
    }

    /// Begins the call without waiting.
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask) and [`decide`](Self::decide).
    pub(super) async fn begin_now(&self) -> Result<Begun> {
        match self.ask(None).await? {
            Asked::Started(execution) => Ok(Begun::Started(execution)),
            Asked::Found(reply) => self.decide(&reply),
        }
    }

    /// Asks the store once.
    ///
    /// # Errors
    ///
    /// The failure of the request. If it may have started the call, that start is undone.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a start is undone.
    pub(super) async fn ask(&self, waiter: Option<String>) -> Result<Asked> {
        let engine = self.manager.engine();
        let _active = engine.active_call(); // a shutdown waits for the reply
        let token = engine.tokens.next();
        let ttl = self.terms.ttl;
        let mut undo = StartUndo::new(engine, &self.record, || undo_of_begin(token, ttl), ttl);
        let call = self.begin_call(token, waiter);
        let operation: Arc<dyn StoreOperation> = Arc::new(RecordOperation(IdempotencyEvent::Begin(call)));
        let sent = engine.now();
        undo.is_armed = true;
        // The first of two is written to a connection that is lost.
        let (reply, may_start_late) = engine.call_noting_resend(&self.record, &operation).await;
        match reply {
            Ok(reply) => match decode(&reply) {
                Ok(IdempotencyReply::Started { attempt, steps }) => {
                    let of = (&self.key, &self.record);
                    let mut attempt =
                        Attempt::new(&self.manager, of, token, self.terms, sent, (attempt, steps));
                    attempt.may_start_late = may_start_late;
                    undo.is_armed = false;
                    Ok(Asked::Started(Box::new(Execution::new(attempt, self.identity.clone()))))
                }
                Ok(found) => {
                    undo.is_armed = may_start_late;
                    Ok(Asked::Found(found))
                }
                Err(problem) => Err(unreadable(problem, self.key.clone())),
            },
            Err(CallFailure::Refused(failure)) => {
                undo.is_armed = false;
                Err(failure.into_error(self.key.clone()))
            }
            Err(CallFailure::Unknown(failure)) => Err(failure.into_error(self.key.clone())),
        }
    }

    /// Decides what the call does about a record that it does not own.
    ///
    /// One reply serves all calls of a process that wait for the same key, so each call compares
    /// its own identity, and does so first.
    ///
    /// # Errors
    ///
    /// The reason why the call gets no result.
    pub(super) fn decide(&self, found: &IdempotencyReply) -> Result<Begun> {
        let (key, call) = (self.key.clone(), &self.identity);
        Err(match found {
            IdempotencyReply::KeyReused { function } => self.key_reused(function),
            IdempotencyReply::Completed { identity, .. }
            | IdempotencyReply::Running { identity, .. }
            | IdempotencyReply::Crashed { identity, .. }
                if !is_same_call(identity, call, &self.previous_fingerprint) =>
            {
                self.key_reused(&identity.function)
            }
            IdempotencyReply::Completed { result: StoredResult::NotStored, .. } => {
                Error::ResultNotStored { key, step: None }
            }
            IdempotencyReply::Completed { identity, result: StoredResult::Bytes { bytes, is_error } } => {
                if identity.version == call.version {
                    return Ok(Begun::Replayed { bytes: bytes.clone(), is_error: *is_error });
                }
                let problem = other_type(&identity.version, &call.version);
                Error::Undecodable { key, problem: problem.into() }
            }
            IdempotencyReply::Running { lease_left, .. } => {
                self.in_progress(Some(Duration::from_millis(*lease_left)))
            }
            IdempotencyReply::Crashed { attempt, .. } => Error::OutcomeUnknown { key, attempt: *attempt },
            _ => unexpected_reply().into_error(key),
        })
    }

    /// Returns the error of a key whose record belongs to a call of `function`: without it if the
    /// function is that of this call, and so its payload differs.
    fn key_reused(&self, function: &str) -> Error {
        let other = (function != self.identity.function).then(|| shortened(function).into());
        Error::KeyReused { key: self.key.clone(), function: other }
    }

    /// Returns an execution without a record: the server is unavailable.
    fn without_record(&self) -> Execution {
        let of = (&self.key, &self.record);
        let attempt = Attempt::without_record(&self.manager, of, self.terms);
        Execution::new(attempt, self.identity.clone())
    }
}

/// Returns the problem of a result that has another version or type than the call reads.
fn other_type(stored: &str, read: &str) -> String {
    let shown = shortened(stored);
    let advice = match (stored.split_once(':'), read.split_once(':')) {
        (Some((version, name)), Some((same, _)))
            if version == same && !name.is_empty() && shown == stored =>
        {
            format!("if the type was only renamed, set `result_type` to `{name}`; otherwise, ")
        }
        _ => String::new(),
    };
    format!(
        "it has version and type `{shown}`, and this call reads `{read}`; {advice}the result stays until its `ttl` is over"
    )
}

/// Returns the name of a record, which no lock's key has.
pub(crate) fn record_name(key: &LockKey) -> Name {
    format!("{}{MARKER}idem", key.full_name()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(fingerprint: &str, function: &str, version: &str) -> CallIdentity {
        let [fingerprint, function, version] = [fingerprint, function, version].map(str::to_owned);
        CallIdentity { fingerprint, function, version }
    }

    /// Returns what a call with this identity does about `found`.
    fn decide(call: CallIdentity, found: &IdempotencyReply) -> Result<Begun> {
        let (manager, key) = (LockManager::in_new_memory(), LockKey::new("k").expect("it is a key"));
        let pending = PendingCall::new(&manager, key, &IdempotentOptions::default());
        PendingCall { identity: call, ..pending.expect("the options are valid") }.decide(found)
    }

    #[test]
    fn a_reused_key_says_whether_the_function_differs() {
        for (found, other) in [(identity("g", "a", "1"), None), (identity("f", "b", "1"), Some("b"))] {
            let function = found.function.clone();
            let shared = IdempotencyReply::Running { identity: found, lease_left: 1, is_queued: false };
            for reply in [IdempotencyReply::KeyReused { function }, shared] {
                let decided = decide(identity("f", "a", "1"), &reply);

                let Err(Error::KeyReused { function, .. }) = decided else { panic!("{decided:?}") };
                assert_eq!(function.as_deref(), other, "{reply:?}");
            }
        }
    }

    #[test]
    fn a_result_of_another_version_is_not_replayed() {
        let result = StoredResult::Bytes { bytes: b"x".to_vec(), is_error: false };
        let found = IdempotencyReply::Completed { identity: identity("f", "a", "1"), result };

        let same = decide(identity("f", "a", "1"), &found);
        assert!(matches!(same, Ok(Begun::Replayed { bytes, is_error: false }) if bytes == b"x"));
        let other = decide(identity("f", "a", "2"), &found);
        assert!(matches!(other, Err(Error::Undecodable { .. })), "{other:?}");
        let reused = decide(identity("g", "a", "2"), &found);
        assert!(matches!(reused, Err(Error::KeyReused { .. })), "the identity is compared first");
    }

    #[test]
    fn a_result_of_another_type_names_the_type_to_set() {
        for (stored, read, advice) in [
            ("0:Result<A,E>", "0:Result<b::A,E>", Some("set `result_type` to `Result<A,E>`; otherwise,")),
            ("1:receipt", "1:", Some("set `result_type` to `receipt`; otherwise,")),
            ("0:", "0:receipt", None),
            ("0:receipt", "1:receipt", None),
            ("unreadable", "0:receipt", None),
        ] {
            let problem = other_type(stored, read);

            assert!(problem.starts_with(&format!("it has version and type `{stored}`")), "{problem}");
            assert_eq!(problem.contains("result_type"), advice.is_some(), "{problem}");
            assert!(problem.contains(advice.unwrap_or_default()), "{problem}");
        }
    }
}
