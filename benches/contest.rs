//! Tasks of one or more processes contend for one key.
//!
//! Each entry has the times of request, entry, and exit, on a clock that all processes share. The
//! entries of all processes are merged. An entry of a different task than the one before is a
//! hand-off; an entry of the same task is not. An entry that begins before the previous one has
//! ended means two holders at a time, an error.

use std::time::Duration;

use dlock_bench_peer::{Entry, usage::now};

use crate::Failure;
use crate::contenders::Contender;
use crate::figures::{float, millis, nanos, percentile};
use crate::process::Process;
use crate::server::Server;

/// Processes of one contender.
#[derive(Debug)]
pub(crate) struct Crowd {
    processes: Vec<Process>,
    /// The number of tasks in each process.
    tasks: u64,
    /// The folder of the files with entries.
    folder: tempfile::TempDir,
}

/// The work of a crowd.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) key: String,
    pub(crate) body: Duration,
    pub(crate) span: Duration,
}

/// The merged entries of a crowd.
#[derive(Debug)]
pub(crate) struct Contest {
    pub(crate) changes: u64,
    pub(crate) span: Duration,
    /// The time during which the lock was held.
    pub(crate) inside: Duration,
    /// The number of holds of each task; tasks of one process are adjacent.
    pub(crate) shares: Vec<u64>,
    pub(crate) processes: usize,
    /// The times from request to entry, in milliseconds, sorted.
    pub(crate) waits: Vec<f64>,
    /// The time of the last entry, also after the end of the span.
    pub(crate) last: u64,
}

impl Crowd {
    pub(crate) async fn start(
        contender: &Contender,
        server: &Server,
        processes: u64,
        tasks: u64,
    ) -> Result<Self, Failure> {
        let mut crowd = Self { processes: Vec::new(), tasks, folder: tempfile::tempdir()? };
        for _ in 0..processes {
            crowd.processes.push(Process::start(contender, &[server]).await?);
        }
        Ok(crowd)
    }

    /// Lets all tasks contend for the key until the end of the span, and waits for them.
    ///
    /// The span starts after [`LEAD`].
    pub(crate) async fn contend(&mut self, order: &Order) -> Result<Contest, Failure> {
        let (start, end) = self.begin(order).await?;
        self.finish(start, end).await
    }

    /// Sends the order, and returns its start and end.
    pub(crate) async fn begin(&mut self, order: &Order) -> Result<(u64, u64), Failure> {
        let Order { key, body, span } = order;
        let tasks = self.tasks;
        let start = now() + nanos(LEAD);
        let end = start + nanos(*span);
        let body = body.as_micros();
        for (at, process) in self.processes.iter_mut().enumerate() {
            let file = self.folder.path().join(at.to_string());
            process.tell(format!("enter {key} {tasks} {body} {start} {end} {}", file.display())).await?;
        }
        Ok((start, end))
    }

    /// Waits for all processes, and reads their entries.
    pub(crate) async fn finish(&mut self, start: u64, end: u64) -> Result<Contest, Failure> {
        let mut notes = Vec::new();
        for (at, process) in self.processes.iter_mut().enumerate() {
            process.hear::<1>("entered").await?;
            notes.push(Entry::read_all(&self.folder.path().join(at.to_string()))?);
        }
        merge(notes, self.tasks, start, end)
    }

    /// Lets each process acquire and release uncontended locks, `at_once` at a time.
    pub(crate) async fn warm_up(&mut self, at_once: u64) -> Result<(), Failure> {
        for process in &mut self.processes {
            for _ in 0..WARM {
                let [] = process.ask(format!("hold {at_once} 30000"), "holding").await?;
                let [] = process.ask("release", "released").await?;
            }
        }
        Ok(())
    }

    /// Lets each process hold locks from now on.
    pub(crate) async fn hold(&mut self, count: u64, lease_millis: u64) -> Result<(), Failure> {
        for process in &mut self.processes {
            let [] = process.ask(format!("hold {count} {lease_millis}"), "holding").await?;
        }
        Ok(())
    }

    /// Returns the resident bytes of all processes.
    pub(crate) fn resident_bytes(&self) -> Result<u64, Failure> {
        self.processes.iter().map(Process::resident_bytes).sum()
    }
}

impl Contest {
    pub(crate) fn changes_per_second(&self) -> f64 {
        float(self.changes) / self.span.as_secs_f64()
    }

    /// Returns the fraction of the time during which the lock was held.
    ///
    /// The number of bodies is not comparable: a body that sleeps for 1 ms takes 1 ms in one
    /// language and 2 ms in another.
    pub(crate) fn in_use(&self) -> f64 {
        self.inside.as_secs_f64() / self.span.as_secs_f64()
    }

