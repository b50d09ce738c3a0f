//! A master that sentinels watch: who it is now, and when it is somebody else.
//!
//! ```text
//!  lookup    every sentinel is asked at once; each server that one names is tried; the first whose own ROLE is master is it
//!  watching  +switch-master on every sentinel, each over a connection of its own: the node drops its connection at once
//! ```
//!
//! A fail-over is known to one sentinel up to seconds before the others, while the old master may still answer as one. So the server
//! that a switch has replaced is not believed in on the word of a few.
//!
//! Not here: what the node does meanwhile (`node`), how what sentinels say is read (`words`), whom to believe (`said`).

mod consensus;
mod probe;
mod replies;

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;

use crate::backend::redis::node::backoff::Backoff;
use crate::backend::redis::node::connect::ConnectTarget;
use crate::backend::redis::node::keepalive::{Beat, Idleness};
use crate::backend::redis::topology::address::Address;
use crate::backend::redis::topology::sentinel::consensus::{PrimaryVote, SentinelReport};
use crate::backend::redis::topology::sentinel::replies::SwitchMaster;
use crate::config::Settings;
use crate::config::sentinel::SentinelEndpoint;
use crate::config::url::Server;
use crate::engine::Engine;
use crate::error::Result as Outcome;
use crate::protocol::command::{Failure, FailureKind};
use crate::sync::lock;

/// The sentinels of one master.
pub(crate) struct Sentinels {
    /// What they call it.
    name: String,
    routes: Vec<ConnectTarget>,
    /// How to get into the master; its host and port are theirs to say.
    master: Server,
    settings: Settings,
    said: Mutex<SentinelReport>,
    /// Told when the master is said to be another.
    news: Notify,
}

impl Sentinels {
    pub(crate) fn new(watched: SentinelEndpoint, settings: &Settings) -> Outcome<Self> {
        let SentinelEndpoint { name, sentinels, master } = watched;
        // Credentials from a callback are the master's: the sentinels have their own, in the URL.
        let of_sentinels = Settings { credentials: None, ..settings.clone() };
        let routes = sentinels.into_iter().map(|at| ConnectTarget::new(at, &of_sentinels));
        Ok(Self {
            name,
            routes: routes.collect::<Outcome<_>>()?,
            master,
            settings: settings.clone(),
            said: Mutex::default(),
            news: Notify::new(),
        })
    }

    /// Opens a connection to the master by `open`, which fails where it is none.
    pub(crate) async fn find<T, F>(&self, open: impl Fn(Arc<ConnectTarget>) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let open_at = |at: Address| {
            let opening = self.route_to(&at).map(|route| open(Arc::new(route)));
            async move { Ok((at, opening?.await?)) }
        };
        let mut tally = PrimaryVote::of(&lock(&self.said));
        let mut opening: FuturesUnordered<_> = tally.first().map(&open_at).into_iter().collect();
        let mut contender: FuturesUnordered<_> =
            self.routes.iter().map(|sentinel| self.ask(sentinel)).collect();
        let (mut unanswered, mut not_opened) = (Vec::new(), None);
        loop {
            tokio::select! {
                Some(opened) = opening.next() => match opened {
                    Ok((at, opened)) => {
                        lock(&self.said).found(at);
                        return Ok(opened);
                    }
                    Err(failure) => not_opened = Some(failure),
                },
                Some(answer) = contender.next() => match answer {
                    Ok(named) => opening.extend(tally.named(named).map(&open_at)),
                    Err(failure) => unanswered.push(failure),
                },
                else => match tally.last_resort() {
                    Some(at) => opening.push(open_at(at)),
                    None => return Err(not_opened.unwrap_or_else(|| self.no_answer(&unanswered))),
                },
            }
        }
    }

    /// Returns when the master is said to be another than the one that was found last.
    pub(crate) async fn primary_changed(&self) {
        self.news.notified().await;
    }

