//! How locks stand in a server: which scripts do what to them, and which channel tells that one was let go of.
//!
//! | layout | what stands there | who waits |
//! |---|---|---|
//! | native | a string: the holder, then those who wait | queues in the value; a release hands over to the first |
//! | plain | a string: the holder | queues nowhere; a release rings the key's bell, and whoever hears it tries again |
//! | Redisson's | a hash: the holder, see `redisson` | as in the plain layout, by Redisson's own channels |
//!
//! A layout that rings answers an enqueue by a look, [`Reply::NotQueued`], and a yield by letting go where somebody listens.
//!
//! | file | owns |
//! |---|---|
//! | `codec` | the words of locks that are strings, and how answers read |
//! | `scripts` | the Lua of each layout |
//! | `redisson` | the words of Redisson's layout |
//!
//! Not here: the words of a layout of strings (`codec`), how bells are heard (`bells`).

pub(super) mod codec;
pub(super) mod redisson;
pub(super) mod scripts;

use std::time::Duration;

use redis::{Pipeline, Value};

use crate::backend::Request;
use crate::backend::redis::encoding::codec::Redacted;
use crate::backend::redis::encoding::scripts::{Loaded, NATIVE, PLAIN, REDISSON, Script};
use crate::backend::redis::namespaces::Namespaces;
use crate::backend::redis::topology::discovery::Discovery;
use crate::config::Settings;
use crate::layout::Publish;
use crate::protocol::command::{Command, EnqueueMode, Reply};

/// How locks stand in a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockEncoding {
    /// The default: the fastest there is where one server has the key.
    Native,
    /// Where several servers vote: their queues would differ in order, and a grant would split.
    Plain,
    /// Where some of the clients are Java.
    Redisson(Publish),
}

impl LockEncoding {
    /// Returns the layout that is chosen, for a server that is `whereabouts`.
    pub(crate) fn of(settings: &Settings, whereabouts: &Discovery) -> Self {
        match (settings.layout, settings.publish, whereabouts) {
            (.., Discovery::Quorum(..)) => Self::Plain,
            (crate::Layout::Native, ..) => Self::Native,
            (crate::Layout::Redisson, publish, Discovery::Master(_)) => Self::Redisson(publish),
            // Outside of clusters Redisson by itself knows of no shards.
            (crate::Layout::Redisson, Publish::Auto, _) => Self::Redisson(Publish::Publish),
            (crate::Layout::Redisson, publish, _) => Self::Redisson(publish),
        }
    }

    /// Returns by which command bells ring.
    pub(crate) fn publish(self) -> Publish {
        match self {
            Self::Native | Self::Plain => Publish::Publish,
            Self::Redisson(publish) => publish,
        }
    }

    /// Returns the text of each script, by its place in [`Script`].
    pub(crate) const fn sources(self) -> &'static [&'static str; Script::COUNT] {
        match self {
            Self::Native => &NATIVE,
            Self::Plain => &PLAIN,
            Self::Redisson(_) => &REDISSON,
        }
    }

    /// Returns the channel that rings when the lock of `key` is let go of; `None` where those who wait are told in another way.
    pub(crate) fn bell(self, namespaces: &Namespaces, key: &str) -> Option<String> {
        match self {
            Self::Native => None,
            Self::Plain => Some(format!("{}{key}", namespaces.of_key(key).releases())),
            Self::Redisson(_) => Some(redisson::channel(key)),
        }
    }

    /// Returns how long those who hear a bell of the chosen layout may hold back.
    pub(crate) fn wakeup_jitter(chosen: crate::Layout) -> Duration {
        match chosen {
            crate::Layout::Native => Duration::ZERO,
            crate::Layout::Redisson => redisson::HOLD_BACK,
        }
    }

    /// Returns whether the bell of its key must be heard before a command is sent: a lock that is let go of between a look and its
    /// answer is looked at again.
    pub(crate) fn listens_first(self, command: Command) -> bool {
        let waits =
            matches!(command, Command::Enqueue { mode: EnqueueMode::Join | EnqueueMode::Recheck, .. });
        waits && self != Self::Native
    }

    /// Adds a request to a pipeline; with `loaded` by its script's name, else by its text. `besides` is what its script is to do
    /// besides: `write` in any case where the answer is "ours", or `read` the key last.
    pub(crate) fn encode(
        self,
        request: &Request,
        namespaces: &Namespaces,
        grant_lease: Duration,
        loaded: Option<&Loaded>,
        besides: Option<&str>,
        pipeline: &mut Pipeline,
    ) {
        match self {
            Self::Native | Self::Plain => {
                codec::encode(self, request, namespaces, grant_lease, loaded, besides, pipeline);
            }
            Self::Redisson(_) => redisson::encode(self, request, loaded, besides, pipeline),
        }
    }

    /// Reads an answer.
    pub(crate) fn decode(self, request: &Request, value: &Value, server: &Redacted) -> Reply {
        match self {
            Self::Native | Self::Plain => codec::decode(request, value, server),
            Self::Redisson(_) => redisson::decode(request, value, server),
        }
    }
}

/// Within this the servers of a quorum that is near have all let go, and so do those who hear of it not all try in the same moment.
pub(crate) const HOLD_BACK: Duration = Duration::from_millis(4);

/// `ProtocolConfig::has_queue` goes by it: where nobody queues, who hears of a release holds back.
const _: () = assert!(!HOLD_BACK.is_zero() && !redisson::HOLD_BACK.is_zero());
