//! The file descriptors that managers and `doctor` use, and what else they change in their process.
//!
//! This is a separate program that runs one test at a time, so its counts contain no other
//! descriptors.

#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use dlock_runtime::{Error, LockManager};
use dlock_tests::resp::Client;
use dlock_tests::{Answer, Authority, HostileServer, RedisServer, Request, within};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Connections per master: commands, messages, and `tracking`. Both ends are in this process.
const OF_A_MASTER: usize = 3 * 2;

/// The bound of other descriptors of the runtime and the manager.
const OTHERS: usize = 32;

/// The number of servers that `doctor` examines.
const EXAMINED: usize = 256;

const RESPONSE_TIMEOUT: Duration = Duration::from_millis(200);

const LONG: Duration = Duration::from_secs(30);

/// Runs a test after the others have ended: descriptors, limits, and signals belong to the whole
/// process. So its runtime is built when no other test has lowered a limit.
fn alone(test: impl Future<Output = ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("this process has descriptors").block_on(test);
}

/// The limit of descriptors, lowered until it is dropped.
struct LoweredLimit(Rlimit);

impl LoweredLimit {
    fn to(current: u64) -> Self {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit })
            .expect("a limit can be lowered");
        Self(limit)
    }
}

impl Drop for LoweredLimit {
    fn drop(&mut self) {
        // A second panic would abort the program of all tests.
        let _ = setrlimit(Resource::Nofile, self.0);
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("this is Linux").count()
}

/// Replies like a node of a cluster with this slot map.
fn reply(request: &Request, map: &str) -> Answer {
    let text = match (request.name(), &*request.word(1).to_uppercase()) {
        ("CLUSTER", "INFO") => "$18\r\ncluster_state:ok\r\n\r\n".to_owned(),
        ("CLUSTER", _) => map.to_owned(),
        ("ROLE", _) => "*1\r\n$6\r\nmaster\r\n".to_owned(),
        _ => return Answer::Usual,
    };
    Answer::Raw(text.into_bytes())
}

/// Returns a slot map in which the replying server has the first half of the slots, and `others`
/// share the second half. With 8,192 or more others, the replying server has one slot.
fn map(others: &[u16]) -> String {
    let first = if others.len() < 8_192 { 8_192 } else { 1 };
    let slots = 16_384 - first;
    let ranges = others.iter().enumerate().map(|(at, port)| {
        let (from, to) = (first + slots * at / others.len(), first + slots * (at + 1) / others.len() - 1);
        format!("*3\r\n:{from}\r\n:{to}\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")
    });
    let own = format!("*3\r\n:0\r\n:{}\r\n*2\r\n$0\r\n\r\n:{OWN}\r\n", first - 1);
    format!("*{}\r\n{own}{}", others.len() + 1, ranges.collect::<String>())
}

/// A placeholder for the server's own port, which is unknown when its replies are built.
const OWN: &str = "OWN_";

fn server(others: &[u16]) -> HostileServer {
    node(map(others))
}

/// Starts a node of a cluster with this slot map.
fn node(map: String) -> HostileServer {
    let own = std::sync::Arc::new(std::sync::OnceLock::new());
    let port = std::sync::Arc::clone(&own);
    let server = HostileServer::start(move |request| match reply(request, &map) {
        Answer::Raw(text) => {
            let text = String::from_utf8(text).expect("it was written as text");
            let port = port.get().map(|port: &u16| port.to_string()).unwrap_or_default();
            Answer::Raw(text.replace(OWN, &port).into_bytes())
        }
        other => other,
    });
    own.set(server.port()).expect("it is set once");
    server
}

async fn connect(server: &HostileServer, response_timeout: Duration) -> Result<LockManager, Error> {
    let timeout = response_timeout.as_millis();
    let url = format!("redis+cluster://127.0.0.1:{}?response_timeout={timeout}ms", server.port());
    within(Duration::from_secs(10), "the outcome of connecting", LockManager::connect(&url)).await
}

async fn masters_are_connected_to_when_their_keys_are_used() {
    // Masters that accept connections and never reply.
    let silent: Vec<_> =
        (0..400).map(|_| TcpListener::bind(("127.0.0.1", 0)).expect("there is a free port")).collect();
    let ports: Vec<_> =
        silent.iter().map(|listener| listener.local_addr().expect("it is bound").port()).collect();
    let server = server(&ports);
    let before = descriptors();

    let manager =
        connect(&server, RESPONSE_TIMEOUT).await.expect("the seed replies, and all slots are served");
    let connected = descriptors();
    let (mut had, mut refused) = (0, 0);
    for number in 0..16 {
        let began = Instant::now();
        match manager.lock(format!("order:{number}")).try_acquire().await {
            Ok(guard) => {
                assert!(guard.is_some(), "the lock is free");
                had += 1;
            }
            Err(error) => {
                assert!(error.is_unavailable(), "{error:?}");
                refused += 1;
            }
        }
        assert!(began.elapsed() < RESPONSE_TIMEOUT * 3, "{:?}", began.elapsed());
    }
    let used = descriptors();

    assert!(connected <= before + OTHERS, "{before} before, {connected} when connected");
    assert!(had > 0 && refused > 0, "{had} {refused}");
    assert!(used <= before + OTHERS + (refused + 1) * OF_A_MASTER, "{before} before, {used} in use");
}

async fn more_masters_than_a_cluster_may_have_are_refused() {
    for others in [1_000_u16, 16_383] {
        let server = server(&(0..others).map(|at| 1_024 + at).collect::<Vec<_>>());
        let before = descriptors();

        let refused = connect(&server, Duration::from_secs(5)).await;

        let Err(Error::Config { part, problem, .. }) = &refused else { panic!("{refused:?}") };
        let words = format!("names {} primaries; the limit is 1000", others + 1);
        assert!(&**part == "server" && problem.contains(&words), "{problem}");
        assert!(descriptors() <= before + OTHERS, "{before} before, {}", descriptors());
    }
}

/// Returns a slot map in which each slot is a range of its own. The replying server has every
/// second one. `behind` follows the address of each primary.
fn map_of_single_slots(other: u16, (words, behind): (usize, &str)) -> String {
    let host = "$9\r\n127.0.0.1\r\n";
    let ranges = (0..16_384).map(|slot| {
        let port = if slot % 2 == 0 { OWN.to_owned() } else { other.to_string() };
        format!("*3\r\n:{slot}\r\n:{slot}\r\n*{words}\r\n{host}:{port}\r\n{behind}")
    });
    format!("*16384\r\n{}", ranges.collect::<String>())
}

async fn slots_in_ranges_of_their_own_are_served_up_to_the_bound() {
    let silent = TcpListener::bind(("127.0.0.1", 0)).expect("there is a free port");
    let other = silent.local_addr().expect("it is bound").port();
    let id = format!("$40\r\n{}\r\n", "0".repeat(40));

    // As Redis before 7.0 replies, and as a server that adds many words.
    let served = node(map_of_single_slots(other, (3, &id)));
    let manager = connect(&served, Duration::from_secs(5)).await.expect("all slots are served");
    let mut had = 0;
    for number in 0..8 {
        let lock = manager.lock(format!("order:{number}")).retry(0).wait(Duration::ZERO);
        let acquired = tokio::time::timeout(RESPONSE_TIMEOUT, lock.acquire()).await;
        had += u32::from(matches!(acquired, Ok(Ok(_))));
    }
    let larger = node(map_of_single_slots(other, (8, &format!("{id}:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n"))));
    let refused = connect(&larger, Duration::from_secs(5)).await.expect_err("there are too many values");

    assert!((1..8).contains(&had), "{had} of 8 keys are in slots of a server that replies");
    assert!(refused.to_string().contains("a reply of more than 131072 values"), "{refused}");
}

/// Returns the largest number of descriptors during `what`, and its result.
async fn most_descriptors<T>(what: impl Future<Output = T>) -> (usize, T) {
    let mut most = 0;
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    tokio::pin!(what);
    loop {
        tokio::select! {
            done = &mut what => return (most, done),
            _ = ticks.tick() => most = most.max(descriptors()),
        }
    }
}

/// Returns a list of `count` servers on one port, each with its own address.
fn addresses(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|at| format!("127.1.{}.{}", at / 250, at % 250 + 1))
}

