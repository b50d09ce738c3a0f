//! [`Layout`] and [`Publish`]: how locks are stored in Redis, and how releases are announced.

/// How locks are stored in Redis. All clients that share locks must use the same layout.
///
/// Set with [`Builder::layout`](crate::Builder::layout) or the URL parameter `layout`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Layout {
    /// `layout=native`: a string of the holder and the queue of waiters. The default, and the
    /// fastest.
    #[default]
    Native,
    /// `layout=redisson`: as `RLock` of Redisson stores them, for deployments with Java services.
    /// See [`docs::fleets`](crate::docs::fleets).
    Redisson,
}

impl Layout {
    pub(crate) const ALL: [(&str, Self); 2] = [("native", Self::Native), ("redisson", Self::Redisson)];
}

/// The command that announces a release with [`Layout::Redisson`], as Redisson's
/// `shardedSubscriptionMode` sets it.
///
/// Waiters subscribe with the matching command. Set with
/// [`Builder::publish`](crate::Builder::publish) or the URL parameter `publish`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Publish {
    /// `publish=auto`: as Redisson chooses by default. The default.
    ///
    /// It is `SPUBLISH` in a cluster whose servers have it (Redis 7, Valkey), and `PUBLISH`
    /// otherwise.
    #[default]
    Auto,
    /// `publish=publish`: for a Redisson whose mode is `OFF`.
    Publish,
    /// `publish=spublish`: for a Redisson whose mode is `ON`.
    Spublish,
    /// `publish=both`: for clients with different modes.
    Both,
}

impl Publish {
    pub(crate) const ALL: [(&str, Self); 4] = [
        ("auto", Self::Auto),
        ("publish", Self::Publish),
        ("spublish", Self::Spublish),
        ("both", Self::Both),
    ];

    /// Returns the name, which scripts also use.
    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, publish)| *publish == self).map_or("auto", |(name, _)| name)
    }
}
