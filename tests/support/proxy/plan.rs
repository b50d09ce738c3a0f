//! What a proxy does at present.

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
