//! `dlock`: a tool for operators that examines servers, inspects and releases locks, and resolves
//! idempotent calls.
//!
//! It is a separate package, so that users of the library do not build it. See
//! `dlock_runtime::doctor` for the checks.
//!
//! | file | owns |
//! |---|---|
//! | `args` | the command line |
//! | `idem` | the records of idempotent calls |
//! | `jobs` | scheduled jobs |
//! | `json` | the output of `--json` |

mod args;
mod idem;
mod jobs;
mod json;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use dlock_runtime::doctor::{Finding, Severity};
use dlock_runtime::{FencingToken, LockInfo, LockKey, LockManager, Result};

use crate::args::Task;
use crate::json::{Object, millis};

fn main() -> ExitCode {
    let task = match args::read(std::env::args_os().skip(1), std::env::var_os("DLOCK_URL")) {
        Ok(task) => task,
        Err(problem) => return failed(&format!("{problem}; see `dlock --help`")),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
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
        Task::Inspect { url, key, json } => inspect(&url, &key, json).await,
        Task::Release { url, key } => release(&url, &key).await,
        Task::IdemGet { url, key, json } => idem::get(&url, &key, json).await,
        Task::IdemDone { url, key, json, replace } => idem::done(&url, &key, &json, replace).await,
        Task::IdemForget { url, key, yes } => idem::forget(&url, &key, yes).await,
        Task::JobGet { url, name, json } => jobs::get(&url, &name, json).await,
        Task::JobChange { url, name, action, yes } => jobs::change(&url, &name, action, yes).await,
    }
}

async fn doctor(url: &str, json: bool) -> Result<ExitCode> {
    let report = dlock_runtime::doctor(url).await?;
    if json {
        say(&report.findings().iter().map(json_of_finding).collect::<String>());
    } else {
        say(&format!("{report}\n"));
    }
    Ok(match report.worst() {
        _ if !report.is_reachable() => ExitCode::from(NOT_DONE),
        worst if worst <= Severity::Note => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Returns a finding as a JSON object on one line. A missing value is `null`.
fn json_of_finding(finding: &Finding) -> String {
    Object::default()
        .field("severity", finding.severity().name())
        .field("check", finding.check())
        .field("server", finding.server())
        .field("found", finding.found())
        .field("meaning", finding.meaning())
        .field("do", finding.remedy())
        .line()
}

async fn inspect(url: &str, key: &str, json: bool) -> Result<ExitCode> {
    let key = LockKey::from_shown(key)?; // printed with its control characters escaped
    let manager = LockManager::connect(url).await?;
    let Some(seen) = manager.inspect(&key).await? else {
        say(&if json { json::NOTHING.to_owned() } else { format!("`{key}` is not held; {TYPED_SO}\n") });
        return Ok(ExitCode::FAILURE);
    };
    say(&if json { json_of_lock(&key, &seen) } else { shown_lock(&key, &seen) });
    Ok(ExitCode::SUCCESS)
}

fn shown_lock(key: &LockKey, seen: &LockInfo) -> String {
    let holder = match (seen.holder(), seen.owner()) {
        (Some(holder), Some(owner)) => format!("{holder} ({owner})"),
        (Some(holder), None) => format!("{holder} (owner not known: is it connected?)"),
        (None, _) => "a client that does not use dlock".to_owned(),
    };
    let left = seen.remaining().map_or("without a time to live".to_owned(), |left| {
        format!("for {:.1} s unless it is renewed", left.as_secs_f64())
    });
    format!("`{key}` is held by {holder}, {left}; waiters: {}\n", seen.waiters())
}

/// Returns a lock as a JSON object on one line. Its fields are those of [`shown_lock`], and more.
///
/// This manager holds no lock, so `is_held_here` and `is_kept_here` would always be `false`.
fn json_of_lock(key: &LockKey, seen: &LockInfo) -> String {
    Object::default()
        .field("key", key.as_str())
        .field("holder", seen.holder())
        .field("owner", seen.owner())
        .field("is_foreign", seen.is_foreign())
        .field("remaining_ms", seen.remaining().map(millis))
        .field("waiters", seen.waiters())
        .field("fencing_token", seen.fencing_token().map(FencingToken::get))
        .line()
}

async fn release(url: &str, key: &str) -> Result<ExitCode> {
    let key = LockKey::from_shown(key)?;
    let manager = LockManager::connect(url).await?;
    let was_held = manager.force_release(&key).await?;
    if was_held {
        say(&format!("`{key}` is released\n"));
    } else {
        say(&format!("`{key}` was not held; {TYPED_SO}\n"));
    }
    manager.shutdown(Duration::ZERO).await;
    Ok(if was_held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints. If the reader, such as `head`, has closed the pipe, the exit code is still correct.
fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Prints a problem. The exit code is correct even if the reader has closed the pipe.
fn failed(problem: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "dlock: {problem}");
    ExitCode::from(NOT_DONE)
}

/// A reminder for users who copy a full name from Redis, for which no lock exists.
const TYPED_SO: &str = "write keys without their namespace, which is in the URL";

/// The exit code if it could not be done: the message on stderr, or the report, says why.
const NOT_DONE: u8 = 2;
