//! How fast the lock is, beside the floor that every lock of its kind pays.
//!
//! ```text
//! cargo run --release -p dlock-benches -- [--short] [--json] [--rounds N] [--only SCENARIO]..
//! ```
//!
//! It starts a Redis of its own (`redis-server` from the path, or what `DLOCK_REDIS_SERVER` names) and stops it again. Figures are
//! medians of the rounds, with the least and the greatest. On a machine that is shared only ratios carry over. `BELOW` a goal is no
//! failure of the program; an error or two holders at once is.
//!
//! # Layout
//!
//! ```text
//! server       the Redis, and what it says of itself
//! raw          the floor
//! usage        clocks, processor time, memory of this process
//! worker       this program, started again as another process
//! report       rows and goals
//! scenarios    what is measured, one file each
//! compile_time a program of its own: what the attribute costs the compiler
//! ```

mod raw;
mod report;
mod scenarios;
mod server;
mod usage;
mod worker;

use std::process::ExitCode;

use crate::report::Report;
use crate::scenarios::{Bench, SCENARIOS};
use crate::server::{Server, Start};

/// What a scenario, or its other processes, can fail with.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    // The same shape for us, for the floor and for every worker process.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = runtime.map_err(Failure::from).and_then(|runtime| match arguments.split_first() {
        Some((first, task)) if first == worker::ARGUMENT => {
            runtime.block_on(scenarios::work(task)).map(|()| true)
        }
        _ => runtime.block_on(measure(&Options::read(&arguments)?)),
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the scenarios; returns whether none of them broke.
async fn measure(options: &Options) -> Result<bool, Failure> {
    let server = match Server::start().await? {
        Start::Running(server) => server,
        Start::Missing(reason) => {
            println!("SKIPPED: {reason}");
            return Ok(true);
        }
    };
    let mut report = Report::default();
    let mut whole = true;
    for (name, scenario) in SCENARIOS {
        if !options.only.is_empty() && !options.only.iter().any(|wanted| wanted == name) {
            continue;
        }
        eprintln!("{name} ..");
        let bench = Bench {
            server: &server,
            rounds: options.rounds,
            short: options.short,
            name,
            report: &mut report,
        };
        if let Err(error) = scenario(bench).await {
            eprintln!("{name} BROKE: {error}");
            whole = false;
        }
    }
    report.print(options.json);
    Ok(whole)
}

/// What was asked for on the command line.
#[derive(Debug)]
struct Options {
    short: bool,
    json: bool,
    rounds: usize,
    /// The scenarios to run; all where empty.
    only: Vec<String>,
}

impl Options {
    fn read(arguments: &[String]) -> Result<Self, Failure> {
        let short = arguments.iter().any(|argument| argument == "--short");
        let mut options = Self { short, json: false, rounds: if short { 1 } else { 5 }, only: Vec::new() };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| format!("`{argument}` needs a value"));
            match &**argument {
                "--short" => {}
                "--json" => options.json = true,
                "--rounds" => options.rounds = value()?.parse::<usize>()?.max(1),
                "--only" => {
                    let name = value()?;
                    if !SCENARIOS.iter().any(|(known, _)| known == name) {
                        let known = SCENARIOS.map(|(name, _)| name).join(", ");
                        return Err(format!("no scenario is called `{name}`; there are {known}").into());
                    }
                    options.only.push(name.clone());
                }
                other => return Err(format!("`{other}` is not known; {USAGE}").into()),
            }
        }
        Ok(options)
    }
}

const USAGE: &str = "write [--short] [--json] [--rounds N] [--only SCENARIO]..";
