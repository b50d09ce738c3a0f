//! Finds the primary through Sentinel, and notices when it changes.
//!
//! ```text
//!  lookup    every sentinel is queried at once; each reported server is tried; the first with ROLE master wins
//!  check     after each lookup, all sentinels are queried again: if the last failover elected another server, that is a switch
//!  watching  +switch-master on one connection per sentinel: on a switch, the node closes its connection at once
//! ```
//!
//! One sentinel may know of a failover seconds before the others, while the old primary still
//! replies as one. So a server that a failover has demoted is used only if more than half of the
//! sentinels that reply report it. The check compares the numbers of the failovers
//! (`config-epoch`). A user of the sentinels who may not read them gets the opinion of more than
//! half of the sentinels that reply.
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
use redis::{Cmd, Pipeline, Value};
use tokio::sync::Notify;

use crate::backend::redis::topology::sentinel::consensus::{
    LONGEST_LAG, PrimaryVote, ReportedPrimary, SentinelReport, newest,
};
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
    /// Notified when a primary was found.
    found: Notify,
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
            found: Notify::new(),
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
                        self.found.notify_one();
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

    /// Subscribes to every sentinel, and checks each primary that was found, forever.
    pub(crate) async fn watch(&self, jitter: &Jitter) {
        let listening = self.routes.iter().map(|sentinel| self.listen_to(sentinel, jitter));
        let listening = listening.collect::<FuturesUnordered<_>>().collect::<()>();
        let checking = async {
            loop {
                self.found.notified().await;
                self.check_found().await;
            }
        };
        tokio::join!(listening, checking);
    }

    /// Looks for a switch before this process had a subscription.
    ///
    /// The primary was found where the first sentinel reported one, which may be an old primary
    /// that is partitioned from the others.
    async fn check_found(&self) {
        let found = lock(&self.report).latest().cloned();
        if let Some(found) = found
            && !self.compare(found).await
        {
            // Until then, or until the next primary is found.
            let _ = tokio::time::timeout(LONGEST_LAG, self.found.notified()).await;
            self.found.notify_one();
        }
    }

    /// Records a switch if the last failover that a sentinel knows has elected another server than
    /// `latest`. Returns `false` if the replies may be too old to say that.
    async fn compare(&self, latest: Address) -> bool {
        let asked = self.routes.iter().map(|sentinel| self.ask_with_epoch(sentinel));
        let replies: Vec<_> = asked.collect::<FuturesUnordered<_>>().collect().await;
        let replies: Vec<_> = replies.into_iter().flatten().collect();
        let Some(ReportedPrimary { at, epoch }) = newest(&replies).cloned() else { return true };
        let may_be_old = {
            let report = lock(&self.report);
            // A switch that was announced meanwhile is newer than the replies.
            if at == latest || report.latest() != Some(&latest) {
                return true;
            }
            // Without numbers, most sentinels may not know of a switch yet.
            epoch == 0 && report.has_just_demoted(&at)
        };
        if !may_be_old {
            self.note(latest, at);
        }
        !may_be_old
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

    /// Queries a sentinel for a switch that was missed while there was no subscription. It may have
    /// been down itself and be out of date, so all are compared.
    async fn catch_up(&self, sentinel: &ConnectTarget) {
        let Ok(named) = self.ask(sentinel).await else { return };
        let latest = lock(&self.report).latest().cloned();
        if let Some(latest) = latest.filter(|latest| *latest != named)
            && !self.compare(latest).await
        {
            self.found.notify_one(); // checked again, without delaying the subscription
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

    /// Like [`ask`](Self::ask), with the number of the failover.
    async fn ask_with_epoch(&self, sentinel: &ConnectTarget) -> Result<ReportedPrimary, Failure> {
        let mut questions = Pipeline::new();
        for about in ["GET-MASTER-ADDR-BY-NAME", "MASTER"] {
            questions.add_command(self.question(about));
        }
        let replies = sentinel.query_all(&questions).await?;
        let at = replies::master(replies.first().unwrap_or(&Value::Nil), &self.name, &sentinel.shown)?;
        Ok(ReportedPrimary { at, epoch: replies.get(1).map_or(0, replies::epoch) })
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

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::backend::redis::tests::resp::{self, list, message};
    use crate::backend::redis::tests::scripted_server::{LIMIT, ScriptedServer, patient};
    use crate::token::TokenSource;

    fn at(host: &str) -> Address {
        Address { host: host.to_owned(), port: 6379 }
    }

    /// A sentinel that reports this primary, and permits no query for the number of the failover.
    fn sentinel(primary: &'static str) -> ScriptedServer {
        sentinel_after(0, primary)
    }

    /// A sentinel that reports this primary after `epoch` failovers.
    fn sentinel_after(epoch: u64, primary: &'static str) -> ScriptedServer {
        let fields = match epoch {
            0 => "-NOPERM no permission\r\n".to_owned(),
            _ => list(&["name", "shop", "config-epoch", &epoch.to_string()]),
        };
        ScriptedServer::start(move |command| match command {
            "SENTINEL GET-MASTER-ADDR-BY-NAME shop" => list(&[primary, "6379"]),
            "SENTINEL MASTER shop" => fields.clone(),
            _ => resp::primary(command),
        })
    }

    /// A sentinel that replies so to each query.
    fn refusing(reply: &'static str) -> ScriptedServer {
        ScriptedServer::start(move |command| match command.split(' ').next() {
            Some("SENTINEL") => format!("{reply}\r\n"),
            _ => resp::primary(command),
        })
    }

    fn sentinels_at(sentinels: Vec<NodeSpec>) -> Sentinels {
        let master = NodeSpec { username: Some("user".to_owned()), ..NodeSpec::default() };
        Sentinels::new(SentinelEndpoint { name: "shop".to_owned(), sentinels, master }, &patient())
    }

    fn sentinels(servers: &[&ScriptedServer]) -> Sentinels {
        sentinels_at(servers.iter().map(|server| server.spec()).collect())
    }

    /// Looks for the primary, which is the server at `primary`. Returns where it was found.
    async fn found(sentinels: &Sentinels, primary: &str) -> Result<String, Failure> {
        let open = |target: Arc<ConnectTarget>| async move {
            let Address { host, port } = target.address();
            if host == primary && port == 6379 {
                return Ok(host);
            }
            Err(Failure::new(FailureKind::Passing, format!("{host} is a replica")))
        };
        sentinels.find(open).await
    }

    #[tokio::test]
    async fn the_reported_server_that_is_the_primary_is_found() {
        let servers = [sentinel("a"), sentinel("b"), refusing("-NOPERM no")];
        let sentinels = sentinels(&servers.each_ref());

        assert_eq!(found(&sentinels, "b").await.expect("one of them is"), "b");
        assert_eq!(lock(&sentinels.report).latest(), Some(&at("b")));
        let failure = found(&sentinels, "c").await.expect_err("none of them is");
        assert!(failure.reason.contains("is a replica"), "{}", failure.reason);
        assert_eq!(sentinels.name(), "shop");
    }

    #[tokio::test]
    async fn a_demoted_server_is_tried_if_most_sentinels_report_it() {
        let servers = [sentinel("a"), sentinel("a"), sentinel("b")];
        for (servers, is_found) in [(&servers[..], true), (&servers[1..], false)] {
            let sentinels = sentinels(&servers.iter().collect::<Vec<_>>());
            lock(&sentinels.report).found(at("a"));
            lock(&sentinels.report).switched(at("a"), at("b"));

            assert_eq!(found(&sentinels, "a").await.is_ok(), is_found);
        }
    }

    #[tokio::test]
    async fn the_failure_that_lasts_is_reported() {
        let wrong = refusing("-NOAUTH Authentication required.");
        let (loading, busy) = (refusing("-LOADING it"), refusing("-ERR busy"));
        let failure = |servers: Vec<&ScriptedServer>| {
            let sentinels = sentinels(&servers);
            async move { found(&sentinels, "a").await.expect_err("no server is reported") }
        };

        let lasting = failure(vec![&loading, &wrong, &busy]).await;
        let passing = failure(vec![&loading]).await;
        let none = found(&sentinels_at(Vec::new()), "a").await.expect_err("there is no sentinel");

        assert_eq!(lasting.kind, FailureKind::Lasting);
        assert!(lasting.reason.contains("requires a password"), "{}", lasting.reason);
        assert_eq!((passing.kind, none.kind), (FailureKind::Passing, FailureKind::Passing));
        let name = format!("the primary `shop` of sentinels {} cannot be found", loading.address());
        assert!(passing.reason.starts_with(&name), "{}", passing.reason);
        assert!(passing.reason.contains("LOADING it"), "{}", passing.reason);
        assert!(none.reason.contains("no reply"), "{}", none.reason);
    }

    #[tokio::test]
    async fn a_server_is_opened_as_the_url_says_and_known_from_before() {
        let server = sentinel("a");
        let sentinels = sentinels(&[&server]);
        assert!(found(&sentinels, "a").await.is_ok());

        let (known, other) = (sentinels.target_at(&at("a")), sentinels.target_at(&at("b")));

        assert!(Arc::ptr_eq(&known, &sentinels.target_at(&at("a"))), "it knows what the server lacks");
        assert_eq!((known.address(), other.address()), (at("a"), at("b")));
        assert_eq!(other.shown.to_string(), "b:6379");
    }

    #[tokio::test]
    async fn a_missed_switch_is_noticed_if_most_sentinels_report_it() {
        for (primaries, is_noticed) in [
            (&["b"][..], true),
            (&["b", "a"], false),
            (&["b", "b", "a"], true),
            (&["b", "a", "a"], false),
            (&["a", "b", "b"], false),
        ] {
            let servers: Vec<_> = primaries.iter().map(|primary| sentinel(primary)).collect();
            let sentinels = sentinels(&servers.iter().collect::<Vec<_>>());
            sentinels.catch_up(&sentinels.routes[0]).await;
            assert_eq!(lock(&sentinels.report).latest(), None, "no primary was found before");
            lock(&sentinels.report).found(at("a"));

            sentinels.catch_up(&sentinels.routes[0]).await;

            assert_eq!(sentinels.primary_changed().now_or_never().is_some(), is_noticed, "{primaries:?}");
            let latest = at(if is_noticed { "b" } else { "a" });
            assert_eq!(lock(&sentinels.report).latest(), Some(&latest), "{primaries:?}");
        }
    }

    #[tokio::test]
    async fn a_found_primary_is_left_if_most_sentinels_report_another() {
        for (primaries, demoted, is_left) in [
            (["a", "b", "b"], None, true),
            (["a", "a", "b"], None, false),
            (["a", "b", "c"], None, false),
            (["a", "b", "b"], Some("b"), false), // these two do not know of the switch yet
        ] {
            let servers = primaries.map(sentinel);
            let sentinels = sentinels(&servers.each_ref());
            if let Some(demoted) = demoted {
                lock(&sentinels.report).found(at(demoted));
                lock(&sentinels.report).switched(at(demoted), at("a"));
            }
            found(&sentinels, "a").await.expect("it replies as a primary");

            let _ = tokio::time::timeout(Duration::from_secs(1), sentinels.check_found()).await;

            assert_eq!(sentinels.primary_changed().now_or_never().is_some(), is_left, "{primaries:?}");
            let latest = at(if is_left { "b" } else { "a" });
            assert_eq!(lock(&sentinels.report).latest(), Some(&latest), "{primaries:?} {demoted:?}");
        }
    }

    /// A later failover, whose announcement was missed, has elected it again.
    #[tokio::test]
    async fn a_server_that_was_demoted_long_ago_is_used_again() {
        let servers = ["b", "b", "b"].map(sentinel);
        let sentinels = sentinels(&servers.each_ref());
        lock(&sentinels.report).switched(at("b"), at("a"));
        lock(&sentinels.report).found(at("a"));

        assert!(!sentinels.compare(at("a")).await, "the sentinels may not know of the last switch");
        tokio::time::pause();
        tokio::time::advance(LONGEST_LAG).await;
        tokio::time::resume();
        sentinels.catch_up(&sentinels.routes[0]).await;

        assert_eq!(lock(&sentinels.report).latest(), Some(&at("b")));
        assert!(sentinels.primary_changed().now_or_never().is_some());
    }

    #[tokio::test]
    async fn the_number_of_the_failover_outweighs_the_majority() {
        for (reported, demoted, is_left) in [
            ([("a", 5), ("b", 4), ("b", 4)], None, false), // these two do not know of the switch yet
            ([("a", 4), ("b", 5), ("b", 4)], None, true),
            ([("a", 4), ("b", 6), ("c", 5)], None, true),
            ([("a", 5), ("b", 6), ("a", 5)], Some("b"), true), // a later failover elected it again
        ] {
            let servers = reported.map(|(primary, epoch)| sentinel_after(epoch, primary));
            let sentinels = sentinels(&servers.each_ref());
            if let Some(demoted) = demoted {
                lock(&sentinels.report).switched(at(demoted), at("a"));
            }
            lock(&sentinels.report).found(at("a"));

            sentinels.check_found().await;

            let latest = at(if is_left { "b" } else { "a" });
            assert_eq!(lock(&sentinels.report).latest(), Some(&latest), "{reported:?}");
            assert_eq!(sentinels.primary_changed().now_or_never().is_some(), is_left, "{reported:?}");
        }
    }

    #[tokio::test]
    async fn a_switch_that_is_announced_during_a_check_is_newer() {
        let server = sentinel_after(4, "c");
        let sentinels = sentinels(&[&server]);
        lock(&sentinels.report).found(at("a"));
        let mut checking = Box::pin(sentinels.compare(at("a")));
        while !server.was_asked("SENTINEL MASTER") {
            assert!((&mut checking).now_or_never().is_none(), "it was not asked");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }

        lock(&sentinels.report).switched(at("a"), at("b"));
        lock(&sentinels.report).found(at("b"));
        checking.await;

        assert_eq!(lock(&sentinels.report).latest(), Some(&at("b")));
    }

    /// The first sentinel is partitioned from the others, together with the old primary.
    #[tokio::test]
    async fn each_primary_that_is_found_is_checked() {
        let servers = ["a", "b", "b"].map(sentinel);
        let (sentinels, jitter) =
            (sentinels(&servers.each_ref()), Jitter::of(TokenSource::of_process(1).process()));
        let left = async {
            // All have been subscribed to, so no later subscription notices the switch.
            while !servers.iter().all(|server| server.was_asked("SENTINEL")) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            found(&sentinels, "a").await.expect("it replies as a primary");
            sentinels.primary_changed().await;
        };

        tokio::select! {
            () = sentinels.watch(&jitter) => panic!("it watches forever"),
            left = tokio::time::timeout(LIMIT, left) => left.expect("it is left"),
        }

        assert_eq!(lock(&sentinels.report).latest(), Some(&at("b")));
    }

    #[tokio::test]
    async fn an_announced_switch_is_noticed() {
        let server = sentinel("a");
        let (sentinels, jitter) = (sentinels(&[&server]), Jitter::of(TokenSource::of_process(1).process()));
        lock(&sentinels.report).found(at("a"));
        let announce = |payload| server.push(&message(SWITCHES, payload));
        let announced = async {
            // It has subscribed before it catches up.
            while !server.was_asked("SENTINEL") {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            announce("other a 6379 b 6379");
            announce("shop a 6379 c 6379");
            sentinels.primary_changed().await;
        };

        tokio::select! {
            () = sentinels.watch(&jitter) => panic!("it watches forever"),
            announced = tokio::time::timeout(LIMIT, announced) => announced.expect("it is noticed"),
        }

        assert!(server.was_asked("SUBSCRIBE +switch-master"));
        assert_eq!(lock(&sentinels.report).latest(), Some(&at("c")));
    }
}
