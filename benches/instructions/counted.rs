//! Runs this program under valgrind, and reads the counts.

use std::process::Command;

use crate::Failure;

/// The first argument of a counted run; a path and its number of iterations follow.
pub(crate) const ARGUMENT: &str = "run";

/// Returns the reason why nothing can be counted on this machine, or `None`.
pub(crate) fn missing() -> Option<String> {
    let found = Command::new("valgrind").arg("--version").output();
    found
        .err()
        .map(|error| format!("valgrind is missing ({error}); Debian, Ubuntu: apt-get install valgrind"))
}

/// Returns the instructions of one iteration in user mode: the median of three rounds.
///
/// The random state of hash maps and the clock change a single round by up to 2 %.
pub(crate) fn instructions(path: &str, turns: u64) -> Result<f64, Failure> {
    let tool = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];
    let mut rounds = [0.0; 3];
    for round in &mut rounds {
        *round = each(path, turns, &tool, |said| Some(said.rsplit_once("Collected :")?.1))?;
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[1])
}

/// Returns the number of allocations of one iteration.
pub(crate) fn allocations(path: &str, turns: u64) -> Result<f64, Failure> {
    let tool = ["--tool=memcheck", "--leak-check=no", "--undef-value-errors=no"];
    each(path, turns, &tool, |said| Some(said.rsplit_once("total heap usage:")?.1))
}

/// Returns the cost of one iteration.
///
/// It is the difference of two runs, one with twice as many iterations.
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
        let number = number.ok_or_else(|| format!("no count in the output of valgrind:\n{said}"))?;
        Ok(number.replace(',', "").parse()?)
    };
    let (once, twice) = (count(turns)?, count(turns * 2)?);
    Ok((f64::from(twice) - f64::from(once)) / f64::from(u32::try_from(turns)?))
}
