//! Leaders: terms, resignation, loss, and processes that are frozen or killed.
//!
//! The long form kills more leaders, and hands off more often:
//!
//! ```text
//! DLOCK_TERMS=1000 cargo test -p dlock-tests --test leader
//! ```

mod known_failures;
mod processes;
mod terms;

use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

/// Returns the number of terms of a test that repeats itself, which is `short` by default.
fn terms_of_a_run(short: usize) -> usize {
    std::env::var("DLOCK_TERMS").map_or(short, |terms| terms.parse().expect("DLOCK_TERMS is a number"))
}
