//! Access control, and a server that is out of memory.

use std::time::Duration;

use dlock_runtime::{Error, LossCause};
use dlock_tests::handoff::{give_user_of, grant_channel};
use dlock_tests::resp::{Client, Reply};
use dlock_tests::{Moment, RedisServer, acl, within};

use super::{LONG, acquire_once, connect};

#[tokio::test]
async fn missing_and_wrong_passwords_are_config_errors() {
    let server = RedisServer::builder().password("sesame").start();
    let address = format!("127.0.0.1:{}", server.port());

    let missing = connect(&format!("redis://{address}")).await;
    assert!(matches!(missing, Err(Error::Config { .. })), "{missing:?}");
    for url in [format!("redis://:wrong@{address}"), format!("redis://nobody:wrong@{address}")] {
        let refused = connect(&url).await;
        assert!(
            matches!(&refused, Err(Error::Config { part, .. }) if &**part == "server"),
            "{url}: {refused:?}"
        );
    }
    assert!(connect(&format!("redis://:sesame@{address}")).await.is_ok());
}

/// Creates the documented user without the rules in `but`, and returns the URL of that user.
fn documented_user(server: &RedisServer, but: &[&str]) -> String {
    acl::give_user(server, acl::USER, but, &[]);
    format!("redis://{}:{}@127.0.0.1:{}", acl::USER, acl::PASSWORD, server.port())
}

#[tokio::test]
async fn the_documented_user_may_do_all_that_locks_need() {
    let server = RedisServer::start();
    let url = documented_user(&server, &[]);
    let (ours, theirs) = (connect(&url).await.expect("allowed"), connect(&url).await.expect("allowed"));

    let first = ours.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let fence = first.fencing_token().await.expect("the counter may be written");
    first.extend(LONG * 2).await.expect("the lease can be extended");
    let waiter = theirs.lock("order:7").lease(LONG).wait(LONG);
    let waiter = tokio::spawn(async move { waiter.acquire().await });
    // The value contains two tokens: the holder's and that of the queued waiter.
    let queued = async {
        while server.call(&["STRLEN", "dlock:order:7"]) != Reply::Integer(64) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(LONG, "the waiter's place in the queue", queued).await;
    first.release().await.expect("it is held");
    let second = waiter.await.expect("no panic").expect("it was granted");
    ours.ready().await.expect("the server replies");
    let seen = ours.inspect("order:7").await.expect("a lock can be inspected");
    let later = second.fencing_token().await.expect("the counter may be written");
    let taken = ours.force_release("order:7").await;
    let released = second.release().await;

    assert_eq!(seen.as_ref().and_then(|seen| seen.holder()), Some(&*theirs.id()));
    assert!(later > fence, "{later} after {fence}");
    assert!(matches!(taken, Ok(true)), "{taken:?}");
    assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
    assert_eq!(server.call(&["EXISTS", "dlock:order:7", "{dlock:order:7}##token"]), Reply::Integer(1));
}

#[tokio::test]
async fn user_without_counter_access_can_lock_but_gets_no_token() {
    let server = RedisServer::start();
    let manager = connect(&documented_user(&server, &["~{dlock:*"])).await.expect("allowed");
    let guard = manager.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");

    let fence = guard.fencing_token().await;
    let released = guard.release().await;

    assert!(matches!(fence, Err(Error::Config { .. })), "{fence:?}");
    assert!(released.is_ok(), "{released:?}");
}

/// Redis's error text inside a script differs from the one outside, and between versions.
#[tokio::test]
async fn denied_command_in_a_script_is_a_config_error() {
    let server = RedisServer::start();
    let manager = connect(&documented_user(&server, &["+getrange"])).await.expect("allowed");
    server.call(&["SET", "dlock:order:7", "of another client", "PX", "30000"]);

    let refused = manager.lock("order:7").lease(LONG).wait(LONG).acquire().await;

    assert!(matches!(&refused, Err(Error::Config { part, .. }) if &**part == "server"), "{refused:?}");
}

/// In Redisson's layout, an acquire takes two steps. The second sets the expiry.
#[tokio::test]
async fn lock_is_removed_if_its_expiry_cannot_be_set() {
    let server = RedisServer::start();
    let more = ["+hset", "+hdel", "+hexists", "+hlen", "+hstrlen", "+hrandfield", "+exists", "+unsubscribe"];
    acl::give_user(&server, acl::USER, &["+pexpire"], &more);
    let url = format!("redis://{}:{}@127.0.0.1:{}?layout=redisson", acl::USER, acl::PASSWORD, server.port());

    let refused = acquire_once(&connect(&url).await.expect("allowed"), "order:7").await;

    assert!(matches!(&refused, Err(Error::Config { part, .. }) if &**part == "server"), "{refused:?}");
    assert_eq!(server.call(&["EXISTS", "dlock:order:7"]), Reply::Integer(0));
}

#[tokio::test]
async fn password_change_under_a_manager_is_one_typed_error() {
    let server = RedisServer::builder().password("sesame").start();
    let manager = connect(&server.url()).await.expect("the password is correct");
    server.call(&["CONFIG", "SET", "requirepass", "changed"]);
    // `CLIENT KILL` cuts the connection, so a new connection must authenticate again.
    let mut admin = Client::connect(server.port(), LONG).expect("the server listens");
    admin.call(&["AUTH", "changed"]).expect("the new password is correct");
    admin.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).expect("the server replies");

    let refused = manager.lock("order:7").lease(LONG).wait(Duration::from_secs(1)).acquire().await;

    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
}

