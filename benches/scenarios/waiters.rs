//! The cost of waiters: their memory, and the commands and the time of a hand-off.
//!
//! Many tasks of one process wait for a key that another process holds.
//!
//! Each waiter enters once. The time of a hand-off is that from the release to the last entry,
//! divided by the number of waiters.

use std::time::Duration;

use crate::Failure;
use crate::contenders::Contender;
use crate::contest::{Crowd, Order};
use crate::figures::float;
use crate::process::Process;
use crate::report::Goal::AtMost;
use crate::report::What;
use crate::scenarios::{Bench, last};
use crate::server::{Server, Work};
use crate::turns::{Pace, one_by_one};

pub(crate) async fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let server = bench.server;
    for count in [1, 64, 1_024, 8_192] {
        // If each waiter polls, this many waiters take a minute.
        let many = count > 1_024;
        let contenders = if many { bench.own(&["ours"])? } else { bench.contenders(&["raw", "ours"])? };
        let pace = Pace { rival_rounds: 1, ..bench.pace(1) };
        let slice = async |contender: &Contender| Waited::measure(contender, server, count).await;
        let runs = one_by_one(bench.name, contenders, pace, bench.report, slice).await;
        let row = |what: &str| format!("{count} waiters, {what}");
        if count > 64 {
            let bytes = What::less(row("resident bytes of each"), "B").at(count);
            bench.each(&bytes, &runs, |slices| last(slices, |waited: &Waited| waited.bytes));
        }
        let time = What::less(row("time of a hand-off"), "us").at(count);
        bench.each(&time, &runs, |slices| last(slices, |waited| waited.micros));
        // Includes the commands of scripts. With one waiter, these are the commands of a hand-off
        // through Redis.
        let commands = What::less(row("commands of a hand-off"), "").at(count);
        let commands = if count > 1 { commands.goal("ours", AtMost(5.0)) } else { commands };
        bench.each(&commands, &runs, |slices| last(slices, |waited| waited.commands));
    }
    Ok(())
}

/// The cost per waiter.
#[derive(Debug)]
struct Waited {
    bytes: f64,
    micros: f64,
    commands: f64,
}

impl Waited {
    async fn measure(contender: &Contender, server: &Server, count: u64) -> Result<Self, Failure> {
        let mut info = server.connect().await?;
        let mut holder = Process::start(contender, &[server]).await?;
        let mut crowd = Crowd::start(contender, server, 1, count).await?;
        // Each waiter requests the lock once: the span ends before the first entry.
        let span = Duration::from_millis(200 + count / 10);
        let order = |key: &str| Order { key: key.to_owned(), body: Duration::ZERO, span };
        crowd.warm_up(16).await?;
        let before = crowd.resident_bytes()?;

        let [_] = holder.ask("take waited-for", "taken").await?;
        let (start, end) = crowd.begin(&order("waited-for")).await?;
        tokio::time::sleep(Duration::from_millis(100) + span).await;
        let bytes = float(crowd.resident_bytes()?.saturating_sub(before)) / float(count);
        let work = Work::of(&mut info).await?;
        let [freed] = holder.ask("free", "freed").await?;
        let contest = crowd.finish(start, end).await?;
        if contest.waits.len() as u64 != count {
            return Err(format!("{} entries of {count} waiters", contest.waits.len()).into());
        }
        let commands = Work::of(&mut info).await?.since(work).commands;
        Ok(Self {
            bytes,
            micros: float(contest.last.saturating_sub(freed)) / 1e3 / float(count),
            commands: float(commands) / float(count),
        })
    }
}
