//! The cost of an uncontended pair of lock and unlock, compared with the floor.
//!
//! Many tasks, each with a different key, share one connection. Processor time is that of the
//! client process and of the server.

use std::time::Duration;

use redis::aio::MultiplexedConnection;

use crate::Failure;
use crate::contenders::Contender;
use crate::figures::{float, median};
use crate::process::Process;
use crate::report::Goal::{AtLeast, AtMost};
use crate::report::What;
use crate::scenarios::{Bench, tasks_of};
use crate::server::{Server, Work};
use crate::turns::{Field, Run};

pub(crate) async fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let contenders = bench.contenders(&[
        "raw",
        "ours",
        "ours, background",
        "raw, one thread",
        "ours, one thread",
        "ours, background, one thread",
    ])?;
    let servers = [bench.server];
    let mut field =
        bench.field(contenders, async |contender: &Contender| Seat::start(contender, &servers).await).await;
    let crowds: &[u64] = if bench.short { &[1, 8, 64, 1_024] } else { &[1, 8, 64, 1_024, 16_384] };
    for &tasks in crowds {
        let runs = pairs(bench, &mut field, tasks).await;
        let row = |what: &str| format!("{}, {what}", tasks_of(tasks));
        bench.each(&What::more(row("pairs"), "/s").at(tasks), &runs, speed);
        let mut ratio = What::more(row("pairs, to raw"), "x").at(tasks);
        let mut cost = What::less(row("processor time, to raw"), "x").at(tasks);
        let least = match tasks {
            1 | 8 => 0.9,
            64 => 1.25,
            _ => 1.1,
        };
        ratio = ratio.goal("ours", AtLeast(least));
        match tasks {
            // With one thread, a background release is sent together with the next call of its
            // task.
            1 => {
                ratio = ratio.goal("ours, background, one thread", AtLeast(1.6));
                cost = cost.goal("ours", AtMost(1.2));
            }
            8 => cost = cost.goal("ours", AtMost(1.2)),
            64 => {
                ratio = ratio.goal("ours, background", AtLeast(1.3));
                cost = cost.goal("ours", AtMost(0.8));
            }
            _ => cost = cost.goal("ours", AtMost(1.05)),
        }
        bench.ratio(&ratio, &runs, speed);
        bench.each(&What::less(row("processor time of a pair"), "us").at(tasks), &runs, cost_of_a_pair);
        bench.ratio(&cost, &runs, cost_of_a_pair);
    }
    Ok(())
}

/// Measures pairs of all contenders in rotation, in short slices.
pub(super) async fn pairs(bench: &mut Bench<'_>, field: &mut Field<Seat>, tasks: u64) -> Vec<Run<Spent>> {
    let pace = bench.pace(if bench.short { 2 } else { 9 });
    let span = if tasks > 4_096 { 3 * SLICE } else { SLICE };
    field.turns(pace, bench.report, async |_, seat| seat.pairs(tasks, span).await).await
}

/// A contender, and the servers that it uses.
#[derive(Debug)]
pub(super) struct Seat {
    process: Process,
    infos: Vec<MultiplexedConnection>,
}

/// The work of one slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    pairs: u64,
    time: Duration,
    /// Processor time of the client and of the servers.
    cpu: Duration,
}

impl Seat {
    pub(super) async fn start(contender: &Contender, servers: &[&Server]) -> Result<Self, Failure> {
        let mut infos = Vec::new();
        for server in servers {
            infos.push(server.connect().await?);
        }
        Ok(Self { process: Process::start(contender, servers).await?, infos })
    }

    /// Like `start`, but does not query the servers for their processor time.
    ///
    /// A frozen server would not reply.
    pub(super) async fn without_info(contender: &Contender, servers: &[&Server]) -> Result<Self, Failure> {
        Ok(Self { process: Process::start(contender, servers).await?, infos: Vec::new() })
    }

    pub(super) async fn pairs(&mut self, tasks: u64, span: Duration) -> Result<Spent, Failure> {
        let before = self.work().await?;
        let order = format!("pairs {tasks} {}", span.as_millis());
        let [pairs, time, client] = self.process.ask(order, "pairs").await?;
        if pairs == 0 {
            return Err("it acquired no lock".into());
        }
        let server = self.work().await?.saturating_sub(before);
        Ok(Spent { pairs, time: Duration::from_nanos(time), cpu: Duration::from_nanos(client) + server })
    }

    /// Returns the processor time of the servers.
    async fn work(&mut self) -> Result<Duration, Failure> {
        let mut cpu = Duration::ZERO;
        for info in &mut self.infos {
            cpu += Work::of(info).await?.cpu;
        }
        Ok(cpu)
    }
}

/// Returns pairs per second of the median slice.
///
/// Other programs disturb some slices, but not the median.
pub(super) fn speed(slices: &[Spent]) -> f64 {
    median(slices.iter().map(|slice| float(slice.pairs) / slice.time.as_secs_f64()))
}

/// Returns microseconds of processor time per pair, of the median slice.
pub(super) fn cost_of_a_pair(slices: &[Spent]) -> f64 {
    median(slices.iter().map(|slice| slice.cpu.as_secs_f64() * 1e6 / float(slice.pairs)))
}

const SLICE: Duration = Duration::from_millis(100);
