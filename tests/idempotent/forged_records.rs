//! Records that another client has written.

use std::time::Duration;

use dlock_runtime::idempotent::{OnCrash, OnUnavailable};
use dlock_runtime::{Error, LockManager};
use dlock_tests::resp::Reply;
use dlock_tests::{RedisServer, until, within};

use super::{LONG, PausedBody, Runs, crash, server};

/// Returns the name of the only record.
fn record_of(server: &RedisServer) -> String {
    let [record] = <[String; 1]>::try_from(server.call(&["KEYS", "*##*"]).texts()).expect("one record");
    record
}

/// Returns the IDs of the connections with a name.
fn connections_of(server: &RedisServer, name: &str) -> Vec<String> {
    let list = server.call(&["CLIENT", "LIST"]);
    let lines = list.text().expect("text").lines().filter(|line| line.contains(&format!("name={name} ")));
    let ids: Vec<_> = lines.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect();
    assert!(!ids.is_empty(), "{list:?}");
    ids
}

/// A script that copied such a value would block the server, and its reply would be too long.
#[tokio::test]
async fn a_huge_record_is_not_copied() {
    let server = server();
    let manager = LockManager::builder(&server.url()).owner("web-1").connect().await;
    let manager = manager.expect("the server takes managers");
    let held = manager.lock("order:8").lease(LONG).acquire().await.expect("it is free");
    manager.idempotent("warm").run(async |_| Ok::<_, Error>(1)).await.expect("it runs");
    manager.idempotent("warm").forget().await.expect("it is there");
    let before = connections_of(&server, "web-1");
    let field =
        |megabytes: u32| format!("redis.call('HSET', KEYS[1], 'x:1', string.rep('x', {megabytes} * 2^20))");
    let result = "redis.call('HSET', KEYS[1], 'r', string.rep('x', 5 * 2^20))".to_owned();
    let many = "for n = 1, 200 do redis.call('HSET', KEYS[1], 'x:' .. n, '') end".to_owned();
    for huge in [field(4), field(15), field(32), result, many] {
        let call = manager.idempotent("order:7");
        call.run(async |_| Ok::<_, Error>(1)).await.expect("it runs");
        let record = record_of(&server);
        server.try_call(&["EVAL", &huge, "1", &record], LONG).expect("the server has that much memory");

        let refused = call.run(async |_| Ok::<_, Error>(2)).await;
        assert!(matches!(refused, Err(Error::WrongKind { .. })), "{huge}: {refused:?}");
        assert!(matches!(call.status().await, Err(Error::WrongKind { .. })), "{huge}");
        assert!(matches!(call.forget().await, Err(Error::WrongKind { .. })), "{huge}");
        server.call(&["DEL", &record]);
    }
    assert!(held.check().is_ok() && held.extend(LONG).await.is_ok());
    let after = connections_of(&server, "web-1");
    assert!(before.iter().all(|id| after.contains(id)), "a connection was closed: {before:?} {after:?}");
}

/// The fields of a record of a crashed call, and values that no script writes.
#[tokio::test]
async fn a_record_with_forged_fields_starts_no_body() {
    let server = server();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let numbers = ["", "x", "-1", "1.5", "0x10", " 7", "inf", "nan", "1e308", "9007199254740992"];
    let counts = ["n", "l", "c"].into_iter().flat_map(|field| numbers.map(|value| (field, value)));
    // An attempt that has no successor.
    let counts = counts.chain([("n", "4294967295"), ("n", "4294967296")]);
    let texts = [("s", ""), ("s", "Z"), ("s", "PC"), ("s", "\u{1b}[2J"), ("d", "x"), ("v", "x")];
    let steps = [("x:psp", ""), ("x:psp", "1"), ("x:psp", "-1")];
    let call = manager.idempotent("order:7").on_crash(OnCrash::Rerun);
    crash(&call).await;
    let record = record_of(&server);
    server.call(&["COPY", &record, "crashed"]);
    for (field, value) in counts.chain(texts).chain(steps) {
        let runs = Runs::default();
        server.call(&["COPY", "crashed", &record, "REPLACE"]);
        server.call(&["HSET", &record, field, value]);

        let shown = call.status().await;
        assert!(matches!(shown, Err(Error::WrongKind { .. })), "{field}={value}: {shown:?}");
        let is_read_by_a_call = !matches!(field, "c" | "d");
        if is_read_by_a_call {
            let refused = within(LONG, "the call", runs.run(&call)).await;
            assert!(matches!(refused, Err(Error::WrongKind { .. })), "{field}={value}: {refused:?}");
            assert_eq!(runs.count(), 0, "{field}={value}");
            let kept = server.call(&["HGET", &record, field]);
            assert_eq!(kept.text(), Some(value), "it is left as it is");
        }
    }
}

