//! Reads the figures: lines of JSON.

use serde::Deserialize;

use crate::Failure;

/// All lines of one run, or of several joined runs.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    lines: Vec<Line>,
}

/// One line: the machine of a scenario, a row, a distribution, or the reason for no figures.
#[derive(Debug, Deserialize)]
pub(crate) struct Line {
    pub(crate) scenario: String,
    /// The machine and the programs that the scenario was measured with.
    pub(crate) ground: Option<String>,
    #[serde(default)]
    pub(crate) what: String,
    #[serde(default)]
    unit: String,
    #[serde(default)]
    pub(crate) contender: String,
    #[serde(default)]
    kind: String,
    /// The number of this row within a series of rows.
    pub(crate) at: Option<u64>,
    pub(crate) median: Option<f64>,
    /// Pairs of a percentile and its milliseconds.
    #[serde(default)]
    pub(crate) percentiles: Vec<(f64, f64)>,
    /// The number of holds of each task.
    #[serde(default)]
    pub(crate) shares: Vec<u64>,
    /// The number of runs that have this line.
    #[serde(default = "one")]
    pub(crate) runs: u64,
    /// Whether another library is ahead of `ours` in all runs.
    #[serde(default)]
    ahead: bool,
    /// The number of runs in which another library is ahead of `ours`.
    #[serde(default)]
    ahead_in: u64,
    /// The configuration of `ours` that this library is not ahead of in every run.
    pub(crate) behind: Option<String>,
    /// The goal of the row, if it has one.
    pub(crate) goal: Option<Goal>,
    /// Whether the goal is met.
    #[serde(default)]
    pub(crate) ok: bool,
}

/// The bound of a goal.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

/// The group of a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Whose {
    Ours,
    Floor,
    Rival,
}

impl Figures {
    /// Returns the lines of a scenario whose `what` ends with `ending`, in their order.
    pub(crate) fn of<'a>(&'a self, scenario: &'a str, ending: &'a str) -> impl Iterator<Item = &'a Line> {
        self.lines.iter().filter(move |line| line.scenario == scenario && line.what.ends_with(ending))
    }

    /// Returns the rows in which another library is ahead in at least one run.
    pub(crate) fn ahead(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| line.ahead_in() > 0)
    }

    /// Returns the rows that miss their goals, with these goals.
    pub(crate) fn short_of_goals(&self) -> impl Iterator<Item = (&Line, Goal)> {
        self.lines.iter().filter(|line| !line.ok).filter_map(|line| Some((line, line.goal?)))
    }

    /// Returns each machine with the scenarios that were measured on it.
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

    /// Returns the number of runs.
    pub(crate) fn runs(&self) -> u64 {
        self.lines.iter().map(|line| line.runs).max().unwrap_or_default()
    }

    /// Returns every contender once.
    ///
    /// `ours` is first, then the floor, then other libraries in the order of their lines.
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

    /// Returns `what` with the unit.
    pub(crate) fn what_in_unit(&self) -> String {
        match self.unit.as_str() {
            "" | "x" => self.what.clone(), // the text of a ratio names its base
            unit => format!("{}, {unit}", self.what),
        }
    }

    /// Returns the number of runs in which another library is ahead of `ours`.
    pub(crate) fn ahead_in(&self) -> u64 {
        if self.ahead { self.runs } else { self.ahead_in }
    }

    /// Returns the figure of a percentile.
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
