//! [`Deployment`], the kind of deployment, and the scheme of its URLs.

/// The kind of deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Deployment {
    /// One server.
    #[default]
    One,
    /// A primary and its replicas, which sentinels monitor.
    Sentinels,
    /// Primaries that share the keys, and their replicas.
    Cluster,
    /// Independent servers that vote.
    Quorum,
}

impl Deployment {
    /// Returns `true` if a replica is promoted when a primary fails, and the manager follows.
    pub(crate) const fn fails_over(self) -> bool {
        matches!(self, Self::Sentinels | Self::Cluster)
    }

    /// Returns how its URLs begin, with TLS or without.
    pub(crate) const fn scheme(self, tls: bool) -> &'static str {
        match (self, tls) {
            (Self::One, false) => "redis://",
            (Self::One, true) => "rediss://",
            (Self::Sentinels, false) => "redis+sentinel://",
            (Self::Sentinels, true) => "rediss+sentinel://",
            (Self::Cluster, false) => "redis+cluster://",
            (Self::Cluster, true) => "rediss+cluster://",
            (Self::Quorum, false) => "redis+quorum://",
            (Self::Quorum, true) => "rediss+quorum://",
        }
    }

    /// Returns what to do if a server that must accept writes is a replica. The scheme of another
    /// deployment is with TLS or without.
    pub(crate) fn replica_advice(self, tls: bool) -> String {
        match self {
            Self::One => {
                let scheme = Self::Sentinels.scheme(tls);
                format!("name the primary, or its sentinels with `{scheme}host,host,host/master-name`")
            }
            Self::Sentinels | Self::Cluster => {
                "the manager looks for the new primary; if it is still reported as the primary after the failover, check the \
                 servers that report it"
                    .to_owned()
            }
            Self::Quorum => "name independent primaries as the servers of a quorum".to_owned(),
        }
    }
}
