//! Commands as a Redis understands them, and its answers as the engine does; where locks are strings.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Cmd, Pipeline, ServerError, Value};

use crate::backend::Request;
use crate::backend::redis::encoding::LockEncoding;
use crate::backend::redis::encoding::redisson;
use crate::backend::redis::encoding::scripts::{Loaded, Script};
use crate::backend::redis::namespaces::Namespaces;
use crate::bounds::{LAST_FENCE, LONGEST_VALUE};
use crate::key::MARKER;
use crate::printable::is_unprintable;
use crate::protocol::command::{Command, EnqueueMode, Failure, FailureKind, RecordInfo, Reply};
use crate::protocol::foreign_clients::FleetHold;
use crate::sync::lock;
use crate::token::{PREFIX, Token};

/// Adds a request to a pipeline; with `loaded` by its script's name, else by its text. `besides` is what its script is to do
/// besides: `write` in any case where the answer is "ours", or `read` the key last.
pub(crate) fn encode(
    layout: LockEncoding,
    request: &Request,
    namespaces: &Namespaces,
    grant_lease: Duration,
    loaded: Option<&Loaded>,
    besides: Option<&str>,
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
            // As in the scripts: no more than shows that a value is longer than a full queue. Another client may have written 512 MB.
            let mut get = Cmd::with_capacity(4, key.len() + 24);
            get.arg("GETRANGE").arg(&**key).arg(0).arg(LONGEST_VALUE);
            pipeline.add_command(get);
            return;
        }
        Command::Ping => {
            pipeline.add_command(redis::cmd("PING"));
            return;
        }
        Command::Enqueue { .. } => (Script::Enqueue, 1),
        Command::Renew { .. } => (Script::Renew, 1),
        Command::SetTtl { .. } => (Script::Keep, 1),
        Command::Release | Command::ReleaseWithFleetHold { .. } => (Script::Release, 1),
        Command::ReleaseWithoutHandoff => (Script::Free, 1),
        Command::ForceRelease => (Script::ForceRelease, 1),
        Command::Withdraw => (Script::Leave, 1),
        Command::Yield { .. } => (Script::Yield, 1),
        Command::Fence | Command::RaiseFence { .. } => (Script::Fence, 2),
        Command::Inspect => (Script::Inspect, 1),
    };
    let mut call = script.call(layout, loaded);
    call.arg(keys).arg(&**key);
    if let Command::Fence | Command::RaiseFence { .. } = command {
        call.arg(counter(key));
    }
    call.arg(&token[..]);
    if tells(*command) {
        let namespace = namespaces.of_key(key);
        call.arg(if layout == LockEncoding::Plain { namespace.releases() } else { namespace.grants() });
    }
    match command {
        Command::Acquire { .. }
        | Command::Verify
        | Command::ReleaseWithoutHandoff
        | Command::Inspect
        | Command::Ping => {}
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
            call.arg(millis(grant_lease));
        }
        Command::ReleaseWithFleetHold { fleet_hold } => {
            call.arg(millis(grant_lease));
            tell(*fleet_hold, &mut call);
        }
        Command::Yield { next, fleet_hold } => {
            call.arg(millis(grant_lease)).arg(&next.written()[..]);
            tell(*fleet_hold, &mut call);
        }
        Command::Fence => {
            call.arg(millis(COUNTER_LIFE));
        }
        Command::RaiseFence { fence } => {
            call.arg(millis(COUNTER_LIFE)).arg(*fence);
        }
    }
    if let Some(besides) = besides {
        call.arg(besides);
    }
    pipeline.add_command(call);
}

