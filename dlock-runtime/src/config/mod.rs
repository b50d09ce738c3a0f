//! The options of a manager, their defaults, and their bounds.
//!
//! See `url` for options in a URL, `builder` for their setters, and `call_overrides` for options of
//! annotated functions that an operator changes by name.

pub(crate) mod call_overrides;
#[cfg(feature = "tls")]
pub(crate) mod certificate_reader;
pub(crate) mod certificates;
pub(crate) mod cluster;
pub(crate) mod deployment;
pub(crate) mod duration;
pub(crate) mod endpoint;
#[cfg(feature = "idempotent")]
pub(crate) mod fingerprint_secrets;
mod hosts;
pub(crate) mod node_spec;
pub(crate) mod quorum;
mod scheme;
pub(crate) mod sentinel;
mod suggest;
mod unknown_option;
pub(crate) mod url;
mod url_parts;

use std::sync::Arc;
use std::time::Duration;

use crate::config::call_overrides::CallOverrides;
use crate::config::certificates::Certificates;
#[cfg(feature = "idempotent")]
use crate::config::fingerprint_secrets::FingerprintSecrets;
use crate::credentials::CredentialsProvider;
use crate::error::Result;
pub(crate) use crate::error::config;
use crate::layout::{Layout, Publish};
use crate::options::{LONGEST_LEASE, checked_lease};
use crate::owner;
use crate::protocol::ProtocolConfig;

/// Every option that is not part of the server's address.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) namespace: String,
    /// The name that operators see. See [`owner`](mod@owner).
    pub(crate) owner: Arc<str>,
    pub(crate) layout: Layout,
    pub(crate) publish: Publish,
    pub(crate) lease: Duration,
    pub(crate) connect_timeout: Duration,
    /// How long an unused fencing counter lives.
    pub(crate) fence_ttl: Duration,
    /// Whether the manager starts without waiting for its first connection.
    pub(crate) lazy: bool,
    pub(crate) rules: ProtocolConfig,
    pub(crate) certificates: Certificates,
    /// The options of annotated functions that differ from their attributes.
    pub(crate) overrides: Arc<CallOverrides>,
    /// The callback that supplies the user and the password instead of the URL.
    pub(crate) credentials: Option<CredentialsProvider>,
    #[cfg(feature = "idempotent")]
    pub(crate) fingerprint_secrets: FingerprintSecrets,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            namespace: "dlock".to_owned(),
            owner: owner::of_this_process(),
            layout: Layout::Native,
            publish: Publish::Auto,
            lease: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(2),
            fence_ttl: FENCE_TTL,
            lazy: false,
            rules: ProtocolConfig { tracking: true, ..ProtocolConfig::DEFAULT },
            certificates: Certificates::default(),
            overrides: Arc::default(),
            credentials: None,
            #[cfg(feature = "idempotent")]
            fingerprint_secrets: FingerprintSecrets::default(),
        }
    }
}

impl Settings {
    /// Checks bounds, and options that contradict each other.
    pub(crate) fn checked(self) -> Result<Self> {
        checked_lease(self.lease)?;
        let from = |least: u64, part: &str, value: Duration| {
            if (Duration::from_millis(least)..=LONGEST).contains(&value) {
                return Ok(());
            }
            let value = duration::shown(value);
            Err(config(part, format!("{value} is not between {least} ms and {} s", LONGEST.as_secs())))
        };
        from(10, "response_timeout", self.rules.response_timeout)?;
        from(10, "connect_timeout", self.connect_timeout)?;
        from(100, "grant_lease", self.rules.grant_lease)?;
        from(0, "handoff_budget", self.rules.handoff_budget)?;
        from(5, "poll_interval", self.rules.poll_interval)?;
        if !(SHORTEST_FENCE_TTL..=LONGEST_LEASE).contains(&self.fence_ttl) {
            let problem = format!("{} is not between 1 minute and 365 days", duration::shown(self.fence_ttl));
            return Err(config("fence_ttl", problem));
        }
        if self.layout == Layout::Redisson && self.fence_ttl != FENCE_TTL {
            let problem = "the counters of Redisson's layout have no time to live: leave it out";
            return Err(config("fence_ttl", problem));
        }
        if self.layout == Layout::Redisson && self.rules.yield_to_foreign {
            let problem =
                "clients of the `SET NX` family cannot share locks with Redisson's layout: leave it out";
            return Err(config("yield_to_foreign", problem));
        }
        if self.layout == Layout::Native && self.publish != Publish::Auto {
            let problem = "it applies only to Redisson's layout: add `layout=redisson`, or leave it out";
            return Err(config("publish", problem));
        }
        if let Some(problem) = namespace_problem(&self.namespace) {
            return Err(config("namespace", problem));
        }
        if let Some(problem) = owner::problem(&self.owner) {
            return Err(config("owner", problem));
        }
        Ok(self)
    }
}

/// Returns why `text` cannot be the prefix of a key. It must not look like a part of a template.
pub(crate) const fn namespace_problem(text: &str) -> Option<&'static str> {
    let mut rest = text.as_bytes();
    while let [byte, behind @ ..] = rest {
        if matches!(byte, 0..=b' ' | b'{' | b'}' | b'<' | b'>' | 127) {
            return Some(
                "white space, control characters, braces, and angle brackets are not allowed in a namespace: write a name like `my-shop`",
            );
        }
        if matches!((byte, behind), (b':', [])) {
            return Some(
                "leave out the `:` at the end of the namespace: dlock puts one between it and the key; write `shop`",
            );
        }
        rest = behind;
    }
    None
}

/// A fencing counter that is unused for this time expires. It restarts above every token that it
/// issued, unless the server's clock has stepped back.
const FENCE_TTL: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// A clock that is set by hand rarely steps back by more.
const SHORTEST_FENCE_TTL: Duration = Duration::from_secs(60);

/// Longer than any useful timeout, and far below the point where a sum of durations overflows.
const LONGEST: Duration = Duration::from_secs(60);
