//! Several processes that are frozen and killed.

use dlock_tests::RedisServer;
use dlock_tests::process::Worker;

use super::ledger::Ledger;
use super::server;

pub(crate) const WORKER: &str = env!("CARGO_BIN_EXE_idem-worker");

/// A server and the file of its workers.
struct Rig {
    server: RedisServer,
    ledger: Ledger,
}

impl Rig {
    fn new() -> Self {
        Self { server: server(), ledger: Ledger::new() }
    }

    async fn worker(&self) -> Worker {
        self.ledger.worker(WORKER, &self.server.url_with("")).await
    }

    fn charges(&self) -> Vec<String> {
        self.ledger.charges()
    }
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
    for (policy, lease) in [("fail", 1_000), ("rerun", 1_000)] {
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
    killed.send("steps k 1000");
    killed.event("stepped", "k").await;
    killed.kill();
    tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;

    second.send("steps k 1000");
    assert_eq!(second.event("stepped", "k").await.detail, "2");
    second.send("finish k");
    assert_eq!(second.event("ended", "k").await.detail, "charged ran");

    let charges = rig.charges();
    let mut distinct = charges.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!((charges.len(), distinct.len()), (3, 3), "each charge once: {charges:?}");
}
