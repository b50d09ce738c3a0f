//! Appends events to a file, one line at a time.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use super::event::{Event, What};
use crate::clock::Moment;

/// An event file, shared by all tasks of a process.
#[derive(Debug)]
pub struct Writer {
    file: File,
    process: u32,
}

impl Writer {
    /// Opens or creates the file for this process.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file, process: std::process::id() })
    }

    /// Records an event of this process at the current time.
    pub fn note(&self, task: u32, key: &str, what: What) {
        self.note_at(Moment::now(), task, key, what);
    }

    /// Records an event of this process at an earlier time.
    pub fn note_at(&self, at: Moment, task: u32, key: &str, what: What) {
        self.append(&Event { at, process: self.process, task, key: key.to_owned(), what });
    }

    /// Records an event of another process at the current time.
    pub fn note_of(&self, process: u32, what: What) {
        self.append(&Event { at: Moment::now(), process, task: 0, key: String::new(), what });
    }

    /// Appends one line.
    ///
    /// # Panics
    ///
    /// Panics if the file cannot be written: without its history, a run proves nothing.
    pub fn append(&self, event: &Event) {
        let mut line = serde_json::to_vec(event).expect("an event has a JSON");
        line.push(b'\n');
        // Each line is one system call. Thus lines of several threads do not mix, and a killed
        // process loses no buffer.
        (&self.file).write_all(&line).expect("the history can be written");
    }
}
