//! The report: rows of figures, distributions, and contenders that did not finish.
//!
//! ```text
//! row     one figure per round, and an optional goal
//! table   the report as a table of contenders
//! json    the report as JSON: one line per row, distribution, and contender that did not finish
//! ```

mod json;
mod row;
mod table;

use std::io::Write;
use std::path::Path;

pub(crate) use row::{Goal, What};

use row::{Better, Row};

use crate::Failure;
use crate::contenders::{Contender, Kind};
use crate::process::Cannot;

/// All measured figures.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// The machine, the programs, and the revision of the sources.
    ground: String,
    scenarios: Vec<&'static str>,
    rows: Vec<Row>,
    spreads: Vec<Spread>,
    absences: Vec<Absence>,
}

/// A distribution over all rounds, for plots.
#[derive(Debug)]
pub(crate) struct Spread {
    pub(crate) scenario: &'static str,
    pub(crate) what: String,
    pub(crate) contender: String,
    pub(crate) of: Of,
}

/// The data of a [`Spread`].
#[derive(Debug)]
pub(crate) enum Of {
    /// Milliseconds, sorted.
    Times(Vec<f64>),
    /// The number of holds of each task in the last round.
    Shares(Vec<u64>),
}

/// A contender that did not finish a scenario.
#[derive(Debug)]
pub(crate) struct Absence {
    pub(crate) scenario: &'static str,
    pub(crate) contender: String,
    pub(crate) kind: Kind,
    pub(crate) why: String,
    /// Whether the contender failed; otherwise it does not support the scenario.
    pub(crate) broke: bool,
}

impl Report {
    pub(crate) fn on(ground: String) -> Self {
        Self { ground, ..Self::default() }
    }

    /// Records that a scenario is measured.
    pub(crate) fn begin(&mut self, scenario: &'static str) {
        self.scenarios.push(scenario);
    }

    pub(crate) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    pub(crate) fn spread(&mut self, spread: Spread) {
        self.spreads.push(spread);
    }

    /// Records that a contender did not finish, once per reason.
    pub(crate) fn absent(&mut self, scenario: &'static str, contender: &Contender, failure: &Failure) {
        let (contender, kind, why) = (contender.name.clone(), contender.kind, failure.to_string());
        let broke = !failure.is::<Cannot>();
        let known =
            |other: &Absence| (other.scenario, &other.contender, &other.why) == (scenario, &contender, &why);
        if !self.absences.iter().any(known) {
            self.absences.push(Absence { scenario, contender, kind, why, broke });
        }
    }

    /// Returns `true` if no contender failed except other libraries.
    pub(crate) fn is_whole(&self) -> bool {
        self.absences.iter().all(|absence| !absence.broke || absence.kind.is_rival())
    }

    /// Prints the figures of one scenario.
    pub(crate) fn print(&self, scenario: &'static str) {
        print!("{}", table::block(self, scenario));
    }

    /// Writes the lines of JSON.
    pub(crate) fn write_json(&self, file: &Path) -> Result<(), Failure> {
        Ok(std::fs::File::create(file)?.write_all(json::lines(self).as_bytes())?)
    }

    /// Returns `Some` if the row is of another library that is ahead of `ours`.
    ///
    /// A library that releases in the background is compared with `ours, background` if that row
    /// exists.
    fn ahead(&self, row: &Row) -> Option<Ahead> {
        let is_ahead_of = |name: &str| {
            let ours =
                self.rows.iter().find(|other| other.is_beside(row) && other.contender == name)?.median();
            Some(match row.better {
                Better::More => row.median() > ours + row.grain,
                Better::Less => row.median() < ours - row.grain,
                Better::Neither => false,
            })
        };
        let is_ahead = match row.kind {
            Kind::Floor | Kind::Ours => return None,
            Kind::Rival | Kind::TrackingRival | Kind::IdempotentRival => is_ahead_of("ours"),
            Kind::BackgroundRival => is_ahead_of("ours, background").or_else(|| is_ahead_of("ours")),
        };
        let behind = row.kind.ways_alike().iter().copied().find(|way| is_ahead_of(way) == Some(false));
        is_ahead.filter(|is_ahead| *is_ahead).map(|_| Ahead { behind })
    }
}

