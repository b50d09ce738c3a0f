//! Runs whole suites with connections on the runtimes of the tests (`DLOCK_TEST_IO=runtime`).
//!
//! A test that needs the separate thread sets `io=thread`, or connects with a URL without options.

/// Adds the requested `io` option to the options of a URL, which may be empty.
#[must_use]
pub fn asked_for(options: &str) -> String {
    let is_asked_for = std::env::var_os("DLOCK_TEST_IO").is_some_and(|value| value == "runtime");
    if !is_asked_for || options.contains("io=") {
        return options.to_owned();
    }
    let separator = if options.contains('?') { '&' } else { '?' };
    format!("{options}{separator}io=runtime")
}
