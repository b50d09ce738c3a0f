//! Encodes commands for Redis and decodes its replies, for locks that are strings.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Cmd, Pipeline, ServerError, Value};

use crate::backend::Request;
use crate::backend::redis::encoding::redisson;
use crate::backend::redis::encoding::scripts::{Loaded, Script};
use crate::backend::redis::encoding::{LockEncoding, ScriptTimes};
use crate::backend::redis::namespaces::Namespaces;
use crate::bounds::{LAST_FENCE, LONGEST_VALUE};
use crate::key::MARKER;
use crate::printable::is_unprintable;
use crate::protocol::command::{Command, EnqueueMode, Failure, FailureKind, RecordInfo, Reply};
use crate::protocol::foreign_clients::FleetHold;
use crate::sync::lock;
use crate::token::{PREFIX, Token};

/// Adds a request to a pipeline: as `EVALSHA` if the scripts are `loaded`, otherwise as `EVAL`.
///
/// `extra` is an additional action of the script. `write` writes the key whenever the reply is
/// [`Reply::Owner`]; `read` reads the key last.
pub(crate) fn encode(
    encoding: LockEncoding,
    request: &Request,
    namespaces: &Namespaces,
    times: ScriptTimes,
    loaded: Option<&Loaded>,
    extra: Option<&str>,
    pipeline: &mut Pipeline,
) {
    let Request { key, token, command, .. } = request;
    let token = token.written();
    let (script, keys) = match command {
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
        Command::Ping | Command::Call => {
            pipeline.add_command(redis::cmd("PING"));
            return;
        }
        Command::Enqueue { .. } => (Script::Enqueue, 1),
        Command::Renew { .. } => (Script::Renew, 1),
        Command::SetTtl { .. } => (Script::SetTtl, 1),
        Command::Release | Command::ReleaseWithFleetHold { .. } => (Script::Release, 1),
        Command::ReleaseWithoutHandoff => (Script::ReleaseWithoutHandoff, 1),
        Command::ForceRelease => (Script::ForceRelease, 1),
        Command::Withdraw => (Script::Withdraw, 1),
        Command::Yield { .. } => (Script::Yield, 1),
        Command::Fence | Command::RaiseFence { .. } => (Script::Fence, 2),
        Command::Inspect => (Script::Inspect, 2),
    };
    let mut call = script.call(encoding, loaded);
    call.arg(keys).arg(&**key);
    if let Command::Fence | Command::RaiseFence { .. } | Command::Inspect = command {
        call.arg(counter(key));
    }
    call.arg(&token[..]);
    if publishes(*command) {
        let namespace = namespaces.of_key(key);
        call.arg(if encoding == LockEncoding::Plain { namespace.releases() } else { namespace.grants() });
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
        Command::Release | Command::ForceRelease | Command::Withdraw => {
            call.arg(millis(times.grant_lease));
        }
        Command::ReleaseWithFleetHold { fleet_hold } => {
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
    if let Some(extra) = extra {
        call.arg(extra);
    }
    pipeline.add_command(call);
}

/// Decodes a reply. The command of an unexpected reply may have run, so the result is
/// [`Reply::Unknown`].
pub(crate) fn decode(request: &Request, value: &Value, server: &Redacted) -> Reply {
    let reply = match (request.command, value) {
        (_, Value::ServerError(error)) => return server.reply(error),
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
        (Command::Fence | Command::RaiseFence { .. }, Value::BulkString(text)) => fenced(text, LAST_FENCE),
        (Command::Fence | Command::RaiseFence { .. }, Value::Int(-1)) => {
            Some(no_fence(&counter(&request.key), LAST_FENCE, server))
        }
        (Command::Fence | Command::RaiseFence { .. }, _) => None,
        (_, Value::Int(1)) => Some(Reply::Owner),
        _ => None,
    };
    reply.unwrap_or_else(|| no_answer(server))
}

/// Returns the result for an unexpected reply.
pub(crate) fn no_answer(server: &Redacted) -> Reply {
    let reason = format!("redis at {server} gave an unexpected reply");
    Reply::Unknown(Failure::new(FailureKind::Passing, reason))
}

/// Parses a fencing token. Returns `None` if it is above `last`.
pub(crate) fn fenced(text: &[u8], last: u64) -> Option<Reply> {
    let token = std::str::from_utf8(text).ok()?.parse().ok()?;
    (token <= last).then_some(Reply::Fenced(token))
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
    Some(RecordInfo { holder, waiters, ttl: time_to_live(*ttl), fence: last_fence(fence, LAST_FENCE) })
}

/// Parses the counter of fencing tokens. Returns `None` if there is none, or it is not a token up
/// to `last`.
pub(crate) fn last_fence(text: &[u8], last: u64) -> Option<u64> {
    match fenced(text, last)? {
        Reply::Fenced(fence) => Some(fence),
        _ => None,
    }
}

/// Returns the text of a reply.
pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// Returns `true` if the server does not know the script, so nothing ran.
pub(crate) fn is_unknown_script(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

/// Returns `true` if the user may not run the command. Hosted services rename or remove commands;
/// such a command is unknown to the server.
pub(crate) fn is_forbidden(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if forbids(error))
}

fn forbids(error: &ServerError) -> bool {
    let words =
        ["nknown command", "nknown Redis command", "permission", "user executing the script", "ACL failure"];
    has_code(error, "NOPERM")
        || unknown_command(error).is_some()
        || error.details().is_some_and(|text| words.iter().any(|words| text.contains(words)))
}

/// Returns `true` if the server cannot be used at all now: another server is needed, or it must
/// recover.
pub(crate) fn is_out_of_service(value: &Value) -> bool {
    let Value::ServerError(error) = value else { return false };
    ["READONLY", "LOADING", "MASTERDOWN", "NOAUTH"].iter().any(|code| has_code(error, code))
}

/// A server as it may appear in texts: its address, and the secrets to remove from its error texts.
pub(crate) struct Redacted {
    address: Arc<str>,
    /// The passwords that were sent last.
    secrets: Mutex<VecDeque<Arc<str>>>,
}

impl std::fmt::Debug for Redacted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redacted({self})")
    }
}

