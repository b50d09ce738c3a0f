//! What a cluster costs beside one server: the same locks over a cluster of one master.
//!
//! 64 tasks, each with a key of its own. The two take turns many times in each round.

use dlock_runtime::LockManager;

use crate::Failure;
use crate::report::Goal;
use crate::scenarios::Bench;
use crate::scenarios::uncontended::{SLICE, Side, Spent};
use crate::server::{Server, Start};

pub(crate) async fn measure(mut bench: Bench<'_>) -> Result<(), Failure> {
    let server = match Server::start_cluster().await? {
        Start::Running(server) => server,
        Start::Missing(reason) => return Err(reason.into()),
    };
    let url = server.url().replace("redis://", "redis+cluster://");
    let sides = [
        Side::Us(LockManager::connect(&bench.server.url()).await?),
        Side::Us(LockManager::connect(&url).await?),
    ];
    let mut infos = [bench.server.connect().await?, server.connect().await?];
    let slices = if bench.short { 4 } else { 10 };
    let mut rounds = Vec::new();
    for round in 0..=bench.rounds {
        let mut spent = [Spent::default(), Spent::default()];
        for slice in 0..slices {
            for turn in 0..2 {
                let at = (slice + turn) % 2; // each goes first every other time
                spent[at].add(&sides[at].run(TASKS, SLICE, &mut infos[at]).await?);
            }
        }
        if round > 0 {
            rounds.push(spent.map(|spent| spent.speed())); // the first warmed them up
        }
    }
    let speeds = |at: usize| rounds.iter().map(|round| round[at].pairs_per_second).collect();
    bench.add("one server", "/s", speeds(0), None);
    bench.add("cluster of one master", "/s", speeds(1), None);
    let ratio = rounds.iter().map(|[one, cluster]| cluster.pairs_per_second / one.pairs_per_second).collect();
    bench.add("cluster to one server", "x", ratio, Some(Goal::AtLeast(0.95)));
    let cost = rounds.iter().map(|[one, cluster]| cluster.cost_of_a_pair / one.cost_of_a_pair).collect();
    bench.add("processor time, cluster to one server", "x", cost, None);
    Ok(())
}

const TASKS: u64 = 64;
