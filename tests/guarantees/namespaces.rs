//! Grants reach a manager in each namespace of its locks, and a grant from another namespace is
//! ignored.

use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::handoff::{
    NAMESPACES, NEVER_POLLS, PROMPT, allow_namespaces, assert_handed_off_in_each_namespace, channels_of,
    give_user_of, grant_channel, key_in, time_of_handoff,
};
use dlock_tests::resp::Reply;
use dlock_tests::world::name;
use dlock_tests::{RedisServer, acl, within};

use super::{LONG, until_waiting};

async fn manager_with(server: &RedisServer, options: &str) -> LockManager {
    LockManager::connect(&server.url_with(options)).await.expect("the server takes managers")
}

#[tokio::test]
async fn waiters_are_woken_in_each_namespace() {
    let server = RedisServer::start();
    allow_namespaces(&server);
    let (ours, theirs) = (manager_with(&server, NEVER_POLLS).await, manager_with(&server, NEVER_POLLS).await);

    for round in ["first", "second"] {
        assert_handed_off_in_each_namespace(&ours, &theirs, round).await;
        assert_handed_off_in_each_namespace(&theirs, &ours, round).await;
    }
}

#[tokio::test]
async fn waiters_are_woken_in_each_namespace_after_a_reconnect() {
    let server = RedisServer::start();
    allow_namespaces(&server);
    let (ours, theirs) = (manager_with(&server, NEVER_POLLS).await, manager_with(&server, NEVER_POLLS).await);
    assert_handed_off_in_each_namespace(&ours, &theirs, "before").await;

    for kind in ["pubsub", "normal"] {
        server.call(&["CLIENT", "KILL", "TYPE", kind]);
        let subscribed = async {
            while NAMESPACES.iter().any(|namespace| channels_of(&server, namespace).len() < 2) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(LONG, "the subscriptions", subscribed).await;
        let ready = async {
            while ours.ready().await.is_err() || theirs.ready().await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(LONG, "the connections", ready).await;

        assert_handed_off_in_each_namespace(&ours, &theirs, kind).await;
    }
}

#[tokio::test]
async fn a_waiter_from_before_the_reconnect_is_woken_in_its_namespace() {
    let server = RedisServer::start();
    allow_namespaces(&server);
    let (ours, theirs) = (manager_with(&server, NEVER_POLLS).await, manager_with(&server, NEVER_POLLS).await);
    let key = key_in("shop", "order:7");
    let held = ours.lock(&key).lease(LONG).acquire().await.expect("the lock is free");
    let waiting = theirs.lock(&key).lease(LONG).wait(LONG);
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    while ours.inspect(&key).await.expect("it replies").is_none_or(|seen| seen.waiters() == 0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    server.call(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let subscribed = async {
        while channels_of(&server, "shop").len() < 2 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(LONG, "the subscriptions", subscribed).await;
    held.release().await.expect("it was held");

    let granted = within(PROMPT * 4, "the waiter's lock", waiter).await.expect("no panic");
    assert!(granted.is_ok(), "{granted:?}");
}

#[tokio::test]
async fn a_namespace_polls_until_its_channel_is_allowed() {
    let server = RedisServer::start();
    acl::give_user(&server, acl::USER, &[], &["~shop:*", "~{shop:*"]);
    let url = format!("redis://{}:{}@127.0.0.1:{}", acl::USER, acl::PASSWORD, server.port());
    let manager = |options| LockManager::connect(Box::leak(format!("{url}{options}").into_boxed_str()));
    let (ours, theirs) =
        (manager("").await.expect("allowed"), manager("?poll_interval=20ms").await.expect("allowed"));
    let key = key_in("shop", "order:7");
    let held = ours.lock(&key).lease(LONG).acquire().await.expect("the lock is free");
    let waiting = theirs.lock(&key).lease(LONG).wait(LONG);
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(ours.inspect(&key).await.expect("it replies").map(|seen| seen.waiters()), Some(0));

    held.release().await.expect("it was held");
    let polled = within(LONG, "the waiter's lock", waiter).await.expect("no panic").expect("it polls");
    polled.release().await.expect("it was held");
    // The user may use the default namespace, and grants arrive in it.
    let own = time_of_handoff(&ours, &theirs, &key_in("dlock", "order:7")).await;
    server.call(&["ACL", "SETUSER", acl::USER, "&shop:grant:*"]);
    let subscribed = async {
        while channels_of(&server, "shop").len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(LONG, "the subscriptions", subscribed).await;
    let allowed = time_of_handoff(&ours, &theirs, &key).await;

    assert!(own < PROMPT && allowed < PROMPT, "{own:?}, {allowed:?}");
}

#[tokio::test]
async fn a_user_of_only_one_namespace_is_woken_in_it() {
    let server = RedisServer::start();
    give_user_of(&server, "shop");
    let url = format!("redis://shop:{}@127.0.0.1:{}/{NEVER_POLLS}", acl::PASSWORD, server.port());
    let (ours, theirs) = (LockManager::connect(&url).await, LockManager::connect(&url).await);
    let (ours, theirs) = (ours.expect("allowed"), theirs.expect("allowed"));

    let took = time_of_handoff(&ours, &theirs, &key_in("shop", "order:7")).await;

    assert!(took < PROMPT, "{took:?}");
}

/// One key under two names: `a` with `b:c`, and `a:b` with `c`.
#[tokio::test]
async fn overlapping_namespaces_exclude_and_wake_waiters() {
    let server = RedisServer::start();
    server.allow(["~a:*", "~{a:*", "&a:grant:*", "&a:b:grant:*"].into_iter());
    let outer = manager_with(&server, "?namespace=a&grant_lease=300ms").await;
    let inner = manager_with(&server, "?namespace=a:b&grant_lease=300ms").await;

    for (from, of_from, to, of_to) in [(&outer, "b:c", &inner, "c"), (&inner, "c", &outer, "b:c")] {
        let held = from.lock(of_from).lease(LONG).acquire().await.expect("the lock is free");
        let refused = to.lock(of_to).try_acquire().await.expect("the server replies");
        assert!(refused.is_none());
        let waiting = to.lock(of_to).lease(LONG).wait(LONG);
        let waiter = tokio::spawn(async move { waiting.acquire().await });
        while from.inspect(of_from).await.expect("it replies").is_none_or(|seen| seen.waiters() == 0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(held.check().is_ok());
        held.release().await.expect("it was held");

        let next =
            within(LONG / 3, "the waiter's lock", waiter).await.expect("no panic").expect("it is free");
        next.release().await.expect("it was held");
    }
}

#[tokio::test]
async fn channels_show_no_part_of_a_token() {
    let server = RedisServer::start();
    allow_namespaces(&server);
    let manager = manager_with(&server, "").await;
    let _held: Vec<_> = futures_util::future::join_all(NAMESPACES.map(|namespace| {
        let lock = manager.lock(key_in(namespace, "order:7")).lease(LONG);
        async move { lock.acquire().await.expect("the lock is free") }
    }))
    .await;
    let subscribed = async {
        while NAMESPACES.iter().any(|namespace| channels_of(&server, namespace).is_empty()) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(LONG, "the subscriptions", subscribed).await;

    let Reply::List(channels) = server.call(&["PUBSUB", "CHANNELS"]) else { panic!("no channels") };
    let channels: Vec<_> = channels.iter().filter_map(Reply::text).collect();
    assert!(channels.len() >= NAMESPACES.len(), "{channels:?}");
    for namespace in NAMESPACES {
        let token =
            server.call(&["GET", &format!("{namespace}:order:7")]).text().expect("it is held").to_owned();
        assert!(channels.contains(&&*grant_channel(&server, namespace, &token)), "{channels:?}");
        for start in 4..token.len() - 6 {
            let part = &token[start..start + 6];
            assert!(
                !channels.iter().any(|channel| channel.contains(part)),
                "{part} of {token} is in {channels:?}"
            );
        }
    }
    assert!(!channels.iter().any(|channel| channel.contains(&manager.id())), "{channels:?}");
}

/// A tenant that shares a process, and therefore knows its channel, cannot grant locks of another
/// namespace.
#[tokio::test]
async fn a_grant_over_the_channel_of_another_namespace_is_ignored() {
    let server = RedisServer::start();
    allow_namespaces(&server);
    let (ours, theirs) = (manager_with(&server, NEVER_POLLS).await, manager_with(&server, NEVER_POLLS).await);
    assert_handed_off_in_each_namespace(&ours, &theirs, "known").await;
    let held = ours.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let waiting = theirs.lock("order:7").lease(LONG).wait(LONG);
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    until_waiting(&server, "order:7", 1).await;
    let value = server.call(&["GET", &name("order:7")]).text().expect("it is held").to_owned();
    let (_, waits) = value.split_at(value.len() / 2);

    let message = format!("{waits}1000|{}", name("order:7"));
    let received = server.call(&["PUBLISH", &grant_channel(&server, "shop", waits), &message]);
    tokio::time::sleep(Duration::from_millis(300)).await;

    assert_eq!(received, Reply::Integer(1));
    assert!(!waiter.is_finished(), "the grant was accepted");
    held.release().await.expect("it was held");
    assert!(within(PROMPT, "the waiter's lock", waiter).await.expect("no panic").is_ok());
}

/// An unpublished build wrote tokens that began with `dl1-`.
#[tokio::test]
async fn values_of_an_older_build_are_foreign_and_exclude() {
    let server = RedisServer::start();
    let manager = manager_with(&server, "?poll_interval=20ms").await;
    let holder = "dl1-0123456789abcdef000000000001";
    for value in [
        holder.to_owned(),
        format!("{holder}dl1-0123456789abcdef000000000002"),
        format!("{holder}{holder}{holder}"),
    ] {
        server.call(&["SET", &name("order:7"), &value, "PX", "300"]);

        let refused = manager.lock("order:7").acquire().await;
        let seen = manager.inspect("order:7").await.expect("it replies").expect("something is there");
        let after = server.call(&["GET", &name("order:7")]);
        let later = manager.lock("order:7").wait(LONG).acquire().await;

        assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
        assert_eq!((seen.holder(), seen.waiters()), (None, 0));
        assert_eq!(after.text(), Some(&*value));
        later.expect("the key has expired").release().await.expect("it was held");
    }
}
