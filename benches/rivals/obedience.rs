//! Tests that every library implements the protocol of `dlock_bench_peer`.
//!
//! The tests also check the properties in the list of libraries.
//!
//! Each test has separate servers. If the tools of a language or its registry are missing, the test
//! prints `SKIPPED` and passes.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use dlock_bench_peer::Entry;
use dlock_bench_peer::usage::now;
use dlock_bench_rivals::{IDEMPOTENT_RIVALS, RIVALS, Rival, Tells};
use tempfile::TempDir;

macro_rules! of_every_rival {
    ($($test:ident $name:literal,)+) => {
        $(#[test]
        fn $test() {
            obeys($name);
        })+

        #[test]
        fn the_list_has_no_rival_without_a_test() {
            assert_eq!(RIVALS.map(|rival| rival.name), [$($name),+]);
        }
    };
}

of_every_rival! {
    rslock "rslock",
    async_redis_lock "async-redis-lock",
    distributed_lock_redis "distributed-lock-redis",
    redis_lock "redis-lock",
    go_redis "go-redis",
    redsync "redsync",
    rueidislock "rueidislock",
    redisson "redisson",
    redisson_fair "redisson-fair",
    redis_py "redis-py",
    python_redis_lock "python-redis-lock",
    redlock "redlock",
    redlock_universal "redlock-universal",
}

fn obeys(name: &str) {
    let rival = RIVALS.into_iter().find(|rival| rival.name == name).expect("it is in the list");
    let server = match Server::start() {
        Ok(server) => server,
        Err(why) => return println!("SKIPPED: {why}"),
    };
    let mut process = match Process::start(&rival, &[&server]) {
        Ok(process) => process,
        Err(why) => return println!("SKIPPED: {name}: {why}"),
    };
    assert_eq!(process.line(), "ready", "{name}");

    let usage = process.number("usage", "usage");
    pairs_are_counted(&mut process);
    holds_do_not_overlap(&mut process);
    a_taken_lock_is_freed(&mut process, &server);
    renewals_match_the_list(&mut process, &server, rival.renews);
    loss_reports_match_the_list(&mut process, &server, rival.tells_of_loss != Tells::Never);
    assert!(process.number("usage", "usage") > usage, "processor time grows");
    let refused = process.ask("dance 7");
    assert!(refused.starts_with("cannot "), "{refused}");
    process.ends();

    quorum_support_matches_the_list(&rival, &server);
}

#[test]
fn axum_idempotent() {
    // Its store needs Redis 7.4, so its program may report that instead.
    calls_match_the_list("axum-idempotent", Duplicates::Run);
}

#[test]
fn aws_lambda_powertools() {
    calls_match_the_list("aws-lambda-powertools", Duplicates::AreRefused);
}

/// The behavior of duplicates while the first call of a library runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Duplicates {
    Run,
    AreRefused,
}

fn calls_match_the_list(name: &str, duplicates: Duplicates) {
    let rival = IDEMPOTENT_RIVALS.into_iter().find(|rival| rival.name == name).expect("it is in the list");
    let server = match Server::start() {
        Ok(server) => server,
        Err(why) => return println!("SKIPPED: {why}"),
    };
    let mut process = match Process::start(&rival, &[&server]) {
        Ok(process) => process,
        Err(why) => return println!("SKIPPED: {name}: {why}"),
    };
    match process.line().split_once(' ') {
        None => {}
        Some((word, why)) => {
            assert_eq!((word, why.contains("Redis 7.4")), ("cannot", true), "{name}: {why}");
            return println!("SKIPPED: {name}: {why}");
        }
    }

    let mut ends = |order: &str| {
        let answer = process.ask(order);
        let numbers: Vec<u64> =
            answer.split(' ').skip(1).map(|word| word.parse().expect("a number")).collect();
        let [ran, replayed, refused, nanos] = numbers[..] else { panic!("{answer}") };
        assert!(answer.starts_with("called ") && nanos > 0, "{answer}");
        (ran, replayed, refused)
    };
    assert_eq!(ends("first a 5"), (5, 0, 0), "{name}");
    assert_eq!(ends("replay a 3"), (0, 3, 0), "{name}");
    assert_eq!(ends("first a 1"), (0, 1, 0), "{name}: a stored result is replayed");
    let (ran, _, refused) = ends("duplicate b 8 300000");
    assert_eq!(ran > 1, duplicates == Duplicates::Run, "{name}: {ran} ran");
    assert_eq!(refused > 0, duplicates == Duplicates::AreRefused, "{name}: {refused} were refused");
    process.ends();
}

