//! The report as a table: a block per scenario, grouped by what was measured.

use std::fmt::Write as _;

use crate::report::row::Row;
use crate::report::{Ahead, Goal, Report};

/// Returns the block of one scenario.
pub(crate) fn block(report: &Report, scenario: &'static str) -> String {
    let mut text = format!(
        "\n{scenario:<58} {:<22} {:>11} {:>11} {:>11} {:<5} {:>12}\n",
        "contender", "median", "min", "max", "unit", "goal"
    );
    let mut before: Option<&Row> = None;
    for row in in_order(report, scenario) {
        let what = if before.is_some_and(|before| before.is_beside(row)) { "" } else { &row.what };
        let _ = writeln!(text, "{}", line(row, what, report.ahead(row)));
        before = Some(row);
    }
    for absence in report.absences.iter().filter(|absence| absence.scenario == scenario) {
        let verdict = if absence.broke { "BROKE" } else { "SKIPPED" };
        let _ = writeln!(text, "{verdict}: {scenario}: {}: {}", absence.contender, absence.why);
    }
    text
}

/// Returns the rows of a scenario, grouped by what they measure.
fn in_order<'a>(report: &'a Report, scenario: &'static str) -> Vec<&'a Row> {
    let rows: Vec<_> = report.rows.iter().filter(|row| row.scenario == scenario).collect();
    let first = |row: &Row| rows.iter().position(|other| other.is_beside(row));
    let mut sorted = rows.clone();
    sorted.sort_by_key(|row| first(row));
    sorted
}

fn line(row: &Row, what: &str, ahead: Option<Ahead>) -> String {
    let goal = row.goal.map_or(String::new(), |goal| match goal {
        Goal::AtLeast(bound) => format!(">= {}", shown(bound)),
        Goal::AtMost(bound) => format!("<= {}", shown(bound)),
    });
    let verdict = match (ahead, row.is_met()) {
        (Some(Ahead { behind: None }), _) => "AHEAD of ours".to_owned(),
        (Some(Ahead { behind: Some(who) }), _) => format!("AHEAD of ours, not of {who}"),
        (None, Some(true)) => "ok".to_owned(),
        (None, Some(false)) => "MISSED".to_owned(),
        (None, None) => String::new(),
    };
    let line = format!(
        "  {what:<56} {:<22} {:>11} {:>11} {:>11} {:<5} {goal:>12} {verdict}",
        row.contender,
        shown(row.median()),
        shown(row.min()),
        shown(row.max()),
        row.unit,
    );
    line.trim_end().to_owned()
}

/// Returns a figure with thousands separators.
///
/// A figure below 100 has two digits after the point, and one below 0.01 has five.
fn shown(figure: f64) -> String {
    if figure != 0.0 && figure.abs() < 0.01 {
        return format!("{figure:.5}");
    }
    if figure.abs() < 100.0 {
        return format!("{figure:.2}");
    }
    let digits = format!("{:.0}", figure.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if figure < 0.0 { format!("-{text}") } else { text }
}
