//! The instants at which a scheduled job is due, as a pure function of the schedule and the time.
//!
//! [`Calendar`] is a cron expression in a time zone, or a fixed period. All instants are
//! milliseconds since the Unix epoch, in UTC. The attribute checks expressions at compile time with
//! the same code that computes the ticks at run time.
//!
//! - The zones are those of the IANA database that is part of the binary. The machine's files and
//!   its local zone are not read.
//! - If the fields for minutes and hours have values, lists, and ranges only, such as
//!   `0,30 2,14 * * *`, the times are fixed. A fixed time that a zone skips in spring is due at the
//!   end of the gap. A fixed time that a zone repeats in autumn is due once, at the first of the
//!   two instants.
//! - Other expressions are intervals, such as `*/15 * * * *` and `30 * * * *`. They run through the
//!   repeated hour, and a time of an interval that the zone skips is no tick. For a tick at the end
//!   of the gap, list the hours, such as `0 0,6,12,18 * * *`.

mod calendar;
mod error;
mod expression;
mod field;
mod fixed_times;

pub use calendar::Calendar;
pub use error::CalendarError;
