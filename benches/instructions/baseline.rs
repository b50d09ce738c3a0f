//! The committed figures, and the comparison with new ones.

use std::fmt::{self, Write as _};
use std::fs;

use crate::Failure;

/// The cost of one iteration of a path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    path: String,
    unit: Unit,
    cost: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Instructions,
    Allocations,
    Bytes,
}

/// The committed figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Baseline {
    /// The kind of machine that the figures were counted on.
    machine: String,
    figures: Vec<Figure>,
}

/// New figures compared with the committed ones.
#[derive(Debug)]
pub(crate) struct Judged {
    lines: Vec<(Option<Figure>, Option<Figure>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Kept,
    Dearer,
    Cheaper,
    /// The path is in one of the two sets only.
    Unmatched,
}

impl Figure {
    pub(crate) fn new(path: &str, unit: Unit, cost: f64) -> Self {
        Self { path: path.to_owned(), unit, cost }
    }

    fn is_of(&self, other: &Self) -> bool {
        self.path == other.path && self.unit == other.unit
    }
}

impl Unit {
    const ALL: [Self; 3] = [Self::Instructions, Self::Allocations, Self::Bytes];

    fn name(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::Allocations => "allocations",
            Self::Bytes => "bytes",
        }
    }

    /// Returns the difference that is accepted.
    ///
    /// Medians of three rounds of instructions vary by less than 1 %, and by 2 % if 1,000 other
    /// locks are in a hash map, which is compacted at intervals.
    fn tolerance(self, cost: f64) -> f64 {
        match self {
            Self::Instructions => cost * 0.03,
            Self::Allocations => 0.5,
            Self::Bytes => 0.0,
        }
    }
}

impl Baseline {
    pub(crate) fn of(figures: Vec<Figure>) -> Self {
        Self { machine: machine(), figures }
    }

    pub(crate) fn read() -> Result<Self, Failure> {
        fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}"))?.parse()
    }

    pub(crate) fn write(&self) -> Result<(), Failure> {
        Ok(fs::write(FILE, self.to_string())?)
    }

    /// Returns the reason why these figures do not apply to this machine, or `None` if they do.
    pub(crate) fn not_of_here(&self) -> Option<String> {
        let here = machine();
        (self.machine != here).then(|| format!("the baseline is of {}, this is {here}", self.machine))
    }

    pub(crate) fn judge(&self, new: &[Figure]) -> Judged {
        let gone = self.figures.iter().filter(|old| !new.iter().any(|new| new.is_of(old)));
        let mut lines: Vec<_> = gone.map(|old| (Some(old.clone()), None)).collect();
        for new in new {
            let old = self.figures.iter().find(|old| old.is_of(new));
            lines.push((old.cloned(), Some(new.clone())));
        }
        Judged { lines }
    }
}

impl std::str::FromStr for Baseline {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let mut baseline = Self::default();
        for line in text.lines() {
            if let Some(comment) = line.strip_prefix('#') {
                if let Some(machine) = comment.strip_prefix(MACHINE) {
                    machine.clone_into(&mut baseline.machine);
                }
                continue;
            }
            let wrong = || format!("`{line}` is not a path, a unit, and a figure");
            let [path, unit, cost] = line.split('\t').collect::<Vec<_>>()[..] else {
                return Err(wrong().into());
            };
            let unit = Unit::ALL.into_iter().find(|known| known.name() == unit).ok_or_else(wrong)?;
            baseline.figures.push(Figure::new(path, unit, cost.parse()?));
        }
        Ok(baseline)
    }
}

impl fmt::Display for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# The cost of one iteration of a path. Written by {COMMAND} -- --write")?;
        writeln!(f, "#{MACHINE}{}", self.machine)?;
        for Figure { path, unit, cost } in &self.figures {
            writeln!(f, "{path}\t{}\t{}", unit.name(), shown(*cost))?;
        }
        Ok(())
    }
}

impl Judged {
    /// Returns `true` if no path costs more, and both sets have the same paths.
    pub(crate) fn is_kept(&self) -> bool {
        !self.has(Verdict::Dearer) && !self.has(Verdict::Unmatched)
    }

    fn has(&self, verdict: Verdict) -> bool {
        self.lines.iter().any(|line| Self::verdict(line) == verdict)
    }

