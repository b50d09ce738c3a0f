//! Appends events to a file, a whole line at a time.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use super::event::{Event, What};
use crate::clock::Moment;

/// A file of events; shared by all tasks of a process.
#[derive(Debug)]
pub struct Writer {
    file: File,
    process: u32,
}

impl Writer {
    /// Opens the file of this process, or makes it.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file, process: std::process::id() })
    }

    /// Notes what happens now in this process.
    pub fn note(&self, task: u32, key: &str, what: What) {
        self.note_at(Moment::now(), task, key, what);
    }

    /// Notes what happened at a moment before.
    pub fn note_at(&self, at: Moment, task: u32, key: &str, what: What) {
        self.append(&Event { at, process: self.process, task, key: key.to_owned(), what });
    }

    /// Notes what happens now to another process.
    pub fn note_of(&self, process: u32, what: What) {
        self.append(&Event { at: Moment::now(), process, task: 0, key: String::new(), what });
    }

    /// Appends one line.
    ///
    /// # Panics
    ///
    /// Panics if the file takes no more: without its history a run proves nothing.
    pub fn append(&self, event: &Event) {
        let mut line = serde_json::to_vec(event).expect("an event has a JSON");
        line.push(b'\n');
        // One call of the system for the whole line: lines of several threads do not mix in a file that is appended to, and no
        // buffer is lost with a process that is killed.
        (&self.file).write_all(&line).expect("the history can be written");
    }
}
