//! The current settings of a proxy.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The settings. Each parcel is handled by the settings at that time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plan {
    pub(super) requests: Flow,
    pub(super) replies: Flow,
    pub(super) request_delay: Duration,
    pub(super) reply_delay: Duration,
    pub(super) one_byte: bool,
    /// The texts that are sent instead of replies: the first once, then the second without end.
    pub(super) flood: Option<(&'static str, &'static str)>,
    /// The number of resets of all connections. A connection ends when it observes an increase.
    pub(super) resets: u64,
}

/// The handling of a parcel after its delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Flow {
    #[default]
    Pass,
    Hold,
    Swallow,
}

/// The two directions through a proxy.
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

/// A hold that begins after a number of further requests.
#[derive(Debug, Default)]
pub(super) struct HoldLater(Mutex<Option<(Way, usize)>>);

impl HoldLater {
    pub(super) fn set(&self, way: Way, after: usize) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((way, after));
    }

    pub(super) fn cancel(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Counts a request, and returns the direction that is held from this request on, if any.
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
