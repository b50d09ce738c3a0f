//! The host of the Redis stub: its connections, and the faults that affect them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;
use turmoil::net::{TcpListener, TcpStream};

use crate::backend::redis::simulation::faults::{Counts, Fault};
use crate::backend::redis::simulation::model::sim_time;
use crate::backend::redis::simulation::redis_stub::RedisStub;
use crate::backend::redis::simulation::resp::next_command;
use crate::clock::boot_time;
use crate::protocol::deadline::BootInstant;

pub(super) const PORT: u16 = 6379;

/// The host. It outlives the server process.
#[derive(Default)]
pub(super) struct Host {
    pub(super) redis: RefCell<RedisStub>,
    pub(super) active_faults: ActiveFaults,
    /// The faults that occurred.
    pub(super) counts: RefCell<Counts>,
    /// Notifies each connection, by client, that it must be cut.
    cuts: RefCell<BTreeMap<u64, Rc<Notify>>>,
    refuses: Notify,
    /// The recorded events, if the run is traced.
    pub(super) trace: Option<RefCell<Vec<String>>>,
}

/// The active faults, each with its end.
pub(super) struct ActiveFaults {
    pub(super) stalls: Cell<BootInstant>,
    pub(super) refuses: Cell<BootInstant>,
    pub(super) splits: Cell<BootInstant>,
    pub(super) is_slow: Cell<(BootInstant, Duration)>,
    pub(super) errs: Cell<(BootInstant, &'static str)>,
    /// Whether to cut the connection before or after the next command on a lock.
    pub(super) cuts: Cell<Option<Cut>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Before,
    After,
}

impl Default for ActiveFaults {
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

impl ActiveFaults {
    /// Ends all faults.
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

impl Host {
    pub(super) fn new(traced: bool) -> Self {
        Self { trace: traced.then(RefCell::default), ..Self::default() }
    }

    /// Records an event if the run is traced.
    pub(super) fn note(&self, what: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            trace.borrow_mut().push(format!("{:>9.3} {}", sim_time().as_secs_f64() * 1_000.0, what()));
        }
    }

    /// Serves connections while the process lives.
    pub(super) async fn serve(self: Rc<Self>) -> turmoil::Result {
        loop {
            while boot_time() < self.active_faults.refuses.get() {
                sleep(STEP).await;
            }
            let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
            loop {
                tokio::select! {
                    biased;
                    () = self.refuses.notified() => break,
                    accepted = listener.accept() => {
                        let (stream, _) = accepted?;
                        tokio::task::spawn_local(Rc::clone(&self).serve_connection(stream));
                    }
                }
            }
        }
    }

    /// Accepts no connections until `end`.
    pub(super) fn refuse_until(&self, end: BootInstant) {
        self.active_faults.refuses.set(end);
        self.refuses.notify_one();
    }

    /// Cuts the connections of clients for which `which` returns `true`.
    pub(super) fn cut(&self, which: impl Fn(u64) -> bool) -> usize {
        let cuts = self.cuts.borrow();
        cuts.iter().filter(|(client, _)| which(**client)).map(|(_, cut)| cut.notify_one()).count()
    }

    /// Cuts the connections with subscriptions.
    pub(super) fn cut_subscriptions(&self) -> usize {
        self.cut(|client| self.redis.borrow().listens(client))
    }

    /// Restarts the server process.
    pub(super) fn restarts(&self, keeps: bool) {
        self.redis.borrow_mut().restart(keeps);
        self.cuts.borrow_mut().clear();
    }

    /// Serves one connection.
    async fn serve_connection(self: Rc<Self>, stream: TcpStream) {
        let (mut from, mut to) = stream.into_split();
        let (out, mut replies) = mpsc::unbounded_channel::<Vec<u8>>();
        let client = self.redis.borrow_mut().connect(out);
        let cut = Rc::new(Notify::new());
        self.cuts.borrow_mut().insert(client, Rc::clone(&cut));
        let sender = async {
            while let Some(bytes) = replies.recv().await {
                let (until, by) = self.active_faults.is_slow.get();
                if boot_time() < until {
                    sleep(by).await;
                }
                let is_split = boot_time() < self.active_faults.splits.get();
                let pieces = bytes.chunks(if is_split { 7 } else { bytes.len().max(1) });
                for piece in pieces {
                    if to.write_all(piece).await.is_err() {
                        return;
                    }
                }
            }
        };
        let receiver = async {
            let (mut received, mut piece) = (Vec::new(), [0; 4096]);
            loop {
                while let Some(words) = next_command(&mut received) {
                    while boot_time() < self.active_faults.stalls.get() {
                        sleep(STEP).await;
                    }
                    if self.run_command(client, &words).is_break() {
                        return;
                    }
                }
                match from.read(&mut piece).await {
                    Ok(0) | Err(_) => return,
                    Ok(count) => received.extend_from_slice(&piece[..count]),
                }
            }
        };
        tokio::select! {
            biased;
            () = cut.notified() => {}
            () = receiver => {}
            () = sender => {}
        }
        self.cuts.borrow_mut().remove(&client);
        self.redis.borrow_mut().disconnect(client);
    }

    /// Runs a command of a client. Breaks if the connection must be cut.
    fn run_command(&self, client: u64, words: &[String]) -> std::ops::ControlFlow<()> {
        self.note(|| format!("    {client} sends {}", shown(words)));
        let is_lock_command = matches!(words[0].as_str(), "SET" | "EVALSHA" | "EVAL");
        let (until, error) = self.active_faults.errs.get();
        let (now, mut redis) = (boot_time(), self.redis.borrow_mut());
        let cut = self.active_faults.cuts.get().filter(|_| is_lock_command);
        if cut.is_some() {
            self.active_faults.cuts.set(None);
            self.counts.borrow_mut().add(if cut == Some(Cut::Before) {
                Fault::CUT_BEFORE
            } else {
                Fault::CUT_AFTER
            });
        }
        if cut == Some(Cut::Before) {
            return std::ops::ControlFlow::Break(());
        }
        if is_lock_command && now < until {
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

/// Returns a command for the trace, with long arguments cut.
fn shown(words: &[String]) -> String {
    words
        .iter()
        .map(|word| word.get(..56).unwrap_or(word).replace(char::is_whitespace, " "))
        .collect::<Vec<_>>()
        .join(" ")
}

/// How often a stalled host checks whether the stall has ended.
const STEP: Duration = Duration::from_millis(5);