/// Reads an answer. One that no Redis would give may stand for a command that ran: it is "unknown".
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
            let is_ours = value.len() <= LONGEST_VALUE && value.starts_with(&request.token.written());
            Some(if is_ours { Reply::Owner } else { Reply::NotOwner })
        }
        (Command::Inspect, Value::Int(0)) => Some(Reply::Info(None)),
        (Command::Inspect, Value::Array(seen)) => sight(seen).map(|sight| Reply::Info(Some(sight))),
        (
            Command::Acquire { .. }
            | Command::Enqueue { .. }
            | Command::Verify
            | Command::Inspect
            | Command::Ping,
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

/// Returns what an answer means that no Redis would give.
pub(crate) fn no_answer(server: &Redacted) -> Reply {
    let reason = format!("redis at {server} gave an answer that no redis gives");
    Reply::Unknown(Failure::new(FailureKind::Passing, reason))
}

/// Reads a fencing token; one above `last` is none.
pub(crate) fn fenced(text: &[u8], last: u64) -> Option<Reply> {
    let token = std::str::from_utf8(text).ok()?.parse().ok()?;
    (token <= last).then_some(Reply::Fenced(token))
}

/// Returns what it means that `counter` has no next number up to `last`.
pub(crate) fn no_fence(counter: &str, last: u64, server: &Redacted) -> Reply {
    let reason = format!(
        "its counter `{}` in redis at {server} is no number below {last}; delete that key to restart at the server's time, \
         and have the resource forget the highest token it has seen",
        printable(counter)
    );
    Reply::Refused(Failure::new(FailureKind::FencingCounter, reason))
}

/// Reads what an inspection saw.
fn sight(seen: &[Value]) -> Option<RecordInfo> {
    let [Value::BulkString(holder), Value::Int(waiters), Value::Int(ttl)] = seen else { return None };
    let holder = std::str::from_utf8(holder).ok().and_then(Token::parse).map(Token::process);
    Some(RecordInfo { holder, waiters: usize::try_from(*waiters).ok()?, ttl: time_to_live(*ttl) })
}

/// Returns what a server says in text.
pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// Returns whether the script is not known to the server, so that nothing ran.
pub(crate) fn is_unknown_script(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

/// Returns whether an answer says that this user may not do it. A server that has a command renamed or taken away, as clouds do, does
/// not know it.
pub(crate) fn is_forbidden(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if forbids(error))
}

fn forbids(error: &ServerError) -> bool {
    let words =
        ["nknown command", "nknown Redis command", "permission", "user executing the script", "ACL failure"];
    says(error, "NOPERM")
        || unknown_command(error).is_some()
        || error.details().is_some_and(|said| words.iter().any(|words| said.contains(words)))
}

/// Returns whether an answer says that this server will not do at all: another must be found, or it must come to itself.
pub(crate) fn is_out_of_service(value: &Value) -> bool {
    let Value::ServerError(error) = value else { return false };
    ["READONLY", "LOADING", "MASTERDOWN", "NOAUTH"].iter().any(|code| says(error, code))
}

/// A server, as it may be shown: its address, and what must not appear in what it says.
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

    /// Notes a password before it is sent. Where they change, each of our connections may have been made with another one.
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

    /// Turns an error that a server answered with into a reply.
    pub(crate) fn reply(&self, error: &ServerError) -> Reply {
        let failure = self.failure(error);
        // A script that called what it may not has done what stands before.
        let is_half_done = forbids(error) && error.code() != "NOPERM";
        let is_refused = failure.kind != FailureKind::Passing || PASSING.iter().any(|code| says(error, code));
        let did_not_run = is_refused && !is_half_done;
        if did_not_run { Reply::Refused(failure) } else { Reply::Unknown(failure) }
    }

    /// Turns what a server said into a failure.
    pub(crate) fn failure(&self, error: &ServerError) -> Failure {
        let kind = if says(error, "WRONGTYPE") {
            FailureKind::WrongKind
        } else if LASTING.iter().any(|code| says(error, code)) || forbids(error) {
            FailureKind::Lasting
        } else {
            FailureKind::Passing
        };
        Failure::new(kind, format!("redis at {self} answered: {}{}", self.said(error), hint(error)))
    }

    /// Returns the words of an error that a server answered with.
    pub(crate) fn said(&self, error: &ServerError) -> String {
        let details = error.details().unwrap_or_default();
        // Which line of our script it was concerns nobody who reads this.
        let details = details.split(" script: ").next().unwrap_or_default();
        self.clean(&format!("{} {details}", error.code()))
    }

    /// Returns `text` without secrets, tokens and control characters, cut to a length that a log line bears.
    ///
    /// What is taken out must not let what stands around it become a secret: control characters go first, and all else leaves a mark.
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
                clean.push_str(part.trim_start_matches(is_of_a_token));
            }
            text = clean;
        }
        text.chars().take(LONGEST_REASON).collect::<String>().trim().to_owned()
    }
}

