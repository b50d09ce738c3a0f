//! Floods on the connections for commands, including the one that waits for replicas.

use std::time::Instant;

use dlock_runtime::Error;
use dlock_tests::Answer;

use super::{FLOODS, LONG, alone, assert_bounded, connect, reported, server};

#[tokio::test]
async fn a_flood_on_the_connection_for_commands_ends_it() {
    let _alone = alone().await;
    for (first, again, words) in FLOODS {
        let server = server(move |request| {
            matches!(request.name(), "SET" | "PING").then_some(Answer::Flood(first, again))
        });
        let manager = connect(&server.url()).await.expect("the handshake succeeds");

        let (lock, ready) = assert_bounded(words, async {
            let lock = manager.lock("order:7").lease(LONG).acquire().await;
            (lock.map(drop), manager.ready().await)
        })
        .await;

        let Err(Error::Unavailable { reason, .. }) = &lock else { panic!("{words}: {lock:?}") };
        assert!(reason.contains(words), "{words}: {reason}");
        assert!(ready.is_err(), "{words}: {ready:?}");
        reported(server.port(), "dlock.disconnected", words).await;
    }
}

#[tokio::test]
async fn a_flood_while_connecting_is_the_reason() {
    let _alone = alone().await;
    for (first, again, words) in FLOODS {
        for name in ["AUTH", "SELECT", "CLIENT", "SCRIPT"] {
            let server =
                server(move |request| (request.name() == name).then_some(Answer::Flood(first, again)));

            let url = server.url().replace("redis://", "redis://:password@") + "/2";
            let refused = assert_bounded(words, connect(&url)).await;

            let error = refused.expect_err("it floods");
            assert!(error.is_unavailable() && error.to_string().contains(words), "{name} {words}: {error}");
        }
    }
}

#[tokio::test]
async fn replies_without_requests_are_dropped() {
    let _alone = alone().await;
    for again in ["+OK\r\n", ":1\r\n", ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n", "-ERR no\r\n"] {
        let server =
            server(move |request| (request.name() == "SET").then_some(Answer::UsualThenFlood("", again)));
        let manager = connect(&server.url()).await.expect("the handshake succeeds");

        assert_bounded(again, async {
            let begun = Instant::now();
            while begun.elapsed() < super::WATCHED / 2 {
                let _ = manager.lock("order:7").lease(LONG).acquire().await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_flood_on_the_connection_of_acknowledgements_ends_it() {
    let _alone = alone().await;
    for (first, again, words) in FLOODS {
        let server = server(move |request| match (request.name(), request.word(1).as_str()) {
            ("WAIT", "0") => Some(Answer::Raw(b":0\r\n".to_vec())),
            ("WAIT", _) => Some(Answer::Flood(first, again)),
            _ => None,
        });
        let manager = connect(&format!("{}?replica_acks=1", server.url())).await.expect("`WAIT` is allowed");

        let lock = assert_bounded(words, manager.lock("order:7").lease(LONG).acquire()).await;

        let Err(Error::Unavailable { reason, .. }) = &lock else { panic!("{words}: {lock:?}") };
        assert!(reason.contains(words), "{words}: {reason}");
        reported(server.port(), "dlock.disconnected", words).await;
    }
}
