//! What is measured, one scenario a file. A row that has a goal says so where it is added.

mod cluster;
mod held;
mod hot_key;
mod killed;
mod processes;
mod quorum;
mod uncontended;
mod wake_up;

use std::pin::Pin;

use crate::Failure;
use crate::report::{Goal, Report};
use crate::server::Server;

/// What a scenario is given.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) server: &'a Server,
    pub(crate) rounds: usize,
    /// Whether figures may be coarse.
    pub(crate) short: bool,
    pub(crate) name: &'static str,
    pub(crate) report: &'a mut Report,
}

impl Bench<'_> {
    /// Adds a row of one figure a round.
    fn add(&mut self, what: impl Into<String>, unit: &'static str, figures: Vec<f64>, goal: Option<Goal>) {
        self.report.add(self.name, what, unit, figures, goal);
    }
}

/// A scenario on its way.
type Measured<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + 'a>>;

/// A scenario, by its name.
type Scenario = (&'static str, fn(Bench<'_>) -> Measured<'_>);

/// All scenarios.
pub(crate) const SCENARIOS: [Scenario; 7] = [
    ("uncontended", |bench| Box::pin(uncontended::measure(bench))),
    ("cluster", |bench| Box::pin(cluster::measure(bench))),
    ("hot-key", |bench| Box::pin(hot_key::measure(bench))),
    ("processes", |bench| Box::pin(processes::measure(bench))),
    ("wake-up", |bench| Box::pin(wake_up::measure(bench))),
    ("held", |bench| Box::pin(held::measure(bench))),
    ("killed", |bench| Box::pin(killed::measure(bench))),
    ("quorum", |bench| Box::pin(quorum::measure(bench))),
];

/// What a worker process does.
pub(crate) async fn work(task: &[String]) -> Result<(), Failure> {
    let task: Vec<&str> = task.iter().map(String::as_str).collect();
    match task.as_slice() {
        ["processes", url, log] => processes::work(url, log).await,
        ["wake-up", url] => wake_up::work(url).await,
        ["held", url, count, lease] => held::work(url, count.parse()?, lease.parse()?).await,
        ["killed", url, key] => killed::work(url, key).await,
        _ => Err("no such task for a worker".into()),
    }
}
