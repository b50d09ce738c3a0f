//! A Redis stub that understands exactly the commands that the backend sends.
//!
//! `protocol::record` implements the effect of commands on a lock. This module adds the encoding,
//! subscriptions, and client tracking. A command that the backend has no reason to send is recorded
//! as [unexpected](RedisStub::unexpected), so no key can lack a time to live. Other clients may write
//! [foreign data](ForeignData) under the name of a lock.
//!
//! See also `contract`, which compares the stub with a real server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use crate::backend::redis::encoding::scripts::{NATIVE, Script};
use crate::backend::redis::namespaces::Namespaces;
use crate::backend::redis::owner_lookup;
use crate::backend::redis::simulation::resp::RespValue;
use crate::bounds::LONGEST_VALUE;
use crate::protocol::command::{Command, EnqueueMode, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::fencing;
use crate::protocol::foreign_clients::{FleetHold, Grant};
use crate::protocol::record::Record;
use crate::token::Token;

/// The server.
pub(super) struct RedisStub {
    keys: BTreeMap<String, Entry>,
    /// Which of [`SCRIPTS`] are loaded.
    loaded: BTreeSet<usize>,
    clients: BTreeMap<u64, Client>,
    /// The clients that are notified of the next change of a key.
    readers: BTreeMap<String, BTreeSet<u64>>,
    last_client: u64,
    /// The namespaces of its clients.
    namespaces: Namespaces,
    /// The issued fencing tokens, in order.
    pub(super) issued: Vec<(String, u64)>,
    /// Commands that the backend has no reason to send.
    pub(super) unexpected: Vec<String>,
    /// How often commands met foreign data, by effect.
    pub(super) met: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Debug)]
enum Entry {
    Lock(Record),
    Counter { last: u64, ends: BootInstant },
    Foreign { data: ForeignData, ends: BootInstant },
}

/// Data that another client wrote under the name of a lock.
#[derive(Clone, Debug)]
pub(super) enum ForeignData {
    /// A string that no client of this library writes: longer than a full queue, or without the
    /// prefix of tokens.
    Text(String),
    /// A list, a hash, or another type that is not a string.
    OtherType,
}

struct Client {
    out: UnboundedSender<Vec<u8>>,
    channels: BTreeSet<String>,
    resp3: bool,
    tracks: bool,
}

/// The index of a script is its hash.
const SCRIPTS: [Script; Script::COUNT] = [
    Script::Enqueue,
    Script::Renew,
    Script::SetTtl,
    Script::Release,
    Script::ReleaseWithoutHandoff,
    Script::ForceRelease,
    Script::Withdraw,
    Script::Yield,
    Script::Fence,
    Script::Inspect,
];

impl Default for RedisStub {
    fn default() -> Self {
        Self {
            keys: BTreeMap::new(),
            loaded: BTreeSet::new(),
            clients: BTreeMap::new(),
            readers: BTreeMap::new(),
            last_client: 0,
            namespaces: Namespaces::new(NAMESPACE),
            issued: Vec::new(),
            unexpected: Vec::new(),
            met: BTreeMap::new(),
        }
    }
}

impl RedisStub {
    pub(super) const REFUSED_IN_QUEUE: &str = "foreign data: not queued";
    pub(super) const REFUSED_TYPE: &str = "foreign data: another type";
    pub(super) const NOT_THE_OWNER: &str = "foreign data: a holder lost its lock";
    pub(super) const TRACKED: &str = "foreign data: tracked";

    /// The effects of foreign data that are counted.
    pub(super) const EFFECTS: [&str; 4] =
        [Self::REFUSED_IN_QUEUE, Self::REFUSED_TYPE, Self::NOT_THE_OWNER, Self::TRACKED];

    /// Writes the data of another client until `ends`, or until the lock that it replaces would
    /// have expired if that is later. Returns whether it replaced a lock.
    ///
    /// Nothing is written, and `None` returned, if that lock expires after `latest`.
    pub(super) fn write_foreign(
        &mut self,
        key: &str,
        data: ForeignData,
        ends: BootInstant,
        (now, latest): (BootInstant, BootInstant),
    ) -> Option<bool> {
        self.sweep(now);
        let of_lock = match self.keys.get(key) {
            Some(Entry::Lock(record)) => record.ends(),
            Some(Entry::Foreign { ends, .. }) => Some(*ends),
            _ => None,
        };
        if of_lock.is_some_and(|of_lock| of_lock > latest) {
            return None;
        }
        // If the name were free earlier, a client could acquire the lock while its holder considers
        // it valid.
        let ends = of_lock.map_or(ends, |of_lock| of_lock.max(ends));
        let replaced = self.keys.insert(key.to_owned(), Entry::Foreign { data, ends });
        self.has_changed(key, None);
        Some(matches!(replaced, Some(Entry::Lock(_))))
    }

