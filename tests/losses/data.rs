//! The server forgets a key that is alive (A2).

use std::fs;
use std::path::PathBuf;

use dlock_tests::RedisServer;
use dlock_tests::resp::Reply;

use super::{Holder, NAME, assert_kept, assert_lost_and_fenced, assert_told};

#[tokio::test]
async fn a_restart_without_persistence_loses_all_locks() {
    let mut server = RedisServer::start();
    let first = Holder::of(&server).await;

    server.restart();

    assert_lost_and_fenced(&first, &server.url()).await;
    assert_told(&first).await;
}

#[tokio::test]
async fn a_flush_loses_all_locks() {
    let server = RedisServer::start();
    let first = Holder::of(&server).await;

    server.call(&["FLUSHALL"]);

    assert_lost_and_fenced(&first, &server.url()).await;
    assert_told(&first).await;
}

#[tokio::test]
async fn a_deletion_by_hand_loses_the_lock_and_its_counter_still_rises() {
    let server = RedisServer::start();
    let first = Holder::of(&server).await;

    server.call(&["DEL", NAME]);

    assert_lost_and_fenced(&first, &server.url()).await;
    assert_told(&first).await;
}

/// A lock always has a time to live, so a policy that spares keys without one takes locks first.
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

    assert!(evicted, "the server found room for everything");
    assert_lost_and_fenced(&first, &server.url()).await;
    assert_told(&first).await;
}

/// What `appendfsync everysec` has not brought to the disk when the machine dies.
#[tokio::test]
async fn an_append_only_file_that_lacks_its_tail_loses_the_locks_in_it() {
    let mut server = RedisServer::builder().line("appendonly yes").line("appendfsync everysec").start();
    let whole = fs::metadata(append_only_file(&server)).expect("the file is there").len();
    let first = Holder::of(&server).await;

    server.kill();
    let file = fs::OpenOptions::new().write(true).open(append_only_file(&server)).expect("the file is there");
    file.set_len(whole).expect("the file can be cut");
    server.restart();

    assert_lost_and_fenced(&first, &server.url()).await;
    assert_told(&first).await;
}

#[tokio::test]
async fn a_restart_with_every_write_on_the_disk_keeps_locks() {
    let mut server = RedisServer::builder().line("appendonly yes").line("appendfsync always").start();
    let first = Holder::of(&server).await;

    server.restart();

    assert_kept(first, &server.url()).await;
}

#[tokio::test]
async fn forgotten_scripts_and_cut_connections_keep_locks() {
    let server = RedisServer::start();
    let first = Holder::of(&server).await;

    server.call(&["SCRIPT", "FLUSH"]);
    for kind in ["normal", "pubsub"] {
        server.call(&["CLIENT", "KILL", "TYPE", kind]);
    }

    assert_kept(first, &server.url()).await;
}

/// Returns the file that writes are appended to: in a folder of its own since Redis 7.
fn append_only_file(server: &RedisServer) -> PathBuf {
    let folder = server.folder();
    let parts = fs::read_dir(folder.join("appendonlydir")).into_iter().flatten().filter_map(Result::ok);
    let mut parts =
        parts.map(|entry| entry.path()).filter(|path| path.to_string_lossy().ends_with(".incr.aof"));
    parts.next().unwrap_or_else(|| folder.join("appendonly.aof"))
}
