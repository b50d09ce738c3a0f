//! The options of a manager, their defaults and their bounds.
//!
//! Not here: how they are read from a URL (`url`) or set by methods (`builder`), what the numbers do (`protocol::ProtocolConfig`, `backend`).

#[cfg(feature = "tls")]
pub(crate) mod certificate_reader;
pub(crate) mod certificates;
pub(crate) mod cluster;
pub(crate) mod duration;
mod hosts;
pub(crate) mod quorum;
mod scheme;
pub(crate) mod sentinel;
mod suggest;
pub(crate) mod url;

use std::time::Duration;

use crate::config::certificates::Certificates;
use crate::credentials::CredentialsSource;
use crate::error::{Error, Result};
use crate::io::Io;
use crate::layout::{Layout, Publish};
use crate::options::checked_lease;
use crate::protocol::ProtocolConfig;

/// Every option that is not part of the server's address.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) namespace: String,
    pub(crate) layout: Layout,
    pub(crate) publish: Publish,
    pub(crate) lease: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) io: Io,
    pub(crate) rules: ProtocolConfig,
    pub(crate) certificates: Certificates,
    /// What is asked for user and password in place of the URL's.
    pub(crate) credentials: Option<CredentialsSource>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            namespace: "dlock".to_owned(),
            layout: Layout::Native,
            publish: Publish::Auto,
            lease: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(2),
            io: Io::Thread,
            rules: ProtocolConfig { tracking: true, ..ProtocolConfig::DEFAULT },
            certificates: Certificates::default(),
            credentials: None,
        }
    }
}

impl Settings {
    /// Checks what no single option can check.
    pub(crate) fn checked(self) -> Result<Self> {
        checked_lease(self.lease)?;
        let from = |least: u64, part: &str, value: Duration| {
            if (Duration::from_millis(least)..=LONGEST).contains(&value) {
                return Ok(());
            }
            Err(config(part, format!("{value:?} is not between {least} ms and {} s", LONGEST.as_secs())))
        };
        from(10, "response_timeout", self.rules.response_timeout)?;
        from(10, "connect_timeout", self.connect_timeout)?;
        from(100, "grant_lease", self.rules.grant_lease)?;
        from(0, "handoff_budget", self.rules.handoff_budget)?;
        from(5, "poll_interval", self.rules.poll_interval)?;
        if self.layout == Layout::Redisson && self.rules.yield_to_foreign {
            let problem = "a lock that stands as Redisson's is none that clients of the `SET NX` family take: leave it out";
            return Err(config("yield_to_foreign", problem));
        }
        if self.layout == Layout::Native && self.publish != Publish::Auto {
            let problem = "it is for Redisson's layout alone: add `layout=redisson`, or leave it out";
            return Err(config("publish", problem));
        }
        if !is_namespace(&self.namespace) {
            let problem = "no white space, control characters, braces or angle brackets are allowed in it";
            return Err(config("namespace", problem));
        }
        Ok(self)
    }
}

/// Returns whether `text` can stand before a key: it must not look like a part of one.
pub(crate) const fn is_namespace(text: &str) -> bool {
    let mut rest = text.as_bytes();
    while let [byte, behind @ ..] = rest {
        if matches!(byte, 0..=b' ' | b'{' | b'}' | b'<' | b'>' | 127) {
            return false;
        }
        rest = behind;
    }
    true
}

pub(crate) fn config(part: &str, problem: impl Into<String>) -> Error {
    Error::Config { part: part.into(), problem: problem.into().into() }
}

/// Longer than any answer, grant or look is worth waiting for, and far from where a sum of times would overflow.
const LONGEST: Duration = Duration::from_secs(60);
