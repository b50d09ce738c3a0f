//! How long a real server takes for each command over values that other clients can write, and what it replies.
//!
//! A script blocks the whole server, so each must take at most [`LONGEST_SCRIPT`] whatever is under the name of a lock or of its counter.

use std::time::Duration;

use redis::{Pipeline, Value};

use crate::backend::Request;
use crate::backend::redis::encoding::LockEncoding;
use crate::backend::redis::encoding::codec::Redacted;
use crate::backend::redis::namespaces::Namespaces;
use crate::backend::redis::simulation::contract::{OTHERS, Real, Server, pipeline};
use crate::bounds::{LAST_FENCE, LAST_FENCE_OF_REDISSON, MAX_WAITERS};
use crate::layout::Publish;
use crate::protocol::command::{Command, EnqueueMode, FailureKind, Reply};
use crate::protocol::foreign_clients::FleetHold;
use crate::token::{Token, TokenSource};

const LONGEST_SCRIPT: Duration = Duration::from_millis(50);
const KEY: &str = "order:7";
const LEASE: Duration = Duration::from_secs(600);
const REDISSON: LockEncoding = LockEncoding::Redisson(Publish::Publish);

/// A server, and the token under which everything is asked of it.
struct Scene {
    real: Real,
    token: Token,
    tokens: TokenSource,
}

