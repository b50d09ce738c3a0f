//! Locks as strings: the holder, then the queue of waiters.

use std::time::Duration;

use redis::{Pipeline, Value};

use crate::backend::Request;
use crate::backend::redis::encoding::codec;
use crate::backend::redis::encoding::lock_encoding::{LockEncoding, ScriptParameters};
use crate::backend::redis::encoding::scripts::{NATIVE, ScriptSources};
use crate::backend::redis::namespaces::{Namespace, Namespaces};
use crate::backend::redis::transport::redacted::Redacted;
use crate::protocol::command::{Command, Reply};

/// The default encoding: the fastest if one server has the key.
#[derive(Debug)]
pub(crate) struct NativeEncoding;

impl LockEncoding for NativeEncoding {
    fn scripts(&self) -> &'static ScriptSources {
        &NATIVE
    }

    fn wakeup_jitter(&self) -> Option<Duration> {
        None
    }

    fn release_channel(&self, _namespaces: &Namespaces, _key: &str) -> Option<String> {
        None
    }

    fn other_data_and_problem(&self, request: &Request) -> Option<(String, &'static str)> {
        matches!(request.command, Command::Fence).then(|| (codec::counter(&request.key), SPLIT_COUNTER))
    }

    fn encode(&self, request: &Request, parameters: &ScriptParameters<'_>, pipeline: &mut Pipeline) {
        codec::encode(&NATIVE, Namespace::grants, request, parameters, pipeline);
    }

    fn decode(&self, request: &Request, value: &Value, server: &Redacted) -> Reply {
        codec::decode(request, value, server)
    }
}

/// The problem of a name whose fencing counter is in another slot.
const SPLIT_COUNTER: &str = "in a cluster the fencing counter of this name is in another slot than the lock; write braces in pairs, with text \
                            between the first, or none";
