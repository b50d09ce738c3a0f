//! Compares the stub with a real server: both receive the same commands, and their replies and
//! messages must agree.
//!
//! Times to live may differ by the time between the two commands. Each server derives fencing
//! tokens from its own clock.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::thread::sleep;
use std::time::Duration;

use redis::{Parser, Pipeline, PushKind, Value};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::backend::Request;
use crate::backend::redis::encoding::native::NativeEncoding;
use crate::backend::redis::encoding::scripts::{Loaded, NATIVE};
use crate::backend::redis::encoding::{LockEncoding, ScriptParameters, ScriptTimes};
use crate::backend::redis::namespaces::Namespaces;
use crate::backend::redis::owner_lookup::{self, OwnerLookup};
use crate::backend::redis::simulation::parameters::Parameters;
use crate::backend::redis::simulation::redis_stub::{ForeignData, NAMESPACE, RedisStub};
use crate::backend::redis::simulation::resp::next_command;
use crate::backend::redis::transport::{command_fallbacks, error_kind};
use crate::backend::store_call::StoreOperation;
use crate::backend::tests::real_server::RealServer;
use crate::bounds::LONGEST_VALUE;
use crate::clock::boot_time;
use crate::protocol::command::{Command, EnqueueMode};
use crate::protocol::deadline::BootInstant;
use crate::protocol::foreign_clients::FleetHold;
use crate::token::{Token, TokenSource};

/// The connections by purpose.
const COMMANDS: usize = 0;
pub(super) const OTHERS: usize = 1;
const SUBSCRIBERS: [usize; 2] = [2, 3];
const TRACKED: usize = 4;

/// A server with several connections.
pub(super) trait Server {
    /// Opens or reopens a connection. Earlier subscriptions are gone when this returns.
    fn connect(&mut self, at: usize);

    fn send(&mut self, at: usize, commands: &Pipeline);

    fn receive(&mut self, at: usize) -> Value;

    fn ask(&mut self, at: usize, question: &Pipeline) -> Value {
        self.send(at, question);
        self.receive(at)
    }

    /// Asks a question, and drops the invalidations before its reply.
    fn ask_for_reply(&mut self, at: usize, question: &Pipeline) -> Value {
        self.send(at, question);
        loop {
            let reply = self.receive(at);
            if !matches!(&reply, Value::Push { kind: PushKind::Invalidate, .. }) {
                return reply;
            }
        }
    }

    /// Returns the messages that a connection received without a request.
    fn unsolicited(&mut self, at: usize) -> Vec<Value> {
        self.send(at, redis::pipe().cmd("PING"));
        let mut unsolicited = Vec::new();
        loop {
            match self.receive(at) {
                Value::SimpleString(pong) if pong == "PONG" => return unsolicited,
                Value::Array(pong) if pong.first().and_then(error_kind::text) == Some("pong") => {
                    return unsolicited;
                }
                other => unsolicited.push(other),
            }
        }
    }

    /// Opens all connections, and returns the hashes of the scripts.
    fn prepare(&mut self, sources: &[TokenSource; 2]) -> Loaded {
        for at in 0..=TRACKED {
            self.connect(at);
        }
        self.listen(sources);
        for command in [&["HELLO", "3"][..], &["CLIENT", "TRACKING", "ON", "NOLOOP"]] {
            let answer = self.ask(TRACKED, &pipeline(command));
            assert!(!matches!(answer, Value::ServerError(_)), "{answer:?}");
        }
        let load = command_fallbacks::load(&NATIVE);
        self.send(COMMANDS, &load);
        let names: Vec<_> = (0..load.len())
            .map(|_| error_kind::text(&self.receive(COMMANDS)).expect("a script has a hash").to_owned())
            .collect();
        Loaded::new(names)
    }

