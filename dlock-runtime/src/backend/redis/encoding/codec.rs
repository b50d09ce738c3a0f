//! Encodes commands for Redis and decodes its replies, for locks that are strings.

use std::time::Duration;

use redis::{Cmd, Pipeline, ServerError, Value};

use crate::backend::Request;
use crate::backend::redis::encoding::lock_encoding::ScriptParameters;
use crate::backend::redis::encoding::scripts::{Script, ScriptSources};
use crate::backend::redis::namespaces::Namespace;
use crate::backend::redis::transport::error_kind::{forbids, has_code};
use crate::backend::redis::transport::redacted::{Redacted, printable};
use crate::bounds::{LAST_FENCE, LONGEST_VALUE};
use crate::key::MARKER;
use crate::protocol::command::{Command, EnqueueMode, Failure, FailureKind, RecordInfo, Reply};
use crate::protocol::foreign_clients::FleetHold;
use crate::token::Token;

/// Adds a request to a pipeline. `channels` returns the prefix of the channels on which the
/// `scripts` publish.
pub(crate) fn encode(
    scripts: &ScriptSources,
    channels: fn(&Namespace) -> &str,
    request: &Request,
    parameters: &ScriptParameters<'_>,
    pipeline: &mut Pipeline,
) {
    let Request { key, token, command, .. } = request;
    let times = parameters.times;
    let token = token.written();
    let script = match command {
        Command::Acquire { lease } => {
            let mut set = Cmd::with_capacity(6, key.len() + Token::WIDTH + 32);
            set.arg("SET").arg(&**key).arg(&token[..]).arg("NX").arg("PX").arg(millis(*lease));
            pipeline.add_command(set);
            return;
        }
        Command::Verify => {
            // As in the scripts: reads one byte more than a full queue has. Another client may have
            // written 512 MB.
            let mut get = Cmd::with_capacity(4, key.len() + 24);
            get.arg("GETRANGE").arg(&**key).arg(0).arg(LONGEST_VALUE);
            pipeline.add_command(get);
            return;
        }
        command => Script::of(*command),
    };
    let Some(script) = script else {
        pipeline.cmd("PING");
        return;
    };
    let mut call = script.call(scripts, parameters.loaded);
    if script.uses_counter() {
        call.arg(2).arg(&**key).arg(counter(key));
    } else {
        call.arg(1).arg(&**key);
    }
    call.arg(&token[..]);
    if script.publishes() {
        call.arg(channels(&parameters.namespaces.of_key(key)));
    }
    match command {
        Command::Acquire { .. }
        | Command::Verify
        | Command::ReleaseWithoutHandoff
        | Command::Inspect
        | Command::Ping
        | Command::Call => {}
        Command::Enqueue { lease, mode } => {
            call.arg(millis(*lease)).arg(match mode {
                EnqueueMode::Join => "first",
                EnqueueMode::Recheck => "again",
                EnqueueMode::TryOnly => "peek",
            });
        }
        Command::Renew { lease: time } | Command::SetTtl { ttl: time } => {
            call.arg(millis(*time));
        }
        Command::ForceRelease | Command::Withdraw => {
            call.arg(millis(times.grant_lease));
        }
        Command::Release { fleet_hold } => {
            call.arg(millis(times.grant_lease));
            add_fleet_hold(*fleet_hold, &mut call);
        }
        Command::Yield { next, fleet_hold } => {
            call.arg(millis(times.grant_lease)).arg(&next.written()[..]);
            add_fleet_hold(*fleet_hold, &mut call);
        }
        Command::Fence => {
            call.arg(millis(times.fence_ttl));
        }
        Command::RaiseFence { fence } => {
            call.arg(millis(times.fence_ttl)).arg(*fence);
        }
    }
    if let Some(extra) = parameters.extra {
        call.arg(extra);
    }
    pipeline.add_command(call);
}

/// Decodes a reply. The command of an unexpected reply may have run, so the result is
/// [`Reply::Unknown`].
pub(crate) fn decode(request: &Request, value: &Value, server: &Redacted) -> Reply {
    let reply = match (request.command, value) {
        (_, Value::ServerError(error)) => return error_reply(server, error),
        (Command::Acquire { .. }, Value::Okay) | (Command::Ping, Value::SimpleString(_)) => {
            Some(Reply::Owner)
        }
        (Command::Acquire { .. }, Value::Nil) => Some(Reply::Contended),
        (Command::Enqueue { .. } | Command::Yield { .. }, Value::Array(pair)) => match pair.as_slice() {
            [Value::Int(1), Value::Int(_)] => Some(Reply::Owner),
            [Value::Int(2), Value::Int(ttl)] => Some(Reply::Queued { ttl: time_to_live(*ttl) }),
            [Value::Int(3), Value::Int(ttl)] => Some(Reply::NotQueued { ttl: time_to_live(*ttl) }),
            [Value::Int(0), Value::Int(_)] => Some(Reply::Absent),
            _ => None,
        },
        (Command::Verify, Value::BulkString(value)) => {
            let is_owner = value.len() <= LONGEST_VALUE && value.starts_with(&request.token.written());
            Some(if is_owner { Reply::Owner } else { Reply::NotOwner })
        }
        (Command::Inspect, Value::Int(0)) => Some(Reply::Info(None)),
        (Command::Inspect, Value::Array(seen)) => record_info(seen).map(|info| Reply::Info(Some(info))),
        (
            Command::Acquire { .. }
            | Command::Enqueue { .. }
            | Command::Verify
            | Command::Inspect
            | Command::Ping
            | Command::Call,
            _,
        ) => None,
        (_, Value::Int(0)) => Some(Reply::NotOwner),
        (Command::Yield { .. }, Value::Int(2)) => Some(Reply::Yielded),
        (Command::Fence | Command::RaiseFence { .. }, Value::BulkString(text)) => {
            fence(text, LAST_FENCE).map(Reply::Fenced)
        }
        (Command::Fence | Command::RaiseFence { .. }, Value::Int(-1)) => {
            Some(no_fence(&counter(&request.key), LAST_FENCE, server))
        }
        (Command::Fence | Command::RaiseFence { .. }, _) => None,
        (_, Value::Int(1)) => Some(Reply::Owner),
        _ => None,
    };
    reply.unwrap_or_else(|| unexpected_reply(server))
}

