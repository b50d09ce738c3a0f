//! What the small Redis says a real one says, too: both are told the same, and what they answer, publish and push is compared.
//!
//! A time to live may differ by what lies between the two being asked; a fencing token is told by each by its own clock.
//!
//! Not here: what our backend makes of it.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command as Process, Stdio};
use std::thread::sleep;
use std::time::Duration;

use redis::{Parser, Pipeline, Value};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::backend::Request;
use crate::backend::redis::encoding::LockEncoding;
use crate::backend::redis::encoding::codec;
use crate::backend::redis::encoding::scripts::Loaded;
use crate::backend::redis::namespaces::Namespaces;
use crate::backend::redis::simulation::draws::Draws;
use crate::backend::redis::simulation::said::next_command;
use crate::backend::redis::simulation::small_redis::{NAMESPACE, SmallRedis};
use crate::clock::boot_time;
use crate::protocol::command::{Command, EnqueueMode};
use crate::protocol::foreign_clients::FleetHold;
use crate::token::{Token, TokenSource};

/// What each connection is for.
const COMMANDS: usize = 0;
pub(super) const OTHERS: usize = 1;
const EARS: [usize; 2] = [2, 3];
const TRACKED: usize = 4;

/// A server that is told something over its connections.
pub(super) trait Server {
    /// Makes a connection anew; what was subscribed to over it is forgotten before this returns.
    fn connect(&mut self, at: usize);

    fn tell(&mut self, at: usize, said: &Pipeline);

    fn hear(&mut self, at: usize) -> Value;

    fn ask(&mut self, at: usize, question: &Pipeline) -> Value {
        self.tell(at, question);
        self.hear(at)
    }

    /// Returns what was said over a connection unasked.
    fn unasked(&mut self, at: usize) -> Vec<Value> {
        self.tell(at, redis::pipe().cmd("PING"));
        let mut unasked = Vec::new();
        loop {
            match self.hear(at) {
                Value::SimpleString(pong) if pong == "PONG" => return unasked,
                Value::Array(pong) if pong.first().and_then(codec::text) == Some("pong") => return unasked,
                other => unasked.push(other),
            }
        }
    }

    /// Connects all, and returns the names of the scripts.
    fn prepare(&mut self, sources: &[TokenSource; 2]) -> Loaded {
        for at in 0..=TRACKED {
            self.connect(at);
        }
        self.listen(sources);
        for said in [&["HELLO", "3"][..], &["CLIENT", "TRACKING", "ON", "NOLOOP"]] {
            let answer = self.ask(TRACKED, &pipeline(said));
            assert!(!matches!(answer, Value::ServerError(_)), "{answer:?}");
        }
        let load = Loaded::load(LockEncoding::Native);
        self.tell(COMMANDS, &load);
        let names: Vec<_> = (0..load.len())
            .map(|_| codec::text(&self.hear(COMMANDS)).expect("a script has a name").to_owned())
            .collect();
        Loaded::new(names.try_into().expect("each has one"))
    }

    fn listen(&mut self, sources: &[TokenSource; 2]) {
        for (at, source) in EARS.into_iter().zip(sources) {
            let channel = Namespaces::new(NAMESPACE).own().grant_channel(source.process());
            let subscribed = self.ask(at, &pipeline(&["SUBSCRIBE", &channel]));
            assert!(matches!(subscribed, Value::Array(_)), "{subscribed:?}");
        }
    }
}

struct Small {
    redis: SmallRedis,
    connections: Vec<(u64, UnboundedReceiver<Vec<u8>>)>,
}

impl Server for Small {
    fn connect(&mut self, at: usize) {
        let (out, said) = unbounded_channel();
        let client = self.redis.connect(out);
        if let Some(connection) = self.connections.get_mut(at) {
            self.redis.disconnect(connection.0);
            *connection = (client, said);
        } else {
            self.connections.push((client, said));
        }
    }

    fn tell(&mut self, at: usize, said: &Pipeline) {
        let mut heard = said.get_packed_pipeline();
        while let Some(words) = next_command(&mut heard) {
            self.redis.run(self.connections[at].0, &words, boot_time());
        }
    }

    fn hear(&mut self, at: usize) -> Value {
        let said = self.connections[at].1.try_recv().expect("it answers at once");
        redis::parse_redis_value(&said).expect("it speaks RESP")
    }
}

pub(super) struct Real {
    process: Child,
    folder: PathBuf,
    port: u16,
    connections: Vec<(TcpStream, Parser)>,
}