impl Scene {
    /// Starts a server, if there is a binary; a `number` tells the folders of two apart.
    fn start(number: u64) -> Option<Self> {
        let Some(mut real) = Real::start(number) else {
            println!("SKIPPED: foreign values in a real server: no redis-server was found");
            return None;
        };
        real.connect(0);
        real.connect(OTHERS);
        let tokens = TokenSource::of_process(number);
        let mut scene = Self { real, token: tokens.next(), tokens };
        scene.call(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
        Some(scene)
    }

    fn call(&mut self, words: &[&str]) -> Value {
        self.real.ask(OTHERS, &pipeline(words))
    }

    /// Runs a script of the test's own.
    fn eval(&mut self, script: &str, key: &str, args: &[&str]) {
        let reply = self.call(&[&["EVAL", script, "1", key][..], args].concat());
        assert!(!matches!(reply, Value::ServerError(_)), "{script}: {reply:?}");
    }

    /// Has our token hold the lock, with `waiters` tokens behind it that no process listens for.
    fn hold_with(&mut self, waiters: usize) {
        let (token, dead) = (self.token.to_string(), self.tokens.next().to_string());
        let count = waiters.to_string();
        let write =
            "return redis.call('SET', KEYS[1], ARGV[1] .. string.rep(ARGV[2], ARGV[3]), 'PX', 600000)";
        self.eval(write, KEY, &[&token, &dead, &count]);
    }

    /// Sends one of our commands and returns the reply with the time that the server took.
    fn run(&mut self, layout: LockEncoding, command: Command) -> (Reply, Duration) {
        let request = Request::new(KEY.into(), self.token, command);
        let mut question = Pipeline::new();
        layout.encode(&request, &Namespaces::new("dlock"), Duration::from_secs(3), None, None, &mut question);
        let answer = self.real.ask(0, &question);
        let reply = layout.decode(&request, &answer, &Redacted::new("h:1"));
        let Value::Array(entries) = self.call(&["SLOWLOG", "GET", "1"]) else { panic!("the log is a list") };
        let Some(Value::Array(entry)) = entries.first() else {
            panic!("every command is logged: {entries:?}")
        };
        let Some(Value::Int(micros)) = entry.get(2) else { panic!("{entry:?} has a duration") };
        (reply, Duration::from_micros(micros.unsigned_abs()))
    }

    /// Runs each of `commands` over what `write` writes, and asserts that it is quick, at its best of three, and what it replies.
    fn assert_quick(
        &mut self,
        layout: LockEncoding,
        what: &str,
        commands: &[Command],
        mut write: impl FnMut(&mut Self),
        is_expected: impl Fn(Command, &Reply) -> bool,
    ) {
        for command in commands {
            let mut best = Duration::MAX;
            for _ in 0..3 {
                write(self);
                let (reply, took) = self.run(layout, *command);
                assert!(is_expected(*command, &reply), "{command:?} over {what} in {layout:?}: {reply:?}");
                best = best.min(took);
                if best <= LONGEST_SCRIPT / 10 {
                    break;
                }
            }
            assert!(best <= LONGEST_SCRIPT, "{command:?} over {what} in {layout:?} took {best:?}");
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
            Command::Release,
            Command::ReleaseWithFleetHold { fleet_hold },
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

/// Returns whether a reply says that the lock is a foreign client's, which is never touched but by a forced release.
fn is_foreign(command: Command, reply: &Reply) -> bool {
    match command {
        Command::Acquire { .. } => matches!(reply, Reply::Contended),
        Command::Enqueue { mode: EnqueueMode::Recheck, .. } => {
            matches!(reply, Reply::Absent | Reply::NotQueued { .. })
        }
        Command::Enqueue { .. } => matches!(reply, Reply::NotQueued { .. }),
        Command::Inspect => matches!(reply, Reply::Info(Some(sight)) if sight.holder.is_none()),
        Command::ForceRelease => matches!(reply, Reply::Owner),
        _ => matches!(reply, Reply::NotOwner),
    }
}

fn is_wrong_kind(_: Command, reply: &Reply) -> bool {
    matches!(reply, Reply::Refused(failure) if failure.kind == FailureKind::WrongKind)
}

#[test]
fn values_longer_than_a_full_queue_are_foreign_and_cost_no_time() {
    let Some(mut scene) = Scene::start(101) else { return };
    for layout in [LockEncoding::Native, LockEncoding::Plain] {
        let commands = scene.commands();
        for waiters in [MAX_WAITERS + 1, MAX_WAITERS + 2, 10_000, 100_000] {
            let what = format!("{waiters} waiters");
            scene.assert_quick(layout, &what, &commands, |scene| scene.hold_with(waiters), is_foreign);
        }
        let ragged = |scene: &mut Scene| {
            scene.hold_with(MAX_WAITERS);
            scene.call(&["APPEND", KEY, "x"]);
        };
        scene.assert_quick(layout, "a byte behind a full queue", &commands, ragged, is_foreign);
    }
}

#[test]
fn an_empty_value_is_foreign() {
    let Some(mut scene) = Scene::start(102) else { return };
    for layout in [LockEncoding::Native, LockEncoding::Plain] {
        let commands = scene.commands();
        let empty = |scene: &mut Scene| drop(scene.call(&["SET", KEY, "", "PX", "600000"]));
        scene.assert_quick(layout, "an empty value", &commands, empty, is_foreign);
    }
}

#[test]
fn a_full_queue_of_dead_waiters_costs_no_time() {
    let Some(mut scene) = Scene::start(103) else { return };
    let commands = scene.commands();
    let is_held = |command, reply: &Reply| match command {
        Command::Acquire { .. } => matches!(reply, Reply::Contended),
        Command::Enqueue { mode: EnqueueMode::TryOnly, .. } => matches!(reply, Reply::NotQueued { .. }),
        Command::Fence | Command::RaiseFence { .. } => matches!(reply, Reply::Fenced(_)),
        Command::Inspect => matches!(reply, Reply::Info(Some(sight)) if sight.waiters == MAX_WAITERS),
        _ => matches!(reply, Reply::Owner),
    };
    scene.assert_quick(
        LockEncoding::Native,
        "a full queue",
        &commands,
        |scene| scene.hold_with(MAX_WAITERS),
        is_held,
    );

    scene.hold_with(MAX_WAITERS);
    scene.run(LockEncoding::Native, Command::Release);
    assert_eq!(scene.call(&["EXISTS", KEY]), Value::Int(0), "the dead waiters do not keep the lock");
}

#[test]
fn half_a_gigabyte_under_a_name_costs_no_time() {
    let Some(mut scene) = Scene::start(104) else { return };
    scene.hold_with(0);
    let length = scene.call(&["SETRANGE", KEY, "536870911", "x"]);
    assert_eq!(length, Value::Int(512 << 20));
    let mut commands = scene.commands();
    let force_release = commands.pop();
    assert_eq!(force_release, Some(Command::ForceRelease));
    for layout in [LockEncoding::Native, LockEncoding::Plain] {
        scene.assert_quick(layout, "512 MB", &commands, |_| {}, is_foreign);
    }
    scene.assert_quick(REDISSON, "512 MB", &commands, |_| {}, is_wrong_kind);
    let (reply, took) = scene.run(LockEncoding::Native, Command::ForceRelease);
    assert!(matches!(reply, Reply::Owner) && took <= LONGEST_SCRIPT, "{reply:?} after {took:?}");
}

/// Writes a hash of a million fields under a name.
const MILLION: &str = "for i = 1, 1000000, 1000 do local row = {} for j = i, i + 999 do row[#row + 1] = j row[#row + 1] = 1 end \
    redis.call('HSET', KEYS[1], unpack(row)) end return redis.call('PEXPIRE', KEYS[1], 600000)";

#[test]
fn a_million_fields_cost_no_time() {
    let Some(mut scene) = Scene::start(105) else { return };
    scene.eval(MILLION, KEY, &[]);
    let commands = scene.commands();
    for layout in [LockEncoding::Native, LockEncoding::Plain] {
        let is_refused = |command, reply: &Reply| match command {
            Command::Acquire { .. } => matches!(reply, Reply::Contended),
            _ => is_wrong_kind(command, reply),
        };
        scene.assert_quick(layout, "a million fields", &commands, |_| {}, is_refused);
    }
    let is_refused = |command, reply: &Reply| match command {
        Command::Acquire { .. } | Command::Enqueue { .. } | Command::Inspect | Command::ForceRelease => {
            is_wrong_kind(command, reply)
        }
        _ => matches!(reply, Reply::NotOwner),
    };
    scene.assert_quick(REDISSON, "a million fields", &commands, |_| {}, is_refused);
    let owner = owner(&mut scene);
    let beside = |scene: &mut Scene| drop(scene.call(&["HSET", KEY, &owner, "1"]));
    let is_left = |command, reply: &Reply| match command {
        Command::Inspect | Command::ForceRelease => is_wrong_kind(command, reply),
        Command::Fence => matches!(reply, Reply::Fenced(_)),
        Command::Yield { .. } => matches!(reply, Reply::NotQueued { .. }),
        _ => matches!(reply, Reply::Owner),
    };
    let commands: Vec<_> =
        commands.into_iter().filter(|command| !matches!(command, Command::RaiseFence { .. })).collect();
    scene.assert_quick(REDISSON, "a million fields beside our own", &commands, beside, is_left);
    scene.run(REDISSON, Command::Release);
    assert_eq!(scene.call(&["HLEN", KEY]), Value::Int(1_000_000), "those of others are left");
}

/// Returns how our token is written as an owner: as the only field of a lock that it takes, beside which another key is left as it is.
fn owner(scene: &mut Scene) -> String {
    scene.call(&["RENAME", KEY, "aside"]);
    let (reply, _) = scene.run(REDISSON, Command::Acquire { lease: LEASE });
    assert!(matches!(reply, Reply::Owner), "{reply:?}");
    let Value::Array(fields) = scene.call(&["HKEYS", KEY]) else { panic!("a lock is a hash") };
    let Some(Value::BulkString(owner)) = fields.first() else { panic!("a lock has an owner") };
    let owner = String::from_utf8(owner.clone()).expect("text");
    scene.call(&["DEL", KEY]);
    scene.call(&["RENAME", "aside", KEY]);
    owner
}

#[test]
fn long_fields_and_values_of_a_hash_cost_no_time() {
    let Some(mut scene) = Scene::start(106) else { return };
    let commands: Vec<_> = scene.commands();
    let is_foreign = |command, reply: &Reply| match command {
        Command::Acquire { .. } => matches!(reply, Reply::Contended),
        Command::Enqueue { .. } => matches!(reply, Reply::NotQueued { .. }),
        Command::Inspect | Command::ForceRelease => is_wrong_kind(command, reply),
        Command::Verify => matches!(reply, Reply::Owner | Reply::NotOwner),
        _ => matches!(reply, Reply::NotOwner),
    };
    let long = "local long = '1' while #long < 67108864 do long = long .. long end return redis.call('HSET', KEYS[1], ";
    scene.eval(&format!("{long} long, 1)"), KEY, &[]);
    scene.assert_quick(REDISSON, "a field of 64 MB", &commands, |_| {}, is_foreign);
    let owner = owner(&mut scene);
    scene.call(&["DEL", KEY]);
    scene.eval(&format!("{long} ARGV[1], long)"), KEY, &[&owner]);
    scene.assert_quick(REDISSON, "our field with 64 MB", &commands, |_| {}, is_foreign);
}

#[test]
fn fencing_tokens_rise_to_their_bound_and_end_in_a_typed_error() {
    let Some(mut scene) = Scene::start(107) else { return };
    let last = |number: u64| number.to_string();
    let next = |number: u64| Some(number + 1);
    let far = 1 << 52; // above the clock's microseconds
    for layout in [LockEncoding::Native, LockEncoding::Plain, REDISSON] {
        let is_redisson = layout == REDISSON;
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
            scene.call(&["DEL", KEY, counter]);
            scene.run(layout, Command::Acquire { lease: LEASE });
            scene.call(&["SET", counter, &text]);
            let issued = next.filter(|next| *next <= bound);

            let (reply, _) = scene.run(layout, Command::Fence);
            let after = scene.call(&["GET", counter]);

            let expected = issued.map_or_else(|| text.clone(), |token| token.to_string());
            assert_eq!(after, Value::BulkString(expected.into_bytes()), "{text:?} in {layout:?}");
            match (issued, reply) {
                (Some(token), Reply::Fenced(fenced)) => assert_eq!(fenced, token, "{text:?} in {layout:?}"),
                (None, Reply::Refused(failure)) => {
                    assert_eq!(failure.kind, FailureKind::FencingCounter, "{text:?} in {layout:?}");
                    assert!(failure.reason.contains(counter), "{}", failure.reason);
                }
                (_, reply) => panic!("{text:?} in {layout:?}: {reply:?}"),
            }
        }
        for wrong in ["RPUSH", "SADD"] {
            scene.call(&["DEL", counter]);
            scene.call(&[wrong, counter, "1"]);
            let (reply, _) = scene.run(layout, Command::Fence);
            let is_spent =
                |failure: &crate::protocol::command::Failure| failure.kind == FailureKind::FencingCounter;
            assert!(matches!(&reply, Reply::Refused(failure) if is_spent(failure)), "{wrong}: {reply:?}");
        }
        scene.call(&["DEL", counter]);
        let (first, _) = scene.run(layout, Command::Fence);
        let (second, _) = scene.run(layout, Command::Fence);
        assert!(
            matches!((&first, &second), (Reply::Fenced(a), Reply::Fenced(b)) if a < b),
            "{first:?} {second:?}"
        );
        scene.call(&["SET", counter, "0"]);
        assert!(matches!(scene.run(layout, Command::Fence).0, Reply::Fenced(_)));
    }
}

#[test]
fn a_counter_of_a_hundred_megabytes_costs_no_time() {
    let Some(mut scene) = Scene::start(108) else { return };
    for (layout, counter) in
        [(LockEncoding::Native, "{order:7}##token"), (REDISSON, "redisson_lock_token:{order:7}")]
    {
        scene.call(&["DEL", KEY]);
        scene.run(layout, Command::Acquire { lease: LEASE });
        scene.call(&["SETRANGE", counter, "100000000", "1"]);
        let is_spent = |_, reply: &Reply| matches!(reply, Reply::Refused(failure) if failure.kind == FailureKind::FencingCounter);
        scene.assert_quick(layout, "a counter of 100 MB", &[Command::Fence], |_| {}, is_spent);
        scene.call(&["DEL", counter]);
    }
}

#[test]
fn a_counter_is_raised_exactly_and_not_above_its_bound() {
    let Some(mut scene) = Scene::start(109) else { return };
    let counter = "{order:7}##token";
    for (stands, raised, expected) in [
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
        scene.call(&["SET", KEY, &scene.token.to_string()]);
        scene.call(&["SET", counter, stands]);

        let (reply, _) = scene.run(LockEncoding::Plain, Command::RaiseFence { fence: raised });

        match (expected, reply) {
            (Some(expected), Reply::Fenced(fence)) => assert_eq!(fence, expected, "{stands} to {raised}"),
            (None, Reply::Refused(failure)) => assert_eq!(failure.kind, FailureKind::FencingCounter),
            (_, reply) => panic!("{stands} to {raised}: {reply:?}"),
        }
    }
}
