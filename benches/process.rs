//! The client side of a contender's process. `dlock_bench_peer` defines the orders and answers.

use std::fmt;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::Failure;
use crate::contenders::Contender;
use crate::server::Server;

/// A running contender. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

/// The reason why a contender does not support an order.
#[derive(Debug)]
pub(crate) struct Cannot(String);

impl Cannot {
    /// Returns a failure with this reason.
    pub(crate) fn because(why: impl Into<String>) -> Failure {
        Box::new(Self(why.into()))
    }
}

impl Process {
    /// Starts a contender, and waits until it is connected to all servers.
    pub(crate) async fn start(contender: &Contender, servers: &[&Server]) -> Result<Self, Failure> {
        let addresses: Vec<_> = servers.iter().map(|server| server.address()).collect();
        Self::start_at(contender, &addresses).await
    }

    /// Starts a contender, and waits until it is connected to the servers at these addresses.
    pub(crate) async fn start_at(contender: &Contender, addresses: &[String]) -> Result<Self, Failure> {
        let mut child = Command::from(contender.command(addresses)).kill_on_drop(true).spawn()?;
        let input = child.stdin.take().ok_or("the process has no standard input")?;
        let output = child.stdout.take().ok_or("the process has no standard output")?;
        // Not inherited: a killed Node leaves an inherited standard error in non-blocking mode, in
        // which long writes fail.
        if let Some(complaints) = child.stderr.take() {
            tokio::spawn(async {
                let mut lines = BufReader::new(complaints).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    eprintln!("{line}");
                }
            });
        }
        let mut process = Self { child, input, output: BufReader::new(output).lines() };
        process.hear::<0>("ready").await?;
        Ok(process)
    }

    /// Returns the resident bytes of the process.
    pub(crate) fn resident_bytes(&self) -> Result<u64, Failure> {
        let id = self.child.id().ok_or("the process has ended")?;
        let pages = std::fs::read_to_string(format!("/proc/{id}/statm"))?;
        let pages: u64 = pages.split(' ').nth(1).ok_or("statm has one field only")?.parse()?;
        Ok(pages * u64::try_from(rustix::param::page_size())?)
    }

    /// Kills the process with SIGKILL.
    pub(crate) async fn kill(mut self) -> Result<(), Failure> {
        Ok(self.child.kill().await?)
    }

    /// Sends an order, and returns the numbers of its answer, which begins with `word`.
    pub(crate) async fn ask<const N: usize>(
        &mut self,
        order: impl fmt::Display,
        word: &str,
    ) -> Result<[u64; N], Failure> {
        self.tell(order).await?;
        self.hear(word).await
    }

    /// Sends an order.
    pub(crate) async fn tell(&mut self, order: impl fmt::Display) -> Result<(), Failure> {
        Ok(self.input.write_all(format!("{order}\n").as_bytes()).await?)
    }

    /// Waits for an answer that begins with `word`, and returns its numbers.
    pub(crate) async fn hear<const N: usize>(&mut self, word: &str) -> Result<[u64; N], Failure> {
        self.hear_within(LIMIT, word).await
    }

    /// Waits at most `limit` for an answer that begins with `word`, and returns its numbers.
    pub(crate) async fn hear_within<const N: usize>(
        &mut self,
        limit: Duration,
        word: &str,
    ) -> Result<[u64; N], Failure> {
        let line = timeout(limit, self.output.next_line())
            .await
            .map_err(|_| format!("no answer `{word}` within {limit:?}"))??
            .ok_or_else(|| format!("the process ended before its answer `{word}`"))?;
        let (said, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match said {
            "cannot" => Err(Cannot::because(rest)),
            "failed" => Err(rest.into()),
            said if said == word => {
                let numbers: Result<Vec<u64>, _> = rest.split_whitespace().map(str::parse).collect();
                let numbers = numbers.ok().and_then(|numbers| numbers.try_into().ok());
                Ok(numbers.ok_or_else(|| format!("`{line}` is not a valid answer"))?)
            }
            _ => Err(format!("unexpected answer `{line}` instead of `{word}`").into()),
        }
    }
}

impl fmt::Display for Cannot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Cannot {}

/// The limit of every order: the longest wait for a lock (60 s), and 15 s for the library.
const LIMIT: Duration = Duration::from_secs(75);
