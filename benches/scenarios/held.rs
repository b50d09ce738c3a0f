//! The cost of held and renewed locks: memory, processor time, and the latency of other calls.
//!
//! Memory is measured twice: after locks were acquired and released in small batches, so that
//! connections, buffers, and scripts exist, and after all locks were held and renewed for some
//! time, because renewals use buffers too. The difference divided by the number of locks is the
//! cost of one lock, including the caller's guard. All contenders hold at the same time, each with
//! a separate server, because speed is not measured. The latency of other calls is measured
//! afterwards, one contender after the other, for one shorter lease: some libraries renew all the
//! time, others shortly before the end of the lease.
//!
//! A contender that sends fewer commands than it holds locks does not renew them, and is excluded.
//! Work that is done once per held lock (dlock enables tracking) happens in the first second, which
//! has a separate row.

use std::time::{Duration, Instant};

use crate::Failure;
use crate::contenders::Contender;
use crate::contest::{Crowd, Order};
use crate::figures::float;
use crate::process::{Cannot, Process};
use crate::report::Goal::AtMost;
use crate::report::What;
use crate::scenarios::{Bench, last};
use crate::server::{Server, Work};
use crate::turns::{Pace, at_once, one_by_one};

pub(crate) async fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let many = if bench.short { 2_000 } else { 10_000 };
    let mut counts = vec![1, many];
    if bench.large {
        counts.push(1_000_000);
    }
    let mut renewing = Vec::new();
    for count in counts {
        let keepers = idle(bench, count).await?;
        if count == many {
            renewing = keepers;
        }
    }
    calls(bench, renewing, many).await
}

/// Measures the cost of holding without other work. Returns the contenders that renew.
async fn idle(bench: &mut Bench<'_>, count: u64) -> Result<Vec<Contender>, Failure> {
    // Some libraries renew after two thirds of the lease.
    let (lease, span) = if bench.short { (6_000, 5) } else { (30_000, 22) };
    let own = if count > 100_000 {
        bench.own(&["ours"])?
    } else {
        bench.contenders(&["ours", "ours, tracking=off"])?
    };
    let pace = Pace { rival_rounds: 1, ..bench.pace(1) };
    let slice = async |contender: &Contender| Held::measure(contender, count, lease, span).await;
    let runs = at_once(bench.name, own, pace, bench.report, slice).await;
    let row = |what: &str| format!("{count} held, {what}");
    let mut bytes = What::less(row("resident bytes of each"), "B").at(count);
    // Differences below 0.01 % (0.1 ms per second) do not count: with one held lock, runs of one
    // program differ by a fifth of that.
    let mut share = What::less(row("of a core"), "%").at(count).grain(0.01);
    if count > 1 {
        bytes = bytes.goal("ours", AtMost(400.0));
        share = share.goal("ours", AtMost(1.0));
        bench.each(&bytes, &runs, |slices| last(slices, |held: &Held| held.bytes));
    }
    bench.each(&share, &runs, |slices| last(slices, |held| held.share));
    let commands = format!("lease {} s, commands of all in {span} s", lease / 1_000);
    bench.each(&What::neither(row(&commands), "").at(count), &runs, |slices| {
        last(slices, |held| float(held.commands))
    });
    Ok(runs.into_iter().map(|run| run.contender).collect())
}

/// The cost of one held lock.
#[derive(Debug)]
struct Held {
    bytes: f64,
    /// Percent of a core.
    share: f64,
    commands: u64,
}

impl Held {
    async fn measure(contender: &Contender, count: u64, lease: u64, span: u64) -> Result<Self, Failure> {
        let server = Server::start().await?.running()?;
        let mut info = server.connect().await?;
        let mut process = Process::start(contender, &[&server]).await?;
        for _ in 0..count.min(10_000).div_ceil(64) {
            let [] = process.ask(format!("hold 64 {lease}"), "holding").await?;
            let [] = process.ask("release", "released").await?;
        }
        let before = process.resident_bytes()?;
        let [] = process.ask(format!("hold {count} {lease}"), "holding").await?;

        let work = Work::of(&mut info).await?;
        let ([used], begun) = (process.ask("usage", "usage").await?, Instant::now());
        tokio::time::sleep(Duration::from_secs(span)).await;
        let ([used_then], took) = (process.ask("usage", "usage").await?, begun.elapsed());
        let used = Duration::from_nanos(used_then.saturating_sub(used));
        let commands = Work::of(&mut info).await?.since(work).commands;
        let bytes = float(process.resident_bytes()?.saturating_sub(before)) / float(count);
        let [] = process.ask("release", "released").await?;
        if commands < count {
            let why =
                format!("it does not renew held locks: {commands} commands in {span} s for {count} locks");
            return Err(Cannot::because(why));
        }
        Ok(Self { bytes, share: used.as_secs_f64() / took.as_secs_f64() * 100.0, commands })
    }
}

/// Measures the waits of another call in the process while the locks are renewed.
async fn calls(bench: &mut Bench<'_>, contenders: Vec<Contender>, count: u64) -> Result<(), Failure> {
    let server = bench.server;
    let slice = async |contender: &Contender| {
        let mut crowd = Crowd::start(contender, server, 1, 1).await?;
        let body = Duration::from_millis(1);
        let order = |span| Order { key: "beside".to_owned(), body, span: Duration::from_millis(span) };
        crowd.contend(&order(200)).await?;
        let quiet = crowd.contend(&order(1_000)).await?;
        crowd.hold(count, LEASE).await?;
        let first = crowd.contend(&order(1_000)).await?;
        let busy = crowd.contend(&order(LEASE)).await?;
        Ok((quiet, first, busy))
    };
    let pace = Pace { rival_rounds: 1, ..bench.pace(1) };
    let runs = one_by_one(bench.name, contenders, pace, bench.report, slice).await;
    let row = |when: &str| What::less(format!("p99 of another call, {when}"), "ms");
    bench.each(&row("nothing held"), &runs, |slices| last(slices, |(quiet, ..)| quiet.wait(99.0)));
    let goal = |what: What| what.at(count).goal("ours", AtMost(0.5));
    let first = goal(row(&format!("first second of {count} held")));
    bench.each(&first, &runs, |slices| last(slices, |(_, first, _)| first.wait(99.0)));
    let busy = goal(row(&format!("{count} held, lease {} s", LEASE / 1_000)));
    bench.each(&busy, &runs, |slices| last(slices, |(.., busy)| busy.wait(99.0)));
    Ok(())
}

/// Milliseconds; every library renews each lock at least once within this time.
const LEASE: u64 = 6_000;