impl std::fmt::Display for Redacted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.address)
    }
}

impl Redacted {
    pub(crate) fn new(address: &str) -> Self {
        Self { address: address.into(), secrets: Mutex::default() }
    }

    /// Records a password before it is sent. If passwords change, connections may use different
    /// ones.
    pub(crate) fn hide(&self, password: &str) {
        let password = printable(password); // as it would be shown
        let mut secrets = lock(&self.secrets);
        if password.len() >= SHORTEST_SECRET && !secrets.iter().any(|secret| **secret == *password) {
            secrets.push_back(password.into());
            if secrets.len() > KEPT_SECRETS {
                secrets.pop_front();
            }
        }
    }

    /// Converts an error reply.
    pub(crate) fn reply(&self, error: &ServerError) -> Reply {
        let failure = self.failure(error);
        // A script that was rejected at a forbidden command has executed the commands before it.
        let is_half_done = forbids(error) && error.code() != "NOPERM";
        let is_refused =
            failure.kind != FailureKind::Passing || PASSING.iter().any(|code| has_code(error, code));
        let did_not_run = is_refused && !is_half_done;
        if did_not_run { Reply::Refused(failure) } else { Reply::Unknown(failure) }
    }

    /// Converts an error reply to a failure.
    pub(crate) fn failure(&self, error: &ServerError) -> Failure {
        let kind = if has_code(error, "WRONGTYPE") {
            FailureKind::WrongKind
        } else if LASTING.iter().any(|code| has_code(error, code)) || forbids(error) {
            FailureKind::Lasting
        } else {
            FailureKind::Passing
        };
        Failure::new(kind, format!("redis at {self} answered: {}{}", self.error_text(error), hint(error)))
    }

    /// Returns the text of an error reply.
    pub(crate) fn error_text(&self, error: &ServerError) -> String {
        let details = error.details().unwrap_or_default();
        // The line number in a script is of no use to the reader.
        let details = details.split(" script: ").next().unwrap_or_default();
        self.clean(&format!("{} {details}", error.code()))
    }

    /// Returns `text` without secrets, tokens, and control characters, cut to 200 characters.
    ///
    /// Removing text must not join its surroundings to a secret. So control characters are removed
    /// first, and everything else is replaced by `***`.
    pub(crate) fn clean(&self, text: &str) -> String {
        let mut text = printable(text);
        for secret in &*lock(&self.secrets) {
            text = text.replace(&**secret, MARK);
        }
        for begins in [PREFIX, redisson::FAMILY] {
            let mut parts = text.split(begins);
            let mut clean = parts.next().unwrap_or_default().to_owned();
            for part in parts {
                clean.push_str(MARK);
                clean.push_str(part.trim_start_matches(is_token_char));
            }
            text = clean;
        }
        text.chars().take(LONGEST_REASON).collect::<String>().trim().to_owned()
    }
}

