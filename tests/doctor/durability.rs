//! Servers whose configuration can lose data.

use dlock_runtime::doctor::Finding;
use dlock_runtime::doctor::Severity::{Danger, Note, Ok as Fine, Warning};
use dlock_tests::RedisServer;

use super::{assert_finds, examine, well_configured};

#[tokio::test]
async fn a_policy_that_removes_locks_is_found() {
    let server = well_configured().start();
    server.call(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);

    let limited = examine(&server.url()).await;
    server.call(&["CONFIG", "SET", "maxmemory", "0"]);
    let unlimited = examine(&server.url()).await;

    assert_finds(&limited, "eviction", Danger, "`allkeys-lru`, and `maxmemory` is 256.0 MB");
    assert_finds(&unlimited, "eviction", Note, "`maxmemory` is not set");
    assert_finds(&unlimited, "memory", Note, "`maxmemory` is not set");
}

#[tokio::test]
async fn a_server_that_is_full_is_found_and_refuses_a_lock() {
    let server = well_configured().start();
    server.call(&["CONFIG", "SET", "maxmemory", "1"]);

    let report = examine(&server.url()).await;

    assert_finds(&report, "memory", Danger, "are used");
    assert_finds(&report, "commands", Danger, "OOM");
}

#[tokio::test]
async fn data_loss_by_a_restart_is_found() {
    let server = RedisServer::builder().line("appendonly no").start();
    let set = async |name, value| {
        server.call(&["CONFIG", "SET", name, value]);
        examine(&server.url()).await
    };

    assert_finds(&examine(&server.url()).await, "persistence", Warning, "neither");
    assert_finds(&set("save", "3600 1").await, "persistence", Warning, "`appendonly` is not set");
    assert_finds(&set("appendonly", "yes").await, "persistence", Note, "everysec");
    assert_finds(&set("appendfsync", "always").await, "persistence", Fine, "always");
    let on_rewrite = set("no-appendfsync-on-rewrite", "yes").await;
    assert_finds(&on_rewrite, "persistence", Note, "`no-appendfsync-on-rewrite yes`");
}

#[tokio::test]
async fn a_disk_that_fails_is_found() {
    let server = RedisServer::builder().line("save 3600 1").line("dbfilename there.rdb").start();
    // A directory replaces the file, so the server cannot write it.
    let folder = server.socket().with_file_name("there.rdb");
    std::fs::create_dir_all(folder.join("full")).expect("the directory can be created");
    server.call(&["SET", "key", "value"]);
    server.call(&["BGSAVE"]);
    let failed = async {
        while !server
            .call(&["INFO", "persistence"])
            .text()
            .unwrap_or_default()
            .contains("last_bgsave_status:err")
        {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    dlock_tests::within(std::time::Duration::from_secs(5), "the snapshot that fails", failed).await;

    let report = examine(&server.url()).await;
    server.call(&["CONFIG", "SET", "save", ""]);
    let without_snapshots = examine(&server.url()).await;

    assert_finds(&report, "persistence", Danger, "rdb_last_bgsave_status");
    assert_finds(&report, "commands", Danger, "MISCONF");
    let disk = without_snapshots.findings().iter().find(|at| at.found().contains("rdb_last_bgsave_status"));
    assert_eq!(disk.map(Finding::severity), Some(Warning), "{without_snapshots}");
    assert_finds(&without_snapshots, "commands", Fine, "");
}