fn pairs_are_counted(process: &mut Process) {
    let begun = Instant::now();
    let answer = process.ask("pairs 4 200");
    let took = begun.elapsed();

    let numbers: Vec<u64> = answer.split(' ').skip(1).map(|word| word.parse().expect("a number")).collect();
    let [count, nanos, cpu] = numbers[..] else { panic!("{answer}") };
    assert!(count >= 4, "each task locks once at least: {answer}");
    assert!((200_000_000..=nanos_of(took)).contains(&nanos), "it measures the time of the pairs: {answer}");
    assert!(cpu > 0, "{answer}");
}

fn holds_do_not_overlap(process: &mut Process) {
    let folder = TempDir::new().expect("a folder for temporary files");
    // Names of folders may contain spaces.
    let file = folder.path().join("the notes");
    let (start, end) = (now() + 20_000_000, now() + 420_000_000);
    let count = process.number(&format!("enter hot 4 2000 {start} {end} {}", file.display()), "entered");

    let mut entries = Entry::read_all(&file).expect("notes");
    entries.sort_unstable();
    assert_eq!(u64::try_from(entries.len()), Ok(count));
    assert_eq!(entries.iter().map(|entry| entry.task).collect::<BTreeSet<_>>(), BTreeSet::from([0, 1, 2, 3]));
    for entry in &entries {
        let times = [start, entry.asked, entry.entered, entry.entered + BODY, entry.left, now()];
        assert!(times.is_sorted() && entry.asked < end, "{entry:?}, from {start} to {end}");
    }
    for two in entries.windows(2) {
        assert!(two[1].entered >= two[0].left, "two holds overlap: {two:?}");
    }
}

fn a_taken_lock_is_freed(process: &mut Process, server: &Server) {
    let before = now();
    let taken = process.number("take single", "taken");
    let keys = server.keys("*single*");
    assert!(!keys.is_empty(), "the lock is in Redis");
    let lease = keys.iter().map(|key| server.number(&["PTTL", key])).max();
    assert!((20_000..=30_000).contains(&lease.unwrap_or_default()), "the lease is {lease:?} ms");

    let freed = process.number("free", "freed");
    assert!([before, taken, freed, now()].is_sorted(), "{before} {taken} {freed}");
    assert_eq!(server.left_of(&keys), 0, "the lock is gone");
    // The lock can be acquired again at once.
    process.number("take single", "taken");
    process.number("free", "freed");
}

fn renewals_match_the_list(process: &mut Process, server: &Server, renewed: bool) {
    let lease = Duration::from_millis(1_500);
    assert_eq!(process.ask(&format!("hold {HELD} {}", lease.as_millis())), "holding");
    let keys = server.keys("*held:*");
    assert_eq!(keys.len(), HELD);

    // A lease expires by the server's clock, and a missing renewal is visible only there.
    std::thread::sleep(lease + Duration::from_millis(300));
    assert_eq!(server.left_of(&keys), if renewed { HELD } else { 0 }, "renewed: {renewed}");

    assert_eq!(process.ask("release"), "released");
    assert_eq!(server.left_of(&keys), 0);
}

fn loss_reports_match_the_list(process: &mut Process, server: &Server, told: bool) {
    let answer = process.ask("lose lost 1500");
    if !told {
        // Programs in Rust answer `cannot` after `watching`.
        let refused = if answer == "watching" { process.line() } else { answer };
        assert!(refused.starts_with("cannot "), "{refused}");
        return;
    }
    assert_eq!(answer, "watching");
    let deleted = now();
    for key in server.keys("*lost*") {
        server.number(&["DEL", &key]);
    }
    let lost = process.line();
    let lost = lost.strip_prefix("lost ").and_then(|nanos| nanos.parse().ok());
    assert!(lost.is_some_and(|lost| (deleted..=now()).contains(&lost)), "{lost:?} is not after {deleted}");
}

fn quorum_support_matches_the_list(rival: &Rival, first: &Server) {
    let more = [(), ()].map(|()| Server::start().expect("one has started before"));
    let [second, third] = &more;
    let servers = [first, second, third];
    let mut process = Process::start(rival, &servers).expect("it has started before");
    let ready = process.line();
    if !rival.votes {
        assert!(ready.starts_with("cannot "), "{ready}");
        return;
    }
    assert_eq!(ready, "ready");
    process.number("take voted", "taken");
    let holding = servers.iter().filter(|server| !server.keys("*voted*").is_empty()).count();
    assert!(holding >= 2, "{holding} of three servers hold it");
    process.number("free", "freed");
    process.ends();
}

