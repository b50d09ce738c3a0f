//! Locks as Redisson's `RLock` has them, for fleets that are partly Java: who holds one is the same question for both, and a release
//! by either wakes who waits with the other.
//!
//! ```text
//!  order:7                              hash: owner -> how often he holds it, "1" for ours; with a time to live at every instant
//!  redisson_lock__channel:{order:7}     `0` when it is let go of
//!  redisson_lock_token:{order:7}        the fencing token that was given last
//! ```
//!
//! Redisson counts re-entry in the hash; we count it in the task, so that an acquire that is sent again changes nothing. Its read and
//! write locks are hashes, too, and known by their field `mode`: those are refused.
//!
//! Not here: how answers of all layouts read (`codec`), how bells are heard (`bells`).

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

/// A thread of Java needs a millisecond or two from a message to its next try; who is always quicker would always win.
pub(crate) const HOLD_BACK: Duration = Duration::from_millis(5);

/// Adds a request to a pipeline; with `loaded` by its script's name, else by its text.
pub(crate) fn encode(
    layout: LockEncoding,
    request: &Request,
    loaded: Option<&Loaded>,
    besides: Option<&str>,
    pipeline: &mut Pipeline,
) {
    let Request { key, token, command, .. } = request;
    let script = match command {
        Command::Ping => {
            pipeline.add_command(redis::cmd("PING"));
            return;
        }
        Command::Verify => {
            let mut exists = redis::cmd("HEXISTS");
            exists.arg(&**key).arg(owner::written(*token));
            pipeline.add_command(exists);
            return;
        }
        // Who waits has subscribed by the second time that he tries.
        Command::Acquire { .. } | Command::Enqueue { .. } => Script::Enqueue,
        Command::Renew { .. } => Script::Renew,
        Command::SetTtl { .. } => Script::Keep,
        Command::Release | Command::ReleaseWithFleetHold { .. } => Script::Release,
        Command::ReleaseWithoutHandoff => Script::Free,
        Command::ForceRelease => Script::ForceRelease,
        Command::Withdraw => Script::Leave,
        Command::Yield { .. } => Script::Yield,
        Command::Fence | Command::RaiseFence { .. } => Script::Fence, // a quorum alone registers, and has its own layout
        Command::Inspect => Script::Inspect,
    };
    let mut call = script.call(layout, loaded);
    match command {
        Command::Fence | Command::RaiseFence { .. } => call.arg(2).arg(&**key).arg(names::counter(key)),
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
            call.arg(channel(key)).arg(layout.publish().name()).arg(millis(*ttl));
        }
        Command::Release
        | Command::ReleaseWithFleetHold { .. }
        | Command::ReleaseWithoutHandoff
        | Command::ForceRelease
        | Command::Withdraw
        | Command::Yield { .. } => {
            call.arg(channel(key)).arg(layout.publish().name());
        }
        Command::Verify | Command::Fence | Command::RaiseFence { .. } | Command::Inspect | Command::Ping => {}
    }
    if let Some(besides) = besides {
        call.arg(besides);
    }
    pipeline.add_command(call);
}

/// Reads an answer.
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
        (Command::Inspect, Value::Array(seen)) => sight(seen).map(|sight| Reply::Info(Some(sight))),
        _ => None,
    };
    reply.unwrap_or_else(|| codec::decode(request, value, server))
}

/// Reads what an inspection saw. Who waits stands nowhere.
fn sight(seen: &[Value]) -> Option<RecordInfo> {
    let [Value::BulkString(holder), Value::Int(ttl)] = seen else { return None };
    let holder = std::str::from_utf8(holder).ok().and_then(owner::parse).map(Token::process);
    Some(RecordInfo { holder, waiters: 0, ttl: time_to_live(*ttl) })
}
