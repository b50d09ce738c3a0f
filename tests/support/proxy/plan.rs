//! What a proxy does at present.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The settings; a copy is read for each parcel that travels.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plan {
    pub(super) requests: Flow,
    pub(super) replies: Flow,
    pub(super) request_delay: Duration,
    pub(super) reply_delay: Duration,
    pub(super) one_byte: bool,
    /// How often all connections have been reset; a connection ends when it sees this move.
    pub(super) resets: u64,
}

/// What happens to a parcel at the end of its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Flow {
    #[default]
    Pass,
    Hold,
    Swallow,
}

/// The two ways through a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Requests,
    Replies,
}

impl Plan {
    pub(super) fn flow(&self, way: Way) -> Flow {
        match way {
            Way::Requests => self.requests,
            Way::Replies => self.replies,
        }
    }

    pub(super) fn delay(&self, way: Way) -> Duration {
        match way {
            Way::Requests => self.request_delay,
            Way::Replies => self.reply_delay,
        }
    }
}

/// A hold that begins when some more requests have come.
#[derive(Debug, Default)]
pub(super) struct HoldLater(Mutex<Option<(Way, usize)>>);

impl HoldLater {
    pub(super) fn set(&self, way: Way, after: usize) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((way, after));
    }

    pub(super) fn cancel(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Counts a request that has come, and returns which way is to be held from it on.
    pub(super) fn count(&self) -> Option<Way> {
        let mut hold = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match hold.as_mut() {
            Some((way, 0)) => {
                let way = *way;
                *hold = None;
                Some(way)
            }
            Some((_, left)) => {
                *left -= 1;
                None
            }
            None => None,
        }
    }
}
