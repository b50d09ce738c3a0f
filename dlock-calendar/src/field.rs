//! [`CronField`], one of the five fields of an expression, and what is wrong with its text.

/// A field of a cron expression: its name, its numbers, and their names.
pub(crate) struct CronField {
    name: &'static str,
    least: u16,
    most: u16,
    /// The names of numbers, in order.
    names: &'static [&'static str],
}

/// The fields, in order.
pub(crate) const FIELDS: [CronField; 5] = [
    CronField { name: "minute", least: 0, most: 59, names: &[] },
    CronField { name: "hour", least: 0, most: 23, names: &[] },
    CronField { name: "day of month", least: 1, most: 31, names: &[] },
    CronField { name: "month", least: 1, most: 12, names: MONTHS },
    CronField { name: "day of week", least: 0, most: 7, names: DAYS },
];

const MONTHS: &[&str] = &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];

const DAYS: &[&str] = &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

impl CronField {
    /// Returns what is wrong with a value of the field, and what to write, or `None` if each of its
    /// words and numbers belongs to the field.
    ///
    /// The parser replaces names in all fields, so it would read `MON` as hour 1.
    pub(crate) fn wrong_value(&self, text: &str) -> Option<String> {
        text.split(',').find_map(|part| self.wrong_word(part).or_else(|| self.wrong_number(part)))
    }

    /// Returns what to write instead of a value that the parser refuses.
    pub(crate) fn refused(&self, text: &str) -> String {
        let Self { name, least, most, .. } = self;
        format!(
            "has `{text}` as {name}: write {}, or `*`, a range such as `{least}-{most}`, a list such as \
             `{least},{most}`, or a step such as `*/2`",
            self.values()
        )
    }

    /// Finds a word that is no name of this field. `L` and `W` are left to the parser.
    fn wrong_word(&self, part: &str) -> Option<String> {
        let words = part.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty());
        words.map(str::to_uppercase).find_map(|word| {
            let is_name = |word: &str| self.names.contains(&word);
            if ["L", "W", "LW"].contains(&&*word)
                || is_name(&word)
                || word.strip_suffix('L').is_some_and(is_name)
            {
                return None;
            }
            let meant = self.names.iter().find(|name| word.starts_with(**name));
            Some(meant.map_or_else(
                || self.not_a_value(part),
                |meant| format!("has `{part}` as {}: write `{meant}`", self.name),
            ))
        })
    }

    /// Finds a number outside of the field. A step behind `/` and a count behind `#` are none of
    /// its numbers.
    fn wrong_number(&self, part: &str) -> Option<String> {
        let values = part.split(['/', '#']).next().unwrap_or_default();
        let numbers = values.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
        let is_wrong =
            |digits: &str| digits.parse().map_or(true, |number| !(self.least..=self.most).contains(&number));
        numbers.clone().any(is_wrong).then(|| self.not_a_value(part))
    }

    fn not_a_value(&self, part: &str) -> String {
        format!("has `{part}` as {}, which is {}", self.name, self.values())
    }

    /// Describes the values of the field.
    fn values(&self) -> String {
        let numbers = format!("a number from {} to {}", self.least, self.most);
        match self.names {
            [first, .., last] => format!("{numbers}, or a name from {first} to {last}"),
            _ => numbers,
        }
    }
}
