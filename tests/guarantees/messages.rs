//! P2: no message on a grant channel releases a lock or causes an unbounded number of commands.

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::handoff::{MANAGER, grant_channel};
use dlock_tests::{Moment, RedisServer};

use super::{LONG, manager_of};

const MESSAGES: usize = 50_000;
const FEW_HUNDRED: u64 = 500;

#[tokio::test]
async fn a_message_with_a_foreign_token_does_not_release_its_lock() {
    let server = RedisServer::start();
    let (holder, receiver) = (manager_of(&server).await, manager_of(&server).await);
    let held = holder.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let token = token_of(&server, "order:7");
    let channel = channel_of(&server, &receiver).await;

    for _ in 0..10 {
        let reply = server.call(&["PUBLISH", &channel, &format!("{token}dlock:order:7")]);
        assert_eq!(reply.integer(), Some(1));
    }

    let published = Moment::now();
    while published.elapsed() < Duration::from_millis(500) {
        assert_eq!(token_of(&server, "order:7"), token);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(held.check().is_ok(), "{:?}", held.check());
    assert!(held.release().await.is_ok());
}

#[tokio::test]
async fn a_flood_of_own_unknown_tokens_causes_few_commands() {
    assert_a_flood_leads_to_little(|token| token[..MANAGER].to_owned()).await;
}

#[tokio::test]
async fn a_flood_of_foreign_tokens_causes_few_commands() {
    assert_a_flood_leads_to_little(|_token| "dl2-00000000000000ab".to_owned()).await;
}

/// Publishes tokens that start with the result of `manager`, which is given a token of the
/// receiver.
async fn assert_a_flood_leads_to_little(manager: impl Fn(&str) -> String) {
    let server = RedisServer::start();
    let flooded = manager_of(&server).await;
    let channel = channel_of(&server, &flooded).await;
    let held = flooded.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let manager = manager(&token_of(&server, "order:7"));
    let asked = || -> u64 {
        ["evalsha", "eval", "getrange"].map(|command| server.command_count(command)).iter().sum()
    };
    let before = asked();

    let mut raw = server.raw().await;
    for thousand in 0..MESSAGES / 1_000 {
        let mut pipeline = redis::pipe();
        for number in 0..1_000 {
            // Far above the manager's own counter.
            let counter = 0x00ff_0000_0000 + thousand * 1_000 + number;
            let message = format!("{manager}{counter:012x}dlock:order:{}", counter % 1_000);
            pipeline.cmd("PUBLISH").arg(&channel).arg(message).ignore();
        }
        pipeline.query_async::<()>(&mut raw).await.expect("the server takes messages");
    }
    // The manager still works, and has time to send every command that the messages cause.
    let other = flooded.lock("other").lease(LONG).acquire().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let commands = asked() - before;

    assert!(other.is_ok(), "{other:?}");
    assert!(commands <= FEW_HUNDRED, "{commands} commands");
    assert!(held.check().is_ok(), "{:?}", held.check());
    assert!(held.release().await.is_ok());
}

fn token_of(server: &RedisServer, key: &str) -> String {
    let value = server.call(&["GET", &dlock_tests::world::name(key)]);
    value.text().expect("it is held").to_owned()
}

/// Returns the channel on which `manager` receives grants.
async fn channel_of(server: &RedisServer, manager: &LockManager) -> String {
    let guard = manager.lock("channel-of-manager").lease(LONG).acquire().await.expect("the lock is free");
    let token = token_of(server, "channel-of-manager");
    guard.release().await.expect("it was held");
    grant_channel(server, "dlock", &token)
}