fn printable(text: &str) -> String {
    text.chars().filter(|c| !is_unprintable(*c)).collect()
}

fn is_of_a_token(c: char) -> bool {
    c.is_ascii_hexdigit() || matches!(c, '-' | ':')
}

/// Returns what whoever reads an error should do, where the server's words do not say it. It follows from what the server names, and is
/// nothing where the cause is not known.
fn hint(error: &ServerError) -> String {
    if matches!(error.code(), "MOVED" | "ASK") {
        "; it is one of a cluster: write `redis+cluster://host:port`".to_owned()
    } else if says(error, "READONLY") {
        "; it is a replica: name the master, or the sentinels by `redis+sentinel://host,host,host/master-name`".to_owned()
    } else if let Some(command) = unknown_command(error) {
        match &*command {
            "WAIT" => "; this service has no `WAIT`: leave out `replica_acks`".to_owned(),
            "ROLE" => "; this service has no `ROLE`, by which a master is told from a replica: write `redis://host:port`, \
                       without sentinels and cluster"
                .to_owned(),
            command => format!("; this service has no `{command}`, which locks need"),
        }
    } else if is_lacking(error) {
        "; this service lacks a command that locks need, and `dlock doctor` names it".to_owned()
    } else if forbids(error) && error.details().is_some_and(|said| said.contains("'wait'")) {
        "; allow it `+wait`, or leave out `replica_acks`".to_owned()
    } else if forbids(error) {
        "; `dlock doctor` says what to allow".to_owned()
    } else {
        String::new()
    }
}

/// Returns the name of a command that the server does not know, in capitals, if it names one.
fn unknown_command(error: &ServerError) -> Option<String> {
    let said = format!("{} {}", error.code(), error.details().unwrap_or_default());
    let (_, rest) =
        ["nknown command ", "nsupported command "].iter().find_map(|words| said.split_once(words))?;
    let quote = rest.chars().next().filter(|first| matches!(first, '\'' | '`' | '"'))?;
    let name = rest.get(1..)?.split(quote).next()?;
    let is_name = !name.is_empty() && name.len() <= 20 && name.chars().all(|c| c.is_ascii_alphabetic());
    is_name.then(|| name.to_ascii_uppercase())
}

/// Returns `true` if a script called a command that the server does not have.
fn is_lacking(error: &ServerError) -> bool {
    let words = ["nknown Redis command", "nknown command called from script"];
    error.details().is_some_and(|said| words.iter().any(|words| said.contains(words)))
}

/// Returns `true` if the server lacks `EVALSHA`, or does not let this user call it: nothing ran, and `EVAL` may do.
pub(crate) fn lacks_evalsha(value: &Value) -> bool {
    let Value::ServerError(error) = value else { return false };
    let is_not_allowed = || {
        error.code() == "NOPERM"
            && error.details().is_some_and(|said| said.to_ascii_lowercase().contains("'evalsha'"))
    };
    unknown_command(error).is_some_and(|name| name == "EVALSHA") || is_not_allowed()
}

/// Returns whether an error has this code. Older servers put the code of an error inside a script behind one of their own.
fn says(error: &ServerError, code: &str) -> bool {
    error.code() == code
        || error.details().is_some_and(|text| text.split([' ', '-']).any(|word| word == code))
}

/// Returns the name of a lock's fencing counter. No key has this name, since none contains [`MARKER`].
///
/// It is in the lock's own slot of a cluster, unless the name has a `}` and no hash tag: no other name is in the slot of such a name by
/// its text. Without a namespace, `order` and `{order}` share a counter, which rises for both.
pub(crate) fn counter(key: &str) -> String {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    if tag.is_some_and(|tag| !tag.is_empty()) {
        format!("{key}{MARKER}token")
    } else {
        format!("{{{key}}}{MARKER}token")
    }
}

