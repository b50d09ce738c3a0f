//! Finds the primary through Sentinel, and notices when it changes.
//!
//! ```text
//!  lookup    every sentinel is queried at once; each reported server is tried; the first with ROLE master wins
//!  watching  +switch-master on one connection per sentinel: on a switch, the node closes its connection at once
//! ```
//!
//! One sentinel may know of a failover seconds before the others, while the old primary still
//! replies as one. So a server that a failover has demoted is used only if more than half of the
//! sentinels report it.
//!
//! See also `consensus`, which decides if sentinels disagree.

mod consensus;
mod probe;
mod replies;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Cmd;
use tokio::sync::Notify;

use crate::backend::redis::topology::sentinel::consensus::{PrimaryVote, SentinelReport};
use crate::backend::redis::topology::sentinel::replies::SwitchMaster;
use crate::backend::redis::transport::address::Address;
use crate::backend::redis::transport::backoff::Backoff;
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::backend::redis::transport::keepalive::Keepalive;
use crate::config::Settings;
use crate::config::node_spec::NodeSpec;
use crate::config::sentinel::SentinelEndpoint;
use crate::protocol::command::{Failure, FailureKind};
use crate::sync::lock;
use crate::token::Jitter;

/// The sentinels of one primary.
pub(crate) struct Sentinels {
    /// The name of the primary in Sentinel.
    name: String,
    routes: Vec<ConnectTarget>,
    /// How to connect to the primary. Sentinel supplies host and port.
    master: NodeSpec,
    settings: Settings,
    report: Mutex<SentinelReport>,
    /// The server that the last connection was opened to.
    last_target: Mutex<Option<Arc<ConnectTarget>>>,
    /// Notified when the primary changes.
    changed: Notify,
}

