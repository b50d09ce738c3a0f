//! Idempotent calls: the cost of a first call and of a replay, and many duplicates at one time.
//!
//! Commands are what a client sends, one after the other, so each is a round trip. They are counted
//! in a separate pass, because counting slows the server down.

use crate::Failure;
use crate::contenders::Contender;
use crate::figures::{float, median};
use crate::process::Process;
use crate::report::Goal::AtMost;
use crate::report::What;
use crate::scenarios::{Bench, last};
use crate::server::{Server, Wire};
use crate::turns::Run;

pub(crate) async fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let (server, calls) = (bench.server, if bench.short { 50 } else { 400 });
    let start = async |contender: &Contender| Caller::start(contender, server).await;
    let mut field = bench.field(bench.callers(&["raw", "ours", "ours, layer"])?, start).await;

    let sequence = async |_: &Contender, caller: &mut Caller| caller.sequence(calls).await;
    let runs = field.turns(bench.pace(5), bench.report, sequence).await;
    times(bench, "a first call", &runs, |cost| cost.first);
    times(bench, "a replay", &runs, |cost| cost.replay);

    let counted = async |_: &Contender, caller: &mut Caller| caller.counted(server).await;
    let runs = field.turns(bench.pace(1), bench.report, counted).await;
    let row = |what: &str, goal| {
        let what = What::less(format!("commands of {what}"), "");
        what.goal("ours", AtMost(goal)).goal("ours, layer", AtMost(goal))
    };
    bench.each(&row("a first call", 2.0), &runs, |slices| last(slices, |cost| cost.first));
    bench.each(&row("a replay", 1.0), &runs, |slices| last(slices, |cost| cost.replay));

    let crowd = async |_: &Contender, caller: &mut Caller| caller.duplicates(server).await;
    let runs = field.turns(bench.pace(1), bench.report, crowd).await;
    let row = |what: &str| format!("{DUPLICATES} duplicates, {what}");
    let bodies = What::less(row("bodies"), "").goal("ours", AtMost(1.0)).goal("ours, layer", AtMost(1.0));
    bench.each(&bodies, &runs, |slices| last(slices, |crowd: &Crowd| crowd.bodies));
    let results = What::more(row("calls with a result"), "");
    bench.each(&results, &runs, |slices| last(slices, |crowd| crowd.results));
    // Of the first call; the duplicates cost none.
    let commands = What::less(row("commands"), "").goal("ours", AtMost(2.0)).goal("ours, layer", AtMost(2.0));
    bench.each(&commands, &runs, |slices| last(slices, |crowd| crowd.commands));
    let millis = What::less(row("time from the end of the body to the last reply"), "ms");
    bench.each(&millis, &runs, |slices| last(slices, |crowd| crowd.millis));
    Ok(())
}

/// Adds the time of a call, and its ratios to the floor and to dlock.
fn times(bench: &mut Bench<'_>, what: &str, runs: &[Run<Cost>], of: fn(&Cost) -> f64) {
    let figure = |slices: &[Cost]| median(slices.iter().map(of));
    bench.each(&What::less(format!("time of {what}"), "us"), runs, figure);
    bench.ratio(&What::less(format!("time of {what}, to raw"), "x"), runs, figure);
    bench.ratio_to("ours", &What::less(format!("time of {what}, to ours"), "x"), runs, figure);
}

/// The cost per call: its time in microseconds, or its commands.
#[derive(Debug)]
struct Cost {
    first: f64,
    replay: f64,
}

/// Duplicates at one time.
#[derive(Debug)]
struct Crowd {
    bodies: f64,
    results: f64,
    commands: f64,
    /// The time from the end of the body to the last reply.
    millis: f64,
}

/// A process, and the number of names that it has used.
#[derive(Debug)]
struct Caller {
    process: Process,
    names: u64,
}

impl Caller {
    async fn start(contender: &Contender, server: &Server) -> Result<Self, Failure> {
        Ok(Self { process: Process::start(contender, &[server]).await?, names: 0 })
    }

    /// Makes first calls and replays, and returns the time of each.
    async fn sequence(&mut self, calls: u64) -> Result<Cost, Failure> {
        let name = self.name();
        let first = self.all_ran(&name, calls).await?;
        let replay = self.all_replayed(&name, calls).await?;
        Ok(Cost { first: float(first) / 1e3 / float(calls), replay: float(replay) / 1e3 / float(calls) })
    }

    /// Makes first calls and replays, and returns the commands of each.
    async fn counted(&mut self, server: &Server) -> Result<Cost, Failure> {
        let name = self.name();
        let wire = Wire::listen(server).await?;
        self.all_ran(&name, COUNTED).await?;
        let first = wire.count().await?;
        let wire = Wire::listen(server).await?;
        self.all_replayed(&name, COUNTED).await?;
        let replay = wire.count().await?;
        Ok(Cost { first: float(first) / float(COUNTED), replay: float(replay) / float(COUNTED) })
    }

    async fn duplicates(&mut self, server: &Server) -> Result<Crowd, Failure> {
        let wire = Wire::listen(server).await?;
        let order = format!("duplicate {} {DUPLICATES} {BODY_MICROS}", self.name());
        let [ran, replayed, _, nanos] = self.process.ask(order, "called").await?;
        let commands = wire.count().await?;
        Ok(Crowd {
            bodies: float(ran),
            results: float(ran + replayed),
            commands: float(commands),
            millis: float(nanos.saturating_sub(BODY_MICROS * 1_000)) / 1e6,
        })
    }

    async fn all_ran(&mut self, name: &str, calls: u64) -> Result<u64, Failure> {
        match self.process.ask(format!("first {name} {calls}"), "called").await? {
            [ran, _, _, nanos] if ran == calls => Ok(nanos),
            ends => Err(format!("of {calls} first calls, {ends:?} ran, were replayed, were refused").into()),
        }
    }

    async fn all_replayed(&mut self, name: &str, calls: u64) -> Result<u64, Failure> {
        match self.process.ask(format!("replay {name} {calls}"), "called").await? {
            [_, replayed, _, nanos] if replayed == calls => Ok(nanos),
            ends => Err(format!("of {calls} replays, {ends:?} ran, were replayed, were refused").into()),
        }
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("{}-{}", std::process::id(), self.names)
    }
}

const COUNTED: u64 = 50;
const DUPLICATES: u64 = 1_000;

/// Long enough that every duplicate begins while the first call runs.
const BODY_MICROS: u64 = 2_000_000;
