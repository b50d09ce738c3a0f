//! Several processes that are frozen and killed.

use std::path::{Path, PathBuf};

use dlock_tests::process::Worker;
use dlock_tests::{RedisServer, acl};

use super::{LEASE, server};

const WORKER: &str = env!("CARGO_BIN_EXE_idem-worker");

/// A server, and the file that every body and every charge appends a line to.
struct Rig {
    server: RedisServer,
    _folder: tempfile::TempDir,
    file: PathBuf,
}

impl Rig {
    fn new() -> Self {
        Self::over(server())
    }

    /// Returns a rig whose server loses nothing that it has confirmed.
    fn durable() -> Self {
        let builder = RedisServer::builder().line("appendonly yes").line("appendfsync always");
        Self::over(builder.also_allow(acl::WITH_RECORDS).start())
    }

    fn over(server: RedisServer) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let file = folder.path().join("charges");
        Self { server, _folder: folder, file }
    }

    /// Lets `fault` happen to the process that runs the body of `key`, or to the server.
    async fn befall(&mut self, first: &mut Worker, key: &str, fault: Fault) {
        match fault {
            Fault::Kill => first.kill(),
            Fault::Freeze => {
                first.pause();
                tokio::time::sleep(2 * LEASE).await;
            }
            Fault::Restart => {
                self.server.kill();
                self.server.restart();
            }
            Fault::RestartAtTheEnd => {
                self.server.kill();
                first.send(&format!("finish {key}"));
                tokio::time::sleep(LEASE).await;
                self.server.restart();
            }
        }
    }

    async fn worker(&self) -> Worker {
        let file = self.file.to_str().expect("the path is text").to_owned();
        Worker::spawn(WORKER, &[self.server.url_with(""), file]).await
    }

    fn charges(&self) -> Vec<String> {
        lines(&self.file)
    }
}

/// Events while a body runs.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    Freeze,
    Restart,
    RestartAtTheEnd,
}

fn lines(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn two_hundred_callers_in_four_processes_share_one_body() {
    let rig = Rig::new();
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(rig.worker().await);
    }
    for worker in &mut workers {
        worker.send("many k 50");
    }

    let (mut values, mut replayed) = (Vec::new(), 0);
    for worker in &mut workers {
        let ended = worker.event("ended", "k").await.detail;
        let (value, of) = ended.split_once(' ').expect("two words");
        values.push(value.to_owned());
        replayed += of.parse::<u32>().expect("a number");
    }

    values.dedup();
    assert_eq!((values.len(), replayed, rig.charges().len()), (1, 199, 1), "{values:?}");
}

#[tokio::test]
async fn a_frozen_holder_overwrites_nothing() {
    for (policy, lease) in [("fail", 300), ("rerun", 300)] {
        let rig = Rig::new();
        let (mut frozen, mut second) = (rig.worker().await, rig.worker().await);
        frozen.send(&format!("call k {policy} {lease} 0"));
        frozen.event("entered", "k").await;
        frozen.pause();
        tokio::time::sleep(std::time::Duration::from_millis(3 * lease)).await;

        second.send(&format!("call k {policy} {lease} 0"));
        second.send("finish k");
        let second_ended = second.event_or_failure("ended", "k").await.detail;
        frozen.resume();
        frozen.send("finish k");
        let late = frozen.event_or_failure("ended", "k").await.detail;
        second.send(&format!("call k {policy} {lease} 5000"));
        let replayed = second.event("ended", "k").await.detail;

        if policy == "fail" {
            assert!(second_ended.starts_with("OutcomeUnknown"), "{second_ended}");
            assert_eq!((late.clone(), rig.charges().len()), (format!("{}:1 ran", frozen.pid()), 1));
            assert_eq!(replayed, format!("{}:1 replayed", frozen.pid()), "the late result counts");
        } else {
            assert_eq!(second_ended, format!("{}:2 ran", second.pid()));
            // A poll of the body that began before the freeze may complete it.
            let is_own = late == format!("{}:1 ran", frozen.pid());
            assert!(late.starts_with("Lost") || is_own, "{late}");
            assert_eq!(replayed, format!("{}:2 replayed", second.pid()));
        }
    }
}

#[tokio::test]
async fn a_killed_process_repeats_no_completed_step() {
    let rig = Rig::new();
    let (mut killed, mut second) = (rig.worker().await, rig.worker().await);
    killed.send("steps k 300");
    killed.event("stepped", "k").await;
    killed.kill();
    tokio::time::sleep(std::time::Duration::from_millis(400)).await;

    second.send("steps k 300");
    assert_eq!(second.event("stepped", "k").await.detail, "2");
    second.send("finish k");
    assert_eq!(second.event("ended", "k").await.detail, "charged ran");

    let charges = rig.charges();
    let mut distinct = charges.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!((charges.len(), distinct.len()), (3, 3), "each charge once: {charges:?}");
}

/// `DLOCK_IDEM_FAULTS` is the number of faults, 16 by default.
#[tokio::test]
async fn no_fault_starts_a_body_twice() {
    let count = std::env::var("DLOCK_IDEM_FAULTS").ok().and_then(|count| count.parse().ok()).unwrap_or(16);
    let mut rig = Rig::durable();
    let mut second = rig.worker().await;
    let faults = [Fault::Kill, Fault::Freeze, Fault::Restart, Fault::RestartAtTheEnd];
    for (number, fault) in (0..count).zip(faults.into_iter().cycle()) {
        let key = format!("k{number}");
        let mut first = rig.worker().await;
        first.send(&format!("call {key} fail {} 0", LEASE.as_millis()));
        first.event("entered", &key).await;

        rig.befall(&mut first, &key, fault).await;
        second.send(&format!("call {key} fail {} 1000", LEASE.as_millis()));
        let ended = second.event_or_failure("ended", &key).await;
        if let Fault::Freeze = fault {
            first.resume();
        }
        if let Fault::Freeze | Fault::Restart = fault {
            first.send(&format!("finish {key}"));
            let late = first.event("ended", &key).await.detail;
            second.send(&format!("call {key} fail {} 5000", LEASE.as_millis()));
            let replayed = second.event("ended", &key).await.detail;
            assert_eq!(replayed, late.replace("ran", "replayed"), "{fault:?}");
        }

        let bodies = rig.charges().iter().filter(|line| **line == format!("body {key}")).count();
        assert_eq!(bodies, 1, "fault {number}, {fault:?}: {ended:?}");
    }
}
