//! Tasks of one or more processes want one key: what their notes say of it.
//!
//! Each entry has the times at which it was asked for, entered and left, on a clock that all processes share. The notes are merged: an
//! entry by another task than the one before is a hand-over, one by the same task is none, and an entry that begins before the last
//! has ended is two holders at once.

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
    /// In each of them.
    tasks: u64,
    /// Where the notes are written.
    folder: tempfile::TempDir,
}

/// What they are to do.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) key: String,
    pub(crate) body: Duration,
    pub(crate) span: Duration,
}

/// What they did, from the first second to the last.
#[derive(Debug)]
pub(crate) struct Contest {
    pub(crate) changes: u64,
    pub(crate) span: Duration,
    /// For how long somebody was inside.
    pub(crate) inside: Duration,
    /// How often each task was inside, those of a process next to each other.
    pub(crate) shares: Vec<u64>,
    pub(crate) processes: usize,
    /// From asking to being inside, in milliseconds and in order.
    pub(crate) waits: Vec<f64>,
    /// When the last was inside, after the end had come, too.
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

    /// Has all of them want the key from a moment from now to the end of the span, and waits until they are done.
    pub(crate) async fn contend(&mut self, order: &Order) -> Result<Contest, Failure> {
        let (start, end) = self.begin(order).await?;
        self.finish(start, end).await
    }

    /// Gives the order, and returns from when to when it goes.
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

    /// Waits until all are done, and reads their notes.
    pub(crate) async fn finish(&mut self, start: u64, end: u64) -> Result<Contest, Failure> {
        let mut notes = Vec::new();
        for (at, process) in self.processes.iter_mut().enumerate() {
            process.hear::<1>("entered").await?;
            notes.push(Entry::read_all(&self.folder.path().join(at.to_string()))?);
        }
        merge(notes, self.tasks, start, end)
    }

    /// Has each of them take and release locks that nobody else wants, a few at a time.
    pub(crate) async fn warm_up(&mut self, at_once: u64) -> Result<(), Failure> {
        for process in &mut self.processes {
            for _ in 0..WARM {
                let [] = process.ask(format!("hold {at_once} 30000"), "holding").await?;
                let [] = process.ask("let go", "gone").await?;
            }
        }
        Ok(())
    }

    /// Has each of them hold locks from now on.
    pub(crate) async fn hold(&mut self, count: u64, lease_millis: u64) -> Result<(), Failure> {
        for process in &mut self.processes {
            let [] = process.ask(format!("hold {count} {lease_millis}"), "holding").await?;
        }
        Ok(())
    }

    /// Returns the bytes that are resident, of all of them.
    pub(crate) fn resident_bytes(&self) -> Result<u64, Failure> {
        self.processes.iter().map(Process::resident_bytes).sum()
    }
}

impl Contest {
    pub(crate) fn changes_per_second(&self) -> f64 {
        float(self.changes) / self.span.as_secs_f64()
    }

    /// Returns the part of the time in which somebody was inside: a body that sleeps for a millisecond takes one in one language and two
    /// in another, so that the number of bodies says nothing of the lock.
    pub(crate) fn in_use(&self) -> f64 {
        self.inside.as_secs_f64() / self.span.as_secs_f64()
    }

    /// Returns the entries of the busiest task to those of the one that had the fewest.
    pub(crate) fn share_of_tasks(&self) -> f64 {
        uneven(&self.shares)
    }

    /// Returns the same of processes.
    pub(crate) fn share_of_processes(&self) -> f64 {
        let tasks = self.shares.len() / self.processes.max(1);
        let processes = self.shares.chunks(tasks.max(1)).map(|tasks| tasks.iter().sum());
        uneven(&processes.collect::<Vec<u64>>())
    }

    /// Returns how many tasks were never inside.
    pub(crate) fn starved(&self) -> f64 {
        float(self.shares.iter().filter(|share| **share == 0).count() as u64)
    }

    /// Returns how long `percent` of the entries waited at most, in milliseconds.
    pub(crate) fn wait(&self, percent: f64) -> f64 {
        percentile(&self.waits, percent)
    }
}

fn uneven(shares: &[u64]) -> f64 {
    let (most, fewest) = (shares.iter().max(), shares.iter().min());
    float(most.copied().unwrap_or_default()) / float(fewest.copied().unwrap_or_default().max(1))
}

/// Puts the notes of all processes in the order of time, and counts what lies between the start and the end.
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
            return Err("two tasks were inside at once".into());
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

/// How long before the start the orders are given: all processes must have read them by then.
const LEAD: Duration = Duration::from_millis(30);

/// So often locks are taken and released before it is looked at memory.
const WARM: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(task: u64, asked: u64, entered: u64, left: u64) -> Entry {
        Entry { entered, asked, task, left }
    }

    #[test]
    fn an_entry_of_the_same_task_is_no_hand_over_and_one_of_another_process_is() {
        let one = vec![entry(0, 0, 10, 12), entry(0, 13, 20, 22), entry(1, 0, 30, 32)];
        let other = vec![entry(1, 0, 40, 42)];

        let contest = merge(vec![one, other], 2, 0, 1_000).expect("nobody broke in");

        assert_eq!(contest.changes, 2);
        assert_eq!(contest.shares, [2, 1, 0, 1]);
        assert_eq!(format!("{} {}", contest.share_of_processes(), contest.starved()), "3 1");
        assert_eq!(contest.last, 40);
        assert_eq!(format!("{}", contest.in_use()), "0.008");
    }

    #[test]
    fn two_inside_at_once_are_an_error_whoever_they_are() {
        let within = merge(vec![vec![entry(0, 0, 10, 30), entry(1, 0, 29, 40)]], 2, 0, 1_000);
        let across = merge(vec![vec![entry(0, 0, 10, 30)], vec![entry(0, 0, 29, 40)]], 1, 0, 1_000);

        assert!(within.is_err() && across.is_err(), "{within:?} {across:?}");
    }

    #[test]
    fn what_is_entered_after_the_end_is_no_hand_over_and_its_wait_counts() {
        let notes = vec![entry(0, 0, 10, 12), entry(1, 0, 1_000, 1_001), entry(2, 0, 9_000_000, 9_000_001)];

        let contest = merge(vec![notes], 3, 0, 1_000).expect("nobody broke in");

        assert_eq!((contest.changes, contest.last), (0, 9_000_000));
        assert_eq!(format!("{} {}", contest.starved(), contest.wait(100.0)), "2 9");
    }
}
