//! Rows that affect one server.

use std::path::PathBuf;
use std::time::Duration;

use dlock_tests::RedisServer;
use dlock_tests::resp::Client;

use super::{Broken, Kind, Row};
use crate::ground::{Ground, LEASE, PASSWORD, USER};
use crate::stage::Stage;

const fn row(name: &'static str, grounds: &'static [Ground], begin: fn(&mut Stage) -> Broken) -> Row {
    Row { name, kind: Kind::Server, grounds, begin }
}

const ON_DISK: &[Ground] = &[Ground::Plain, Ground::Durable, Ground::EverySecond];
/// Not on a server whose clock steps back: with lost data, fencing tokens could decrease there.
const MEMORY: &[Ground] = &[Ground::Plain];

pub(crate) const ROWS: &[Row] = &[
    row("S1c", MEMORY, restarted_empty),
    row("S2", &[Ground::Durable], restarted_with_everything),
    row("S3c", &[Ground::EverySecond], tail_cut),
    row("S7", Ground::SINGLE, frozen),
    row("S8", ON_DISK, busy),
    row("S14", MEMORY, not_a_master),
    row("S15c", MEMORY, evicted),
    row("S16", ON_DISK, out_of_memory),
    row("S17c", MEMORY, flushed),
    row("S18", Ground::ALL, scripts_forgotten),
    row("S19", Ground::ALL, connections_killed),
    row("S20", ON_DISK, full_of_clients),
    row("S21", Ground::SINGLE, locked_out),
    row("S22", MEMORY, list_on_the_name),
    row("S23", MEMORY, long_value),
    row("S24", Ground::SINGLE, flood_of_messages),
];

fn restarted_empty(stage: &mut Stage) -> Broken {
    stage.fault("S1c", "kill -9 without persistence", "server");
    stage.servers[0].kill();
    let away = stage.dice.millis(0, 100);
    // The loss is detected within a lease.
    Broken::until(away, |stage| {
        stage.servers[0].restart();
        std::thread::sleep(LEASE);
    })
}

fn restarted_with_everything(stage: &mut Stage) -> Broken {
    stage.fault("S2", "kill -9 with every write on the disk", "server");
    stage.servers[0].kill();
    Broken::until(stage.dice.millis(0, 300), |stage| stage.servers[0].restart())
}

fn tail_cut(stage: &mut Stage) -> Broken {
    let server = &stage.servers[0];
    let whole = std::fs::metadata(append_only_file(server)).map_or(0, |file| file.len());
    // Writes after this point do not reach the disk.
    std::thread::sleep(stage.dice.millis(20, 200));
    stage.fault("S3c", "kill -9, and the append-only file lacks its tail", "server");
    stage.servers[0].kill();
    let path = append_only_file(&stage.servers[0]);
    let cut = std::fs::OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(whole));
    cut.expect("the file can be cut");
    Broken::until(stage.dice.millis(0, 50), |stage| {
        stage.servers[0].restart();
        std::thread::sleep(LEASE);
    })
}

fn frozen(stage: &mut Stage) -> Broken {
    let tenths = u32::try_from(stage.dice.below(30)).unwrap_or_default() + 1;
    stage.fault("S7", &format!("SIGSTOP for {tenths} tenths of a lease"), "server");
    stage.servers[0].pause();
    Broken::until(LEASE * tenths / 10, |stage| stage.servers[0].try_resume())
}

fn busy(stage: &mut Stage) -> Broken {
    stage.order(0, &["CONFIG", "SET", "lua-time-limit", "20"]);
    stage.fault("S8", "a script that does not end", "server");
    let port = stage.servers[0].port();
    let script = std::thread::spawn(move || {
        let client = Client::connect(port, Duration::from_secs(5));
        let _ = client.and_then(|mut client| client.call(&["EVAL", "while true do end", "0"]));
    });
    let lasts = stage.dice.millis(100, 500);
    Broken::until(lasts, |stage| {
        // A restarted server does not run this script.
        stage.ask(0, &["SCRIPT", "KILL"]);
        let _ = script.join();
    })
}