/// Bytes that are no text, in the fields that a call or an operator reads as text.
#[tokio::test]
async fn a_record_with_bytes_for_text_starts_no_body() {
    let server = server();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    for on_crash in [OnCrash::Fail, OnCrash::Rerun, OnCrash::Resume] {
        let call = manager.idempotent("order:7").on_crash(on_crash).on_unavailable(OnUnavailable::Run);
        crash(&call).await;
        let record = record_of(&server);
        server.call(&["COPY", &record, "crashed"]);
        for forged in ["'v', '0:\\255'", "'v', '0:\\194'", "'v', '0:\\237\\160\\128'", "'x:\\255', '+1'"] {
            let runs = Runs::default();
            server.call(&["COPY", "crashed", &record, "REPLACE"]);
            server.call(&["EVAL", &format!("redis.call('HSET', KEYS[1], {forged})"), "1", &record]);
            let stored = server.call(&["DUMP", &record]);

            let shown = call.status().await;
            assert!(matches!(shown, Err(Error::WrongKind { .. })), "{forged}: {shown:?}");
            // Without a second attempt, no call reads the steps.
            let reads_steps = on_crash != OnCrash::Fail || !forged.starts_with("'x:");
            for call in [call.clone(), call.clone().wait(LONG)].into_iter().filter(|_| reads_steps) {
                let refused = within(LONG, "the call", runs.run(&call)).await;
                assert!(matches!(refused, Err(Error::WrongKind { .. })), "{forged}: {refused:?}");
            }
            assert_eq!(runs.count(), 0, "{forged}");
            assert_eq!(server.call(&["DUMP", &record]), stored, "{forged}");
        }
        server.call(&["DEL", &record, "crashed"]);
    }
}

#[tokio::test]
async fn a_completed_record_without_a_result_is_no_record() {
    let server = server();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    for changed in [&["HDEL", "r"][..], &["HDEL", "k"], &["HDEL", "v"], &["HDEL", "n"], &["HSET", "k", "x"]] {
        let (call, runs) = (manager.idempotent("order:7"), Runs::default());
        runs.run(&call).await.expect("it runs");
        let record = record_of(&server);
        server.call(&[&changed[..1], &[&*record], &changed[1..]].concat());

        let refused = within(LONG, "the call", runs.run(&call)).await;
        assert!(matches!(refused, Err(Error::WrongKind { .. })), "{changed:?}: {refused:?}");
        assert!(matches!(call.status().await, Err(Error::WrongKind { .. })), "{changed:?}");
        assert_eq!(runs.count(), 1, "{changed:?}");
        server.call(&["DEL", &record]);
    }
}

