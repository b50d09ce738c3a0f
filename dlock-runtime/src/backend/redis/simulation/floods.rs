//! Servers that send without end: the bytes, the connections that receive them, and when a client
//! must have closed such a connection.

use std::time::Duration;

use crate::backend::redis::simulation::model::TICK;
use crate::backend::redis::simulation::parameters::Parameters;
use crate::protocol::deadline::BootInstant;

/// Data that a server sends without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flood {
    /// A string whose length is announced as 512 MiB.
    Body,
    /// A line that does not end.
    Line,
    /// A list of a billion values.
    Values,
    /// A list of a thousand strings, which together are too long.
    Strings,
    /// Lists in lists.
    Nesting,
    /// Bytes that are not the protocol of Redis.
    Garbage,
    /// Messages on the channel of a client, faster than it handles them.
    Burst,
    /// Messages on the channel of a client, at a rate that it can handle.
    Messages,
    /// Invalidations of a lock's key, at a rate that the client can handle.
    Invalidations,
}

/// The connections that receive a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flooded {
    /// All connections, including those that are opened during the flood.
    All,
    Commands,
    Subscriptions,
    Tracking,
}

/// One flood over one connection.
#[derive(Clone, Debug)]
pub(super) struct FloodRecord {
    pub(super) flood: Flood,
    /// The host name of the client.
    pub(super) client: String,
    /// When the connection was opened.
    pub(super) opened: BootInstant,
    /// Whether the client had sent a command on a lock over it.
    pub(super) is_used: bool,
    pub(super) since: BootInstant,
    pub(super) until: BootInstant,
    /// Whether the client closed the connection.
    pub(super) is_closed: bool,
}

impl Flood {
    const ALL: [Self; 9] = [
        Self::Body,
        Self::Line,
        Self::Values,
        Self::Strings,
        Self::Nesting,
        Self::Garbage,
        Self::Burst,
        Self::Messages,
        Self::Invalidations,
    ];

    /// The names of all floods, each counted once per flooded connection.
    pub(super) const NAMES: [&str; 9] = [
        "flood: a string without end",
        "flood: a line without end",
        "flood: a list without end",
        "flood: a long list of strings",
        "flood: nested lists",
        "flood: other bytes",
        "flood: messages faster than they are handled",
        "flood: messages",
        "flood: invalidations",
    ];

    /// The reasons with which clients closed flooded connections. Each must occur.
    pub(super) const REASONS: [&str; 5] = [
        "sent a reply of more than 64 KiB",
        "sent a reply of more than 1024 values",
        "sent a reply with more than 32 nested lists",
        "sent bytes that are not the Redis protocol",
        "sent messages faster than they are handled",
    ];

    /// The number of floods that a client closed in time, with its connection undisturbed.
    pub(super) const CLOSED: &str = "a flooded connection was closed in time";

    /// Returns a random flood, and the connections that receive it.
    pub(super) fn draw(parameters: &mut Parameters) -> (Self, Flooded) {
        let mut flood = parameters.one_of(&Self::ALL);
        if flood == Self::Burst && parameters.chance(75) {
            flood = Self::Messages; // parsing a burst takes long
        }
        let flooded = match flood {
            Self::Burst | Self::Messages => Flooded::Subscriptions,
            Self::Invalidations => Flooded::Tracking,
            _ => parameters.one_of(&[
                Flooded::All,
                Flooded::Commands,
                Flooded::Subscriptions,
                Flooded::Tracking,
            ]),
        };
        (flood, flooded)
    }

    pub(super) fn name(self) -> &'static str {
        let at = Self::ALL.iter().position(|flood| *flood == self).unwrap_or_default();
        Self::NAMES[at]
    }

    /// Returns `true` if a client must close the connection.
    pub(super) fn is_violation(self) -> bool {
        !matches!(self, Self::Messages | Self::Invalidations)
    }

    /// Returns the first bytes, and the bytes that are repeated. `channel` is one of the client's.
    pub(super) fn bytes(self, channel: Option<&str>) -> (Vec<u8>, Vec<u8>) {
        let channel = channel.unwrap_or("dlock:grant:x");
        let message = format!("*3\r\n$7\r\nmessage\r\n${}\r\n{channel}\r\n$6\r\nx:y:z!\r\n", channel.len());
        let (first, again) = match self {
            Self::Body => ("$536870911\r\n", "a".repeat(CHUNK)),
            Self::Line => ("+", "a".repeat(CHUNK)),
            Self::Values => ("*1000000000\r\n", ":1\r\n".repeat(CHUNK / 4)),
            Self::Strings => ("*1000\r\n", format!("$64\r\n{}\r\n", "a".repeat(64)).repeat(CHUNK / 70)),
            Self::Nesting => ("", "*1\r\n".repeat(CHUNK / 4)),
            Self::Garbage => ("", "x".repeat(CHUNK)),
            Self::Burst => return (message.repeat(BURST).into_bytes(), Vec::new()),
            Self::Messages => ("", message.repeat(32)),
            Self::Invalidations => ("", ">2\r\n$10\r\ninvalidate\r\n*1\r\n$8\r\ndlock:k0\r\n".repeat(32)),
        };
        (first.as_bytes().to_vec(), again.into_bytes())
    }
}

impl FloodRecord {
    /// Returns whether the client closed the connection within `latency` each way, or `None` if the
    /// flood was too short to tell, or the server ended the connection.
    pub(super) fn is_closed_in_time(&self, latency: Duration) -> Option<bool> {
        let limit = Self::limit(latency);
        if !self.flood.is_violation() {
            return None;
        }
        match self.until.since(self.since) {
            lasted if lasted > limit => Some(false),
            _ if self.is_closed => Some(true),
            _ => None,
        }
    }

    /// The flood reaches the client, and the end of the connection reaches the server. Messages are
    /// exchanged between steps only. A line is too long after 16 chunks.
    fn limit(latency: Duration) -> Duration {
        latency * 2 + TICK * 6
    }
}

/// The size of one write.
const CHUNK: usize = 4 << 10;

/// The number of messages in a burst: 12 MiB of memory.
const BURST: usize = 40_000;

/// The time between two writes.
pub(super) const FLOOD_INTERVAL: Duration = Duration::from_millis(1);
