//! Several runs as one: what they agree on.
//!
//! A row has the median of the runs, with the least and the greatest figure of all. A rival is ahead where it is so in every run: among rows
//! that are ties, one run has somebody ahead by chance. What else a run says (distributions, who did not finish) is that of the first run
//! which says it.
//!
//! ```text
//! "runs": N        how many runs have the row
//! "ahead_in": K    in how many of them a rival is ahead; `ahead` is true where that is all, and absent else
//! "behind": WHO    a way of ours that the rival is not ahead of in every run; the one that most of them name
//! ```

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::Failure;

/// Returns the lines of all of these runs together.
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

type Line = Map<String, Value>;

/// What a line is of, which is the same in each run; why somebody has no figures may differ.
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
    // Of an even number, the upper of the two, as in one run.
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

/// Returns what there is the most of; of several the first.
fn most_often<'a>(all: impl Iterator<Item = &'a Value>) -> Option<&'a Value> {
    let all: Vec<_> = all.collect();
    let count = |of: &Value| all.iter().filter(|other| **other == of).count();
    all.iter().rev().copied().max_by_key(|of| count(of)) // of equals the last, which is the first here
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
    fn a_row_has_the_median_of_the_runs_and_the_least_and_the_greatest_of_all() {
        let line = joined(&[run(3.0, ""), run(9.0, ""), run(2.0, "")]);

        let figures = ["median", "min", "max", "rounds", "runs"].map(|name| line[name].as_f64());
        assert_eq!(figures, [3.0, 1.5, 9.5, 3.0, 3.0].map(Some));
        assert_eq!(line["kind"], "rival");
    }

    #[test]
    fn a_rival_is_ahead_where_it_is_so_in_every_run() {
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
    fn a_rival_is_ahead_of_another_way_of_ours_where_it_is_so_in_every_run() {
        let (behind, before) = (r#","ahead":true,"behind":"ours, io=runtime""#, r#","ahead":true"#);
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
    fn what_only_some_runs_have_is_kept() {
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
    fn what_is_no_line_of_a_run_is_named() {
        let error = join(["not a line"]).expect_err("it is none").to_string();

        assert!(error.contains("not a line"), "{error}");
    }
}
