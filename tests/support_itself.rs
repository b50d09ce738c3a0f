//! Tests of the test support: a check that cannot fail proves nothing.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dlock_tests::child::OwnChild;
use dlock_tests::resp::{Client, Reply};
use dlock_tests::{Answer, HostileServer, Moment, Proxy, RedisServer, Worker, within};

const SOON: Duration = Duration::from_secs(5);
/// Long enough for a reply over loopback, and short enough to wait for a missing one.
const SILENCE: Duration = Duration::from_millis(150);

fn ping(port: u16) -> std::io::Result<Reply> {
    Client::connect(port, SILENCE).and_then(|mut client| client.call(&["PING"]))
}

fn pong() -> Reply {
    Reply::Status("PONG".to_owned())
}

#[test]
fn a_server_answers_on_its_port_and_dies_with_its_handle() {
    let server = RedisServer::start();
    let port = server.port();
    assert_eq!(ping(port).expect("the server replies"), pong());

    drop(server);

    assert!(ping(port).is_err());
}

#[test]
fn a_paused_server_is_silent_and_a_resumed_one_answers() {
    let server = RedisServer::start();
    let mut client = Client::connect(server.port(), SILENCE).expect("the server accepts connections");

    server.pause();
    let while_paused = client.call(&["PING"]);
    server.resume();

    assert!(while_paused.is_err());
    assert_eq!(server.call(&["PING"]), pong());
}

#[test]
fn a_killed_server_comes_back_empty_on_the_same_port() {
    let mut server = RedisServer::start();
    let (port, pid) = (server.port(), server.pid());
    server.call(&["SET", "key", "value"]);

    server.kill();
    assert!(ping(port).is_err());
    server.restart();

    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    assert_eq!(server.call(&["GET", "key"]), Reply::Nil);
}

#[test]
fn a_paused_server_can_be_paused_again_and_killed() {
    let mut server = RedisServer::start();
    server.pause();
    server.pause();

    server.kill();

    assert!(ping(server.port()).is_err());
}

#[test]
fn a_server_dies_with_a_test_process_that_is_killed() {
    const NAME: &str = "a_server_dies_with_a_test_process_that_is_killed";
    if std::env::var_os("DLOCK_TEST_VICTIM").is_some() {
        let server = RedisServer::start();
        println!("port={}", server.port());
        std::thread::park_timeout(SOON * 4);
        return;
    }
    let program = std::env::current_exe().expect("the path of this program");
    let mut command = Command::new(program);
    command.args(["--exact", NAME, "--nocapture"]).env("DLOCK_TEST_VICTIM", "yes");
    command.stdout(Stdio::piped());
    let mut victim = OwnChild::spawn(&mut command, None).expect("the program starts");
    let output = BufReader::new(victim.inner().stdout.take().expect("the output is piped"));
    let port = output.lines().map_while(Result::ok).find_map(|line| line.split_once("port=")?.1.parse().ok());
    let port: u16 = port.expect("the victim prints its server's port");
    assert_eq!(ping(port).expect("its server replies"), pong());

    victim.kill();

    let started = Instant::now();
    while ping(port).is_ok() {
        assert!(started.elapsed() < SOON, "the server outlived its test process");
    }
}

/// Runs the test `name` of this program for `time`, watched by `hanging.sh` with a limit of 1 s and
/// `ps` in the folder `tools`. Returns the output of the script, and the exit code of the program.
fn watched(name: &str, time: Duration, tools: &Path) -> (String, i32) {
    let log = tools.join("log");
    let lines = ["     Running of.rs", "test slow has been running for over 60 seconds", "test slow ... ok"];
    let hangs = format!("test {name} has been running for over 60 seconds");
    std::fs::write(&log, [&lines[..], &[&hangs, ""]].concat().join("\n")).expect("it can be written");
    // Among the descendants of this shell, there are no programs of other tests.
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$@\"; exit $?", "sh"]).arg(std::env::current_exe().expect("a path"));
    shell.args(["--exact", name]).env("DLOCK_TEST_VICTIM", time.as_millis().to_string());
    let mut shell = OwnChild::spawn(shell.stdout(Stdio::null()), None).expect("the shell starts");

    let mut watch = Command::new("bash");
    watch.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/hanging.sh")).args([&shell.pid().to_string(), "1"]);
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").expect("it is set"));
    let watch = watch.arg(&log).env("PATH", path).stdout(Stdio::piped()).spawn().expect("bash starts");
    let status = shell.inner().wait().expect("the program ends");

    let output = watch.wait_with_output().expect("it ends with the shell");
    (String::from_utf8_lossy(&output.stdout).into_owned(), status.code().expect("the shell is not ended"))
}

