//! 4 processes with 16 tasks each want one key: how often it changes hands, and how evenly.
//!
//! Each entry is noted by its process, with the times at which it was asked for, entered and left on the boot clock that all
//! processes share. Afterwards the notes are merged: an entry by another task than the one before is a hand-over, and one that
//! begins before the last has ended is two holders at once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_runtime::{LockManager, distributed_lock};
use tokio::task::JoinSet;

use crate::Failure;
use crate::report::Goal;
use crate::scenarios::Bench;
use crate::usage::{boot_nanos, float, millis, nanos};
use crate::worker::{Orders, Worker, say};

const PROCESSES: u64 = 4;
const TASKS: u64 = 16;

#[distributed_lock(key = "hot:processes", lease = "30s", wait = "60s", manager = locks)]
async fn enter(
    locks: &LockManager,
    notes: &Notes,
    task: u64,
    asked: u64,
) -> Result<(), dlock_runtime::Error> {
    let entered = boot_nanos();
    let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
    notes.push(Entry { entered, asked, task, left: boot_nanos() });
    Ok(())
}

type Notes = Mutex<Vec<Entry>>;

/// One task's time inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    entered: u64,
    asked: u64,
    task: u64,
    left: u64,
}

pub(crate) async fn measure(mut bench: Bench<'_>) -> Result<(), Failure> {
    let span = Duration::from_millis(if bench.short { 800 } else { 2_000 });
    let ways = [("default budget", ""), ("hand_off=0ms", "?hand_off=0ms")];
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..bench.rounds {
        for ((_, parameters), rounds) in ways.iter().zip(&mut rounds) {
            rounds.push(run(&bench, parameters, span).await?);
        }
    }
    for ((way, _), rounds) in ways.iter().zip(&rounds) {
        let each = |figure: fn(&Round) -> f64| rounds.iter().map(figure).collect();
        let row = |what: &str| format!("{way}, {what}");
        bench.add(
            row("hand-overs"),
            "/s",
            each(|round| round.changes_per_second),
            Some(Goal::AtLeast(5_000.0)),
        );
        bench.add(row("share of processes, max to min"), "x", each(|round| round.share), None);
        bench.add(row("longest wait"), "ms", each(|round| round.longest_wait), None);
        bench.add(row("starved tasks"), "", each(|round| round.starved), Some(Goal::AtMost(0.0)));
    }
    Ok(())
}

/// One round.
#[derive(Debug)]
struct Round {
    changes_per_second: f64,
    share: f64,
    longest_wait: f64,
    /// Tasks that never entered.
    starved: f64,
}

async fn run(bench: &Bench<'_>, parameters: &str, span: Duration) -> Result<Round, Failure> {
    let url = format!("{}{parameters}", bench.server.url());
    let mut workers = Vec::new();
    for process in 0..PROCESSES {
        let log = bench.server.folder().join(format!("process-{process}"));
        let path = log.to_str().ok_or("the folder for temporary files has no UTF-8 name")?;
        let mut worker = Worker::start(bench.name, &[&url, path])?;
        worker.line().await?;
        workers.push((worker, log));
    }
    let start = boot_nanos() + nanos(Duration::from_millis(50));
    let end = start + nanos(span);
    for (worker, _) in &mut workers {
        worker.tell(&format!("{start} {end}")).await?;
    }
    let mut entries = Vec::new();
    for ((mut worker, log), process) in workers.into_iter().zip(0..) {
        worker.line().await?;
        worker.end().await?;
        entries.extend(read(&std::fs::read(log)?)?.map(|entry| (entry, process)));
    }
    merge(entries, end.saturating_sub(start))
}

/// Puts the notes of all processes in the order of time, and counts.
fn merge(mut entries: Vec<(Entry, u64)>, span: u64) -> Result<Round, Failure> {
    entries.sort_unstable();
    let mut changes = 0;
    for pair in entries.windows(2) {
        let [(before, one), (after, other)] = pair else { continue };
        if after.entered < before.left {
            return Err("two tasks were inside at once".into());
        }
        changes += u64::from((before.task, one) != (after.task, other));
    }
    let count = |of: &dyn Fn(&(Entry, u64)) -> bool| entries.iter().filter(|entry| of(entry)).count();
    let per_process: Vec<u64> =
        (0..PROCESSES).map(|process| count(&|entry| entry.1 == process) as u64).collect();
    let mut seen = vec![false; usize::try_from(PROCESSES * TASKS)?];
    for (entry, process) in &entries {
        if let Some(seen) = seen.get_mut(usize::try_from(process * TASKS + entry.task)?) {
            *seen = true;
        }
    }
    let (most, fewest) = (per_process.iter().max(), per_process.iter().min());
    let longest = entries.iter().map(|(entry, _)| entry.entered.saturating_sub(entry.asked)).max();
    Ok(Round {
        changes_per_second: float(changes) / Duration::from_nanos(span).as_secs_f64(),
        share: float(most.copied().unwrap_or_default()) / float(fewest.copied().unwrap_or_default().max(1)),
        longest_wait: millis(longest.unwrap_or_default()),
        starved: float(seen.iter().filter(|seen| !**seen).count() as u64),
    })
}

fn read(log: &[u8]) -> Result<impl Iterator<Item = Entry>, Failure> {
    let (records, []) = log.as_chunks::<32>() else { return Err("a worker's notes are cut off".into()) };
    let entries = records.iter().map(|record| {
        let (words, _) = record.as_chunks::<8>();
        let word = |at: usize| words.get(at).copied().map(u64::from_le_bytes).unwrap_or_default();
        Entry { entered: word(0), asked: word(1), task: word(2), left: word(3) }
    });
    Ok(entries)
}

/// One of the processes: its tasks enter from the start to the end that it is told, then it writes its notes to `log`.
pub(crate) async fn work(url: &str, log: &str) -> Result<(), Failure> {
    let locks = LockManager::connect(url).await?;
    let mut orders = Orders::new();
    say("ready");
    let Some(line) = orders.next().await? else { return Ok(()) };
    let (start, end) = line.split_once(' ').ok_or("two times are needed")?;
    let (start, end): (u64, u64) = (start.parse()?, end.parse()?);
    tokio::time::sleep(Duration::from_nanos(start.saturating_sub(boot_nanos()))).await;
    let notes = Arc::new(Notes::new(Vec::with_capacity(1 << 20)));
    let mut running = JoinSet::new();
    for task in 0..TASKS {
        let (locks, notes) = (locks.clone(), Arc::clone(&notes));
        running.spawn(async move {
            loop {
                let asked = boot_nanos();
                if asked >= end {
                    return Ok::<_, dlock_runtime::Error>(());
                }
                enter(&locks, &notes, task, asked).await?;
            }
        });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    let notes = notes.lock().map_err(|_| "a task panicked")?.clone();
    let words = notes.iter().flat_map(|entry| [entry.entered, entry.asked, entry.task, entry.left]);
    std::fs::write(log, words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())?;
    locks.shutdown(Duration::from_secs(1)).await;
    say("done");
    Ok(())
}
