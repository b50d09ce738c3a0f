//! The scenarios, one per file. A goal is set at the row that it applies to.

mod cluster;
mod distance;
mod held;
mod hot_key;
mod idempotent;
mod killed;
mod loss;
mod processes;
mod quorum;
mod re_entry;
mod uncontended;
mod waiters;
mod wake_up;

use std::path::Path;
use std::pin::Pin;

use crate::Failure;
use crate::contenders::{Contender, Kind};
use crate::contest::Contest;
use crate::report::{Of, Report, Spread, What};
use crate::server::Server;
use crate::turns::{Field, Pace, Run};

/// The input of a scenario.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) server: &'a Server,
    /// This program, which also runs as dlock and as the floor.
    pub(crate) program: &'a Path,
    /// The requested libraries.
    pub(crate) rivals: &'a [Contender],
    pub(crate) rounds: usize,
    /// Whether figures may be coarse.
    pub(crate) short: bool,
    /// Whether a million locks are held.
    pub(crate) large: bool,
    pub(crate) name: &'static str,
    pub(crate) report: &'a mut Report,
}

impl Bench<'_> {
    /// Returns the contenders of this program with these names.
    fn own(&self, names: &[&str]) -> Result<Vec<Contender>, Failure> {
        names.iter().map(|name| Contender::own(self.program, name)).collect()
    }

    /// Returns the contenders of this program with these names, and all other lock libraries.
    fn contenders(&self, own: &[&str]) -> Result<Vec<Contender>, Failure> {
        self.with_rivals(own, |kind| kind != Kind::IdempotentRival)
    }

    /// Returns the contenders of this program with these names, and all other libraries of
    /// idempotent calls.
    fn callers(&self, own: &[&str]) -> Result<Vec<Contender>, Failure> {
        self.with_rivals(own, |kind| kind == Kind::IdempotentRival)
    }

    fn with_rivals(&self, own: &[&str], is_in: impl Fn(Kind) -> bool) -> Result<Vec<Contender>, Failure> {
        let rivals = self.rivals.iter().filter(|rival| is_in(rival.kind)).cloned();
        Ok(self.own(own)?.into_iter().chain(rivals).collect())
    }

    /// Returns a pace with the same rounds and slices for all contenders.
    fn pace(&self, slices: usize) -> Pace {
        Pace { rounds: self.rounds, rival_rounds: self.rounds, slices }
    }

    /// Starts contenders that run in rotation.
    async fn field<S>(
        &mut self,
        contenders: Vec<Contender>,
        start: impl AsyncFn(&Contender) -> Result<S, Failure>,
    ) -> Field<S> {
        Field::start(self.name, contenders, self.report, start).await
    }

    /// Adds a row per run, with a figure per round.
    fn each<T>(&mut self, what: &What, runs: &[Run<T>], figure: impl Fn(&[T]) -> f64) {
        for run in runs {
            let figures = run.rounds.iter().map(|round| figure(round)).collect();
            self.report.add(what.row(self.name, &run.contender, figures));
        }
    }

    /// Adds a row per run except floors: the ratio of each round to that of its floor.
    fn ratio<T>(&mut self, what: &What, runs: &[Run<T>], figure: impl Fn(&[T]) -> f64) {
        self.compare(what, runs, |contender| contender.floor, figure);
    }

    /// Adds a row per run except `floor`: the ratio of each round to that of `floor`.
    fn ratio_to<T>(&mut self, floor: &str, what: &What, runs: &[Run<T>], figure: impl Fn(&[T]) -> f64) {
        self.compare(what, runs, |_| floor, figure);
    }

    fn compare<'c, T>(
        &mut self,
        what: &What,
        runs: &'c [Run<T>],
        floor: impl Fn(&'c Contender) -> &'c str,
        figure: impl Fn(&[T]) -> f64,
    ) {
        for run in runs {
            let floor = floor(&run.contender);
            let floor = runs.iter().find(|other| other.contender.name == floor);
            if let Some(floor) = floor.filter(|floor| floor.contender.name != run.contender.name) {
                let pairs = run.rounds.iter().zip(&floor.rounds);
                let figures = pairs.map(|(round, floor)| figure(round) / figure(floor)).collect();
                self.report.add(what.row(self.name, &run.contender, figures));
            }
        }
    }

    /// Adds a distribution of sorted times, in milliseconds.
    fn times(&mut self, what: &str, contender: &Contender, times: Vec<f64>) {
        self.spread(what, contender, Of::Times(times));
    }

    /// Adds the distribution of all waits, and the holds of each task in the last round.
    fn spreads<T>(&mut self, name: &str, runs: &[Run<T>], contest: impl Fn(&T) -> &Contest) {
        for run in runs {
            let mut waits: Vec<f64> =
                run.rounds.iter().flatten().flat_map(|slice| &contest(slice).waits).copied().collect();
            waits.sort_unstable_by(f64::total_cmp);
            self.times(&format!("{name}, wait"), &run.contender, waits);
            if let Some(slice) = run.rounds.iter().flatten().last() {
                let shares = Of::Shares(contest(slice).shares.clone());
                self.spread(&format!("{name}, shares"), &run.contender, shares);
            }
        }
    }

    fn spread(&mut self, what: &str, contender: &Contender, of: Of) {
        let (what, contender) = (what.to_owned(), contender.name.clone());
        self.report.spread(Spread { scenario: self.name, what, contender, of });
    }
}

/// Returns the figure of the last slice; there is only one.
fn last<T>(slices: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    slices.last().map_or(0.0, figure)
}

/// Returns a number of tasks as text.
fn tasks_of(count: u64) -> String {
    format!("{count} {}", if count == 1 { "task" } else { "tasks" })
}

/// Returns the greatest figure of the slices.
fn most<T>(slices: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    slices.iter().map(figure).fold(f64::MIN, f64::max)
}

/// A running scenario.
type Measured<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + 'a>>;

/// The name and the function of a scenario.
type Scenario = (&'static str, for<'a> fn(&'a mut Bench<'_>) -> Measured<'a>);

/// All scenarios.
pub(crate) const SCENARIOS: [Scenario; 13] = [
    ("uncontended", |bench| Box::pin(uncontended::measure(bench))),
    ("hot-key", |bench| Box::pin(hot_key::measure(bench))),
    ("processes", |bench| Box::pin(processes::measure(bench))),
    ("wake-up", |bench| Box::pin(wake_up::measure(bench))),
    ("waiters", |bench| Box::pin(waiters::measure(bench))),
    ("held", |bench| Box::pin(held::measure(bench))),
    ("killed", |bench| Box::pin(killed::measure(bench))),
    ("loss", |bench| Box::pin(loss::measure(bench))),
    ("quorum", |bench| Box::pin(quorum::measure(bench))),
    ("cluster", |bench| Box::pin(cluster::measure(bench))),
    ("distance", |bench| Box::pin(distance::measure(bench))),
    ("re-entry", |bench| Box::pin(re_entry::measure(bench))),
    ("idempotent", |bench| Box::pin(idempotent::measure(bench))),
];
