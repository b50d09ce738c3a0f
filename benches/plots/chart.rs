//! Lists the charts, and the figures that each of them shows.

use crate::figures::Figures;
use crate::{lines, rows};

/// One picture.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) file: &'static str,
    pub(crate) scenario: &'static str,
    /// The suffix of `what` in its lines.
    pub(crate) ending: &'static str,
    pub(crate) title: &'static str,
    pub(crate) subtitle: &'static str,
    pub(crate) axis: &'static str,
    form: Form,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// A line per contender over a number, whose name is `of`.
    Lines { of: &'static str },
    /// A bar per contender, the best first.
    Bars { best: Best },
    /// The percentiles of each contender.
    Percentiles,
    /// The share of each task, relative to a fair one.
    Shares,
}

/// Which figure is best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Best {
    Most,
    Least,
}

impl Chart {
    /// Draws the chart. Returns `None` if there are no figures for it.
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
        title: "Uncontended locks: throughput",
        subtitle: "Pairs of lock and unlock per second, as a multiple of the two bare commands (raw). More is better.",
        axis: "x raw",
        form: Form::Lines { of: "tasks, each with a different key" },
    },
    Chart {
        file: "processor.svg",
        scenario: "uncontended",
        ending: "processor time, to raw",
        title: "Uncontended locks: processor time",
        subtitle: "Client and server time for one pair, as a multiple of that of the two bare commands (raw). Less is better.",
        axis: "x raw",
        form: Form::Lines { of: "tasks, each with a different key" },
    },
    Chart {
        file: "hot_key.svg",
        scenario: "hot-key",
        ending: "empty body, hand-offs",
        title: "64 tasks of one process contend for one lock",
        subtitle: "Changes of holder per second, empty body. More is better; each grid line is ten times the one before.",
        axis: "hand-offs per second",
        form: Form::Bars { best: Best::Most },
    },
    Chart {
        file: "processes.svg",
        scenario: "processes",
        ending: "empty body, hand-offs",
        title: "Many processes contend for one lock",
        subtitle: "Changes of holder per second, empty body, 64 tasks in all. More is better. Figures are those of the last dot.",
        axis: "hand-offs per second",
        form: Form::Lines { of: "processes" },
    },
    Chart {
        file: "wake_up.svg",
        scenario: "wake-up",
        ending: "release to body",
        title: "From a release to the body of a waiter in another process",
        subtitle: "Dot: half are faster. Box: the middle half. Line: from 1 % to 99 %. Left is better.",
        axis: "milliseconds",
        form: Form::Percentiles,
    },
    Chart {
        file: "fairness.svg",
        scenario: "processes",
        ending: "4 x 16, empty body, shares",
        title: "Fairness: 4 processes with 16 tasks each",
        subtitle: "One mark per task: how often it held the lock, relative to a 64th of all holds. All marks at 1 is fair.",
        axis: "x the fair share",
        form: Form::Shares,
    },
    Chart {
        file: "held_bytes.svg",
        scenario: "held",
        ending: "held, resident bytes of each",
        title: "Cost of a held lock: memory",
        subtitle: "Resident bytes of the process per held and renewed lock. Less is better.",
        axis: "bytes",
        form: Form::Bars { best: Best::Least },
    },
    Chart {
        file: "held_processor.svg",
        scenario: "held",
        ending: "held, of a core",
        title: "Cost of held locks: processor time",
        subtitle: "Time of the process that holds and renews all locks, in percent of one core. Less is better.",
        axis: "% of a core",
        form: Form::Bars { best: Best::Least },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Invented figures in the format of measured ones.
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
    fn bars_are_sorted_from_best_to_worst_with_their_figures() {
        let svg = drawn("held_bytes.svg");

        let place = |text: &str| svg.find(text).unwrap_or_else(|| panic!("{text}: {svg}"));
        assert!(place(">ours<") < place(">quicklock<") && place(">quicklock<") < place(">slowlock<"));
        assert!(svg.contains(">271<") && svg.contains(">4,838<"), "{svg}");
        assert!(!svg.contains(">9,999<"), "only the number of locks that most were measured with: {svg}");
    }

    #[test]
    fn starved_tasks_are_counted() {
        assert!(drawn("fairness.svg").contains("2 of 4 never held it"));
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