/// A running library. Dropping it kills the process.
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Process {
    fn start(rival: &Rival, servers: &[&Server]) -> Result<Self, String> {
        let mut command = rival.command(&dlock_install::target_folder())?;
        command.args(servers.iter().map(|server| format!("127.0.0.1:{}", server.port)));
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = piped.map_err(|error| error.to_string())?;
        let complaints = child.stderr.take().expect("it is piped");
        // Not inherited: a killed Node leaves an inherited standard error in non-blocking mode, in
        // which long writes fail.
        std::thread::spawn(move || {
            BufReader::new(complaints).lines().map_while(Result::ok).for_each(|line| eprintln!("{line}"));
        });
        let output = child.stdout.take().expect("the output is piped");
        let (send, lines) = channel();
        // The thread ends with the pipe, which ends with the process.
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| send.send(line))
        });
        Ok(Self { input: child.stdin.take(), child, lines })
    }

    fn line(&mut self) -> String {
        self.lines.recv_timeout(LIMIT).expect("an answer in time")
    }

    fn ask(&mut self, order: &str) -> String {
        writeln!(self.input.as_mut().expect("its input is open"), "{order}").expect("it takes orders");
        self.line()
    }

    /// Sends an order, and returns the number after `word`.
    fn number(&mut self, order: &str, word: &str) -> u64 {
        let answer = self.ask(order);
        let number = answer.strip_prefix(word).and_then(|rest| rest.trim().parse().ok());
        number.unwrap_or_else(|| panic!("`{order}` was answered by `{answer}`"))
    }

    /// Closes the input of the process, and waits until it ends.
    fn ends(mut self) {
        self.input = None;
        let status = self.lines.recv_timeout(LIMIT).map_err(|_| self.child.wait());
        assert!(matches!(&status, Err(Ok(status)) if status.success()), "{status:?}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Redis server without persistence.
///
/// It is killed when this is dropped, or when this process ends without a drop.
struct Server {
    /// The parent of the server, which kills it when the pipe to this process closes.
    shell: Child,
    port: u16,
}

impl Server {
    fn start() -> Result<Self, String> {
        let binary = std::env::var("DLOCK_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let version = Command::new(&binary).arg("--version").stdout(Stdio::null()).status();
        version.map_err(|error| format!("`{binary}` does not start: {error}"))?;
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        let port = free.expect("a port is free").port();
        let shell = Command::new("sh")
            .args(["-c", r#""$0" "$@" & read -r end; kill -9 $!; wait"#, &binary])
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("`sh` does not start: {error}"))?;
        let server = Self { shell, port };
        let until = Instant::now() + LIMIT;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            assert!(Instant::now() < until, "`{binary}` did not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    fn keys(&self, pattern: &str) -> Vec<String> {
        let reply = self.call(&["KEYS", pattern]);
        let lines = reply.lines().skip(1).filter(|line| !line.starts_with('$'));
        lines.map(str::to_owned).collect()
    }

    /// Returns the number of these keys that exist.
    fn left_of(&self, keys: &[String]) -> usize {
        keys.iter().filter(|key| self.number(&["EXISTS", key]) == 1).count()
    }

    fn number(&self, command: &[&str]) -> i64 {
        let reply = self.call(command);
        let number = reply.trim().strip_prefix(':').and_then(|number| number.parse().ok());
        number.unwrap_or_else(|| panic!("{command:?}: {reply}"))
    }

    /// Sends one command, and returns its reply.
    fn call(&self, words: &[&str]) -> String {
        let mut connection =
            TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).expect("the server listens");
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.extend(["$", &word.len().to_string(), "\r\n", word, "\r\n"]);
        }
        request += "*1\r\n$4\r\nQUIT\r\n";
        connection.write_all(request.as_bytes()).expect("the server reads");
        let mut reply = String::new();
        connection.read_to_string(&mut reply).expect("the server replies");
        reply.strip_suffix("+OK\r\n").expect("the answer to QUIT comes last").to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shell.stdin = None;
        let _ = self.shell.wait();
    }
}

fn nanos_of(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The shortest hold in nanoseconds: timers may fire before the ordered 2 ms.
const BODY: u64 = 1_000_000;

/// The number of locks that are held at a time.
const HELD: usize = 50;

/// The limit of an answer; a JVM that warms up on a busy machine is slow.
const LIMIT: Duration = Duration::from_secs(60);