/// Returns whether the script of a command publishes, and is given what channels begin with.
fn tells(command: Command) -> bool {
    command.is_release() || matches!(command, Command::ForceRelease | Command::Yield { .. })
}

/// Adds what stands behind the lease in the message to the waiter who gets the lock.
fn tell(streak: FleetHold, call: &mut Cmd) {
    if let Some(held) = streak.millis() {
        call.arg(format!("+{held}"));
    }
}

pub(crate) fn time_to_live(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

/// Whole milliseconds, never none: Redis refuses a time to live of zero.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// A counter that nobody asked for a token in this time is forgotten; it restarts above every token it gave.
const COUNTER_LIFE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Errors that a Redis gives before it runs anything, and that may pass. Any other error may come from something in between, after
/// the command has run.
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

/// Errors that will be the same next time.
const LASTING: [&str; 5] = ["NOPERM", "WRONGPASS", "MOVED", "ASK", "CROSSSLOT"];

/// A shorter one stands in many words by chance, and its place among them would betray it.
const SHORTEST_SECRET: usize = 4;

/// As many as two reconnects use.
const KEPT_SECRETS: usize = 4;

const LONGEST_REASON: usize = 200;

/// Stands for what is not shown.
const MARK: &str = "***";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_stands_in_its_locks_slot() {
        assert_eq!(counter("dlock:order:7"), "{dlock:order:7}##token");
        assert_eq!(counter("dlock:{order}:7"), "dlock:{order}:7##token");
    }

    #[test]
    fn a_refusal_says_what_to_write() {
        let server = Redacted::new("h:1");
        for (code, said, hint) in [
            ("MOVED", "15123 h:2", "`redis+cluster://host:port`"),
            ("READONLY", "You can't write against a read only replica.", "name the master"),
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
            let answer = redis::parse_redis_value(format!("-{code} {said}\r\n").as_bytes());
            let Ok(Value::ServerError(error)) = answer else { panic!("{answer:?} is no error") };

            let failure = server.failure(&error);

            assert!(
                failure.reason.contains(said.trim_end()) && failure.reason.contains(hint),
                "{}",
                failure.reason
            );
        }
    }

    #[test]
    fn an_unknown_command_alone_is_no_reason_to_name_sentinels() {
        let server = Redacted::new("h:1");
        for said in
            ["unknown command 'WAIT'", "unknown command 'SCRIPT'", "unknown command 'GET'", "unknown command"]
        {
            let answer = redis::parse_redis_value(format!("-ERR {said}\r\n").as_bytes());
            let Ok(Value::ServerError(error)) = answer else { panic!("{answer:?} is no error") };

            assert!(!server.failure(&error).reason.contains("sentinel"), "{said}");
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
    fn what_is_forbidden_lasts_and_only_a_script_may_have_begun_before() {
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
                panic!("{line} is no error")
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
    fn what_a_server_says_is_shown_without_secrets_tokens_and_control_characters() {
        let server = Redacted::new("h:1");
        server.hide("hunter2");

        let clean = server.clean(
            "ERR \r\n\u{1b}[31mhunter2 'dl2-0123456789abcdef000000000001' '646c6f63-6b31-8012-8345-006789abcdef:12' end",
        );

        assert_eq!(clean, "ERR [31m*** '***' '***' end");
    }

    #[test]
    fn what_is_taken_out_does_not_join_what_stands_around_it_to_a_secret() {
        let server = Redacted::new("h:1");
        server.hide("hunter2");

        for text in ["hun\0\0ter2", "hun\r\nter2", "hundl2-ter2", "hun646c6f63-6b31-ter2"] {
            let clean = server.clean(text);
            assert!(!clean.contains("hunter2"), "{text:?} is shown as {clean}");
        }
    }

    #[test]
    fn a_secret_with_a_control_character_in_it_is_hidden_as_it_would_be_shown() {
        let server = Redacted::new("h:1");
        server.hide("hun\nter2");

        assert_eq!(server.clean("it is hun\nter2, or hunter2"), "it is ***, or ***");
    }
}
