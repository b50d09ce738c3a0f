//! This program, run again under valgrind, and what valgrind counted.
//!
//! Not here: what is run (`paths`).

use std::process::Command;

use crate::Failure;

/// What stands first on the command line of a run that is counted; a path and its turns follow.
pub(crate) const ARGUMENT: &str = "run";

/// Returns why nothing can be counted here, if so.
pub(crate) fn missing() -> Option<String> {
    let found = Command::new("valgrind").arg("--version").output();
    found
        .err()
        .map(|error| format!("valgrind is missing ({error}); Debian, Ubuntu: apt-get install valgrind"))
}

/// Returns how many instructions one turn takes, in user mode: the median of three rounds, since what hash maps draw by lot and what
/// the clock says move a single one by up to 2 %.
pub(crate) fn instructions(path: &str, turns: u64) -> Result<f64, Failure> {
    let tool = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];
    let mut rounds = [0.0; 3];
    for round in &mut rounds {
        *round = each(path, turns, &tool, |said| Some(said.rsplit_once("Collected :")?.1))?;
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[1])
}

/// Returns how often one turn asks for memory.
pub(crate) fn allocations(path: &str, turns: u64) -> Result<f64, Failure> {
    let tool = ["--tool=memcheck", "--leak-check=no", "--undef-value-errors=no"];
    each(path, turns, &tool, |said| Some(said.rsplit_once("total heap usage:")?.1))
}

/// What a turn adds: the difference of two runs, of which one has twice as many turns.
fn each(
    path: &str,
    turns: u64,
    tool: &[&str],
    counter: impl Fn(&str) -> Option<&str>,
) -> Result<f64, Failure> {
    let count = |turns: u64| -> Result<i32, Failure> {
        let program = std::env::current_exe()?;
        let turns = turns.to_string();
        let ran = Command::new("valgrind").args(tool).arg(program).args([ARGUMENT, path, &turns]).output()?;
        let said = String::from_utf8_lossy(&ran.stderr);
        if !ran.status.success() {
            return Err(format!("{path}: {said}").into());
        }
        let number = counter(&said).and_then(|after| after.split_whitespace().next());
        let number = number.ok_or_else(|| format!("valgrind says no count:\n{said}"))?;
        Ok(number.replace(',', "").parse()?)
    };
    let (once, twice) = (count(turns)?, count(turns * 2)?);
    Ok((f64::from(twice) - f64::from(once)) / f64::from(u32::try_from(turns)?))
}