/// Sends a command as `user` over a new connection. Returns `true` if the server denies permission.
fn is_refused(server: &RedisServer, user: &str, words: &[&str]) -> bool {
    let mut client = Client::connect(server.port(), LONG).expect("the server listens");
    assert_eq!(client.call(&["AUTH", user, acl::PASSWORD]).expect("it replies").text(), Some("OK"));
    let reply = client.call(words).expect("it replies");
    let said = reply.text().unwrap_or_default();
    // The other texts are those of different Redis versions for a denied command inside a script.
    ["NOPERM", "ACL failure", "The user executing the script"].iter().any(|words| said.contains(words))
}

#[tokio::test]
async fn foreign_tenant_cannot_change_wake_or_listen() {
    let server = RedisServer::start();
    let ours = connect(&documented_user(&server, &[])).await.expect("allowed");
    let rules = ["on", ">password", "~tenant:*", "resetchannels", "&tenant:*", "+@all", "-@dangerous"];
    server.call(&[&["ACL", "SETUSER", "tenant"][..], &rules].concat());
    let held = ours.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let fence = held.fencing_token().await.expect("the counter may be written");
    let (lock, counter) = ("dlock:order:7", "{dlock:order:7}##token");
    let token = server.call(&["GET", lock]).text().expect("it is held").to_owned();
    let channel = grant_channel(&server, "dlock", &token);

    for words in [
        &["GET", lock][..],
        &["SET", lock, "mine"],
        &["DEL", lock],
        &["PEXPIRE", lock, "1"],
        &["RENAME", "tenant:7", lock],
        &["EVAL", "return redis.call('DEL', KEYS[1])", "1", lock],
        &["EVAL", "return redis.call('DEL', ARGV[1])", "0", lock],
        &["SET", counter, "9007199254740991"],
        &["DEL", counter],
        &["PUBLISH", &channel, "anything"],
        &["SUBSCRIBE", &channel],
        &["PSUBSCRIBE", "dlock:*"],
        &["FLUSHALL"],
        &["MONITOR"],
    ] {
        assert!(is_refused(&server, "tenant", words), "{words:?} is not refused");
    }
    assert!(!is_refused(&server, "tenant", &["SET", "tenant:7", "its own"]));

    assert!(held.check().is_ok(), "{:?}", held.check());
    held.release().await.expect("it is held");
    let next = ours.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    assert!(next.fencing_token().await.expect("it is held") > fence);
}