/// Converts an error reply.
pub(crate) fn error_reply(server: &Redacted, error: &ServerError) -> Reply {
    let failure = server.failure(error);
    // A script that was rejected at a forbidden command has executed the commands before it.
    let is_half_done = forbids(error) && error.code() != "NOPERM";
    let is_refused = failure.kind != FailureKind::Passing || PASSING.iter().any(|code| has_code(error, code));
    let did_not_run = is_refused && !is_half_done;
    if did_not_run { Reply::Refused(failure) } else { Reply::Unknown(failure) }
}

/// Returns the result for an unexpected reply.
pub(crate) fn unexpected_reply(server: &Redacted) -> Reply {
    let reason = format!("redis at {server} gave an unexpected reply");
    Reply::Unknown(Failure::new(FailureKind::Passing, reason))
}

/// Parses a fencing token, or the counter of them. Returns `None` if it is not a number up to
/// `last`.
pub(crate) fn fence(text: &[u8], last: u64) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok().filter(|fence| *fence <= last)
}

/// Returns the result if `counter` has no next number up to `last`.
pub(crate) fn no_fence(counter: &str, last: u64, server: &Redacted) -> Reply {
    let reason = format!(
        "its counter `{}` in redis at {server} is not a number below {last}: delete that key to restart at the server's time, \
         and have the resource forget the highest token it has seen",
        printable(counter)
    );
    Reply::Refused(Failure::new(FailureKind::FencingCounter, reason))
}

/// Parses the reply to an inspection.
fn record_info(seen: &[Value]) -> Option<RecordInfo> {
    let [Value::BulkString(holder), Value::Int(waiters), Value::Int(ttl), Value::BulkString(fence)] = seen
    else {
        return None;
    };
    let holder = std::str::from_utf8(holder).ok().and_then(Token::parse).map(Token::process);
    let waiters = usize::try_from(*waiters).ok()?;
    Some(RecordInfo { holder, waiters, ttl: time_to_live(*ttl), fence: self::fence(fence, LAST_FENCE) })
}

/// Returns the name of a lock's fencing counter. No lock has this name, because lock names do not
/// contain [`MARKER`].
///
/// The counter is in the cluster slot of its lock, unless the name contains `}` and no hash tag: no
/// other name is in the slot of such a name by its text. Without a namespace, `order` and `{order}`
/// share a counter, which rises for both.
pub(crate) fn counter(key: &str) -> String {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    if tag.is_some_and(|tag| !tag.is_empty()) {
        format!("{key}{MARKER}token")
    } else {
        format!("{{{key}}}{MARKER}token")
    }
}

/// Appends the fleet hold, which follows the lease in the message to the next holder.
fn add_fleet_hold(fleet_hold: FleetHold, call: &mut Cmd) {
    if let Some(held) = fleet_hold.millis() {
        call.arg(format!("+{held}"));
    }
}

pub(crate) fn time_to_live(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

/// Returns whole milliseconds, at least 1: Redis rejects a time to live of zero.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Temporary errors that Redis returns before it runs a command. Any other error may come from a
/// proxy after the command has run.
const PASSING: [&str; 11] = [
    "LOADING",
    "READONLY",
    "OOM",
    "BUSY",
    "MASTERDOWN",
    "MISCONF",
    "NOREPLICAS",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "NOAUTH",
    "NOSCRIPT",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::tests::resp;

    #[test]
    fn a_counter_is_in_the_slot_of_its_lock() {
        assert_eq!(counter("dlock:order:7"), "{dlock:order:7}##token");
        assert_eq!(counter("dlock:{order}:7"), "dlock:{order}:7##token");
    }

    #[test]
    fn forbidden_commands_fail_permanently() {
        let server = Redacted::new("h:1");
        for (line, has_run) in [
            ("NOPERM this user has no permissions to run the 'set' command", false),
            ("ERR The user executing the script can't run this command or subcommand script: f_1", true),
            ("ERR ACL failure in script: User x has no permissions to run the 'get' command", true),
            ("ERR Unknown Redis command called from script script: f_1", true),
            ("ERR Unknown command called from script script: f_1", true),
            ("ERR Error running script (call to f_1): @user_script:3: -NOPERM no permissions", true),
        ] {
            let error = resp::server_error(line);

            let (may_have_run, failure) = match error_reply(&server, &error) {
                Reply::Refused(failure) => (false, failure),
                Reply::Unknown(failure) => (true, failure),
                other => panic!("{line}: {other:?}"),
            };

            assert_eq!((may_have_run, failure.kind), (has_run, FailureKind::Lasting), "{line}");
        }
    }
}
