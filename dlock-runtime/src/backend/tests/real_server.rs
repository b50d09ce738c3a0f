//! [`RealServer`], a Redis server for tests that compare it with rules or with a stub.

#[cfg(any(feature = "idempotent", feature = "scheduled"))]
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

#[cfg(any(feature = "idempotent", feature = "scheduled"))]
use crate::manager::LockManager;

/// A server that ends with the value.
pub(crate) struct RealServer {
    process: Child,
    port: u16,
}

impl RealServer {
    /// Starts a server on a free port. Returns `None` if there is no binary. `test`: what is
    /// skipped without one.
    pub(crate) fn start(test: &str) -> Option<Self> {
        let binary = std::env::var_os("DLOCK_REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
        let port = port.port();
        let mut command = Command::new(binary);
        command.args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string()]);
        let Ok(process) = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
            println!("SKIPPED: {test}: no redis-server was found");
            return None;
        };
        let mut server = Self { process, port };
        let mut tries = 0;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            tries += 1;
            let ended = server.process.try_wait();
            assert!(tries < 1_000 && matches!(ended, Ok(None)), "it does not start: {ended:?}");
            sleep(Duration::from_millis(10));
        }
        Some(server)
    }

    /// Opens a connection.
    pub(crate) fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).expect("it takes connections")
    }

    #[cfg(any(feature = "idempotent", feature = "scheduled"))]
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// From now on, the server has no memory for writes that need some.
    #[cfg(feature = "idempotent")]
    pub(crate) fn fill(&self) {
        let mut connection = self.connect();
        connection.write_all(b"CONFIG SET maxmemory 1\r\n").expect("it reads");
        let mut reply = String::new();
        BufReader::new(connection).read_line(&mut reply).expect("it replies");
        assert_eq!(reply, "+OK\r\n");
    }
}

/// A connection that counts what a server holds and does.
#[cfg(any(feature = "idempotent", feature = "scheduled"))]
struct Counter(BufReader<TcpStream>);

#[cfg(any(feature = "idempotent", feature = "scheduled"))]
impl Counter {
    /// Returns how many keys have no time to live.
    fn keys_without_expiry(&mut self) -> u64 {
        self.eval("local count = 0 for _, key in ipairs(redis.call('KEYS', '*')) do if redis.call('PTTL', key) < 0 then count = count + 1 end end return count")
    }

    /// Returns how many writes the server has made.
    fn writes(&mut self) -> u64 {
        self.eval("return tonumber(string.match(redis.call('INFO', 'persistence'), 'rdb_changes_since_last_save:(%d+)'))")
    }

    fn eval(&mut self, script: &str) -> u64 {
        self.0.get_mut().write_all(format!("EVAL \"{script}\" 0\r\n").as_bytes()).expect("it reads");
        let mut reply = String::new();
        self.0.read_line(&mut reply).expect("it replies");
        let count = reply.trim_end().strip_prefix(':').and_then(|count| count.parse().ok());
        count.unwrap_or_else(|| panic!("a count: {reply}"))
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        let _ = self.process.kill().and_then(|()| self.process.wait());
    }
}

/// Asserts that random operations on records get equal replies in memory, where the rules run, and
/// over a real server, where the scripts run.
///
/// `test`: what is skipped without a server. `apply` runs the operation that a random number
/// selects. It returns the operation with its reply as text, and whether replicas must acknowledge
/// it: then the script must have written.
#[cfg(any(feature = "idempotent", feature = "scheduled"))]
pub(crate) async fn assert_scripts_follow_rules<R>(
    test: &str,
    (records, operations): (u64, u64),
    record_in: impl Fn(&LockManager, u64) -> R,
    apply: impl AsyncFn(&R, u64) -> (String, bool),
) {
    let Some(server) = RealServer::start(test) else { return };
    let over_redis = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let memory = LockManager::in_new_memory();
    let mut counter = Counter(BufReader::new(server.connect()));
    for record in 0..records {
        let [rules, scripts] = [&memory, &over_redis].map(|manager| record_in(manager, record));
        let mut history = Vec::new();
        for number in 0..operations {
            let choice = splitmix(record << 32 | number);
            history.push(apply(&rules, choice).await.0);
            let before = counter.writes();
            let (replied, is_write) = apply(&scripts, choice).await;
            assert_eq!(Some(&replied), history.last(), "record {record}: {history:#?}");
            assert!(!is_write || counter.writes() > before, "record {record}: no write: {history:#?}");
        }
    }
    assert_eq!(counter.keys_without_expiry(), 0);
}

/// Returns a pseudorandom number (splitmix64; Steele, Lea, and Flood, OOPSLA 2014).
#[cfg(any(feature = "idempotent", feature = "scheduled"))]
fn splitmix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
