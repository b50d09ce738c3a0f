//! The host of the Redis stub: its connections, and the faults that affect them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;
use turmoil::net::tcp::OwnedWriteHalf;
use turmoil::net::{TcpListener, TcpStream};

use crate::backend::redis::simulation::faults::{Counts, Fault};
use crate::backend::redis::simulation::floods::{FLOOD_INTERVAL, Flood, FloodRecord, Flooded};
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
    /// The open connections, by client.
    connections: RefCell<BTreeMap<u64, Rc<Connection>>>,
    /// When faults may delay the end of a connection.
    pub(super) disturbances: RefCell<Vec<(BootInstant, BootInstant)>>,
    /// When errors may be the reason why a client closes a connection.
    pub(super) errors: RefCell<Vec<(BootInstant, BootInstant)>>,
    /// The floods so far.
    pub(super) floods: RefCell<Vec<FloodRecord>>,
    refuses: Notify,
    /// The recorded events, if the run is traced.
    pub(super) trace: Option<RefCell<Vec<String>>>,
}

/// A connection of a client.
struct Connection {
    /// Notified when it must be cut.
    cut: Notify,
    is_cut: Cell<bool>,
    /// Notified when it must be flooded.
    flooded: Notify,
    /// The host name of the client.
    client: String,
    opened: BootInstant,
    /// Whether a command on a lock was received over it.
    is_used: Cell<bool>,
}

/// The active faults, each with its end.
pub(super) struct ActiveFaults {
    pub(super) stalls: Cell<BootInstant>,
    pub(super) refuses: Cell<BootInstant>,
    pub(super) splits: Cell<BootInstant>,
    pub(super) is_slow: Cell<(BootInstant, Duration)>,
    pub(super) errs: Cell<(BootInstant, &'static str)>,
    pub(super) flood: Cell<(BootInstant, Option<(Flood, Flooded)>)>,
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
            flood: Cell::new((BootInstant::START, None)),
            cuts: Cell::new(None),
        }
    }
}

impl ActiveFaults {
    /// Ends all faults.
    pub(super) fn end(&self) {
        let Self { stalls, refuses, splits, is_slow, errs, flood, cuts } = Self::default();
        self.stalls.swap(&stalls);
        self.refuses.swap(&refuses);
        self.splits.swap(&splits);
        self.is_slow.swap(&is_slow);
        self.errs.swap(&errs);
        self.flood.swap(&flood);
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
        let connections = self.connections.borrow();
        let chosen = connections.iter().filter(|(client, _)| which(**client));
        let cut = |connection: &Connection| {
            connection.is_cut.set(true);
            connection.cut.notify_one();
        };
        chosen.map(|(_, connection)| cut(connection)).count()
    }

    /// Floods connections until `end`.
    pub(super) fn flood(&self, flood: Flood, flooded: Flooded, end: BootInstant) {
        self.active_faults.flood.set((end, Some((flood, flooded))));
        let redis = self.redis.borrow();
        let is_flooded = |client: u64| match flooded {
            Flooded::All => true,
            Flooded::Subscriptions => redis.listens(client),
            Flooded::Tracking => redis.tracks(client),
            Flooded::Commands => !redis.listens(client) && !redis.tracks(client),
        };
        for (client, connection) in &*self.connections.borrow() {
            if is_flooded(*client) {
                connection.flooded.notify_one();
            }
        }
    }

    /// Cuts the connections with subscriptions.
    pub(super) fn cut_subscriptions(&self) -> usize {
        self.cut(|client| self.redis.borrow().listens(client))
    }

    /// Counts the reasons with which clients closed flooded connections, and the effects of foreign
    /// data.
    pub(super) fn note_effects(&self, reasons: &[String]) {
        let named = reasons
            .iter()
            .filter_map(|reason| Flood::REASONS.into_iter().find(|of_flood| reason.contains(of_flood)));
        let mut counts = self.counts.borrow_mut();
        named.for_each(|reason| counts.add(reason));
        for (effect, count) in &self.redis.borrow().met {
            (0..*count).for_each(|_| counts.add(effect));
        }
    }

    /// Returns `true` if a client closed a connection with a reason that names a flood.
    pub(super) fn has_named_a_flood(&self) -> bool {
        let counts = self.counts.borrow();
        Flood::REASONS.iter().any(|reason| counts.0.contains_key(reason))
    }

