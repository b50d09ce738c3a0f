//! Counts how often each event of interest occurred: a fault that never occurs proves nothing.

/// Counters, each addressed by the number of its coverage point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::protocol) struct Coverage([u64; MAX_POINTS]);

const MAX_POINTS: usize = 64;

/// Declares the coverage points of a model. A campaign fails if one of them is too rare.
macro_rules! coverage_points {
    ($($what:ident $name:literal)*) => {
        /// An event that the model counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum CoveragePoint { $($what),* }

        pub(super) const ALL: &[(usize, &str)] = &[$((CoveragePoint::$what as usize, $name)),*];
    };
}
pub(in crate::protocol) use coverage_points;

impl Coverage {
    pub(in crate::protocol) const fn new() -> Self {
        Self([0; MAX_POINTS])
    }

    pub(in crate::protocol) fn increment(&mut self, point: usize) {
        self.0[point] += 1;
    }

    pub(in crate::protocol) fn count(&self, point: usize) -> u64 {
        self.0[point]
    }

    pub(in crate::protocol) fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }

    /// Returns the counters with their names, as one line.
    pub(in crate::protocol) fn summary<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> String {
        let entries = names.into_iter().zip(self.0).map(|(name, count)| format!("{name} {count}"));
        entries.collect::<Vec<_>>().join(", ")
    }
}
