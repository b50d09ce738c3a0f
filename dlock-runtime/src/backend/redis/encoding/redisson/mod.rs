//! Locks in the format of Redisson's `RLock`, for fleets with Java clients: both exclude each
//! other, and a release by either wakes the waiters of both.
//!
//! ```text
//!  order:7                              hash: owner -> hold count, "1" for dlock; always with a time to live
//!  redisson_lock__channel:{order:7}     `0` is published on release
//!  redisson_lock_token:{order:7}        the last fencing token
//! ```
//!
//! Redisson counts re-entrant holds in the hash. dlock counts them in the task, so a repeated
//! acquire changes nothing. Redisson's read-write locks are hashes too, with a field `mode`; they
//! are rejected.

mod names;
mod owner;

use std::time::Duration;

use redis::{Pipeline, Value};

use crate::backend::Request;
use crate::backend::redis::encoding::codec::{self, millis, time_to_live};
use crate::backend::redis::encoding::lock_encoding::{LockEncoding, ScriptParameters};
use crate::backend::redis::encoding::scripts::{REDISSON, Script, ScriptSources};
use crate::backend::redis::namespaces::Namespaces;
use crate::backend::redis::transport::redacted::Redacted;
use crate::bounds::LAST_FENCE_OF_REDISSON;
use crate::layout::Publish;
use crate::protocol::command::{Command, RecordInfo, Reply};
use crate::token::Token;

/// The encoding for fleets with Java clients.
#[derive(Debug)]
pub(crate) struct RedissonEncoding {
    publish: Publish,
}

impl RedissonEncoding {
    /// Returns the encoding with this command for releases. Outside of clusters, Redisson does not
    /// use sharded channels by default.
    pub(crate) fn with_publish(publish: Publish, in_cluster: bool) -> &'static Self {
        match publish {
            Publish::Auto if in_cluster => &Self { publish: Publish::Auto },
            Publish::Auto | Publish::Publish => &Self { publish: Publish::Publish },
            Publish::Spublish => &Self { publish: Publish::Spublish },
            Publish::Both => &Self { publish: Publish::Both },
        }
    }
}

impl LockEncoding for RedissonEncoding {
    fn scripts(&self) -> &'static ScriptSources {
        &REDISSON
    }

    fn wakeup_jitter(&self) -> Option<Duration> {
        Some(WAKEUP_JITTER)
    }

    fn release_channel(&self, _namespaces: &Namespaces, key: &str) -> Option<String> {
        Some(names::channel(key))
    }

    fn publish(&self) -> Publish {
        self.publish
    }

    fn other_data_and_problem(&self, request: &Request) -> Option<(String, &'static str)> {
        let is_script = !matches!(request.command, Command::Ping | Command::Call);
        is_script.then(|| (names::channel(&request.key), SPLIT_CHANNEL))
    }

    fn encode(&self, request: &Request, parameters: &ScriptParameters<'_>, pipeline: &mut Pipeline) {
        let Request { key, token, command, .. } = request;
        let script = match command {
            Command::Verify => {
                let mut exists = redis::cmd("HEXISTS");
                exists.arg(&**key).arg(owner::written(*token));
                pipeline.add_command(exists);
                return;
            }
            // A waiter has subscribed before its second try.
            Command::Acquire { .. } => Some(Script::Enqueue),
            command => Script::of(*command),
        };
        let Some(script) = script else {
            pipeline.cmd("PING");
            return;
        };
        let mut call = script.call(&REDISSON, parameters.loaded);
        if script.uses_counter() {
            call.arg(2).arg(&**key).arg(names::counter(key));
        } else {
            call.arg(1).arg(&**key);
        }
        call.arg(owner::written(*token));
        if script.publishes() || script == Script::SetTtl {
            call.arg(names::channel(key)).arg(self.publish.name());
        }
        if let Command::Acquire { lease: time }
        | Command::Enqueue { lease: time, .. }
        | Command::Renew { lease: time }
        | Command::SetTtl { ttl: time } = command
        {
            call.arg(millis(*time));
        }
        if let Some(extra) = parameters.extra {
            call.arg(extra);
        }
        pipeline.add_command(call);
    }

    fn decode(&self, request: &Request, value: &Value, server: &Redacted) -> Reply {
        let reply = match (request.command, value) {
            (Command::Acquire { .. }, Value::Array(pair)) => match pair.as_slice() {
                [Value::Int(1), _] => Some(Reply::Owner),
                [Value::Int(3), _] => Some(Reply::Contended),
                _ => None,
            },
            (_, Value::ServerError(_)) => None,
            (Command::Verify, Value::Int(1)) => Some(Reply::Owner),
            (Command::Verify, Value::Int(0)) => Some(Reply::NotOwner),
            (Command::Verify, _) => Some(codec::unexpected_reply(server)),
            (Command::Fence, Value::BulkString(text)) => {
                codec::fence(text, LAST_FENCE_OF_REDISSON).map(Reply::Fenced)
            }
            (Command::Fence, Value::Int(-1)) => {
                Some(codec::no_fence(&names::counter(&request.key), LAST_FENCE_OF_REDISSON, server))
            }
            (Command::Inspect, Value::Array(seen)) => record_info(seen).map(|info| Reply::Info(Some(info))),
            _ => None,
        };
        reply.unwrap_or_else(|| codec::decode(request, value, server))
    }
}

/// A Java thread needs 1 to 2 ms from a message to its next try. Without this delay, dlock would
/// always win.
const WAKEUP_JITTER: Duration = Duration::from_millis(5);
const _: () = assert!(!WAKEUP_JITTER.is_zero(), "all waiters would retry at once");

/// The problem of a name whose channel is in another slot.
const SPLIT_CHANNEL: &str = "in a cluster Redisson's channel of this name is in another slot than the lock; write braces in pairs, with text \
                    between the first, or none";

/// Parses the reply to an inspection. Waiters are not stored, so their number is 0.
fn record_info(seen: &[Value]) -> Option<RecordInfo> {
    let [Value::BulkString(holder), Value::Int(ttl), Value::BulkString(fence)] = seen else { return None };
    let holder = std::str::from_utf8(holder).ok().and_then(owner::parse).map(Token::process);
    let fence = codec::fence(fence, LAST_FENCE_OF_REDISSON);
    Some(RecordInfo { holder, waiters: 0, ttl: time_to_live(*ttl), fence })
}