    /// Returns the most entries of a task divided by the fewest.
    pub(crate) fn share_of_tasks(&self) -> f64 {
        uneven(&self.shares)
    }

    /// Returns the most entries of a process divided by the fewest.
    pub(crate) fn share_of_processes(&self) -> f64 {
        let tasks = self.shares.len() / self.processes.max(1);
        let processes = self.shares.chunks(tasks.max(1)).map(|tasks| tasks.iter().sum());
        uneven(&processes.collect::<Vec<u64>>())
    }

    /// Returns the number of tasks without an entry.
    pub(crate) fn starved(&self) -> f64 {
        float(self.shares.iter().filter(|share| **share == 0).count() as u64)
    }

    /// Returns a percentile of the waits, in milliseconds.
    pub(crate) fn wait(&self, percent: f64) -> f64 {
        percentile(&self.waits, percent)
    }
}

fn uneven(shares: &[u64]) -> f64 {
    let (most, fewest) = (shares.iter().max(), shares.iter().min());
    float(most.copied().unwrap_or_default()) / float(fewest.copied().unwrap_or_default().max(1))
}

/// Merges the entries of all processes by time, and counts those between `start` and `end`.
fn merge(notes: Vec<Vec<Entry>>, tasks: u64, start: u64, end: u64) -> Result<Contest, Failure> {
    let processes = notes.len();
    let mut entries: Vec<(Entry, u64)> = Vec::with_capacity(notes.iter().map(Vec::len).sum());
    for (process, notes) in (0..).zip(notes) {
        entries.extend(notes.into_iter().map(|entry| (entry, process * tasks + entry.task)));
    }
    entries.sort_unstable();
    let mut contest = Contest {
        changes: 0,
        span: Duration::from_nanos(end.saturating_sub(start)),
        inside: Duration::ZERO,
        shares: vec![0; processes * usize::try_from(tasks)?],
        processes,
        waits: Vec::with_capacity(entries.len()),
        last: entries.last().map_or(start, |(entry, _)| entry.entered),
    };
    let mut before: Option<&(Entry, u64)> = None;
    for this in &entries {
        let (entry, task) = this;
        if let Some((last, _)) = before
            && entry.entered < last.left
        {
            return Err("two tasks held the lock at a time".into());
        }
        contest.waits.push(millis(entry.entered.saturating_sub(entry.asked)));
        if entry.entered < end {
            contest.inside += Duration::from_nanos(entry.left.saturating_sub(entry.entered));
            contest.changes += u64::from(before.is_some_and(|(_, other)| other != task));
            let share = contest.shares.get_mut(usize::try_from(*task)?).ok_or("no such task")?;
            *share += 1;
        }
        before = Some(this);
    }
    contest.waits.sort_unstable_by(f64::total_cmp);
    Ok(contest)
}

/// The time between order and start, in which all processes must read the order.
const LEAD: Duration = Duration::from_millis(30);

/// The number of warm-up rounds before memory is measured.
const WARM: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(task: u64, asked: u64, entered: u64, left: u64) -> Entry {
        Entry { entered, asked, task, left }
    }

    #[test]
    fn only_an_entry_of_another_task_is_a_hand_off() {
        let one = vec![entry(0, 0, 10, 12), entry(0, 13, 20, 22), entry(1, 0, 30, 32)];
        let other = vec![entry(1, 0, 40, 42)];

        let contest = merge(vec![one, other], 2, 0, 1_000).expect("no two holders overlap");

        assert_eq!(contest.changes, 2);
        assert_eq!(contest.shares, [2, 1, 0, 1]);
        assert_eq!(format!("{} {}", contest.share_of_processes(), contest.starved()), "3 1");
        assert_eq!(contest.last, 40);
        assert_eq!(format!("{}", contest.in_use()), "0.008");
    }

    #[test]
    fn overlapping_entries_are_an_error() {
        let within = merge(vec![vec![entry(0, 0, 10, 30), entry(1, 0, 29, 40)]], 2, 0, 1_000);
        let across = merge(vec![vec![entry(0, 0, 10, 30)], vec![entry(0, 0, 29, 40)]], 1, 0, 1_000);

        assert!(within.is_err() && across.is_err(), "{within:?} {across:?}");
    }

    #[test]
    fn a_late_entry_counts_as_a_wait_but_not_as_a_hand_off() {
        let notes = vec![entry(0, 0, 10, 12), entry(1, 0, 1_000, 1_001), entry(2, 0, 9_000_000, 9_000_001)];

        let contest = merge(vec![notes], 3, 0, 1_000).expect("no two holders overlap");

        assert_eq!((contest.changes, contest.last), (0, 9_000_000));
        assert_eq!(format!("{} {}", contest.starved(), contest.wait(100.0)), "2 9");
    }
}
