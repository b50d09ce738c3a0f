//! The records of idempotent calls.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use dlock_runtime::idempotent::{IdempotencyState, IdempotencyStatus};
use dlock_runtime::{Error, LockKey, LockManager, Result};

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
        line("result", &shown_result(result));
    }
    text
}

/// Returns a result on one line. JSON stays JSON, which `--done` accepts.
fn shown_result(result: &[u8]) -> String {
    if serde_json::from_slice::<serde_json::Value>(result).is_err() {
        return String::from_utf8_lossy(result).escape_debug().to_string();
    }
    let mut json = String::new();
    for c in String::from_utf8_lossy(result).chars() {
        match c {
            '"' | '\'' | '\\' => json.push(c),
            '\n' | '\r' | '\t' => json.push(' '), // they are not allowed in strings
            c if c.escape_debug().len() == 1 => json.push(c),
            c => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    _ = write!(json, "\\u{unit:04x}"); // to a string
                }
            }
        }
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_printed_as_json_that_can_be_pasted() {
        for (stored, shown) in [
            (r#"{"paid":"x \" y","it's":[1.50,-2e9]}"#, r#"{"paid":"x \" y","it's":[1.50,-2e9]}"#),
            ("[1,\n\t2]", "[1,  2]"),
            ("\"ü \u{202e}7\u{9b}\u{e0001}\"", r#""ü \u202e7\u009b\udb40\udc01""#),
        ] {
            let printed = shown_result(stored.as_bytes());

            assert_eq!(printed, shown);
            let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("it is JSON");
            assert_eq!(read(&printed), read(stored));
        }
        assert_eq!(shown_result(b"\x01\xff\"\n"), "\\u{1}\u{fffd}\\\"\\n");
    }
}
