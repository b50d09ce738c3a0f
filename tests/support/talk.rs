//! A program of ours that is driven by lines: commands go in at its input, answers come out at its output.
//!
//! Not here: what the lines mean (`process`, `fleet`).

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStderr, ChildStdin, Command, Stdio};

use tokio::sync::mpsc;

use crate::child::OwnChild;

/// A running program; killed when dropped.
#[derive(Debug)]
pub(crate) struct Talk {
    pub(crate) child: OwnChild,
    input: Option<ChildStdin>,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Talk {
    /// Starts `command`.
    ///
    /// # Panics
    ///
    /// Panics if it does not start.
    pub(crate) fn with(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = OwnChild::spawn(command, None).expect("the helper process starts");
        pass_on(child.inner().stderr.take().expect("what it complains of is piped"));
        let input = child.inner().stdin.take();
        let output = child.inner().stdout.take().expect("the output is piped");
        let (send, lines) = mpsc::unbounded_channel();
        // Ends with the pipe, which ends with the process.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, input, lines }
    }

    /// Sends one line.
    ///
    /// # Panics
    ///
    /// Panics if the process has ended.
    pub(crate) fn send(&mut self, line: &str) {
        let input = self.input.as_mut().expect("the helper's input is open");
        writeln!(input, "{line}").and_then(|()| input.flush()).expect("the helper process takes commands");
    }

    /// Waits for the next line; there is none when the process has ended.
    pub(crate) async fn line(&mut self) -> Option<String> {
        self.lines.recv().await
    }
}

/// Passes on what a program complains of. It does not have our own output for that: Node makes it one that does not wait, and leaves it so
/// when it is killed. Whoever then writes more there than is read at once fails, such as the test program that tells what its tests said.
fn pass_on(complaints: ChildStderr) {
    std::thread::spawn(move || {
        BufReader::new(complaints).lines().map_while(Result::ok).for_each(|line| eprintln!("{line}"));
    });
}
