//! One row: the figures of one contender, one per round, and their goal.

use crate::contenders::{Contender, Kind};
use crate::figures::percentile;

/// The figures of one contender.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) scenario: &'static str,
    pub(crate) what: String,
    pub(crate) contender: String,
    pub(crate) kind: Kind,
    pub(crate) unit: &'static str,
    /// The number of tasks, waiters, or held locks, if the row is part of a series.
    pub(crate) at: Option<u64>,
    pub(crate) better: Better,
    /// The difference up to which two figures count as equal.
    pub(crate) grain: f64,
    /// Sorted figures.
    pub(crate) figures: Vec<f64>,
    pub(crate) goal: Option<Goal>,
}

/// The definition of a row, without a contender.
#[derive(Clone, Debug)]
pub(crate) struct What {
    text: String,
    unit: &'static str,
    at: Option<u64>,
    better: Better,
    grain: f64,
    goals: Vec<(&'static str, Goal)>,
}

/// Whether the greater or the lesser figure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    More,
    Less,
    /// The figure describes the measurement.
    Neither,
}

/// The bound of a median.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    pub(crate) fn is_met(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(goal) => figure >= goal,
            Self::AtMost(goal) => figure <= goal,
        }
    }
}

impl What {
    /// Creates a definition for which more is better.
    pub(crate) fn more(text: impl Into<String>, unit: &'static str) -> Self {
        Self { text: text.into(), unit, at: None, better: Better::More, grain: 0.0, goals: Vec::new() }
    }

    /// Creates a definition for which less is better.
    pub(crate) fn less(text: impl Into<String>, unit: &'static str) -> Self {
        Self { better: Better::Less, ..Self::more(text, unit) }
    }

    /// Creates a definition that describes the measurement.
    pub(crate) fn neither(text: impl Into<String>, unit: &'static str) -> Self {
        Self { better: Better::Neither, ..Self::more(text, unit) }
    }

    /// Sets the number of this row within a series.
    pub(crate) fn at(mut self, at: u64) -> Self {
        self.at = Some(at);
        self
    }

    /// Sets the difference up to which two figures count as equal: the measurement error.
    pub(crate) fn grain(mut self, grain: f64) -> Self {
        self.grain = grain;
        self
    }

    /// Sets the goal of the contender `name`.
    pub(crate) fn goal(mut self, name: &'static str, goal: Goal) -> Self {
        self.goals.push((name, goal));
        self
    }

    /// Returns the row of one contender.
    pub(crate) fn row(&self, scenario: &'static str, contender: &Contender, mut figures: Vec<f64>) -> Row {
        figures.sort_by(f64::total_cmp);
        let goal = self.goals.iter().find(|(name, _)| *name == contender.name);
        Row {
            scenario,
            what: self.text.clone(),
            contender: contender.name.clone(),
            kind: contender.kind,
            unit: self.unit,
            at: self.at,
            better: self.better,
            grain: self.grain,
            figures,
            goal: goal.map(|(_, goal)| *goal),
        }
    }
}

impl Row {
    pub(crate) fn median(&self) -> f64 {
        percentile(&self.figures, 50.0)
    }

    pub(crate) fn min(&self) -> f64 {
        percentile(&self.figures, 0.0)
    }

    pub(crate) fn max(&self) -> f64 {
        percentile(&self.figures, 100.0)
    }

    /// Returns whether the goal is met, or `None` if there is no goal.
    pub(crate) fn is_met(&self) -> Option<bool> {
        Some(self.goal?.is_met(self.median()))
    }

    /// Returns `true` if both rows measure the same, for any contenders.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        (self.scenario, &self.what) == (other.scenario, &other.what)
    }
}
