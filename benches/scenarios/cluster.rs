//! The cost of a cluster of one primary, compared with one server.
//!
//! 64 tasks, each with a different key. A cluster node looks up the slot of each key, also for
//! scripts. The floor, which connects directly to the primary, shows the cost of that alone.

use crate::Failure;
use crate::contenders::Contender;
use crate::report::Goal::AtLeast;
use crate::report::What;
use crate::scenarios::Bench;
use crate::scenarios::uncontended::{Seat, cost_of_a_pair, pairs, speed};
use crate::server::Server;

pub(crate) async fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let (one, cluster) = (bench.server, Server::start_cluster().await?.running()?);
    let contenders = bench.own(&["ours", "ours, cluster", "raw", "raw, cluster"])?;
    let start = async |contender: &Contender| {
        let server = if contender.name.ends_with("cluster") { &cluster } else { one };
        Seat::start(contender, &[server]).await
    };
    let mut field = bench.field(contenders, start).await;
    let runs = pairs(bench, &mut field, 64).await;
    bench.each(&What::more("64 tasks, pairs", "/s"), &runs, speed);
    let ratio = What::more("64 tasks, pairs, to one server", "x").goal("ours, cluster", AtLeast(0.95));
    bench.ratio(&ratio, &runs, speed);
    bench.ratio(&What::less("64 tasks, processor time, to one server", "x"), &runs, cost_of_a_pair);
    Ok(())
}