async fn doctor_examines_a_bounded_number_of_servers() {
    const NAMED: usize = 2_000;
    // It accepts connections on each address and never replies.
    let silent = TcpListener::bind(("0.0.0.0", 0)).expect("there is a free port");
    let port = silent.local_addr().expect("it is bound").port();
    let master = HostileServer::start(|_| Answer::Usual);
    let (of_master, of_replicas) = (master.port().to_string(), port.to_string());
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let replica = |host: String| format!("*4\r\n{}", ["ip", &host, "port", &of_replicas].map(bulk).concat());
    let replicas = addresses(NAMED).map(replica).collect::<Vec<_>>().concat();
    let sentinel = HostileServer::start(move |request| {
        let text = match (request.name(), &*request.word(1).to_uppercase()) {
            ("SENTINEL", "GET-MASTER-ADDR-BY-NAME") => {
                format!("*2\r\n{}{}", bulk("127.0.0.1"), bulk(&of_master))
            }
            ("SENTINEL", "REPLICAS") => format!("*{NAMED}\r\n{replicas}"),
            _ => return Answer::Usual,
        };
        Answer::Raw(text.into_bytes())
    });
    let replica = |host: String| format!("*2\r\n{}:{port}\r\n", bulk(&host));
    let replicas = addresses(NAMED).map(replica).collect::<Vec<_>>().concat();
    let map = format!("*1\r\n*{}\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:{OWN}\r\n{replicas}", NAMED + 3);
    let node = node(map);
    let patience = "connect_timeout=200ms&response_timeout=200ms";
    let before = descriptors();

    for url in [
        format!("redis+sentinel://127.0.0.1:{}/main?{patience}", sentinel.port()),
        format!("redis+cluster://127.0.0.1:{}?{patience}", node.port()),
    ] {
        let (most, report) = most_descriptors(Box::pin(dlock_runtime::doctor(&url))).await;

        let report = report.expect("the URL can be used").to_string();
        assert!(most <= before + OTHERS + 2 * EXAMINED, "{url}: {before} before, {most} at once");
        let rest = NAMED + 1 - EXAMINED;
        assert!(report.contains(&format!("{rest} further servers")), "{url}: {report}");
    }
}

