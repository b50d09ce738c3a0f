//! The checks of a cron expression, which the parser alone does not make.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};

use crate::CalendarError;
use crate::field::FIELDS;

/// Parses an expression of exactly five fields.
///
/// # Errors
///
/// The number of fields is not five, or a field is invalid.
pub(crate) fn parse(expression: &str) -> Result<Cron, CalendarError> {
    let wrong = |problem: String| Err(CalendarError::new("cron", format!("`{expression}` {problem}")));
    if let Some(name) = expression.trim().strip_prefix('@') {
        return wrong(match nickname(name) {
            Some(fields) => format!("is a nickname: write its five fields, `{fields}`"),
            None => "is not a cron expression: write five fields, such as `0 2 * * *`".to_owned(),
        });
    }
    match expression.split_whitespace().count() {
        5 => {}
        0 => return wrong("is empty: write five fields, such as `0 2 * * *`".to_owned()),
        6 | 7 => {
            let five = expression.split_whitespace().skip(1).take(5).collect::<Vec<_>>().join(" ");
            return wrong(format!(
                "has a field for seconds or years: write five fields, minute first, such as `{five}`; \
                 for periods under a minute, use `every`"
            ));
        }
        fields => {
            return wrong(format!(
                "has {fields} fields: write five, for minute, hour, day of month, month, and day of week"
            ));
        }
    }
    let fields = || FIELDS.iter().zip(expression.split_whitespace());
    if let Some(problem) = fields().find_map(|(field, text)| field.wrong_value(text)) {
        return wrong(problem);
    }
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
    parser.parse(expression).or_else(|error| {
        // The parser does not say which field it refuses.
        let is_refused = |number: usize, text: &str| {
            let mut alone = ["*"; 5];
            alone[number] = text;
            parser.parse(&alone.join(" ")).is_err()
        };
        let refused = fields().enumerate().find(|(number, (_, text))| is_refused(*number, text));
        wrong(refused.map_or_else(
            || format!("is not a cron expression: {error}"),
            |(_, (field, text))| field.refused(text),
        ))
    })
}

/// Returns the fields of a nickname of other cron programs.
fn nickname(name: &str) -> Option<&'static str> {
    Some(match name.to_ascii_lowercase().as_str() {
        "yearly" | "annually" => "0 0 1 1 *",
        "monthly" => "0 0 1 * *",
        "weekly" => "0 0 * * 0",
        "daily" | "midnight" => "0 0 * * *",
        "hourly" => "0 * * * *",
        _ => return None,
    })
}
