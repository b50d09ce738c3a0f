//! The time until a waiter acquires the lock of a killed process.
//!
//! No waiter can acquire the lock before the lease expires. The time beyond the rest of the lease
//! depends on the library. It is about 1 ms, so contenders run one after the other, each with a
//! separate server.

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
    // The goal applies to every sample, not to the median. The total is not ranked: the rest of the
    // lease is random.
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

/// Returns the milliseconds of the wait beyond the whole lease, and beyond its rest.
async fn once(contender: &Contender) -> Result<(f64, f64), Failure> {
    let server = Server::start().await?.running()?;
    let mut connection = server.connect().await?;
    let mut holder = Process::start(contender, &[&server]).await?;
    let mut waiter = Process::start(contender, &[&server]).await?;
    let [] = holder.ask(format!("hold 1 {}", LEASE.as_millis()), "holding").await?;
    let key = server.lock_of(&mut connection, "held:0").await?;
    waiter.tell("take held:0").await?;
    // At a random point of the lease, before it expires if the library does not renew it.
    tokio::time::sleep(Duration::from_millis(400 + now() % 450)).await;
    holder.kill().await?;
    let killed = now();
    // The server uses the clock of this machine. A key expires when its last millisecond is over.
    let last: i64 = redis::cmd("PEXPIRETIME").arg(key).query_async(&mut connection).await?;
    let over = u64::try_from(last).map(|last| Duration::from_millis(last + 1)).unwrap_or_default();
    let gone = now() + nanos(over.saturating_sub(SystemTime::now().duration_since(UNIX_EPOCH)?));
    let [taken] = waiter.hear("taken").await?;
    Ok((millis_between(killed, taken) - millis(nanos(LEASE)), millis_between(gone, taken)))
}

const LEASE: Duration = Duration::from_secs(1);
