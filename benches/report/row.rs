//! One row: the figures of one contender, one for each round, and what they should be.

use crate::contenders::{Contender, Kind};
use crate::figures::percentile;

/// What was measured, and of whom.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) scenario: &'static str,
    pub(crate) what: String,
    pub(crate) contender: String,
    pub(crate) kind: Kind,
    pub(crate) unit: &'static str,
    /// The number that the row is one of a series for: of tasks, of waiters, of held locks.
    pub(crate) at: Option<u64>,
    pub(crate) better: Better,
    /// Figures that are not farther apart are one.
    pub(crate) grain: f64,
    /// From the least to the greatest.
    pub(crate) figures: Vec<f64>,
    pub(crate) goal: Option<Goal>,
}

/// What is measured, of whomever.
#[derive(Clone, Debug)]
pub(crate) struct What {
    text: String,
    unit: &'static str,
    at: Option<u64>,
    better: Better,
    grain: f64,
    goals: Vec<(&'static str, Goal)>,
}

/// Which of two figures is ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    More,
    Less,
    /// The figure says how it was measured, not how well it went.
    Neither,
}

/// What a median should be.
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
    /// Something of which more is better.
    pub(crate) fn more(text: impl Into<String>, unit: &'static str) -> Self {
        Self { text: text.into(), unit, at: None, better: Better::More, grain: 0.0, goals: Vec::new() }
    }

    /// Something of which less is better.
    pub(crate) fn less(text: impl Into<String>, unit: &'static str) -> Self {
        Self { better: Better::Less, ..Self::more(text, unit) }
    }

    /// Something that is neither: it says how the rest was measured.
    pub(crate) fn neither(text: impl Into<String>, unit: &'static str) -> Self {
        Self { better: Better::Neither, ..Self::more(text, unit) }
    }

    /// Sets the number that the row is one of a series for.
    pub(crate) fn at(mut self, at: u64) -> Self {
        self.at = Some(at);
        self
    }

    /// Sets how far figures have to be apart: what is measured is a count, and what is beside it is of the way on which it was counted.
    pub(crate) fn grain(mut self, grain: f64) -> Self {
        self.grain = grain;
        self
    }

    /// Sets what the figure of the contender called `name` should be.
    pub(crate) fn goal(mut self, name: &'static str, goal: Goal) -> Self {
        self.goals.push((name, goal));
        self
    }

    /// Makes the row of one contender.
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

    /// Returns whether the goal is met, where there is one.
    pub(crate) fn is_met(&self) -> Option<bool> {
        Some(self.goal?.is_met(self.median()))
    }

    /// Returns whether it says the same as `other`, of whomever.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        (self.scenario, &self.what) == (other.scenario, &other.what)
    }
}