    /// Deletes a key, as another client.
    pub(super) fn delete(&mut self, key: &str) {
        if self.keys.remove(key).is_some() {
            self.has_changed(key, None);
        }
    }

    /// Returns the value of a key as text.
    pub(super) fn text(&self, key: &str, now: BootInstant) -> String {
        match self.keys.get(key) {
            Some(Entry::Lock(record)) => record.tokens(now).iter().map(Token::to_string).collect(),
            Some(Entry::Counter { last, .. }) => last.to_string(),
            Some(Entry::Foreign { data: ForeignData::Text(text), .. }) => text.clone(),
            Some(Entry::Foreign { data: ForeignData::OtherType, .. }) | None => String::new(),
        }
    }

    /// Connects a client whose replies go to `out`.
    pub(super) fn connect(&mut self, out: UnboundedSender<Vec<u8>>) -> u64 {
        self.last_client += 1;
        let client = Client { out, channels: BTreeSet::new(), resp3: false, tracks: false };
        self.clients.insert(self.last_client, client);
        self.last_client
    }

    pub(super) fn disconnect(&mut self, client: u64) {
        self.clients.remove(&client);
        self.readers.values_mut().for_each(|readers| {
            readers.remove(&client);
        });
    }

    /// Restarts the process: connections and scripts are lost, and unless `keeps`, all keys.
    pub(super) fn restart(&mut self, keeps: bool) {
        self.clients.clear();
        self.readers.clear();
        self.loaded.clear();
        if !keeps {
            self.keys.clear();
        }
    }

    /// Removes all scripts.
    pub(super) fn forget_scripts(&mut self) {
        self.loaded.clear();
    }

    /// Returns `true` if the script with this hash is not loaded.
    pub(super) fn has_forgotten(&self, script: &str) -> bool {
        !self.loaded.iter().any(|at| name(*at) == script)
    }

    /// Returns `true` if a client has a subscription.
    pub(super) fn listens(&self, client: u64) -> bool {
        self.clients.get(&client).is_some_and(|client| !client.channels.is_empty())
    }

    /// Returns a channel that a client is subscribed to.
    pub(super) fn channel(&self, client: u64) -> Option<String> {
        self.clients.get(&client)?.channels.first().cloned()
    }

    /// Returns `true` if a client receives invalidations.
    pub(super) fn tracks(&self, client: u64) -> bool {
        self.clients.get(&client).is_some_and(|client| client.tracks)
    }

    /// Returns the locks at `now`, each with its expiry.
    pub(super) fn locks(&self, now: BootInstant) -> Vec<(String, BootInstant)> {
        let lock = |(key, entry): (&String, &Entry)| match entry {
            Entry::Lock(record) if !record.is_empty(now) => Some((key.clone(), record.ends()?)),
            _ => None,
        };
        self.keys.iter().filter_map(lock).collect()
    }

    /// Runs a command of a client, and sends the reply.
    pub(super) fn run(&mut self, client: u64, words: &[String], now: BootInstant) {
        self.sweep(now);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let reply = self.answer(client, &words, now).unwrap_or_else(|| {
            self.unexpected.push(words.join(" "));
            RespValue::Error("ERR unexpected command")
        });
        self.send(client, &reply);
    }

    /// Replies with an error instead of running the command.
    pub(super) fn refuse(&mut self, client: u64, error: &'static str) {
        self.send(client, &RespValue::Error(error));
    }

    fn send(&self, client: u64, reply: &RespValue) {
        if let Some(client) = self.clients.get(&client) {
            let _ = client.out.send(reply.written(client.resp3)); // it may be gone
        }
    }

