//! What happened how often: a fault that never happens proves nothing, so those that are claimed are counted.

/// Counts of what happened, each under the number of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::protocol) struct Tally([u64; MOST]);

const MOST: usize = 64;

/// Names what can happen in a kind of worlds, to be counted: a fault that stops happening turns a test red.
macro_rules! seen {
    ($($what:ident $name:literal)*) => {
        /// One thing that happens.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Seen { $($what),* }

        pub(super) const ALL: &[(usize, &str)] = &[$((Seen::$what as usize, $name)),*];
    };
}
pub(in crate::protocol) use seen;

impl Tally {
    pub(in crate::protocol) const fn new() -> Self {
        Self([0; MOST])
    }

    pub(in crate::protocol) fn note(&mut self, what: usize) {
        self.0[what] += 1;
    }

    pub(in crate::protocol) fn count(&self, what: usize) -> u64 {
        self.0[what]
    }

    pub(in crate::protocol) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }

    /// Returns the counts in words.
    pub(in crate::protocol) fn told<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> String {
        let row = names.into_iter().zip(self.0).map(|(name, count)| format!("{name} {count}"));
        row.collect::<Vec<_>>().join(", ")
    }
}
