//! The records of idempotent calls.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use dlock_runtime::idempotent::{IdempotencyState, IdempotencyStatus};
use dlock_runtime::{Error, LockKey, LockManager, Result};

use crate::json::{self, Object, millis};
use crate::{TYPED_SO, failed, say};

/// Shows a record.
pub(crate) async fn get(url: &str, key: &str, json: bool) -> Result<ExitCode> {
    let key = LockKey::from_shown(key)?; // printed with its control characters escaped
    let manager = LockManager::connect(url).await?;
    let Some(status) = manager.idempotent(&key).status().await? else {
        say(&if json { json::NOTHING.to_owned() } else { format!("`{key}` has no record; {TYPED_SO}\n") });
        return Ok(ExitCode::FAILURE);
    };
    say(&if json { json_line(&key, &status) } else { shown(&key, &status) });
    Ok(ExitCode::SUCCESS)
}

/// Stores the result of a call that has none. `replace`: also instead of a result that an operator
/// has stored.
pub(crate) async fn done(url: &str, key: &str, json: &str, replace: bool) -> Result<ExitCode> {
    // A parsed value would round numbers above 64 bits, so the text is stored as typed. But it may
    // be more than a reader decodes, such as `1e999`, so it is parsed too.
    let parsed = serde_json::from_str::<serde_json::Value>(json);
    let result: &serde_json::value::RawValue = match parsed.and_then(|_| serde_json::from_str(json)) {
        Ok(result) => result,
        Err(problem) => return Ok(failed(&format!("`--done` is not JSON that callers can read: {problem}"))),
    };
    let key = LockKey::from_shown(key)?;
    let manager = LockManager::connect(url).await?;
    let call = manager.idempotent(&key);
    let stored = if replace { call.resolve_or_replace(result).await } else { call.resolve(result).await };
    let is_stored = match stored {
        Err(Error::InProgress { .. }) => return still_running(&manager, &key).await,
        stored => stored?,
    };
    if is_stored {
        say(&format!("`{key}` is resolved: later calls get this result\n"));
    } else {
        say(&format!("{}\n", unresolved(&key, call.status().await?.as_ref())));
    }
    manager.shutdown(Duration::ZERO).await;
    Ok(if is_stored { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Deletes a record; with `yes`, also one of a call that has completed.
pub(crate) async fn forget(url: &str, key: &str, yes: bool) -> Result<ExitCode> {
    let key = LockKey::from_shown(key)?;
    let manager = LockManager::connect(url).await?;
    let call = manager.idempotent(&key);
    // The store decides: a call that completes between two requests would be forgotten too.
    let forgotten = if yes { call.forget().await } else { call.forget_unless_completed().await };
    let is_forgotten = match forgotten {
        Err(Error::InProgress { .. }) => return still_running(&manager, &key).await,
        forgotten => forgotten?,
    };
    let code = if is_forgotten {
        say(&format!("`{key}` is forgotten: the next call runs\n"));
        ExitCode::SUCCESS
    } else if !yes && call.status().await?.is_some() {
        failed(&format!(
            "`{key}` has completed, and without its record the next call runs again: confirm with `--yes`"
        ))
    } else {
        say(&format!("`{key}` has no record; {TYPED_SO}\n"));
        ExitCode::FAILURE
    };
    manager.shutdown(Duration::ZERO).await;
    Ok(code)
}

/// Reports that a call is running, or that the lease of its killed process lasts.
async fn still_running(manager: &LockManager, key: &LockKey) -> Result<ExitCode> {
    let status = manager.idempotent(key).status().await?;
    let left = status.map_or(Duration::ZERO, |status| status.lease_left());
    manager.shutdown(Duration::ZERO).await;
    Ok(failed(&format!(
        "`{key}` is in progress: its lease lasts {} more; if its process was killed, run this again after that, and \
         otherwise wait for the call, which renews its lease",
        seconds(left)
    )))
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Returns why no result was stored, and what the operator can do.
fn unresolved(key: &LockKey, status: Option<&IdempotencyStatus>) -> String {
    let Some(status) = status else { return format!("`{key}` has no record; {TYPED_SO}") };
    match status.state() {
        IdempotencyState::Completed | IdempotencyState::ResultNotStored => {}
        _ => {
            return format!(
                "`{key}` has started again, so no result was stored; run this again after its end"
            );
        }
    }
    let (by, replace) = if status.is_resolved() {
        ("an operator stored", "`--replace` replaces it, and ")
    } else {
        ("its body stored", "and ")
    };
    format!(
        "`{key}` has a result already, which {by}: `dlock idem get` shows it, {replace}`--forget --yes` deletes it, and then the body runs again"
    )
}

fn shown(key: &LockKey, status: &IdempotencyStatus) -> String {
    let state = match status.state() {
        IdempotencyState::InProgress => {
            format!("is in progress, for {} unless its lease is renewed", seconds(status.lease_left()))
        }
        IdempotencyState::OutcomeUnknown => "crashed, and its outcome is unknown".to_owned(),
        IdempotencyState::Completed if status.is_resolved() => {
            "completed, and an operator stored its result".to_owned()
        }
        IdempotencyState::Completed if status.is_error() => "completed with an error".to_owned(),
        IdempotencyState::Completed => "completed".to_owned(),
        IdempotencyState::ResultNotStored => "completed, and its result is not stored".to_owned(),
        _ => "returned an error, and its completed steps are stored".to_owned(),
    };
    let mut text = format!("`{key}` {state}\n");
    let mut line = |name: &str, value: &str| _ = writeln!(text, "  {name}: {value}"); // to a string
    line("attempt", &status.attempt().to_string());
    if let Some(holder) = status.holder() {
        let owner = status.owner().unwrap_or("owner not known: is it connected?");
        line("manager", &format!("{} ({})", holder.escape_debug(), owner.escape_debug()));
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
        let text = || String::from_utf8_lossy(result).escape_debug().to_string();
        line("result", &json::stored(result).unwrap_or_else(text));
    }
    text
}

/// Returns the record as a JSON object on one line. Its fields are those of [`shown`], and more.
fn json_line(key: &LockKey, status: &IdempotencyStatus) -> String {
    let result = status.result().and_then(json::stored);
    // A result that is not JSON has a field of its own, so that it is not taken for a JSON string.
    let result_text = status.result().filter(|_| result.is_none()).map(String::from_utf8_lossy);
    Object::default()
        .field("key", key.as_str())
        .field("state", status.state().name())
        .field("attempt", status.attempt())
        .field("holder", status.holder())
        .field("owner", status.owner())
        .field("function", Some(status.function()).filter(|name| !name.is_empty()))
        .field("lease_left_ms", millis(status.lease_left()))
        .field("age_ms", millis(status.age()))
        .field("completed_ago_ms", status.completed_ago().map(millis))
        .field("ttl_ms", millis(status.ttl()))
        .field("steps", status.steps())
        .field("is_resolved", status.is_resolved())
        .field("is_error", status.is_error())
        .json("result", result.as_deref())
        .field("result_text", result_text)
        .line()
}
