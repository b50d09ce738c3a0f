//! The number of file descriptors that a manager of a large cluster uses.
//!
//! This is a separate program that runs one test at a time, so its counts contain no other
//! descriptors.

#![cfg(target_os = "linux")]

use std::net::TcpListener;
use std::time::{Duration, Instant};

use dlock_runtime::{Error, LockManager};
use dlock_tests::{Answer, HostileServer, Request, within};

/// Connections per master: commands, messages, and `tracking`. Both ends are in this process.
const OF_A_MASTER: usize = 3 * 2;

/// The bound of other descriptors of the runtime and the manager.
const OTHERS: usize = 32;

const RESPONSE_TIMEOUT: Duration = Duration::from_millis(200);

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
    let own = std::sync::Arc::new(std::sync::OnceLock::new());
    let port = std::sync::Arc::clone(&own);
    let map = map(others);
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

/// The two parts run in sequence, as descriptors belong to the whole process.
#[tokio::test]
async fn a_cluster_of_many_masters_does_not_exhaust_descriptors() {
    masters_are_connected_to_when_their_keys_are_used().await;
    more_masters_than_a_cluster_may_have_are_refused().await;
}
