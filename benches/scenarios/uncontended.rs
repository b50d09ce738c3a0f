//! Nobody else wants the lock: what a call of an annotated function costs, beside the floor.
//!
//! 1, 64 and 1,024 tasks, each with a key of its own, over one connection. Us and the floor take turns many
//! times in each round.

use std::time::{Duration, Instant};

use dlock_runtime::{LockManager, distributed_lock};
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

use crate::Failure;
use crate::raw::Raw;
use crate::report::Goal;
use crate::scenarios::Bench;
use crate::server::Work;
use crate::usage::{cpu_time, float};

/// The body is empty: what is measured is the lock.
#[distributed_lock(key = "bench:<id>", lease = "30s", manager = locks)]
async fn locked(locks: &LockManager, id: u64) -> Result<(), dlock_runtime::Error> {
    Ok(())
}

/// Who takes the locks.
#[derive(Clone, Debug)]
pub(super) enum Side {
    Us(LockManager),
    Raw(Raw),
}

/// What one side did in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    pub(super) pairs_per_second: f64,
    /// Processor time of this process and of the server, in microseconds.
    pub(super) cost_of_a_pair: f64,
}

/// What one side spent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    pairs: u64,
    time: Duration,
    /// Of this process and of the server.
    cpu: Duration,
}

impl Spent {
    pub(super) fn add(&mut self, other: &Self) {
        self.pairs += other.pairs;
        self.time += other.time;
        self.cpu += other.cpu;
    }

    pub(super) fn speed(&self) -> Speed {
        let pairs = float(self.pairs.max(1));
        Speed {
            pairs_per_second: pairs / self.time.as_secs_f64(),
            cost_of_a_pair: self.cpu.as_secs_f64() * 1e6 / pairs,
        }
    }
}

pub(super) const SLICE: Duration = Duration::from_millis(150);

pub(crate) async fn measure(mut bench: Bench<'_>) -> Result<(), Failure> {
    let us = Side::Us(LockManager::connect(&bench.server.url()).await?);
    let raw = Side::Raw(Raw::connect(bench.server).await?);
    let mut info = bench.server.connect().await?;
    let slices = if bench.short { 4 } else { 10 };
    for tasks in [1, 64, 1_024] {
        for side in [&us, &raw] {
            side.run(tasks, SLICE, &mut info).await?; // warms it up
        }
        let mut rounds = Vec::new();
        for _ in 0..bench.rounds {
            let (mut ours, mut raws) = (Spent::default(), Spent::default());
            for slice in 0..slices {
                // What else the machine does changes by the second: short slices of both, and each goes first every other time.
                let mut sides = [(&us, &mut ours), (&raw, &mut raws)];
                if slice % 2 == 1 {
                    sides.reverse();
                }
                for (side, spent) in sides {
                    spent.add(&side.run(tasks, SLICE, &mut info).await?);
                }
            }
            rounds.push((ours.speed(), raws.speed()));
        }
        let each = |figure: fn(&(Speed, Speed)) -> f64| rounds.iter().map(figure).collect();
        let goal = (tasks == 64).then_some(Goal::AtLeast(0.90));
        let row = |what: &str| format!("{tasks} tasks, {what}");
        bench.add(row("ours"), "/s", each(|(us, _)| us.pairs_per_second), None);
        bench.add(row("raw"), "/s", each(|(_, raw)| raw.pairs_per_second), None);
        bench.add(
            row("ours to raw"),
            "x",
            each(|(us, raw)| us.pairs_per_second / raw.pairs_per_second),
            goal,
        );
        bench.add(row("processor time, ours"), "us", each(|(us, _)| us.cost_of_a_pair), None);
        bench.add(
            row("processor time, ours to raw"),
            "x",
            each(|(us, raw)| us.cost_of_a_pair / raw.cost_of_a_pair),
            None,
        );
    }
    Ok(())
}

impl Side {
    /// Takes and releases locks from `tasks` tasks for as long as `span`.
    pub(super) async fn run(
        &self,
        tasks: u64,
        span: Duration,
        info: &mut MultiplexedConnection,
    ) -> Result<Spent, Failure> {
        let (server, client) = (Work::of(info).await?, cpu_time());
        let begun = Instant::now();
        let end = begun + span;
        let mut running = JoinSet::new();
        for id in 0..tasks {
            running.spawn(self.clone().task(id, end));
        }
        let mut pairs = 0;
        while let Some(done) = running.join_next().await {
            pairs += done??;
        }
        let (time, client) = (begun.elapsed(), cpu_time().saturating_sub(client));
        let server = Work::of(info).await?.since(server).cpu;
        Ok(Spent { pairs, time, cpu: client + server })
    }

    async fn task(self, id: u64, end: Instant) -> Result<u64, Failure> {
        let mut pairs = 0;
        match self {
            Self::Us(locks) => {
                while Instant::now() < end {
                    locked(&locks, id).await?;
                    pairs += 1;
                }
            }
            Self::Raw(mut raw) => {
                while Instant::now() < end {
                    raw.pair(id).await?;
                    pairs += 1;
                }
            }
        }
        Ok(pairs)
    }
}
