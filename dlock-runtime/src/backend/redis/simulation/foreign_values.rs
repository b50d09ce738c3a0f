//! Measures how long a real server takes for each command on values that other clients can write,
//! and checks the replies.
//!
//! A script blocks the whole server, so each must take at most [`LONGEST_SCRIPT`] whatever the
//! value of a lock or its counter is.

use std::time::Duration;

use redis::{Pipeline, Value};

use crate::backend::Request;
use crate::backend::redis::encoding::native::NativeEncoding;
use crate::backend::redis::encoding::plain::PlainEncoding;
use crate::backend::redis::encoding::redisson::RedissonEncoding;
use crate::backend::redis::encoding::{LockEncoding, ScriptParameters, ScriptTimes};
use crate::backend::redis::namespaces::Namespaces;
use crate::backend::redis::simulation::contract::{OTHERS, Real, Server, pipeline};
use crate::backend::redis::transport::redacted::Redacted;
use crate::bounds::{LAST_FENCE, LAST_FENCE_OF_REDISSON, MAX_WAITERS};
use crate::layout::Publish;
use crate::protocol::command::{Command, EnqueueMode, FailureKind, Reply};
use crate::protocol::foreign_clients::FleetHold;
use crate::token::{Token, TokenSource};

const LONGEST_SCRIPT: Duration = Duration::from_millis(50);
const KEY: &str = "order:7";
const LEASE: Duration = Duration::from_secs(600);
/// The encodings with strings.
const STRINGS: [&dyn LockEncoding; 2] = [&NativeEncoding, &PlainEncoding];

fn redisson() -> &'static dyn LockEncoding {
    RedissonEncoding::with_publish(Publish::Publish, false)
}

/// A server and the token that all commands use.
struct Fixture {
    real: Real,
    token: Token,
    tokens: TokenSource,
}

