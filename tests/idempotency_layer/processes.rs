//! Many callers over several processes, and a process that is killed.
//!
//! A process of the service is this test program, which runs only [`service_process`].

use std::io::{BufRead, BufReader, Lines};
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use dlock_tests::child::OwnChild;
use dlock_tests::{RedisServer, within};
use reqwest::{Client, RequestBuilder};

use crate::shop::Shop;

const PROCESSES: usize = 4;
const CALLERS: usize = 200;
const LIMIT: Duration = Duration::from_secs(30);

/// A process that serves the shop on its own port.
struct ServiceProcess {
    child: OwnChild,
    output: Lines<BufReader<ChildStdout>>,
    port: u16,
}

impl ServiceProcess {
    fn start(url: &str) -> Self {
        let program = std::env::current_exe().expect("the test program has a path");
        let mut command = Command::new(program);
        command
            .args(["--exact", "processes::service_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env(URL, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = OwnChild::spawn(&mut command, None).expect("the test program starts");
        let mut output = BufReader::new(child.inner().stdout.take().expect("it is piped")).lines();
        let lines = output.by_ref().map_while(Result::ok);
        let mut ports = lines.filter_map(|line| line.strip_prefix(PORT).and_then(|port| port.parse().ok()));
        let port = ports.next().expect("the process prints its port");
        Self { child, output, port }
    }

    /// Waits until a handler is at the gate.
    fn wait_until_entered(&mut self) {
        let entered = || self.output.by_ref().map_while(Result::ok).any(|line| line == ENTERED);
        assert!(tokio::task::block_in_place(entered), "the process is alive");
    }

    fn post(&self, path: &str, key: &str) -> RequestBuilder {
        let request = Client::new().post(format!("http://127.0.0.1:{}{path}", self.port));
        request.header("idempotency-key", key).header("x-user", "7")
    }
}

/// The environment variable with the URL of the store.
const URL: &str = "DLOCK_SERVICE_PROCESS_URL";

/// The text before the port in the output of a process.
const PORT: &str = "service port ";

/// The line that a process prints when a handler is at the gate.
const ENTERED: &str = "a handler is at the gate";

/// Not a test: the main function of a process. It ends with its input.
#[test]
#[ignore = "it is the main function of the processes that the tests here start"]
fn service_process() {
    let Ok(url) = std::env::var(URL) else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let settings = |layer: crate::shop::ShopLayer| layer.wait(LIMIT).lease(LEASE);
        let shop = Shop::start(&url, settings).await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        println!("\n{PORT}{}", listener.local_addr().expect("a bound socket has an address").port());
        let entered = shop.counters.entered.clone();
        tokio::spawn(async move {
            loop {
                entered.notified().await;
                println!("{ENTERED}");
            }
        });
        tokio::spawn(async move { axum::serve(listener, shop.routes).await });
    });
    for _line in std::io::stdin().lock().lines().map_while(Result::ok) {}
}

const LEASE: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_handler_serves_200_callers_of_four_processes() {
    let redis = RedisServer::start();
    let processes: Vec<_> = (0..PROCESSES).map(|_| ServiceProcess::start(&redis.url())).collect();

    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let request = processes[caller % PROCESSES].post("/orders/1", "k");
            tokio::spawn(async move {
                let response = request.send().await.expect("the service responds");
                let (status, replayed) =
                    (response.status().as_u16(), response.headers().contains_key("idempotent-replayed"));
                (status, replayed, response.bytes().await.expect("the body is complete"))
            })
        })
        .collect();
    let mut answers = Vec::new();
    for caller in callers {
        answers.push(within(LIMIT, "the caller is answered", caller).await.expect("no panic"));
    }

    assert_eq!(answers.iter().filter(|(_, replayed, _)| !replayed).count(), 1, "one handler ran");
    for (status, _, body) in answers {
        assert_eq!((status, &body[..]), (201, &b"order 1, run 1"[..]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_killed_leaves_an_unknown_outcome() {
    let redis = RedisServer::start();
    let (mut killed, other) = (ServiceProcess::start(&redis.url()), ServiceProcess::start(&redis.url()));
    let first = tokio::spawn(killed.post("/gate/1", "k").send());
    killed.wait_until_entered();

    killed.child.inner().kill().expect("it is alive");
    let after = within(LIMIT, "the lease ends", other.post("/gate/1", "k").send()).await.expect("a response");

    assert!(first.await.expect("no panic").is_err(), "the connection is closed");
    assert_eq!(after.status().as_u16(), 500);
    let text = after.text().await.expect("a text");
    assert!(text.contains("\"code\":\"outcome_unknown\""), "no second run: {text}");
}