fn printable(text: &str) -> String {
    text.chars().filter(|c| !is_unprintable(*c)).collect()
}

fn is_token_char(c: char) -> bool {
    c.is_ascii_hexdigit() || matches!(c, '-' | ':')
}

/// Returns what to do about an error, if the server's text does not say it. Empty if the cause is
/// unknown.
fn hint(error: &ServerError) -> String {
    if matches!(error.code(), "MOVED" | "ASK") {
        "; it is part of a cluster: write `redis+cluster://host:port`".to_owned()
    } else if has_code(error, "READONLY") {
        "; it is a replica: name the primary, or the sentinels with `redis+sentinel://host,host,host/master-name`".to_owned()
    } else if let Some(command) = unknown_command(error) {
        match &*command {
            "WAIT" => "; this service has no `WAIT`: leave out `replica_acks`".to_owned(),
            "ROLE" => "; this service has no `ROLE`, which distinguishes a primary from a replica: write `redis://host:port`, \
                       without sentinels and cluster"
                .to_owned(),
            command => format!("; this service has no `{command}`, which locks need"),
        }
    } else if is_lacking(error) {
        "; this service lacks a command that locks need; `dlock doctor` names it".to_owned()
    } else if forbids(error) && error.details().is_some_and(|text| text.contains("'wait'")) {
        "; allow it `+wait`, or leave out `replica_acks`".to_owned()
    } else if forbids(error) {
        "; `dlock doctor` says what to allow".to_owned()
    } else {
        String::new()
    }
}

/// Returns the name, in capitals, of the command that the server does not know, if it names one.
fn unknown_command(error: &ServerError) -> Option<String> {
    let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
    let (_, rest) =
        ["nknown command ", "nsupported command "].iter().find_map(|words| text.split_once(words))?;
    let quote = rest.chars().next().filter(|first| matches!(first, '\'' | '`' | '"'))?;
    let name = rest.get(1..)?.split(quote).next()?;
    let is_name = !name.is_empty() && name.len() <= 20 && name.chars().all(|c| c.is_ascii_alphabetic());
    is_name.then(|| name.to_ascii_uppercase())
}

/// Returns `true` if a script called a command that the server does not have.
fn is_lacking(error: &ServerError) -> bool {
    let words = ["nknown Redis command", "nknown command called from script"];
    error.details().is_some_and(|text| words.iter().any(|words| text.contains(words)))
}

/// Returns `true` if `EVALSHA` is missing or forbidden: nothing ran, and `EVAL` may work.
pub(crate) fn lacks_evalsha(value: &Value) -> bool {
    let Value::ServerError(error) = value else { return false };
    let is_not_allowed = || {
        error.code() == "NOPERM"
            && error.details().is_some_and(|text| text.to_ascii_lowercase().contains("'evalsha'"))
    };
    unknown_command(error).is_some_and(|name| name == "EVALSHA") || is_not_allowed()
}

