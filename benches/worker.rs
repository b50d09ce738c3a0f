//! This program, started again as another process, and told what to do by lines of text.
//!
//! A worker ends when it is done, when its standard input ends (so that none outlives us), or when it is killed.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines, Stdin};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::Failure;

/// What stands first on the command line of a worker.
pub(crate) const ARGUMENT: &str = "worker";

/// A worker, seen from the process that started it; killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts a worker for the scenario called `scenario`.
    pub(crate) fn start(scenario: &str, arguments: &[&str]) -> Result<Self, Failure> {
        let mut process = Command::new(std::env::current_exe()?)
            .args([ARGUMENT, scenario])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let input = process.stdin.take().ok_or("a worker has no standard input")?;
        let output = process.stdout.take().ok_or("a worker has no standard output")?;
        Ok(Self { process, input, output: BufReader::new(output).lines() })
    }

    /// Returns the next line that it says.
    pub(crate) async fn line(&mut self) -> Result<String, Failure> {
        Ok(self.output.next_line().await?.ok_or("a worker ended before it was done")?)
    }

    /// Says a line to it.
    pub(crate) async fn tell(&mut self, line: &str) -> Result<(), Failure> {
        Ok(self.input.write_all(format!("{line}\n").as_bytes()).await?)
    }

    /// Kills it, as the kernel does when memory is out.
    pub(crate) async fn kill(mut self) -> Result<(), Failure> {
        Ok(self.process.kill().await?)
    }

    /// Waits until it has ended well.
    pub(crate) async fn end(self) -> Result<(), Failure> {
        let Self { mut process, input, output } = self;
        drop((input, output));
        let status = process.wait().await?;
        if status.success() { Ok(()) } else { Err(format!("a worker failed: {status}").into()) }
    }
}

/// The other side: what the worker hears.
#[derive(Debug)]
pub(crate) struct Orders(Lines<BufReader<Stdin>>);

impl Orders {
    pub(crate) fn new() -> Self {
        Self(BufReader::new(tokio::io::stdin()).lines())
    }

    /// Returns the next line; none when the process that started us has no more.
    pub(crate) async fn next(&mut self) -> Result<Option<String>, Failure> {
        Ok(self.0.next_line().await?)
    }
}

/// Says a line to the process that started us.
pub(crate) fn say(line: &str) {
    // Standard output keeps whole lines only where it is flushed after them.
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