    fn listen(&mut self, sources: &[TokenSource; 2]) {
        for (at, source) in SUBSCRIBERS.into_iter().zip(sources) {
            let process = source.process();
            let [grants, owner] = Namespaces::new(NAMESPACE).own().channels(process, "web-1");
            self.send(at, &pipeline(&["SUBSCRIBE", &grants, &owner]));
            for channel in [&grants, &owner] {
                let Value::Array(subscribed) = self.receive(at) else { panic!("{channel}: no subscription") };
                assert_eq!(subscribed.get(1).and_then(error_kind::text), Some(&**channel));
            }
            let lookup = OwnerLookup::new(process, NAMESPACE);
            let mut script = pipeline(&["EVAL", owner_lookup::SCRIPT.source(), "1", "k", ""]);
            lookup.arguments().iter().for_each(|argument| _ = script.arg(&**argument));
            let found = self.ask(OTHERS, &script);
            assert_eq!(error_kind::text(&found), Some(&*owner), "{found:?}");
        }
    }
}

struct Stub {
    redis: RedisStub,
    connections: Vec<(u64, UnboundedReceiver<Vec<u8>>)>,
}

impl Server for Stub {
    fn connect(&mut self, at: usize) {
        let (out, replies) = unbounded_channel();
        let client = self.redis.connect(out);
        if let Some(connection) = self.connections.get_mut(at) {
            self.redis.disconnect(connection.0);
            *connection = (client, replies);
        } else {
            self.connections.push((client, replies));
        }
    }

    fn send(&mut self, at: usize, commands: &Pipeline) {
        let mut received = commands.get_packed_pipeline();
        while let Some(words) = next_command(&mut received) {
            self.redis.run(self.connections[at].0, &words, boot_time());
        }
    }

    fn receive(&mut self, at: usize) -> Value {
        let reply = self.connections[at].1.try_recv().expect("it replies at once");
        redis::parse_redis_value(&reply).expect("it speaks RESP")
    }
}

pub(super) struct Real {
    server: RealServer,
    connections: Vec<(TcpStream, Parser)>,
    /// Before Redis 7, `NOLOOP` does not apply to scripts: their changes are reported to their
    /// sender, before the reply.
    reports_scripts_to_sender: bool,
}

impl Real {
    /// Starts a server. Returns `None` if there is no binary. `test`: what is skipped without one.
    pub(super) fn start(test: &str) -> Option<Self> {
        let server = RealServer::start(test)?;
        let mut real = Self { server, connections: Vec::new(), reports_scripts_to_sender: false };
        real.reports_scripts_to_sender = real.is_before_version_7();
        Some(real)
    }

    fn is_before_version_7(&mut self) -> bool {
        self.connect(COMMANDS);
        let info = self.ask(COMMANDS, &pipeline(&["INFO", "server"]));
        self.connections.clear();
        error_kind::text(&info).is_some_and(|info| info.contains("redis_version:6."))
    }
}

impl Server for Real {
    fn connect(&mut self, at: usize) {
        let stream = self.server.connect();
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit can be set");
        if let Some(connection) = self.connections.get_mut(at) {
            *connection = (stream, Parser::new());
            let channels = || pipeline(&["PUBSUB", "CHANNELS"]);
            while self.ask(OTHERS, &channels()) != Value::Array(Vec::new()) {
                sleep(Duration::from_millis(1)); // the server has not noticed the closes yet
            }
        } else {
            self.connections.push((stream, Parser::new()));
        }
    }

    fn send(&mut self, at: usize, commands: &Pipeline) {
        self.connections[at].0.write_all(&commands.get_packed_pipeline()).expect("it receives");
    }

    fn receive(&mut self, at: usize) -> Value {
        let (stream, parser) = &mut self.connections[at];
        parser.parse_value(stream).expect("it replies")
    }
}

pub(super) fn pipeline(words: &[&str]) -> Pipeline {
    let mut pipeline = redis::pipe();
    pipeline.add_command(redis::cmd(words[0])).arg(&words[1..]);
    pipeline
}

