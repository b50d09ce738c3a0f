//! The targets of rows: the servers, the processes, and the proxies between them.
//!
//! Two faults may be active at once. An action on a server that the other fault has killed has no
//! effect, and is not an error.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dlock_tests::dice::Dice;
use dlock_tests::history::{History, Scanned, View, What};
use dlock_tests::resp::{Client, Reply};
use dlock_tests::{Moment, RedisServer, WallClock};

use super::crew::{Common, Member};

/// The servers and the processes of a scene.
pub(crate) struct Stage {
    pub(crate) common: Common,
    pub(crate) servers: Vec<RedisServer>,
    /// The clock of the server, if it can be stepped.
    pub(crate) clock: Option<Arc<WallClock>>,
    /// The offset of that clock from the system's, in nanoseconds.
    pub(crate) offset: i64,
    pub(crate) crew: Vec<Member>,
    pub(crate) dice: Dice,
    /// A connection to each server, opened before the fault.
    admins: Vec<Option<Client>>,
    dead: Vec<usize>,
    /// The errors that the scene itself detected.
    pub(crate) complaints: Vec<String>,
    /// How often faults reached their targets.
    pub(crate) observed: BTreeMap<&'static str, usize>,
}

impl Stage {
    pub(crate) fn new(
        common: Common,
        servers: Vec<RedisServer>,
        clock: Option<Arc<WallClock>>,
        crew: Vec<Member>,
        dice: Dice,
    ) -> Self {
        let admins = servers.iter().map(|_| None).collect();
        let mut stage = Self {
            common,
            servers,
            clock,
            offset: 0,
            crew,
            dice,
            admins,
            dead: Vec::new(),
            complaints: Vec::new(),
            observed: BTreeMap::new(),
        };
        for at in 0..stage.servers.len() {
            stage.ask(at, &["PING"]);
        }
        stage
    }

    /// Sends a command to a server over a persistent connection.
    pub(crate) fn ask(&mut self, at: usize, words: &[&str]) -> Option<Reply> {
        for _ in 0..2 {
            if self.admins[at].is_none() {
                self.admins[at] = Client::connect(self.servers[at].port(), ADMIN).ok();
            }
            match self.admins[at].as_mut()?.call(words) {
                Ok(reply) => return Some(reply),
                Err(_) => self.admins[at] = None,
            }
        }
        None
    }

    /// Sends a command that begins or ends a fault.
    ///
    /// If the server rejects the command, there is no fault, although it would be counted. This is
    /// an error.
    pub(crate) fn order(&mut self, at: usize, words: &[&str]) {
        if let Some(Reply::Error(text)) = self.ask(at, words)
            && !text.starts_with("BUSY")
        {
            self.complaints.push(format!("server {at} rejects {}: {text}", words.join(" ")));
        }
    }

    /// Counts how often a fault reached its targets.
    pub(crate) fn observe(&mut self, what: &'static str, count: usize) {
        *self.observed.entry(what).or_default() += count;
    }

    /// Records that a fault begins.
    pub(crate) fn fault(&self, row: &str, what: &str, to: &str) {
        let (row, what, to) = (row.to_owned(), what.to_owned(), to.to_owned());
        self.common.history.note_of(0, What::Fault { row, what, to });
    }

    /// Records that a fault ends.
    pub(crate) fn healed(&self, row: &str) {
        self.common.history.note_of(0, What::Heal { row: row.to_owned() });
    }

    /// Returns a random process.
    pub(crate) fn anybody(&mut self) -> usize {
        let count = self.crew.len() as u64;
        usize::try_from(self.dice.below(count)).unwrap_or_default()
    }

    /// Returns a process that holds a lock, or a random one if none does within 200 ms.
    pub(crate) fn holder(&mut self) -> usize {
        for _ in 0..20 {
            let history = History::read(&self.common.folder).expect("the history can be read");
            let now = Moment::now();
            let view = View::of(&history);
            let held = view.holds.iter().filter(|hold| hold.over.is_none() && hold.deadline > now);
            let holders: Vec<_> = held.map(|hold| hold.process).collect();
            if let Some(who) = self.crew.iter().position(|member| holders.contains(&member.pid())) {
                return who;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.anybody()
    }

    /// Kills a process. It is replaced when the fault has ended.
    pub(crate) fn kill(&mut self, who: usize) {
        self.crew[who].kill(&self.common);
        self.dead.push(who);
    }

    /// Records that a process has ended in another way.
    pub(crate) fn is_gone(&mut self, who: usize) {
        self.dead.push(who);
    }

    /// Replaces each process that has ended.
    pub(crate) fn replace_the_dead(&mut self) {
        for who in std::mem::take(&mut self.dead) {
            self.crew[who].replace(&self.common);
        }
    }

    /// Records all keys of all servers.
    pub(crate) fn scan(&mut self, quiet: bool) {
        for at in 0..self.servers.len() {
            let Some(names) = self.ask(at, &["KEYS", "*"]).map(|reply| reply.texts()) else {
                self.complaints.push(format!("server {at} does not list its keys"));
                continue;
            };
            let mut keys = Vec::new();
            for name in names {
                // A key that expires between the two commands is not a key without a TTL.
                match self.ask(at, &["PTTL", &name]).and_then(|reply| reply.integer()) {
                    Some(-2) | None => {}
                    Some(ttl) => keys.push(Scanned { name, ttl }),
                }
            }
            self.common.history.note_of(0, What::Scan { keys, quiet });
        }
    }

    /// Returns the number of requests and replies in flight between the processes and the servers.
    pub(crate) fn on_their_way(&self) -> usize {
        self.crew.iter().flat_map(|member| &member.ways).map(|way| way.stats().on_their_way).sum()
    }

    /// Waits until `is_so` returns `true`, for at most `limit`. Returns whether it did.
    pub(crate) fn until(&mut self, limit: Duration, mut is_so: impl FnMut(&mut Self) -> bool) -> bool {
        let began = Moment::now();
        while !is_so(self) {
            if began.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }
}

/// The time limit for a reply. A working server replies within it, and a frozen one is not waited
/// for.
const ADMIN: Duration = Duration::from_secs(1);
