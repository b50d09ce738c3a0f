//! The notes of an `enter`: who was inside when, as they stand in the file.

use std::fs;
use std::path::Path;

use crate::library::Result;

/// One task's time inside. In a file: 32 bytes, four little-endian `u64`s in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// When the body began.
    pub entered: u64,
    /// When the lock was asked for.
    pub asked: u64,
    /// Which task of its process it was, from 0.
    pub task: u64,
    /// When the body ended.
    pub left: u64,
}

impl Entry {
    /// Writes a file of entries.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write_all(file: &Path, entries: &[Self]) -> Result<()> {
        let words = entries.iter().flat_map(|entry| [entry.entered, entry.asked, entry.task, entry.left]);
        Ok(fs::write(file, words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())?)
    }

    /// Reads a file of entries.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or ends in the middle of an entry.
    pub fn read_all(file: &Path) -> Result<Vec<Self>> {
        let bytes = fs::read(file)?;
        let (entries, []) = bytes.as_chunks::<32>() else { return Err("the notes are cut off".into()) };
        let entry = |bytes: &[u8; 32]| {
            let (words, _) = bytes.as_chunks::<8>();
            let word = |at: usize| words.get(at).copied().map(u64::from_le_bytes).unwrap_or_default();
            Self { entered: word(0), asked: word(1), task: word(2), left: word(3) }
        };
        Ok(entries.iter().map(entry).collect())
    }
}
