//! Hand-offs, fairness, and waits if tasks of several processes contend for one key.
//!
//! All contenders run 4 processes with 16 tasks. dlock also runs 16 processes with 4 tasks, and 64
//! with 1. With a hand-off budget, a process hands the lock off in memory before it yields to other
//! processes. Without, every hand-off goes through Redis.

use std::time::Duration;

use crate::Failure;
use crate::contenders::Contender;
use crate::contest::{Contest, Crowd, Order};
use crate::figures::float;
use crate::report::Goal::{AtLeast, AtMost};
use crate::report::{Goal, What};
use crate::scenarios::{Bench, last};
use crate::server::Wire;
use crate::turns::{Field, Pace, Run};

const HAND_OFF: &str = "ours";
const NO_HAND_OFF: &str = "ours, no hand-off";
/// The same with the fewest wake-ups: the server, and the only thread of the next process.
const FEWEST_THREADS: &str = "ours, no hand-off, one thread";

/// A number of processes, and of tasks in each.
#[derive(Clone, Copy)]
struct Shape {
    processes: u64,
    /// The tasks of each process.
    tasks: u64,
}

/// The shape that has goals, and that all contenders run.
const MAIN: Shape = Shape { processes: 4, tasks: 16 };

pub(crate) async fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    contest(bench, bench.contenders(&["ceiling", "raw", HAND_OFF, NO_HAND_OFF, FEWEST_THREADS])?, MAIN).await;
    if !bench.short {
        for shape in [Shape { processes: 16, tasks: 4 }, Shape { processes: 64, tasks: 1 }] {
            contest(bench, bench.own(&["ceiling", HAND_OFF, NO_HAND_OFF])?, shape).await;
        }
    }
    Ok(())
}

async fn contest(bench: &mut Bench<'_>, contenders: Vec<Contender>, shape: Shape) {
    let server = bench.server;
    let Shape { processes, tasks } = shape;
    let start = async |contender: &Contender| {
        // A mutex in memory exists in one process only.
        let alone = contender.name == "ceiling";
        let (processes, tasks) = if alone { (1, processes * tasks) } else { (processes, tasks) };
        Crowd::start(contender, server, processes, tasks).await
    };
    let mut field = bench.field(contenders, start).await;
    let span = Duration::from_millis(if bench.short { 400 } else { 1_000 });
    for (name, body) in [("empty body", 0), ("body of 1 ms", 1)] {
        let key = format!("hot:{processes}:{body}");
        let order = Order { key, body: Duration::from_millis(body), span };
        let slice = async |_: &Contender, crowd: &mut Crowd| crowd.contend(&order).await;
        let runs = field.turns(bench.pace(1), bench.report, slice).await;
        let name = format!("{processes} x {tasks}, {name}");
        let is_main = processes == MAIN.processes;
        rows(bench, &name, body == 0, is_main, &runs);
        if body == 0 && is_main {
            commands(bench, &name, &order, &mut field).await;
        }
    }
}

fn rows(bench: &mut Bench<'_>, name: &str, is_empty: bool, is_main: bool, runs: &[Run<Contest>]) {
    let row = |what: &str| format!("{name}, {what}");
    let goals = |what: What, [on, off]: [Goal; 2]| {
        if is_main { what.goal(HAND_OFF, on).goal(NO_HAND_OFF, off) } else { what }
    };
    let speed = |slices: &[Contest]| last(slices, Contest::changes_per_second);
    let hand_offs = What::more(row("hand-offs"), "/s");
    if is_empty {
        bench.each(&goals(hand_offs, [AtLeast(500_000.0), AtLeast(10_000.0)]), runs, speed);
        // With a body there are too few hand-offs for a share.
        let share = goals(What::less(row("share of processes, max to min"), "x"), [AtMost(1.2); 2]);
        bench.each(&share, runs, |slices| last(slices, Contest::share_of_processes));
        for (percent, is_goal) in [(50.0, false), (99.0, false), (99.9, true)] {
            let wait = What::less(row(&format!("wait, p{percent}")), "ms");
            let wait = if is_goal { goals(wait, [AtMost(50.0); 2]) } else { wait };
            bench.each(&wait, runs, |slices| last(slices, |contest| contest.wait(percent)));
        }
    } else {
        bench.each(&What::neither(row("hand-offs"), "/s"), runs, speed);
        let in_use = |slices: &[Contest]| last(slices, Contest::in_use);
        let ratio = What::more(row("time in which it is in use, to the ceiling"), "x");
        bench.ratio_to("ceiling", &goals(ratio, [AtLeast(0.97), AtLeast(0.95)]), runs, in_use);
        let wait = What::less(row("longest wait"), "ms");
        bench.each(&wait, runs, |slices| last(slices, |contest| contest.wait(100.0)));
    }
    let starved = goals(What::less(row("starved tasks"), ""), [AtMost(0.0); 2]);
    bench.each(&starved, runs, |slices| last(slices, Contest::starved));
    bench.spreads(name, runs, |contest| contest);
}

/// Counts the commands of clients in a slice that is not timed.
async fn commands(bench: &mut Bench<'_>, name: &str, order: &Order, field: &mut Field<Crowd>) {
    let server = bench.server;
    let slice = async |_: &Contender, crowd: &mut Crowd| {
        let wire = Wire::listen(server).await?;
        let contest = crowd.contend(order).await?;
        Ok(float(wire.count().await?) / float(contest.changes.max(1)))
    };
    let pace = Pace { rounds: 1, rival_rounds: 1, slices: 1 };
    let runs = field.turns(pace, bench.report, slice).await;
    let row = What::less(format!("{name}, commands of a hand-off"), "");
    bench.each(&row.goal(NO_HAND_OFF, AtMost(5.0)), &runs, |slices| last(slices, |count| *count));
}
