//! The process that holds a lock is killed: when does a waiter in another process have it?
//!
//! Nobody can tell the waiter before the lease is over. How long it takes beyond what was left of the lease is the library's: a
//! millisecond or so, so that contenders go one after the other, each with a server of its own.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlock_bench_peer::usage::now;

use crate::Failure;
use crate::contenders::Contender;
use crate::figures::{millis, millis_between, nanos, percentile};
use crate::process::Process;
use crate::report::Goal::AtMost;
use crate::report::What;
use crate::scenarios::{Bench, most};
use crate::server::Server;
use crate::turns::one_by_one;

pub(crate) async fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let pace = bench.pace(if bench.short { 2 } else { 6 });
    let contenders = bench.contenders(&["raw", "ours"])?;
    let runs = one_by_one(bench.name, contenders, pace, bench.report, once).await;
    // The goal is one for every time, not for the median. Nobody is ranked: how much of the lease was left is chance.
    let lease =
        What::neither("waited beyond the whole lease, worst of a round", "ms").goal("ours", AtMost(250.0));
    bench.each(&lease, &runs, |slices| most(slices, |(lease, _)| *lease));
    for (which, percent) in [("p50", 50.0), ("worst of a round", 100.0)] {
        let rest = What::less(format!("waited beyond what was left of the lease, {which}"), "ms");
        bench.each(&rest, &runs, |slices| {
            let mut times: Vec<f64> = slices.iter().map(|(_, rest)| *rest).collect();
            times.sort_by(f64::total_cmp);
            percentile(&times, percent)
        });
    }
    Ok(())
}

/// Returns how many milliseconds it waited beyond the lease, and beyond what was left of it.
async fn once(contender: &Contender) -> Result<(f64, f64), Failure> {
    let server = Server::start().await?.running()?;
    let mut connection = server.connect().await?;
    let mut holder = Process::start(contender, &[&server]).await?;
    let mut waiter = Process::start(contender, &[&server]).await?;
    let [] = holder.ask(format!("hold 1 {}", LEASE.as_millis()), "holding").await?;
    let key = server.lock_of(&mut connection, "held:0").await?;
    waiter.tell("take held:0").await?;
    // Each time at another point of the lease, and before it is over where nobody renews it.
    tokio::time::sleep(Duration::from_millis(400 + now() % 450)).await;
    holder.kill().await?;
    let killed = now();
    // The server goes by the clock of this machine, on which a key is gone when its last millisecond is over.
    let last: i64 = redis::cmd("PEXPIRETIME").arg(key).query_async(&mut connection).await?;
    let over = u64::try_from(last).map(|last| Duration::from_millis(last + 1)).unwrap_or_default();
    let gone = now() + nanos(over.saturating_sub(SystemTime::now().duration_since(UNIX_EPOCH)?));
    let [taken] = waiter.hear("taken").await?;
    Ok((millis_between(killed, taken) - millis(nanos(LEASE)), millis_between(gone, taken)))
}

const LEASE: Duration = Duration::from_secs(1);
