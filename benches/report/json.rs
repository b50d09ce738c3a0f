//! The report as lines of JSON, one object each.
//!
//! ```text
//! {"scenario", "ground": TEXT}                                     the machine, the programs, and the revision of the sources
//! {"scenario", "what", "contender", "kind", "unit", "at", "median", "min", "max", "rounds", "goal", "ok", "ahead", "behind"}
//!     kind   floor | ours | rival | background rival | tracking rival
//!     at     the number of tasks, waiters, or held locks of the row, if it is part of a series
//!     goal   {"at_least": N} or {"at_most": N}, and `ok`, if the row has a goal
//!     ahead  true if another library is ahead of `ours`; absent otherwise
//!     behind the configuration of `ours` that the library is not ahead of; absent if there is none
//! {"scenario", "what", "contender", "unit": "ms", "count", "percentiles": [[PERCENT, FIGURE], ..]}     over all rounds
//! {"scenario", "what", "contender", "shares": [COUNT, ..]}          the holds of each task in the last round
//! {"scenario", "contender", "skipped": REASON}                     the contender does not support this
//! {"scenario", "contender", "broke": REASON}                       the contender failed
//! ```

use std::fmt::Write as _;

use crate::contenders::Kind;
use crate::figures::percentile;
use crate::report::row::Row;
use crate::report::{Ahead, Goal, Of, Report, Spread};

/// Returns the report as lines.
pub(crate) fn lines(report: &Report) -> String {
    let mut text = String::new();
    for scenario in &report.scenarios {
        let _ = writeln!(text, r#"{{"scenario":{},"ground":{}}}"#, quoted(scenario), quoted(&report.ground));
    }
    for row in &report.rows {
        let _ = writeln!(text, "{}", of_row(row, report.ahead(row)));
    }
    for spread in &report.spreads {
        let _ = writeln!(text, "{}", of_spread(spread));
    }
    for absence in &report.absences {
        let name = if absence.broke { "broke" } else { "skipped" };
        let _ = writeln!(
            text,
            r#"{{"scenario":{},"contender":{},"{name}":{}}}"#,
            quoted(absence.scenario),
            quoted(&absence.contender),
            quoted(&absence.why)
        );
    }
    text
}

fn of_row(row: &Row, ahead: Option<Ahead>) -> String {
    let kind = match row.kind {
        Kind::Floor => "floor",
        Kind::Ours => "ours",
        Kind::Rival => "rival",
        Kind::BackgroundRival => "background rival",
        Kind::TrackingRival => "tracking rival",
        Kind::IdempotentRival => "idempotent rival",
    };
    let mut text = format!(
        r#"{{"scenario":{},"what":{},"contender":{},"kind":"{kind}","unit":{}"#,
        quoted(row.scenario),
        quoted(&row.what),
        quoted(&row.contender),
        quoted(row.unit)
    );
    if let Some(at) = row.at {
        let _ = write!(text, r#","at":{at}"#);
    }
    let [median, min, max] = [row.median(), row.min(), row.max()];
    let _ = write!(text, r#","median":{median},"min":{min},"max":{max},"rounds":{}"#, row.figures.len());
    if let Some(goal) = row.goal {
        let (name, bound) = match goal {
            Goal::AtLeast(bound) => ("at_least", bound),
            Goal::AtMost(bound) => ("at_most", bound),
        };
        let _ = write!(text, r#","goal":{{"{name}":{bound}}},"ok":{}"#, goal.is_met(median));
    }
    if let Some(Ahead { behind }) = ahead {
        text.push_str(r#","ahead":true"#);
        if let Some(who) = behind {
            let _ = write!(text, r#","behind":{}"#, quoted(who));
        }
    }
    text + "}"
}

fn of_spread(Spread { scenario, what, contender, of }: &Spread) -> String {
    let of = match of {
        Of::Times(times) => {
            let percentiles =
                PERCENTS.map(|percent| format!("[{percent},{}]", percentile(times, percent))).join(",");
            format!(r#""unit":"ms","count":{},"percentiles":[{percentiles}]"#, times.len())
        }
        Of::Shares(shares) => {
            let shares: Vec<_> = shares.iter().map(u64::to_string).collect();
            format!(r#""shares":[{}]"#, shares.join(","))
        }
    };
    format!(
        r#"{{"scenario":{},"what":{},"contender":{},{of}}}"#,
        quoted(scenario),
        quoted(what),
        quoted(contender)
    )
}

/// Returns `text` as a JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted + "\""
}

const PERCENTS: [f64; 11] = [0.0, 1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 99.0, 99.9, 100.0];
