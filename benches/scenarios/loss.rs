//! The time until a holder is notified of the loss of its lock.
//!
//! In the first case the server freezes, and the holder must be notified before its lease expires.
//! In the second case the lock is deleted on the server while it is held, and sooner is better.

use std::time::Duration;

use dlock_bench_peer::usage::now;

use crate::Failure;
use crate::contenders::Contender;
use crate::figures::{millis_between, nanos, percentile};
use crate::process::{Cannot, Process};
use crate::report::Goal::AtMost;
use crate::report::What;
use crate::scenarios::{Bench, most};
use crate::server::Server;
use crate::turns::{Pace, at_once, one_by_one};

pub(crate) async fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let pace = Pace { rival_rounds: 2, ..bench.pace(1) };
    let runs = at_once(bench.name, bench.contenders(&["ours"])?, pace, bench.report, frozen).await;
    let row = What::less("server frozen, told after the lease's end", "ms").goal("ours", AtMost(0.0));
    bench.each(&row, &runs, |slices| most(slices, |late| *late));

    let server = bench.server;
    let pace = Pace { rival_rounds: 1, ..bench.pace(1) };
    let slice = async |contender: &Contender| deleted(contender, server).await;
    let contenders = bench.contenders(&["ours"])?;
    let runs = one_by_one(bench.name, contenders, pace, bench.report, slice).await;
    for (percent, goal) in [(50.0, None), (99.0, Some(AtMost(2.0)))] {
        let row = What::less(format!("key deleted, told after, p{percent}"), "ms");
        let row = if let Some(goal) = goal { row.goal("ours", goal) } else { row };
        bench.each(&row, &runs, |slices: &[Vec<f64>]| most(slices, |times| percentile(times, percent)));
    }
    for run in &runs {
        let mut times = run.rounds.concat().concat();
        times.sort_by(f64::total_cmp);
        bench.times("key deleted, told", &run.contender, times);
    }
    Ok(())
}

/// Returns the milliseconds from the end of the lease to the notification.
///
/// The server is frozen.
async fn frozen(contender: &Contender) -> Result<f64, Failure> {
    let server = Server::start().await?.running()?;
    let mut connection = server.connect().await?;
    let mut process = Process::start(contender, &[&server]).await?;
    let [] = process.ask(format!("lose frozen {}", LEASE.as_millis()), "watching").await?;
    let key = server.lock_of(&mut connection, "frozen").await?;
    tokio::time::sleep(LEASE / 2).await;
    let left: i64 = redis::cmd("PTTL").arg(key).query_async(&mut connection).await?;
    let gone = now() + nanos(Duration::from_millis(u64::try_from(left).unwrap_or_default()));
    server.freeze()?;
    Ok(millis_between(gone, told(&mut process).await?))
}

/// Returns the sorted milliseconds from a deletion to the notification of the holder.
async fn deleted(contender: &Contender, server: &Server) -> Result<Vec<f64>, Failure> {
    let mut connection = server.connect().await?;
    let mut process = Process::start(contender, &[server]).await?;
    let mut keys = Vec::new();
    for id in 100..100 + TIMES {
        let name = format!("lost:{id}");
        let [] = process.ask(format!("lose {name} {}", 2 * LEASE.as_millis()), "watching").await?;
        keys.push(server.lock_of(&mut connection, &name).await?);
    }
    tokio::time::sleep(Duration::from_millis(150)).await;
    let mut times = Vec::new();
    for key in keys {
        let begun = now();
        redis::cmd("DEL").arg(key).exec_async(&mut connection).await?;
        let late = millis_between(begun, told(&mut process).await?);
        times.push(late);
        if late > 200.0 {
            break; // the library waits for its next renewal: one sample is enough
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

async fn told(process: &mut Process) -> Result<u64, Failure> {
    match process.hear_within(LIMIT, "lost").await {
        Ok([lost]) => Ok(lost),
        Err(failure) if failure.is::<Cannot>() => Err(failure),
        Err(failure) => Err(Cannot::because(format!("it does not report the loss: {failure}"))),
    }
}

const LEASE: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(12);
const TIMES: u64 = 40;
