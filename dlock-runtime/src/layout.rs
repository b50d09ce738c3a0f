//! How locks stand in Redis, as users choose it.
//!
//! Not here: what each layout does (`backend/redis/layout`).

/// How locks stand in Redis; all who share locks must agree on it. Set by [`Builder::layout`](crate::Builder::layout), or by the URL's
/// `layout`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Layout {
    /// `layout=native`: a string with its holder and those who wait, in their order. The default, and the fastest.
    #[default]
    Native,
    /// `layout=redisson`: as `RLock` of Redisson has them, for fleets that are partly Java. See
    /// [`docs::fleets`](crate::docs::fleets).
    Redisson,
}

impl Layout {
    pub(crate) const ALL: [(&str, Self); 2] = [("native", Self::Native), ("redisson", Self::Redisson)];
}

/// By which command a release is told in [`Layout::Redisson`], and listened to: what Redisson's `shardedSubscriptionMode` says. Set by
/// [`Builder::publish`](crate::Builder::publish), or by the URL's `publish`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Publish {
    /// `publish=auto`: as Redisson does by itself. In a cluster by `SPUBLISH` where the server has that (Redis 7, Valkey), and
    /// else by `PUBLISH`. The default.
    #[default]
    Auto,
    /// `publish=publish`: for a Redisson whose mode is `OFF`.
    Publish,
    /// `publish=spublish`: for a Redisson whose mode is `ON`.
    Spublish,
    /// `publish=both`: where some are told in one way and some in the other.
    Both,
}

impl Publish {
    pub(crate) const ALL: [(&str, Self); 4] = [
        ("auto", Self::Auto),
        ("publish", Self::Publish),
        ("spublish", Self::Spublish),
        ("both", Self::Both),
    ];

    /// Returns its name, which scripts know it by, too.
    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, publish)| *publish == self).map_or("auto", |(name, _)| name)
    }
}