    fn answer(&mut self, client: u64, words: &[&str], now: BootInstant) -> Option<RespValue> {
        let reply = match *words {
            ["HELLO", "3", ..] => {
                self.clients.get_mut(&client)?.resp3 = true;
                RespValue::Map(vec![(RespValue::Text("proto".to_owned()), RespValue::Int(3))])
            }
            ["CLIENT", "SETINFO" | "SETNAME", ..] => RespValue::Line("OK"),
            ["CLIENT", "TRACKING", "ON", "NOLOOP"] => {
                self.clients.get_mut(&client)?.tracks = true;
                RespValue::Line("OK")
            }
            ["PING"] if !self.listens(client) => RespValue::Line("PONG"),
            ["PING"] => {
                RespValue::List(vec![RespValue::Text("pong".to_owned()), RespValue::Text(String::new())])
            }
            // One reply for each channel.
            ["SUBSCRIBE", first, ref more @ ..] => {
                let reply = self.subscribe(client, first)?;
                if !more.is_empty() {
                    self.send(client, &reply);
                    return self.answer(client, &[&["SUBSCRIBE"], more].concat(), now);
                }
                reply
            }
            ["SCRIPT", "LOAD", text] => {
                let at = SCRIPTS.iter().position(|script| script.source(&NATIVE) == text)?;
                self.loaded.insert(at);
                RespValue::Text(name(at))
            }
            ["SET", key, _, "NX", "PX", _] if self.foreign(key).is_some() => RespValue::Nil,
            ["SET", key, token, "NX", "PX", lease] => {
                let command = Command::Acquire { lease: millis(lease)? };
                match self.on_lock(client, key, Token::parse(token)?, command, Duration::ZERO, now) {
                    Reply::Owner => RespValue::Line("OK"),
                    Reply::Contended => RespValue::Nil,
                    _ => return None,
                }
            }
            ["PTTL", key] => {
                self.is_read(client, key);
                let ends = match self.keys.get(key) {
                    Some(Entry::Lock(record)) => record.ends(),
                    Some(Entry::Counter { ends, .. } | Entry::Foreign { ends, .. }) => Some(*ends),
                    None => None,
                };
                ends.map_or(RespValue::Int(-2), |ends| ttl(Some(ends.since(now))))
            }
            // No command reads more: one byte behind a full queue shows that a value is foreign.
            ["GETRANGE", key, "0", "4128"] => {
                self.is_read(client, key);
                if let Some(ForeignData::OtherType) = self.foreign(key) {
                    return Some(WRONG_TYPE);
                }
                let mut text = self.text(key, now);
                text.truncate(LONGEST_VALUE + 1);
                RespValue::Text(text)
            }
            ["EVALSHA", script, keys, ref rest @ ..] => {
                let Some(at) = (0..SCRIPTS.len()).find(|at| name(*at) == script && self.loaded.contains(at))
                else {
                    return Some(RespValue::Error("NOSCRIPT No matching script. Please use EVAL."));
                };
                return self.script(client, SCRIPTS[at], rest.split_at_checked(keys.parse().ok()?)?, now);
            }
            // The backend sends this if the server may not load scripts.
            ["EVAL", "return 1", "1", _] => RespValue::Int(1),
            ["EVAL", text, "1", _, _, pattern, longest] if text == owner_lookup::SCRIPT.source() => {
                let (wanted, longest) = (pattern.trim_matches('*'), longest.parse::<usize>().ok()?);
                let channels = self.clients.values().flat_map(|client| &client.channels);
                let found =
                    channels.into_iter().find(|channel| channel.contains(wanted) && channel.len() <= longest);
                found.map_or(RespValue::Nil, |channel| RespValue::Text(channel.clone()))
            }
            ["EVAL", text, keys, ref rest @ ..] => {
                let at = SCRIPTS.iter().position(|script| script.source(&NATIVE) == text)?;
                self.loaded.insert(at);
                return self.script(client, SCRIPTS[at], rest.split_at_checked(keys.parse().ok()?)?, now);
            }
            _ => return None,
        };
        Some(reply)
    }

    /// Subscribes a client to one channel, and returns the reply.
    fn subscribe(&mut self, client: u64, channel: &str) -> Option<RespValue> {
        let channels = &mut self.clients.get_mut(&client)?.channels;
        channels.insert(channel.to_owned());
        let count = i64::try_from(channels.len()).ok()?;
        let words = ["subscribe", channel].map(|word| RespValue::Text(word.to_owned()));
        Some(RespValue::List(words.into_iter().chain([RespValue::Int(count)]).collect()))
    }