/// Lasts for the time that [`watched`] asks for. Returns `false` in a usual run of the tests.
fn is_watched() -> bool {
    let time = std::env::var("DLOCK_TEST_VICTIM").ok().and_then(|time| time.parse().ok());
    time.map(|ms| std::thread::sleep(Duration::from_millis(ms))).is_some()
}

#[test]
fn a_program_that_hangs_is_ended_with_the_names_of_its_tests() {
    const NAME: &str = "a_program_that_hangs_is_ended_with_the_names_of_its_tests";
    if is_watched() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder can be made");

    let (printed, code) = watched(NAME, SOON * 4, folder.path());

    let expected = format!("hangs: a test program, which is ended after 1 s, in: {NAME}");
    assert_eq!(printed.lines().next(), Some(&*expected), "{printed}");
    assert_eq!(code, 137);
}

#[test]
fn a_program_that_starts_while_ps_runs_is_not_ended() {
    const NAME: &str = "a_program_that_starts_while_ps_runs_is_not_ended";
    if is_watched() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let ps = folder.path().join("ps");
    let ages = r#"PATH=${PATH#*:} ps "$@" | sed -E 's/^( *[0-9]+ +[0-9]+ +)[0-9:]+ /\1441077234-00:18:40 /'"#;
    std::fs::write(&ps, format!("#!/bin/sh\n{ages}\n")).expect("it can be written");
    std::fs::set_permissions(&ps, Permissions::from_mode(0o755)).expect("it is our file");

    let (printed, code) = watched(NAME, Duration::from_millis(1_500), folder.path());

    assert_eq!((&*printed, code), ("", 0));
}

#[tokio::test]
async fn server_with_a_password_rejects_clients_without_one() {
    let server = RedisServer::builder().password("sesame").line("maxmemory 64mb").start();

    let stranger = ping(server.port()).expect("a refusal is a reply");
    let mut friend = server.raw().await;
    let answer: String = redis::cmd("PING").query_async(&mut friend).await.expect("the password is correct");

    assert!(stranger.text().is_some_and(|text| text.starts_with("NOAUTH")), "{stranger:?}");
    assert_eq!(answer, "PONG");
}

#[test]
fn executed_commands_are_counted_without_the_counting() {
    let server = RedisServer::start();
    let before = server.command_total();

    server.call(&["SET", "a", "1"]);
    server.call(&["SET", "b", "1"]);

    assert_eq!(server.command_count("set"), 2);
    assert_eq!(server.command_total() - before, 2);
}

#[test]
#[should_panic(expected = "no-such-setting")]
fn a_server_that_cannot_start_shows_its_log() {
    let _ = RedisServer::builder().line("no-such-setting yes").start();
}

#[test]
fn a_proxy_passes_a_ping() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());

    let answer = ping(proxy.port());

    assert_eq!(answer.expect("the network is open"), pong());
    assert_eq!(proxy.stats().connections, 1);
    assert_eq!((proxy.stats().request_bytes, proxy.stats().reply_bytes), (14, 7));
}

#[test]
fn a_black_hole_accepts_and_does_not_answer() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    proxy.black_hole();

    let mut client = Client::connect(proxy.port(), SILENCE).expect("a black hole accepts");
    assert!(client.call(&["SET", "key", "1"]).is_err());
    proxy.pass();

    assert!(client.call(&["PING"]).is_err(), "a connection with a gap in it was healed");
    assert_eq!(ping(proxy.port()).expect("a new connection works"), pong());
    assert_eq!(server.call(&["EXISTS", "key"]), Reply::Integer(0));
}

#[test]
fn a_dropped_request_never_reaches_the_server() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    proxy.drop_next_requests(1);

    let mut client = Client::connect(proxy.port(), SILENCE).expect("the proxy accepts");
    let dropped = client.call(&["SET", "key", "1"]);

    assert!(dropped.is_err());
    assert_eq!(server.command_count("set"), 0);
    assert_eq!(ping(proxy.port()).expect("only one was to be dropped"), pong());
}