/// The server rejects writes, or reads as well, because it is a replica without a primary.
fn not_a_master(stage: &mut Stage) -> Broken {
    let serves = if stage.dice.percent(50) { "yes" } else { "no" };
    let says = if serves == "yes" { "READONLY" } else { "MASTERDOWN" };
    stage.fault("S14", says, "server");
    stage.order(0, &["CONFIG", "SET", "replica-serve-stale-data", serves]);
    stage.order(0, &["REPLICAOF", "127.0.0.1", "1"]);
    Broken::until(stage.dice.millis(100, 900), |stage| {
        stage.order(0, &["REPLICAOF", "NO", "ONE"]);
    })
}

fn evicted(stage: &mut Stage) -> Broken {
    stage.order(0, &["CONFIG", "SET", "maxmemory-policy", "volatile-random"]);
    stage.fault("S15c", "eviction of keys with a TTL", "server");
    stage.order(0, &["CONFIG", "SET", "maxmemory", "1"]);
    stage.ask(0, &["SET", "junk", "junk", "PX", "1"]);
    stage.order(0, &["CONFIG", "SET", "maxmemory", "0"]);
    Broken::over_after(LEASE)
}

fn out_of_memory(stage: &mut Stage) -> Broken {
    stage.order(0, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    stage.fault("S16", "out of memory", "server");
    stage.order(0, &["CONFIG", "SET", "maxmemory", "1"]);
    Broken::until(stage.dice.millis(100, 900), |stage| {
        stage.order(0, &["CONFIG", "SET", "maxmemory", "0"]);
    })
}

fn flushed(stage: &mut Stage) -> Broken {
    stage.fault("S17c", "FLUSHALL", "server");
    stage.order(0, &["FLUSHALL"]);
    Broken::over_after(LEASE)
}

fn scripts_forgotten(stage: &mut Stage) -> Broken {
    stage.fault("S18", "SCRIPT FLUSH", "servers");
    for at in 0..stage.servers.len() {
        stage.order(at, &["SCRIPT", "FLUSH"]);
    }
    Broken::over_after(Duration::from_millis(100))
}

fn connections_killed(stage: &mut Stage) -> Broken {
    let kind = *stage.dice.pick(&["normal", "pubsub"]);
    stage.fault("S19", &format!("CLIENT KILL TYPE {kind}"), "servers");
    for at in 0..stage.servers.len() {
        stage.order(at, &["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
    }
    Broken::over_after(Duration::from_millis(150))
}

fn full_of_clients(stage: &mut Stage) -> Broken {
    stage.fault("S20", "maxclients", "server");
    stage.order(0, &["CONFIG", "SET", "maxclients", "1"]);
    for kind in ["normal", "pubsub"] {
        stage.order(0, &["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
    }
    Broken::until(stage.dice.millis(100, 900), |stage| {
        stage.order(0, &["CONFIG", "SET", "maxclients", "10000"]);
    })
}

/// The user loses its permissions, or its password changes. Open connections are closed or kept.
fn locked_out(stage: &mut Stage) -> Broken {
    let (what, words) = if stage.dice.percent(50) {
        ("the permissions of the user are revoked", vec!["-@all"])
    } else {
        ("the password of the user is changed", vec!["resetpass", ">another"])
    };
    stage.fault("S21", what, "server");
    stage.order(0, &[["ACL", "SETUSER", USER].as_slice(), &words].concat());
    if stage.dice.percent(50) {
        stage.order(0, &["CLIENT", "KILL", "USER", USER]);
    }
    Broken::until(stage.dice.millis(100, 900), |stage| {
        stage.order(0, &["ACL", "SETUSER", USER, "resetpass", &format!(">{PASSWORD}"), "~*", "&*", "+@all"]);
    })
}

/// The key of a lock holds a foreign list, for longer than the lease.
fn list_on_the_name(stage: &mut Stage) -> Broken {
    let name = *stage.dice.pick(&["dlock:often", "dlock:long"]);
    stage.fault("S22", "a list on the name of a lock", name);
    stage.order(0, &["EVAL", "redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[1], 'theirs')", "1", name]);
    Broken::until(LEASE * 3 / 2, move |stage| {
        stage.order(0, &["DEL", name]);
    })
}

/// The key of a lock holds more than a full queue: bytes behind the value of the lock, which keep
/// its time to live, or a long list or hash, for longer than the lease.
fn long_value(stage: &mut Stage) -> Broken {
    let name = *stage.dice.pick(&["dlock:often", "dlock:long"]);
    let (what, write) = *stage.dice.pick(&LONG_VALUES);
    stage.fault("S23", what, name);
    stage.order(0, &["EVAL", write, "1", name]);
    // The value of a lock may have expired before this command.
    let long = stage.ask(0, &["EVAL", IS_LONG, "1", name]).and_then(|reply| reply.integer());
    stage.observe(LONG, usize::from(long == Some(1)));
    Broken::until(LEASE * 3 / 2, move |stage| {
        stage.order(
            0,
            &["EVAL", &IS_LONG.replace("return 1", "return redis.call('DEL', KEYS[1])"), "1", name],
        );
    })
}

/// The observation of row S23: the number of values that were still there after they were written.
pub(super) const LONG: &str = "long values";

const LONG_VALUES: [(&str, &str); 6] = [
    (
        "ten thousand tokens behind the holder's",
        "return redis.call('APPEND', KEYS[1], string.rep('dl2-00112233445566778899aabbccdd', 10000))",
    ),
    ("a byte more than a full queue", "return redis.call('SETRANGE', KEYS[1], '4128', 'x')"),
    ("a value of 1 MB", "return redis.call('SETRANGE', KEYS[1], '1048575', 'x')"),
    ("a value of 32 MB", "return redis.call('SETRANGE', KEYS[1], '33554431', 'x')"),
    (
        "a list of ten thousand strings",
        "redis.call('DEL', KEYS[1]) for i = 1, 10000 do redis.call('RPUSH', KEYS[1], 'theirs') end",
    ),
    (
        "a hash of ten thousand fields",
        "redis.call('DEL', KEYS[1]) for i = 1, 10000 do redis.call('HSET', KEYS[1], i, 'theirs') end",
    ),
];

/// Whether the key has a value that no lock has.
const IS_LONG: &str = "local kind = redis.call('TYPE', KEYS[1]).ok \
    if kind == 'none' or kind == 'string' and redis.call('STRLEN', KEYS[1]) <= 4128 then return 0 end return 1";

/// Another client publishes on the channels of all processes.
///
/// The rate is limited: many scenes share the processors, and an unoptimized process needs up to
/// 50 µs for a message. A flood without a limit is in `tests/floods`.
fn flood_of_messages(stage: &mut Stage) -> Broken {
    stage.fault("S24", "messages on the channels of all processes", "all processes");
    let (port, lasts) = (stage.servers[0].port(), stage.dice.millis(100, 500));
    let flood = std::thread::spawn(move || {
        let began = std::time::Instant::now();
        let mut received = 0;
        while began.elapsed() < lasts {
            let Ok(mut client) = Client::connect(port, Duration::from_secs(1)) else { break };
            while began.elapsed() < lasts
                && let Ok(reply) = client.call(&["EVAL", PUBLISH, "0", NO_GRANT])
            {
                received += reply.integer().and_then(|count| usize::try_from(count).ok()).unwrap_or_default();
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        received
    });
    Broken::until(lasts, move |stage| {
        let received = flood.join().expect("the flood ends with its time");
        stage.observe(MESSAGES, received);
    })
}

/// The observation of row S24: the number of messages that were delivered to processes.
pub(super) const MESSAGES: &str = "messages of a flood";

/// Publishes forty messages on each channel, and returns how many were delivered.
const PUBLISH: &str = "local received = 0 for _, channel in ipairs(redis.call('PUBSUB', 'CHANNELS', 'dlock:grant:*')) do \
    for i = 1, 40 do received = received + redis.call('PUBLISH', channel, ARGV[1]) end end return received";

/// Has the length of a grant, and names no token.
const NO_GRANT: &str = "xl2-00112233445566778899aabbccdd400|dlock:often";

/// Returns the file to which writes are appended. Since Redis 7, it is in a separate folder.
fn append_only_file(server: &RedisServer) -> PathBuf {
    let folder = server.folder();
    let parts = std::fs::read_dir(folder.join("appendonlydir")).into_iter().flatten().filter_map(Result::ok);
    let mut parts =
        parts.map(|entry| entry.path()).filter(|path| path.to_string_lossy().ends_with(".incr.aof"));
    parts.next().unwrap_or_else(|| folder.join("appendonly.aof"))
}