    /// Runs a script.
    fn script(
        &mut self,
        client: u64,
        script: Script,
        (keys, args): (&[&str], &[&str]),
        now: BootInstant,
    ) -> Option<RespValue> {
        let (&key, (&token, mut rest)) = (keys.first()?, args.split_first()?);
        let token = Token::parse(token)?;
        let publishes = [
            Script::Release,
            Script::ReleaseWithoutHandoff,
            Script::ForceRelease,
            Script::Withdraw,
            Script::Yield,
        ];
        if publishes.contains(&script) {
            let (&channels, behind) = rest.split_first()?;
            if channels != self.namespaces.own().grants() {
                return None;
            }
            rest = behind;
        }
        let (mut grant_lease, mut extra) = (Duration::ZERO, None);
        let command = match (script, rest) {
            (Script::Enqueue, [lease, mode, rest @ ..]) => {
                extra = rest.first().copied();
                let mode = match *mode {
                    "first" => EnqueueMode::Join,
                    "again" => EnqueueMode::Recheck,
                    "peek" => EnqueueMode::TryOnly,
                    _ => return None,
                };
                Command::Enqueue { lease: millis(lease)?, mode }
            }
            (Script::Renew, [lease, rest @ ..]) => {
                extra = rest.first().copied();
                Command::Renew { lease: millis(lease)? }
            }
            (Script::SetTtl, [ttl]) => Command::SetTtl { ttl: millis(ttl)? },
            (Script::Release, [lease, rest @ ..]) => {
                grant_lease = millis(lease)?;
                let fleet_hold =
                    rest.first().map_or(Some(FleetHold::UNKNOWN), |fleet_hold| fleet_hold_of(fleet_hold))?;
                Command::Release { fleet_hold }
            }
            (Script::ReleaseWithoutHandoff, []) => Command::ReleaseWithoutHandoff,
            (Script::ForceRelease | Script::Withdraw, [lease]) => {
                grant_lease = millis(lease)?;
                if script == Script::Withdraw { Command::Withdraw } else { Command::ForceRelease }
            }
            (Script::Yield, [lease, next, rest @ ..]) => {
                grant_lease = millis(lease)?;
                let fleet_hold =
                    rest.first().map_or(Some(FleetHold::UNKNOWN), |fleet_hold| fleet_hold_of(fleet_hold))?;
                Command::Yield { next: Token::parse(next)?, fleet_hold }
            }
            (Script::Fence, [life]) => {
                let counter = (*keys.get(1)?, millis(life)?);
                if self.foreign(key).is_some() {
                    return Some(self.on_foreign(client, key, Command::Fence, now));
                }
                let reply = self.on_lock(client, key, token, Command::Fence, Duration::ZERO, now);
                return Some(match reply {
                    Reply::Owner => RespValue::Text(self.issue(key, counter, now).to_string()),
                    _ => RespValue::Int(0),
                });
            }
            (Script::Inspect, []) => Command::Inspect,
            _ => return None,
        };
        if self.foreign(key).is_some() {
            return Some(self.on_foreign(client, key, command, now));
        }
        let holder = self.holder(key, now);
        let before = self.written(key);
        let reply = self.on_lock(client, key, token, command, grant_lease, now);
        if extra == Some("write") && matches!(reply, Reply::Owner) && self.written(key) == before {
            self.has_changed(key, Some(client)); // written without a change
        }
        // The script read the key. A client is not notified of its own changes, so its next read
        // counts.
        if self.written(key) == before || extra == Some("read") {
            self.is_read(client, key);
        }
        Some(match (script, reply) {
            (Script::Enqueue, Reply::Owner) => pair(1, Some(Duration::ZERO)),
            (Script::Enqueue, Reply::Queued { ttl }) => pair(2, ttl),
            (Script::Enqueue, Reply::NotQueued { ttl }) => pair(3, ttl),
            (Script::Enqueue, Reply::Absent) => pair(0, Some(Duration::ZERO)),
            (Script::Inspect, Reply::Info(Some(info))) => {
                let waiters = i64::try_from(info.waiters).ok()?;
                RespValue::List(vec![
                    RespValue::Text(holder?.to_string()),
                    RespValue::Int(waiters),
                    ttl(info.ttl),
                    RespValue::Text(self.last_fence(keys.get(1)?)),
                ])
            }
            (Script::Inspect, Reply::Info(None)) | (_, Reply::NotOwner) => RespValue::Int(0),
            (Script::Yield, Reply::Yielded) => RespValue::Int(2),
            (_, Reply::Owner) => RespValue::Int(1),
            _ => return None,
        })
    }

    fn foreign(&self, key: &str) -> Option<&ForeignData> {
        match self.keys.get(key)? {
            Entry::Foreign { data, .. } => Some(data),
            _ => None,
        }
    }

    /// Replies to a script whose key has foreign data. Only a forced release changes it.
    fn on_foreign(&mut self, client: u64, key: &str, command: Command, now: BootInstant) -> RespValue {
        self.is_read(client, key);
        let Some(Entry::Foreign { data: ForeignData::Text(text), ends }) = self.keys.get_mut(key) else {
            self.meet(Self::REFUSED_TYPE);
            return WRONG_TYPE;
        };
        let time = Some(ends.since(now));
        match command {
            Command::Enqueue { mode: EnqueueMode::Recheck, .. } => pair(0, Some(Duration::ZERO)),
            Command::Enqueue { .. } => {
                self.meet(Self::REFUSED_IN_QUEUE);
                pair(3, time)
            }
            Command::Inspect => {
                let none = || RespValue::Text(String::new());
                RespValue::List(vec![none(), RespValue::Int(0), ttl(time), none()])
            }
            Command::ForceRelease => {
                if text.len() > LONGEST_VALUE {
                    *ends = now.plus(Duration::from_millis(1));
                    self.has_changed(key, Some(client));
                } else {
                    self.keys.remove(key);
                    self.has_changed(key, Some(client));
                }
                RespValue::Int(1)
            }
            Command::Renew { .. } => {
                self.meet(Self::NOT_THE_OWNER);
                RespValue::Int(0)
            }
            _ => RespValue::Int(0),
        }
    }