/// The foreign user has the documented permissions for its own namespace, and knows a channel of
/// `dlock`.
#[tokio::test]
async fn user_of_another_namespace_cannot_grant_listen_or_list() {
    let server = RedisServer::start();
    let ours = connect(&documented_user(&server, &[])).await.expect("allowed");
    give_user_of(&server, "tenant");
    let url = format!("redis://tenant:{}@127.0.0.1:{}?namespace=tenant", acl::PASSWORD, server.port());
    let theirs = connect(&url).await.expect("allowed");
    let _theirs = theirs.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let held = ours.lock("order:7").lease(LONG).acquire().await.expect("the lock is free");
    let token = server.call(&["GET", "dlock:order:7"]).text().expect("it is held").to_owned();
    let channel = grant_channel(&server, "dlock", &token);
    let grant = format!("{token}1000|dlock:order:7");

    for words in [
        &["PUBLISH", &channel, &grant][..],
        &["EVAL", "return redis.call('PUBLISH', ARGV[1], ARGV[2])", "0", &channel, &grant],
        &["SUBSCRIBE", &channel],
        &["PSUBSCRIBE", "dlock:grant:*"],
        &["PSUBSCRIBE", "*"],
        &["PUBSUB", "CHANNELS"],
        &["PUBSUB", "CHANNELS", "dlock:*"],
        &["PUBSUB", "NUMSUB", &channel],
        &["GET", "dlock:order:7"],
        &["GET", "{dlock:order:7}##token"],
        &["CLIENT", "LIST"],
    ] {
        assert!(is_refused(&server, "tenant", words), "{words:?} is not refused");
    }
    assert!(!is_refused(&server, "tenant", &["SUBSCRIBE", "tenant:grant:of-its-own"]));
    assert!(held.check().is_ok(), "{:?}", held.check());
}

/// The foreign user has every rule of the guide for its own namespace: for a quorum, for records,
/// for the names of owners, and for Redisson's layout.
#[tokio::test]
async fn user_of_another_namespace_reaches_no_channel_and_no_record() {
    let server = RedisServer::start();
    give_user_of(&server, "tenant");
    let besides = [acl::IN_A_QUORUM, acl::WITH_RECORDS, acl::WITH_JOBS].map(acl::documented_besides);
    let besides = besides.into_iter().flatten().chain(acl::documented_for_redisson());
    let besides: Vec<_> = besides.map(|rule| rule.replace("dlock:", "tenant:")).collect();
    let besides: Vec<_> = besides.iter().map(|rule| &**rule).collect();
    server.call(&[&["ACL", "SETUSER", "tenant"][..], &besides].concat());

    let channels = [
        "dlock:free:order:7",
        "dlock:grant:0123456789012345678901234567890123456789",
        "dlock:grant:0123456789012345678901234567890123456789:web-1:4242",
        "redisson_lock__channel:{dlock:order:7}",
        "redisson_lock__channel:dlock:{7}",
        ":grant:0123456789012345678901234567890123456789",
        "tenant2:free:order:7",
    ];
    for channel in channels {
        for words in [&["SUBSCRIBE", channel][..], &["PUBLISH", channel, "changed"]] {
            assert!(is_refused(&server, "tenant", words), "{words:?} is not refused");
        }
    }
    for key in [
        "dlock:order:7",
        "{dlock:order:7}##token",
        "dlock:{7}##token",
        "dlock:charge:7##idem",
        "dlock:job:report##job",
        "dlock:leader:report",
        "redisson_lock_token:{dlock:order:7}",
        "redisson_lock_token:dlock:{7}",
        "tenant2:order:7",
    ] {
        let script = "return redis.call('HGETALL', KEYS[1])";
        for words in [&["EVAL", script, "1", key][..], &["HSET", key, "s", "C"], &["DEL", key]] {
            assert!(is_refused(&server, "tenant", words), "{words:?} is not refused");
        }
    }
    for words in [
        &["SUBSCRIBE", "tenant:free:order:7"][..],
        &["PUBLISH", "redisson_lock__channel:{tenant:order:7}", "0"],
        &["HSET", "tenant:charge:7##idem", "s", "C"],
        &["SET", "{tenant:order:7}##token", "1"],
    ] {
        assert!(!is_refused(&server, "tenant", words), "{words:?} is refused");
    }
}

