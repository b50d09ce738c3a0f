//! `dlock`: examines the servers of distributed locks, looks at a lock, and frees one, for operators.
//!
//! A package of its own, so that those who use the library do not build it. Not here: what is examined, and what it means
//! (`dlock_runtime::doctor`).
//!
//! | file | owns |
//! |---|---|
//! | `args` | what was typed |
//! | `json` | a finding on one line, for machines |

mod args;
mod json;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use dlock_runtime::doctor::Severity;
use dlock_runtime::{LockKey, LockManager, Result};

use crate::args::Task;

fn main() -> ExitCode {
    let task = match args::read(std::env::args_os().skip(1), std::env::var_os("DLOCK_URL")) {
        Ok(task) => task,
        Err(problem) => return failed(&format!("{problem}; `dlock --help` has the commands")),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.to_string()),
    };
    runtime.block_on(run(task)).unwrap_or_else(|error| failed(&error.to_string()))
}

async fn run(task: Task) -> Result<ExitCode> {
    match task {
        Task::Help => {
            say(args::HELP);
            Ok(ExitCode::SUCCESS)
        }
        Task::Version => {
            say(concat!("dlock ", env!("CARGO_PKG_VERSION"), "\n"));
            Ok(ExitCode::SUCCESS)
        }
        Task::Doctor { url, json } => doctor(&url, json).await,
        Task::Inspect { url, key } => inspect(&url, &key).await,
        Task::Release { url, key } => release(&url, &key).await,
    }
}

async fn doctor(url: &str, json: bool) -> Result<ExitCode> {
    let report = dlock_runtime::doctor(url).await?;
    if json {
        say(&report.findings().iter().map(|finding| json::line(finding) + "\n").collect::<String>());
    } else {
        say(&format!("{report}\n"));
    }
    Ok(match report.worst() {
        _ if !report.was_examined() => ExitCode::from(NOT_DONE),
        Severity::Ok | Severity::Note => ExitCode::SUCCESS,
        Severity::Warning | Severity::Danger => ExitCode::FAILURE,
    })
}

async fn inspect(url: &str, key: &str) -> Result<ExitCode> {
    let key = LockKey::from_shown(key)?; // which is printed with its control characters escaped
    let manager = LockManager::connect(url).await?;
    let Some(seen) = manager.inspect(&key).await? else {
        say(&format!("nobody holds `{key}`; {TYPED_SO}\n"));
        return Ok(ExitCode::FAILURE);
    };
    let holder = seen.holder().unwrap_or("somebody whose value is not of our making");
    let left =
        seen.remaining().map_or("for ever".to_owned(), |left| format!("for {:.1} s", left.as_secs_f64()));
    say(&format!("`{key}` is held by {holder}, {left} unless it is renewed; {} wait\n", seen.waiters()));
    Ok(ExitCode::SUCCESS)
}

async fn release(url: &str, key: &str) -> Result<ExitCode> {
    let key = LockKey::from_shown(key)?;
    let manager = LockManager::connect(url).await?;
    let was_held = manager.force_release(&key).await?;
    if was_held {
        say(&format!("`{key}` is released\n"));
    } else {
        say(&format!("nobody held `{key}`; {TYPED_SO}\n"));
    }
    manager.shutdown(Duration::ZERO).await;
    Ok(if was_held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints; whoever reads no further, such as `head`, still gets the exit code.
fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn failed(problem: &str) -> ExitCode {
    eprintln!("dlock: {problem}");
    ExitCode::from(NOT_DONE)
}

/// Who copies a name from Redis finds no such lock.
const TYPED_SO: &str = "a key is typed without its namespace, which is the URL's";

/// What is asked for could not be done: bad usage, or no server that could be asked.
const NOT_DONE: u8 = 2;
