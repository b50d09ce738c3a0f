//! Writes the figures into Markdown, between two markers.
//!
//! ```text
//! <!-- figures: NAME -->
//! written by this program
//! <!-- end of figures -->
//! ```

use std::fmt::Write as _;

use crate::Failure;
use crate::figures::{Figures, Goal, Line};
use crate::svg::shown;

/// Returns `text` with the figures between all markers written again.
pub(crate) fn fill(text: &str, figures: &Figures) -> Result<String, Failure> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (name, after) = after.split_once(" -->\n").ok_or("a marker of figures has no end")?;
        let (_, after) = after.split_once(END).ok_or_else(|| format!("the figures `{name}` have no end"))?;
        let written = match name {
            "table" => table(figures),
            "headline" => headline(figures),
            "ahead" => ahead(figures),
            "goals" => goals(figures),
            "grounds" => grounds(figures),
            other => return Err(format!("unknown figures `{other}`").into()),
        };
        let written = wrapped(&written);
        let _ = write!(filled, "{before}{BEGIN}{name} -->\n{written}{END}");
        rest = after;
    }
    Ok(filled + rest)
}

/// Wraps the lines of prose, as in the rest of the documents. Tables and pictures stay as they are.
fn wrapped(text: &str) -> String {
    const WIDTH: usize = 100;
    let mut wrapped = String::new();
    for line in text.lines() {
        let indent = if line.starts_with("- ") { "  " } else { "" };
        let mut length = 0;
        for word in words(line) {
            let is_prose = !line.starts_with(['|', '!']);
            if is_prose && length > 0 && length + 1 + word.chars().count() > WIDTH {
                let _ = write!(wrapped, "\n{indent}");
                length = indent.len();
            } else if length > 0 {
                wrapped.push(' ');
                length += 1;
            }
            wrapped.push_str(word);
            length += word.chars().count();
        }
        wrapped.push('\n');
    }
    wrapped
}

/// Returns the words of a line. Code in backticks is one word.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    line.split(move |c| {
        is_code ^= c == '`';
        c == ' ' && !is_code
    })
}