#[test]
fn a_cluster_of_many_masters_does_not_exhaust_descriptors() {
    alone(async {
        masters_are_connected_to_when_their_keys_are_used().await;
        more_masters_than_a_cluster_may_have_are_refused().await;
        slots_in_ranges_of_their_own_are_served_up_to_the_bound().await;
        doctor_examines_a_bounded_number_of_servers().await;
    });
}

/// Returns the masks of signals, the limits, and the environment of this process, and its folder.
fn process_state() -> Vec<String> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/self/{file}")).expect("this is Linux");
    let (status, limits) = (read("status"), read("limits"));
    let masks =
        status.lines().filter(|line| ["SigBlk", "SigIgn", "SigCgt"].contains(&&line[..6.min(line.len())]));
    let state = masks.chain(limits.lines()).map(str::to_owned);
    let variables = std::env::vars().map(|(name, value)| format!("{name}={value}"));
    let folder = std::env::current_dir().expect("there is a current folder");
    state.chain(variables).chain([folder.display().to_string()]).collect()
}

/// Returns the numbers of the open descriptors that a program inherits which this process starts.
fn inheritable() -> BTreeSet<String> {
    let open = std::fs::read_dir("/proc/self/fdinfo").expect("this is Linux");
    let is_inheritable = |path: &std::path::PathBuf| {
        let info = std::fs::read_to_string(path).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        flags.is_some_and(|flags| {
            let flags = u32::from_str_radix(flags.trim(), 8).expect("an octal number");
            flags & O_CLOEXEC == 0
        })
    };
    let paths = open.filter_map(|entry| Some(entry.ok()?.path())).filter(is_inheritable);
    paths.map(|path| path.display().to_string()).collect()
}