/// Returns `true` if two replies agree.
fn agree(stub: &Value, real: &Value) -> bool {
    match (stub, real) {
        (Value::Int(stub), Value::Int(real)) => {
            stub == real || (stub.min(real) > &1_000 && stub.abs_diff(*real) < 2_000)
        }
        (Value::Array(stub), Value::Array(real)) => all_agree(stub, real),
        (Value::Push { kind: stub, data: of_stub }, Value::Push { kind: real, data: of_real }) => {
            stub == real && all_agree(of_stub, of_real)
        }
        // Before Redis 7, the error of a script quotes the error of its command.
        (Value::ServerError(stub), Value::ServerError(real)) => {
            stub.code() == real.code() || real.details().is_some_and(|text| text.contains(stub.code()))
        }
        (Value::BulkString(a), Value::BulkString(b)) => {
            a == b || (is_a_fencing_token(a) && is_a_fencing_token(b))
        }
        _ => stub == real,
    }
}

fn all_agree(stub: &[Value], real: &[Value]) -> bool {
    stub.len() == real.len() && stub.iter().zip(real).all(|(stub, real)| agree(stub, real))
}

/// Microseconds since 1970, in this century.
fn is_a_fencing_token(text: &[u8]) -> bool {
    text.len() == 16 && text.iter().all(u8::is_ascii_digit)
}

const LEASE: Duration = Duration::from_secs(20);
const FENCE_TTL: Duration = Duration::from_secs(7 * 24 * 60 * 60);

const KEYS: [&str; 2] = ["dlock:a", "dlock:{b}:1"];

/// Returns a random command that the backend may send.
fn draw(parameters: &mut Parameters, token: &dyn Fn(&mut Parameters) -> Token) -> Command {
    let lease = parameters.one_of(&[LEASE, LEASE * 2, LEASE * 3]);
    let fleet_hold =
        parameters.one_of(&[FleetHold::UNKNOWN, FleetHold::NEW, FleetHold::of(Duration::from_millis(70))]);
    match parameters.below(16) {
        0..2 => Command::Acquire { lease },
        2..6 => Command::Enqueue {
            lease,
            mode: parameters.one_of(&[
                EnqueueMode::Join,
                EnqueueMode::Join,
                EnqueueMode::Recheck,
                EnqueueMode::TryOnly,
            ]),
        },
        6 => parameters.one_of(&[Command::Renew { lease }, Command::Renew { lease }, Command::Verify]),
        7 => Command::SetTtl { ttl: lease },
        8 => Command::RELEASE,
        9 => Command::Release { fleet_hold },
        10 => Command::ReleaseWithoutHandoff,
        11 => Command::ForceRelease,
        12 => Command::Withdraw,
        13 => Command::Yield { next: token(parameters), fleet_hold },
        14 => Command::Fence,
        _ => Command::Inspect,
    }
}

#[test]
fn the_stub_replies_like_a_real_server() {
    let mut met = BTreeSet::new();
    for seed in 0..6 {
        let Some(mut real) = Real::start("the Redis stub against a real server") else { return };
        met.extend(compare(seed, &mut real));
    }
    assert_eq!(met, BTreeSet::from(RedisStub::EFFECTS), "an effect of foreign data was not compared");
}

/// Writes foreign data under a name in both servers.
fn write_foreign(key: &str, parameters: &mut Parameters, stub: &mut Stub, real: &mut Real) {
    let now = boot_time();
    let longer = parameters.one_of(&[1, 32, 10_000, 1 << 20]);
    let data = match parameters.below(4) {
        0 => ForeignData::OtherType,
        1 => ForeignData::Text("theirs".to_owned()),
        2 => ForeignData::Text("x".repeat(LONGEST_VALUE + longer)),
        // Appended to a lock, so that its holder is still the first token.
        _ => {
            let mut text = stub.redis.text(key, now);
            text.push_str(&"y".repeat((LONGEST_VALUE + longer).saturating_sub(text.len())));
            ForeignData::Text(text)
        }
    };
    let (script, text) = match &data {
        ForeignData::Text(text) => ("return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])", &**text),
        ForeignData::OtherType => {
            let write = "redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[1], ARGV[1]) \
                return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
            (write, "theirs")
        }
    };
    let lease = (LEASE * 3).as_millis().to_string();
    let written = real.ask(OTHERS, &pipeline(&["EVAL", script, "1", key, text, &lease]));
    assert!(!matches!(written, Value::ServerError(_)), "{written:?}");
    stub.redis.write_foreign(key, data, now.plus(LEASE * 3), (now, BootInstant::NEVER));
}

