//! The reader of a cron expression: five fields, how the fields for days combine, and that it
//! matches.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::civil::{Date, date};
use jiff::tz::TimeZone;

use crate::CalendarError;
use crate::field::FIELDS;

/// The start of the last 400 years that the search covers, which ends in the year 5000.
///
/// The calendar repeats after 400 years, so an expression that matches no day of them never
/// matches. A search from 1970 would take eight times as long, in the compiler of the user.
const SEARCHED_FROM: Date = date(4_600, 1, 1);

/// Parses an expression of exactly five fields.
///
/// # Errors
///
/// The number of fields is not five, a field is invalid, or no day matches.
pub(crate) fn parse(expression: &str) -> Result<Cron, CalendarError> {
    let problem = |problem: String| CalendarError::new("cron", format!("`{expression}` {problem}"));
    read(expression).map_err(problem)
}

fn read(expression: &str) -> Result<Cron, String> {
    if let Some(name) = expression.trim().strip_prefix('@') {
        return Err(match nickname(name) {
            Some(fields) => format!("is a nickname: write its five fields, `{fields}`"),
            None => "is not a cron expression: write five fields, such as `0 2 * * *`".to_owned(),
        });
    }
    let texts = expression.split_whitespace().collect::<Vec<_>>();
    let &[minute, hour, day_of_month, month, day_of_week] = texts.as_slice() else {
        return Err(wrong_count(expression, &texts));
    };
    // As in crontab(5), a day must match both fields if one of them starts with `*`, even with a
    // step. The parser looks for `*` alone.
    let both_match = day_of_month.starts_with('*') || day_of_week.starts_with(['*', '+']);
    let days = day_of_week.strip_prefix('+').filter(|days| !days.is_empty()).unwrap_or(day_of_week);
    let fields = FIELDS.iter().zip([minute, hour, day_of_month, month, days]);
    let fields = fields.map(|(field, text)| field.read(text)).collect::<Result<Vec<_>, _>>()?;
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed);
    let parser = parser.dom_and_dow(both_match).build();
    let cron = parser.parse(&fields.join(" "));
    let cron = cron.map_err(|error| format!("is not a cron expression: {error}"))?;
    let searched_from = SEARCHED_FROM.to_zoned(TimeZone::UTC).map_err(|error| error.to_string())?;
    match cron.find_next_occurrence(&searched_from, true) {
        Ok(_) => Ok(cron),
        Err(_) => Err("never matches: no month that it names has such a day".to_owned()),
    }
}

/// Returns what to write instead of an expression that does not have five fields.
///
/// An expression is suggested only if it is valid.
fn wrong_count(expression: &str, fields: &[&str]) -> String {
    let is_valid = |fields: &str| fields.split_whitespace().count() == 5 && read(fields).is_ok();
    if fields.is_empty() {
        return "is empty: write five fields, such as `0 2 * * *`".to_owned();
    }
    if fields.iter().any(|field| field.starts_with(',') || field.ends_with(',')) {
        let joined = expression.split(',').map(str::trim).collect::<Vec<_>>().join(",");
        let joined = if is_valid(&joined) { joined } else { "0 9,17 * * *".to_owned() };
        return format!(
            "has a list with a space: write five fields, and lists without spaces, such as `{joined}`"
        );
    }
    let under_a_minute = "; for periods under a minute, use `every`";
    let (extra, five, hint) = match fields {
        [five @ .., year] if five.len() == 5 && is_year(year) => ("a field for years", five, ""),
        [_, five @ ..] if five.len() == 5 => ("a field for seconds", five, under_a_minute),
        [_, five @ .., _] if five.len() == 5 => ("fields for seconds and years", five, under_a_minute),
        _ => ("", fields, ""),
    };
    let five = five.join(" ");
    if is_valid(&five) {
        return format!("has {extra}: write five fields, minute first, such as `{five}`{hint}");
    }
    format!("has {} fields: write five, for minute, hour, day of month, month, and day of week", fields.len())
}

/// Returns `true` for a field such as `2026` and `2026-2028`: no other field has four digits.
fn is_year(field: &str) -> bool {
    field.bytes().take_while(u8::is_ascii_digit).count() == 4
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
