//! The commands that each encoding sends, and how it reads the replies.

use std::time::Duration;

use redis::{Pipeline, Value};

use super::scripts::Loaded;
use super::*;
use crate::backend::Request;
use crate::backend::redis::encoding::codec::{counter, error_reply, fence, millis, time_to_live};
use crate::backend::redis::encoding::plain::PlainEncoding;
use crate::backend::redis::namespaces::Namespaces;
use crate::backend::redis::tests::resp;
use crate::backend::redis::transport::redacted::Redacted;
use crate::bounds::{LAST_FENCE, LAST_FENCE_OF_REDISSON, LONGEST_VALUE};
use crate::layout::Publish;
use crate::protocol::command::{Command, EnqueueMode, Reply};
use crate::protocol::foreign_clients::FleetHold;
use crate::token::{Token, TokenSource};

const KEY: &str = "dlock:k";
const LEASE: Duration = Duration::from_secs(1);
const ACQUIRE: Command = Command::Acquire { lease: LEASE };
const JOIN: Command = Command::Enqueue { lease: LEASE, mode: EnqueueMode::Join };
const RECHECK: Command = Command::Enqueue { lease: LEASE, mode: EnqueueMode::Recheck };
const TRY_ONLY: Command = Command::Enqueue { lease: LEASE, mode: EnqueueMode::TryOnly };
const RENEW: Command = Command::Renew { lease: LEASE };
const SET_TTL: Command = Command::SetTtl { ttl: LEASE };

fn redisson() -> &'static RedissonEncoding {
    RedissonEncoding::with_publish(Publish::Both, true)
}

/// Returns the first token of a process, and the second.
fn tokens() -> [Token; 2] {
    let tokens = TokenSource::of_process(1);
    [tokens.next(), tokens.next()]
}

fn request(command: Command) -> Request {
    Request::new(KEY.into(), tokens()[0], command)
}

fn r#yield() -> Command {
    Command::Yield { next: tokens()[1], fleet_hold: FleetHold::of(Duration::from_millis(20)) }
}

