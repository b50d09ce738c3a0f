//! How many instructions the paths without a server take, and how often they ask for memory; compared with `instructions.tsv`.
//!
//! ```text
//! cargo run --release -p dlock-benches --bin instructions                compares; fails where a path costs more than it did
//! cargo run --release -p dlock-benches --bin instructions -- --write     writes what it counts into instructions.tsv
//! ```
//!
//! Times on a shared machine move by a third, counts hardly at all: this is what guards against getting slower by small steps. The program
//! runs itself under `valgrind`, each path once with so many turns and once with twice as many; the difference by their number is
//! what one turn costs, since all that is done once cancels out. It takes about a minute. Whoever makes a path dearer on
//! purpose writes the baseline anew and says why in the commit; what has become cheaper is written down in the same way, so that it stays.
//!
//! The counts belong to the processor's kind, to the C library and to the compiler of `rust-toolchain.toml`. Not here: how fast a lock
//! is, a matter of trips to a server (`main`).
//!
//! ```text
//! paths      what is counted
//! counted    this program under valgrind
//! baseline   the figures that are kept, and the judgment on new ones
//! ```

mod baseline;
mod counted;
mod paths;

use std::num::NonZero;
use std::process::ExitCode;

use crate::baseline::{Baseline, Figure, Unit};
use crate::paths::{PATHS, Path};

/// What counting can fail with.
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

/// Counts and compares; returns whether no path costs more than it did.
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
    println!("written; the commit says why");
    Ok(true)
}

/// Counts every path, several at a time: counts do not depend on what else the machine does.
fn count() -> Result<Vec<Figure>, Failure> {
    if cfg!(debug_assertions) {
        return Err("the counts are those of a release build: add --release".into());
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

/// Does what is counted.
fn run(path: &str, turns: &str) -> Result<(), Failure> {
    let path = PATHS.iter().find(|known| known.name == path).ok_or("there is no such path")?;
    path.run(turns.parse()?)
}
