//! Rows of figures: medians with the least and the greatest, and the goals that some of them have.

/// All that was measured.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    scenario: &'static str,
    what: String,
    unit: &'static str,
    /// One for each round, from the least to the greatest.
    figures: Vec<f64>,
    goal: Option<Goal>,
}

/// What a median should be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    fn is_met(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(goal) => figure >= goal,
            Self::AtMost(goal) => figure <= goal,
        }
    }
}

impl Report {
    /// Adds a row; `figures` are those of the rounds.
    pub(crate) fn add(
        &mut self,
        scenario: &'static str,
        what: impl Into<String>,
        unit: &'static str,
        mut figures: Vec<f64>,
        goal: Option<Goal>,
    ) {
        figures.sort_by(f64::total_cmp);
        self.rows.push(Row { scenario, what: what.into(), unit, figures, goal });
    }

    /// Prints the table; with `json` to standard error, and the rows as lines of JSON to standard output.
    pub(crate) fn print(&self, json: bool) {
        let mut table = vec![format!(
            "{:<12} {:<46} {:>12} {:>12} {:>12} {:<6} {:>12}",
            "scenario", "what", "median", "min", "max", "unit", "goal"
        )];
        table.extend(self.rows.iter().map(Row::line));
        let table = table.join("\n");
        if json {
            eprintln!("{table}");
            self.rows.iter().for_each(|row| println!("{}", row.json()));
        } else {
            println!("{table}");
        }
    }
}

impl Row {
    fn line(&self) -> String {
        let Self { scenario, what, unit, figures, goal } = self;
        let [median, min, max] = [percentile(figures, 50), percentile(figures, 0), percentile(figures, 100)];
        let (goal, verdict) = match goal {
            None => (String::new(), ""),
            Some(goal) => {
                let (sign, bound) = match goal {
                    Goal::AtLeast(bound) => (">=", bound),
                    Goal::AtMost(bound) => ("<=", bound),
                };
                (format!("{sign} {}", shown(*bound)), if goal.is_met(median) { "ok" } else { "BELOW" })
            }
        };
        let line = format!(
            "{scenario:<12} {what:<46} {:>12} {:>12} {:>12} {unit:<6} {goal:>12} {verdict}",
            shown(median),
            shown(min),
            shown(max)
        );
        line.trim_end().to_owned()
    }

    fn json(&self) -> String {
        let Self { scenario, what, unit, figures, goal } = self;
        let [median, min, max] = [percentile(figures, 50), percentile(figures, 0), percentile(figures, 100)];
        let goal = match goal {
            None => String::new(),
            Some(goal) => {
                let (name, bound) = match goal {
                    Goal::AtLeast(bound) => ("at_least", bound),
                    Goal::AtMost(bound) => ("at_most", bound),
                };
                format!(r#","goal":{{"{name}":{bound}}},"ok":{}"#, goal.is_met(median))
            }
        };
        // Names and units are ours, and need no escapes.
        format!(
            r#"{{"scenario":"{scenario}","what":"{what}","unit":"{unit}","median":{median},"min":{min},"max":{max},"rounds":{}{goal}}}"#,
            figures.len()
        )
    }
}

/// Returns the figure below which `percent` of them lie; they are in order.
pub(crate) fn percentile(figures: &[f64], percent: usize) -> f64 {
    let last = figures.len().saturating_sub(1);
    figures.get((last * percent).div_ceil(100)).copied().unwrap_or(0.0)
}

/// Three digits that count, and thousands apart.
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