impl Sentinels {
    pub(crate) fn new(watched: SentinelEndpoint, settings: &Settings) -> Self {
        let SentinelEndpoint { name, sentinels, master } = watched;
        // Credentials from a callback are for the primary. The sentinels' credentials are in the
        // URL.
        let of_sentinels = Settings { credentials: None, ..settings.clone() };
        Self {
            name,
            routes: sentinels.into_iter().map(|at| ConnectTarget::new(at, &of_sentinels)).collect(),
            master,
            settings: settings.clone(),
            report: Mutex::default(),
            last_target: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Opens a connection to the primary with `open`, which fails if the server is not a primary.
    pub(crate) async fn find<T, F>(&self, open: impl Fn(Arc<ConnectTarget>) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let open_at = |at: Address| {
            let target = self.target_at(&at);
            let opening = open(Arc::clone(&target));
            async move { Ok((at, target, opening.await?)) }
        };
        let mut vote = PrimaryVote::of(&lock(&self.report));
        let mut opening: FuturesUnordered<_> = vote.first().map(&open_at).into_iter().collect();
        let mut lookups: FuturesUnordered<_> =
            self.routes.iter().map(|sentinel| self.ask(sentinel)).collect();
        let (mut unanswered, mut not_opened) = (Vec::new(), None);
        loop {
            tokio::select! {
                Some(opened) = opening.next() => match opened {
                    Ok((at, target, opened)) => {
                        lock(&self.report).found(at);
                        *lock(&self.last_target) = Some(target);
                        return Ok(opened);
                    }
                    Err(failure) => not_opened = Some(failure),
                },
                Some(reply) = lookups.next() => match reply {
                    Ok(named) => opening.extend(vote.named(named).map(&open_at)),
                    Err(failure) => unanswered.push(failure),
                },
                else => match vote.last_resort() {
                    Some(at) => opening.push(open_at(at)),
                    None => return Err(not_opened.unwrap_or_else(|| self.no_reply(&unanswered))),
                },
            }
        }
    }

    /// Returns when Sentinel reports another primary than the one that was found last.
    pub(crate) async fn primary_changed(&self) {
        self.changed.notified().await;
    }

    /// Subscribes to every sentinel, forever.
    pub(crate) async fn watch(&self, jitter: &Jitter) {
        let watching = self.routes.iter().map(|sentinel| self.listen_to(sentinel, jitter));
        watching.collect::<FuturesUnordered<_>>().collect::<()>().await;
    }

    async fn listen_to(&self, sentinel: &ConnectTarget, jitter: &Jitter) {
        let mut backoff = Backoff::new(jitter);
        loop {
            let mut worked = Duration::ZERO;
            if let Ok(mut subscriber) = sentinel.subscribe(SWITCHES).await {
                let (since, mut keepalive) = (Instant::now(), Keepalive::new());
                self.catch_up(sentinel).await;
                while let Some(message) = subscriber.next(&mut keepalive).await {
                    if let Some(SwitchMaster { from, to }) =
                        SwitchMaster::parse(message.get_payload_bytes(), &self.name)
                    {
                        self.note(from, to);
                    }
                }
                worked = since.elapsed();
            }
            backoff.pause(worked).await;
        }
    }

    /// Queries a sentinel for a switch that was missed while there was no subscription.
    ///
    /// The sentinel may have been down itself and be out of date, so more than half of the
    /// sentinels that reply must agree.
    async fn catch_up(&self, sentinel: &ConnectTarget) {
        let Ok(named) = self.ask(sentinel).await else { return };
        let latest = lock(&self.report).latest().cloned();
        let Some(latest) = latest.filter(|latest| *latest != named) else { return };
        let asked = self.routes.iter().map(|sentinel| self.ask(sentinel));
        let replies: Vec<_> = asked.collect::<FuturesUnordered<_>>().collect().await;
        let replies: Vec<_> = replies.into_iter().flatten().collect();
        if replies.iter().filter(|reply| **reply == named).count() * 2 > replies.len() {
            self.note(latest, named);
        }
    }

    fn note(&self, from: Address, to: Address) {
        if lock(&self.report).switched(from, to) {
            self.changed.notify_one();
        }
    }

    /// Queries one sentinel for the address of the primary.
    async fn ask(&self, sentinel: &ConnectTarget) -> Result<Address, Failure> {
        let reply = sentinel.query(&self.question("GET-MASTER-ADDR-BY-NAME")).await?;
        replies::master(&reply, &self.name, &sentinel.shown)
    }

    /// Returns a query `about` the primary.
    fn question(&self, about: &str) -> Cmd {
        let mut question = redis::cmd("SENTINEL");
        question.arg(about).arg(&self.name);
        question
    }

    /// Returns the name of the primary in Sentinel.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the server at an address: that of the last connection, which knows the commands that
    /// the server lacks, or a new one.
    fn target_at(&self, at: &Address) -> Arc<ConnectTarget> {
        let last = lock(&self.last_target).clone().filter(|last| last.address() == *at);
        last.unwrap_or_else(|| {
            let server = NodeSpec { host: at.host.clone(), port: at.port, ..self.master.clone() };
            Arc::new(ConnectTarget::new(server, &self.settings))
        })
    }

    /// Returns the error if no sentinel reported a primary; lasting failures take precedence.
    fn no_reply(&self, failures: &[Failure]) -> Failure {
        let lasting = failures.iter().find(|failure| failure.kind != FailureKind::Passing);
        lasting.cloned().unwrap_or_else(|| {
            let last = failures.last().map_or("no reply", |failure| &*failure.reason);
            let text = format!(
                "{self} cannot be found: no sentinel could be queried ({last}): check that they run, their addresses, and \
                 their ports, which are 26379 if the url names none"
            );
            Failure::new(FailureKind::Passing, text)
        })
    }
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the primary `{}` of sentinels", self.name)?;
        for (at, sentinel) in self.routes.iter().enumerate() {
            write!(f, "{}{}", if at == 0 { " " } else { ", " }, sentinel.shown)?;
        }
        Ok(())
    }
}

/// The channel on which a sentinel announces a completed failover.
const SWITCHES: &str = "+switch-master";

/// Parses a value as the address of the primary.
#[cfg(any(test, fuzzing))]
pub(super) fn read_value(value: &redis::Value) {
    let _ = replies::master(value, "shop", &crate::backend::redis::transport::redacted::Redacted::new("h:1"));
}

/// Parses a message as a switch of primaries.
#[cfg(any(test, fuzzing))]
pub(super) fn read_message(message: &[u8]) {
    let _ = replies::SwitchMaster::parse(message, "shop");
}