impl Fixture {
    /// Starts a server if there is a binary.
    fn start() -> Option<Self> {
        let mut real = Real::start("foreign values in a real server")?;
        real.connect(0);
        real.connect(OTHERS);
        let tokens = TokenSource::of_process(1);
        let mut fixture = Self { real, token: tokens.next(), tokens };
        fixture.call(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
        Some(fixture)
    }

    fn call(&mut self, words: &[&str]) -> Value {
        self.real.ask(OTHERS, &pipeline(words))
    }

    /// Runs a script of the test.
    fn eval(&mut self, script: &str, key: &str, args: &[&str]) {
        let reply = self.call(&[&["EVAL", script, "1", key][..], args].concat());
        assert!(!matches!(reply, Value::ServerError(_)), "{script}: {reply:?}");
    }

    /// Makes the token the holder, with `waiters` tokens behind it that have no subscriber.
    fn hold_with(&mut self, waiters: usize) {
        let (token, dead) = (self.token.to_string(), self.tokens.next().to_string());
        let count = waiters.to_string();
        let write =
            "return redis.call('SET', KEYS[1], ARGV[1] .. string.rep(ARGV[2], ARGV[3]), 'PX', 600000)";
        self.eval(write, KEY, &[&token, &dead, &count]);
    }

    /// Sends a command, and returns the reply and the time that the server took.
    fn run(&mut self, encoding: &dyn LockEncoding, command: Command) -> (Reply, Duration) {
        let request = Request::new(KEY.into(), self.token, command);
        let mut question = Pipeline::new();
        let parameters = ScriptParameters {
            namespaces: &Namespaces::new("dlock"),
            times: ScriptTimes { grant_lease: Duration::from_secs(3), fence_ttl: Duration::from_secs(60) },
            loaded: None,
            extra: None,
        };
        encoding.encode(&request, &parameters, &mut question);
        let answer = self.real.ask(0, &question);
        let reply = encoding.decode(&request, &answer, &Redacted::new("h:1"));
        let Value::Array(entries) = self.call(&["SLOWLOG", "GET", "1"]) else { panic!("the log is a list") };
        let Some(Value::Array(entry)) = entries.first() else {
            panic!("every command is logged: {entries:?}")
        };
        let Some(Value::Int(micros)) = entry.get(2) else { panic!("{entry:?} has a duration") };
        (reply, Duration::from_micros(micros.unsigned_abs()))
    }

    /// Runs each command on the value that `write` writes, and asserts that the best of three runs
    /// is fast and the reply is expected.
    fn assert_quick(
        &mut self,
        encoding: &dyn LockEncoding,
        what: &str,
        commands: &[Command],
        mut write: impl FnMut(&mut Self),
        is_expected: impl Fn(Command, &Reply) -> bool,
    ) {
        for command in commands {
            let mut best = Duration::MAX;
            for _ in 0..3 {
                write(self);
                let (reply, took) = self.run(encoding, *command);
                assert!(is_expected(*command, &reply), "{command:?} over {what} in {encoding:?}: {reply:?}");
                best = best.min(took);
                if best <= LONGEST_SCRIPT / 10 {
                    break;
                }
            }
            assert!(best <= LONGEST_SCRIPT, "{command:?} over {what} in {encoding:?} took {best:?}");
        }
    }

    fn commands(&self) -> Vec<Command> {
        let enqueue = |mode| Command::Enqueue { lease: LEASE, mode };
        let fleet_hold = FleetHold::NEW;
        vec![
            Command::Acquire { lease: LEASE },
            enqueue(EnqueueMode::Join),
            enqueue(EnqueueMode::Recheck),
            enqueue(EnqueueMode::TryOnly),
            Command::Renew { lease: LEASE },
            Command::Verify,
            Command::SetTtl { ttl: LEASE },
            Command::RELEASE,
            Command::Release { fleet_hold },
            Command::ReleaseWithoutHandoff,
            Command::Withdraw,
            Command::Fence,
            Command::RaiseFence { fence: 1 },
            Command::Inspect,
            Command::Yield { next: self.tokens.next(), fleet_hold },
            Command::ForceRelease,
        ]
    }
}

/// Returns `true` if a reply is right for a foreign value, which only a forced release changes.
fn is_foreign(command: Command, reply: &Reply) -> bool {
    match command {
        Command::Acquire { .. } => matches!(reply, Reply::Contended),
        Command::Enqueue { mode: EnqueueMode::Recheck, .. } => {
            matches!(reply, Reply::Absent | Reply::NotQueued { .. })
        }
        Command::Enqueue { .. } => matches!(reply, Reply::NotQueued { .. }),
        Command::Inspect => matches!(reply, Reply::Info(Some(info)) if info.holder.is_none()),
        Command::ForceRelease => matches!(reply, Reply::Owner),
        _ => matches!(reply, Reply::NotOwner),
    }
}

fn is_wrong_kind(_: Command, reply: &Reply) -> bool {
    matches!(reply, Reply::Refused(failure) if failure.kind == FailureKind::WrongKind)
}

#[test]
fn values_longer_than_a_full_queue_are_foreign_and_cost_no_time() {
    let Some(mut fixture) = Fixture::start() else { return };
    for encoding in STRINGS {
        let commands = fixture.commands();
        for waiters in [MAX_WAITERS + 1, MAX_WAITERS + 2, 10_000, 100_000] {
            let what = format!("{waiters} waiters");
            fixture.assert_quick(
                encoding,
                &what,
                &commands,
                |fixture| fixture.hold_with(waiters),
                is_foreign,
            );
        }
        let ragged = |fixture: &mut Fixture| {
            fixture.hold_with(MAX_WAITERS);
            fixture.call(&["APPEND", KEY, "x"]);
        };
        fixture.assert_quick(encoding, "a byte behind a full queue", &commands, ragged, is_foreign);
    }
}

#[test]
fn an_empty_value_is_foreign() {
    let Some(mut fixture) = Fixture::start() else { return };
    for encoding in STRINGS {
        let commands = fixture.commands();
        let empty = |fixture: &mut Fixture| drop(fixture.call(&["SET", KEY, "", "PX", "600000"]));
        fixture.assert_quick(encoding, "an empty value", &commands, empty, is_foreign);
    }
}

#[test]
fn a_full_queue_of_dead_waiters_costs_no_time() {
    let Some(mut fixture) = Fixture::start() else { return };
    let commands = fixture.commands();
    let is_held = |command, reply: &Reply| match command {
        Command::Acquire { .. } => matches!(reply, Reply::Contended),
        Command::Enqueue { mode: EnqueueMode::TryOnly, .. } => matches!(reply, Reply::NotQueued { .. }),
        Command::Fence | Command::RaiseFence { .. } => matches!(reply, Reply::Fenced(_)),
        Command::Inspect => matches!(reply, Reply::Info(Some(info)) if info.waiters == MAX_WAITERS),
        _ => matches!(reply, Reply::Owner),
    };
    fixture.assert_quick(
        &NativeEncoding,
        "a full queue",
        &commands,
        |fixture| fixture.hold_with(MAX_WAITERS),
        is_held,
    );

    fixture.hold_with(MAX_WAITERS);
    fixture.run(&NativeEncoding, Command::RELEASE);
    assert_eq!(fixture.call(&["EXISTS", KEY]), Value::Int(0), "the dead waiters do not keep the lock");
}

#[test]
fn half_a_gigabyte_in_a_key_costs_no_time() {
    let Some(mut fixture) = Fixture::start() else { return };
    fixture.hold_with(0);
    let length = fixture.call(&["SETRANGE", KEY, "536870911", "x"]);
    assert_eq!(length, Value::Int(512 << 20));
    let mut commands = fixture.commands();
    let force_release = commands.pop();
    assert_eq!(force_release, Some(Command::ForceRelease));
    for encoding in STRINGS {
        fixture.assert_quick(encoding, "512 MB", &commands, |_| {}, is_foreign);
    }
    fixture.assert_quick(redisson(), "512 MB", &commands, |_| {}, is_wrong_kind);
    let (reply, took) = fixture.run(&NativeEncoding, Command::ForceRelease);
    assert!(matches!(reply, Reply::Owner) && took <= LONGEST_SCRIPT, "{reply:?} after {took:?}");
}

/// Writes a hash with a million fields.
const MILLION: &str = "for i = 1, 1000000, 1000 do local row = {} for j = i, i + 999 do row[#row + 1] = j row[#row + 1] = 1 end \
    redis.call('HSET', KEYS[1], unpack(row)) end return redis.call('PEXPIRE', KEYS[1], 600000)";

#[test]
fn a_million_fields_cost_no_time() {
    let Some(mut fixture) = Fixture::start() else { return };
    fixture.eval(MILLION, KEY, &[]);
    let commands = fixture.commands();
    for encoding in STRINGS {
        let is_refused = |command, reply: &Reply| match command {
            Command::Acquire { .. } => matches!(reply, Reply::Contended),
            _ => is_wrong_kind(command, reply),
        };
        fixture.assert_quick(encoding, "a million fields", &commands, |_| {}, is_refused);
    }
    let is_refused = |command, reply: &Reply| match command {
        Command::Acquire { .. } | Command::Enqueue { .. } | Command::Inspect | Command::ForceRelease => {
            is_wrong_kind(command, reply)
        }
        _ => matches!(reply, Reply::NotOwner),
    };
    fixture.assert_quick(redisson(), "a million fields", &commands, |_| {}, is_refused);
    let owner = owner(&mut fixture);
    let with_owner = |fixture: &mut Fixture| drop(fixture.call(&["HSET", KEY, &owner, "1"]));
    let is_left = |command, reply: &Reply| match command {
        Command::Inspect | Command::ForceRelease => is_wrong_kind(command, reply),
        Command::Fence => matches!(reply, Reply::Fenced(_)),
        Command::Yield { .. } => matches!(reply, Reply::NotQueued { .. }),
        _ => matches!(reply, Reply::Owner),
    };
    let commands: Vec<_> =
        commands.into_iter().filter(|command| !matches!(command, Command::RaiseFence { .. })).collect();
    fixture.assert_quick(redisson(), "a million fields and the owner", &commands, with_owner, is_left);
    fixture.run(redisson(), Command::RELEASE);
    assert_eq!(fixture.call(&["HLEN", KEY]), Value::Int(1_000_000), "foreign fields remain");
}

/// Returns the token in the format of an owner, read from a new lock. The present key is preserved.
fn owner(fixture: &mut Fixture) -> String {
    fixture.call(&["RENAME", KEY, "aside"]);
    let (reply, _) = fixture.run(redisson(), Command::Acquire { lease: LEASE });
    assert!(matches!(reply, Reply::Owner), "{reply:?}");
    let Value::Array(fields) = fixture.call(&["HKEYS", KEY]) else { panic!("a lock is a hash") };
    let Some(Value::BulkString(owner)) = fields.first() else { panic!("a lock has an owner") };
    let owner = String::from_utf8(owner.clone()).expect("text");
    fixture.call(&["DEL", KEY]);
    fixture.call(&["RENAME", "aside", KEY]);
    owner
}

#[test]
fn long_fields_and_values_of_a_hash_cost_no_time() {
    let Some(mut fixture) = Fixture::start() else { return };
    let commands: Vec<_> = fixture.commands();
    let is_foreign = |command, reply: &Reply| match command {
        Command::Acquire { .. } => matches!(reply, Reply::Contended),
        Command::Enqueue { .. } => matches!(reply, Reply::NotQueued { .. }),
        Command::Inspect | Command::ForceRelease => is_wrong_kind(command, reply),
        Command::Verify => matches!(reply, Reply::Owner | Reply::NotOwner),
        _ => matches!(reply, Reply::NotOwner),
    };
    let long = "local long = '1' while #long < 67108864 do long = long .. long end return redis.call('HSET', KEYS[1], ";
    fixture.eval(&format!("{long} long, 1)"), KEY, &[]);
    fixture.assert_quick(redisson(), "a field of 64 MB", &commands, |_| {}, is_foreign);
    let owner = owner(&mut fixture);
    fixture.call(&["DEL", KEY]);
    fixture.eval(&format!("{long} ARGV[1], long)"), KEY, &[&owner]);
    fixture.assert_quick(redisson(), "the owner's field with 64 MB", &commands, |_| {}, is_foreign);
}

#[test]
fn fencing_tokens_rise_to_their_bound_and_end_in_a_typed_error() {
    let Some(mut fixture) = Fixture::start() else { return };
    let last = |number: u64| number.to_string();
    let next = |number: u64| Some(number + 1);
    let far = 1 << 52; // above the clock's microseconds
    for (encoding, is_redisson) in
        [(&NativeEncoding as &dyn LockEncoding, false), (&PlainEncoding, false), (redisson(), true)]
    {
        let counter = if is_redisson { "redisson_lock_token:{order:7}" } else { "{order:7}##token" };
        let bound = if is_redisson { LAST_FENCE_OF_REDISSON } else { LAST_FENCE };
        let mut cases = vec![
            (last(far), next(far)),
            (last(far + 9), next(far + 9)),
            (last(LAST_FENCE - 1), next(LAST_FENCE - 1)),
            (last(LAST_FENCE), next(LAST_FENCE)),
            (last(LAST_FENCE + 1), next(LAST_FENCE + 1)),
            (last(LAST_FENCE + 2), next(LAST_FENCE + 2)),
            ("9223372036854775799".to_owned(), next(9_223_372_036_854_775_799)),
            (last(LAST_FENCE_OF_REDISSON - 1), next(LAST_FENCE_OF_REDISSON - 1)),
            (last(LAST_FENCE_OF_REDISSON), None),
            ("9223372036854775808".to_owned(), None),
            ("9999999999999999999".to_owned(), None),
            ("18446744073709551615".to_owned(), None),
            ("9".repeat(400), None),
        ];
        for text in [
            "", " ", "inf", "-inf", "nan", "1e308", "1e3", "-1", "-0", "+5", "007", "00", "0x10", "1.0",
            "12a", " 12", "12 ", "1\n", "text", "1_000", "\u{661}",
        ] {
            cases.push((text.to_owned(), None));
        }
        for (text, next) in cases {
            fixture.call(&["DEL", KEY, counter]);
            fixture.run(encoding, Command::Acquire { lease: LEASE });
            fixture.call(&["SET", counter, &text]);
            let issued = next.filter(|next| *next <= bound);

            let (reply, _) = fixture.run(encoding, Command::Fence);
            let after = fixture.call(&["GET", counter]);

            let expected = issued.map_or_else(|| text.clone(), |token| token.to_string());
            assert_eq!(after, Value::BulkString(expected.into_bytes()), "{text:?} in {encoding:?}");
            match (issued, reply) {
                (Some(token), Reply::Fenced(fenced)) => assert_eq!(fenced, token, "{text:?} in {encoding:?}"),
                (None, Reply::Refused(failure)) => {
                    assert_eq!(failure.kind, FailureKind::FencingCounter, "{text:?} in {encoding:?}");
                    assert!(failure.reason.contains(counter), "{}", failure.reason);
                }
                (_, reply) => panic!("{text:?} in {encoding:?}: {reply:?}"),
            }
        }
        for wrong in ["RPUSH", "SADD"] {
            fixture.call(&["DEL", counter]);
            fixture.call(&[wrong, counter, "1"]);
            let (reply, _) = fixture.run(encoding, Command::Fence);
            let is_spent =
                |failure: &crate::protocol::command::Failure| failure.kind == FailureKind::FencingCounter;
            assert!(matches!(&reply, Reply::Refused(failure) if is_spent(failure)), "{wrong}: {reply:?}");
        }
        fixture.call(&["DEL", counter]);
        let (first, _) = fixture.run(encoding, Command::Fence);
        let (second, _) = fixture.run(encoding, Command::Fence);
        assert!(
            matches!((&first, &second), (Reply::Fenced(a), Reply::Fenced(b)) if a < b),
            "{first:?} {second:?}"
        );
        fixture.call(&["SET", counter, "0"]);
        assert!(matches!(fixture.run(encoding, Command::Fence).0, Reply::Fenced(_)));
    }
}

#[test]
fn a_counter_of_a_hundred_megabytes_costs_no_time() {
    let Some(mut fixture) = Fixture::start() else { return };
    for (encoding, counter) in [
        (&NativeEncoding as &dyn LockEncoding, "{order:7}##token"),
        (redisson(), "redisson_lock_token:{order:7}"),
    ] {
        fixture.call(&["DEL", KEY]);
        fixture.run(encoding, Command::Acquire { lease: LEASE });
        fixture.call(&["SETRANGE", counter, "100000000", "1"]);
        let is_spent = |_, reply: &Reply| matches!(reply, Reply::Refused(failure) if failure.kind == FailureKind::FencingCounter);
        fixture.assert_quick(encoding, "a counter of 100 MB", &[Command::Fence], |_| {}, is_spent);
        fixture.call(&["DEL", counter]);
    }
}

#[test]
fn a_counter_is_raised_exactly_and_not_above_its_bound() {
    let Some(mut fixture) = Fixture::start() else { return };
    let counter = "{order:7}##token";
    for (stored, raised, expected) in [
        ("1", LAST_FENCE - 1, Some(LAST_FENCE - 1)),
        ("9007199254740990", 5, Some(LAST_FENCE - 1)),
        ("9007199254740991", LAST_FENCE - 2, Some(LAST_FENCE)),
        ("1", LAST_FENCE, Some(LAST_FENCE)),
        ("9007199254740992", 5, None),
        ("9223372036854775807", 5, None),
        ("inf", 5, None),
        ("-3", 5, None),
        ("1", LAST_FENCE + 1, None),
        ("1", u64::MAX, None),
    ] {
        fixture.call(&["SET", KEY, &fixture.token.to_string()]);
        fixture.call(&["SET", counter, stored]);

        let (reply, _) = fixture.run(&PlainEncoding, Command::RaiseFence { fence: raised });

        match (expected, reply) {
            (Some(expected), Reply::Fenced(fence)) => assert_eq!(fence, expected, "{stored} to {raised}"),
            (None, Reply::Refused(failure)) => assert_eq!(failure.kind, FailureKind::FencingCounter),
            (_, reply) => panic!("{stored} to {raised}: {reply:?}"),
        }
    }
}
