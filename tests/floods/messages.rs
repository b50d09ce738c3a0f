//! Floods on connections that receive unsolicited data: pub/sub, sharded pub/sub, and
//! invalidations.

use dlock_runtime::{LockManager, Result};
use dlock_tests::{Answer, within};

use super::{FLOODS, WATCHED, alone, assert_bounded, connect, reported, server};

const MESSAGE: &str = "*3\r\n$7\r\nmessage\r\n$8\r\ndlock:x1\r\n$16\r\nabcdefghijklmnop\r\n";
const SHARD_MESSAGE: &str = ">3\r\n$8\r\nsmessage\r\n$8\r\ndlock:x1\r\n$16\r\nabcdefghijklmnop\r\n";
const CHANGE: &str = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$7\r\norder:7\r\n";
const WAITED: &str = "more than 8 MiB of them waited";

/// Holds a lock during the whole measurement. Its lease is shorter, so it must be renewed.
async fn hold(manager: &LockManager) -> Result<()> {
    let time = WATCHED * 2; // the flood and the client share the processors
    let lock = manager.lock("order:7").lease(time * 9 / 10);
    within(time * 5, "a hold", lock.run(async |_| tokio::time::sleep(time).await)).await
}

#[tokio::test]
async fn holds_are_renewed_during_a_flood_of_messages() {
    let _alone = alone().await;
    for (first, again, words) in FLOODS.into_iter().chain([("", MESSAGE, WAITED)]) {
        let server = server(move |request| {
            (request.name() == "SUBSCRIBE").then_some(Answer::UsualThenFlood(first, again))
        });
        let manager = connect(&server.url()).await.expect("the handshake succeeds");

        let held = assert_bounded(words, hold(&manager)).await;

        assert!(held.is_ok(), "{words}: {held:?}");
        assert!(manager.ready().await.is_ok(), "{words}");
        reported(server.port(), "dlock.disconnected", words).await;
    }
}

#[tokio::test]
async fn holds_are_renewed_during_a_flood_of_invalidations() {
    let _alone = alone().await;
    for (first, again, words) in FLOODS.into_iter().chain([("", CHANGE, WAITED)]) {
        let server = server(move |request| {
            match (request.name(), request.word(1).as_str()) {
                ("CLIENT", "TRACKING") => Some(Answer::UsualThenFlood(first, again)),
                // Otherwise the flood would be the reply to it, and the connection never opened.
                ("CLIENT", "SETNAME") => Some(Answer::Raw(b"-ERR unknown subcommand\r\n".to_vec())),
                _ => None,
            }
        });
        let manager = connect(&server.url()).await.expect("the handshake succeeds");

        let held = assert_bounded(words, hold(&manager)).await;

        assert!(held.is_ok(), "{words}: {held:?}");
        // Invalidations are processed about as fast as they arrive.
        if words != WAITED {
            reported(server.port(), "dlock.disconnected", words).await;
        }
    }
}

#[tokio::test]
async fn a_flood_of_messages_of_shards_is_bounded() {
    let _alone = alone().await;
    for (first, again, words) in FLOODS.into_iter().chain([("", SHARD_MESSAGE, WAITED)]) {
        let server = server(move |request| {
            let is_of_shards = request.name() == "HELLO" && request.word(1) == "3";
            is_of_shards.then_some(Answer::UsualThenFlood(first, again))
        });
        let url = format!("{}?layout=redisson&publish=both&tracking=off", server.url());
        let manager = connect(&url).await.expect("the handshake succeeds");

        assert_bounded(words, tokio::time::sleep(WATCHED / 2)).await;

        assert!(manager.ready().await.is_ok(), "{words}");
        if words == WAITED {
            reported(server.port(), "dlock.disconnected", words).await;
        }
    }
}
