//! Five servers that vote, beside the same two commands sent to all of them at once by hand.
//!
//! 64 tasks, each with a key of its own: with all servers, and with two of them frozen. Us and the floor take turns many times in each
//! round.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_runtime::{LockManager, distributed_lock};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tokio::task::JoinSet;

use crate::Failure;
use crate::raw::COMPARE_AND_DELETE;
use crate::report::Goal;
use crate::scenarios::Bench;
use crate::server::{Server, Start};
use crate::usage::float;

/// The body is empty: what is measured is the lock.
#[distributed_lock(key = "bench:<id>", lease = "1s", renew = false, manager = locks)]
async fn locked(locks: &LockManager, id: u64) -> Result<(), dlock_runtime::Error> {
    Ok(())
}

/// The two commands to all servers; it goes on when a majority has answered.
#[derive(Clone, Debug)]
struct Fan {
    connections: Vec<MultiplexedConnection>,
    script: Arc<str>,
}

/// Who takes the locks.
#[derive(Clone, Debug)]
enum Side {
    Us(LockManager),
    Raw(Fan),
}

const SERVERS: usize = 5;
const MAJORITY: usize = 3;
const FROZEN: usize = 2;
const TASKS: u64 = 64;
const SLICE: Duration = Duration::from_millis(150);

pub(crate) async fn measure(mut bench: Bench<'_>) -> Result<(), Failure> {
    let mut servers = Vec::new();
    for _ in 0..SERVERS {
        match Server::start().await? {
            Start::Running(server) => servers.push(server),
            Start::Missing(reason) => return Err(reason.into()),
        }
    }
    let hosts: Vec<_> = servers.iter().map(Server::address).collect();
    let url = format!("redis+quorum://{}?lease=1s", hosts.join(","));
    let us = Side::Us(LockManager::connect(&url).await?);
    let raw = Side::Raw(Fan::connect(&servers).await?);
    tokio::time::sleep(Duration::from_millis(2_200)).await; // until the word of each counts

    compare(&mut bench, "all there", &us, &raw, Goal::AtLeast(0.90)).await?;
    for server in servers.iter().take(FROZEN) {
        server.freeze()?;
    }
    compare(&mut bench, "two frozen", &us, &raw, Goal::AtLeast(0.80)).await
}

async fn compare(
    bench: &mut Bench<'_>,
    when: &str,
    us: &Side,
    raw: &Side,
    goal: Goal,
) -> Result<(), Failure> {
    let slices = if bench.short { 4 } else { 10 };
    for side in [us, raw] {
        side.run(10 * SLICE).await?; // warms it up, and lets it find out who is away
    }
    let (mut ours, mut raws, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        let mut speeds = [0.0, 0.0];
        for slice in 0..slices {
            // What else the machine does changes by the second: short slices of both, and each goes first every other time.
            let [first, second] = if slice % 2 == 0 { [0, 1] } else { [1, 0] };
            for side in [first, second] {
                speeds[side] += [us, raw][side].run(SLICE).await? / f64::from(slices);
            }
        }
        ours.push(speeds[0]);
        raws.push(speeds[1]);
        ratios.push(speeds[0] / speeds[1]);
    }
    bench.add(format!("{when}, ours"), "/s", ours, None);
    bench.add(format!("{when}, raw"), "/s", raws, None);
    bench.add(format!("{when}, ours to raw"), "x", ratios, Some(goal));
    Ok(())
}

impl Side {
    /// Takes and releases locks for as long as `span`, and returns how many pairs a second that were.
    async fn run(&self, span: Duration) -> Result<f64, Failure> {
        let begun = Instant::now();
        let mut running = JoinSet::new();
        for id in 0..TASKS {
            running.spawn(self.clone().task(id, begun + span));
        }
        let mut pairs = 0;
        while let Some(done) = running.join_next().await {
            pairs += done??;
        }
        Ok(float(pairs) / begun.elapsed().as_secs_f64())
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
            Self::Raw(fan) => {
                while Instant::now() < end {
                    // A key of its own each time: what a server that is behind still has is in nobody's way.
                    fan.pair(&format!("raw:{id}:{pairs}")).await?;
                    pairs += 1;
                }
            }
        }
        Ok(pairs)
    }
}

impl Fan {
    async fn connect(servers: &[Server]) -> Result<Self, Failure> {
        let (mut connections, mut script) = (Vec::new(), String::new());
        for server in servers {
            let mut connection = server.connect().await?;
            script =
                redis::cmd("SCRIPT").arg("LOAD").arg(COMPARE_AND_DELETE).query_async(&mut connection).await?;
            connections.push(connection);
        }
        Ok(Self { connections, script: script.into() })
    }

    async fn pair(&self, key: &str) -> Result<(), Failure> {
        // As wide as the tokens of ours.
        let token = format!("raw-{:028x}", key.len());
        let mut set = Cmd::new();
        set.arg("SET").arg(key).arg(&token).arg("NX").arg("PX").arg(1_000);
        self.ask_all(&set, &Value::Okay).await?;
        let mut delete = Cmd::new();
        delete.arg("EVALSHA").arg(&*self.script).arg(1).arg(key).arg(&token);
        self.ask_all(&delete, &Value::Int(1)).await
    }

    /// Sends to all at once, and returns when a majority has given `wanted`.
    async fn ask_all(&self, command: &Cmd, wanted: &Value) -> Result<(), Failure> {
        let asked = self
            .connections
            .iter()
            .cloned()
            .map(|mut connection| async move { connection.send_packed_command(command).await });
        let mut answers: FuturesUnordered<_> = asked.collect();
        let mut so_many = 0;
        while let Some(answer) = answers.next().await {
            so_many += usize::from(matches!(&answer, Ok(value) if value == wanted));
            if so_many == MAJORITY {
                return Ok(());
            }
        }
        Err("no majority gave the answer, and nobody else uses the key".into())
    }
}
