//! How locks are stored in a server: the scripts, and the channels that announce a release.
//!
//! | encoding | value | waiters |
//! |---|---|---|
//! | native | a string: the holder, then the waiters | queue in the value; a release hands the lock to the first |
//! | plain | a string: the holder | do not queue; a release publishes on the key's release channel, and subscribers try again |
//! | Redisson | a hash: the holder, see `redisson` | as with plain, on Redisson's own channels |
//!
//! With plain and Redisson, an enqueue only checks the lock ([`Reply::NotQueued`]), and a yield
//! releases it if the channel has a subscriber.
//!
//! | module | contents |
//! |---|---|
//! | `codec` | encodes commands and decodes replies, for locks that are strings |
//! | `scripts` | the Lua scripts of each encoding |
//! | `redisson` | the same for Redisson's encoding |
//! | `store_call` | operations on keys that are no locks |

pub(super) mod codec;
pub(super) mod redisson;
pub(super) mod scripts;
pub(super) mod store_call;

use std::time::Duration;

use redis::{Pipeline, Value};

use crate::backend::Request;
use crate::backend::redis::encoding::scripts::{Loaded, NATIVE, PLAIN, REDISSON, Script};
use crate::backend::redis::namespaces::Namespaces;
use crate::backend::redis::transport::redacted::Redacted;
use crate::config::Settings;
use crate::layout::Publish;
use crate::protocol::command::{Command, EnqueueMode, Reply};

/// How locks are stored in a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockEncoding {
    /// The default: the fastest if one server has the key.
    Native,
    /// For a quorum: the queues of several servers would differ in order, and their grants would
    /// conflict.
    Plain,
    /// For fleets with Java clients.
    Redisson(Publish),
}

impl LockEncoding {
    /// Returns the command that publishes a release.
    pub(crate) fn publish(self) -> Publish {
        match self {
            Self::Native | Self::Plain => Publish::Publish,
            Self::Redisson(publish) => publish,
        }
    }

    /// Returns the source of each script, in the order of [`Script`].
    pub(crate) const fn sources(self) -> &'static [&'static str; Script::COUNT] {
        match self {
            Self::Native => &NATIVE,
            Self::Plain => &PLAIN,
            Self::Redisson(_) => &REDISSON,
        }
    }

    /// Returns the channel that announces a release of `key`. `None`: waiters are granted the lock
    /// directly.
    pub(crate) fn release_channel(self, namespaces: &Namespaces, key: &str) -> Option<String> {
        match self {
            Self::Native => None,
            Self::Plain => Some(format!("{}{key}", namespaces.of_key(key).releases())),
            Self::Redisson(_) => Some(redisson::channel(key)),
        }
    }

    /// Returns `true` if the release channel must be subscribed before `command` is sent: a release
    /// between the check and the subscription would be missed.
    pub(crate) fn listens_first(self, command: Command) -> bool {
        let waits =
            matches!(command, Command::Enqueue { mode: EnqueueMode::Join | EnqueueMode::Recheck, .. });
        waits && self != Self::Native
    }

    /// Adds a request to a pipeline: as `EVALSHA` if the scripts are `loaded`, otherwise as `EVAL`.
    ///
    /// `extra` is an additional action of the script. `write` writes the key whenever the reply is
    /// [`Reply::Owner`]; `read` reads the key last.
    pub(crate) fn encode(
        self,
        request: &Request,
        namespaces: &Namespaces,
        times: ScriptTimes,
        loaded: Option<&Loaded>,
        extra: Option<&str>,
        pipeline: &mut Pipeline,
    ) {
        match self {
            Self::Native | Self::Plain => {
                codec::encode(self, request, namespaces, times, loaded, extra, pipeline);
            }
            Self::Redisson(_) => redisson::encode(self, request, loaded, extra, pipeline),
        }
    }

    /// Decodes a reply.
    pub(crate) fn decode(self, request: &Request, value: &Value, server: &Redacted) -> Reply {
        match self {
            Self::Native | Self::Plain => codec::decode(request, value, server),
            Self::Redisson(_) => redisson::decode(request, value, server),
        }
    }
}

/// The times to live that scripts set for keys that are not holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScriptTimes {
    /// How long a granted lock is valid before it is confirmed.
    pub(crate) grant_lease: Duration,
    /// How long an unused fencing counter lives.
    pub(crate) fence_ttl: Duration,
}

impl ScriptTimes {
    /// Returns the configured times.
    pub(crate) fn of(settings: &Settings) -> Self {
        Self { grant_lease: settings.rules.grant_lease, fence_ttl: settings.fence_ttl }
    }
}

/// The maximum delay of a retry after a release. Within it, all servers of a nearby quorum have
/// released the lock. The delay is random, so that waiters do not all retry at once.
pub(crate) const WAKEUP_JITTER: Duration = Duration::from_millis(4);

/// `ProtocolConfig::has_queue` depends on it: without a queue, retries after a release are delayed.
const _: () = assert!(!WAKEUP_JITTER.is_zero() && !redisson::WAKEUP_JITTER.is_zero());
