//! Where managers drive their connections, in whole suites: with `DLOCK_TEST_IO=runtime` on the runtimes of the tests.
//!
//! What is tested over a thread of its own then says so by `io=thread`, or connects by a URL without options.

/// Adds the option that is asked for to the options of a URL; there may be none yet.
#[must_use]
pub fn asked_for(options: &str) -> String {
    let is_asked_for = std::env::var_os("DLOCK_TEST_IO").is_some_and(|value| value == "runtime");
    if !is_asked_for || options.contains("io=") {
        return options.to_owned();
    }
    let separator = if options.contains('?') { '&' } else { '?' };
    format!("{options}{separator}io=runtime")
}
