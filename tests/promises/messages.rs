//! P2: whatever is published on our channel, nobody's lock is released by it, and the server is not asked without bound.

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::handover::{MANAGER, grant_channel};
use dlock_tests::{Moment, RedisServer};

use super::{LONG, manager_of};

const MESSAGES: usize = 50_000;
const FEW_HUNDRED: u64 = 500;

#[tokio::test]
async fn a_message_that_names_the_token_of_another_manager_does_not_release_its_lock() {
    let server = RedisServer::start();
    let (holder, told) = (manager_of(&server).await, manager_of(&server).await);
    let held = holder.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let token = token_of(&server, "order:7");
    let channel = channel_of(&server, &told).await;

    for _ in 0..10 {
        let heard = server.call(&["PUBLISH", &channel, &format!("{token}dlock:order:7")]);
        assert_eq!(heard.integer(), Some(1));
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
async fn fifty_thousand_messages_that_name_unknown_tokens_of_ours_lead_to_few_commands() {
    assert_a_flood_leads_to_little(|token| token[..MANAGER].to_owned()).await;
}

#[tokio::test]
async fn fifty_thousand_messages_that_name_tokens_of_others_lead_to_few_commands() {
    assert_a_flood_leads_to_little(|_token| "dl2-00000000000000ab".to_owned()).await;
}

/// Publishes tokens that begin as `manager` says, made from one of ours, on our channel.
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
            // Far from what our own counter has come to.
            let counter = 0x00ff_0000_0000 + thousand * 1_000 + number;
            let message = format!("{manager}{counter:012x}dlock:order:{}", counter % 1_000);
            pipeline.cmd("PUBLISH").arg(&channel).arg(message).ignore();
        }
        pipeline.query_async::<()>(&mut raw).await.expect("the server takes messages");
    }
    // The manager still works, and has time to answer all that it means to answer.
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

/// Returns the channel on which `manager` is told of grants.
async fn channel_of(server: &RedisServer, manager: &LockManager) -> String {
    let guard = manager.lock("whose channel").lease(LONG).acquire().await.expect("the lock is free");
    let token = token_of(server, "whose channel");
    guard.release().await.expect("it was held");
    grant_channel(server, "dlock", &token)
}