/// Checks that both servers sent the same replies, and names the previous commands for the key if
/// they did not.
fn assert_agree(seed: u64, key: &str, replies: &[(Value, Value)], commands: &[String]) {
    for (stub, real) in replies {
        let of_key = format!(" of {key},");
        let before: Vec<_> = commands.iter().rev().filter(|line| line.contains(&of_key)).take(12).collect();
        assert!(agree(stub, real), "seed {seed}: {stub:?} is not {real:?} after, last first, {before:#?}");
    }
}

/// Writes foreign data in both servers, or deletes it, at random. Returns a description of a
/// change.
fn change_foreign(
    foreign: &mut Option<&'static str>,
    parameters: &mut Parameters,
    stub: &mut Stub,
    real: &mut Real,
) -> Option<String> {
    match *foreign {
        Some(key) if parameters.chance(10) => {
            real.ask(OTHERS, &pipeline(&["DEL", key]));
            stub.redis.delete(key);
            *foreign = None;
            Some(format!("foreign data of {key}, deleted"))
        }
        None if parameters.chance(5) => {
            let key = parameters.one_of(&KEYS);
            write_foreign(key, parameters, stub, real);
            *foreign = Some(key);
            Some(format!("foreign data of {key}, written"))
        }
        _ => None,
    }
}

/// Calls an unknown script in both servers, then loads all again. Returns the replies to the call.
fn forget_scripts(stub: &mut Stub, real: &mut Real) -> (Value, Value) {
    stub.redis.forget_scripts();
    real.ask(OTHERS, &pipeline(&["SCRIPT", "FLUSH"]));
    let [of_stub, of_real] = [stub as &mut dyn Server, real].map(|server| {
        let load = command_fallbacks::load(&NATIVE);
        let unknown = server.ask(COMMANDS, &pipeline(&["EVALSHA", &"0".repeat(40), "0"]));
        server.send(COMMANDS, &load);
        (0..load.len()).for_each(|_| drop(server.receive(COMMANDS)));
        unknown
    });
    (of_stub, of_real)
}