    /// Restarts the server process.
    pub(super) fn restarts(&self, keeps: bool) {
        self.redis.borrow_mut().restart(keeps);
        self.connections.borrow_mut().clear();
    }

    /// Serves one connection.
    async fn serve_connection(self: Rc<Self>, stream: TcpStream) {
        let name = stream.peer_addr().ok().and_then(|peer| turmoil::reverse_lookup(peer.ip()));
        let (mut from, mut to) = stream.into_split();
        let (out, mut replies) = mpsc::unbounded_channel::<Vec<u8>>();
        let client = self.redis.borrow_mut().connect(out);
        let connection = Rc::new(Connection {
            cut: Notify::new(),
            is_cut: Cell::new(false),
            flooded: Notify::new(),
            client: name.unwrap_or_default(),
            opened: boot_time(),
            is_used: Cell::new(false),
        });
        self.connections.borrow_mut().insert(client, Rc::clone(&connection));
        if let (end, Some((_, Flooded::All))) = self.active_faults.flood.get()
            && boot_time() < end
        {
            connection.flooded.notify_one();
        }
        let sender = async {
            loop {
                let bytes = tokio::select! {
                    biased;
                    () = connection.flooded.notified() => {
                        if self.send_flood(client, &connection, &mut to).await.is_break() {
                            return;
                        }
                        continue;
                    }
                    bytes = replies.recv() => bytes,
                };
                let Some(bytes) = bytes else { return };
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
                    // An attempt to connect may try a script. If it fails, no connection is lost.
                    let is_of_a_lock = is_lock_command(&words) && words[1] != "return 1";
                    connection.is_used.set(connection.is_used.get() || is_of_a_lock);
                    if self.run_command(client, &words).is_break() {
                        connection.is_cut.set(true);
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
            () = connection.cut.notified() => {}
            () = receiver => {}
            () = sender => {}
        }
        self.connections.borrow_mut().remove(&client);
        self.redis.borrow_mut().disconnect(client);
    }

    /// Sends a flood to a client until it ends. Breaks if nothing can follow it.
    async fn send_flood(
        &self,
        client: u64,
        connection: &Connection,
        to: &mut OwnedWriteHalf,
    ) -> ControlFlow<()> {
        let (end, Some((flood, _))) = self.active_faults.flood.get() else {
            return ControlFlow::Continue(());
        };
        self.note(|| format!("    {client} is flooded: {flood:?}"));
        self.counts.borrow_mut().add(flood.name());
        let channel = self.redis.borrow().channel(client);
        let (first, again) = flood.bytes(channel.as_deref());
        let mut recording = Recording { host: self, connection, flood, since: boot_time(), ends: false };
        if !first.is_empty() && to.write_all(&first).await.is_err() {
            return ControlFlow::Break(());
        }
        while boot_time() < end {
            if !again.is_empty() && to.write_all(&again).await.is_err() {
                return ControlFlow::Break(());
            }
            sleep(FLOOD_INTERVAL).await;
        }
        recording.ends = true;
        if flood.is_violation() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Runs a command of a client. Breaks if the connection must be cut.
    fn run_command(&self, client: u64, words: &[String]) -> ControlFlow<()> {
        self.note(|| format!("    {client} sends {}", shown(words)));
        let is_lock_command = is_lock_command(words);
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
            return ControlFlow::Break(());
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
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// Records a flood when it ends.
struct Recording<'a> {
    host: &'a Host,
    connection: &'a Connection,
    flood: Flood,
    since: BootInstant,
    /// Whether the server ended it.
    ends: bool,
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        let Self { host, connection, flood, since, ends } = self;
        let Connection { client, opened, is_used, is_cut, .. } = connection;
        let until = boot_time();
        host.note(|| format!("    a flood of {client} ended after {:?}", until.since(*since)));
        let record = FloodRecord {
            flood: *flood,
            client: client.clone(),
            opened: *opened,
            is_used: is_used.get(),
            since: *since,
            until,
            is_closed: !*ends && !is_cut.get(),
        };
        host.floods.borrow_mut().push(record);
    }
}

fn is_lock_command(words: &[String]) -> bool {
    matches!(words[0].as_str(), "SET" | "EVALSHA" | "EVAL")
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