/// Another library is ahead of `ours`.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    /// The comparable configuration of `ours` that the library is not ahead of.
    behind: Option<&'static str>,
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    fn report(what: &What, ours: f64, theirs: f64) -> Report {
        let mut report = Report::default();
        let own = Contender::own(Path::new(""), "ours").expect("one of ours");
        let rival = Contender::rival("theirs", Kind::Rival, &Command::new("theirs"));
        report.add(what.row("test", &own, vec![ours]));
        report.add(what.row("test", &rival, vec![theirs]));
        report
    }

    #[test]
    fn ahead_depends_on_whether_more_or_less_is_better() {
        let (speed, wait, count) =
            (What::more("speed", "/s"), What::less("wait", "ms"), What::neither("times", ""));
        let ahead = |what: &What, theirs: f64| {
            let text = table::block(&report(what, 10.0, theirs), "test");
            assert_eq!(text.contains("AHEAD"), json::lines(&report(what, 10.0, theirs)).contains("ahead"));
            text.contains("AHEAD")
        };

        assert_eq!([11.0, 10.0, 9.0].map(|theirs| ahead(&speed, theirs)), [true, false, false]);
        assert_eq!([11.0, 10.0, 9.0].map(|theirs| ahead(&wait, theirs)), [false, false, true]);
        assert_eq!([11.0, 10.0, 9.0].map(|theirs| ahead(&count, theirs)), [false; 3]);
        let [speed, wait] = [speed.grain(1.5), wait.grain(1.5)];
        assert_eq!([12.0, 11.0, 9.0].map(|theirs| ahead(&speed, theirs)), [true, false, false]);
        assert_eq!([11.0, 9.0, 8.0].map(|theirs| ahead(&wait, theirs)), [false, false, true]);
    }

    #[test]
    fn ahead_of_the_default_only_is_marked() {
        let speed = What::more("speed", "/s");
        let said = |on_the_runtime: f64| {
            let mut report = report(&speed, 10.0, 11.0);
            let own = Contender::own(Path::new(""), "ours, tracking=off").expect("one of ours");
            report.add(speed.row("test", &own, vec![on_the_runtime]));
            let of_program = r#""ahead":true,"behind":"ours, tracking=off""#;
            let lines = json::lines(&report);
            assert!(lines.contains(r#""ahead":true"#), "{lines}");
            (table::block(&report, "test").contains("not of ours, tracking=off"), lines.contains(of_program))
        };

        assert_eq!(said(12.0), (true, true));
        assert_eq!(said(10.5), (false, false));
    }

    #[test]
    fn a_goal_applies_to_its_contender_and_to_the_median() {
        let what = What::more("speed", "/s").at(64).goal("ours", Goal::AtLeast(5.0));
        let own = Contender::own(Path::new(""), "ours").expect("one of ours");

        let row = what.row("test", &own, vec![9.0, 1.0, 6.0]);

        assert_eq!(format!("{} {} {}", row.median(), row.min(), row.max()), "6 1 9");
        assert_eq!(row.is_met(), Some(true));
        assert_eq!(what.row("test", &own, vec![9.0, 1.0, 4.0]).is_met(), Some(false));
        let text = json::lines(&report(&what, 6.0, 4.0));
        let theirs = text.lines().nth(1).expect("a line of theirs");
        assert!(theirs.contains(r#""at":64,"median":4"#) && !theirs.contains("goal"), "{theirs}");
    }

    #[test]
    fn a_reason_with_quotes_is_a_json_string() {
        let mut report = Report::default();
        let rival = Contender::rival("theirs", Kind::Rival, &Command::new("theirs"));
        let failure = Failure::from("it said \"no\"\tin C:\\locks");

        report.absent("test", &rival, &failure);

        let wanted = r#"{"scenario":"test","contender":"theirs","broke":"it said \"no\"\u0009in C:\\locks"}"#;
        assert_eq!(json::lines(&report), format!("{wanted}\n"));
    }
}