    fn verdict((old, new): &(Option<Figure>, Option<Figure>)) -> Verdict {
        let (Some(old), Some(new)) = (old, new) else { return Verdict::Unmatched };
        let more = new.cost - old.cost;
        let tolerance = old.unit.tolerance(old.cost);
        match () {
            () if more > tolerance => Verdict::Dearer,
            () if more < -tolerance => Verdict::Cheaper,
            () => Verdict::Kept,
        }
    }
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<58} {:<12} {:>10} {:>10} {:>9}", "path", "unit", "baseline", "now", "change")?;
        for line in &self.lines {
            let (old, new) = line;
            let Some(Figure { path, unit, .. }) = old.as_ref().or(new.as_ref()) else { continue };
            let cost =
                |figure: &Option<Figure>| figure.as_ref().map_or("-".to_owned(), |figure| shown(figure.cost));
            let mut change = String::new();
            if let (Some(old), Some(new)) = (old, new) {
                write!(change, "{:+.2} %", (new.cost / old.cost - 1.0) * 100.0)?;
            }
            let verdict = match Self::verdict(line) {
                Verdict::Kept => "",
                Verdict::Dearer => "DEARER",
                Verdict::Cheaper => "cheaper",
                Verdict::Unmatched if new.is_none() => "NOT COUNTED",
                Verdict::Unmatched => "NOT IN THE BASELINE",
            };
            let unit = unit.name();
            let line =
                format!("{path:<58} {unit:<12} {:>10} {:>10} {change:>9} {verdict}", cost(old), cost(new));
            writeln!(f, "{}", line.trim_end())?;
        }
        if !self.is_kept() {
            writeln!(
                f,
                "A path costs more, or is not in the baseline. If this is intended: {COMMAND} -- --write, and say in the commit why."
            )?;
        } else if self.has(Verdict::Cheaper) {
            writeln!(f, "A path costs less. To keep it so: {COMMAND} -- --write, and commit the result.")?;
        }
        Ok(())
    }
}

/// Returns a cost with two digits after the point if it is below 1,000 and not whole.
fn shown(cost: f64) -> String {
    if cost.abs() < 1_000.0 && (cost - cost.round()).abs() > 0.005 {
        format!("{cost:.2}")
    } else {
        format!("{:.0}", cost.round())
    }
}

fn machine() -> String {
    format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)
}

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.tsv");

const COMMAND: &str = "`cargo run --release -p dlock-benches --bin instructions`";

const MACHINE: &str = " machine: ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_costs_more_fails_and_is_named() {
        let judged = kept().judge(&[call(1_031.0), asks(3.0)]);

        assert!(!judged.is_kept());
        let said = judged.to_string();
        let line = said.lines().find(|line| line.contains("DEARER")).expect("a line says so");
        assert!(line.starts_with("call") && line.contains("+3.10 %"), "{line}");
        assert!(said.contains("-- --write, and say in the commit why"), "{said}");
    }

    #[test]
    fn a_change_within_the_tolerance_is_accepted() {
        assert!(kept().judge(&[call(1_029.0), asks(3.0)]).is_kept());
        assert!(!kept().judge(&[call(1_029.0), asks(3.0)]).has(Verdict::Cheaper));
    }

    #[test]
    fn one_allocation_more_fails() {
        assert!(!kept().judge(&[call(1_000.0), asks(4.0)]).is_kept());
    }

    #[test]
    fn one_byte_more_fails() {
        let size = |cost| Figure::new("future", Unit::Bytes, cost);

        assert!(!Baseline::of(vec![size(200.0)]).judge(&[size(201.0)]).is_kept());
    }

    #[test]
    fn a_path_that_costs_less_is_reported() {
        let judged = kept().judge(&[call(900.0), asks(3.0)]);

        assert!(judged.is_kept());
        assert!(judged.to_string().contains("To keep it so"), "{judged}");
    }

    #[test]
    fn a_path_that_only_one_side_has_fails() {
        assert!(!kept().judge(&[call(1_000.0)]).is_kept());
        assert!(!kept().judge(&[call(1_000.0), asks(3.0), Figure::new("new", Unit::Bytes, 1.0)]).is_kept());
    }

    #[test]
    fn a_baseline_is_read_as_it_was_written() {
        let read: Baseline = kept().to_string().parse().expect("it was written so");

        assert_eq!(read, kept());
        assert!("a line that is none".parse::<Baseline>().is_err());
    }

    #[test]
    fn counts_of_another_machine_are_not_compared() {
        let elsewhere = Baseline { machine: "m68k-amiga".to_owned(), figures: Vec::new() };

        assert!(elsewhere.not_of_here().is_some_and(|why| why.contains("m68k-amiga")));
        assert!(kept().not_of_here().is_none());
    }

    fn kept() -> Baseline {
        Baseline::of(vec![call(1_000.0), asks(3.0)])
    }

    fn call(cost: f64) -> Figure {
        Figure::new("call", Unit::Instructions, cost)
    }

    fn asks(cost: f64) -> Figure {
        Figure::new("call", Unit::Allocations, cost)
    }
}
