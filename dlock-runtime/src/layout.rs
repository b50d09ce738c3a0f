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