impl Real {
    /// Starts a server on a free port, where there is a binary.
    pub(super) fn start(seed: u64) -> Option<Self> {
        let binary = std::env::var_os("DLOCK_REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        let folder = std::env::temp_dir().join(format!("dlock-contract-{}-{seed}", std::process::id()));
        fs::create_dir_all(&folder).expect("there is a folder for what is thrown away");
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|free| free.local_addr())
            .expect("a port is free")
            .port();
        let mut process = Process::new(binary);
        process.current_dir(&folder).args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string()]);
        let process = process.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        let mut real = Self { process, folder, port, connections: Vec::new() };
        let mut tries = 0;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            tries += 1;
            let ended = real.process.try_wait();
            assert!(tries < 1_000 && matches!(ended, Ok(None)), "it does not start: {ended:?}");
            sleep(Duration::from_millis(10));
        }
        Some(real)
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.process.kill().and_then(|()| self.process.wait());
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Server for Real {
    fn connect(&mut self, at: usize) {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it takes connections");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit can be set");
        if let Some(connection) = self.connections.get_mut(at) {
            *connection = (stream, Parser::new());
            let channels = || pipeline(&["PUBSUB", "CHANNELS"]);
            while self.ask(OTHERS, &channels()) != Value::Array(Vec::new()) {
                sleep(Duration::from_millis(1)); // it has not noticed yet that both are gone
            }
        } else {
            self.connections.push((stream, Parser::new()));
        }
    }

    fn tell(&mut self, at: usize, said: &Pipeline) {
        self.connections[at].0.write_all(&said.get_packed_pipeline()).expect("it hears");
    }

    fn hear(&mut self, at: usize) -> Value {
        let (stream, parser) = &mut self.connections[at];
        parser.parse_value(stream).expect("it answers")
    }
}

pub(super) fn pipeline(words: &[&str]) -> Pipeline {
    let mut pipeline = redis::pipe();
    pipeline.add_command(redis::cmd(words[0])).arg(&words[1..]);
    pipeline
}

/// Returns whether two answers say the same.
fn agree(small: &Value, real: &Value) -> bool {
    match (small, real) {
        (Value::Int(small), Value::Int(real)) => {
            small == real || (small.min(real) > &1_000 && small.abs_diff(*real) < 2_000)
        }
        (Value::Array(small), Value::Array(real)) => all_agree(small, real),
        (Value::Push { kind: small, data: of_small }, Value::Push { kind: real, data: of_real }) => {
            small == real && all_agree(of_small, of_real)
        }
        (Value::ServerError(small), Value::ServerError(real)) => small.code() == real.code(),
        (Value::BulkString(a), Value::BulkString(b)) => {
            a == b || (is_a_fencing_token(a) && is_a_fencing_token(b))
        }
        _ => small == real,
    }
}

fn all_agree(small: &[Value], real: &[Value]) -> bool {
    small.len() == real.len() && small.iter().zip(real).all(|(small, real)| agree(small, real))
}

/// Microseconds since 1970, in this century.
fn is_a_fencing_token(text: &[u8]) -> bool {
    text.len() == 16 && text.iter().all(u8::is_ascii_digit)
}

const LEASE: Duration = Duration::from_secs(20);

/// Returns a command, as our backend may say it.
fn draw(draws: &mut Draws, token: &dyn Fn(&mut Draws) -> Token) -> Command {
    let lease = draws.one_of(&[LEASE, LEASE * 2, LEASE * 3]);
    let fleet_hold =
        draws.one_of(&[FleetHold::UNKNOWN, FleetHold::NEW, FleetHold::of(Duration::from_millis(70))]);
    match draws.below(16) {
        0..2 => Command::Acquire { lease },
        2..6 => Command::Enqueue {
            lease,
            mode: draws.one_of(&[
                EnqueueMode::Join,
                EnqueueMode::Join,
                EnqueueMode::Recheck,
                EnqueueMode::TryOnly,
            ]),
        },
        6 => draws.one_of(&[Command::Renew { lease }, Command::Renew { lease }, Command::Verify]),
        7 => Command::SetTtl { ttl: lease },
        8 => Command::Release,
        9 => Command::ReleaseWithFleetHold { fleet_hold },
        10 => Command::ReleaseWithoutHandoff,
        11 => Command::ForceRelease,
        12 => Command::Withdraw,
        13 => Command::Yield { next: token(draws), fleet_hold },
        14 => Command::Fence,
        _ => Command::Inspect,
    }
}

#[test]
fn the_small_redis_says_what_a_real_one_says() {
    for seed in 0..6 {
        let Some(mut real) = Real::start(seed) else {
            println!("SKIPPED: the small Redis beside a real one: no redis-server was found");
            return;
        };
        compare(seed, &mut real);
    }
}