/// Returns the effects of foreign data that were compared.
fn compare(seed: u64, real: &mut Real) -> Vec<&'static str> {
    let (mut parameters, namespaces) = (Parameters::new(seed, 7), Namespaces::new(NAMESPACE));
    let sources = [TokenSource::of_process(1 << 40), TokenSource::of_process(2 << 40)];
    let mut tokens: Vec<_> = sources.iter().flat_map(|source| [source.next(), source.next()]).collect();
    let mut stub = Stub { redis: RedisStub::default(), connections: Vec::new() };
    let names = [stub.prepare(&sources), real.prepare(&sources)];
    let encoded = |request: &Request, extra: Option<&'static str>, by_text: bool| {
        names.each_ref().map(|names| {
            let mut pipeline = redis::pipe();
            let names = (!by_text).then_some(names);
            let times = ScriptTimes { grant_lease: LEASE, fence_ttl: FENCE_TTL };
            let parameters = ScriptParameters { namespaces: &namespaces, times, loaded: names, extra };
            NativeEncoding.encode(request, &parameters, &mut pipeline);
            pipeline
        })
    };
    let mut commands = Vec::new();
    let mut foreign = None;
    for step in 0..500 {
        commands.extend(change_foreign(&mut foreign, &mut parameters, &mut stub, real));
        if parameters.chance(5) {
            let at = parameters.index(tokens.len());
            tokens[at] = sources[parameters.index(2)].next();
        }
        let of_all = |parameters: &mut Parameters| tokens[parameters.index(tokens.len())];
        let (key, token) = (parameters.one_of(&KEYS), of_all(&mut parameters));
        let (mut at, mut extra) = (parameters.one_of(&[COMMANDS, COMMANDS, OTHERS]), None);
        let mut command = draw(&mut parameters, &of_all);
        let expires_long_value = foreign == Some(key) && command == Command::ForceRelease;
        if let Command::Renew { .. } = command {
            (at, extra) = parameters.one_of(&[
                (at, None),
                (at, Some("write")),
                (TRACKED, None),
                (TRACKED, Some("read")),
                (TRACKED, Some("read")),
            ]);
        }
        let expires = matches!(command, Command::SetTtl { .. }) && parameters.chance(50);
        if expires {
            command = Command::SetTtl { ttl: Duration::from_millis(5) };
        }
        let ends = expires || expires_long_value;
        if let Command::Enqueue { .. } | Command::Renew { .. } = command {
            // A real server counts whole milliseconds: an extension within one changes nothing, so
            // no invalidation is sent.
            sleep(Duration::from_millis(1));
        }
        let request = Request::new(key.into(), token, command);
        let by_text = parameters.chance(5);
        let [of_stub, of_real] = encoded(&request, extra, by_text);
        commands.push(format!("{step}: over {at} of {key}, {token}: {command:?} {extra:?}"));
        let mut replies = vec![if real.reports_scripts_to_sender {
            (stub.ask_for_reply(at, &of_stub), real.ask_for_reply(at, &of_real))
        } else {
            (stub.ask(at, &of_stub), real.ask(at, &of_real))
        }];
        if ends {
            // A real server removes an expired key at the next access at the latest.
            sleep(Duration::from_millis(20));
            let get = pipeline(&["GETRANGE", key, "0", "4128"]);
            replies.push((stub.ask(OTHERS, &get), real.ask(OTHERS, &get)));
        }
        let get = pipeline(&["GETRANGE", key, "0", "4128"]);
        match parameters.below(40) {
            0..8 => replies.push((stub.ask(TRACKED, &get), real.ask(TRACKED, &get))),
            10..14 => {
                let time = pipeline(&["PTTL", key]);
                replies.push((stub.ask(TRACKED, &time), real.ask(TRACKED, &time)));
            }
            8 => {
                replies.push(forget_scripts(&mut stub, real));
            }
            9 => {
                for at in SUBSCRIBERS {
                    stub.connect(at);
                }
                for at in SUBSCRIBERS {
                    real.connections[at] =
                        (real.connections[OTHERS].0.try_clone().expect("a copy"), Parser::new());
                }
                real.connect(SUBSCRIBERS[0]);
                real.connect(SUBSCRIBERS[1]);
                if parameters.chance(50) {
                    // No process subscribes for a while: waiters are passed over.
                    let release = Request::new(key.into(), token, Command::ForceRelease);
                    let [of_stub, of_real] = encoded(&release, None, false);
                    replies.push((stub.ask(COMMANDS, &of_stub), real.ask(COMMANDS, &of_real)));
                    if foreign == Some(key) {
                        sleep(Duration::from_millis(20)); // a long value expires after 1 ms
                    }
                }
                stub.listen(&sources);
                real.listen(&sources);
            }
            _ => {}
        }
        for at in [SUBSCRIBERS[0], SUBSCRIBERS[1], TRACKED] {
            replies.push((Value::Array(stub.unsolicited(at)), Value::Array(real.unsolicited(at))));
        }
        replies.push((stub.ask(OTHERS, &get), real.ask(OTHERS, &get)));
        assert_agree(seed, key, &replies, &commands);
    }
    assert!(stub.redis.unexpected.is_empty(), "{:?}", stub.redis.unexpected);
    stub.redis.met.into_keys().collect()
}
