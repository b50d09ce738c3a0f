//! Which requests have come, and when: what an operation costs on the wire.
//!
//! Not here: what the server runs because of them (`RedisServer::commands`).

use std::sync::{Mutex, PoisonError};

use crate::clock::Moment;

/// One request that came by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// When it came, before any delay.
    pub at: Moment,
    /// The command's name, such as `EVALSHA`.
    pub name: String,
}

/// The requests that came since somebody wanted to know.
#[derive(Debug, Default)]
pub(super) struct Notes(Mutex<Option<Vec<Sent>>>);

impl Notes {
    pub(super) fn begin(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
    }

    pub(super) fn note(&self, name: &[u8]) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(notes) = notes.as_mut().filter(|notes| notes.len() < MOST) {
            notes.push(Sent { at: Moment::now(), name: String::from_utf8_lossy(name).to_uppercase() });
        }
    }

    pub(super) fn all(&self) -> Vec<Sent> {
        let notes = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default();
        assert!(notes.len() < MOST, "more came than are noted");
        notes
    }
}

const MOST: usize = 100_000;
