//! `dlock` as a process: its output, its effects, and its exit codes.

use std::process::Command;
use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::RedisServer;
use serde_json::{Value, json};

/// Runs `dlock` without `DLOCK_URL`; returns its exit code, and both of its outputs as one text.
fn dlock(words: &[&str]) -> (i32, String) {
    run(Command::new(env!("CARGO_BIN_EXE_dlock")).args(words).env_remove("DLOCK_URL"))
}

fn run(command: &mut Command) -> (i32, String) {
    let output = command.output().expect("the program starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().expect("it ends by itself"), String::from_utf8(text).expect("it prints text"))
}

/// Runs `dlock` with `--json`; returns its exit code, and the value on its only line. It prints
/// nothing to stderr.
#[track_caller]
fn dlock_json(words: &[&str]) -> (i32, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlock"));
    let output = command.args(words).arg("--json").env_remove("DLOCK_URL").output();
    let output = output.expect("the program starts");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{words:?}");
    let text = String::from_utf8(output.stdout).expect("it prints text");
    let line = text.strip_suffix('\n').expect("it prints a line");
    let is_raw = |c: char| c.is_control() || matches!(c, '\u{200b}' | '\u{2028}' | '\u{202e}');
    assert!(!line.contains(is_raw), "{words:?}: {line:?}");
    let value = serde_json::from_str(line).expect("it prints JSON");
    (output.status.code().expect("it ends by itself"), value)
}

/// Removes a field, and asserts that it is a number of milliseconds in `range`.
#[track_caller]
fn take_millis(object: &mut Value, field: &str, range: std::ops::RangeInclusive<u64>) {
    let millis = object.as_object_mut().and_then(|fields| fields.remove(field));
    let millis = millis.as_ref().and_then(Value::as_u64);
    assert!(millis.is_some_and(|millis| range.contains(&millis)), "{field}: {millis:?}");
}

/// Removes a field, and asserts that it is a time as in RFC 3339, in UTC.
#[track_caller]
fn take_time(object: &mut Value, field: &str) {
    let time = object.as_object_mut().and_then(|fields| fields.remove(field));
    let time = time.as_ref().and_then(Value::as_str).unwrap_or_default();
    let form: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(form, "0000-00-00T00:00:00.000Z", "{field}: {time}");
}

fn well_configured() -> RedisServer {
    let lines = ["maxmemory 256mb", "maxmemory-policy noeviction", "appendonly yes", "appendfsync always"];
    lines.into_iter().fold(RedisServer::builder(), dlock_tests::server::RedisServerBuilder::line).start()
}

/// Returns a URL with a long timeout: on a busy machine the server is slow, which would be a
/// warning.
fn patient(server: &RedisServer) -> String {
    server.url_with("?response_timeout=30s")
}

#[test]
fn the_exit_code_says_how_servers_are() {
    let mut server = well_configured();
    let url = patient(&server);

    let (fine, of_fine) = dlock(&["doctor", &url]);
    server.call(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let (faulty, of_faulty) = dlock(&["doctor", &url]);
    server.kill();
    let (away, of_away) = dlock(&["doctor", &url]);

    assert!(fine == 0 && of_fine.contains("danger: 0, warnings: 0"), "{fine}: {of_fine}");
    assert!(faulty == 1 && of_faulty.contains("danger   eviction"), "{faulty}: {of_faulty}");
    assert!(away == 2 && of_away.contains("danger   connection"), "{away}: {of_away}");
}

#[test]
fn json_is_one_finding_on_each_line() {
    let server = well_configured();
    server.call(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);

    let (code, text) = dlock(&["doctor", "--json", &server.url()]);

    assert_eq!(code, 1, "{text}");
    assert!(text.lines().all(|line| line.starts_with("{\"severity\":\"") && line.ends_with('}')), "{text}");
    let start = format!(
        "{{\"severity\":\"danger\",\"check\":\"eviction\",\"server\":\"127.0.0.1:{}\",\"found\":\"`maxmemory-policy` is `allkeys-lru`",
        server.port()
    );
    assert!(text.lines().any(|line| line.starts_with(&start)), "{text}");
}

#[test]
fn a_password_is_never_printed() {
    let server = RedisServer::builder().password("sesame").start();
    let wrong = format!("redis://:hunter2@127.0.0.1:{}", server.port());
    let unusable = format!("redis://:hunter2@127.0.0.1:{}?leas=3s", server.port());

    for words in [
        &["doctor", &wrong][..],
        &["doctor", "--json", &wrong],
        &["doctor", &unusable],
        &["inspect", &wrong, "key"],
        &["inspect", "--json", &wrong, "key"],
        &["idem", "get", "--json", &wrong, "key"],
        &["jobs", "get", "--json", &wrong, "name"],
        &["inspect", "--json", "key", &wrong],
        &["release", &wrong, "key", "--yes"],
        &["doctor", &wrong, &wrong],
        &[&wrong],
    ] {
        let (code, text) = dlock(words);
        assert_eq!(code, 2, "{words:?}: {text}");
        assert!(!text.is_empty() && !text.contains("hunter2"), "{words:?}: {text}");
    }
}

#[cfg(unix)]
#[test]
fn non_utf8_arguments_are_refused_and_not_printed() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    let url = OsStr::from_bytes(b"redis://:hunter2@h\xff");

    for command in [
        Command::new(env!("CARGO_BIN_EXE_dlock")).arg("doctor").arg(url),
        Command::new(env!("CARGO_BIN_EXE_dlock")).arg("doctor").env("DLOCK_URL", url),
    ] {
        let (code, text) = run(command);
        assert!(code == 2 && text.contains("not UTF-8") && !text.contains("hunter2"), "{code}: {text}");
    }
}

#[test]
fn a_closed_output_keeps_the_exit_code() {
    for words in [&["doctor", "memory://"][..], &["doctor", "memory://", "--json"], &["--help"]] {
        let (reader, writer) = std::io::pipe().expect("there are pipes");
        drop(reader);
        let mut dlock = Command::new(env!("CARGO_BIN_EXE_dlock"));
        let status = dlock.args(words).stdout(writer).status().expect("the program starts");
        assert_eq!(status.code(), Some(0), "{words:?}");
    }
    let (reader, writer) = std::io::pipe().expect("there are pipes");
    drop(reader);
    let mut dlock = Command::new(env!("CARGO_BIN_EXE_dlock"));
    let status = dlock.arg("unknown").stderr(writer).status().expect("the program starts");
    assert_eq!(status.code(), Some(2), "stderr is closed");
}

#[test]
fn the_url_may_come_from_the_environment() {
    let server = well_configured();

    let (code, text) =
        run(Command::new(env!("CARGO_BIN_EXE_dlock")).arg("doctor").env("DLOCK_URL", patient(&server)));

    assert_eq!(code, 0, "{text}");
}

#[tokio::test]
async fn locks_are_inspected_and_released_only_with_yes() {
    let server = RedisServer::start();
    let manager = LockManager::builder(&server.url()).owner("web-1").connect().await;
    let manager = manager.expect("the server takes managers");
    let guard = manager.lock("order:7").lease(Duration::from_secs(30)).acquire().await.expect("it is free");
    let url = server.url();

    let (held, of_held) = dlock(&["inspect", &url, "order:7"]);
    let (refused, of_refused) = dlock(&["release", &url, "order:7"]);
    let before = manager.inspect("order:7").await.expect("the server replies");
    let (released, of_released) = dlock(&["release", "--yes", &url, "order:7"]);
    let after = manager.inspect("order:7").await.expect("the server replies");
    let (free, of_free) = dlock(&["inspect", &url, "order:7"]);
    let (again, of_again) = dlock(&["release", "--yes", &url, "order:7"]);

    let holder = format!("{} (web-1)", manager.id());
    assert!(held == 0 && of_held.contains(&holder) && of_held.contains("waiters: 0"), "{of_held}");
    assert!(refused == 2 && of_refused.contains("--yes") && before.is_some(), "{of_refused}");
    assert!(released == 0 && of_released.contains("is released") && after.is_none(), "{of_released}");
    assert!(free == 1 && of_free.contains("`order:7` is not held; write keys without"), "{of_free}");
    assert!(again == 1 && of_again.contains("was not held"), "{of_again}");
    assert!(guard.release().await.is_err_and(|error| error.is_lost()));
}

#[tokio::test]
async fn a_lock_is_printed_as_json() {
    let mut server = RedisServer::start();
    let url = patient(&server);
    let manager = LockManager::builder(&url).owner("web-1").connect().await;
    let manager = manager.expect("the server takes managers");
    let guard = manager.lock("order:7").lease(Duration::from_secs(30)).acquire().await.expect("it is free");
    let of_key = |key: &str| dlock_json(&["inspect", &url, key]);

    let (code, mut unfenced) = of_key("order:7");
    take_millis(&mut unfenced, "remaining_ms", 1..=30_000);
    let token = guard.fencing_token().await.expect("the server replies").get();
    let (_, mut fenced) = of_key("order:7");
    take_millis(&mut fenced, "remaining_ms", 1..=30_000);
    server.call(&["SET", "dlock:order:8", "1"]);
    let (of_foreign, foreign) = of_key("order:8");

    let lock = |token: Option<u64>| {
        json!({
            "key": "order:7",
            "holder": &*manager.id(),
            "owner": "web-1",
            "is_foreign": false,
            "waiters": 0,
            "fencing_token": token,
        })
    };
    assert_eq!((code, unfenced), (0, lock(None)));
    assert_eq!(fenced, lock(Some(token)), "no other field, such as the acquisition token");
    let of_other_clients = json!({
        "key": "order:8",
        "holder": null,
        "owner": null,
        "is_foreign": true,
        "remaining_ms": null,
        "waiters": 0,
        "fencing_token": null,
    });
    assert_eq!((of_foreign, foreign), (0, of_other_clients));
    server.kill();
    let output =
        Command::new(env!("CARGO_BIN_EXE_dlock")).args(["inspect", &server.url(), "a", "--json"]).output();
    let output = output.expect("the program starts");
    assert!(output.status.code() == Some(2) && output.stdout.is_empty() && !output.stderr.is_empty());
}

#[test]
fn an_absent_record_is_printed_as_null() {
    let server = RedisServer::start();
    let url = patient(&server);

    for command in [&["inspect", &url, "a"][..], &["idem", "get", &url, "a"], &["jobs", "get", &url, "a"]] {
        assert_eq!(dlock_json(command), (1, Value::Null), "{command:?}");
    }
}

#[test]
fn control_characters_of_keys_are_printed_escaped() {
    for (key, shown) in [
        ("a\u{1b}[31mb", r"a\u{1b}[31mb"),
        ("\u{202e}7:redro", r"\u{202e}7:redro"),
        ("a\u{2028}b", r"a\u{2028}b"),
        ("a\nb", r"a\nb"),
        ("a\u{200b}b", r"a\u{200b}b"),
        ("-7", "-7"),
    ] {
        for words in [&["inspect", "memory://", "--", key][..], &["release", "--yes", "memory://", "--", key]]
        {
            let (code, text) = dlock(words);
            assert_eq!(code, 1, "{key:?}: {text}");
            assert!(text.contains(&format!("`{shown}`")) && !text.contains('\u{1b}'), "{key:?}: {text}");
        }
    }
}

#[test]
fn help_names_every_command_and_exit_code() {
    let (code, text) = dlock(&["--help"]);

    assert_eq!(code, 0);
    for word in [
        "dlock doctor",
        "dlock inspect",
        "dlock release",
        "dlock jobs",
        "dlock idem get",
        "dlock idem resolve",
        "--json",
        "--yes",
        "DLOCK_URL",
        "Exit code",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    for scheme in ["redis://", "redis+sentinel://", "redis+cluster://", "redis+quorum://", "redis+unix://"] {
        assert!(text.contains(scheme), "{scheme}: {text}");
    }
    assert!(text.lines().all(|line| line.len() <= 132), "{text}");
}

#[tokio::test]
async fn a_crashed_call_is_shown_resolved_and_forgotten() {
    let server = RedisServer::start();
    server.allow(dlock_tests::acl::documented_besides(dlock_tests::acl::WITH_RECORDS));
    let url = patient(&server);
    let manager = LockManager::connect(&url).await.expect("the server takes managers");
    let call = manager.idempotent("charge:7").lease(Duration::from_millis(100));
    let stepped = tokio::sync::Notify::new();
    let mut crashing = Box::pin(call.run_attached(async |record| {
        record.step("psp", async || Ok::<_, dlock_runtime::Error>(1)).await?;
        stepped.notify_one();
        std::future::pending::<Result<u8, dlock_runtime::Error>>().await
    }));
    tokio::select! {
        _ = &mut crashing => unreachable!("its body is pending"),
        () = stepped.notified() => {}
    }
    drop(crashing);
    tokio::time::sleep(Duration::from_millis(150)).await;
    let of_key = |words: &[&str]| dlock(&[&words[..2], &[&url, "charge:7"], &words[2..]].concat());

    let (code, text) = of_key(&["idem", "get"]);
    assert!(code == 0 && text.contains("its outcome is unknown") && text.contains("psp"), "{code}: {text}");
    let (code, text) = of_key(&["idem", "resolve", "--done", "{not JSON"]);
    assert!(code == 2 && text.contains("not JSON"), "{code}: {text}");
    // No reader decodes a number out of range, or half of a surrogate pair.
    for undecodable in ["1e999", r#""\ud800""#, r#"{"paid":[-1e999]}"#] {
        let (code, text) = of_key(&["idem", "resolve", "--done", undecodable]);
        assert!(
            code == 2 && text.contains("not JSON that callers can read"),
            "{undecodable}: {code}: {text}"
        );
    }
    let (code, text) = of_key(&["idem", "resolve", "--done", "41"]);
    assert!(code == 0 && text.contains("resolved"), "{code}: {text}");
    let replayed = call.run(async |_| Ok::<_, dlock_runtime::Error>(1)).await.expect("it is replayed");
    assert_eq!(replayed.into_value(), 41);
    assert_eq!(of_key(&["idem", "resolve", "--done", "42"]).0, 1, "there is a result");
    let (code, text) = of_key(&["idem", "resolve", "--forget"]);
    assert!(code == 2 && text.contains("has completed") && text.contains("`--yes`"), "{code}: {text}");
    assert_eq!(of_key(&["idem", "get"]).0, 0, "the record is still there");
    assert_eq!(of_key(&["idem", "resolve", "--forget", "--yes"]).0, 0);
    assert_eq!(of_key(&["idem", "get"]).0, 1);
    crash(&manager, "charge:7").await;
    assert_eq!(of_key(&["idem", "resolve", "--forget"]).0, 0, "a crash needs no `--yes`");
}

/// Runs the call until its body is pending, and drops it. Its lease is 100 ms.
async fn crash(manager: &LockManager, key: &str) {
    let call = manager.idempotent(key).lease(Duration::from_millis(100));
    let entered = tokio::sync::Notify::new();
    let mut crashing = Box::pin(call.run_attached(async |_| {
        entered.notify_one();
        std::future::pending::<Result<u8, dlock_runtime::Error>>().await
    }));
    tokio::select! {
        _ = &mut crashing => unreachable!("its body is pending"),
        () = entered.notified() => {}
    }
    drop(crashing);
    tokio::time::sleep(Duration::from_millis(150)).await;
}

#[tokio::test]
async fn a_record_is_printed_as_json() {
    let server = RedisServer::start();
    let url = patient(&server);
    let manager = LockManager::builder(&url).owner("web-1").connect().await;
    let manager = manager.expect("the server takes managers");
    let call = manager.idempotent("charge:7");
    let of_key = || {
        let (code, mut record) = dlock_json(&["idem", "get", &url, "charge:7"]);
        take_millis(&mut record, "age_ms", 0..=60_000);
        take_millis(&mut record, "ttl_ms", 1..=366 * 86_400_000);
        assert_eq!(code, 0);
        record
    };
    let stepped = tokio::sync::Notify::new();
    let lasting = manager.idempotent("charge:7").lease(Duration::from_secs(30));
    let mut running = Box::pin(lasting.run_attached(async |record| {
        record.step("psp", async || Ok::<_, dlock_runtime::Error>(1)).await?;
        stepped.notify_one();
        std::future::pending::<Result<u8, dlock_runtime::Error>>().await
    }));
    tokio::select! {
        _ = &mut running => unreachable!("its body is pending"),
        () = stepped.notified() => {}
    }

    let mut in_progress = of_key();
    take_millis(&mut in_progress, "lease_left_ms", 1..=30_000);
    assert_eq!(
        in_progress,
        json!({
            "key": "charge:7",
            "state": "in_progress",
            "attempt": 1,
            "holder": &*manager.id(),
            "owner": "web-1",
            "function": null,
            "completed_ago_ms": null,
            "steps": ["psp"],
            "is_resolved": false,
            "is_error": false,
            "result": null,
            "result_text": null,
        })
    );
    drop(running);
    let [name] = <[String; 1]>::try_from(server.call(&["KEYS", "*##*"]).texts()).expect("one record");
    server.call(&["DEL", &name]);
    call.run(async |_| Ok::<_, dlock_runtime::Error>(json!({ "paid": "é" }))).await.expect("it runs");
    let mut completed = of_key();
    take_millis(&mut completed, "completed_ago_ms", 0..=60_000);
    assert_eq!(
        completed,
        json!({
            "key": "charge:7",
            "state": "completed",
            "attempt": 1,
            "holder": &*manager.id(),
            "owner": "web-1",
            "function": null,
            "lease_left_ms": 0,
            "steps": [],
            "is_resolved": false,
            "is_error": false,
            "result": { "paid": "é" },
            "result_text": null,
        })
    );
    for (kind, stored, result, text) in [
        ("ok", "{not JSON\n", Value::Null, json!("{not JSON\n")),
        ("ok", "null", Value::Null, Value::Null),
        ("err", "\"declined\"", json!("declined"), Value::Null),
    ] {
        server.call(&["HSET", &name, "k", kind, "r", stored]);
        let record = of_key();
        assert_eq!((&record["result"], &record["result_text"]), (&result, &text), "{stored}");
        assert_eq!(record["is_error"], json!(kind == "err"), "{stored}");
    }
    // A reader that rounds numbers would not get the stored one back.
    server.call(&["HSET", &name, "r", &u128::MAX.to_string()]);
    let (_, text) = dlock(&["idem", "get", &url, "charge:7", "--json"]);
    assert!(text.contains(&format!("\"result\":{},", u128::MAX)), "{text}");
}

#[tokio::test]
async fn a_wrong_result_of_an_operator_can_be_replaced() {
    let server = RedisServer::start();
    let url = patient(&server);
    let manager = LockManager::builder(&url).owner("web-1").connect().await;
    let manager = manager.expect("the server takes managers");
    crash(&manager, "charge:7").await;
    let of_key = |words: &[&str]| dlock(&[&words[..2], &[&url, "charge:7"], &words[2..]].concat());
    let (code, text) = of_key(&["idem", "get"]);
    let holder = format!("  manager: {} (web-1)\n", manager.id());
    assert!(code == 0 && text.contains(&holder), "{code}: {text}");

    assert_eq!(of_key(&["idem", "resolve", "--done", "{\"paid\": \"x\"}"]).0, 0);
    let (code, text) = of_key(&["idem", "get"]);
    let stored = "  result: {\"paid\": \"x\"}\n";
    assert!(code == 0 && text.contains(stored) && text.contains("an operator"), "{code}: {text}");
    let (_, record) = dlock_json(&["idem", "get", &url, "charge:7"]);
    assert_eq!((&record["is_resolved"], &record["holder"]), (&json!(true), &Value::Null), "{record}");
    let (code, text) = of_key(&["idem", "resolve", "--done", "41"]);
    for part in ["has a result already", "`dlock idem get`", "`--replace`", "`--forget --yes`", "runs again"]
    {
        assert!(code == 1 && text.contains(part), "{part}: {code}: {text}");
    }
    let (code, text) = of_key(&["idem", "resolve", "--done", "41", "--replace"]);
    assert!(code == 0 && text.contains("resolved"), "{code}: {text}");
    let body = async |_| Ok::<_, dlock_runtime::Error>(1);
    let replayed = manager.idempotent("charge:7").run(body).await.expect("it is replayed");
    assert_eq!(replayed.into_value(), 41);
}

#[tokio::test]
async fn a_result_is_stored_as_typed() {
    let server = RedisServer::start();
    let url = patient(&server);
    let manager = LockManager::connect(&url).await.expect("the server takes managers");
    crash(&manager, "charge:7").await;

    let wei = u128::MAX;
    assert_eq!(dlock(&["idem", "resolve", &url, "charge:7", "--done", &wei.to_string()]).0, 0);

    let body = async |_| Ok::<_, dlock_runtime::Error>(1_u128);
    let replayed = manager.idempotent("charge:7").run(body).await.expect("it is replayed");
    assert_eq!(replayed.into_value(), wei);
}

#[tokio::test]
async fn a_job_that_runs_is_reset_only_with_yes() {
    let server = RedisServer::start();
    server.allow(dlock_tests::acl::documented_besides(dlock_tests::acl::WITH_JOBS));
    let url = patient(&server);
    let of_job = |words: &[&str]| dlock(&[&["jobs", words[0], &url, "nightly"][..], &words[1..]].concat());
    let manager = LockManager::connect(&url).await.expect("the server takes managers");
    let daily = dlock_runtime::scheduled::Schedule::cron("0 2 * * *").expect("valid");
    let job = manager.job("nightly");
    let started = tokio::sync::Notify::new();
    let mut run = Box::pin(job.run(&daily, async |_| {
        started.notify_one();
        std::future::pending::<Result<(), dlock_runtime::Error>>().await
    }));
    tokio::select! {
        _ = &mut run => unreachable!("its body is pending"),
        () = started.notified() => {}
    }
    assert_eq!(of_job(&["pause"]).0, 0);

    let (code, text) = of_job(&["get"]);
    assert!(code == 0 && text.contains("unless it is renewed, and is paused\n"), "{code}: {text}");
    let (code, text) = of_job(&["reset"]);
    assert!(code == 2 && text.contains("`nightly` runs on ") && text.contains("`--yes`"), "{code}: {text}");
    assert!(of_job(&["get"]).1.contains("`nightly` runs on "), "the run goes on");
    let (code, text) = of_job(&["reset", "--yes"]);
    assert!(code == 0 && text.contains("is still paused: its ticks are skipped"), "{code}: {text}");
    assert!(of_job(&["get"]).1.contains("`nightly` is paused\n"));
}

#[tokio::test]
async fn a_result_of_a_body_is_not_replaced() {
    let server = RedisServer::start();
    let url = patient(&server);
    let manager = LockManager::connect(&url).await.expect("the server takes managers");
    let call = manager.idempotent("charge:7");
    call.run(async |_| Ok::<_, dlock_runtime::Error>(1)).await.expect("it runs");

    let replace = ["idem", "resolve", &url, "charge:7", "--done", "2", "--replace"];
    let (code, text) = dlock(&replace);

    assert!(
        code == 1 && text.contains("its body stored") && text.contains("`--forget --yes`"),
        "{code}: {text}"
    );
    assert!(!text.contains("--replace"), "{text}");
    let again = call.run(async |_| Ok::<_, dlock_runtime::Error>(3)).await.expect("it is replayed");
    assert_eq!(again.into_value(), 1);
    let (code, text) = dlock(&["idem", "resolve", &url, "charge:8", "--done", "2"]);
    assert!(code == 1 && text.contains("has no record"), "{code}: {text}");
}

#[tokio::test]
async fn a_running_call_is_not_resolved_until_its_lease_ends() {
    let server = RedisServer::start();
    let url = patient(&server);
    let manager = LockManager::connect(&url).await.expect("the server takes managers");
    let call = manager.idempotent("charge:7").lease(Duration::from_secs(3_600));
    let entered = tokio::sync::Notify::new();
    let mut running = Box::pin(call.run_attached(async |_| {
        entered.notify_one();
        std::future::pending::<Result<u8, dlock_runtime::Error>>().await
    }));
    tokio::select! {
        _ = &mut running => unreachable!("its body is pending"),
        () = entered.notified() => {}
    }

    for change in [&["--done", "1"][..], &["--forget"]] {
        let (code, text) = dlock(&[&["idem", "resolve", &url, "charge:7"], change].concat());

        assert_eq!(code, 2, "{text}");
        let left = text.split("lasts ").nth(1).and_then(|rest| rest.split(" s").next());
        let left: f64 = left.and_then(|left| left.parse().ok()).unwrap_or_default();
        assert!(left > 3_000.0 && left <= 3_600.0, "{text}");
        assert!(text.contains("was killed, run this again"), "{text}");
    }
}

/// Texts in records that other clients have written, and how they are printed.
const HOSTILE: [(&str, &str); 4] = [
    ("\u{1b}[31mred", r"\u{1b}[31mred"),
    ("\u{202e}7:redro", r"\u{202e}7:redro"),
    ("a\u{2028}b\nc", r"a\u{2028}b\nc"),
    ("a\u{9b}2Jb\u{200b}", r"a\u{9b}2Jb\u{200b}"),
];

#[tokio::test]
async fn control_characters_of_records_are_printed_escaped() {
    let server = RedisServer::start();
    server.allow(dlock_tests::acl::documented_besides(dlock_tests::acl::WITH_RECORDS));
    let url = patient(&server);
    let manager = LockManager::connect(&url).await.expect("the server takes managers");
    let call = manager.idempotent("charge:7");
    call.run(async |_| Ok::<_, dlock_runtime::Error>(1)).await.expect("it runs");
    let [record] = <[String; 1]>::try_from(server.call(&["KEYS", "*##*"]).texts()).expect("one record");
    for (text, shown) in HOSTILE {
        for field in ["o", "fn", "x:step", "r"] {
            // The result of a step has a mark. Without one, the hash is no record.
            let (field, text) = match field {
                "x:step" => (format!("x:{text}"), "+1"),
                field => (field.to_owned(), text),
            };
            server.call(&["HSET", &record, &field, text]);
            let (code, printed) = dlock(&["idem", "get", &url, "charge:7"]);

            // Twelve characters of an owner are shown, so the end of the text can be missing.
            let shown = if field == "o" { &shown[..4] } else { shown };
            assert!(code == 0 && printed.contains(shown), "{field}: {printed}");
            let is_raw = |c: char| c != '\n' && text.contains(c) && !c.is_ascii_graphic();
            assert!(!printed.contains(is_raw), "{field}: {printed:?}");
            let (_, record) = dlock_json(&["idem", "get", &url, "charge:7"]);
            match &*field {
                "o" => {}
                "fn" => assert_eq!(record["function"], text),
                "r" => assert!(record["result_text"].is_string(), "{record}"),
                step => assert!(record["steps"].as_array().is_some_and(|of| of.contains(&json!(step[2..])))),
            }
        }
    }
}

#[tokio::test]
async fn control_characters_of_jobs_are_printed_escaped() {
    let server = RedisServer::start();
    server.allow(dlock_tests::acl::documented_besides(dlock_tests::acl::WITH_JOBS));
    let url = patient(&server);
    let manager = LockManager::connect(&url).await.expect("the server takes managers");
    let daily = dlock_runtime::scheduled::Schedule::cron("0 2 * * *").expect("valid");
    let ran = manager.job("nightly").run(&daily, async |_| Ok::<_, dlock_runtime::Error>(())).await;
    ran.expect("the server replies").expect("the tick is due");
    let [record] = <[String; 1]>::try_from(server.call(&["KEYS", "*##job"]).texts()).expect("one record");
    let token = server.call(&["HGET", &record, "en"]).text().expect("a run has ended").to_owned();
    for (text, shown) in HOSTILE {
        let past = format!("1|0|1|2|F|{text}|{text}");
        let active = ["o", &token, "rs", "1", "st", "1", "le", "9000000000000", "nd", text];
        server.call(&[&["HSET", &record, "sp", text, "h0", &past][..], &active].concat());
        let (code, printed) = dlock(&["jobs", "get", &url, "nightly"]);

        assert_eq!(code, 0, "{printed}");
        assert_eq!(printed.matches(shown).count(), 4, "schedule, manager, and past run: {printed}");
        let is_raw = |c: char| c != '\n' && text.contains(c) && !c.is_ascii_graphic();
        assert!(!printed.contains(is_raw), "{printed:?}");
        let (_, job) = dlock_json(&["jobs", "get", &url, "nightly"]);
        let [schedule, node, past] = [&job["schedule"], &job["running"]["node"], &job["history"][0]];
        assert_eq!([schedule, node, &past["node"], &past["error"]], [text; 4]);
    }
}

#[tokio::test]
async fn a_job_is_printed_as_json() {
    let server = RedisServer::start();
    server.allow(dlock_tests::acl::documented_besides(dlock_tests::acl::WITH_JOBS));
    let url = patient(&server);
    let manager = LockManager::connect(&url).await.expect("the server takes managers");
    let daily = dlock_runtime::scheduled::Schedule::cron("0 2 * * *").expect("valid");
    let job = manager.job("nightly");
    let ran = job.run(&daily, async |_| Ok::<_, dlock_runtime::Error>(())).await;
    ran.expect("the server replies").expect("the tick is due");
    let [record] = <[String; 1]>::try_from(server.call(&["KEYS", "*##job"]).texts()).expect("one record");
    let of_job = || dlock_json(&["jobs", "get", &url, "nightly"]);

    let (code, mut idle) = of_job();
    for field in ["known", "slot", "succeeded"] {
        take_time(&mut idle, field);
    }
    for field in ["slot", "started"] {
        take_time(&mut idle["history"][0], field);
    }
    assert!(idle["history"][0]["took_ms"].is_u64(), "{idle}");
    idle["history"][0]["took_ms"] = Value::Null;
    let run = json!({ "is_requested": false, "took_ms": null, "outcome": "succeeded", "node": &*manager.id(), "error": null });
    let expected = json!({
        "name": "nightly",
        "schedule": idle["schedule"],
        "is_paused": false,
        "is_requested": false,
        "running": null,
        "runs": 1,
        "failures": 0,
        "skips": 0,
        "missed": 0,
        "history": [run],
    });
    assert_eq!((code, &idle), (0, &expected));
    assert!(idle["schedule"].as_str().is_some_and(|text| text.contains("0 2 * * *")), "{idle}");
    job.pause().await.expect("the server replies");
    job.run_now().await.expect("the server replies");
    let token = server.call(&["HGET", &record, "en"]).text().expect("a run has ended").to_owned();
    let ended = ["h0", "951782400001|1|951782400002|951782401503|F|dl2-7|it failed"];
    let active =
        ["o", &token, "rs", "951782400003", "st", "951782400004", "le", "9000000000000", "nd", "dl2-7"];
    server.call(&[&["HSET", &record][..], &ended, &active].concat());
    let (_, mut busy) = of_job();
    take_millis(&mut busy["running"], "remaining_ms", 1..=9_000_000_000_000);
    assert_eq!((&busy["is_paused"], &busy["is_requested"]), (&json!(true), &json!(true)));
    let running = json!({
        "slot": "2000-02-29T00:00:00.003Z",
        "started": "2000-02-29T00:00:00.004Z",
        "node": "dl2-7",
    });
    assert_eq!(busy["running"], running);
    let failed = json!({
        "slot": "2000-02-29T00:00:00.001Z",
        "is_requested": true,
        "started": "2000-02-29T00:00:00.002Z",
        "took_ms": 1_501,
        "outcome": "failed",
        "node": "dl2-7",
        "error": "it failed",
    });
    assert_eq!(busy["history"][0], failed);
}

#[tokio::test]
async fn a_job_is_shown_paused_and_requested() {
    let server = RedisServer::start();
    server.allow(dlock_tests::acl::documented_besides(dlock_tests::acl::WITH_JOBS));
    let url = patient(&server);
    let of_job = |action: &str| dlock(&["jobs", action, &url, "nightly"]);
    assert_eq!(of_job("get").0, 1, "there is no record");
    let (code, text) = of_job("run");
    assert!(code == 1 && text.contains("`nightly` has no record: no runner"), "{code}: {text}");
    assert_eq!(of_job("get").0, 1, "a request of an unknown job creates no record");
    let manager = LockManager::connect(&url).await.expect("the server takes managers");
    let daily = dlock_runtime::scheduled::Schedule::cron("0 2 * * *").expect("valid");
    let fail = async |_| Err::<(), _>(dlock_runtime::LockKey::new("").expect_err("it is empty").into());
    let failed: dlock_runtime::Result<_> = manager.job("nightly").run(&daily, fail).await;
    assert!(failed.is_err());

    let (code, text) = of_job("get");
    assert!(code == 0 && text.contains("runs: 1, failures: 1") && text.contains("failed after"), "{text}");
    assert_eq!((of_job("pause").0, of_job("run").0), (0, 0));
    let (_, text) = of_job("get");
    assert!(text.contains("`nightly` is paused, and a run is requested"), "{text}");
    assert_eq!((of_job("resume").0, of_job("reset").0), (0, 0));
    let (_, text) = of_job("get");
    assert!(text.contains("`nightly` is idle\n") && text.contains("last tick: none"), "{text}");
}
