//! Scheduled jobs.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use dlock_runtime::scheduled::{JobRun, JobStatus, RunOutcome, RunningJob};
use dlock_runtime::{LockManager, Result};

use crate::args::JobAction;
use crate::json::{self, Object, millis, rfc3339};
use crate::{TYPED_SO, failed, say};

/// Shows a job and its last runs.
pub(crate) async fn get(url: &str, name: &str, json: bool) -> Result<ExitCode> {
    let manager = LockManager::connect(url).await?;
    let job = manager.job(name);
    let Some(status) = job.status().await? else {
        say(&if json { json::NOTHING.to_owned() } else { no_record(name) });
        return Ok(ExitCode::FAILURE);
    };
    let history = job.history(10).await?;
    say(&if json { json_line(name, &status, &history) } else { shown(name, &status, &history) });
    Ok(ExitCode::SUCCESS)
}

/// Changes a job; with `yes`, also if that ends the active run.
pub(crate) async fn change(url: &str, name: &str, action: JobAction, yes: bool) -> Result<ExitCode> {
    let manager = LockManager::connect(url).await?;
    let job = manager.job(name);
    let shown = name.escape_debug();
    let Some(status) = job.status().await? else {
        say(&no_record(name));
        return Ok(ExitCode::FAILURE);
    };
    if let (JobAction::Reset, Some(RunningJob { node, .. }), false) = (action, &status.running, yes) {
        return Ok(failed(&format!(
            "`{shown}` runs on {}: its reset ends that run, and another one can start at the same time: confirm with `--yes`",
            node.escape_debug()
        )));
    }
    match action {
        JobAction::Pause => job.pause().await?,
        JobAction::Resume => job.resume().await?,
        JobAction::Run => job.run_now().await?,
        JobAction::Reset => job.reset().await?,
    }
    let done = match action {
        JobAction::Pause => "is paused: its ticks are skipped",
        JobAction::Resume => "runs at its ticks",
        JobAction::Run => {
            "is requested: a runner starts it within one lease, or within one lease after the active run has ended; `reset` withdraws it"
        }
        JobAction::Reset if status.is_paused => "is reset, and is still paused: its ticks are skipped",
        JobAction::Reset => "is reset: its next tick runs",
    };
    say(&format!("`{shown}` {done}\n"));
    manager.shutdown(Duration::ZERO).await;
    Ok(ExitCode::SUCCESS)
}

fn shown(name: &str, status: &JobStatus, history: &[JobRun]) -> String {
    let state = match &status.running {
        Some(RunningJob { node, remaining, .. }) => {
            let (node, left) = (node.escape_debug(), remaining.as_secs_f64());
            format!("runs on {node}, for {left:.1} s unless it is renewed")
        }
        None if status.is_paused => "is paused".to_owned(),
        None => "is idle".to_owned(),
    };
    let paused = if status.running.is_some() && status.is_paused { ", and is paused" } else { "" };
    let requested = if status.is_requested { ", and a run is requested" } else { "" };
    let JobStatus { runs, failures, skips, missed, .. } = status;
    let schedule = match &*status.schedule {
        "" => "none recorded".to_owned(),
        schedule => schedule.escape_debug().to_string(),
    };
    let runs_of_history: String = history.iter().map(line_of).collect();
    format!(
        "`{}` {state}{paused}{requested}\n  schedule: {schedule}\n  runs: {runs}, failures: {failures}, skips: {skips}, missed: {missed}\n  last tick: {}\n  last success: {}\n{runs_of_history}",
        name.escape_debug(),
        status.slot.map_or_else(|| "none".to_owned(), ago),
        status.succeeded.map_or_else(|| "none".to_owned(), ago),
    )
}