#[tokio::test]
async fn a_request_whose_reply_is_swallowed_has_been_executed() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    proxy.swallow_replies();
    let answered = proxy.on_reply(b"OK");

    let port = proxy.port();
    let client = tokio::task::spawn_blocking(move || {
        Client::connect(port, SILENCE).and_then(|mut client| client.call(&["SET", "key", "1"]))
    });
    within(SOON, "the swallowed reply", answered).await;

    assert_eq!(server.call(&["GET", "key"]), Reply::Text("1".to_owned()));
    assert!(client.await.expect("the client did not panic").is_err());
}

#[tokio::test]
async fn held_request_arrives_even_after_its_client_closed() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    proxy.hold_requests();
    let held = proxy.on_request(b"SET");

    let mut client = Client::connect(proxy.port(), SILENCE).expect("the proxy accepts");
    assert!(client.call(&["SET", "key", "1"]).is_err());
    drop(client);
    within(SOON, "the held request", held).await;
    assert_eq!((server.command_count("set"), proxy.stats().on_their_way), (0, 1));
    let answered = proxy.on_reply(b"OK");
    proxy.pass();
    within(SOON, "its late execution", answered).await;

    assert_eq!(server.command_count("set"), 1);
    let arrived = async {
        while proxy.stats().on_their_way > 0 {
            tokio::task::yield_now().await; // it counts as in flight until it is written
        }
    };
    within(SOON, "the delivery", arrived).await;
}

#[tokio::test]
async fn a_held_reply_arrives_when_the_hold_ends() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    proxy.hold_replies();
    let executed = proxy.on_reply(b"");

    let port = proxy.port();
    let client = tokio::task::spawn_blocking(move || {
        Client::connect(port, SOON).and_then(|mut client| client.call(&["PING"]))
    });
    within(SOON, "the reply at the proxy", executed).await;
    assert!(!client.is_finished());
    proxy.pass();

    assert_eq!(client.await.expect("the client did not panic").expect("the reply was delivered"), pong());
}

#[test]
fn a_hold_can_begin_after_a_number_of_requests() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let set = |client: &mut Client| client.call(&["SET", "key", "1"]);

    proxy.hold_replies_after(1);
    let mut client = Client::connect(proxy.port(), SILENCE).expect("the proxy accepts");
    assert!(set(&mut client).is_ok());
    assert!(set(&mut client).is_err());
    assert_eq!(server.command_count("set"), 2);
    proxy.pass();

    proxy.hold_requests_after(1);
    let mut client = Client::connect(proxy.port(), SILENCE).expect("the proxy accepts");
    assert!(set(&mut client).is_ok());
    assert!(set(&mut client).is_err());
    assert_eq!(server.command_count("set"), 3);
}

#[test]
fn each_direction_has_its_configured_delay() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let mut client = Client::connect(proxy.port(), SOON).expect("the proxy accepts");
    proxy.delay_requests(Duration::from_millis(60));
    proxy.delay_replies(Duration::from_millis(40));

    let started = Instant::now();
    let answer = client.call(&["PING"]);

    assert_eq!(answer.expect("slow, not lost"), pong());
    assert!(started.elapsed() >= Duration::from_millis(100), "{:?}", started.elapsed());
}

#[test]
fn bytes_that_come_one_by_one_are_all_there() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    proxy.one_byte_at_a_time();

    let mut client = Client::connect(proxy.port(), SOON).expect("the proxy accepts");
    let value = "x".repeat(500);
    client.call(&["SET", "key", &value]).expect("the network is open");

    assert_eq!(client.call(&["GET", "key"]).expect("the network is open"), Reply::Text(value));
}

#[test]
fn a_reset_cuts_open_connections_and_spares_new_ones() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let mut client = Client::connect(proxy.port(), SOON).expect("the proxy accepts");
    client.call(&["PING"]).expect("the network is open");

    proxy.reset_all();

    let error = client.call(&["PING"]).and_then(|_| client.call(&["PING"])).expect_err("it was cut");
    assert!(
        !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
        "{error}"
    );
    assert_eq!(ping(proxy.port()).expect("a new connection works"), pong());
}

#[test]
fn a_proxy_that_refuses_can_accept_again() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());

    proxy.refuse();
    let refused = ping(proxy.port()).expect_err("the port is closed");
    let taken = std::net::TcpListener::bind(("127.0.0.1", proxy.port())).expect_err("the port is reserved");
    proxy.pass();

    // Another test that is starting a process may briefly inherit the listening socket. Then the
    // result is a reset.
    let kinds = [std::io::ErrorKind::ConnectionRefused, std::io::ErrorKind::ConnectionReset];
    assert!(kinds.contains(&refused.kind()), "{refused:?}");
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    assert_eq!(ping(proxy.port()).expect("the network is open"), pong());
}

