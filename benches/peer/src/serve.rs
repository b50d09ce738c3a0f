//! The process of a contender: reads orders, runs them, and writes the answers.

use std::io::Write;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use crate::calls::{at_once, one_by_one};
use crate::library::{Cannot, Failure, Library, Result, WAIT};
use crate::notes::Entry;
use crate::order::{Enter, Order};
use crate::usage::{cpu_nanos, now};

/// The number of threads that run the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// A multi-thread runtime with two workers.
    Two,
    /// A current-thread runtime.
    One,
}

/// Connects, and runs orders until standard input ends.
pub fn serve<L: Library>(threads: Threads, connecting: impl Future<Output = Result<L>>) -> ExitCode {
    let done = runtime(threads).and_then(|runtime| {
        let done = runtime.block_on(async {
            match connecting.await {
                Ok(library) => Servant::new(library).obey_all().await,
                Err(error) => {
                    say(&refusal(&error));
                    Ok(())
                }
            }
        });
        // Do not wait for tasks that still wait for a lock or watch one.
        runtime.shutdown_background();
        done
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn runtime(threads: Threads) -> Result<Runtime> {
    let mut builder = match threads {
        Threads::Two => Builder::new_multi_thread(),
        Threads::One => Builder::new_current_thread(),
    };
    Ok(builder.worker_threads(2).enable_all().build()?)
}

/// A library, and the locks that it holds.
struct Servant<L: Library> {
    library: L,
    taken: Option<Taken>,
    held: Vec<L::Guard>,
}

/// The hold of `take`: a task that holds the lock until `leave`.
///
/// It returns the time before its unlock.
struct Taken {
    leave: oneshot::Sender<()>,
    inside: JoinHandle<Result<u64>>,
}

impl<L: Library> Servant<L> {
    fn new(library: L) -> Self {
        Self { library, taken: None, held: Vec::new() }
    }

    async fn obey_all(mut self) -> Result<()> {
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        say("ready");
        while let Some(line) = lines.next_line().await? {
            let answer = match line.parse() {
                Ok(order) => self.obey(order).await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(Some(answer)) => say(&answer),
                Ok(None) => {}
                Err(error) => say(&refusal(&error)),
            }
        }
        Ok(())
    }

    /// Runs an order, and returns its answer, unless it was already written.
    async fn obey(&mut self, order: Order) -> Result<Option<String>> {
        Ok(Some(match order {
            Order::Pairs { tasks, span } => self.pairs(tasks, span).await?,
            Order::Enter(enter) => format!("entered {}", self.enter(enter).await?),
            Order::Take { key } => format!("taken {}", self.take(key).await?),
            Order::Free => {
                let Taken { leave, inside } = self.taken.take().ok_or("nothing is taken")?;
                let _ = leave.send(());
                format!("freed {}", inside.await??)
            }
            Order::Hold { count, lease } => {
                self.hold(count, lease).await?;
                "holding".to_owned()
            }
            Order::Release => {
                self.release().await?;
                "released".to_owned()
            }
            Order::Lose { key, lease } => {
                self.lose(&key, lease).await?;
                return Ok(None);
            }
            Order::Nest { times } => format!("nested {}", self.library.nest(times).await?.as_nanos()),
            Order::First { name, count } => {
                let keys = (0..count).map(|id| format!("{name}:{id}"));
                one_by_one(&self.library, keys).await?.to_string()
            }
            Order::Replay { name, count } => {
                let keys = (0..count).map(|_| format!("{name}:0"));
                one_by_one(&self.library, keys).await?.to_string()
            }
            Order::Duplicate { name, count, body } => {
                at_once(&self.library, &name, count, body).await?.to_string()
            }
            Order::Usage => format!("usage {}", cpu_nanos()),
        }))
    }

    async fn pairs(&self, tasks: u64, span: Duration) -> Result<String> {
        let (begun, cpu) = (Instant::now(), cpu_nanos());
        let end = begun + span;
        let mut running = JoinSet::new();
        for id in 0..tasks {
            let library = self.library.clone();
            running.spawn(async move {
                let mut pairs: u64 = 0;
                while Instant::now() < end {
                    library.pair(id).await?;
                    pairs += 1;
                }
                Ok::<_, Failure>(pairs)
            });
        }
        let mut pairs = 0;
        while let Some(done) = running.join_next().await {
            pairs += done??;
        }
        let (time, cpu) = (begun.elapsed().as_nanos(), cpu_nanos() - cpu);
        Ok(format!("pairs {pairs} {time} {cpu}"))
    }

    async fn enter(&self, Enter { key, tasks, body, start, end, file }: Enter) -> Result<usize> {
        tokio::time::sleep(Duration::from_nanos(start.saturating_sub(now()))).await;
        let key: Arc<str> = key.into();
        let mut running = JoinSet::new();
        for task in 0..tasks {
            let (library, key) = (self.library.clone(), Arc::clone(&key));
            running.spawn(async move {
                // Each task has separate notes, so that recording does not need another lock.
                let mut notes = Vec::new();
                loop {
                    let asked = now();
                    if asked >= end {
                        return Ok::<_, Failure>(notes);
                    }
                    // Pinned here, so that no library moves the body; such moves are not to be
                    // measured.
                    let inside = pin!(inside(body));
                    let (entered, left) = library.under(&key, inside).await?;
                    notes.push(Entry { entered, asked, task, left });
                }
            });
        }
        let mut notes = Vec::new();
        while let Some(done) = running.join_next().await {
            notes.append(&mut done??);
        }
        Entry::write_all(&file, &notes)?;
        Ok(notes.len())
    }

    async fn take(&mut self, key: String) -> Result<u64> {
        let ((leave, left), (enter, entered)) = (oneshot::channel(), oneshot::channel());
        let library = self.library.clone();
        let inside = tokio::spawn(async move {
            let body = async {
                let _ = enter.send(now());
                let _ = left.await;
                now()
            };
            library.under(&key, body).await
        });
        match entered.await {
            Ok(entered) => {
                self.taken = Some(Taken { leave, inside });
                Ok(entered)
            }
            // The body did not start.
            Err(_) => Err(inside.await?.err().unwrap_or_else(|| "the body did not run".into())),
        }
    }

    async fn hold(&mut self, count: u64, lease: Duration) -> Result<()> {
        self.held.reserve(usize::try_from(count)?); // growth would leave garbage that does not belong to the library
        for first in (0..count).step_by(AT_ONCE) {
            let mut running = JoinSet::new();
            for id in (first..count).take(AT_ONCE) {
                let library = self.library.clone();
                running.spawn(async move { library.lock(&format!("held:{id}"), WAIT, lease).await });
            }
            while let Some(guard) = running.join_next().await {
                self.held.push(guard??);
            }
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let mut running = JoinSet::new();
        for guard in std::mem::take(&mut self.held) {
            let library = self.library.clone();
            running.spawn(async move { library.unlock(guard).await });
            if running.len() == AT_ONCE {
                running.join_next().await.transpose()?.transpose()?;
            }
        }
        while let Some(done) = running.join_next().await {
            done??;
        }
        Ok(())
    }

    async fn lose(&self, key: &str, lease: Duration) -> Result<()> {
        let mut guard = self.library.lock(key, WAIT, lease).await?;
        let library = self.library.clone();
        say("watching"); // before a loss can be reported
        tokio::spawn(async move {
            match library.told(&mut guard).await {
                Ok(()) => say(&format!("lost {}", now())),
                Err(error) => say(&refusal(&error)),
            }
        });
        Ok(())
    }
}

/// Runs the body of an `enter`. Returns its start and end.
async fn inside(body: Duration) -> (u64, u64) {
    let entered = now();
    if body > Duration::ZERO {
        tokio::time::sleep(body).await;
    }
    (entered, now())
}

fn refusal(error: &Failure) -> String {
    let word = if error.is::<Cannot>() { "cannot" } else { "failed" };
    format!("{word} {}", error.to_string().replace('\n', " "))
}

/// Writes a line to the parent process.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // If the parent has closed the pipe, the answer is not needed.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The number of locks that `hold` acquires and `release` releases at a time.
const AT_ONCE: usize = 64;
