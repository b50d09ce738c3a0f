//! Faults while a body runs: no second body runs at the same time, and with `OnCrash::Fail` none
//! starts at all.

use dlock_tests::process::Worker;
use dlock_tests::sentinel::End;
use dlock_tests::{Proxy, RedisServer, SentinelFleet, acl};

use super::ledger::Ledger;
use super::processes::WORKER;

/// Short, so that a fault outlasts it soon.
const LEASE_MS: u64 = 200;
const LEASE: std::time::Duration = std::time::Duration::from_millis(LEASE_MS);

/// A fault while a body runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Its process is killed.
    Kill,
    /// Its process is frozen for two leases.
    Freeze,
    /// The server restarts.
    Restart,
    /// The server restarts, and the body ends meanwhile.
    RestartAtTheEnd,
    /// Its process cannot reach the server for two leases, and the body ends meanwhile.
    Cut,
}

const FAULTS: [Fault; 5] = [Fault::Kill, Fault::Freeze, Fault::Restart, Fault::RestartAtTheEnd, Fault::Cut];

/// A server that loses nothing that it has confirmed, and the processes of one fault.
struct Campaign {
    server: RedisServer,
    ledger: Ledger,
}

impl Campaign {
    fn start() -> Self {
        let builder = RedisServer::builder().line("appendonly yes").line("appendfsync always");
        let server = builder.also_allow(acl::WITH_RECORDS).start();
        Self { server, ledger: Ledger::new() }
    }

    async fn befall(&mut self, fault: Fault, key: &str, policy: &str) {
        let proxy = Proxy::in_front_of(&self.server);
        let mut first = self.ledger.worker(WORKER, &proxy.url_with(TIMEOUTS)).await;
        let mut second = self.ledger.worker(WORKER, &self.server.url_with(TIMEOUTS)).await;
        let call = format!("call {key} {policy} {LEASE_MS} 5000");
        first.send(&call);
        first.event("entered", key).await;
        second.send(&call);
        second.send(&format!("finish {key}"));

        match fault {
            Fault::Kill => first.kill(),
            Fault::Freeze => {
                first.pause();
                tokio::time::sleep(2 * LEASE).await;
                second.event_or_failure("ended", key).await;
                first.resume();
                first.send(&format!("finish {key}"));
            }
            Fault::Restart => {
                self.server.kill();
                self.server.restart();
                first.send(&format!("finish {key}"));
            }
            Fault::RestartAtTheEnd => {
                self.server.kill();
                first.send(&format!("finish {key}"));
                tokio::time::sleep(LEASE).await;
                self.server.restart();
            }
            Fault::Cut => {
                proxy.black_hole();
                tokio::time::sleep(LEASE).await;
                first.send(&format!("finish {key}"));
                tokio::time::sleep(LEASE).await;
                proxy.pass();
            }
        }
        if fault != Fault::Kill {
            first.event_or_failure("ended", key).await;
        }
        if fault != Fault::Freeze {
            second.event_or_failure("ended", key).await;
        }
        // A freeze can begin after the check of the clock that precedes a poll.
        let excused = usize::from(fault == Fault::Freeze);
        self.ledger.assert_no_double_run(key, policy, &format!("{fault:?}"), excused);
    }
}

/// `DLOCK_IDEM_FAULTS` is the number of faults, 5 by default: each kind once. Half of them meet a
/// policy that starts the body at most once, and half one that starts it again.
#[tokio::test]
async fn no_fault_starts_a_body_twice() {
    let mut campaign = Campaign::start();
    let count = super::number("DLOCK_IDEM_FAULTS", FAULTS.len());
    for number in 0..count {
        let fault = FAULTS[number % FAULTS.len()];
        let policy = ["fail", "resume"][(number + number / FAULTS.len()) % 2];
        campaign.befall(fault, &format!("k{number}"), policy).await;
    }
    println!("{count} faults, {} bodies, no double run", campaign.ledger.bodies());
}

/// `DLOCK_FAIL_OVERS` is the number of failovers, one by default.
#[tokio::test]
async fn no_fail_over_starts_a_body_twice() {
    let mut fleet = SentinelFleet::start().await;
    for server in std::iter::once(fleet.master()).chain(fleet.replicas()) {
        server.allow(acl::documented_besides(acl::WITH_RECORDS));
    }
    let (url, mut ledger) = (fleet.url_with("?replica_acks=2&response_timeout=500ms"), Ledger::new());
    let count = super::number("DLOCK_FAIL_OVERS", 1);
    let ends = [End::Order, End::Kill, End::Pause].into_iter().cycle();
    for (number, end) in ends.take(count).enumerate() {
        let (key, policy) = (format!("k{number}"), ["fail", "resume"][number % 2]);
        let call = format!("call {key} {policy} {LEASE_MS} 20000");
        let mut first: Worker = ledger.worker(WORKER, &url).await;
        let mut second: Worker = ledger.worker(WORKER, &url).await;
        first.send(&call);
        first.event("entered", &key).await;
        second.send(&call);
        second.send(&format!("finish {key}"));

        fleet.break_master(end);
        let switch = fleet.switched().await;
        if number % 2 == 0 {
            first.send(&format!("finish {key}"));
        }
        fleet.heal(switch.from);
        first.send(&format!("finish {key}"));
        first.event_or_failure("ended", &key).await;
        second.event_or_failure("ended", &key).await;
        ledger.assert_no_double_run(&key, policy, &format!("{end:?}"), 0);
    }
    println!("{count} failovers, {} bodies, no double run", ledger.bodies());
}

/// A request without a reply is sent again before a lease is over.
const TIMEOUTS: &str = "?response_timeout=100ms";