/// Returns the commands of a request, in one line each.
fn sent(encoding: &dyn LockEncoding, command: Command, extra: Option<&'static str>) -> String {
    let scripts =
        "enqueue renew set_ttl release release_without_handoff force_release withdraw yield fence inspect";
    let loaded = Loaded::new(scripts.split(' ').map(str::to_owned).collect());
    let parameters = ScriptParameters {
        namespaces: &Namespaces::new("dlock"),
        times: ScriptTimes { grant_lease: Duration::from_secs(5), fence_ttl: Duration::from_secs(60) },
        loaded: Some(&loaded),
        extra,
    };
    let mut pipeline = Pipeline::new();
    encoding.encode(&request(command), &parameters, &mut pipeline);
    let command_line = |command: &redis::Cmd| {
        let words = command.args_iter().map(|word| match word {
            redis::Arg::Simple(word) => String::from_utf8_lossy(word).into_owned(),
            _ => "?".to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    };
    pipeline.cmd_iter().map(command_line).collect::<Vec<_>>().join("\n")
}

/// Returns a reply without the reason of a failure.
fn brief(reply: &Reply) -> String {
    match reply {
        Reply::Refused(failure) => format!("refused: {:?}", failure.kind),
        Reply::Unknown(failure) => format!("unknown: {:?}", failure.kind),
        reply => format!("{reply:?}"),
    }
}

fn read(encoding: &dyn LockEncoding, command: Command, value: &Value) -> String {
    brief(&encoding.decode(&request(command), value, &Redacted::new("h:1")))
}

fn text(text: impl AsRef<[u8]>) -> Value {
    Value::BulkString(text.as_ref().to_vec())
}

fn pair(first: i64, second: i64) -> Value {
    Value::Array(vec![Value::Int(first), Value::Int(second)])
}

#[test]
fn locks_that_are_strings_use_these_commands() {
    let [token, next] = tokens();
    let counter = "{dlock:k}##token";
    let fleet_hold = FleetHold::of(Duration::from_millis(20));
    for (command, expected) in [
        (ACQUIRE, format!("SET {KEY} {token} NX PX 1000")),
        (Command::Verify, format!("GETRANGE {KEY} 0 {LONGEST_VALUE}")),
        (JOIN, format!("EVALSHA enqueue 1 {KEY} {token} 1000 first")),
        (RECHECK, format!("EVALSHA enqueue 1 {KEY} {token} 1000 again")),
        (TRY_ONLY, format!("EVALSHA enqueue 1 {KEY} {token} 1000 peek")),
        (RENEW, format!("EVALSHA renew 1 {KEY} {token} 1000")),
        (SET_TTL, format!("EVALSHA set_ttl 1 {KEY} {token} 1000")),
        (Command::RELEASE, format!("EVALSHA release 1 {KEY} {token} CHANNEL 5000")),
        (Command::Release { fleet_hold }, format!("EVALSHA release 1 {KEY} {token} CHANNEL 5000 +20")),
        (Command::ReleaseWithoutHandoff, format!("EVALSHA release_without_handoff 1 {KEY} {token} CHANNEL")),
        (Command::ForceRelease, format!("EVALSHA force_release 1 {KEY} {token} CHANNEL 5000")),
        (Command::Withdraw, format!("EVALSHA withdraw 1 {KEY} {token} CHANNEL 5000")),
        (r#yield(), format!("EVALSHA yield 1 {KEY} {token} CHANNEL 5000 {next} +20")),
        (Command::Fence, format!("EVALSHA fence 2 {KEY} {counter} {token} 60000")),
        (Command::RaiseFence { fence: 7 }, format!("EVALSHA fence 2 {KEY} {counter} {token} 60000 7")),
        (Command::Inspect, format!("EVALSHA inspect 2 {KEY} {counter} {token}")),
        (Command::Ping, "PING".to_owned()),
    ] {
        let with = |channel: &str| expected.replace("CHANNEL", channel);
        assert_eq!(sent(&NativeEncoding, command, None), with("dlock:grant:"));
        assert_eq!(sent(&PlainEncoding, command, None), with("dlock:free:"));
    }
    assert_eq!(
        sent(&NativeEncoding, RENEW, Some("read")),
        format!("EVALSHA renew 1 {KEY} {token} 1000 read")
    );
}

#[test]
fn locks_of_redisson_use_these_commands() {
    let owner = "646c6f63-6b31-8000-8000-000000000001";
    let owner = format!("{owner}:{}", tokens()[0].number());
    let (channel, counter) =
        (format!("redisson_lock__channel:{{{KEY}}}"), format!("redisson_lock_token:{{{KEY}}}"));
    for (command, expected) in [
        (ACQUIRE, format!("EVALSHA enqueue 1 {KEY} {owner} 1000")),
        (JOIN, format!("EVALSHA enqueue 1 {KEY} {owner} 1000")),
        (Command::Verify, format!("HEXISTS {KEY} {owner}")),
        (RENEW, format!("EVALSHA renew 1 {KEY} {owner} 1000")),
        (SET_TTL, format!("EVALSHA set_ttl 1 {KEY} {owner} {channel} both 1000")),
        (Command::RELEASE, format!("EVALSHA release 1 {KEY} {owner} {channel} both")),
        (Command::ForceRelease, format!("EVALSHA force_release 1 {KEY} {owner} {channel} both")),
        (Command::Withdraw, format!("EVALSHA withdraw 1 {KEY} {owner} {channel} both")),
        (r#yield(), format!("EVALSHA yield 1 {KEY} {owner} {channel} both")),
        (Command::Fence, format!("EVALSHA fence 2 {KEY} {counter} {owner}")),
        (Command::Inspect, format!("EVALSHA inspect 2 {KEY} {counter} {owner}")),
        (Command::Ping, "PING".to_owned()),
    ] {
        assert_eq!(sent(redisson(), command, None), expected);
    }
    assert_eq!(sent(redisson(), RENEW, Some("write")), format!("EVALSHA renew 1 {KEY} {owner} 1000 write"));
}

#[test]
fn replies_about_locks_that_are_strings_are_read() {
    let [token, other] = tokens();
    let unexpected = "unknown: Passing";
    let info = |fence: u64| {
        Value::Array(vec![text(token.to_string()), Value::Int(3), Value::Int(1_500), text(fence.to_string())])
    };
    let longest = format!("{token:x<width$}", token = token.to_string(), width = LONGEST_VALUE);
    for (command, value, expected) in [
        (ACQUIRE, Value::Okay, "Owner"),
        (ACQUIRE, Value::Nil, "Contended"),
        (ACQUIRE, Value::Int(1), unexpected),
        (Command::Ping, Value::SimpleString("PONG".into()), "Owner"),
        (Command::Ping, Value::Int(1), unexpected),
        (JOIN, pair(1, 0), "Owner"),
        (JOIN, pair(2, 1_500), "Queued { ttl: Some(1.5s) }"),
        (JOIN, pair(3, -1), "NotQueued { ttl: None }"),
        (JOIN, pair(0, 0), "Absent"),
        (JOIN, pair(4, 0), unexpected),
        (JOIN, Value::Int(1), unexpected),
        (r#yield(), pair(3, 7), "NotQueued { ttl: Some(7ms) }"),
        (r#yield(), Value::Int(2), "Yielded"),
        (r#yield(), Value::Int(1), "Owner"),
        (r#yield(), Value::Int(0), "NotOwner"),
        (Command::Verify, text(token.to_string()), "Owner"),
        (Command::Verify, text(format!("{token}{other}")), "Owner"),
        (Command::Verify, text(format!("{other}{token}")), "NotOwner"),
        (Command::Verify, text(&longest), "Owner"),
        (Command::Verify, text(format!("{longest}x")), "NotOwner"),
        (Command::Verify, Value::Int(1), unexpected),
        (Command::Inspect, Value::Int(0), "Info(None)"),
        (Command::Inspect, Value::Int(1), unexpected),
        (Command::Inspect, pair(0, 0), unexpected),
        (RENEW, Value::Int(1), "Owner"),
        (RENEW, Value::Int(0), "NotOwner"),
        (RENEW, Value::Int(2), unexpected),
        (RENEW, Value::Okay, unexpected),
        (Command::RELEASE, Value::Int(1), "Owner"),
        (Command::Fence, text("7"), "Fenced(7)"),
        (Command::RaiseFence { fence: 7 }, text("8"), "Fenced(8)"),
        (Command::Fence, text((LAST_FENCE + 1).to_string()), unexpected),
        (Command::Fence, Value::Int(-1), "refused: FencingCounter"),
        (Command::RaiseFence { fence: 7 }, Value::Int(-1), "refused: FencingCounter"),
        (Command::Fence, Value::Int(0), "NotOwner"),
        (Command::Fence, Value::Int(1), unexpected),
        (Command::Call, Value::Int(1), unexpected),
    ] {
        assert_eq!(read(&NativeEncoding, command, &value), expected, "{command:?}: {value:?}");
        assert_eq!(read(&PlainEncoding, command, &value), expected, "{command:?}: {value:?}");
    }
    assert_eq!(
        read(&NativeEncoding, Command::Inspect, &info(LAST_FENCE)),
        format!(
            "Info(Some(RecordInfo {{ holder: Some(ProcessId(..)), waiters: 3, ttl: Some(1.5s), \
             fence: Some({LAST_FENCE}) }}))"
        )
    );
    assert!(read(&NativeEncoding, Command::Inspect, &info(LAST_FENCE + 1)).contains("fence: None"));
}

#[test]
fn replies_about_locks_of_redisson_are_read() {
    let unexpected = "unknown: Passing";
    let owner = format!("646c6f63-6b31-8000-8000-000000000001:{}", tokens()[0].number());
    let info = |holder: &str| Value::Array(vec![text(holder), Value::Int(1_500), text("7")]);
    for (command, value, expected) in [
        (ACQUIRE, pair(1, 0), "Owner"),
        (ACQUIRE, pair(3, 5), "Contended"),
        (ACQUIRE, pair(2, 5), unexpected),
        (ACQUIRE, Value::Int(1), unexpected),
        (JOIN, pair(1, 0), "Owner"),
        (JOIN, pair(3, 5), "NotQueued { ttl: Some(5ms) }"),
        (Command::Verify, Value::Int(1), "Owner"),
        (Command::Verify, Value::Int(0), "NotOwner"),
        (Command::Verify, text(tokens()[0].to_string()), unexpected),
        (Command::Fence, text((LAST_FENCE + 1).to_string()), "Fenced(9007199254740992)"),
        (Command::Fence, text(LAST_FENCE_OF_REDISSON.to_string()), "Fenced(9223372036854775807)"),
        (Command::Fence, text((LAST_FENCE_OF_REDISSON + 1).to_string()), unexpected),
        (Command::Fence, Value::Int(-1), "refused: FencingCounter"),
        (Command::Fence, Value::Int(0), "NotOwner"),
        (RENEW, Value::Int(1), "Owner"),
        (Command::Inspect, Value::Int(0), "Info(None)"),
        (
            Command::Inspect,
            info(&owner),
            "Info(Some(RecordInfo { holder: Some(ProcessId(..)), waiters: 0, ttl: Some(1.5s), fence: Some(7) }))",
        ),
        (
            Command::Inspect,
            info("2b130015-a627-4ad5-af85-0b847b19b029:12"),
            "Info(Some(RecordInfo { holder: None, waiters: 0, ttl: Some(1.5s), fence: Some(7) }))",
        ),
        (Command::Inspect, pair(0, 0), unexpected),
    ] {
        assert_eq!(read(redisson(), command, &value), expected, "{command:?}: {value:?}");
    }
    let spent = redisson().decode(&request(Command::Fence), &Value::Int(-1), &Redacted::new("h:1"));
    assert!(format!("{spent:?}").contains("redisson_lock_token:{dlock:k}"), "{spent:?}");
}

#[test]
fn only_errors_before_a_command_runs_are_refusals() {
    let server = Redacted::new("h:1");
    for (line, expected) in [
        ("OOM command not allowed when used memory > 'maxmemory'.", "refused: Passing"),
        ("READONLY You can't write against a read only replica.", "refused: Passing"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", "refused: Passing"),
        ("NOSCRIPT No matching script. Please use EVAL.", "refused: Passing"),
        ("ERR the proxy lost its server", "unknown: Passing"),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", "refused: WrongKind"),
        ("NOPERM this user has no permissions to run the 'set' command", "refused: Lasting"),
        ("ERR Unknown Redis command called from script script: f_1", "unknown: Lasting"),
    ] {
        let error = resp::server_error(line);

        assert_eq!(brief(&error_reply(&server, &error)), expected, "{line}");
        for encoding in [&NativeEncoding as &dyn LockEncoding, redisson()] {
            let value = Value::ServerError(error.clone());
            for command in [RENEW, ACQUIRE, Command::Verify, Command::Inspect] {
                assert_eq!(read(encoding, command, &value), expected, "{line}");
            }
        }
    }
}

#[test]
fn a_script_is_sent_as_text_if_its_name_is_unknown() {
    let parameters = ScriptParameters {
        namespaces: &Namespaces::new("dlock"),
        times: ScriptTimes { grant_lease: LEASE, fence_ttl: LEASE },
        loaded: None,
        extra: None,
    };
    for encoding in [&NativeEncoding as &dyn LockEncoding, &PlainEncoding, redisson()] {
        let mut pipeline = Pipeline::new();
        encoding.encode(&request(RENEW), &parameters, &mut pipeline);

        let packed = pipeline.get_packed_pipeline();
        let packed = String::from_utf8_lossy(&packed);
        let source = encoding.scripts()[1];
        assert!(packed.contains("EVAL\r\n") && packed.contains(source), "{packed}");
        assert!(encoding.scripts().iter().all(|source| source.contains("redis.call")));
    }
}

#[test]
fn only_waiters_without_a_queue_subscribe_first() {
    for (encoding, has_queue) in
        [(&NativeEncoding as &dyn LockEncoding, true), (&PlainEncoding, false), (redisson(), false)]
    {
        assert_eq!(encoding.has_queue(), has_queue, "{encoding:?}");
        for (command, waits) in [(JOIN, true), (RECHECK, true), (TRY_ONLY, false), (ACQUIRE, false)] {
            assert_eq!(encoding.listens_first(command), waits && !has_queue, "{encoding:?}: {command:?}");
        }
        assert!(encoding.wakeup_jitter().is_none_or(|jitter| !jitter.is_zero()));
    }
}

#[test]
fn a_release_is_announced_on_a_channel_of_its_key() {
    let channel = |encoding: &dyn LockEncoding| encoding.release_channel(&Namespaces::new("dlock"), KEY);

    assert_eq!(channel(&NativeEncoding), None);
    assert_eq!(channel(&PlainEncoding).as_deref(), Some("dlock:free:dlock:k"));
    assert_eq!(channel(redisson()).as_deref(), Some("redisson_lock__channel:{dlock:k}"));
}

#[test]
fn names_of_other_data_are_checked_only_if_it_is_used() {
    let name = |encoding: &dyn LockEncoding, command| {
        encoding.other_data_and_problem(&request(command)).map(|(name, problem)| {
            assert!(problem.contains("in another slot"), "{problem}");
            name
        })
    };

    assert_eq!(name(&NativeEncoding, Command::Fence).as_deref(), Some("{dlock:k}##token"));
    assert_eq!(name(&NativeEncoding, JOIN), None);
    assert_eq!(name(&PlainEncoding, Command::Fence), None);
    let channel = "redisson_lock__channel:{dlock:k}";
    assert_eq!(name(redisson(), JOIN).as_deref(), Some(channel));
    assert_eq!(name(redisson(), Command::Fence).as_deref(), Some(channel));
    assert_eq!(name(redisson(), Command::Ping), None);
    assert_eq!(name(redisson(), Command::Call), None);
}

#[test]
fn releases_are_published_as_redisson_would() {
    for (publish, in_cluster, expected) in [
        (Publish::Auto, true, Publish::Auto),
        (Publish::Auto, false, Publish::Publish),
        (Publish::Publish, true, Publish::Publish),
        (Publish::Spublish, false, Publish::Spublish),
        (Publish::Both, true, Publish::Both),
    ] {
        let settings = Settings { layout: Layout::Redisson, publish, ..Settings::default() };

        assert_eq!(of_settings(&settings, in_cluster).publish(), expected, "{publish:?} {in_cluster}");
    }
    assert!(of_settings(&Settings::default(), true).has_queue());
    assert_eq!(PlainEncoding.publish(), Publish::Publish);
}

#[test]
fn scripts_get_the_configured_times() {
    let mut settings = Settings { fence_ttl: Duration::from_secs(3_600), ..Settings::default() };
    settings.rules.grant_lease = Duration::from_millis(700);

    let ScriptTimes { grant_lease, fence_ttl } = ScriptTimes::of(&settings);

    assert_eq!((grant_lease.as_millis(), fence_ttl.as_secs()), (700, 3_600));
}

#[test]
fn numbers_are_read_and_written_at_their_bounds() {
    assert_eq!([Duration::ZERO, Duration::from_micros(1_999), LEASE].map(millis), [1, 1, 1_000]);
    assert_eq!(millis(Duration::MAX), u64::MAX);
    assert_eq!(
        [-2, -1, 0, 5].map(time_to_live),
        [None, None, Some(0), Some(5)].map(|ms| { ms.map(Duration::from_millis) })
    );
    assert_eq!(fence(b"9", 9), Some(9));
    assert_eq!([fence(b"10", 9), fence(b"-1", 9), fence(b"", 9), fence(b"\xff", 9)], [None; 4]);
    assert_eq!(counter("a{}b"), "{a{}b}##token");
    assert_eq!(counter("a{b"), "{a{b}##token");
}
