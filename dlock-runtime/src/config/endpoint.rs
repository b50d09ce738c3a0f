//! [`Endpoint`], where locks are stored: the only type that lists the kinds of deployments.

use std::fmt;

use crate::config::cluster::ClusterEndpoint;
use crate::config::node_spec::NodeSpec;
use crate::config::quorum::QuorumEndpoint;
use crate::config::sentinel::SentinelEndpoint;
use crate::config::{Settings, config};
use crate::error::Result;
use crate::layout::Layout;

/// Where the locks are stored.
#[derive(Debug)]
pub(crate) enum Endpoint {
    /// In this process: in a separate store, or in one that is shared by name.
    Memory { name: Option<String> },
    /// On one Redis server.
    Redis(NodeSpec),
    /// On the primary that sentinels report.
    Sentinel(SentinelEndpoint),
    /// On the primaries of a cluster.
    Cluster(ClusterEndpoint),
    /// On independent servers, of which a majority decides.
    Quorum(QuorumEndpoint),
}

impl Endpoint {
    /// Returns `true` if connections to its servers use TLS.
    pub(crate) fn uses_tls(&self) -> bool {
        match self {
            Self::Memory { .. } => false,
            Self::Redis(server) => server.tls,
            Self::Sentinel(watched) => watched.master.tls,
            Self::Cluster(seeds) => seeds.access.tls,
            Self::Quorum(QuorumEndpoint(servers)) => servers.iter().any(|server| server.tls),
        }
    }

    /// Checks options that do not apply to this kind of deployment.
    ///
    /// # Errors
    ///
    /// [`Error::Config`](crate::Error::Config) with what to write instead.
    pub(crate) fn check(&self, settings: &Settings) -> Result<()> {
        if !self.uses_tls() {
            let advice = self.without_tls();
            if settings.certificates.are_given() {
                return Err(config("tls", format!("certificates are given, and {advice}")));
            }
            if settings.certificates.name.is_some() {
                return Err(config("tls_name", format!("it is for TLS, and {advice}")));
            }
        }
        let has_acks = settings.rules.replica_acks > 0;
        match self {
            Self::Quorum(_) if has_acks => {
                Err(config("replica_acks", "the servers of a quorum have no replicas: leave it out"))
            }
            Self::Memory { .. } if has_acks => {
                Err(config("replica_acks", "`memory://` has no replicas: leave it out"))
            }
            Self::Quorum(_) if settings.layout == Layout::Redisson => {
                Err(config("layout", "a quorum has a fixed layout: leave it out"))
            }
            Self::Quorum(_) if settings.rules.yield_to_foreign => {
                let problem = "a quorum has no queue, so its waiters have no advantage over clients that poll: leave it out";
                Err(config("yield_to_foreign", problem))
            }
            _ => Ok(()),
        }
    }

    /// Returns why there is no TLS, and what to write.
    fn without_tls(&self) -> &'static str {
        match self {
            Self::Redis(server) if server.socket.is_some() => "a unix socket has no TLS: leave them out",
            Self::Redis(_) => "the URL asks for no TLS: write `rediss://`",
            Self::Sentinel(_) => "the URL asks for no TLS: write `rediss+sentinel://`",
            Self::Cluster(_) => "the URL asks for no TLS: write `rediss+cluster://`",
            Self::Quorum(_) => "the URL asks for no TLS: write `rediss+quorum://`",
            Self::Memory { .. } => "`memory://` has no TLS: leave them out",
        }
    }
}

impl fmt::Display for Endpoint {
    /// Writes the addresses, without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { .. } => f.write_str("memory"),
            Self::Redis(server) => server.fmt(f),
            Self::Sentinel(watched) => watched.fmt(f),
            Self::Cluster(seeds) => seeds.fmt(f),
            Self::Quorum(voters) => voters.fmt(f),
        }
    }
}
