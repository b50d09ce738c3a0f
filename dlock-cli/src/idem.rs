//! The records of idempotent calls.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use dlock_runtime::idempotent::{IdempotencyState, IdempotencyStatus};
use dlock_runtime::{LockKey, LockManager, Result};

use crate::{TYPED_SO, failed, say};

/// Shows a record.
pub(crate) async fn get(url: &str, key: &str) -> Result<ExitCode> {
    let key = LockKey::from_shown(key)?; // printed with its control characters escaped
    let manager = LockManager::connect(url).await?;
    let Some(status) = manager.idempotent(&key).status().await? else {
        say(&format!("`{key}` has no record; {TYPED_SO}\n"));
        return Ok(ExitCode::FAILURE);
    };
    say(&shown(&key, &status));
    Ok(ExitCode::SUCCESS)
}

/// Stores the result of a call whose outcome is unknown.
pub(crate) async fn done(url: &str, key: &str, json: &str) -> Result<ExitCode> {
    let result: serde_json::Value = match serde_json::from_str(json) {
        Ok(result) => result,
        Err(problem) => return Ok(failed(&format!("`--done` is not JSON: {problem}"))),
    };
    let key = LockKey::from_shown(key)?;
    let manager = LockManager::connect(url).await?;
    let is_stored = manager.idempotent(&key).resolve(&result).await?;
    if is_stored {
        say(&format!("`{key}` is resolved: later calls get this result\n"));
    } else {
        say(&format!("`{key}` has no call whose outcome is unknown; {TYPED_SO}\n"));
    }
    manager.shutdown(Duration::ZERO).await;
    Ok(if is_stored { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Deletes a record.
pub(crate) async fn forget(url: &str, key: &str) -> Result<ExitCode> {
    let key = LockKey::from_shown(key)?;
    let manager = LockManager::connect(url).await?;
    let was_there = manager.idempotent(&key).forget().await?;
    if was_there {
        say(&format!("`{key}` is forgotten: the next call runs\n"));
    } else {
        say(&format!("`{key}` has no record; {TYPED_SO}\n"));
    }
    manager.shutdown(Duration::ZERO).await;
    Ok(if was_there { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn shown(key: &LockKey, status: &IdempotencyStatus) -> String {
    let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
    let state = match status.state() {
        IdempotencyState::InProgress => {
            format!("is in progress, for {} unless its lease is renewed", seconds(status.lease_left()))
        }
        IdempotencyState::OutcomeUnknown => "crashed, and its outcome is unknown".to_owned(),
        IdempotencyState::Completed if status.is_error() => "completed with an error".to_owned(),
        IdempotencyState::Completed => "completed".to_owned(),
        IdempotencyState::ResultNotStored => "completed, and its result is not stored".to_owned(),
        _ => "returned an error, and its completed steps are stored".to_owned(),
    };
    let mut text = format!("`{key}` {state}\n");
    let mut line = |name: &str, value: &str| _ = writeln!(text, "  {name}: {value}"); // to a string
    line("attempt", &status.attempt().to_string());
    if let Some(holder) = status.holder() {
        line("manager", &holder.escape_debug().to_string());
    }
    if !status.function().is_empty() {
        line("function", &status.function().escape_debug().to_string());
    }
    line("first attempt", &format!("{} ago", seconds(status.age())));
    if let Some(ago) = status.completed_ago() {
        line("completed", &format!("{} ago", seconds(ago)));
    }
    line("stored for", &seconds(status.ttl()));
    if !status.steps().is_empty() {
        line("completed steps", &status.steps().join(", ").escape_debug().to_string());
    }
    if let Some(result) = status.result() {
        line("result", &String::from_utf8_lossy(result).escape_debug().to_string());
    }
    text
}
