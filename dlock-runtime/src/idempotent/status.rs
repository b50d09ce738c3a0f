//! [`IdempotencyStatus`]: what operators and tests see of a record, and how they resolve it.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::backend::store_call::StoreOperation;
use crate::clock::millis;
use crate::config::config;
use crate::error::{Error, Result};
use crate::idempotent::Idempotent;
use crate::idempotent::attempt::{unexpected_reply, unreadable};
use crate::idempotent::begin::record_name;
use crate::idempotent::operation::{RecordOperation, decode};
use crate::printable::shortened;
use crate::protocol::idempotency::event::{IdempotencyEvent, IdempotencyReply, RecordSnapshot};
use crate::protocol::idempotency::{LONGEST_RESULT, StoredResult};

/// The state of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IdempotencyState {
    /// An attempt runs.
    InProgress,
    /// The lease of the last attempt is over, and there is no result.
    OutcomeUnknown,
    /// There is a result.
    Completed,
    /// The call has completed, and its result is not stored.
    ResultNotStored,
    /// The last attempt returned an error, and its completed steps are stored.
    Forgotten,
}

impl IdempotencyState {
    /// Returns the name: `in_progress`, `outcome_unknown`, `completed`, `result_not_stored`, or
    /// `forgotten`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Completed => "completed",
            Self::ResultNotStored => "result_not_stored",
            Self::Forgotten => "forgotten",
        }
    }
}

/// A record as the server has it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyStatus {
    state: IdempotencyState,
    snapshot: RecordSnapshot,
    owner: Option<String>,
}

impl IdempotencyStatus {
    fn new(mut snapshot: RecordSnapshot, owner: Option<String>) -> Self {
        let foreign = [&mut snapshot.identity.function].into_iter().chain(&mut snapshot.steps);
        foreign.for_each(|text| *text = shortened(text).into_owned());
        let state = match snapshot.phase {
            'P' => IdempotencyState::InProgress,
            'C' => IdempotencyState::Completed,
            'T' => IdempotencyState::ResultNotStored,
            'F' => IdempotencyState::Forgotten,
            _ => IdempotencyState::OutcomeUnknown,
        };
        Self { state, snapshot, owner }
    }

    /// Returns the state.
    #[must_use]
    pub fn state(&self) -> IdempotencyState {
        self.state
    }

    /// Returns the number of the last attempt, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.snapshot.attempt
    }

    /// Returns the [ID](crate::LockManager::id) of the manager that ran the last attempt; `None` if an
    /// operator resolved it.
    #[must_use]
    pub fn holder(&self) -> Option<&str> {
        Some(&*self.snapshot.holder).filter(|holder| !holder.is_empty())
    }

    /// Returns the [owner](crate::Builder::owner) of that manager, such as `web-1:4242`.
    ///
    /// It is known only while that manager is connected to the server of the record. Returns `None`
    /// if it is not connected, or if this user may not run `PUBSUB CHANNELS`.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// Returns `true` if an operator has stored the result. Another operator can replace it.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        self.state == IdempotencyState::Completed && self.snapshot.holder.is_empty()
    }

    /// Returns the rest of the lease, by the server's clock; zero if no attempt runs.
    #[must_use]
    pub fn lease_left(&self) -> Duration {
        Duration::from_millis(self.snapshot.lease_left)
    }

    /// Returns the time since the first attempt began, by the server's clock.
    #[must_use]
    pub fn age(&self) -> Duration {
        Duration::from_millis(self.snapshot.created_ago)
    }

    /// Returns the time since the call completed, by the server's clock; `None` if it has not.
    #[must_use]
    pub fn completed_ago(&self) -> Option<Duration> {
        self.snapshot.done_ago.map(Duration::from_millis)
    }

    /// Returns how long the record will be stored.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        Duration::from_millis(self.snapshot.ttl)
    }

    /// Returns the name of the function that the record belongs to, at most 512 bytes of it.
    #[must_use]
    pub fn function(&self) -> &str {
        &self.snapshot.identity.function
    }

    /// Returns the stored bytes; `None` if there are none.
    #[must_use]
    pub fn result(&self) -> Option<&[u8]> {
        match &self.snapshot.result {
            Some(StoredResult::Bytes { bytes, .. }) => Some(bytes),
            _ => None,
        }
    }

    /// Returns `true` if the stored result is an error.
    #[must_use]
    pub fn is_error(&self) -> bool {
        matches!(self.snapshot.result, Some(StoredResult::Bytes { is_error: true, .. }))
    }

    /// Returns the names of the completed steps.
    #[must_use]
    pub fn steps(&self) -> &[String] {
        &self.snapshot.steps
    }
}

