//! [`CronField`], one of the five fields of an expression, and its grammar.
//!
//! A field is `*`, or a list of parts. A part is a value, a range `n-m`, a step `*/s` or `n-m/s`,
//! or, in the fields for days, a form of [`Days`]. The parser of `croner` skips the characters and
//! the parts that it does not know, so it receives only what this grammar has read.

/// A field of a cron expression: its name, its numbers, and their names.
pub(crate) struct CronField {
    name: &'static str,
    least: u16,
    most: u16,
    /// The names of numbers, in order.
    names: &'static [&'static str],
    days: Option<Days>,
}

/// A field for days, with forms of its own.
#[derive(Clone, Copy)]
enum Days {
    /// `L`, `LW`, and `15W`.
    OfMonth,
    /// `MON#2`, `FRIL`, and `FRI#L`.
    OfWeek,
}

/// The fields, in order.
pub(crate) const FIELDS: [CronField; 5] = [
    CronField { name: "minute", least: 0, most: 59, names: &[], days: None },
    CronField { name: "hour", least: 0, most: 23, names: &[], days: None },
    CronField { name: "day of month", least: 1, most: 31, names: &[], days: Some(Days::OfMonth) },
    CronField { name: "month", least: 1, most: 12, names: MONTHS, days: None },
    CronField { name: "day of week", least: 0, most: 7, names: DAYS, days: Some(Days::OfWeek) },
];

const MONTHS: &[&str] = &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];

const DAYS: &[&str] = &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

impl CronField {
    /// Returns the field with numbers instead of names, as the parser reads it.
    ///
    /// # Errors
    ///
    /// The text is not in the grammar. The error says what is wrong, and what to write.
    pub(crate) fn read(&self, text: &str) -> Result<String, String> {
        if text == "*" || text == "?" && self.days.is_some() {
            return Ok("*".to_owned());
        }
        let name = self.name;
        let parts = text.split(',').map(|part| match part {
            "" => Err(format!(
                "has `{text}` as {name}, a list with an empty value: write a list without spaces, such as `{},{}`",
                self.least,
                self.last()
            )),
            "*" => Err(format!("has `{text}` as {name}: write `*` alone, since it is every value")),
            part => self.read_part(part),
        });
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let has = |form: &str| parts.iter().any(|part| part == form);
        // The parser has one flag for each letter, so it would drop the `L`.
        if has("L") && has("LW") {
            return Err(format!("has `{text}` as {name}: write one of `L` and `LW`"));
        }
        Ok(parts.join(","))
    }

    fn read_part(&self, part: &str) -> Result<String, String> {
        let special = match self.days {
            Some(Days::OfMonth) => self.read_day_of_month(part)?,
            Some(Days::OfWeek) => self.read_day_of_week(part)?,
            None => None,
        };
        special.map_or_else(|| self.read_range(part), Ok)
    }

    /// Reads `L`, `LW`, and `15W`.
    fn read_day_of_month(&self, part: &str) -> Result<Option<String>, String> {
        if let Some(form) = ["L", "LW"].into_iter().find(|form| part.eq_ignore_ascii_case(form)) {
            return Ok(Some(form.to_owned()));
        }
        match part.strip_suffix(['W', 'w']) {
            Some(day) if digits(day).is_some() => Ok(Some(format!("{}W", self.value(day, part)?))),
            _ => Ok(None),
        }
    }

    /// Reads `MON#2`, `FRI#L`, and `FRIL`.
    fn read_day_of_week(&self, part: &str) -> Result<Option<String>, String> {
        if let Some((day, count)) = part.split_once('#') {
            let day = self.value(day, part)?;
            return match count {
                "1" | "2" | "3" | "4" | "5" => Ok(Some(format!("{day}#{count}"))),
                "L" | "l" => Ok(Some(format!("{day}#L"))),
                _ => Err(self.refused(part)),
            };
        }
        match part.strip_suffix(['L', 'l']) {
            Some(day) if self.find(day).is_some() || self.meant(day).is_some() => {
                Ok(Some(format!("{}#L", self.value(day, part)?)))
            }
            _ => Ok(None),
        }
    }