#[tokio::test]
async fn the_user_of_the_locks_can_do_nothing_else() {
    let server = RedisServer::start();
    let _ours = connect(&documented_user(&server, &[])).await.expect("allowed");
    server.call(&["SET", "other", "of another client"]);

    for words in [
        &["GETRANGE", "other", "0", "9"][..],
        &["GET", "dlock:order:7"],
        &["SET", "other", "mine"],
        &["DEL", "other"],
        &["EVAL", "return redis.call('GETRANGE', KEYS[1], 0, 9)", "1", "other"],
        &["EVAL", "return redis.call('GETRANGE', ARGV[1], 0, 9)", "0", "other"],
        &["EVAL", "return redis.call('FLUSHALL')", "0"],
        &["KEYS", "*"],
        &["SCAN", "0"],
        &["FLUSHALL"],
        &["FLUSHDB"],
        &["CONFIG", "GET", "requirepass"],
        &["ACL", "LIST"],
        &["ACL", "SETUSER", acl::USER, "+@all"],
        &["CLIENT", "LIST"],
        &["CLIENT", "KILL", "TYPE", "normal"],
        &["SCRIPT", "FLUSH"],
        &["REPLICAOF", "NO", "ONE"],
        &["MONITOR"],
        &["INFO"],
        &["PUBLISH", "other", "anything"],
        &["SUBSCRIBE", "other"],
        &["PSUBSCRIBE", "*"],
        &["RPUSH", "dlock:list", "x"],
        &["DUMP", "dlock:order:7"],
        &["MIGRATE", "127.0.0.1", "1", "dlock:order:7", "0", "100"],
    ] {
        assert!(is_refused(&server, acl::USER, words), "{words:?} is not refused");
    }
    assert!(!is_refused(&server, acl::USER, &["GETRANGE", "dlock:order:7", "0", "9"]));
}

/// The connection stays open, and the server denies each command.
#[tokio::test]
async fn hold_ends_at_its_deadline_if_rights_are_revoked() {
    const LEASE: Duration = Duration::from_secs(1);
    let server = RedisServer::start();
    let manager = connect(&documented_user(&server, &[])).await.expect("allowed");
    let held = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");
    held.fencing_token().await.expect("the counter may be written");

    let taken_away = Moment::now();
    let rights = ["-eval", "-evalsha", "-set", "-publish"];
    server.call(&[&["ACL", "SETUSER", acl::USER][..], &rights].concat());
    let refused = manager.lock("order:8").lease(LONG).acquire().await;
    let cause = within(LONG, "the loss", held.lost()).await;
    let took = taken_away.elapsed();
    drop(held);
    let rights = ["+eval", "+evalsha", "+set", "+publish"];
    server.call(&[&["ACL", "SETUSER", acl::USER][..], &rights].concat());
    let again = manager.lock("order:7").lease(LONG).wait(LONG).acquire().await;

    assert!(matches!(&refused, Err(Error::Config { part, .. }) if &**part == "server"), "{refused:?}");
    assert_eq!(cause, LossCause::Expired);
    assert!(took > LEASE / 2 && took < LEASE + Duration::from_millis(150), "{took:?}");
    assert!(again.is_ok(), "{again:?}");
}

#[tokio::test]
async fn full_server_rejects_new_locks_and_keeps_held_ones() {
    let server = RedisServer::start();
    let manager = connect(&server.url()).await.expect("the server accepts connections");
    let held = manager.lock("held").lease(Duration::from_millis(900)).acquire().await.expect("free");
    server.call(&["CONFIG", "SET", "maxmemory", "1"]);

    let refused = acquire_once(&manager, "out of memory").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let kept = held.check();
    let released = held.release().await;

    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    assert!(kept.is_ok(), "{kept:?}");
    assert!(released.is_ok(), "{released:?}");
    assert_eq!(server.call(&["EXISTS", "dlock:held"]), Reply::Integer(0));
}
