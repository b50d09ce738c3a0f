//! [`JobStore`], requests about the record of a job.

use std::sync::Arc;

use crate::backend::store_call::StoreOperation;
use crate::bounds::LAST_FENCE;
use crate::error::{Error, Result};
use crate::key::{LockKey, MARKER, Name};
use crate::manager::LockManager;
use crate::protocol::command::ScriptReply;
use crate::protocol::job::job_record::JobRecord;
use crate::scheduled::operation::{JobAnswer, JobOperation, JobReply, JobRequest, decode};

/// The record of one job, in the store of a manager.
#[derive(Clone, Debug)]
pub(super) struct JobStore {
    pub(super) manager: LockManager,
    key: Result<LockKey>,
}

impl JobStore {
    pub(super) fn new(manager: &LockManager, name: &str) -> Self {
        Self {
            manager: manager.clone(),
            key: LockKey::named("job", name, manager.namespace()).map_err(Into::into),
        }
    }

    pub(super) async fn read(&self) -> Result<Option<Box<JobRecord>>> {
        match self.send(JobRequest::Read).await?.answer {
            JobAnswer::Record(record) => Ok(record),
            _ => Ok(None),
        }
    }

    /// Sends a request of an operator.
    pub(super) async fn send(&self, request: JobRequest) -> Result<JobReply> {
        let ttl = if matches!(request, JobRequest::SetPaused(true)) { LONG_TTL } else { SHORTEST_TTL };
        self.send_with(request, ttl).await
    }

    /// Sends a request after which the record lives for `ttl` at least.
    pub(super) async fn send_with(&self, request: JobRequest, ttl: u64) -> Result<JobReply> {
        let key = self.checked_key()?;
        let engine = self.manager.engine();
        engine.uses(key.namespace());
        let operation: Arc<dyn StoreOperation> = Arc::new(JobOperation { request, ttl });
        let reply = engine.call(&record_name(key), &operation).await;
        let reply = reply.map_err(|failure| failure.into_failure().into_error(key.clone()))?;
        let reply = read_reply(&reply, key)?;
        self.manager.server_clock().learn(engine, reply.now);
        Ok(reply)
    }

    /// Returns the key, after checking that the manager can keep records.
    pub(super) fn checked_key(&self) -> Result<&LockKey> {
        let key = self.key.as_ref().map_err(Clone::clone)?;
        self.manager.check_records(key, "job", "jobs")?;
        Ok(key)
    }
}

/// Returns the name of a job's record, which no lock's key has.
pub(super) fn record_name(key: &LockKey) -> Name {
    format!("{}{MARKER}job", key.full_name()).into()
}

/// Reads the reply to a request about the record of a job.
///
/// # Errors
///
/// [`Error::FencingCounter`] if the record has no further fencing token; [`Error::WrongKind`] if it
/// is no record.
pub(super) fn read_reply(reply: &ScriptReply, key: &LockKey) -> Result<JobReply> {
    match decode(reply) {
        Some(JobReply { answer: JobAnswer::NoFence, .. }) => Err(no_fence(key)),
        Some(reply) => Ok(reply),
        None => Err(unusable(key)),
    }
}

fn no_fence(key: &LockKey) -> Error {
    let problem = format!(
        "the field `fe` of its record `{}` is not a number below {}: delete that field to restart at the server's time, \
         and have the resource forget the highest token it has seen",
        record_name(key),
        LAST_FENCE - 1
    );
    Error::FencingCounter { key: key.clone(), problem: problem.into() }
}

/// The error for a key that holds another value than a record.
pub(super) fn unusable(key: &LockKey) -> Error {
    Error::WrongKind { key: key.clone(), found: "a hash that is not the record of a job".into() }
}

/// How long a record lives after its last change, at least: seven days, in milliseconds.
pub(super) const SHORTEST_TTL: u64 = 7 * 24 * 60 * 60 * 1_000;

/// How long a record lives after a pause and after a slot that a caller chose, at least: 400 days,
/// in milliseconds. Neither has a period that would bound how long it must be known.
pub(super) const LONG_TTL: u64 = 400 * 24 * 60 * 60 * 1_000;
