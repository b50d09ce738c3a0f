//! Counts instructions and allocations, and compares them with `instructions.tsv`.
//!
//! Only the paths without a server are counted.
//!
//! ```text
//! cargo run --release -p dlock-benches --bin instructions                compares; fails if a path costs more
//! cargo run --release -p dlock-benches --bin instructions -- --write     writes the counts into instructions.tsv
//! ```
//!
//! Times on a shared machine vary by up to a third, counts by at most 2 %, so counts detect small
//! regressions. The program runs itself under `valgrind`: each path once with N iterations and once
//! with twice as many. The difference divided by N is the cost of one iteration, because setup
//! costs cancel out. A run takes about a minute. If a path costs more on purpose, write the
//! baseline again and say why in the commit. If a path costs less, write the baseline as well, so
//! that later regressions are detected.
//!
//! The counts depend on the kind of processor, on the C library, and on the compiler of
//! `rust-toolchain.toml`.
//!
//! ```text
//! paths      the counted paths
//! counted    runs this program under valgrind
//! baseline   the committed figures, and the comparison with new ones
//! ```

mod baseline;
mod counted;
mod paths;

use std::num::NonZero;
use std::process::ExitCode;

use crate::baseline::{Baseline, Figure, Unit};
use crate::paths::{PATHS, Path};

/// The error of this program.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => compare(),
        ["--write"] => write(),
        [counted::ARGUMENT, path, turns] => run(path, turns).map(|()| true),
        _ => Err("write nothing, or --write".into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Counts and compares. Returns `true` if no path costs more.
fn compare() -> Result<bool, Failure> {
    let baseline = Baseline::read()?;
    if let Some(why) = counted::missing().or_else(|| baseline.not_of_here()) {
        println!("SKIPPED: counts of instructions: {why}");
        return Ok(true);
    }
    let judged = baseline.judge(&count()?);
    println!("{judged}");
    Ok(judged.is_kept())
}

fn write() -> Result<bool, Failure> {
    if let Some(why) = counted::missing() {
        return Err(why.into());
    }
    let figures = count()?;
    println!("{}", Baseline::read().unwrap_or_default().judge(&figures));
    Baseline::of(figures).write()?;
    println!("written; say why in the commit");
    Ok(true)
}

/// Counts every path, several at a time: counts do not depend on the load of the machine.
fn count() -> Result<Vec<Figure>, Failure> {
    if cfg!(debug_assertions) {
        return Err("counts need a release build: add --release".into());
    }
    let at_a_time = std::thread::available_parallelism().map_or(1, NonZero::get);
    let mut figures = Vec::new();
    for paths in PATHS.chunks(at_a_time) {
        let counted = std::thread::scope(|scope| {
            let threads: Vec<_> = paths.iter().map(|path| scope.spawn(|| count_one(path))).collect();
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect::<Vec<_>>()
        });
        for pair in counted {
            figures.extend(pair?);
        }
    }
    figures.push(Figure::new(paths::FUTURE, Unit::Bytes, paths::added_to_a_future()));
    Ok(figures)
}

fn count_one(&Path { name, turns, .. }: &Path) -> Result<[Figure; 2], Failure> {
    eprintln!("{name} ..");
    let instructions = Figure::new(name, Unit::Instructions, counted::instructions(name, turns)?);
    let allocations = Figure::new(name, Unit::Allocations, counted::allocations(name, turns)?);
    Ok([instructions, allocations])
}

/// Runs a path.
fn run(path: &str, turns: &str) -> Result<(), Failure> {
    let path = PATHS.iter().find(|known| known.name == path).ok_or("unknown path")?;
    path.run(turns.parse()?)
}
