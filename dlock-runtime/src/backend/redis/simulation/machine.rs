//! The machine that the small Redis runs on: its connections, and what goes wrong with them.
//!
//! Not here: what the server answers (`small_redis`), when something goes wrong (`faults`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;
use turmoil::net::{TcpListener, TcpStream};

use crate::backend::redis::simulation::faults::{Counts, Fault};
use crate::backend::redis::simulation::said::next_command;
use crate::backend::redis::simulation::small_redis::SmallRedis;
use crate::backend::redis::simulation::world::sim_time;
use crate::clock::boot_time;
use crate::protocol::deadline::BootInstant;

pub(super) const PORT: u16 = 6379;

/// The machine; it outlives the process that serves on it.
#[derive(Default)]
pub(super) struct Machine {
    pub(super) redis: RefCell<SmallRedis>,
    pub(super) moods: Moods,
    /// What was seen to happen.
    pub(super) counts: RefCell<Counts>,
    /// Told when connections are to be cut, by their clients.
    cuts: RefCell<BTreeMap<u64, Rc<Notify>>>,
    refuses: Notify,
    /// For how long a connection may be idle before it is ended, where there is a limit.
    pub(super) ends_idle: Cell<Option<Duration>>,
    /// What happens, where it is to be shown.
    pub(super) trace: Option<RefCell<Vec<String>>>,
}

/// What goes wrong, each until a point in time.
pub(super) struct Moods {
    pub(super) stalls: Cell<BootInstant>,
    pub(super) refuses: Cell<BootInstant>,
    pub(super) splits: Cell<BootInstant>,
    pub(super) is_slow: Cell<(BootInstant, Duration)>,
    pub(super) errs: Cell<(BootInstant, &'static str)>,
    /// Whether the next command on a lock is cut off, before it is done or after.
    pub(super) cuts: Cell<Option<Cut>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Before,
    After,
}

impl Default for Moods {
    fn default() -> Self {
        let never = || Cell::new(BootInstant::START);
        Self {
            stalls: never(),
            refuses: never(),
            splits: never(),
            is_slow: Cell::new((BootInstant::START, Duration::ZERO)),
            errs: Cell::new((BootInstant::START, "")),
            cuts: Cell::new(None),
        }
    }
}

impl Moods {
    /// All is well again.
    pub(super) fn end(&self) {
        let Self { stalls, refuses, splits, is_slow, errs, cuts } = Self::default();
        self.stalls.swap(&stalls);
        self.refuses.swap(&refuses);
        self.splits.swap(&splits);
        self.is_slow.swap(&is_slow);
        self.errs.swap(&errs);
        self.cuts.swap(&cuts);
    }
}

impl Machine {
    pub(super) fn new(traced: bool) -> Self {
        Self { trace: traced.then(RefCell::default), ..Self::default() }
    }

    /// Notes what happens, where it is to be shown.
    pub(super) fn note(&self, what: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            trace.borrow_mut().push(format!("{:>9.3} {}", sim_time().as_secs_f64() * 1_000.0, what()));
        }
    }

    /// Serves, for as long as the process lives.
    pub(super) async fn serve(self: Rc<Self>) -> turmoil::Result {
        loop {
            while boot_time() < self.moods.refuses.get() {
                sleep(STEP).await;
            }
            let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
            loop {
                tokio::select! {
                    biased;
                    () = self.refuses.notified() => break,
                    accepted = listener.accept() => {
                        let (stream, _) = accepted?;
                        tokio::task::spawn_local(Rc::clone(&self).talk(stream));
                    }
                }
            }
        }
    }

    /// Takes no connections until `end`.
    pub(super) fn refuse_until(&self, end: BootInstant) {
        self.moods.refuses.set(end);
        self.refuses.notify_one();
    }

    /// Cuts the connections of clients that `which` takes.
    pub(super) fn cut(&self, which: impl Fn(u64) -> bool) -> usize {
        let cuts = self.cuts.borrow();
        cuts.iter().filter(|(client, _)| which(**client)).map(|(_, cut)| cut.notify_one()).count()
    }

