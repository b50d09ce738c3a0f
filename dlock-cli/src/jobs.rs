//! Scheduled jobs.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use dlock_runtime::scheduled::{Job, JobRun, JobStatus, RunOutcome, RunningJob};
use dlock_runtime::{LockManager, Result};

use crate::args::JobAction;
use crate::{TYPED_SO, failed, say};

/// Shows or changes a job; with `yes`, also if that ends the active run.
pub(crate) async fn run(url: &str, name: &str, action: JobAction, yes: bool) -> Result<ExitCode> {
    let manager = LockManager::connect(url).await?;
    let job = manager.job(name);
    let shown = name.escape_debug();
    let Some(status) = job.status().await? else {
        say(&format!(
            "`{shown}` has no record: no runner has started with it, and no call has asked for a tick; {TYPED_SO}\n"
        ));
        return Ok(ExitCode::FAILURE);
    };
    if let (JobAction::Reset, Some(RunningJob { node, .. }), false) = (action, &status.running, yes) {
        return Ok(failed(&format!(
            "`{shown}` runs on {}: its reset ends that run, and another one can start at the same time: confirm with `--yes`",
            node.escape_debug()
        )));
    }
    match action {
        JobAction::Get => return get(&job, name, &status).await,
        JobAction::Pause => job.pause().await?,
        JobAction::Resume => job.resume().await?,
        JobAction::Run => job.run_now().await?,
        JobAction::Reset => job.reset().await?,
    }
    let done = match action {
        JobAction::Get | JobAction::Pause => "is paused: its ticks are skipped",
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

async fn get(job: &Job, name: &str, status: &JobStatus) -> Result<ExitCode> {
    let mut text = state(name, status);
    for run in job.history(10).await? {
        text.push_str(&line_of(&run));
    }
    say(&text);
    Ok(ExitCode::SUCCESS)
}

fn state(name: &str, status: &JobStatus) -> String {
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
    format!(
        "`{}` {state}{paused}{requested}\n  schedule: {schedule}\n  runs: {runs}, failures: {failures}, skips: {skips}, missed: {missed}\n  last tick: {}\n  last success: {}\n",
        name.escape_debug(),
        status.slot.map_or_else(|| "none".to_owned(), ago),
        status.succeeded.map_or_else(|| "none".to_owned(), ago),
    )
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

/// Returns a time as a distance from now, by this machine's clock.
fn ago(time: SystemTime) -> String {
    match SystemTime::now().duration_since(time) {
        Ok(ago) => format!("{:.1} s ago", ago.as_secs_f64()),
        Err(ahead) => format!("{:.1} s from now", ahead.duration().as_secs_f64()),
    }
}
