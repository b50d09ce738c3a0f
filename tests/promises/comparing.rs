//! A release that is a comparison, where the server has a command for it: over a server that says what a test wants, so that it is tried
//! whatever server the other tests run over.
//!
//! Not here: what it costs, and that a real server does it (`trips`).

use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::{Answer, HostileServer, Moment};

use super::LONG;

/// A server that says it is this one, and answers a comparison so.
fn server(name: &'static str, version: &'static str, answer: Answer) -> HostileServer {
    HostileServer::start(move |request| match request.name() {
        "HELLO" if request.word(1).is_empty() => {
            let words =
                ["server", name, "version", version].map(|word| format!("${}\r\n{word}\r\n", word.len()));
            Answer::Raw(format!("*4\r\n{}", words.concat()).into_bytes())
        }
        "DELIFEQ" | "DELEX" => answer.clone(),
        _ => Answer::Usual,
    })
}

/// Has so many calls take a lock and let go of it. Returns how often each command has come, and how they ended. Should a busy machine
/// hold a lock for so long that somebody may have come to wait, it has another try.
async fn calls(count: usize, server: impl Fn() -> HostileServer) -> ([usize; 3], Vec<Result<(), Error>>) {
    loop {
        let server = server();
        let manager = LockManager::connect(&server.url()).await.expect("it greets like a Redis");
        let (mut ended, began) = (Vec::new(), Moment::now());
        for _ in 0..count {
            let guard = manager.lock("order:7").lease(LONG).acquire().await.expect("everybody is told yes");
            ended.push(guard.release().await);
        }
        if began.elapsed() < YOUNG {
            return (["DELIFEQ", "DELEX", "EVALSHA"].map(|name| server.count(name)), ended);
        }
    }
}

/// What is held for less has nobody waiting for it, most likely.
const YOUNG: Duration = Duration::from_millis(90);

#[tokio::test]
async fn a_lock_that_nobody_waits_for_is_freed_by_the_command_that_the_server_has() {
    for (name, version, sent) in [
        ("valkey", "9.0.1", [1, 0, 0]),
        ("redis", "8.4.0", [0, 1, 0]),
        ("valkey", "8.1.4", [0, 0, 1]),
        ("redis", "8.2.3", [0, 0, 1]),
        ("redis", "7.0.15", [0, 0, 1]),
        ("another", "9.9.9", [0, 0, 1]),
    ] {
        let freed = Answer::Raw(b":1\r\n".to_vec());

        let (counts, ended) = calls(1, || server(name, version, freed.clone())).await;

        assert!(ended.iter().all(Result::is_ok), "{name} {version}: {ended:?}");
        assert_eq!(counts, sent, "{name} {version}");
    }
}

#[tokio::test]
async fn what_a_comparison_leaves_open_the_script_decides() {
    let another = Answer::Raw(b":0\r\n".to_vec());

    let (counts, ended) = calls(1, || server("valkey", "9.0.1", another.clone())).await;

    assert!(ended.iter().all(Result::is_ok), "the script says that it was ours: {ended:?}");
    assert_eq!(counts, [1, 0, 1]);
}

#[tokio::test]
async fn who_may_not_compare_is_refused_once() {
    for refusal in [
        "NOPERM User dlock has no permissions to run the 'delifeq' command",
        "ERR unknown command 'DELIFEQ', with args beginning with: 'dlock:order:7'",
    ] {
        let (counts, ended) = calls(2, || server("valkey", "9.0.1", Answer::Error(refusal))).await;

        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
        assert_eq!(counts, [1, 0, 2], "{refusal}");
    }
}

#[tokio::test]
async fn an_error_of_a_comparison_is_one_of_the_release() {
    let wrong = "WRONGTYPE Operation against a key holding the wrong kind of value";

    let ([compared, ..], ended) = calls(1, || server("valkey", "9.0.1", Answer::Error(wrong))).await;

    assert!(matches!(ended[..], [Err(Error::WrongKind { .. })]), "{ended:?}");
    assert_eq!(compared, 1);
}
