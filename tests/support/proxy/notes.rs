//! Records the requests of clients and their times: the cost of an operation on the wire.
//!
//! See also `RedisServer::commands` for the commands that the server runs because of them.

use std::sync::{Mutex, PoisonError};

use crate::clock::Moment;

/// A request that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The time of arrival, before any delay.
    pub at: Moment,
    /// The name of the command, such as `EVALSHA`.
    pub name: String,
}

/// The requests since the recording was started; `None` if it was not.
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
        assert!(notes.len() < MOST, "more requests than can be recorded");
        notes
    }
}

const MOST: usize = 100_000;