    /// Reads a value, a range, and a step.
    fn read_range(&self, part: &str) -> Result<String, String> {
        let (values, step) = part.split_once('/').map_or((part, None), |(values, step)| (values, Some(step)));
        let (first, start, end) = if values == "*" {
            (values, self.least, self.last())
        } else if let Some((first, last)) = values.split_once('-') {
            let (start, end) = (self.value(first, part)?, self.value(last, part)?);
            // Sunday is both the first number and the last: `SAT-SUN` is `6-7`.
            let is_last_day = end < start && last.eq_ignore_ascii_case("SUN");
            (first, start, if is_last_day { self.most } else { end })
        } else {
            let value = self.value(values, part)?;
            let Some(_) = step else { return Ok(value.to_string()) };
            (values, value, self.last().max(value))
        };
        if end < start {
            return Err(self.wraps(part, start, end));
        }
        let Some(step) = step else { return Ok(format!("{start}-{end}")) };
        let step = digits(step).filter(|step| *step > 0).ok_or_else(|| self.refused(part))?;
        let (name, longest) = (self.name, end - start);
        if values == "*" {
            return if step <= longest {
                Ok(format!("*/{step}"))
            } else {
                let first = match self.days {
                    Some(Days::OfMonth) => "; for the first Monday, write `MON#1` as day of week",
                    _ => "",
                };
                Err(format!(
                    "has `{part}` as {name}, whose step is a number from 1 to {longest}: for a longer period, \
                     use `every`{first}"
                ))
            };
        }
        if step > longest {
            return Err(format!("has `{part}` as {name}, whose step leaves one value: write `{first}`"));
        }
        if first == values {
            let range = format!("{first}-{}/{step}", self.shown(end, part));
            return Err(format!("has `{part}` as {name}, a step without a range: write `{range}`"));
        }
        Ok(format!("{start}-{end}/{step}"))
    }

    /// Reads a number or a name of the field, which is the whole of `word`.
    fn value(&self, word: &str, part: &str) -> Result<u16, String> {
        if let Some(value) = self.find(word) {
            return Ok(value);
        }
        let name = self.name;
        if let Some(meant) = self.meant(word) {
            return Err(format!("has `{word}` as {name}: write `{meant}`"));
        }
        let is_word = !word.is_empty() && word.chars().all(char::is_alphabetic);
        let is_form = self.days.is_some() && word.chars().all(|c| "LWlw".contains(c));
        if is_word && !is_form || digits(word).is_some() {
            return Err(format!("has `{word}` as {name}, which is {}", self.values()));
        }
        Err(self.refused(part))
    }

    fn find(&self, word: &str) -> Option<u16> {
        let named = (self.least..).zip(self.names).find(|(_, name)| word.eq_ignore_ascii_case(name));
        let number = || digits(word).filter(|number| (self.least..=self.most).contains(number));
        named.map(|(number, _)| number).or_else(number)
    }

    /// Returns the name that begins a longer word, such as that of `MONDAY`.
    fn meant(&self, word: &str) -> Option<&'static str> {
        let begins =
            |name: &&str| word.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
        self.names.iter().copied().find(|name| begins(name) && word.chars().all(char::is_alphabetic))
    }

    /// Returns the last of the values, each of which counts once: Sunday is 0.
    fn last(&self) -> u16 {
        match self.days {
            Some(Days::OfWeek) => 6,
            _ => self.most,
        }
    }

    /// Says which two ranges are meant by one that goes through the end of the field.
    fn wraps(&self, part: &str, start: u16, end: u16) -> String {
        let span = |start, end| match (self.shown(start, part), self.shown(end, part)) {
            (start, end) if start == end => start,
            (start, end) => format!("{start}-{end}"),
        };
        let ranges = match span(self.least, end) {
            second if start > self.last() => second,
            second => format!("{},{second}", span(start, self.last())),
        };
        let name = self.name;
        format!("has `{part}` as {name}, a range that ends before it starts: write `{ranges}`")
    }

    /// Returns the value by its name if the part has names.
    fn shown(&self, value: u16, part: &str) -> String {
        let name = self.names.get(usize::from(value - self.least));
        let name = name.filter(|_| part.contains(char::is_alphabetic));
        name.map_or_else(|| value.to_string(), ToString::to_string)
    }

    /// Returns what to write instead of a part that is not in the grammar.
    fn refused(&self, part: &str) -> String {
        let Self { name, least, .. } = self;
        let (last, values) = (self.last(), self.values());
        let forms = match self.days {
            None => "or a step such as `*/2`",
            Some(Days::OfMonth) => {
                "a step such as `*/2`, `L` for the last day, `15W` for the day from Monday to Friday \
                 that is nearest to the 15th, or `LW` for the last such day"
            }
            Some(Days::OfWeek) => {
                "a step such as `*/2`, `MON#2` for the second Monday, or `FRIL` for the last Friday"
            }
        };
        format!(
            "has `{part}` as {name}: write {values}, or `*`, a range such as `{least}-{last}`, a list such as \
             `{least},{last}`, {forms}"
        )
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

/// Reads a number that is digits only. One that is too large is the largest: no field has it.
fn digits(text: &str) -> Option<u16> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u16::MAX))
}
