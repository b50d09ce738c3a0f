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
use crate::backend::redis::encoding::LockEncoding;
use crate::backend::redis::encoding::codec::{self, Redacted, millis, time_to_live};
use crate::backend::redis::encoding::scripts::{Loaded, Script};
use crate::bounds::LAST_FENCE_OF_REDISSON;
use crate::protocol::command::{Command, RecordInfo, Reply};
use crate::token::Token;

pub(in crate::backend::redis) use self::names::channel;
pub(in crate::backend::redis) use self::owner::FAMILY;

/// A Java thread needs 1 to 2 ms from a message to its next try. Without this delay, dlock would
/// always win.
pub(crate) const WAKEUP_JITTER: Duration = Duration::from_millis(5);

/// Adds a request to a pipeline: as `EVALSHA` if the scripts are `loaded`, otherwise as `EVAL`.
pub(crate) fn encode(
    encoding: LockEncoding,
    request: &Request,
    loaded: Option<&Loaded>,
    extra: Option<&str>,
    pipeline: &mut Pipeline,
) {
    let Request { key, token, command, .. } = request;
    let script = match command {
        Command::Ping | Command::Call => {
            pipeline.add_command(redis::cmd("PING"));
            return;
        }
        Command::Verify => {
            let mut exists = redis::cmd("HEXISTS");
            exists.arg(&**key).arg(owner::written(*token));
            pipeline.add_command(exists);
            return;
        }
        // A waiter has subscribed before its second try.
        Command::Acquire { .. } | Command::Enqueue { .. } => Script::Enqueue,
        Command::Renew { .. } => Script::Renew,
        Command::SetTtl { .. } => Script::SetTtl,
        Command::Release | Command::ReleaseWithFleetHold { .. } => Script::Release,
        Command::ReleaseWithoutHandoff => Script::ReleaseWithoutHandoff,
        Command::ForceRelease => Script::ForceRelease,
        Command::Withdraw => Script::Withdraw,
        Command::Yield { .. } => Script::Yield,
        Command::Fence | Command::RaiseFence { .. } => Script::Fence, // only a quorum sends `RaiseFence`, and it uses another encoding
        Command::Inspect => Script::Inspect,
    };
    let mut call = script.call(encoding, loaded);
    match command {
        Command::Fence | Command::RaiseFence { .. } | Command::Inspect => {
            call.arg(2).arg(&**key).arg(names::counter(key))
        }
        _ => call.arg(1).arg(&**key),
    };
    call.arg(owner::written(*token));
    match command {
        Command::Acquire { lease: time }
        | Command::Enqueue { lease: time, .. }
        | Command::Renew { lease: time } => {
            call.arg(millis(*time));
        }
        Command::SetTtl { ttl } => {
            call.arg(channel(key)).arg(encoding.publish().name()).arg(millis(*ttl));
        }
        Command::Release
        | Command::ReleaseWithFleetHold { .. }
        | Command::ReleaseWithoutHandoff
        | Command::ForceRelease
        | Command::Withdraw
        | Command::Yield { .. } => {
            call.arg(channel(key)).arg(encoding.publish().name());
        }
        Command::Verify
        | Command::Fence
        | Command::RaiseFence { .. }
        | Command::Inspect
        | Command::Ping
        | Command::Call => {}
    }
    if let Some(extra) = extra {
        call.arg(extra);
    }
    pipeline.add_command(call);
}

/// Decodes a reply.
pub(crate) fn decode(request: &Request, value: &Value, server: &Redacted) -> Reply {
    let reply = match (request.command, value) {
        (Command::Acquire { .. }, Value::Array(pair)) => match pair.as_slice() {
            [Value::Int(1), _] => Some(Reply::Owner),
            [Value::Int(3), _] => Some(Reply::Contended),
            _ => None,
        },
        (_, Value::ServerError(_)) => None,
        (Command::Verify, Value::Int(1)) => Some(Reply::Owner),
        (Command::Verify, Value::Int(0)) => Some(Reply::NotOwner),
        (Command::Verify, _) => Some(codec::no_answer(server)),
        (Command::Fence, Value::BulkString(text)) => codec::fenced(text, LAST_FENCE_OF_REDISSON),
        (Command::Fence, Value::Int(-1)) => {
            Some(codec::no_fence(&names::counter(&request.key), LAST_FENCE_OF_REDISSON, server))
        }
        (Command::Inspect, Value::Array(seen)) => record_info(seen).map(|info| Reply::Info(Some(info))),
        _ => None,
    };
    reply.unwrap_or_else(|| codec::decode(request, value, server))
}

/// Parses the reply to an inspection. Waiters are not stored, so their number is 0.
fn record_info(seen: &[Value]) -> Option<RecordInfo> {
    let [Value::BulkString(holder), Value::Int(ttl), Value::BulkString(fence)] = seen else { return None };
    let holder = std::str::from_utf8(holder).ok().and_then(owner::parse).map(Token::process);
    let fence = codec::last_fence(fence, LAST_FENCE_OF_REDISSON);
    Some(RecordInfo { holder, waiters: 0, ttl: time_to_live(*ttl), fence })
}
