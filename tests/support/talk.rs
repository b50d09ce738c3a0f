//! A helper program driven by text lines: commands on its input, and replies on its output.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStderr, ChildStdin, Command, Stdio};

use tokio::sync::mpsc;

use crate::child::OwnChild;

/// A running program. It is killed on drop.
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
    /// Panics if the program does not start.
    pub(crate) fn with(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = OwnChild::spawn(command, None).expect("the helper process starts");
        pass_on(child.inner().stderr.take().expect("the error output is piped"));
        let input = child.inner().stdin.take();
        let output = child.inner().stdout.take().expect("the output is piped");
        let (send, lines) = mpsc::unbounded_channel();
        // The thread ends with the pipe, which ends with the process.
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

    /// Waits for the next line, or returns `None` if the process has ended.
    pub(crate) async fn line(&mut self) -> Option<String> {
        self.lines.recv().await
    }
}

/// Copies the error output of a program to that of this process.
///
/// The program does not inherit this process's error output, because Node makes it non-blocking,
/// and leaves it so when it is killed. After that, large writes of other programs to it would fail,
/// including those of the test harness.
fn pass_on(errors: ChildStderr) {
    std::thread::spawn(move || {
        BufReader::new(errors).lines().map_while(Result::ok).for_each(|line| eprintln!("{line}"));
    });
}
