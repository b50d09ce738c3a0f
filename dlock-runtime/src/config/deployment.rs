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
}