    /// Cuts the connections over which messages are heard.
    pub(super) fn cut_ears(&self) -> usize {
        self.cut(|client| self.redis.borrow().listens(client))
    }

    /// Its process has ended.
    pub(super) fn restarts(&self, keeps: bool) {
        self.redis.borrow_mut().restart(keeps);
        self.cuts.borrow_mut().clear();
    }

    /// Serves one connection.
    async fn talk(self: Rc<Self>, stream: TcpStream) {
        let (mut from, mut to) = stream.into_split();
        let (out, mut said) = mpsc::unbounded_channel::<Vec<u8>>();
        let client = self.redis.borrow_mut().connect(out);
        let cut = Rc::new(Notify::new());
        self.cuts.borrow_mut().insert(client, Rc::clone(&cut));
        let says = async {
            while let Some(bytes) = said.recv().await {
                let (until, by) = self.moods.is_slow.get();
                if boot_time() < until {
                    sleep(by).await;
                }
                let is_split = boot_time() < self.moods.splits.get();
                let pieces = bytes.chunks(if is_split { 7 } else { bytes.len().max(1) });
                for piece in pieces {
                    if to.write_all(piece).await.is_err() {
                        return;
                    }
                }
            }
        };
        let hears = async {
            let (mut heard, mut piece) = (Vec::new(), [0; 4096]);
            loop {
                while let Some(words) = next_command(&mut heard) {
                    while boot_time() < self.moods.stalls.get() {
                        sleep(STEP).await;
                    }
                    if self.does(client, &words).is_break() {
                        return;
                    }
                }
                let limit = self.ends_idle.get().unwrap_or(Duration::MAX);
                match tokio::time::timeout(limit, from.read(&mut piece)).await {
                    Err(_) | Ok(Ok(0) | Err(_)) => return,
                    Ok(Ok(count)) => heard.extend_from_slice(&piece[..count]),
                }
            }
        };
        tokio::select! {
            biased;
            () = cut.notified() => {}
            () = hears => {}
            () = says => {}
        }
        self.cuts.borrow_mut().remove(&client);
        self.redis.borrow_mut().disconnect(client);
    }

    /// Does what a client says; breaks off where the connection is to be cut.
    fn does(&self, client: u64, words: &[String]) -> std::ops::ControlFlow<()> {
        self.note(|| format!("    {client} says {}", shown(words)));
        let is_of_a_lock = matches!(words[0].as_str(), "SET" | "EVALSHA" | "EVAL");
        let (until, error) = self.moods.errs.get();
        let (now, mut redis) = (boot_time(), self.redis.borrow_mut());
        let cut = self.moods.cuts.get().filter(|_| is_of_a_lock);
        if cut.is_some() {
            self.moods.cuts.set(None);
            self.counts.borrow_mut().add(if cut == Some(Cut::Before) {
                Fault::CUT_BEFORE
            } else {
                Fault::CUT_AFTER
            });
        }
        if cut == Some(Cut::Before) {
            return std::ops::ControlFlow::Break(());
        }
        if is_of_a_lock && now < until {
            self.counts.borrow_mut().add(Fault::ERR);
            redis.refuse(client, error);
        } else {
            if words[0] == "EVALSHA" && redis.has_forgotten(&words[1]) {
                self.counts.borrow_mut().add(Fault::NO_SCRIPT);
            }
            redis.run(client, words, now);
        }
        if cut == Some(Cut::After) {
            return std::ops::ControlFlow::Break(());
        }
        std::ops::ControlFlow::Continue(())
    }
}

/// Returns a command as it is shown: what texts of scripts say is known.
fn shown(words: &[String]) -> String {
    words
        .iter()
        .map(|word| word.get(..56).unwrap_or(word).replace(char::is_whitespace, " "))
        .collect::<Vec<_>>()
        .join(" ")
}

/// How often a machine that is kept looks whether it is any more.
const STEP: Duration = Duration::from_millis(5);
