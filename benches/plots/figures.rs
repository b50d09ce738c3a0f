//! The figures: lines of JSON, read.
//!
//! Not here: what is made of them (`chart`, `tables`).

use serde::Deserialize;

use crate::Failure;

/// All lines of a run, or of several as one.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    lines: Vec<Line>,
}

/// One line: on what a scenario was measured, a row, a distribution, or why somebody has none.
#[derive(Debug, Deserialize)]
pub(crate) struct Line {
    pub(crate) scenario: String,
    /// On what the scenario was measured.
    pub(crate) ground: Option<String>,
    #[serde(default)]
    pub(crate) what: String,
    #[serde(default)]
    unit: String,
    #[serde(default)]
    pub(crate) contender: String,
    #[serde(default)]
    kind: String,
    /// The number that the row is one of a series for.
    pub(crate) at: Option<u64>,
    pub(crate) median: Option<f64>,
    /// Percent, and the milliseconds below which so many lie.
    #[serde(default)]
    pub(crate) percentiles: Vec<(f64, f64)>,
    /// How often each task was inside.
    #[serde(default)]
    pub(crate) shares: Vec<u64>,
    /// How many runs have it.
    #[serde(default = "one")]
    pub(crate) runs: u64,
    /// Whether a rival is ahead of ours: in each of the runs.
    #[serde(default)]
    ahead: bool,
    /// In how many of several runs a rival is ahead of ours.
    #[serde(default)]
    ahead_in: u64,
    /// Whom of ours it is not ahead of, or not in each run.
    pub(crate) behind: Option<String>,
    /// What it is to reach, where it has a goal.
    pub(crate) goal: Option<Goal>,
    /// Whether it does.
    #[serde(default)]
    pub(crate) ok: bool,
}

/// A bound that figures are measured by.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

/// Whose figures they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Whose {
    Ours,
    Floor,
    Rival,
}

impl Figures {
    /// Returns the lines of a scenario whose `what` ends so, in their order.
    pub(crate) fn of<'a>(&'a self, scenario: &'a str, ending: &'a str) -> impl Iterator<Item = &'a Line> {
        self.lines.iter().filter(move |line| line.scenario == scenario && line.what.ends_with(ending))
    }

    /// Returns the rows in which a rival is ahead, in one run at least.
    pub(crate) fn ahead(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| line.ahead_in() > 0)
    }

    /// Returns the rows that are short of their goals, with these.
    pub(crate) fn short_of_goals(&self) -> impl Iterator<Item = (&Line, Goal)> {
        self.lines.iter().filter(|line| !line.ok).filter_map(|line| Some((line, line.goal?)))
    }

    /// Returns on what the scenarios were measured, those on the same together.
    pub(crate) fn grounds(&self) -> Vec<(&str, Vec<&str>)> {
        let mut grounds: Vec<(&str, Vec<&str>)> = Vec::new();
        for line in &self.lines {
            let Some(ground) = line.ground.as_deref() else { continue };
            match grounds.iter_mut().find(|(known, _)| *known == ground) {
                Some((_, scenarios)) => scenarios.push(&line.scenario),
                None => grounds.push((ground, vec![&line.scenario])),
            }
        }
        grounds
    }

    /// Returns of how many runs they are.
    pub(crate) fn runs(&self) -> u64 {
        self.lines.iter().map(|line| line.runs).max().unwrap_or_default()
    }

    /// Returns every contender of these scenarios once, ours first, then the floor, then rivals in the order of their lines.
    pub(crate) fn contenders(&self) -> Vec<&str> {
        let mut found: Vec<(Whose, &str)> = Vec::new();
        for line in self.lines.iter().filter(|line| line.median.is_some()) {
            if !found.iter().any(|(_, name)| *name == line.contender) {
                found.push((line.whose(), &line.contender));
            }
        }
        found.sort_by_key(|(whose, _)| *whose);
        found.into_iter().map(|(_, name)| name).collect()
    }

    /// Returns the median of a row.
    pub(crate) fn median(&self, scenario: &str, what: &str, contender: &str) -> Option<f64> {
        let mut lines = self.lines.iter().filter(|line| line.scenario == scenario && line.what == what);
        lines.find(|line| line.contender == contender)?.median
    }
}

impl Line {
    pub(crate) fn whose(&self) -> Whose {
        match &*self.kind {
            "ours" => Whose::Ours,
            "floor" => Whose::Floor,
            // Distributions do not say the kind.
            "" if self.contender.starts_with("ours") => Whose::Ours,
            "" if self.contender.starts_with("raw") || self.contender.starts_with("ceiling") => Whose::Floor,
            _ => Whose::Rival,
        }
    }

    /// Returns what the row is, in its unit.
    pub(crate) fn what_in_unit(&self) -> String {
        match self.unit.as_str() {
            "" | "x" => self.what.clone(), // it says to what
            unit => format!("{}, {unit}", self.what),
        }
    }

    /// Returns in how many of its runs a rival is ahead of ours.
    pub(crate) fn ahead_in(&self) -> u64 {
        if self.ahead { self.runs } else { self.ahead_in }
    }

    /// Returns the figure below which so many percent lie.
    pub(crate) fn percentile(&self, percent: f64) -> Option<f64> {
        let found = self.percentiles.iter().find(|(known, _)| (known - percent).abs() < 1e-9);
        found.map(|(_, figure)| *figure)
    }
}

fn one() -> u64 {
    1
}

impl std::str::FromStr for Figures {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let lines = lines.map(|line| serde_json::from_str(line).map_err(|error| format!("{error}: {line}")));
        Ok(Self { lines: lines.collect::<Result<_, _>>()? })
    }
}