#[tokio::test]
async fn values_of_other_types_are_reported_and_stay() {
    let server = server();
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let (call, runs) = (manager.idempotent("order:7"), Runs::default());
    runs.run(&call).await.expect("it runs");
    let record = record_of(&server);
    for value in [
        &["SET", &record, "text"][..],
        &["RPUSH", &record, "x"],
        &["SADD", &record, "x"],
        &["ZADD", &record, "1", "x"],
        &["XADD", &record, "*", "s", "P"],
        &["PFADD", &record, "x"],
        &["HSET", &record, "other", "x"],
    ] {
        server.call(&["DEL", &record]);
        server.call(value);
        let stored = server.call(&["DUMP", &record]);

        let refused = within(LONG, "the call", runs.run(&call)).await;
        let shown = call.status().await;
        let resolved = call.resolve(&1).await;

        assert!(matches!(refused, Err(Error::WrongKind { .. })), "{value:?}: {refused:?}");
        // A hash that has no phase is no call.
        let is_hash = value[0] == "HSET";
        assert!(is_hash || matches!(shown, Err(Error::WrongKind { .. })), "{value:?}: {shown:?}");
        assert!(is_hash || matches!(resolved, Err(Error::WrongKind { .. })), "{value:?}: {resolved:?}");
        assert_eq!(server.call(&["DUMP", &record]), stored, "{value:?}");
    }
    assert_eq!(runs.count(), 1);
}

/// Returns the scripts that took longer than 50 ms.
fn slow_scripts(server: &RedisServer) -> Vec<Reply> {
    match server.call(&["SLOWLOG", "GET", "-1"]) {
        Reply::List(entries) => entries,
        other => panic!("the log is a list: {other:?}"),
    }
}

/// Notifying that many processes, or removing one of them, would block the server for seconds.
#[tokio::test]
async fn a_forged_queue_of_processes_blocks_no_script() {
    let server = server();
    server.call(&["CONFIG", "SET", "slowlog-log-slower-than", "50000"]);
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let mut slow = Vec::new();
    for _ in 0..3 {
        let call = manager.idempotent("order:7");
        let paused = PausedBody::default();
        let running = tokio::spawn({
            let (call, paused) = (call.clone(), paused.clone());
            async move { call.run_attached(async move |_| paused.run().await).await }
        });
        paused.begun().await;
        let record = record_of(&server);
        let waiting = tokio::spawn({
            let waiter = call.clone().wait(Duration::from_millis(500));
            async move { Runs::default().run(&waiter).await }
        });
        let is_queued = async || server.call(&["HEXISTS", &record, "w"]) == Reply::Integer(1);
        until("the second call is queued", is_queued).await;
        // The queue of a process that leaves, behind a place that is no process.
        let longer = "redis.call('HSET', KEYS[1], 'w', redis.call('HGET', KEYS[1], 'w') .. string.rep('0123456789', 250000))";
        server.call(&["EVAL", longer, "1", &record]);
        server.call(&["SLOWLOG", "RESET"]);

        let left = within(LONG, "the second call", waiting).await.expect("no panic");
        paused.end();
        let ran = within(LONG, "the first call", running).await.expect("no panic");

        slow = slow_scripts(&server);
        assert!(matches!(left, Err(Error::InProgress { .. })), "{left:?}");
        assert!(ran.is_ok(), "{ran:?}");
        until("the record is forgotten", async || call.forget().await.is_ok_and(|was_there| was_there)).await;
        if slow.is_empty() {
            break;
        }
    }
    assert!(slow.is_empty(), "{slow:?}");
}

#[tokio::test]
async fn names_of_a_forged_record_are_shown_up_to_a_bound() {
    let server = RedisServer::builder().also_allow(dlock_tests::acl::WITH_RECORDS).start();
    let manager = LockManager::connect(&server.url()).await.expect("it is open");
    let call = manager.idempotent("charge:7").name("charge");
    call.run(async |_| Ok::<_, Error>(7)).await.expect("it runs");
    for (field, value) in [("fn", "y".repeat(2 << 20)), ("v", format!("1:{}", "v".repeat(2 << 20)))] {
        server.call(&["HSET", "dlock:charge:7##idem", field, &value]);

        let error =
            call.run(async |_| Ok::<_, Error>(7)).await.expect_err("it is another call's").to_string();

        assert!(error.len() < 1_000, "{field}: {} bytes", error.len());
        server.call(&["HSET", "dlock:charge:7##idem", "fn", "charge"]);
    }
}
