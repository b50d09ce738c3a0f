//! The file of entries that `enter` writes.

use std::fs;
use std::path::Path;

use crate::library::Result;

/// One hold of a task. In the file: 32 bytes, four little-endian `u64`s in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The start of the body.
    pub entered: u64,
    /// The time of the request.
    pub asked: u64,
    /// The index of the task in its process, from 0.
    pub task: u64,
    /// The end of the body.
    pub left: u64,
}

impl Entry {
    /// Writes a file of entries.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written.
    pub fn write_all(file: &Path, entries: &[Self]) -> Result<()> {
        let words = entries.iter().flat_map(|entry| [entry.entered, entry.asked, entry.task, entry.left]);
        Ok(fs::write(file, words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())?)
    }

    /// Reads a file of entries.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, or ends in the middle of an entry.
    pub fn read_all(file: &Path) -> Result<Vec<Self>> {
        let bytes = fs::read(file)?;
        let (entries, []) = bytes.as_chunks::<32>() else {
            return Err("the file of entries is truncated".into());
        };
        let entry = |bytes: &[u8; 32]| {
            let (words, _) = bytes.as_chunks::<8>();
            let word = |at: usize| words.get(at).copied().map(u64::from_le_bytes).unwrap_or_default();
            Self { entered: word(0), asked: word(1), task: word(2), left: word(3) }
        };
        Ok(entries.iter().map(entry).collect())
    }
}