/// A column: its head, and the scenario and `what` of its rows.
type Column = (&'static str, &'static str, &'static str);

const COLUMNS: [Column; 11] = [
    ("1 task, x raw", "uncontended", "1 task, pairs, to raw"),
    ("8 tasks, x raw", "uncontended", "8 tasks, pairs, to raw"),
    ("64 tasks, x raw", "uncontended", "64 tasks, pairs, to raw"),
    ("1,024 tasks, x raw", "uncontended", "1024 tasks, pairs, to raw"),
    ("64 tasks, processor time, x raw", "uncontended", "64 tasks, processor time, to raw"),
    ("hot key, 64 tasks, hand-offs/s", "hot-key", "empty body, hand-offs"),
    ("4 processes x 16 tasks, hand-offs/s", "processes", "4 x 16, empty body, hand-offs"),
    ("wake-up p50, ms", "wake-up", "release to body in another process, p50"),
    ("wake-up p99, ms", "wake-up", "release to body in another process, p99"),
    ("10,000 held, bytes each", "held", "10000 held, resident bytes of each"),
    ("10,000 held, % of a core", "held", "10000 held, of a core"),
];

/// Returns a row per contender; `-` if it was not measured or is not supported.
fn table(figures: &Figures) -> String {
    let contenders = figures.contenders();
    if contenders.is_empty() {
        return String::new();
    }
    for (_, scenario, what) in COLUMNS {
        if !contenders.iter().any(|contender| figures.median(scenario, what, contender).is_some()) {
            println!("SKIPPED: a column of the table: the figures have no `{what}` of `{scenario}`");
        }
    }
    let heads: Vec<_> = COLUMNS.iter().map(|(head, ..)| *head).collect();
    let mut text = format!("\n| | {} |\n|---|{}\n", heads.join(" | "), "---|".repeat(heads.len()));
    for contender in contenders {
        let cell = |(_, scenario, what): &Column| {
            figures.median(scenario, what, contender).map_or_else(|| "-".to_owned(), shown)
        };
        let cells: Vec<_> = COLUMNS.iter().map(cell).collect();
        if cells.iter().any(|cell| cell != "-") {
            let name = contender.replace('<', "&lt;").replace('|', "&#124;");
            let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
        }
    }
    text + "\n"
}

/// Returns the figures of the README: each sentence has a number, what to do with it, and the
/// command that measures it.
fn headline(figures: &Figures) -> String {
    let of = |scenario: &str, what: &str, who| Some(shown(figures.median(scenario, what, who)?));
    let ours = |scenario: &str, what: &str| of(scenario, what, "ours");
    let of_wake_up = || {
        let percent = |percent| ours("wake-up", &format!("release to body in another process, p{percent}"));
        let (half, most) = (percent(50)?, percent(99)?);
        Some(format!(
            "- From a release to the start of a waiting body in another process: {half} ms at p50, {most} ms at \
             p99. Set `wait` to the time of a body plus this, multiplied by the number of callers ahead (`{RUN} --only wake-up`).\n"
        ))
    };
    let of_hot_key = || {
        let through_redis = of("processes", "4 x 16, empty body, hand-offs", "ours, no hand-off")?;
        Some(format!(
            "- Hand-offs per second of one lock that 64 tasks want: {} within one process, {through_redis} if every \
             one goes through Redis. If one key needs more, split it (`{RUN} --only hot-key --only processes`).\n",
            ours("hot-key", "empty body, hand-offs")?,
        ))
    };
    let of_held = || {
        let bytes = ours("held", "10000 held, resident bytes of each")?;
        let share = ours("held", "10000 held, of a core")?;
        Some(format!(
            "- 10,000 locks that are held and renewed: {share} % of one core, {bytes} bytes each. One lock per \
             order or user is cheap (`{RUN} --only held`).\n"
        ))
    };
    let sentences: String = [of_wake_up(), of_hot_key(), of_held()].into_iter().flatten().collect();
    if sentences.is_empty() { sentences } else { format!("\n{sentences}\n") }
}

/// Returns all rows in which another library is ahead.
fn ahead(figures: &Figures) -> String {
    if figures.contenders().is_empty() {
        return String::new();
    }
    let runs = match figures.runs() {
        1 => "this run".to_owned(),
        runs => format!("each of the {runs} runs"),
    };
    let (always, sometimes): (Vec<_>, Vec<_>) =
        figures.ahead().partition(|line| line.ahead_in() == line.runs);
    // A row whose `behind` is unknown is listed with those without one, so that none is left out.
    let is_known = |line: &&Line| WAYS_ALIKE.iter().any(|(way, _)| line.behind.as_deref() == Some(way));
    let (of_default, of_all): (Vec<_>, Vec<_>) = always.into_iter().partition(is_known);
    let mut text = String::new();
    let mut add = |says: &str, way: &str, lines: &[&Line]| {
        if !lines.is_empty() {
            let _ = write!(text, "\n{says}:\n\n{}", table_of_those_ahead(figures, way, lines));
        }
    };
    add(&format!("Ahead of `ours` in {runs}"), WAYS_ALIKE[0].0, &of_all);
    for (way, says) in WAYS_ALIKE {
        let lines: Vec<_> =
            of_default.iter().filter(|line| line.behind.as_deref() == Some(way)).copied().collect();
        add(&format!("Ahead of `ours` in {runs}, but not in each of `{way}`, which {says}"), way, &lines);
    }
    add("Ahead of `ours` in some runs, and behind it in others", WAYS_ALIKE[0].0, &sometimes);
    if text.is_empty() {
        text = format!("\nNo other library is ahead of `ours` in any row of {runs}.\n");
    }
    text + "\n"
}

/// Returns the rows that miss their goals.
fn goals(figures: &Figures) -> String {
    if figures.contenders().is_empty() {
        return String::new();
    }
    let mut text = String::new();
    for (line, goal) in figures.short_of_goals() {
        let (bound, word) = match goal {
            Goal::AtLeast(bound) => (bound, "at least"),
            Goal::AtMost(bound) => (bound, "at most"),
        };
        let (Line { scenario, contender, .. }, what) = (line, line.what_in_unit());
        let figure = line.median.map_or("-".to_owned(), shown);
        let _ = writeln!(text, "| {scenario} | {what} | {contender} | {figure} | {word} {} |", shown(bound));
    }
    if text.is_empty() {
        return "\nEvery goal is met.\n\n".to_owned();
    }
    format!("\n| scenario | what | contender | figure | goal |\n|---|---|---|---|---|\n{text}\n")
}

/// Returns the machines and the scenarios that were measured on each.
fn grounds(figures: &Figures) -> String {
    let grounds = figures.grounds();
    if grounds.is_empty() {
        return String::new();
    }
    let mut text = "\n| measured on | scenarios |\n|---|---|\n".to_owned();
    for (ground, scenarios) in grounds {
        let _ = writeln!(text, "| {} | {} |", ground.replace('|', "&#124;"), scenarios.join(", "));
    }
    text + "\n"
}

/// Returns a table of rows: `ours`, `ours` in another `way`, and all contenders ahead.
fn table_of_those_ahead(figures: &Figures, way: &str, lines: &[&Line]) -> String {
    let mut text = format!("| scenario | what | ours | {way} | ahead |\n|---|---|---|---|---|\n");
    for same in lines.chunk_by(|one, other| (&one.scenario, &one.what) == (&other.scenario, &other.what)) {
        let Line { scenario, what, .. } = same[0];
        let of = |who| figures.median(scenario, what, who).map_or("-".to_owned(), shown);
        let who: Vec<_> = same
            .iter()
            .map(|line| {
                let theirs = line.median.map_or("-".to_owned(), shown);
                let times = format!(" ({} of {})", line.ahead_in(), line.runs);
                let times = if line.ahead_in() == line.runs { "" } else { &times };
                format!("{} {theirs}{times}", line.contender)
            })
            .collect();
        let _ = writeln!(
            text,
            "| {scenario} | {} | {} | {} | {} |",
            same[0].what_in_unit(),
            of("ours"),
            of(way),
            who.join("; ")
        );
    }
    text
}

/// Configurations of `ours` that resemble other libraries, and how.
const WAYS_ALIKE: [(&str, &str); 3] = [
    ("ours, tracking=off", "detects a stolen lock at its next renewal, as these libraries do"),
    ("ours, background", "does not wait for its release"),
    ("ours, no hand-off", "sends every hand-off through the server, as these libraries do"),
];

const BEGIN: &str = "<!-- figures: ";
const END: &str = "<!-- end of figures -->";
const RUN: &str = "cargo run --release -p dlock-benches --";

#[cfg(test)]
mod tests {
    use super::*;

    fn planted() -> Figures {
        include_str!("planted.jsonl").parse().expect("lines of JSON")
    }

    fn filled(name: &str, figures: &Figures) -> String {
        let text = format!("Before.\n{BEGIN}{name} -->\nold\n{END}\nAfter.\n");
        fill(&text, figures).expect("markers in pairs")
    }

    #[test]
    fn only_text_between_markers_is_replaced() {
        let once = filled("table", &planted());

        assert!(
            once.starts_with("Before.\n") && once.ends_with("After.\n") && !once.contains("old"),
            "{once}"
        );
        assert_eq!(fill(&once, &planted()).expect("markers in pairs"), once);
    }

    #[test]
    fn table_starts_with_ours_and_shows_missing_figures_as_dashes() {
        let table = filled("table", &planted());

        let rows: Vec<_> = table.lines().filter(|line| line.starts_with("| ")).collect();
        assert!(
            rows[1].starts_with("| ours | 0.93 | - | 1.15 | 1.18 | 0.71 | 1,052,000 | 610,000 | 0.45 |"),
            "{table}"
        );
        let slow = rows.iter().find(|row| row.starts_with("| slowlock ")).expect("a row of a rival");
        assert!(slow.contains("| - |"), "{slow}");
    }

    #[test]
    fn every_sentence_of_the_headline_names_its_command() {
        let text = filled("headline", &planted());

        let sentences: Vec<_> = text.split("\n- ").skip(1).collect();
        assert_eq!(sentences.len(), 3, "{text}");
        assert!(
            sentences.iter().all(|sentence| sentence.contains("`cargo run --release -p dlock-benches --")),
            "{text}"
        );
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for says in ["Set `wait` to", "1,052,000 within one process", "271 bytes"] {
            assert!(text.contains(says), "`{says}` is not in {text}");
        }
    }

    #[test]
    fn contenders_ahead_of_ours_are_named() {
        let ahead = filled("ahead", &planted());

        assert!(
            ahead.contains("| uncontended | 1 task, pairs, to raw | 0.93 | 0.97 | slowlock 1.06 |"),
            "{ahead}"
        );
        assert!(
            ahead.starts_with("Before.\n<!-- figures: ahead -->\n\nAhead of `ours` in this run:\n"),
            "{ahead}"
        );
    }

    #[test]
    fn rows_ahead_are_grouped_by_runs_and_by_configuration() {
        let row = |who: &str, more: &str| {
            format!(
                r#"{{"scenario":"s","what":"w","contender":"{who}","kind":"rival","median":2.0,"runs":3{more}}}"#
            )
        };
        let figures = [
            row("first", r#","ahead":true,"ahead_in":3"#),
            row("second", r#","ahead":true,"ahead_in":3"#),
            row("behind", r#","ahead":true,"ahead_in":3,"behind":"ours, tracking=off""#),
            row("awaited", r#","ahead":true,"ahead_in":3,"behind":"ours, background""#),
            row("third", r#","ahead":true,"ahead_in":3,"behind":"ours, in a way of tomorrow""#),
            row("once", r#","ahead_in":1"#),
            row("never", ""),
        ];

        let text = filled("ahead", &figures.join("\n").parse().expect("lines of JSON"));

        let place = |says: &str| text.find(says).unwrap_or_else(|| panic!("`{says}` is not in {text}"));
        let order = [
            "Ahead of `ours` in each of the 3 runs:",
            "| s | w | - | - | first 2; second 2; third 2 |",
            "not in each of `ours, tracking=off`, which",
            "| s | w | - | - | behind 2 |",
            "not in each of `ours, background`, which",
            "| scenario | what | ours | ours, background | ahead |",
            "| s | w | - | - | awaited 2 |",
            "in some runs, and behind it in others",
            "| s | w | - | - | once 2 (1 of 3) |",
        ];
        assert!(order.map(place).is_sorted(), "{text}");
        assert!(!text.contains("never"), "{text}");
    }

    #[test]
    fn prose_is_wrapped_except_for_code_and_tables() {
        let words = |count| "word ".repeat(count) + "end";
        let text = format!("- {}\n\n| {} |\n{} `{}`\n", words(20), words(30), words(18), words(4));

        let lines = format!(
            "- {}word\n  word end\n\n| {} |\n{}\n`{}`\n",
            "word ".repeat(18),
            words(30),
            words(18),
            words(4)
        );
        assert_eq!(wrapped(&text), lines);
    }

    #[test]
    fn goals_lists_only_rows_that_miss_their_goal() {
        let row = |what: &str, goal: &str, ok: bool| {
            format!(
                r#"{{"scenario":"s","what":"{what}","contender":"ours","kind":"ours","median":2.0,"goal":{{{goal}}},"ok":{ok}}}"#
            )
        };
        let of = |rows: &[String]| filled("goals", &rows.join("\n").parse().expect("lines of JSON"));
        let met = row("met", r#""at_least":1.5"#, true);

        let text = of(&[
            met.clone(),
            row("slow", r#""at_least":3.0"#, false),
            row("big", r#""at_most":1.0"#, false),
        ]);

        assert!(
            text.contains("| s | slow | ours | 2 | at least 3 |\n| s | big | ours | 2 | at most 1 |"),
            "{text}"
        );
        assert!(!text.contains("met"), "{text}");
        assert!(of(&[met]).contains("Every goal is met."));
    }

    #[test]
    fn each_machine_is_listed_once_with_its_scenarios() {
        let of = |scenario: &str, ground: &str| format!(r#"{{"scenario":"{scenario}","ground":"{ground}"}}"#);
        let lines = [of("held", "2 x new"), of("wake-up", "2 x old"), of("loss", "2 x new")];

        let text = filled("grounds", &lines.join("\n").parse().expect("lines of JSON"));

        assert!(text.contains("|---|---|\n| 2 x new | held, loss |\n| 2 x old | wake-up |\n"), "{text}");
    }

    #[test]
    fn no_figures_produce_no_text() {
        for name in ["table", "headline", "ahead", "goals", "grounds"] {
            let text = filled(name, &Figures::default());
            assert_eq!(text, format!("Before.\n{BEGIN}{name} -->\n{END}\nAfter.\n"));
        }
    }

    #[test]
    fn a_marker_without_its_end_or_of_no_known_name_is_refused() {
        for text in ["<!-- figures: table -->\n", "<!-- figures: nothing -->\n<!-- end of figures -->"] {
            assert!(fill(text, &planted()).is_err(), "{text}");
        }
    }
}
