//! Rows that affect the network between the servers and one process, or all processes.

use std::time::Duration;

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
