//! The time from a release in one process to the body of a waiter in another process.

use std::time::Duration;

use tokio::time::Instant;

use crate::Failure;
use crate::contenders::Contender;
use crate::figures::{millis_between, percentile};
use crate::process::Process;
use crate::report::Goal::AtMost;
use crate::report::What;
use crate::scenarios::Bench;

pub(crate) async fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let contenders = bench.contenders(&["raw", "ours"])?;
    let server = bench.server;
    let start = async |contender: &Contender| {
        Ok([Process::start(contender, &[server]).await?, Process::start(contender, &[server]).await?])
    };
    let mut field = bench.field(contenders, start).await;
    let slice = async |_: &Contender, [holder, waiter]: &mut [Process; 2]| {
        let (begun, mut waits) = (Instant::now(), Vec::new());
        while waits.len() < TIMES && begun.elapsed() < LONGEST {
            waits.push(once(holder, waiter).await?);
        }
        Ok(waits)
    };
    let slices = if bench.short { 2 } else { 4 };
    let runs = field.turns(bench.pace(slices), bench.report, slice).await;
    for (percent, goal) in [(50.0, 0.5), (99.0, 1.3)] {
        let what = format!("release to body in another process, p{percent}");
        bench.each(&What::less(what, "ms").goal("ours", AtMost(goal)), &runs, |slices: &[Vec<f64>]| {
            percentile(&sorted(slices.concat()), percent)
        });
    }
    for run in &runs {
        bench.times("release to body", &run.contender, sorted(run.rounds.concat().concat()));
    }
    Ok(())
}

/// Returns the milliseconds from the release to the body.
async fn once(holder: &mut Process, waiter: &mut Process) -> Result<f64, Failure> {
    let [_] = holder.ask("take wake-up", "taken").await?;
    waiter.tell("take wake-up").await?;
    // Long enough to be queued, short enough for warm caches.
    tokio::time::sleep(Duration::from_millis(4)).await;
    let [freed] = holder.ask("free", "freed").await?;
    let [taken] = waiter.hear("taken").await?;
    let [_] = waiter.ask("free", "freed").await?;
    if taken < freed {
        return Err("the waiter acquired the lock before the release".into());
    }
    Ok(millis_between(freed, taken))
}

fn sorted(mut waits: Vec<f64>) -> Vec<f64> {
    waits.sort_by(f64::total_cmp);
    waits
}

const TIMES: usize = 60;
/// The limit of a slice: libraries that poll wake up late, and have fewer samples.
const LONGEST: Duration = Duration::from_millis(800);
