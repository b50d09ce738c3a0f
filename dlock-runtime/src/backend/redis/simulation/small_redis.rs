//! A small Redis that understands what our backend says to one, and nothing else.
//!
//! What a command makes of a lock stands in `protocol::record`; here are the words, who listens, and who is told of changes. A word that our
//! backend has no reason to say is noted as [strange](SmallRedis::strange): so no key can come to stand there without an end.
//!
//! Not here: connections (`machine`), whether a real Redis says the same (`contract`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use crate::backend::redis::encoding::LockEncoding;
use crate::backend::redis::encoding::scripts::Script;
use crate::backend::redis::namespaces::Namespaces;
use crate::backend::redis::simulation::said::SentinelReport;
use crate::protocol::command::{Command, EnqueueMode, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::fencing;
use crate::protocol::foreign_clients::{FleetHold, Grant};
use crate::protocol::record::Record;
use crate::token::Token;

/// The server.
pub(super) struct SmallRedis {
    keys: BTreeMap<String, Entry>,
    /// Which of [`SCRIPTS`] it knows by their names.
    loaded: BTreeSet<usize>,
    clients: BTreeMap<u64, Client>,
    /// Which clients are told of the next change of a key.
    readers: BTreeMap<String, BTreeSet<u64>>,
    last_client: u64,
    /// That of its clients.
    namespaces: Namespaces,
    /// The fencing tokens that were issued, in their order.
    pub(super) issued: Vec<(String, u64)>,
    /// What it was told that our backend has no reason to say.
    pub(super) strange: Vec<String>,
}

#[derive(Clone, Debug)]
enum Entry {
    Lock(Record),
    Counter { last: u64, ends: BootInstant },
}

struct Client {
    out: UnboundedSender<Vec<u8>>,
    channels: BTreeSet<String>,
    resp3: bool,
    tracks: bool,
}

/// By their places, which are their names.
const SCRIPTS: [Script; Script::COUNT] = [
    Script::Enqueue,
    Script::Renew,
    Script::Keep,
    Script::Release,
    Script::Free,
    Script::ForceRelease,
    Script::Leave,
    Script::Yield,
    Script::Fence,
    Script::Inspect,
];

impl Default for SmallRedis {
    fn default() -> Self {
        Self {
            keys: BTreeMap::new(),
            loaded: BTreeSet::new(),
            clients: BTreeMap::new(),
            readers: BTreeMap::new(),
            last_client: 0,
            namespaces: Namespaces::new(NAMESPACE),
            issued: Vec::new(),
            strange: Vec::new(),
        }
    }
}

impl SmallRedis {
    /// A client has connected; what it is told goes to `out`.
    pub(super) fn connect(&mut self, out: UnboundedSender<Vec<u8>>) -> u64 {
        self.last_client += 1;
        let client = Client { out, channels: BTreeSet::new(), resp3: false, tracks: false };
        self.clients.insert(self.last_client, client);
        self.last_client
    }

    /// Returns how many clients have connected so far.
    pub(super) fn connections(&self) -> u64 {
        self.last_client
    }

    pub(super) fn disconnect(&mut self, client: u64) {
        self.clients.remove(&client);
        self.readers.values_mut().for_each(|readers| {
            readers.remove(&client);
        });
    }

    /// Its process has ended: connections and scripts are gone, and all keys where it does not keep them.
    pub(super) fn restart(&mut self, keeps: bool) {
        self.clients.clear();
        self.readers.clear();
        self.loaded.clear();
        if !keeps {
            self.keys.clear();
        }
    }

    /// Forgets the scripts.
    pub(super) fn forget_scripts(&mut self) {
        self.loaded.clear();
    }

    /// Returns whether it does not know the script of this name.
    pub(super) fn has_forgotten(&self, script: &str) -> bool {
        !self.loaded.iter().any(|at| name(*at) == script)
    }

    /// Returns whether a client listens to messages.
    pub(super) fn listens(&self, client: u64) -> bool {
        self.clients.get(&client).is_some_and(|client| !client.channels.is_empty())
    }

    /// Returns the locks that stand there at `now`, and until when.
    pub(super) fn locks(&self, now: BootInstant) -> Vec<(String, BootInstant)> {
        let lock = |(key, entry): (&String, &Entry)| match entry {
            Entry::Lock(record) if !record.is_empty(now) => Some((key.clone(), record.ends()?)),
            _ => None,
        };
        self.keys.iter().filter_map(lock).collect()
    }

    /// Does what a client says, and answers it.
    pub(super) fn run(&mut self, client: u64, words: &[String], now: BootInstant) {
        self.sweep(now);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let said = self.answer(client, &words, now).unwrap_or_else(|| {
            self.strange.push(words.join(" "));
            SentinelReport::Error("ERR nobody says that here")
        });
        self.say(client, &said);
    }

    /// ReplySink a client with an error, in place of doing what it says.
    pub(super) fn refuse(&mut self, client: u64, error: &'static str) {
        self.say(client, &SentinelReport::Error(error));
    }

    fn say(&self, client: u64, said: &SentinelReport) {
        if let Some(client) = self.clients.get(&client) {
            let _ = client.out.send(said.written(client.resp3)); // it may be gone
        }
    }

    fn answer(&mut self, client: u64, words: &[&str], now: BootInstant) -> Option<SentinelReport> {
        let said = match *words {
            ["HELLO", "3", ..] => {
                self.clients.get_mut(&client)?.resp3 = true;
                SentinelReport::Map(vec![(SentinelReport::Text("proto".to_owned()), SentinelReport::Int(3))])
            }
            ["CLIENT", "SETINFO", ..] => SentinelReport::Line("OK"),
            ["CLIENT", "TRACKING", "ON", "NOLOOP"] => {
                self.clients.get_mut(&client)?.tracks = true;
                SentinelReport::Line("OK")
            }
            ["PING"] if !self.listens(client) => SentinelReport::Line("PONG"),
            ["PING"] => SentinelReport::List(vec![
                SentinelReport::Text("pong".to_owned()),
                SentinelReport::Text(String::new()),
            ]),
            ["SUBSCRIBE", channel] => {
                let channels = &mut self.clients.get_mut(&client)?.channels;
                channels.insert(channel.to_owned());
                let count = i64::try_from(channels.len()).ok()?;
                let words = ["subscribe", channel].map(|word| SentinelReport::Text(word.to_owned()));
                SentinelReport::List(words.into_iter().chain([SentinelReport::Int(count)]).collect())
            }
            ["SCRIPT", "LOAD", text] => {
                let at = SCRIPTS.iter().position(|script| script.source(LockEncoding::Native) == text)?;
                self.loaded.insert(at);
                SentinelReport::Text(name(at))
            }
            ["SET", key, token, "NX", "PX", lease] => {
                let command = Command::Acquire { lease: millis(lease)? };
                match self.on_lock(client, key, Token::parse(token)?, command, Duration::ZERO, now) {
                    Reply::Owner => SentinelReport::Line("OK"),
                    Reply::Contended => SentinelReport::Nil,
                    _ => return None,
                }
            }
            ["GETRANGE", key, "0", end] => {
                self.is_read(client, key);
                let mut text = match self.keys.get(key) {
                    Some(Entry::Lock(record)) => record.tokens(now).iter().map(Token::to_string).collect(),
                    Some(Entry::Counter { last, .. }) => last.to_string(),
                    None => String::new(),
                };
                text.truncate(end.parse::<usize>().ok()? + 1);
                SentinelReport::Text(text)
            }
            ["EVALSHA", script, keys, ref rest @ ..] => {
                let Some(at) = (0..SCRIPTS.len()).find(|at| name(*at) == script && self.loaded.contains(at))
                else {
                    return Some(SentinelReport::Error("NOSCRIPT No matching script. Please use EVAL."));
                };
                return self.script(client, SCRIPTS[at], rest.split_at_checked(keys.parse().ok()?)?, now);
            }
            // Whether it runs scripts, where it is not known to load them: it closed the connection instead.
            ["EVAL", "return 1", "1", _] => SentinelReport::Int(1),
            ["EVAL", text, keys, ref rest @ ..] => {
                let at = SCRIPTS.iter().position(|script| script.source(LockEncoding::Native) == text)?;
                self.loaded.insert(at);
                return self.script(client, SCRIPTS[at], rest.split_at_checked(keys.parse().ok()?)?, now);
            }
            _ => return None,
        };
        Some(said)
    }

    /// Runs a script.
    fn script(
        &mut self,
        client: u64,
        script: Script,
        (keys, args): (&[&str], &[&str]),
        now: BootInstant,
    ) -> Option<SentinelReport> {
        let (&key, (&token, mut rest)) = (keys.first()?, args.split_first()?);
        let token = Token::parse(token)?;
        let publishes = [Script::Release, Script::Free, Script::ForceRelease, Script::Leave, Script::Yield];
        if publishes.contains(&script) {
            let (&channels, behind) = rest.split_first()?;
            if channels != self.namespaces.own().grants() {
                return None;
            }
            rest = behind;
        }
        let (mut grant_lease, mut besides) = (Duration::ZERO, None);
        let command = match (script, rest) {
            (Script::Enqueue, [lease, mode, rest @ ..]) => {
                besides = rest.first().copied();
                let mode = match *mode {
                    "first" => EnqueueMode::Join,
                    "again" => EnqueueMode::Recheck,
                    "peek" => EnqueueMode::TryOnly,
                    _ => return None,
                };
                Command::Enqueue { lease: millis(lease)?, mode }
            }
            (Script::Renew, [lease, rest @ ..]) => {
                besides = rest.first().copied();
                Command::Renew { lease: millis(lease)? }
            }
            (Script::Keep, [ttl]) => Command::SetTtl { ttl: millis(ttl)? },
            (Script::Release, [lease]) => {
                grant_lease = millis(lease)?;
                Command::Release
            }
            (Script::Release, [lease, fleet_hold]) => {
                grant_lease = millis(lease)?;
                Command::ReleaseWithFleetHold { fleet_hold: streak_of(fleet_hold)? }
            }
            (Script::Free, []) => Command::ReleaseWithoutHandoff,
            (Script::ForceRelease | Script::Leave, [lease]) => {
                grant_lease = millis(lease)?;
                if script == Script::Leave { Command::Withdraw } else { Command::ForceRelease }
            }
            (Script::Yield, [lease, next, rest @ ..]) => {
                grant_lease = millis(lease)?;
                let fleet_hold =
                    rest.first().map_or(Some(FleetHold::UNKNOWN), |fleet_hold| streak_of(fleet_hold))?;
                Command::Yield { next: Token::parse(next)?, fleet_hold }
            }
            (Script::Fence, [life]) => {
                let counter = (*keys.get(1)?, millis(life)?);
                let reply = self.on_lock(client, key, token, Command::Fence, Duration::ZERO, now);
                return Some(match reply {
                    Reply::Owner => SentinelReport::Text(self.issue(key, counter, now).to_string()),
                    _ => SentinelReport::Int(0),
                });
            }
            (Script::Inspect, []) => Command::Inspect,
            _ => return None,
        };
        let holder = self.holder(key, now);
        let before = self.written(key);
        let reply = self.on_lock(client, key, token, command, grant_lease, now);
        if besides == Some("write") && matches!(reply, Reply::Owner) && self.written(key) == before {
            self.has_changed(key, Some(client)); // it was written as it was
        }
        // The script read the key, and a change by itself is the one that its reader would have been told of.
        if self.written(key) == before || besides == Some("read") {
            self.is_read(client, key);
        }
        Some(match (script, reply) {
            (Script::Enqueue, Reply::Owner) => pair(1, Some(Duration::ZERO)),
            (Script::Enqueue, Reply::Queued { ttl }) => pair(2, ttl),
            (Script::Enqueue, Reply::NotQueued { ttl }) => pair(3, ttl),
            (Script::Enqueue, Reply::Absent) => pair(0, Some(Duration::ZERO)),
            (Script::Inspect, Reply::Info(Some(sight))) => {
                let waiters = i64::try_from(sight.waiters).ok()?;
                SentinelReport::List(vec![
                    SentinelReport::Text(holder?.to_string()),
                    SentinelReport::Int(waiters),
                    ttl(sight.ttl),
                ])
            }
            (Script::Inspect, Reply::Info(None)) | (_, Reply::NotOwner) => SentinelReport::Int(0),
            (Script::Yield, Reply::Yielded) => SentinelReport::Int(2),
            (_, Reply::Owner) => SentinelReport::Int(1),
            _ => return None,
        })
    }

    /// Has a lock do a command, tells those who are granted it, and those who wanted to hear of a change.
    fn on_lock(
        &mut self,
        client: u64,
        key: &str,
        token: Token,
        command: Command,
        grant_lease: Duration,
        now: BootInstant,
    ) -> Reply {
        let before = self.written(key);
        let entry = self.keys.entry(key.to_owned()).or_insert(Entry::Lock(Record::default()));
        let Entry::Lock(record) = entry else {
            self.strange.push(format!("{command:?} of a counter"));
            return Reply::NotOwner;
        };
        let (clients, namespace) = (&self.clients, self.namespaces.own());
        let reply = record.run(token, command, now, grant_lease, |token, Grant { lease, fleet_hold }| {
            let channel = namespace.grant_channel(token.process());
            let fleet_hold = fleet_hold.millis().map(|held| format!("+{held}")).unwrap_or_default();
            let payload = format!("{token}{}{fleet_hold}|{key}", lease.as_millis());
            let message = ["message", &channel, &payload].map(|word| SentinelReport::Text(word.to_owned()));
            let message = SentinelReport::List(message.into());
            let mut hearing = clients.values().filter(|client| client.channels.contains(&channel)).peekable();
            let is_heard = hearing.peek().is_some();
            hearing.for_each(|client| drop(client.out.send(message.written(client.resp3))));
            is_heard
        });
        if record.is_empty(now) {
            self.keys.remove(key);
        }
        if self.written(key) != before {
            self.has_changed(key, Some(client));
        }
        reply
    }

    fn issue(&mut self, key: &str, (counter, life): (&str, Duration), now: BootInstant) -> u64 {
        let last = match self.keys.get(counter) {
            Some(Entry::Counter { last, .. }) => Some(*last),
            _ => None,
        };
        let token = fencing::next(last, EPOCH + now.nanos() / 1_000).expect("the clock is below 2^53");
        self.keys.insert(counter.to_owned(), Entry::Counter { last: token, ends: now.plus(life) });
        self.issued.push((key.to_owned(), token));
        token
    }

    /// Takes out what has come to its end.
    fn sweep(&mut self, now: BootInstant) {
        let has_ended = |entry: &Entry| match entry {
            Entry::Lock(record) => record.is_empty(now),
            Entry::Counter { ends, .. } => *ends <= now,
        };
        let ended: Vec<_> =
            self.keys.iter().filter(|(_, entry)| has_ended(entry)).map(|(key, _)| key.clone()).collect();
        for key in ended {
            self.keys.remove(&key);
            self.has_changed(&key, None);
        }
    }

    fn holder(&self, key: &str, now: BootInstant) -> Option<Token> {
        match self.keys.get(key)? {
            Entry::Lock(record) => record.tokens(now).first().copied(),
            Entry::Counter { .. } => None,
        }
    }

    /// Returns what stands under a key, to be compared.
    fn written(&self, key: &str) -> Option<(Vec<Token>, Option<BootInstant>)> {
        match self.keys.get(key)? {
            Entry::Lock(record) => Some((record.tokens(BootInstant::START), record.ends())),
            Entry::Counter { .. } => None,
        }
    }

    fn is_read(&mut self, client: u64, key: &str) {
        if self.clients.get(&client).is_some_and(|client| client.tracks) {
            self.readers.entry(key.to_owned()).or_default().insert(client);
        }
    }

    /// Tells those who have read a key that it has changed, but not who changed it.
    fn has_changed(&mut self, key: &str, by: Option<u64>) {
        let readers = self.readers.remove(key).unwrap_or_default();
        let keys = SentinelReport::List(vec![SentinelReport::Text(key.to_owned())]);
        let told = SentinelReport::Push(vec![SentinelReport::Text("invalidate".to_owned()), keys]);
        for reader in readers.into_iter().filter(|reader| Some(*reader) != by) {
            self.say(reader, &told);
        }
    }
}

/// The namespace of every client, which is the default.
pub(super) const NAMESPACE: &str = "dlock";

/// The wall clock when the boot clock was started, in microseconds.
const EPOCH: u64 = 1_700_000_000_000_000;

fn name(at: usize) -> String {
    format!("{at:040x}")
}

fn millis(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_millis)
}

fn streak_of(text: &str) -> Option<FleetHold> {
    text.strip_prefix('+').and_then(millis).map(FleetHold::of)
}

fn ttl(ttl: Option<Duration>) -> SentinelReport {
    SentinelReport::Int(ttl.and_then(|ttl| i64::try_from(ttl.as_millis()).ok()).unwrap_or(-1))
}

fn pair(first: i64, time: Option<Duration>) -> SentinelReport {
    SentinelReport::List(vec![SentinelReport::Int(first), ttl(time)])
}
