//! The program that a [`Worker`](crate::Worker) runs: it reads commands and reports events.

use std::io::{BufRead, Write};
use std::time::Duration;

use dlock_runtime::Error;
use tokio::sync::mpsc;

use crate::clock::Moment;

/// Reports that the process is ready, and starts `obey` for each command, until the input ends.
/// Commands run concurrently.
pub async fn obey_commands<F: Future<Output = ()> + Send + 'static>(obey: impl Fn(String) -> F) {
    let (send, mut commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    say("ready", "-", "");
    while let Some(line) = commands.recv().await {
        tokio::spawn(obey(line));
    }
}

/// Reports an event of `key`.
pub fn say(event: &str, key: &str, detail: &str) {
    say_at(Moment::now(), event, key, detail);
}

/// Reports an event that happened at `at`.
pub fn say_at(at: Moment, event: &str, key: &str, detail: &str) {
    let mut out = std::io::stdout().lock();
    // When the test has ended, nothing reads the output, and this process ends, too.
    let _ = writeln!(out, "{event} {} {key} {detail}", at.nanos()).and_then(|()| out.flush());
}

/// Reports the failure of a command: the variant and the text of the error, and `suffix`.
pub fn fail(key: &str, error: &Error, suffix: &str) {
    let debug = format!("{error:?}");
    let variant = debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    say("failed", key, &format!("{variant} {error}{suffix}"));
}

/// Reads a duration of a command.
///
/// # Panics
///
/// Panics if it is not a number of milliseconds.
#[must_use]
pub fn millis(word: &str) -> Duration {
    Duration::from_millis(word.parse().expect("durations come in milliseconds"))
}
