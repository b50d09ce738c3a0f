//! The server loses a key that has not expired (A2).

use std::fs;
use std::path::PathBuf;

use dlock_tests::RedisServer;
use dlock_tests::resp::Reply;

use super::{Holder, NAME, assert_kept, assert_loss_is_reported, assert_lost_and_fenced};

#[tokio::test]
async fn a_restart_without_persistence_loses_all_locks() {
    let mut server = RedisServer::start();
    let first = Holder::of(&server).await;

    server.restart();

    assert_lost_and_fenced(&first, &server.url()).await;
    assert_loss_is_reported(&first).await;
}

#[tokio::test]
async fn a_flush_loses_all_locks() {
    let server = RedisServer::start();
    let first = Holder::of(&server).await;

    server.call(&["FLUSHALL"]);

    assert_lost_and_fenced(&first, &server.url()).await;
    assert_loss_is_reported(&first).await;
}

#[tokio::test]
async fn a_manual_deletion_loses_the_lock_and_tokens_rise() {
    let server = RedisServer::start();
    let first = Holder::of(&server).await;

    server.call(&["DEL", NAME]);

    assert_lost_and_fenced(&first, &server.url()).await;
    assert_loss_is_reported(&first).await;
}

/// A lock always has a TTL, so a policy that evicts only keys with a TTL evicts locks first.
#[tokio::test]
async fn eviction_under_memory_pressure_loses_locks() {
    let server = RedisServer::builder().line("maxmemory-policy volatile-random").start();
    let first = Holder::of(&server).await;

    server.call(&["CONFIG", "SET", "maxmemory", "3mb"]);
    let junk = "x".repeat(50_000);
    let evicted = (0..200).any(|number| {
        server.call(&["SET", &format!("junk:{number}"), &junk]);
        server.call(&["EXISTS", NAME]) == Reply::Integer(0)
    });
    server.call(&["CONFIG", "SET", "maxmemory", "0"]);

    assert!(evicted, "the server evicted nothing");
    assert_lost_and_fenced(&first, &server.url()).await;
    assert_loss_is_reported(&first).await;
}

/// The tail is what `appendfsync everysec` has not written to the disk when the machine fails.
#[tokio::test]
async fn a_truncated_append_only_file_loses_locks() {
    let mut server = RedisServer::builder().line("appendonly yes").line("appendfsync everysec").start();
    let whole = fs::metadata(append_only_file(&server)).expect("the file is there").len();
    let first = Holder::of(&server).await;

    server.kill();
    let file = fs::OpenOptions::new().write(true).open(append_only_file(&server)).expect("the file is there");
    file.set_len(whole).expect("the file can be cut");
    server.restart();

    assert_lost_and_fenced(&first, &server.url()).await;
    assert_loss_is_reported(&first).await;
}

#[tokio::test]
async fn a_restart_with_every_write_on_the_disk_keeps_locks() {
    let mut server = RedisServer::builder().line("appendonly yes").line("appendfsync always").start();
    let first = Holder::of(&server).await;

    server.restart();

    assert_kept(first, &server.url()).await;
}

#[tokio::test]
async fn flushed_scripts_and_cut_connections_keep_locks() {
    let server = RedisServer::start();
    let first = Holder::of(&server).await;

    server.call(&["SCRIPT", "FLUSH"]);
    for kind in ["normal", "pubsub"] {
        server.call(&["CLIENT", "KILL", "TYPE", kind]);
    }

    assert_kept(first, &server.url()).await;
}

/// Returns the file to which writes are appended. Since Redis 7, it is in a separate folder.
fn append_only_file(server: &RedisServer) -> PathBuf {
    let folder = server.folder();
    let parts = fs::read_dir(folder.join("appendonlydir")).into_iter().flatten().filter_map(Result::ok);
    let mut parts =
        parts.map(|entry| entry.path()).filter(|path| path.to_string_lossy().ends_with(".incr.aof"));
    parts.next().unwrap_or_else(|| folder.join("appendonly.aof"))
}
