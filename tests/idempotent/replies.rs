//! Replies that no script gives. The event may have been applied, so each counts as unknown.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_runtime::idempotent::OnUnavailable;
use dlock_runtime::{Error, LockKey, LockManager};
use dlock_tests::hostile::Request;
use dlock_tests::{Answer, HostileServer, until, within};

use super::{LONG, Runs};

/// Replies that no script of a record gives to this event.
const REPLIES: [&[u8]; 4] = [b"*0\r\n", b"*1\r\n$3\r\nwho\r\n", b":99\r\n", b"*2\r\n:3\r\n:3\r\n"];

/// Starts attempt 1 of every call, and replies to its later scripts with `reply`.
fn server(reply: &'static [u8]) -> HostileServer {
    HostileServer::start(move |request: &Request| match request.name() {
        "EVAL" | "EVALSHA" if is_begin(request) => Answer::Raw(b"*2\r\n:1\r\n:1\r\n".to_vec()),
        "EVAL" | "EVALSHA" => Answer::Raw(reply.to_vec()),
        _ => Answer::Usual,
    })
}

/// Of the scripts of a record, only `begin` has a crash policy.
fn is_begin(request: &Request) -> bool {
    (5..12).any(|position| request.word(position) == "fail")
}

#[tokio::test]
async fn undecodable_replies_stop_no_body_and_hide_no_value() {
    for reply in REPLIES {
        let server = server(reply);
        let manager = LockManager::connect(&server.url()).await.expect("the server accepts connections");
        let call = manager.idempotent("k").lease(Duration::from_millis(300));
        // Renewals get the reply, too. The body continues, since no other attempt can start.
        let ran = call.run_attached(async |_record| {
            tokio::time::sleep(Duration::from_millis(450)).await;
            Ok::<_, Error>(7)
        });

        let ran = within(LONG, "the call", ran).await;
        assert_eq!(ran.expect("the caller gets its value").into_value(), 7, "{reply:?}");
        within(LONG, "the shutdown, which waits for the end", manager.shutdown(LONG)).await;
        assert_eq!(manager.pending_results(), 0, "{reply:?}");
    }
}

/// The replies to the second of two starts: it has started, and another attempt is running.
const SECOND_STARTS: [&[u8]; 2] =
    [b"*2\r\n:1\r\n:1\r\n", b"*7\r\n:3\r\n$0\r\n\r\n$0\r\n\r\n$2\r\n0:\r\n$1\r\nP\r\n:9000\r\n:0\r\n"];

/// The first start could take effect after the attempt was forgotten.
#[tokio::test]
async fn an_attempt_that_was_started_twice_is_forgotten_twice() {
    for reply in SECOND_STARTS {
        let (server, forgotten) = server_that_loses_a_start(reply);
        let manager = LockManager::connect(&server.url()).await.expect("the server accepts connections");
        let call = manager.idempotent("k");

        let failed = call.run(async |_| Ok::<_, Error>(LockKey::new("").map(drop)?)).await;

        assert!(failed.is_err(), "{failed:?}");
        until("it is forgotten again", async || forgotten.load(Ordering::SeqCst) == 2).await;
    }
}

/// Returns a server that closes the connection of the first start and gives `reply` to the second,
/// with the number of times that an attempt was forgotten.
fn server_that_loses_a_start(reply: &'static [u8]) -> (HostileServer, Arc<AtomicUsize>) {
    let (starts, forgotten) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&forgotten);
    let is_forget = |request: &Request| ["0", "1"].contains(&&*request.word(7)) && request.word(8).is_empty();
    let server = HostileServer::start(move |request: &Request| match request.name() {
        "EVAL" | "EVALSHA" if is_begin(request) => match starts.fetch_add(1, Ordering::SeqCst) {
            0 => Answer::Close,
            _ => Answer::Raw(reply.to_vec()),
        },
        "EVAL" | "EVALSHA" if is_forget(request) => {
            seen.fetch_add(1, Ordering::SeqCst);
            Answer::Usual
        }
        _ => Answer::Usual,
    });
    (server, forgotten)
}

#[tokio::test]
async fn a_start_with_an_undecodable_reply_runs_no_body() {
    for reply in REPLIES {
        let server = HostileServer::answering(&["EVAL", "EVALSHA"], &Answer::Raw(reply.to_vec()));
        let manager = LockManager::connect(&server.url()).await.expect("the server accepts connections");
        let runs = Runs::default();

        let refused = within(LONG, "the call", runs.run(&manager.idempotent("k"))).await;

        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{reply:?}: {refused:?}");
        assert_eq!(runs.count(), 0, "{reply:?}");
    }
}

/// Replies that a script gives about a record that another client has written.
const FORGED: [&[u8]; 4] = [
    b"*2\r\n:1\r\n:4294967296\r\n",
    b"*4\r\n:1\r\n:1\r\n$1\r\na\r\n$1\r\n1\r\n",
    b"*5\r\n:3\r\n$0\r\n\r\n$0\r\n\r\n$1\r\n\xff\r\n$1\r\nT\r\n",
    b"*5\r\n:3\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n$1\r\nZ\r\n",
];

#[tokio::test]
async fn a_start_on_an_undecodable_record_runs_no_body() {
    for reply in FORGED {
        let server = HostileServer::answering(&["EVAL", "EVALSHA"], &Answer::Raw(reply.to_vec()));
        let manager = LockManager::connect(&server.url()).await.expect("the server accepts connections");
        let call = manager.idempotent("k").on_unavailable(OnUnavailable::Run);
        let runs = Runs::default();

        for call in [call.clone(), call.wait(LONG)] {
            let refused = within(LONG, "the call", runs.run(&call)).await;
            assert!(matches!(refused, Err(Error::WrongKind { .. })), "{reply:?}: {refused:?}");
        }
        assert_eq!(runs.count(), 0, "{reply:?}");
    }
}