fn compare(seed: u64, real: &mut Real) {
    let (mut draws, namespaces) = (Draws::new(seed, 7), Namespaces::new(NAMESPACE));
    let sources = [TokenSource::of_process(1 << 40), TokenSource::of_process(2 << 40)];
    let mut tokens: Vec<_> = sources.iter().flat_map(|source| [source.next(), source.next()]).collect();
    let mut small = Small { redis: SmallRedis::default(), connections: Vec::new() };
    let names = [small.prepare(&sources), real.prepare(&sources)];
    let mut told = Vec::new();
    for step in 0..500 {
        if draws.chance(5) {
            let at = draws.index(tokens.len());
            tokens[at] = sources[draws.index(2)].next();
        }
        let of_all = |draws: &mut Draws| tokens[draws.index(tokens.len())];
        let (key, token) = (draws.one_of(&["dlock:a", "dlock:{b}:1"]), of_all(&mut draws));
        let (mut at, mut besides) = (draws.one_of(&[COMMANDS, COMMANDS, OTHERS]), None);
        let mut command = draw(&mut draws, &of_all);
        if let Command::Renew { .. } = command {
            (at, besides) = draws.one_of(&[
                (at, None),
                (at, Some("write")),
                (TRACKED, None),
                (TRACKED, Some("read")),
                (TRACKED, Some("read")),
            ]);
        }
        let ends = matches!(command, Command::SetTtl { .. }) && draws.chance(50);
        if ends {
            command = Command::SetTtl { ttl: Duration::from_millis(5) };
        }
        if let Command::Enqueue { .. } | Command::Renew { .. } = command {
            // A real one counts whole milliseconds: within one, what is prolonged stays as it is, and nobody is told of it.
            sleep(Duration::from_millis(1));
        }
        let request = Request::new(key.into(), token, command);
        let by_text = draws.chance(5);
        let [of_small, of_real] = names.each_ref().map(|names| {
            let mut pipeline = redis::pipe();
            let names = (!by_text).then_some(names);
            LockEncoding::Native.encode(&request, &namespaces, LEASE, names, besides, &mut pipeline);
            pipeline
        });
        told.push(format!("{step}: over {at} of {key}, {token}: {command:?} {besides:?}"));
        let mut said = vec![(small.ask(at, &of_small), real.ask(at, &of_real))];
        if ends {
            sleep(Duration::from_millis(20)); // a real one takes out what has ended when it is asked for, at the latest
            let get = pipeline(&["GETRANGE", key, "0", "4128"]);
            said.push((small.ask(OTHERS, &get), real.ask(OTHERS, &get)));
        }
        let get = pipeline(&["GETRANGE", key, "0", "4128"]);
        match draws.below(40) {
            0..8 => said.push((small.ask(TRACKED, &get), real.ask(TRACKED, &get))),
            8 => {
                small.redis.forget_scripts();
                real.ask(OTHERS, &pipeline(&["SCRIPT", "FLUSH"]));
                let [of_small, of_real] = [&mut small as &mut dyn Server, &mut *real].map(|server| {
                    let load = Loaded::load(LockEncoding::Native);
                    // One that is not known says so; then all are there again.
                    let unknown = server.ask(COMMANDS, &pipeline(&["EVALSHA", &"0".repeat(40), "0"]));
                    server.tell(COMMANDS, &load);
                    (0..load.len()).for_each(|_| drop(server.hear(COMMANDS)));
                    unknown
                });
                said.push((of_small, of_real));
            }
            9 => {
                for at in EARS {
                    small.connect(at);
                }
                for at in EARS {
                    real.connections[at] =
                        (real.connections[OTHERS].0.try_clone().expect("a copy"), Parser::new());
                }
                real.connect(EARS[0]);
                real.connect(EARS[1]);
                if draws.chance(50) {
                    // Nobody listens for a while: who waits is passed over.
                    let release = Request::new(key.into(), token, Command::ForceRelease);
                    let [of_small, of_real] = names.each_ref().map(|names| {
                        let mut pipeline = redis::pipe();
                        LockEncoding::Native.encode(
                            &release,
                            &namespaces,
                            LEASE,
                            Some(names),
                            None,
                            &mut pipeline,
                        );
                        pipeline
                    });
                    said.push((small.ask(COMMANDS, &of_small), real.ask(COMMANDS, &of_real)));
                }
                small.listen(&sources);
                real.listen(&sources);
            }
            _ => {}
        }
        for at in [EARS[0], EARS[1], TRACKED] {
            said.push((Value::Array(small.unasked(at)), Value::Array(real.unasked(at))));
        }
        said.push((small.ask(OTHERS, &get), real.ask(OTHERS, &get)));
        for (small, real) in said {
            // What was told of the same key.
            let of_key = format!(" of {key},");
            let before: Vec<_> = told.iter().rev().filter(|line| line.contains(&of_key)).take(12).collect();
            assert!(
                agree(&small, &real),
                "seed {seed}: {small:?} is not {real:?} after, last first, {before:#?}"
            );
        }
    }
    assert!(small.redis.strange.is_empty(), "{:?}", small.redis.strange);
}
