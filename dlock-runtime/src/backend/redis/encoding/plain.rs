//! Locks as strings of the holder alone, for the servers of a quorum.

use std::time::Duration;

use redis::{Pipeline, Value};

use crate::backend::Request;
use crate::backend::redis::encoding::codec;
use crate::backend::redis::encoding::lock_encoding::{LockEncoding, ScriptParameters};
use crate::backend::redis::encoding::scripts::{PLAIN, ScriptSources};
use crate::backend::redis::namespaces::{Namespace, Namespaces};
use crate::backend::redis::transport::redacted::Redacted;
use crate::protocol::command::Reply;

/// The encoding for a quorum: the queues of several servers would differ in order, and their grants
/// would conflict.
#[derive(Debug)]
pub(crate) struct PlainEncoding;

impl LockEncoding for PlainEncoding {
    fn scripts(&self) -> &'static ScriptSources {
        &PLAIN
    }

    fn wakeup_jitter(&self) -> Option<Duration> {
        Some(WAKEUP_JITTER)
    }

    fn release_channel(&self, namespaces: &Namespaces, key: &str) -> Option<String> {
        Some(format!("{}{key}", namespaces.of_key(key).releases()))
    }

    /// The servers of a quorum have no slots.
    fn other_data_and_problem(&self, _request: &Request) -> Option<(String, &'static str)> {
        None
    }

    fn encode(&self, request: &Request, parameters: &ScriptParameters<'_>, pipeline: &mut Pipeline) {
        codec::encode(&PLAIN, Namespace::releases, request, parameters, pipeline);
    }

    fn decode(&self, request: &Request, value: &Value, server: &Redacted) -> Reply {
        codec::decode(request, value, server)
    }
}

/// Within this time, all servers of a nearby quorum have released the lock.
const WAKEUP_JITTER: Duration = Duration::from_millis(4);
const _: () = assert!(!WAKEUP_JITTER.is_zero(), "all waiters would retry at once");
