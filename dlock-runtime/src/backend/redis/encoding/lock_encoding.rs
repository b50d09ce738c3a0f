//! [`LockEncoding`], and the parameters of its scripts.

use std::fmt::Debug;
use std::time::Duration;

use redis::{Pipeline, Value};

use crate::backend::Request;
use crate::backend::redis::encoding::scripts::{Loaded, ScriptSources};
use crate::backend::redis::namespaces::Namespaces;
use crate::backend::redis::transport::redacted::Redacted;
use crate::config::Settings;
use crate::layout::Publish;
use crate::protocol::command::{Command, EnqueueMode, Reply};

/// How locks are stored in a server.
pub(crate) trait LockEncoding: Debug + Send + Sync {
    /// Returns the source of each script.
    fn scripts(&self) -> &'static ScriptSources;

    /// Returns the maximum delay of a retry after a release, not zero. The delay is random, so that
    /// waiters do not all retry at once. `None`: waiters queue in the server, and are granted the
    /// lock directly.
    fn wakeup_jitter(&self) -> Option<Duration>;

    /// Returns the channel that announces a release of `key`, if waiters do not queue.
    fn release_channel(&self, namespaces: &Namespaces, key: &str) -> Option<String>;

    /// Returns the command that publishes a release.
    fn publish(&self) -> Publish {
        Publish::Publish
    }

    /// Returns the name of the other key or channel that the script of a request uses, if it may be
    /// in another cluster slot, and the problem in that case.
    fn other_data_and_problem(&self, request: &Request) -> Option<(String, &'static str)>;

    /// Adds a request to a pipeline.
    fn encode(&self, request: &Request, parameters: &ScriptParameters<'_>, pipeline: &mut Pipeline);

    /// Decodes a reply. The command of an unexpected reply may have run, so the result is
    /// [`Reply::Unknown`].
    fn decode(&self, request: &Request, value: &Value, server: &Redacted) -> Reply;

    /// Returns `true` if waiters queue in the server.
    fn has_queue(&self) -> bool {
        self.wakeup_jitter().is_none()
    }

    /// Returns `true` if the release channel must be subscribed before `command` is sent: a release
    /// between the check and the subscription would be missed.
    fn listens_first(&self, command: Command) -> bool {
        let waits =
            matches!(command, Command::Enqueue { mode: EnqueueMode::Join | EnqueueMode::Recheck, .. });
        waits && !self.has_queue()
    }
}

/// The parameters of a script, in addition to the request.
#[derive(Clone, Copy)]
pub(crate) struct ScriptParameters<'a> {
    pub(crate) namespaces: &'a Namespaces,
    pub(crate) times: ScriptTimes,
    /// The hashes of the scripts, which are called by `EVALSHA`. `None`: by `EVAL`.
    pub(crate) loaded: Option<&'a Loaded>,
    /// An additional action of the script. `write` writes the key whenever the reply is
    /// [`Reply::Owner`]; `read` reads the key last.
    pub(crate) extra: Option<&'static str>,
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