/// Returns the job as a JSON object on one line. Its fields are those of [`shown`], and more.
fn json_line(name: &str, status: &JobStatus, history: &[JobRun]) -> String {
    let running = status.running.as_ref().map(|run| {
        Object::default()
            .field("slot", rfc3339(run.slot))
            .field("started", rfc3339(run.started))
            .field("node", &*run.node)
            .field("remaining_ms", millis(run.remaining))
            .text()
    });
    let history: Vec<_> = history.iter().map(|run| json_of(run).text()).collect();
    Object::default()
        .field("name", name)
        .field("schedule", Some(&*status.schedule).filter(|schedule| !schedule.is_empty()))
        .field("is_paused", status.is_paused)
        .field("is_requested", status.is_requested)
        .json("running", running.as_deref())
        .field("known", status.known.map(rfc3339))
        .field("slot", status.slot.map(rfc3339))
        .field("succeeded", status.succeeded.map(rfc3339))
        .field("runs", status.runs)
        .field("failures", status.failures)
        .field("skips", status.skips)
        .field("missed", status.missed)
        .json("history", Some(&format!("[{}]", history.join(","))))
        .line()
}

fn line_of(run: &JobRun) -> String {
    let outcome = match run.outcome {
        RunOutcome::Succeeded => "succeeded",
        RunOutcome::Failed => "failed",
        RunOutcome::Cancelled => "was cancelled",
        _ => "was lost",
    };
    let error = run.error.as_ref().map(|error| format!(": {}", error.escape_debug())).unwrap_or_default();
    let requested = if run.is_requested { "requested run" } else { "tick" };
    format!(
        "  {requested} of {}: {outcome} after {:.1} s on {}{error}\n",
        ago(run.slot),
        run.took.as_secs_f64(),
        run.node.escape_debug()
    )
}

/// Returns a run that has ended. Its fields are those of [`line_of`], and more.
fn json_of(run: &JobRun) -> Object {
    Object::default()
        .field("slot", rfc3339(run.slot))
        .field("is_requested", run.is_requested)
        .field("started", rfc3339(run.started))
        .field("took_ms", millis(run.took))
        .field("outcome", run.outcome.name())
        .field("node", &*run.node)
        .field("error", run.error.as_deref())
}

/// Returns what is printed for a job without a record.
fn no_record(name: &str) -> String {
    format!(
        "`{}` has no record: no runner has started with it, and no call has asked for a tick; {TYPED_SO}\n",
        name.escape_debug()
    )
}

/// Returns a time as a distance from now, by this machine's clock.
fn ago(time: SystemTime) -> String {
    match SystemTime::now().duration_since(time) {
        Ok(ago) => format!("{:.1} s ago", ago.as_secs_f64()),
        Err(ahead) => format!("{:.1} s from now", ahead.duration().as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Debug;

    use dlock_runtime::scheduled::Schedule;
    use serde_json::Value;

    use super::*;

    /// Returns the names of a struct's fields.
    fn names(fields: &impl Debug) -> BTreeSet<String> {
        let text = format!("{fields:#?}");
        let names = text.lines().filter_map(|line| line.strip_prefix("    ")?.split_once(": "));
        names.filter(|(name, _)| !name.starts_with(' ')).map(|(name, _)| name.to_owned()).collect()
    }

    /// Returns the names of an object's fields, without units.
    fn names_in(object: &Value) -> BTreeSet<String> {
        let names = object.as_object().expect("an object").keys();
        names.map(|name| name.trim_end_matches("_ms").to_owned()).collect()
    }

    #[tokio::test]
    async fn every_field_of_a_job_is_in_its_json() {
        let manager = LockManager::connect("memory://").await.expect("it needs no server");
        let job = manager.job("nightly");
        let daily = Schedule::cron("0 2 * * *").expect("valid");
        let running = job.run(&daily, async |_| job.status().await).await.expect("the tick is due");
        let running = running.flatten().expect("there is a record");
        let history = job.history(10).await.expect("there is a record");

        let json: Value = serde_json::from_str(&json_line("nightly", &running, &history)).expect("JSON");

        let mut expected = names(&running);
        expected.extend(["name".to_owned(), "history".to_owned()]);
        assert_eq!(names_in(&json), expected);
        assert_eq!(names_in(&json["running"]), names(&running.running.expect("it is running")));
        assert_eq!(names_in(&json["history"][0]), names(&history[0]));
    }
}