#[tokio::test]
async fn a_hostile_server_passes_for_a_redis() {
    let server = HostileServer::start(|_| Answer::Usual);

    let client = redis::Client::open(format!("{}/?protocol=resp3", server.url())).expect("it has a URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("it greets");
    let answer: String = redis::cmd("PING").query_async(&mut connection).await.expect("it replies");
    let (mut sink, _messages) = client.get_async_pubsub().await.expect("it greets").split();
    let subscribed = within(SOON, "the subscription", sink.subscribe("channel")).await;

    assert_eq!(answer, "PONG");
    assert!(subscribed.is_ok(), "{subscribed:?}");
    assert_eq!(server.count("PING"), 1);
}

#[test]
fn a_hostile_server_sends_its_scripted_replies() {
    let loading = HostileServer::answering(&["SET"], &Answer::Error("LOADING in progress"));
    let garbage = HostileServer::answering(&["SET"], &Answer::Raw(b"\0\xff?\r\n".to_vec()));
    let silence = HostileServer::answering(&["SET"], &Answer::Silence);
    let close = HostileServer::answering(&["SET"], &Answer::RawThenClose(b"$10\r\nhal".to_vec()));

    let set = |server: &HostileServer| {
        Client::connect(server.port(), SILENCE).and_then(|mut client| client.call(&["SET", "key", "1"]))
    };

    assert_eq!(set(&loading).expect("an error is a reply"), Reply::Error("LOADING in progress".to_owned()));
    assert_eq!(set(&garbage).expect_err("garbage").kind(), std::io::ErrorKind::InvalidData);
    assert!(matches!(set(&silence).expect_err("silence").kind(), std::io::ErrorKind::WouldBlock));
    assert_eq!(set(&close).expect_err("half a reply").kind(), std::io::ErrorKind::UnexpectedEof);
    assert_eq!(ping(close.port()).expect("other commands have their usual replies"), pong());
}

#[tokio::test]
async fn a_helper_process_is_driven_by_lines_frozen_and_killed() {
    let script = "echo ready 1 -; while read -r verb key rest; do echo \"$verb 5 $key $rest\"; done";
    let mut worker = Worker::spawn("sh", &["-c", script]).await;

    worker.send("first a");
    worker.send("second b with detail");
    let second = worker.event("second", "b").await;
    let first = worker.event("first", "a").await;
    worker.pause();
    worker.send("third c");
    let while_frozen = tokio::time::timeout(SILENCE, worker.event("third", "c")).await;
    worker.resume();
    worker.event("third", "c").await;
    worker.kill();

    assert_eq!((second.detail.as_str(), second.at), ("with detail", Moment::from_nanos(5)));
    assert_eq!(first.detail, "");
    assert!(while_frozen.is_err());
}

#[test]
fn the_boot_clock_goes_forward() {
    let first = Moment::now();

    assert!(Moment::now() >= first);
    assert_eq!(first.since(first + SOON), Duration::ZERO);
}

#[test]
fn a_proxy_records_request_names_once_enabled() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let mut client = Client::connect(proxy.port(), SOON).expect("the proxy accepts connections");
    client.call(&["PING"]).expect("the network is open");
    let before = Moment::now();

    proxy.note_requests();
    client.call(&["set", "a", "1"]).expect("the network is open");
    client.call(&["GET", "a"]).expect("the network is open");

    let noted = proxy.noted();
    assert_eq!(noted.iter().map(|sent| &*sent.name).collect::<Vec<_>>(), ["SET", "GET"]);
    assert!(noted.is_sorted_by_key(|sent| sent.at) && noted[0].at >= before, "{noted:?}");
    assert_eq!(server.commands().get("get"), Some(&1));
}

#[test]
fn a_proxy_that_is_far_away_takes_a_round_trip_for_each_answer() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let round_trip = Duration::from_millis(30);
    let mut client = Client::connect(proxy.port(), SOON).expect("the proxy accepts connections");

    proxy.round_trip(round_trip);
    let sent = Moment::now();
    client.call(&["PING"]).expect("the network is open");
    client.call(&["PING"]).expect("the network is open");

    assert!(sent.elapsed() >= round_trip * 2, "{:?}", sent.elapsed());
}
