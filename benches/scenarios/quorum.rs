//! A quorum of five servers, compared with the same two commands sent to all of them.
//!
//! Each task has a different key. Measured with all servers, and, for dlock and the floor only,
//! with two of them frozen.

use std::time::Duration;

use crate::Failure;
use crate::contenders::Contender;
use crate::report::Goal::AtLeast;
use crate::report::What;
use crate::scenarios::uncontended::{Seat, cost_of_a_pair, pairs, speed};
use crate::scenarios::{Bench, tasks_of};
use crate::server::Server;

const SERVERS: usize = 5;
const FROZEN: usize = 2;

pub(crate) async fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let mut servers = Vec::new();
    for _ in 0..SERVERS {
        servers.push(Server::start().await?.running()?);
    }
    let all: Vec<&Server> = servers.iter().collect();
    let contenders = bench.contenders(&["raw", "ours"])?;
    let start = async |contender: &Contender| Seat::start(contender, &all).await;
    let mut field = bench.field(contenders, start).await;
    tokio::time::sleep(Duration::from_millis(2_200)).await; // until the vote of each server counts
    for tasks in [1, 64] {
        let runs = pairs(bench, &mut field, tasks).await;
        let row = |what: &str| format!("{}, {what}", tasks_of(tasks));
        bench.each(&What::more(row("pairs"), "/s").at(tasks), &runs, speed);
        let ratio = What::more(row("pairs, to raw"), "x").at(tasks);
        bench.ratio(&if tasks > 1 { ratio.goal("ours", AtLeast(0.95)) } else { ratio }, &runs, speed);
        bench.ratio(&What::less(row("processor time, to raw"), "x").at(tasks), &runs, cost_of_a_pair);
    }
    drop(field);

    // Other libraries are not measured with frozen servers.
    let contenders = bench.own(&["raw", "ours"])?;
    let start = async |contender: &Contender| Seat::without_info(contender, &all).await;
    let mut field = bench.field(contenders, start).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    for server in servers.iter().take(FROZEN) {
        server.freeze()?;
    }
    pairs(bench, &mut field, 64).await; // until the frozen servers are detected
    let runs = pairs(bench, &mut field, 64).await;
    let ratio = What::more("64 tasks, two frozen, pairs, to raw", "x").goal("ours", AtLeast(0.8));
    bench.each(&What::more("64 tasks, two frozen, pairs", "/s"), &runs, speed);
    bench.ratio(&ratio, &runs, speed);
    Ok(())
}
