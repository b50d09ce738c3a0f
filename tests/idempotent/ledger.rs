//! [`Ledger`], the file that every body and every charge of a worker appends a line to.

use std::collections::BTreeMap;
use std::path::PathBuf;

use dlock_tests::process::Worker;
use tempfile::TempDir;

/// A file with a line for each body, for each charge, and for each poll of a body.
pub(crate) struct Ledger {
    _folder: TempDir,
    file: PathBuf,
    /// The bodies of earlier faults, whose lines are deleted.
    bodies: usize,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        Self { file: folder.path().join("charges"), _folder: folder, bodies: 0 }
    }

    /// Starts a worker that appends to this file.
    pub(crate) async fn worker(&self, program: &str, url: &str) -> Worker {
        let file = self.file.to_str().expect("the path is text").to_owned();
        Worker::spawn(program, &[url.to_owned(), file]).await
    }

    /// Returns the lines of bodies and charges, without those of polls.
    pub(crate) fn charges(&self) -> Vec<String> {
        let lines = std::fs::read_to_string(&self.file).unwrap_or_default();
        lines.lines().filter(|line| !line.starts_with("beat ")).map(str::to_owned).collect()
    }

    /// Returns the number of bodies so far.
    pub(crate) fn bodies(&self) -> usize {
        self.bodies
    }

    /// Checks that no two bodies of `key` ran at one time, except for `excused` late polls of one,
    /// and that only one started if a crash fails. Deletes the lines.
    ///
    /// # Panics
    ///
    /// Panics if not.
    pub(crate) fn assert_no_double_run(&mut self, key: &str, policy: &str, what: &str, excused: usize) {
        let bodies = self.charges().iter().filter(|line| **line == format!("body {key}")).count();
        assert!(bodies >= 1, "{what}, {policy}, {key}: no body ran");
        assert!(bodies == 1 || policy != "fail", "{what}, {key}: {bodies} bodies started");
        let overlap = self.overlap(key, excused);
        assert!(overlap.is_none(), "{what}, {policy}, {key}: {}", overlap.unwrap_or_default());
        self.bodies += bodies;
        std::fs::write(&self.file, "").expect("the file is written");
    }

    /// Returns two attempts of which the first was polled more than `excused` times after the start
    /// of the second.
    fn overlap(&self, key: &str, excused: usize) -> Option<String> {
        let lines = std::fs::read_to_string(&self.file).unwrap_or_default();
        let mut attempts: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for line in lines.lines().filter_map(|line| line.strip_prefix(&format!("beat {key} "))) {
            let (attempt, at) = line.split_once(' ').expect("an attempt and a time");
            let (attempt, at) = (attempt.parse().expect("a number"), at.parse().expect("nanoseconds"));
            attempts.entry(attempt).or_default().push(at);
        }
        let attempts: Vec<_> = attempts.into_iter().collect();
        attempts.windows(2).find_map(|pair| {
            let [(first, polls), (second, polls_of_second)] = pair else { return None };
            let begun = polls_of_second.iter().min()?;
            let late: Vec<_> = polls.iter().filter(|at| *at >= begun).collect();
            (late.len() > excused)
                .then(|| format!("attempt {first} was polled at {late:?}, attempt {second} began at {begun}"))
        })
    }
}

#[test]
fn polls_of_two_attempts_at_one_time_are_found() {
    let ledger = Ledger::new();
    let write = |lines: &str| std::fs::write(&ledger.file, lines).expect("the file is written");

    write("body k\nbeat k 1 10\nbeat k 1 20\nbody k\nbeat k 2 21\nbeat other 1 99\n");
    assert_eq!(ledger.overlap("k", 0), None);
    write("beat k 1 10\nbeat k 2 15\nbeat k 1 20\n");
    assert!(ledger.overlap("k", 0).is_some());
    assert_eq!(ledger.overlap("k", 1), None);
    write("beat k 1 10\nbeat k 2 15\nbeat k 1 20\nbeat k 1 25\n");
    assert!(ledger.overlap("k", 1).is_some());
}
