//! Joins several runs into one.
//!
//! A row has the median of the runs, and the least and the greatest figure of all. Another library
//! is ahead only if it is ahead in every run: if two are equal, one of them is ahead in a single
//! run by chance. Other lines (distributions, contenders that did not finish) are those of the
//! first run that has them.
//!
//! A scenario that none of the runs has keeps the figures that it had.
//!
//! ```text
//! "runs": N        the number of runs that have the row
//! "ahead_in": K    the number of runs in which the library is ahead; `ahead` is true if these are all, and absent otherwise
//! "behind": NAME   the configuration of `ours` that the library is not ahead of in every run; the most frequent one
//! ```

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::Failure;

/// Returns the joined lines of these runs.
pub(crate) fn join<'a>(runs: impl IntoIterator<Item = &'a str>) -> Result<String, Failure> {
    let mut places = HashMap::new();
    let mut joined: Vec<Vec<Line>> = Vec::new();
    for run in runs {
        for line in run.lines().filter(|line| !line.trim().is_empty()) {
            let line: Line = serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))?;
            let place = *places.entry(subject(&line)).or_insert(joined.len());
            if place == joined.len() {
                joined.push(Vec::new());
            }
            joined[place].push(line);
        }
    }
    let join = |same: &Vec<Line>| if same[0].contains_key("median") { row(same) } else { same[0].clone() };
    Ok(joined.iter().map(|same| Value::Object(join(same)).to_string() + "\n").collect())
}

/// Returns the lines of `before` whose scenario `joined` does not have.
pub(crate) fn of_other_scenarios(before: &str, joined: &str) -> Result<String, Failure> {
    let scenario = |line: &str| -> Result<Value, Failure> {
        let line: Line = serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))?;
        Ok(line.get("scenario").cloned().unwrap_or_default())
    };
    let measured = joined.lines().map(scenario).collect::<Result<Vec<_>, _>>()?;
    let mut others = String::new();
    for line in before.lines() {
        if !measured.contains(&scenario(line)?) {
            others.push_str(line);
            others.push('\n');
        }
    }
    Ok(others)
}

type Line = Map<String, Value>;

/// Returns the identity of a line across runs.
///
/// The reason for missing figures may differ between runs.
fn subject(line: &Line) -> Vec<String> {
    let has = |name: &str| line.contains_key(name).to_string();
    let text = |name: &str| line.get(name).map(Value::to_string).unwrap_or_default();
    vec![
        text("scenario"),
        text("what"),
        text("contender"),
        has("median"),
        has("percentiles"),
        text("skipped"),
        text("broke"),
        text("ground"),
    ]
}

/// Joins the lines that several runs have for one row.
fn row(same: &[Line]) -> Line {
    let of = |name: &str| {
        let mut figures: Vec<f64> = same.iter().filter_map(|line| line.get(name)?.as_f64()).collect();
        figures.sort_by(f64::total_cmp);
        figures
    };
    let mut line = same[0].clone();
    // If the count is even, the upper of the two middle figures, as in one run.
    let medians = of("median");
    let median = medians.get(medians.len() / 2).copied().unwrap_or_default();
    line.insert("median".to_owned(), median.into());
    for (name, figure) in [("min", of("min").first().copied()), ("max", of("max").last().copied())] {
        line.insert(name.to_owned(), figure.into());
    }
    line.insert(
        "rounds".to_owned(),
        same.iter().filter_map(|line| line.get("rounds")?.as_u64()).sum::<u64>().into(),
    );
    line.insert("runs".to_owned(), same.len().into());
    if let Some(goal) = same[0].get("goal") {
        let bound = |name: &str| goal.get(name).and_then(Value::as_f64);
        let is_met = bound("at_least").is_none_or(|least| median >= least)
            && bound("at_most").is_none_or(|most| median <= most);
        line.insert("ok".to_owned(), is_met.into());
    }
    line.remove("ahead");
    line.remove("behind");
    let ahead: Vec<_> = same.iter().filter(|line| line.contains_key("ahead")).collect();
    if ahead.is_empty() {
        return line;
    }
    line.insert("ahead_in".to_owned(), ahead.len().into());
    if ahead.len() == same.len() {
        line.insert("ahead".to_owned(), true.into());
    }
    if let Some(behind) = most_often(ahead.iter().filter_map(|line| line.get("behind"))) {
        line.insert("behind".to_owned(), behind.clone());
    }
    line
}

