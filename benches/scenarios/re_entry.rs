//! The cost of a nested call for a lock that the outer call holds.

use redis::aio::MultiplexedConnection;

use crate::Failure;
use crate::contenders::Contender;
use crate::figures::{float, median};
use crate::process::Process;
use crate::report::Goal::AtMost;
use crate::report::What;
use crate::scenarios::{Bench, last};
use crate::server::Work;

pub(crate) async fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let contenders = bench.contenders(&["ours"])?;
    let server = bench.server;
    let start = async |contender: &Contender| {
        Ok((Process::start(contender, &[server]).await?, server.connect().await?))
    };
    let mut field = bench.field(contenders, start).await;
    let slice = async |_: &Contender, (process, info): &mut (Process, MultiplexedConnection)| {
        let before = Work::of(info).await?;
        let [_] = process.ask("nest 0", "nested").await?;
        let outer = Work::of(info).await?.since(before).commands;
        let [took] = process.ask(format!("nest {TIMES}"), "nested").await?;
        let both = Work::of(info).await?.since(before).commands;
        Ok((float(took) / float(TIMES), float(both.saturating_sub(2 * outer)) / float(TIMES)))
    };
    let runs = field.turns(bench.pace(5), bench.report, slice).await;
    let time = What::less("time of a nested call", "ns").goal("ours", AtMost(1_000.0));
    bench.each(&time, &runs, |slices| median(slices.iter().map(|(nanos, _)| *nanos)));
    let commands = What::less("commands of a nested call", "").goal("ours", AtMost(0.0));
    bench.each(&commands, &runs, |slices| last(slices, |(_, commands)| *commands));
    Ok(())
}

const TIMES: u64 = 5_000;