/// Returns `true` if an error has this code. Older servers put the code of an error inside a script
/// after another code.
fn has_code(error: &ServerError, code: &str) -> bool {
    error.code() == code
        || error.details().is_some_and(|text| text.split([' ', '-']).any(|word| word == code))
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

/// Returns `true` if the script of a command publishes, so it needs the prefix of the channels.
fn publishes(command: Command) -> bool {
    command.is_release() || matches!(command, Command::ForceRelease | Command::Yield { .. })
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

/// Errors that a retry does not change.
const LASTING: [&str; 5] = ["NOPERM", "WRONGPASS", "MOVED", "ASK", "CROSSSLOT"];

/// Shorter secrets appear in many words by chance, and the marks would reveal them.
const SHORTEST_SECRET: usize = 4;

/// As many as two reconnects use.
const KEPT_SECRETS: usize = 4;

const LONGEST_REASON: usize = 200;

/// Replaces removed text.
const MARK: &str = "***";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_in_the_slot_of_its_lock() {
        assert_eq!(counter("dlock:order:7"), "{dlock:order:7}##token");
        assert_eq!(counter("dlock:{order}:7"), "dlock:{order}:7##token");
    }

    #[test]
    fn an_error_contains_a_hint() {
        let server = Redacted::new("h:1");
        for (code, text, hint) in [
            ("MOVED", "15123 h:2", "`redis+cluster://host:port`"),
            ("READONLY", "You can't write against a read only replica.", "name the primary"),
            ("NOPERM", "this user has no permissions to run the 'set' command", "`dlock doctor`"),
            ("ERR", "The user executing the script can't run this command", "`dlock doctor`"),
            ("ERR", "unknown command 'WAIT', with args beginning with: '0' '1' ", "leave out `replica_acks`"),
            ("ERR", "unknown command `WAIT`, with args beginning with: `0`", "leave out `replica_acks`"),
            ("ERR", "unsupported command 'wait'", "leave out `replica_acks`"),
            ("NOPERM", "this user has no permissions to run the 'wait' command", "leave out `replica_acks`"),
            ("ERR", "unknown command 'EVAL', with args beginning with: ", "no `EVAL`, which locks need"),
            ("ERR", "unknown command 'role', with args beginning with: ", "without sentinels and cluster"),
            ("ERR", "Unknown Redis command called from script", "lacks a command"),
        ] {
            let answer = redis::parse_redis_value(format!("-{code} {text}\r\n").as_bytes());
            let Ok(Value::ServerError(error)) = answer else { panic!("{answer:?} is not an error") };

            let failure = server.failure(&error);

            assert!(
                failure.reason.contains(text.trim_end()) && failure.reason.contains(hint),
                "{}",
                failure.reason
            );
        }
    }

    #[test]
    fn an_unknown_command_does_not_hint_at_sentinels() {
        let server = Redacted::new("h:1");
        for text in
            ["unknown command 'WAIT'", "unknown command 'SCRIPT'", "unknown command 'GET'", "unknown command"]
        {
            let answer = redis::parse_redis_value(format!("-ERR {text}\r\n").as_bytes());
            let Ok(Value::ServerError(error)) = answer else { panic!("{answer:?} is not an error") };

            assert!(!server.failure(&error).reason.contains("sentinel"), "{text}");
        }
    }

    #[test]
    fn only_a_server_that_names_evalsha_lacks_it() {
        for (line, lacks) in [
            ("ERR unknown command 'EVALSHA', with args beginning with: 'a'", true),
            ("ERR unknown command `evalsha`, with args beginning with: `a`", true),
            ("NOPERM User x has no permissions to run the 'evalsha' command", true),
            ("NOPERM User x has no permissions to run the 'eval' command", false),
            ("ERR unknown command 'EVAL', with args beginning with: 'EVALSHA'", false),
            ("NOSCRIPT No matching script. Please use EVAL.", false),
        ] {
            let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes());

            assert_eq!(value.as_ref().map(lacks_evalsha), Ok(lacks), "{line}");
        }
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
            let Ok(Value::ServerError(error)) = redis::parse_redis_value(format!("-{line}\r\n").as_bytes())
            else {
                panic!("{line} is not an error")
            };

            let (may_have_run, failure) = match server.reply(&error) {
                Reply::Refused(failure) => (false, failure),
                Reply::Unknown(failure) => (true, failure),
                other => panic!("{line}: {other:?}"),
            };

            assert_eq!((may_have_run, failure.kind), (has_run, FailureKind::Lasting), "{line}");
        }
    }

    #[test]
    fn error_texts_contain_no_secrets_tokens_or_control_chars() {
        let server = Redacted::new("h:1");
        server.hide("hunter2");

        let clean = server.clean(
            "ERR \r\n\u{1b}[31mhunter2 'dl2-0123456789abcdef000000000001' '646c6f63-6b31-8012-8345-006789abcdef:12' end",
        );

        assert_eq!(clean, "ERR [31m*** '***' '***' end");
    }

    #[test]
    fn removed_text_does_not_join_its_surroundings_to_a_secret() {
        let server = Redacted::new("h:1");
        server.hide("hunter2");

        for text in ["hun\0\0ter2", "hun\r\nter2", "hundl2-ter2", "hun646c6f63-6b31-ter2"] {
            let clean = server.clean(text);
            assert!(!clean.contains("hunter2"), "{text:?} is shown as {clean}");
        }
    }

    #[test]
    fn a_secret_with_a_control_character_is_hidden() {
        let server = Redacted::new("h:1");
        server.hide("hun\nter2");

        assert_eq!(server.clean("it is hun\nter2, or hunter2"), "it is ***, or ***");
    }
}
