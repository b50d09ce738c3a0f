//! Measures the lock, the floor that every such lock pays, and other libraries.
//!
//! ```text
//! cargo run --release -p dlock-benches -- [--short] [--large] [--rivals [NAME]..] [--json FILE] [--only SCENARIO].. [--rounds N]
//! ```
//!
//! The program starts its own servers (`redis-server` from the path, or `DLOCK_REDIS_SERVER`) and
//! stops them again. Each contender is a separate process, and contenders are measured in rotation.
//! Figures are medians of the rounds, with the least and the greatest. On a shared machine, only
//! ratios are comparable. A goal that is `MISSED` does not fail the program; an error of dlock, or
//! two holders at a time, does.
//!
//! # Layout
//!
//! ```text
//! peer         a crate: the protocol of a contender, and the process around a lock library
//! contenders   the floor, and dlock in several configurations
//! rivals       other libraries, built and started on request
//! process      the client side of a contender's process
//! turns        the order in which contenders run
//! server       the Redis server and its statistics
//! ground       the machine, the programs, and the revision of the sources
//! distance     a proxy that simulates a distant server
//! contest      tasks of several processes contend for one key
//! figures      numbers and percentiles
//! report       rows and goals, as a table and as JSON
//! options      the command line
//! scenarios    the scenarios, one file each
//! compile_time a separate program: what the attribute costs the compiler
//! ```

mod contenders;
mod contest;
mod distance;
mod figures;
mod ground;
mod options;
mod process;
mod report;
mod rivals;
mod scenarios;
mod server;
mod turns;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use crate::contenders::Contender;
use crate::options::Options;
use crate::report::Report;
use crate::scenarios::{Bench, SCENARIOS};
use crate::server::{Server, Start};

/// The error of a scenario.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help") {
        print!("{}", options::help());
        return ExitCode::SUCCESS;
    }
    let done = match arguments.as_slice() {
        [first, name, servers @ ..] if first == contenders::ARGUMENT => contenders::play(name, servers),
        _ => run(&arguments),
    };
    done.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

fn run(arguments: &[String]) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let whole = runtime.block_on(measure(&Options::read(arguments)?))?;
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the scenarios. Returns `true` if none of them broke.
async fn measure(options: &Options) -> Result<bool, Failure> {
    let server = match Server::start().await? {
        Start::Running(server) => server,
        Start::Missing(reason) => {
            println!("SKIPPED: {reason}");
            return Ok(true);
        }
    };
    let program = std::env::current_exe()?;
    let rivals = rivals(&program, options)?;
    let ground = ground::told(&server, options.rivals.is_some()).await?;
    eprintln!("{ground}");
    let mut report = Report::on(ground);
    let mut whole = true;
    for (name, scenario) in SCENARIOS {
        if !options.only.is_empty() && !options.only.iter().any(|wanted| wanted == name) {
            continue;
        }
        eprintln!("{name} ..");
        let begun = Instant::now();
        let mut bench = Bench {
            server: &server,
            program: &program,
            rivals: &rivals,
            rounds: options.rounds,
            short: options.short,
            large: options.large,
            name,
            report: &mut report,
        };
        bench.report.begin(name);
        if let Err(error) = scenario(&mut bench).await {
            eprintln!("{name} BROKE: {error}");
            whole = false;
        }
        report.print(name);
        eprintln!("{name}: {:.1} s", begun.elapsed().as_secs_f64());
    }
    if let Some(file) = &options.json {
        report.write_json(file)?;
    }
    Ok(whole && report.is_whole())
}

/// Builds the requested libraries, and prints those that are not available here.
fn rivals(program: &Path, options: &Options) -> Result<Vec<Contender>, Failure> {
    let Some(names) = &options.rivals else { return Ok(Vec::new()) };
    let target = program.ancestors().nth(2).ok_or("this program is not in cargo's target folder")?;
    let mut rivals = Vec::new();
    for rival in rivals::all(target, names)? {
        match rival {
            Ok(rival) => rivals.push(rival),
            Err(skipped) => println!("SKIPPED: {}: {}", skipped.name, skipped.why),
        }
    }
    Ok(rivals)
}
