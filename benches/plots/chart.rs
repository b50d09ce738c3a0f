//! Which charts there are, and what each takes of the figures.
//!
//! Not here: how they are drawn (`lines`, `rows`).

use crate::figures::Figures;
use crate::{lines, rows};

/// One picture.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) file: &'static str,
    pub(crate) scenario: &'static str,
    /// How `what` of its lines ends.
    pub(crate) ending: &'static str,
    pub(crate) title: &'static str,
    pub(crate) subtitle: &'static str,
    pub(crate) axis: &'static str,
    form: Form,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// A line for each contender, by the number of something, which is named here.
    Lines { of: &'static str },
    /// A bar for each contender, the best first.
    Bars { best: Best },
    /// The percentiles of each contender.
    Percentiles,
    /// What each task had beside what would be fair.
    Shares,
}

/// Which figure is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Best {
    Most,
    Least,
}

impl Chart {
    /// Draws it; `None` where there are no figures for it.
    pub(crate) fn draw(&self, figures: &Figures) -> Option<String> {
        match self.form {
            Form::Lines { of } => lines::draw(self, figures, of),
            Form::Bars { best } => rows::bars(self, figures, best),
            Form::Percentiles => rows::percentiles(self, figures),
            Form::Shares => rows::shares(self, figures),
        }
    }
}

pub(crate) const CHARTS: [Chart; 8] = [
    Chart {
        file: "throughput.svg",
        scenario: "uncontended",
        ending: "pairs, to raw",
        title: "Locks that nobody else wants: throughput",
        subtitle: "Pairs of lock and unlock a second, as a multiple of the two bare commands (raw). More is better.",
        axis: "x raw",
        form: Form::Lines { of: "tasks, each with a key of its own" },
    },
    Chart {
        file: "processor.svg",
        scenario: "uncontended",
        ending: "processor time, to raw",
        title: "Locks that nobody else wants: processor time",
        subtitle: "Of client and server for one pair, as a multiple of that of the two bare commands (raw). Less is better.",
        axis: "x raw",
        form: Form::Lines { of: "tasks, each with a key of its own" },
    },
    Chart {
        file: "hot_key.svg",
        scenario: "hot-key",
        ending: "empty body, hand-overs",
        title: "64 tasks of one process want one lock",
        subtitle: "Changes of owner a second, empty body. More is better; each line of the grid is ten times the one before.",
        axis: "hand-overs a second",
        form: Form::Bars { best: Best::Most },
    },
    Chart {
        file: "processes.svg",
        scenario: "processes",
        ending: "empty body, hand-overs",
        title: "Many processes want one lock",
        subtitle: "Changes of owner a second, empty body, 64 tasks in all. More is better. Figures are those of the last dot.",
        axis: "hand-overs a second",
        form: Form::Lines { of: "processes" },
    },
    Chart {
        file: "wake_up.svg",
        scenario: "wake-up",
        ending: "release to body",
        title: "From a release to the body of who waits in another process",
        subtitle: "Dot: half are faster. Box: the middle half. Line: from 1 % to 99 %. Left is better.",
        axis: "milliseconds",
        form: Form::Percentiles,
    },
    Chart {
        file: "fairness.svg",
        scenario: "processes",
        ending: "4 x 16, empty body, shares",
        title: "Who gets the lock: 4 processes with 16 tasks each",
        subtitle: "A mark for each task: how often it had the lock beside a 64th of all. Together at 1 is fair.",
        axis: "x the fair share",
        form: Form::Shares,
    },
    Chart {
        file: "held_bytes.svg",
        scenario: "held",
        ending: "held, resident bytes of each",
        title: "What a held lock costs: memory",
        subtitle: "Resident bytes of the process for each lock that it holds and renews. Less is better.",
        axis: "bytes",
        form: Form::Bars { best: Best::Least },
    },
    Chart {
        file: "held_processor.svg",
        scenario: "held",
        ending: "held, of a core",
        title: "What held locks cost: processor time",
        subtitle: "Of the process that holds them all and renews them, in percent of one core. Less is better.",
        axis: "% of a core",
        form: Form::Bars { best: Best::Least },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures that nobody measured, in the form of those that somebody did.
    const PLANTED: &str = include_str!("planted.jsonl");

    fn drawn(file: &str) -> String {
        let chart = CHARTS.into_iter().find(|chart| chart.file == file).expect("there is such a chart");
        chart.draw(&PLANTED.parse().expect("lines of JSON")).expect("there are figures for it")
    }

    #[test]
    fn every_chart_has_its_title_its_axis_and_ours_by_name() {
        for chart in CHARTS {
            let svg = drawn(chart.file);

            for text in [chart.title, chart.axis] {
                assert!(svg.contains(&format!(">{text}<")), "{}: `{text}` in {svg}", chart.file);
            }
            let named = |line: &str| line.contains(r#"class="name"#) && line.ends_with(">ours</text>");
            assert!(svg.lines().any(named), "{}: {svg}", chart.file);
            assert!(svg.contains("prefers-color-scheme: dark"), "{}", chart.file);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{}: {svg}", chart.file);
        }
    }

    #[test]
    fn a_line_goes_through_every_number_and_the_floor_is_marked() {
        let svg = drawn("throughput.svg");

        let line =
            svg.lines().find(|line| line.starts_with(r#"<polyline class="ours""#)).expect("a line of ours");
        assert_eq!(line.matches(',').count(), 3, "{line}");
        for number in [">1<", ">64<", ">1,024<"] {
            assert!(svg.contains(number), "{number}: {svg}");
        }
        assert!(svg.contains(r#"class="base""#) && svg.contains(">slowlock<"), "{svg}");
    }

    #[test]
    fn the_hot_key_is_the_one_process_among_many() {
        let svg = drawn("processes.svg");

        let line =
            svg.lines().find(|line| line.starts_with(r#"<polyline class="ours""#)).expect("a line of ours");
        assert_eq!(line.matches(',').count(), 4, "{line}");
    }

    #[test]
    fn bars_stand_from_the_best_to_the_worst_with_their_figures() {
        let svg = drawn("held_bytes.svg");

        let place = |text: &str| svg.find(text).unwrap_or_else(|| panic!("{text}: {svg}"));
        assert!(place(">ours<") < place(">quicklock<") && place(">quicklock<") < place(">slowlock<"));
        assert!(svg.contains(">271<") && svg.contains(">4,838<"), "{svg}");
        assert!(!svg.contains(">9,999<"), "only the number of locks that most were measured with: {svg}");
    }

    #[test]
    fn who_starved_is_told() {
        assert!(drawn("fairness.svg").contains("2 of 4 never had it"));
    }

    #[test]
    fn names_cannot_break_the_picture() {
        assert!(drawn("hot_key.svg").contains("&lt;odd&gt; &amp; lock"));
    }

    #[test]
    fn nothing_is_drawn_of_no_figures() {
        assert!(CHARTS.iter().all(|chart| chart.draw(&Figures::default()).is_none()));
    }
}
