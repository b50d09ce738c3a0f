//! Rows that affect the network between the servers and one process, or all processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use dlock_tests::resident::resident_bytes_of;
use dlock_tests::{Proxy, ProxyHandle};

use super::{Broken, Kind, Row};
use crate::ground::{Ground, LEASE};
use crate::stage::Stage;

const fn row(name: &'static str, begin: fn(&mut Stage) -> Broken) -> Row {
    Row { name, kind: Kind::Network, grounds: Ground::ALL, begin }
}

pub(crate) const ROWS: &[Row] = &[
    row("N1", request_dropped),
    row("N2", reply_dropped),
    row("N3", black_hole),
    row("N4", reset),
    row("N5", refused),
    row("N6", delayed),
    row("N7", byte_by_byte),
    row("N10", subscriptions_cut),
    row("N11", half_open),
    row("N13", flooded),
];

/// Returns the proxies of one process or, in 30 % of the cases, of all processes.
fn ways(stage: &mut Stage) -> (Vec<ProxyHandle>, String) {
    if stage.dice.percent(30) {
        let all = stage.crew.iter().flat_map(|member| member.ways.iter().map(handle));
        return (all.collect(), "all processes".to_owned());
    }
    let who = stage.anybody();
    let member = &stage.crew[who];
    (member.ways.iter().map(handle).collect(), member.pid().to_string())
}

fn handle(way: &Proxy) -> ProxyHandle {
    way.handle()
}

fn break_it(
    stage: &mut Stage,
    row: &str,
    what: &str,
    after: Duration,
    break_way: impl Fn(&ProxyHandle),
) -> Broken {
    let (ways, to) = ways(stage);
    stage.fault(row, what, &to);
    ways.iter().for_each(break_way);
    Broken::until(after, move |_| ways.iter().for_each(ProxyHandle::pass))
}

fn request_dropped(stage: &mut Stage) -> Broken {
    // The client drops the connection when the reply is overdue.
    break_it(stage, "N1", "one request is dropped", LEASE, |way| way.drop_next_requests(1))
}

fn reply_dropped(stage: &mut Stage) -> Broken {
    let after = stage.dice.millis(10, 300);
    break_it(stage, "N2", "replies are dropped", after, ProxyHandle::swallow_replies)
}

/// Begins when a request such as an acquire, a renewal, or a release arrives.
fn black_hole(stage: &mut Stage) -> Broken {
    let needle = *stage.dice.pick(&["NX", "dlock:often", "dlock:long", "EVALSHA"]);
    let after = stage.dice.millis(50, 1_200);
    let (ways, to) = ways(stage);
    let seen = ways[0].on_request(needle.as_bytes());
    let wait = async { tokio::time::timeout(Duration::from_millis(300), seen).await };
    // If no such request arrives, the fault begins nevertheless.
    let _ = stage.common.runtime.block_on(wait);
    stage.fault("N3", &format!("a black hole, at {needle}"), &to);
    ways.iter().for_each(ProxyHandle::black_hole);
    Broken::until(after, move |_| ways.iter().for_each(ProxyHandle::pass))
}

fn reset(stage: &mut Stage) -> Broken {
    break_it(stage, "N4", "connections are reset", Duration::from_millis(150), ProxyHandle::reset_all)
}

fn refused(stage: &mut Stage) -> Broken {
    let after = stage.dice.millis(50, 900);
    break_it(stage, "N5", "connections are cut and refused", after, |way| {
        way.refuse();
        way.reset_all();
    })
}

/// Requests are executed after their clients have stopped waiting for replies.
fn delayed(stage: &mut Stage) -> Broken {
    let after = stage.dice.millis(100, 600);
    let late = stage.dice.millis(50, 500);
    break_it(stage, "N6", &format!("requests are late by {late:?}"), after, move |way| {
        way.delay_requests(late);
    })
}

fn byte_by_byte(stage: &mut Stage) -> Broken {
    let after = stage.dice.millis(100, 400);
    break_it(stage, "N7", "one byte at a time", after, ProxyHandle::one_byte_at_a_time)
}

/// Subscriptions are cut repeatedly. Other connections work.
fn subscriptions_cut(stage: &mut Stage) -> Broken {
    stage.fault("N10", "only subscriptions are cut", "all processes");
    for _ in 0..20 {
        for at in 0..stage.servers.len() {
            stage.order(at, &["CLIENT", "KILL", "TYPE", "pubsub"]);
        }
        std::thread::sleep(Duration::from_millis(15));
    }
    Broken::over_after(Duration::from_millis(1))
}

/// The server closes its side, and the client is not notified. Later, everything passes again.
fn half_open(stage: &mut Stage) -> Broken {
    let after = stage.dice.millis(200, 900);
    let broken = break_it(stage, "N11", "half-open, then healed", after, ProxyHandle::black_hole);
    for at in 0..stage.servers.len() {
        stage.order(at, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
    broken
}

/// Replies without end, on all connections. The memory of the processes is measured meanwhile.
fn flooded(stage: &mut Stage) -> Broken {
    let (first, again) = *stage.dice.pick(&FLOODS);
    let after = stage.dice.millis(100, 800);
    let (ways, to) = ways(stage);
    let processes: Vec<_> = stage.crew.iter().map(|member| member.pid().to_string()).collect();
    stage.fault("N13", &format!("a flood of {again:?} after {first:?}"), &to);
    let watch = MemoryWatch::start(processes);
    let flooded_before: usize = ways.iter().map(|way| way.stats().flooded).sum();
    for way in &ways {
        way.flood(first, again);
    }
    Broken::until(after, move |stage| {
        ways.iter().for_each(ProxyHandle::pass);
        let flooded: usize = ways.iter().map(|way| way.stats().flooded).sum();
        stage.observe(FLOODED, flooded - flooded_before);
        stage.complaints.extend(watch.stop().map(|complaint| format!("N13: {complaint}")));
    })
}

/// Measures the memory of processes on a thread.
struct MemoryWatch {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Option<String>>,
}

impl MemoryWatch {
    fn start(processes: Vec<String>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let before: Vec<_> = processes.iter().map(|process| resident_bytes_of(process)).collect();
        let thread = std::thread::spawn(move || {
            let mut complaint = None;
            while !ends.load(Ordering::SeqCst) {
                for (process, before) in processes.iter().zip(&before) {
                    let (Some(before), Some(now)) = (before, resident_bytes_of(process)) else { continue };
                    let grown = now.saturating_sub(*before);
                    if grown > MOST_MEMORY {
                        complaint = Some(format!("process {process} takes {} MiB more", grown >> 20));
                    }
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            complaint
        });
        Self { is_over, thread }
    }

    /// Returns a complaint if a process took too much memory.
    fn stop(self) -> Option<String> {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.join().expect("the memory can be measured")
    }
}

/// The observation of row N13: the number of flooded connections.
pub(super) const FLOODED: &str = "flooded connections";

/// The memory that a flood may take in a process.
const MOST_MEMORY: usize = 64 << 20;

/// The first bytes of a flood, and its repeated bytes. Each violates a bound of the guide on
/// operating. A well-formed reply would be taken for the reply to a request.
const FLOODS: [(&str, &str); 6] = [
    ("$536870911\r\n", "a"),
    ("+", "a"),
    ("", "*1\r\n"),
    ("*1000000000\r\n", ":1\r\n"),
    ("*1000\r\n", "$64\r\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n"),
    ("", "x"),
];
