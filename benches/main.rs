//! How fast the lock is, beside the floor that every lock of its kind pays, and beside other libraries.
//!
//! ```text
//! cargo run --release -p dlock-benches -- [--short] [--large] [--rivals [NAME]..] [--json FILE] [--only SCENARIO].. [--rounds N]
//! ```
//!
//! It starts servers of its own (`redis-server` from the path, or what `DLOCK_REDIS_SERVER` names) and stops them again. Everybody
//! who locks is a process of its own, and they take turns. Figures are medians of the rounds, with the least and the greatest. On a
//! machine that is shared only ratios carry over. A goal that is `MISSED` is no failure of the program; an error of ours, or two holders at
//! once, is.
//!
//! # Layout
//!
//! ```text
//! peer         a crate: what a contender is told and answers, and the process around a lock library
//! contenders   who takes part: the floor, and us in several ways
//! rivals       other libraries: built and started where they are asked for
//! process      a contender's process, seen from here
//! turns        who goes when
//! server       the Redis, and what it says of itself
//! ground       on what machine, with what programs, and of which sources
//! distance     the way to a server that is far away
//! contest      tasks of some processes want one key, and what their notes say of it
//! figures      numbers to calculate with
//! report       rows and goals, for people and for programs
//! options      the command line
//! scenarios    what is measured, one file each
//! compile_time a program of its own: what the attribute costs the compiler
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

/// What a scenario can fail with.
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

/// Runs the scenarios; returns whether none of them broke.
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

/// Builds the rivals that are asked for, and says which cannot be had here.
fn rivals(program: &Path, options: &Options) -> Result<Vec<Contender>, Failure> {
    let Some(names) = &options.rivals else { return Ok(Vec::new()) };
    let target = program.ancestors().nth(2).ok_or("this program is in no folder of cargo's")?;
    let mut rivals = Vec::new();
    for rival in rivals::all(target, names)? {
        match rival {
            Ok(rival) => rivals.push(rival),
            Err(skipped) => println!("SKIPPED: {}: {}", skipped.name, skipped.why),
        }
    }
    Ok(rivals)
}