    /// Listens to every sentinel, without end.
    pub(crate) async fn watch(&self, engine: &Weak<Engine>) {
        let watching = self.routes.iter().map(|sentinel| self.listen_to(sentinel, engine));
        watching.collect::<FuturesUnordered<_>>().collect::<()>().await;
    }

    async fn listen_to(&self, sentinel: &ConnectTarget, engine: &Weak<Engine>) {
        let mut backoff = Backoff::new(engine);
        loop {
            let mut worked = Duration::ZERO;
            if let Ok(mut ear) = sentinel.subscribe(SWITCHES).await {
                let (since, beat) = (Instant::now(), Beat::new(&Arc::new(Idleness::limited())));
                self.catch_up(sentinel).await;
                let mut pulse = beat.pulse();
                while let Some(message) = tokio::select! {
                    message = ear.next(&mut pulse) => message,
                    () = beat.keep() => None,
                } {
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

    /// Looks up what a sentinel may have said while it was not listened to. One that was away itself may not know better than the
    /// others: more than half of those that answer must agree.
    async fn catch_up(&self, sentinel: &ConnectTarget) {
        let Ok(named) = self.ask(sentinel).await else { return };
        let latest = lock(&self.said).latest().cloned();
        let Some(latest) = latest.filter(|latest| *latest != named) else { return };
        let asked = self.routes.iter().map(|sentinel| self.ask(sentinel));
        let answers: Vec<_> = asked.collect::<FuturesUnordered<_>>().collect().await;
        let answers: Vec<_> = answers.into_iter().flatten().collect();
        if answers.iter().filter(|answer| **answer == named).count() * 2 > answers.len() {
            self.note(latest, named);
        }
    }

    fn note(&self, from: Address, to: Address) {
        if lock(&self.said).switched(from, to) {
            self.news.notify_one();
        }
    }

    /// Asks one sentinel who the master is.
    async fn ask(&self, sentinel: &ConnectTarget) -> Result<Address, Failure> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        replies::master(&sentinel.ask(&question).await?, &self.name, &sentinel.shown)
    }

    /// Returns what the sentinels call the master.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn route_to(&self, at: &Address) -> Result<ConnectTarget, Failure> {
        let server = Server { host: at.host.clone(), port: at.port, ..self.master.clone() };
        let route = ConnectTarget::new(server, &self.settings);
        let route = route.map_err(|error| Failure::new(FailureKind::Passing, error.to_string()))?;
        if lock(&self.said).latest() == Some(at) {
            route.mark_answered(); // it was connected to before, by a route of its own
        }
        Ok(route)
    }

    /// Nobody named a master: what cannot pass is told first.
    fn no_answer(&self, failures: &[Failure]) -> Failure {
        let lasting = failures.iter().find(|failure| failure.kind != FailureKind::Passing);
        lasting.cloned().unwrap_or_else(|| {
            let last = failures.last().map_or("no answer", |failure| &*failure.reason);
            let text = format!(
                "{self} cannot be found, since no sentinel could be asked ({last}): check that they run, their addresses, and \
                 their ports, which are 26379 where the url names none"
            );
            Failure::new(FailureKind::Passing, text)
        })
    }
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the master `{}` of sentinels", self.name)?;
        for (at, sentinel) in self.routes.iter().enumerate() {
            write!(f, "{}{}", if at == 0 { " " } else { ", " }, sentinel.shown)?;
        }
        Ok(())
    }
}

/// Where a sentinel tells of a fail-over that has ended.
const SWITCHES: &str = "+switch-master";

/// Reads a value as who the master is.
#[cfg(any(test, fuzzing))]
pub(super) fn read_value(value: &redis::Value) {
    let _ = replies::master(value, "shop", &crate::backend::redis::encoding::codec::Redacted::new("h:1"));
}

/// Reads a message as a switch of masters.
#[cfg(any(test, fuzzing))]
pub(super) fn read_message(message: &[u8]) {
    let _ = replies::SwitchMaster::parse(message, "shop");
}