/// Returns the most frequent value; the first of equals.
fn most_often<'a>(all: impl Iterator<Item = &'a Value>) -> Option<&'a Value> {
    let all: Vec<_> = all.collect();
    let count = |of: &Value| all.iter().filter(|other| **other == of).count();
    all.iter().rev().copied().max_by_key(|of| count(of)) // `max_by_key` returns the last of equals, which is the first before `rev`
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One run of a row of a rival.
    fn run(median: f64, more: &str) -> String {
        format!(
            r#"{{"scenario":"s","what":"w","contender":"theirs","kind":"rival","unit":"x","median":{median},"min":{},"max":{},"rounds":1{more}}}"#,
            median - 0.5,
            median + 0.5
        )
    }

    fn joined(runs: &[String]) -> Line {
        let text = join(runs.iter().map(String::as_str)).expect("lines of JSON");
        assert_eq!(text.lines().count(), 1, "{text}");
        serde_json::from_str(&text).expect("a line of JSON")
    }

    #[test]
    fn a_row_has_the_median_minimum_and_maximum_of_the_runs() {
        let line = joined(&[run(3.0, ""), run(9.0, ""), run(2.0, "")]);

        let figures = ["median", "min", "max", "rounds", "runs"].map(|name| line[name].as_f64());
        assert_eq!(figures, [3.0, 1.5, 9.5, 3.0, 3.0].map(Some));
        assert_eq!(line["kind"], "rival");
    }

    #[test]
    fn a_library_is_ahead_only_if_it_is_ahead_in_every_run() {
        let (ahead, not) = (r#","ahead":true"#, "");
        let of = |marks: [&str; 3]| {
            let line = joined(&marks.map(|mark| run(1.0, mark)));
            (line.contains_key("ahead"), line.get("ahead_in").and_then(Value::as_u64))
        };

        assert_eq!(of([ahead, ahead, ahead]), (true, Some(3)));
        assert_eq!(of([not, ahead, ahead]), (false, Some(2)));
        assert_eq!(of([ahead, not, not]), (false, Some(1)));
        assert_eq!(of([not, not, not]), (false, None));
    }

    #[test]
    fn behind_names_a_configuration_not_beaten_in_every_run() {
        let (behind, before) = (r#","ahead":true,"behind":"ours, tracking=off""#, r#","ahead":true"#);
        let of = |marks: [&str; 3]| joined(&marks.map(|mark| run(1.0, mark))).contains_key("behind");

        assert!(of([behind, behind, behind]));
        assert!(of([before, before, behind]));
        assert!(!of([before, before, before]));
        let another = r#","ahead":true,"behind":"ours, tracking=off""#;
        let of_most = |marks: [&str; 3]| joined(&marks.map(|mark| run(1.0, mark)))["behind"].clone();
        assert_eq!(of_most([behind, another, another]), "ours, tracking=off");
        assert_eq!(of_most([another, behind, before]), "ours, tracking=off", "of equals the first");
        assert!(!of([before, "", before]), "it is ahead of none of ours in every run");
    }

    #[test]
    fn a_goal_is_met_by_the_median_of_the_runs() {
        let goal = |ok| format!(r#","goal":{{"at_least":2.5}},"ok":{ok}"#);
        let of = |medians: [f64; 3]| {
            joined(&medians.map(|median| run(median, &goal(median >= 2.5))))["ok"].as_bool()
        };

        assert_eq!(of([1.0, 3.0, 4.0]), Some(true));
        assert_eq!(of([1.0, 2.0, 4.0]), Some(false));
    }

    #[test]
    fn lines_of_only_some_runs_are_kept() {
        let spread = |count: u64| {
            format!(
                r#"{{"scenario":"s","what":"w","contender":"theirs","unit":"ms","count":{count},"percentiles":[]}}"#
            )
        };
        let broke = r#"{"scenario":"s","contender":"theirs","broke":"it hung"}"#.to_owned();
        let runs = [
            format!("{}\n{}\n", run(1.0, ""), spread(7)),
            format!("{broke}\n{}\n", spread(8)),
            run(2.0, r#","ahead":true"#),
        ];

        let text = join(runs.iter().map(String::as_str)).expect("lines of JSON");

        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!((lines[0]["runs"].as_u64(), lines[0]["ahead_in"].as_u64()), (Some(2), Some(1)));
        assert_eq!(lines[1]["count"], 7, "a distribution is the first run's");
        assert_eq!(lines[2]["broke"], "it hung");
    }

    #[test]
    fn scenarios_that_no_run_has_keep_their_figures() {
        let other = run(7.0, "").replace(r#""scenario":"s""#, r#""scenario":"another""#);
        let before = format!("{}\n{other}\n", run(1.0, ""));

        let kept = of_other_scenarios(&before, &run(2.0, "")).expect("lines of JSON");

        assert_eq!(kept, other + "\n");
    }

    #[test]
    fn an_invalid_line_is_named_in_the_error() {
        let error = join(["not a line"]).expect_err("it is none").to_string();

        assert!(error.contains("not a line"), "{error}");
    }
}
