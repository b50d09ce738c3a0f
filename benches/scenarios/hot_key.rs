//! Hand-offs per second if 64 tasks of one process contend for one key.
//!
//! Measured with an empty body, and with a body of 1 ms; the ceiling is a mutex in memory in both
//! cases.

use std::time::Duration;

use redis::aio::MultiplexedConnection;

use crate::Failure;
use crate::contenders::Contender;
use crate::contest::{Contest, Crowd, Order};
use crate::figures::float;
use crate::report::Goal::{AtLeast, AtMost};
use crate::report::What;
use crate::scenarios::{Bench, last};
use crate::server::Work;

pub(crate) async fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let contenders = bench.contenders(&["ceiling", "raw", "ours"])?;
    let server = bench.server;
    let start = async |contender: &Contender| {
        Ok((Crowd::start(contender, server, 1, 64).await?, server.connect().await?))
    };
    let mut field = bench.field(contenders, start).await;
    let span = Duration::from_millis(if bench.short { 400 } else { 1_000 });
    for (name, body) in [("empty body", 0), ("body of 1 ms", 1)] {
        let order = Order { key: format!("hot:{body}"), body: Duration::from_millis(body), span };
        let slice = async |_: &Contender, (crowd, info): &mut (Crowd, MultiplexedConnection)| {
            let before = Work::of(info).await?;
            let contest = crowd.contend(&order).await?;
            Ok((contest, Work::of(info).await?.since(before).commands))
        };
        let runs = field.turns(bench.pace(1), bench.report, slice).await;
        let row = |what: &str| format!("{name}, {what}");
        let hand_offs = What::more(row("hand-offs"), "/s");
        if body == 0 {
            bench.each(&hand_offs.goal("ours", AtLeast(1_000_000.0)), &runs, changes_per_second);
            // Only the check whether other processes wait, once per hand-off budget.
            let commands = What::less(row("commands per hand-off"), "").goal("ours", AtMost(0.01));
            bench.each(&commands, &runs, |slices| {
                last(slices, |(contest, commands)| float(*commands) / float(contest.changes.max(1)))
            });
        } else {
            bench.each(&What::neither(row("hand-offs"), "/s"), &runs, changes_per_second);
            let ratio = What::more(row("time in which it is in use, to the ceiling"), "x");
            bench.ratio_to("ceiling", &ratio.goal("ours", AtLeast(0.97)), &runs, |slices| {
                last(slices, |(contest, _)| contest.in_use())
            });
        }
        // With a body there are too few hand-offs for a share.
        let share = What::less(row("share of tasks, max to min"), "x");
        let share = if body == 0 { share.goal("ours", AtMost(1.1)) } else { share };
        bench.each(&share, &runs, |slices| last(slices, |(contest, _)| contest.share_of_tasks()));
        let starved = What::less(row("starved tasks"), "").goal("ours", AtMost(0.0));
        bench.each(&starved, &runs, |slices| last(slices, |(contest, _)| contest.starved()));
        bench.spreads(name, &runs, |(contest, _)| contest);
    }
    Ok(())
}

fn changes_per_second(slices: &[(Contest, u64)]) -> f64 {
    last(slices, |(contest, _)| contest.changes_per_second())
}
