//! Reads the event files of all processes and merges them by timestamp.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::event::{Event, What};
use crate::clock::Moment;

/// The events of all processes, in order of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    events: Vec<Event>,
}

impl History {
    /// Merges events. Events with equal timestamps keep their order.
    #[must_use]
    pub fn of(mut events: Vec<Event>) -> Self {
        events.sort_by_key(|event| event.at);
        Self { events }
    }

    /// Reads every `.jsonl` file of a folder.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read, or if a line is not an event. An incomplete last line is
    /// ignored.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let mut events = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "jsonl") {
                events.extend(parse(&fs::read(&path)?)?);
            }
        }
        Ok(Self::of(events))
    }

    /// Returns the events.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns the timestamp of the last event.
    #[must_use]
    pub fn end(&self) -> Moment {
        self.events.last().map(|event| event.at).unwrap_or_default()
    }

    /// Counts the events of one kind.
    #[must_use]
    pub fn count(&self, is_meant: impl Fn(&What) -> bool) -> usize {
        self.events.iter().filter(|event| is_meant(&event.what)).count()
    }

    /// Writes all events into one file.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = io::BufWriter::new(fs::File::create(path)?);
        for event in &self.events {
            serde_json::to_writer(&mut file, event)?;
            file.write_all(b"\n")?;
        }
        file.flush()
    }
}

/// Reads the lines of one file.
fn parse(bytes: &[u8]) -> io::Result<Vec<Event>> {
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let lines = bytes[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| Ok(serde_json::from_slice(line)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Answered, Writer};

    #[test]
    fn events_of_several_threads_are_read_in_order_of_time() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let files = ["a.jsonl", "b.jsonl"].map(|name| Writer::open(&folder.path().join(name)));
        let files = files.map(|file| file.expect("the file can be made"));
        std::thread::scope(|scope| {
            for (task, file) in (0..).zip([&files[0], &files[0], &files[1]]) {
                scope.spawn(move || (0..100).for_each(|call| file.note(task, "a", What::Exit { call })));
            }
        });

        let history = History::read(folder.path()).expect("it can be read");

        assert_eq!(history.events().len(), 300);
        assert!(history.events().is_sorted_by_key(|event| event.at));
    }

    #[test]
    fn an_event_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let file = Writer::open(&folder.path().join("a.jsonl")).expect("the file can be made");
        let what =
            What::Outcome { call: 7, answer: Answered::Contended, text: "lock `a\nb` is held".to_owned() };
        file.note_at(Moment::from_nanos(u64::MAX >> 1), 3, "a\nb", what.clone());

        let history = History::read(folder.path()).expect("it can be read");

        assert_eq!(history.events()[0].what, what);
        assert_eq!(history.events()[0].at.nanos(), u64::MAX >> 1);
    }

    #[test]
    fn an_incomplete_line_is_ignored_only_at_the_end() {
        let line = r#"{"at":1,"process":2,"key":"a","event":"exit","call":3}"#;

        let torn = parse(format!("{line}\n{}", &line[..20]).as_bytes());
        let broken = parse(format!("{}\n{line}\n", &line[..20]).as_bytes());

        assert_eq!(torn.expect("the end may be torn").len(), 1);
        assert!(broken.is_err(), "a damaged line in the middle was accepted");
    }
}