/// The flag of a descriptor that no other program inherits.
const O_CLOEXEC: u32 = 0o2_000_000;

/// Returns the number of threads of managers.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("this is Linux").flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("dlock")).count()
}

#[test]
fn a_manager_leaves_its_process_as_it_was() {
    alone(async {
        const LEASE: Duration = Duration::from_secs(1);
        let server = RedisServer::start();
        let authority = Authority::of_servers();
        let over_tls = authority.as_ref().map(|authority| {
            let server = RedisServer::builder().tls(authority.sign("127.0.0.1"), authority).start();
            let builder = LockManager::builder(&server.tls_url()).tls_ca_pem(authority.pem());
            (server, builder)
        });
        let (before, inherited) = (process_state(), inheritable());

        let plain = LockManager::connect(&server.url()).await.expect("it is open");
        let mut managers = vec![plain, LockManager::connect("memory://").await.expect("it has timers")];
        if let Some((_server, builder)) = &over_tls {
            managers.push(builder.clone().connect().await.expect("its authority is trusted"));
        }
        for manager in &managers {
            // Long enough for renewals, and for a connection for tracking.
            let lock = manager.lock("order:7").lease(LEASE);
            let held = lock.run(async |_| tokio::time::sleep(LEASE * 3 / 2).await);
            within(LONG, "the body", held).await.expect("it is renewed");
        }
        dlock_runtime::doctor(&server.url()).await.expect("the URL can be used");

        assert!(threads() > 0 && !inherited.is_empty(), "standard input and output are inherited");
        assert_eq!(inheritable(), inherited, "descriptors that another program inherits");
        assert_eq!(process_state(), before);
        drop(managers);
        let ended = async {
            while threads() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(LONG, "the end of the threads", ended).await;
        assert_eq!(process_state(), before);
    });
}

#[test]
fn exhausted_descriptors_are_the_reason() {
    alone(async {
        const REASON: &str = "Too many open files";
        let server = RedisServer::start();
        let manager = LockManager::connect(&server.url()).await.expect("it is open");
        let mut admin = Client::connect(server.port(), LONG).expect("the server listens");

        let lowered = LoweredLimit::to(3);
        let connected = LockManager::connect(&server.url()).await.map(drop);
        let examined = dlock_runtime::doctor(&server.url()).await.map(drop);
        admin.call(&["CLIENT", "KILL", "SKIPME", "yes"]).expect("it replies");
        let once = manager.lock("order:7").acquire().await.map(drop);
        let waited = manager.lock("order:7").wait(RESPONSE_TIMEOUT * 2).acquire().await.map(drop);
        drop(lowered);
        let again = manager.lock("order:7").wait(LONG).acquire().await;

        for outcome in [connected, examined, once, waited] {
            let Err(Error::Unavailable { reason, .. }) = &outcome else { panic!("{outcome:?}") };
            assert!(reason.contains(REASON), "{reason}");
        }
        assert!(again.is_ok(), "{again:?}");
    });
}

#[test]
fn a_relative_path_stays_that_of_the_folder_at_the_start() {
    alone(async {
        let Some(authority) = Authority::of_servers() else { return };
        let server = RedisServer::builder().tls(authority.sign("127.0.0.1"), &authority).start();
        let (at_start, files) =
            (std::env::current_dir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        std::fs::write(files.path().join("ca.pem"), authority.pem()).expect("it is ours");
        std::env::set_current_dir(files.path()).expect("it exists");
        let url = format!("{}?tls_ca=ca.pem", server.tls_url());
        let manager = LockManager::connect(&url).await.expect("its authority is trusted");

        std::env::set_current_dir("/").expect("it exists"); // as a daemon does
        server.call(&["CLIENT", "KILL", "SKIPME", "yes"]);
        let acquired = manager.lock("order:7").wait(LONG / 10).acquire().await.map(drop);
        std::env::set_current_dir(at_start).expect("it exists");

        assert!(acquired.is_ok(), "{acquired:?}");
    });
}