    fn meet(&mut self, effect: &'static str) {
        *self.met.entry(effect).or_default() += 1;
    }

    /// Runs a command on a lock, and notifies granted waiters and clients that track the key.
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
            self.unexpected.push(format!("{command:?} of a counter"));
            return Reply::NotOwner;
        };
        let (clients, namespace) = (&self.clients, self.namespaces.own());
        let reply = record.run(token, command, now, grant_lease, |token, Grant { lease, fleet_hold }| {
            let channel = namespace.grant_channel(token.process());
            let fleet_hold = fleet_hold.millis().map(|held| format!("+{held}")).unwrap_or_default();
            let payload = format!("{token}{}{fleet_hold}|{key}", lease.as_millis());
            let message = ["message", &channel, &payload].map(|word| RespValue::Text(word.to_owned()));
            let message = RespValue::List(message.into());
            let mut receivers =
                clients.values().filter(|client| client.channels.contains(&channel)).peekable();
            let is_received = receivers.peek().is_some();
            receivers.for_each(|client| drop(client.out.send(message.written(client.resp3))));
            is_received
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

    /// Returns the text of a counter, which is empty if there is none.
    fn last_fence(&self, counter: &str) -> String {
        match self.keys.get(counter) {
            Some(Entry::Counter { last, .. }) => last.to_string(),
            _ => String::new(),
        }
    }

    /// Removes expired keys.
    fn sweep(&mut self, now: BootInstant) {
        let has_ended = |entry: &Entry| match entry {
            Entry::Lock(record) => record.is_empty(now),
            Entry::Counter { ends, .. } | Entry::Foreign { ends, .. } => *ends <= now,
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
            Entry::Counter { .. } | Entry::Foreign { .. } => None,
        }
    }

    /// Returns the value and expiry of a key, for comparison.
    fn written(&self, key: &str) -> Option<(Vec<Token>, Option<BootInstant>)> {
        match self.keys.get(key)? {
            Entry::Lock(record) => Some((record.tokens(BootInstant::START), record.ends())),
            Entry::Counter { .. } | Entry::Foreign { .. } => None,
        }
    }

    fn is_read(&mut self, client: u64, key: &str) {
        if self.clients.get(&client).is_some_and(|client| client.tracks) {
            if self.foreign(key).is_some() {
                self.meet(Self::TRACKED);
            }
            self.readers.entry(key.to_owned()).or_default().insert(client);
        }
    }

    /// Notifies the clients that have read a key of a change, except the one that made it.
    fn has_changed(&mut self, key: &str, by: Option<u64>) {
        let readers = self.readers.remove(key).unwrap_or_default();
        let keys = RespValue::List(vec![RespValue::Text(key.to_owned())]);
        let message = RespValue::Push(vec![RespValue::Text("invalidate".to_owned()), keys]);
        for reader in readers.into_iter().filter(|reader| Some(*reader) != by) {
            self.send(reader, &message);
        }
    }
}

/// The reply to a command for a string whose key has another type.
const WRONG_TYPE: RespValue =
    RespValue::Error("WRONGTYPE Operation against a key holding the wrong kind of value");

/// The namespace of every client: the default.
pub(super) const NAMESPACE: &str = "dlock";

/// The wall clock at the start of the boot clock, in microseconds.
const EPOCH: u64 = 1_700_000_000_000_000;

fn name(at: usize) -> String {
    format!("{at:040x}")
}

fn millis(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_millis)
}

fn fleet_hold_of(text: &str) -> Option<FleetHold> {
    text.strip_prefix('+').and_then(millis).map(FleetHold::of)
}

fn ttl(ttl: Option<Duration>) -> RespValue {
    RespValue::Int(ttl.and_then(|ttl| i64::try_from(ttl.as_millis()).ok()).unwrap_or(-1))
}

fn pair(first: i64, time: Option<Duration>) -> RespValue {
    RespValue::List(vec![RespValue::Int(first), ttl(time)])
}
