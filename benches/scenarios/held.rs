//! Many locks are held and renewed at once: what they cost in processor time and in memory.
//!
//! A worker holds them, so that nothing else is in its figures. Its memory is looked at twice: after it has taken and released as
//! many locks one small batch after another (so that connections, buffers and scripts are in place, and next to nothing else), and
//! while it holds them all. The difference by their number is what one costs, its guard and its key included.

use std::time::{Duration, Instant};

use dlock_runtime::{LockGuard, LockManager};
use tokio::task::JoinSet;

use crate::Failure;
use crate::report::Goal;
use crate::scenarios::Bench;
use crate::server::Work;
use crate::usage::{cpu_time, float, resident_bytes};
use crate::worker::{Orders, Worker, say};

pub(crate) async fn measure(mut bench: Bench<'_>) -> Result<(), Failure> {
    let (count, lease, span) = if bench.short { (2_000, 9, 6) } else { (10_000, 30, 12) };
    let mut info = bench.server.connect().await?;
    let (mut sizes, mut shares, mut renewals) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        let url = bench.server.url();
        let mut worker = Worker::start(bench.name, &[&url, &count.to_string(), &lease.to_string()])?;
        sizes.push(worker.line().await?.parse()?);
        let before = Work::of(&mut info).await?;
        worker.tell(&span.to_string()).await?;
        shares.push(worker.line().await?.parse()?);
        // Nothing but renewals calls a script while nobody releases and nobody waits.
        renewals.push(float(Work::of(&mut info).await?.since(before).scripts));
        worker.end().await?;
    }
    let row = |what: &str| format!("{count} held, {what}");
    bench.add(row("of a core"), "%", shares, Some(Goal::AtMost(2.0)));
    bench.add(row("resident bytes of each"), "B", sizes, Some(Goal::AtMost(600.0)));
    bench.add(format!("{count} held, lease {lease} s, renewals in {span} s"), "", renewals, None);
    Ok(())
}

/// The process that holds: says the bytes of a held lock, then on an order of some seconds the share of a core over them.
pub(crate) async fn work(url: &str, count: u64, lease: u64) -> Result<(), Failure> {
    let locks = LockManager::builder(url).lease(Duration::from_secs(lease)).connect().await?;
    let mut orders = Orders::new();
    for first in (0..count).step_by(BATCH) {
        let guards = take(&locks, first, count).await?;
        release(guards).await?;
    }
    let before = resident_bytes()?;
    let mut held = Vec::new();
    for first in (0..count).step_by(BATCH) {
        held.extend(take(&locks, first, count).await?);
    }
    say(&(float(resident_bytes()?.saturating_sub(before)) / float(count)).to_string());

    let Some(line) = orders.next().await? else { return Ok(()) };
    let (begun, used) = (Instant::now(), cpu_time());
    tokio::time::sleep(Duration::from_secs(line.parse()?)).await;
    let used = cpu_time().saturating_sub(used);
    say(&(used.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0).to_string());

    held.iter().try_for_each(LockGuard::check)?;
    if orders.next().await?.is_some() {
        return Err("nothing more was expected".into());
    }
    locks.shutdown(Duration::ZERO).await;
    Ok(())
}

/// Takes a batch of locks at once.
async fn take(locks: &LockManager, first: u64, count: u64) -> Result<Vec<LockGuard>, Failure> {
    let mut running = JoinSet::new();
    for id in (first..count).take(BATCH) {
        let lock = locks.lock(format!("held:{id}"));
        running.spawn(async move { lock.acquire().await });
    }
    let mut guards = Vec::new();
    while let Some(guard) = running.join_next().await {
        guards.push(guard??);
    }
    Ok(guards)
}

async fn release(guards: Vec<LockGuard>) -> Result<(), Failure> {
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

const BATCH: usize = 64;