impl<P> Idempotent<P> {
    /// Returns the record of the key, or `None` if there is none.
    ///
    /// It changes nothing and costs one round trip, and another one for the
    /// [owner](IdempotencyStatus::owner) if another manager ran the last attempt.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`], [`Error::Unavailable`], [`Error::Shutdown`]; [`Error::Config`] over a
    /// quorum; [`Error::WrongKind`] if the record is something else.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn status(&self) -> Result<Option<IdempotencyStatus>> {
        let snapshot = match self.send(IdempotencyEvent::Read).await? {
            IdempotencyReply::Snapshot(Some(snapshot)) => *snapshot,
            IdempotencyReply::Snapshot(None) => return Ok(None),
            _ => return Err(unexpected_reply().into_error(self.key.clone()?)),
        };
        let owner = match snapshot.process {
            Some(process) => {
                let engine = self.manager.engine();
                let latest = engine.now().plus(engine.rules.response_timeout);
                self.manager.owner_of(process, &self.key.clone()?, latest).await
            }
            None => None,
        };
        Ok(Some(IdempotencyStatus::new(snapshot, owner)))
    }

    /// Deletes the record of the key with its result and its steps. Returns `true` if there was
    /// one.
    ///
    /// The next call runs its body. It is for operators who know that the call has had no effect,
    /// and for tests.
    ///
    /// # Errors
    ///
    /// [`Error::InProgress`] if an attempt runs. Otherwise as [`status`](Self::status).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, and after [`Error::Unavailable`], the record may or may not be
    /// deleted. The request is not sent again, since another call may have completed by then.
    pub async fn forget(&self) -> Result<bool> {
        self.change(IdempotencyEvent::Remove { completed: true }).await
    }

    /// Like [`forget`](Self::forget), but keeps the record of a call that has completed, also if it
    /// completes meanwhile. Returns `false` then, and if there is no record.
    ///
    /// # Errors
    ///
    /// As [`forget`](Self::forget).
    ///
    /// # Cancel safety
    ///
    /// As [`forget`](Self::forget).
    pub async fn forget_unless_completed(&self) -> Result<bool> {
        self.change(IdempotencyEvent::Remove { completed: false }).await
    }

    /// Stores the result of a call that has none, as JSON. Returns `false` if there is no record,
    /// or a result.
    ///
    /// The outcome of such a call is unknown, or its result was not stored, or it returned an error
    /// after it had completed a step. If the result of that step cannot be read, only this ends the
    /// call without repeating the step.
    ///
    /// Later calls get the result. It is for operators who know what the call has done. The attempt
    /// itself cannot change the result any more; [`resolve_or_replace`](Self::resolve_or_replace)
    /// can. The result is stored for the [`ttl`](Self::ttl) of this call, or for as long as the
    /// record still has, if that is longer.
    ///
    /// # Errors
    ///
    /// [`Error::InProgress`] if an attempt runs; [`Error::Config`] if the result is larger than 64
    /// KiB, or cannot be serialized. Otherwise as [`status`](Self::status).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, and after [`Error::Unavailable`], the result may or may not be
    /// stored. [`status`](Self::status) shows it.
    pub async fn resolve(&self, result: &(impl Serialize + ?Sized)) -> Result<bool> {
        self.store_resolution(result, false).await
    }

    /// Like [`resolve`](Self::resolve), and also replaces a result that an operator has stored.
    ///
    /// A result that a body has stored is never replaced: then it returns `false`.
    ///
    /// # Errors
    ///
    /// As [`resolve`](Self::resolve).
    ///
    /// # Cancel safety
    ///
    /// As [`resolve`](Self::resolve).
    pub async fn resolve_or_replace(&self, result: &(impl Serialize + ?Sized)) -> Result<bool> {
        self.store_resolution(result, true).await
    }

    async fn store_resolution(&self, result: &(impl Serialize + ?Sized), replaces: bool) -> Result<bool> {
        let bytes = serde_json::to_vec(result).map_err(|problem| {
            config(
                "result",
                format!("it cannot be written as JSON: {problem}; use a value that serde can write"),
            )
        })?;
        if bytes.len() > LONGEST_RESULT {
            let problem =
                format!("it has {} bytes: store a result of at most {LONGEST_RESULT} bytes", bytes.len());
            return Err(config("result", problem));
        }
        let result = StoredResult::Bytes { bytes, is_error: false };
        self.change(IdempotencyEvent::Resolve { result, replaces, ttl: millis(self.options.ttl) }).await
    }

    async fn change(&self, event: IdempotencyEvent) -> Result<bool> {
        match self.send(event).await? {
            IdempotencyReply::Done => Ok(true),
            IdempotencyReply::Absent | IdempotencyReply::NotOwner | IdempotencyReply::HasCompleted => {
                Ok(false)
            }
            IdempotencyReply::StillRunning => {
                Err(Error::InProgress { key: self.key.clone()?, remaining: None })
            }
            _ => Err(unexpected_reply().into_error(self.key.clone()?)),
        }
    }

    async fn send(&self, event: IdempotencyEvent) -> Result<IdempotencyReply> {
        let key = self.key.clone()?;
        self.manager.check_records(&key, "idempotent", "idempotent calls")?;
        let engine = self.manager.engine();
        engine.uses(key.namespace());
        let operation: Arc<dyn StoreOperation> = Arc::new(RecordOperation(event));
        let reply = engine.call(&record_name(&key), &operation).await;
        let reply = reply.map_err(|failure| failure.into_failure().into_error(key.clone()))?;
        decode(&reply).map_err(|problem| unreadable(problem, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_named_like_its_variant() {
        for (state, name) in [
            (IdempotencyState::InProgress, "in_progress"),
            (IdempotencyState::OutcomeUnknown, "outcome_unknown"),
            (IdempotencyState::Completed, "completed"),
            (IdempotencyState::ResultNotStored, "result_not_stored"),
            (IdempotencyState::Forgotten, "forgotten"),
        ] {
            assert_eq!(state.name(), name);
            assert_eq!(name.replace('_', ""), format!("{state:?}").to_lowercase());
        }
    }
}
