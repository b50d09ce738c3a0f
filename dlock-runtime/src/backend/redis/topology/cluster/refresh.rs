//! Keeps the slot map current: queries servers every 5 s, and every 100 ms while something is
//! wrong.
//!
//! An unreachable server cannot report its successor; the other servers can. Servers without keys
//! in use are queried over separate connections. If no primary can be queried, its replicas and the
//! servers of the URL are.

use std::future::ready;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::backend::redis::topology::cluster::cluster_view::{self, ClusterView};
use crate::backend::redis::topology::cluster::primary::Primary;
use crate::backend::redis::topology::cluster::slot_map::Slot;
use crate::backend::redis::topology::cluster::slot_migration::OwnershipSource;
use crate::backend::redis::topology::cluster::{Cluster, InitialLookup, first_to_report};
use crate::backend::redis::transport::backoff::Backoff;
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::protocol::command::{Failure, FailureKind};
use crate::sync::lock;

impl Cluster {
    /// Adopts the view of the first server of the URL that reports a complete one.
    pub(super) async fn find(&self) -> Result<(), Failure> {
        let mut replies: FuturesUnordered<_> = self
            .seeds
            .iter()
            .map(|seed| async move {
                let view = ask_at(seed).await?;
                view.check(&seed.shown)?;
                Ok(view)
            })
            .collect();
        let mut failures = Vec::new();
        while let Some(reply) = replies.next().await {
            match reply {
                Ok(view) => {
                    self.adopt(&[view]);
                    return Ok(());
                }
                Err(failure) => failures.push(failure),
            }
        }
        Err(first_to_report(failures)
            .unwrap_or_else(|| Failure::new(FailureKind::Passing, "the url names no server")))
    }

    /// Looks for the primaries until they are found, after a lazy start.
    pub(super) async fn look_up(&self) {
        let mut backoff = Backoff::new(&self.jitter);
        loop {
            let failure = match tokio::time::timeout(self.longest_lookup(), self.find()).await {
                Ok(Ok(())) => break,
                Ok(Err(failure)) => failure,
                Err(_) => self.not_found_in_time(),
            };
            // Whatever the reason, a later attempt may succeed.
            let failure = Failure { kind: FailureKind::Passing, ..failure };
            self.decide(|state, decided| {
                decided.refuse_all(std::mem::take(&mut state.deferred), &failure);
                state.lookup = InitialLookup::Failed(failure);
            });
            backoff.pause(Duration::ZERO).await;
        }
        self.route(|state| {
            state.lookup = InitialLookup::Found;
            std::mem::take(&mut state.deferred)
        });
        self.recheck(false, |_| true); // retry requests that were refused meanwhile
    }

    /// Returns the limit of a lookup: requests wait for the first one only.
    fn longest_lookup(&self) -> Duration {
        let response_timeout = self.settings.rules.response_timeout;
        if matches!(lock(&self.state).lookup, InitialLookup::InProgress) {
            return response_timeout.saturating_sub(response_timeout / 16);
        }
        self.settings.connect_timeout.saturating_add(response_timeout)
    }

    fn not_found_in_time(&self) -> Failure {
        let seeds: Vec<_> = self.seeds.iter().map(|seed| seed.shown.to_string()).collect();
        let text = format!("the cluster of redis at {} has not been found yet", seeds.join(", "));
        Failure::new(FailureKind::Passing, text)
    }

    /// Refreshes the map when it may be out of date and at intervals; runs forever.
    pub(super) async fn watch(&self) {
        loop {
            let looked = Instant::now();
            self.refresh().await;
            let every = if self.is_troubled() { TROUBLED_INTERVAL } else { REFRESH_INTERVAL };
            let _ = tokio::time::timeout(every, self.map_stale.notified()).await;
            tokio::time::sleep(TROUBLED_INTERVAL.saturating_sub(looked.elapsed())).await;
        }
    }

    /// Queries some servers, and adopts what they agree on.
    async fn refresh(&self) {
        self.start_refresh();
        let views = self.views().await;
        if views.is_empty() {
            return;
        }
        self.adopt(&views);
        let is_up = views.iter().filter(|view| view.is_up).count() * 2 > views.len();
        if is_up && std::mem::take(&mut lock(&self.state).is_down) {
            self.recheck(false, |_| true); // retry requests that were refused meanwhile
        }
    }

    /// Marks the start of a refresh: later redirects are newer than its result.
    pub(super) fn start_refresh(&self) {
        lock(&self.state).recently_redirected.clear();
    }

    /// Queries primaries that are ready and, while something is wrong, some unused ones. If none
    /// replies, queries all other known servers.
    async fn views(&self) -> Vec<ClusterView> {
        let is_troubled = self.is_troubled();
        let members: Vec<_> = lock(&self.state).serving().into_iter().cloned().collect();
        let ready: Vec<_> =
            members.iter().filter(|member| member.node.is_ready()).take(MAX_QUERIED).collect();
        // A partitioned primary must not be the only one that is queried.
        let unused = members.iter().filter(|member| is_troubled && !member.is_used());
        let unused = unused.take(MAX_QUERIED - ready.len()).map(|member| async {
            let reply = tokio::time::timeout(UNUSED_TIMEOUT, ask_at(&member.route)).await;
            reply.unwrap_or_else(|_| Err(Failure::new(FailureKind::Passing, "no reply in time")))
        });
        let (mut views, aside) = tokio::join!(successful(ready.into_iter().map(ask)), successful(unused));
        views.extend(aside);
        if views.is_empty() && !members.iter().any(|member| member.is_used()) {
            views = successful(self.seeds.iter().take(MAX_QUERIED).map(ask_at)).await;
        }
        if !views.is_empty() {
            return views;
        }
        let replicas = lock(&self.state).replicas.clone();
        let known = members.into_iter().map(|member| member.address.clone()).chain(replicas);
        let routes: Vec<_> = known.map(|address| self.route_to(&address)).take(MAX_QUERIED).collect();
        successful(routes.iter().chain(&self.seeds).map(ask_at)).await
    }

    /// Adopts what the views agree on, and drops servers that have been unused for 10 s.
    fn adopt(&self, views: &[ClusterView]) {
        let agreed = cluster_view::agreed(views).into_iter();
        let changed = Slot::all().zip(agreed).filter_map(|(slot, owner)| {
            let owner = owner?;
            let is_known = lock(&self.state).table.owner(slot).is_some_and(|known| known.address == *owner);
            (!is_known).then(|| (slot, owner.clone()))
        });
        let changed = changed.collect();
        let (moved, expired) = self.decide(|state, _| {
            let moved = self.assign_slots(state, changed, OwnershipSource::Map);
            state.serving().into_iter().for_each(|member| member.mark_needed());
            if let Some(view) = views.first() {
                state.replicas.clone_from(&view.replicas);
            }
            let expired = state.members.extract_if(.., |member| member.is_expired()).collect::<Vec<_>>();
            (moved, expired)
        });
        for member in expired {
            member.node.end(); // nothing is locked
        }
        self.recheck_moved(&moved);
    }

    /// Returns `true` if the map is likely to change soon.
    fn is_troubled(&self) -> bool {
        let state = lock(&self.state);
        let serving = state.serving();
        let is_missed = |member: &&Arc<Primary>| member.is_open() && !member.node.is_ready();
        state.is_down || serving.is_empty() || serving.iter().any(is_missed)
    }
}

/// Waits for all queries, and returns the views of those that succeeded, first come first.
async fn successful<F>(queries: impl Iterator<Item = F>) -> Vec<ClusterView>
where
    F: Future<Output = Result<ClusterView, Failure>>,
{
    queries.collect::<FuturesUnordered<_>>().filter_map(|view| ready(view.ok())).collect().await
}

/// Queries a primary over its command connection.
async fn ask(member: &Arc<Primary>) -> Result<ClusterView, Failure> {
    let replies = member.node.ask(&cluster_view::question()).await?;
    ClusterView::read(&replies, &member.route)
}

/// Queries a server over a separate connection.
async fn ask_at(route: &ConnectTarget) -> Result<ClusterView, Failure> {
    let replies = route.query_all(&cluster_view::question()).await?;
    ClusterView::read(&replies, route)
}

/// The refresh interval while something is wrong, and the minimum interval.
const TROUBLED_INTERVAL: Duration = Duration::from_millis(100);

/// The refresh interval otherwise.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// How long to wait for an unused server. One more vote is not worth a longer wait.
const UNUSED_TIMEOUT: Duration = Duration::from_secs(1);

/// How many servers are queried at once.
const MAX_QUERIED: usize = 5;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use tokio::task::JoinSet;

    use super::*;
    use crate::backend::redis::node::test_node::acquire;
    use crate::backend::redis::tests::resp::{OK, reports};
    use crate::backend::redis::tests::scripted_server::{LIMIT, ScriptedServer, patient};
    use crate::backend::redis::topology::cluster::tests::{
        assign, at, cluster, cluster_with, connected_member, lost_member, member, recorded, until,
        waiting_keys,
    };
    use crate::backend::tests::recorded_events::RecordedEvents;
    use crate::config::Settings;
    use crate::protocol::command::Reply;

    fn was_asked(server: &ScriptedServer) -> bool {
        server.was_asked("CLUSTER SLOTS")
    }

    /// Starts a server that is not part of a cluster.
    fn standalone() -> ScriptedServer {
        ScriptedServer::start(|command| match command {
            "CLUSTER SLOTS" => "-ERR This instance has cluster support disabled\r\n".to_owned(),
            _ => OK.to_owned(),
        })
    }

    #[tokio::test]
    async fn only_the_first_lookup_is_shorter_than_a_response_timeout() {
        let mut settings = Settings { lazy: true, connect_timeout: Duration::from_secs(2), ..patient() };
        settings.rules.response_timeout = Duration::from_millis(1_600);
        let cluster = cluster_with(&settings, &[]);
        assert_eq!(cluster.longest_lookup(), Duration::from_millis(1_500));

        let failure = Failure::new(FailureKind::Passing, "away");
        lock(&cluster.state).lookup = InitialLookup::Failed(failure);
        assert_eq!(cluster.longest_lookup(), Duration::from_millis(3_600));

        lock(&cluster.state).lookup = InitialLookup::Found;
        assert_eq!(cluster.longest_lookup(), Duration::from_millis(3_600));
    }

    #[tokio::test]
    async fn a_map_is_troubled_while_it_may_change() {
        let cluster = cluster(&[]);
        let (unused, used) = (at("10.0.0.1", 1), at("10.0.0.2", 2));
        assert!(cluster.is_troubled(), "no primary is known");
        assign(&cluster, Slot::of("{7}"), &unused, OwnershipSource::Map);
        assert!(!cluster.is_troubled());

        let primary = member(&cluster, &used);
        primary.start_connecting();
        assign(&cluster, Slot::of("{8}"), &used, OwnershipSource::Map);
        assert!(!cluster.is_troubled(), "it is being connected");
        primary.finish_connecting();
        assert!(cluster.is_troubled(), "it is away");

        assign(&cluster, Slot::of("{8}"), &unused, OwnershipSource::Map);
        assert!(!cluster.is_troubled(), "it does not serve");
        lock(&cluster.state).is_down = true;
        assert!(cluster.is_troubled());
    }

    #[tokio::test]
    async fn a_connected_primary_is_no_trouble() {
        let server = ScriptedServer::start(reports("ok", &[]));
        let (cluster, mut running) = (cluster(&[]), JoinSet::new());
        connected_member(&cluster, &server.address(), &mut running).await;

        assign(&cluster, Slot::of("{7}"), &server.address(), OwnershipSource::Map);

        assert!(!cluster.is_troubled());
    }

    #[tokio::test]
    async fn a_cluster_is_up_again_if_most_servers_say_so() {
        let primary = at("10.0.0.1", 1);
        for (states, is_up) in [
            (&["ok"][..], true),
            (&["ok", "ok", "fail"], true),
            (&["ok", "fail"], false),
            (&["ok", "fail", "fail"], false),
        ] {
            let range: &[(u16, u16, &[&_])] = &[(0, 16_383, &[&primary])];
            let seeds: Vec<_> =
                states.iter().map(|state| ScriptedServer::start(reports(state, range))).collect();
            let cluster = cluster(&seeds.iter().collect::<Vec<_>>());
            let events = recorded(&cluster, &["{7}"]);

            cluster.refresh().await;
            events.take(); // of the slots that were assigned
            cluster.refresh().await;
            assert!(events.take().is_empty(), "it was not down");
            lock(&cluster.state).is_down = true;
            cluster.refresh().await;

            assert_eq!(lock(&cluster.state).is_down, !is_up, "{states:?}");
            let rechecked = [r#"reconnect moved=false ["{7}"]"#];
            assert_eq!(events.take(), if is_up { &rechecked[..] } else { &[] }, "{states:?}");
        }
    }

    #[tokio::test]
    async fn the_first_server_with_a_complete_view_is_enough() {
        let primary = at("10.0.0.1", 1);
        let (part, whole) = (
            ScriptedServer::start(reports("ok", &[(0, 5, &[&primary])])),
            ScriptedServer::start(reports("ok", &[(0, 16_383, &[&primary])])),
        );

        let found = cluster(&[&part, &whole]);
        found.find().await.expect("one view is complete");
        assert_eq!(lock(&found.state).table.owners().count(), Slot::all().count());

        let failure = cluster(&[&part]).find().await.expect_err("slots are missing");
        assert!(failure.reason.contains("no primary serves 16378"), "{}", failure.reason);
        let failure = cluster(&[&standalone(), &part]).find().await.expect_err("none is complete");
        assert_eq!(failure.kind, FailureKind::Lasting, "{}", failure.reason);
    }

    #[tokio::test]
    async fn a_lookup_continues_after_a_failure() {
        let primary = at("10.0.0.1", 1);
        let attempts = AtomicUsize::new(0);
        let (part, whole) =
            (reports("ok", &[(0, 5, &[&primary])]), reports("ok", &[(0, 16_383, &[&primary])]));
        let seed = ScriptedServer::start(move |command| {
            let slots = command == "CLUSTER SLOTS";
            let attempt = attempts.fetch_add(usize::from(slots), Ordering::SeqCst);
            if attempt == 0 { part(command) } else { whole(command) }
        });
        let cluster = cluster_with(&Settings { lazy: true, ..patient() }, &[&seed]);
        let events = recorded(&cluster, &["{7}"]);
        cluster.take(vec![acquire("{7}")]);

        tokio::time::timeout(LIMIT, cluster.look_up()).await.expect("it is found");

        let refused = events.refused();
        assert!(refused.len() == 1 && refused[0].1.contains("no primary serves"), "{refused:?}");
        assert!(matches!(lock(&cluster.state).lookup, InitialLookup::Found));
        let latest = events.take().pop();
        assert_eq!(latest.as_deref(), Some(r#"reconnect moved=false ["{7}"]"#));
    }

    #[tokio::test]
    async fn requests_wait_for_the_first_attempt_to_look_up() {
        let seed = standalone();
        let cluster = cluster_with(&Settings { lazy: true, ..patient() }, &[&seed]);
        let events = recorded(&cluster, &[]);
        let refused = |events: &RecordedEvents| -> Vec<_> {
            let replies = std::mem::take(&mut *lock(&events.replies)).into_iter();
            let passing = |reply: &Reply| matches!(reply, Reply::Refused(failure) if failure.kind == FailureKind::Passing);
            replies.map(|(key, reply)| (key.to_string(), passing(&reply))).collect()
        };
        cluster.take(vec![acquire("a"), acquire("b")]);
        assert!(refused(&events).is_empty());

        let looking_up = Arc::clone(&cluster);
        let looking_up = tokio::spawn(async move { looking_up.look_up().await });
        until(|| lock(&events.replies).len() == 2).await;
        assert_eq!(refused(&events), [("a".to_owned(), true), ("b".to_owned(), true)]);
        cluster.take(vec![acquire("c")]);

        assert_eq!(refused(&events), [("c".to_owned(), true)], "it does not wait");
        looking_up.abort();
    }

    #[tokio::test]
    async fn requests_that_wait_for_the_lookup_keep_their_order() {
        let primary = at("10.0.0.1", 1);
        let seed = ScriptedServer::start(reports("ok", &[(0, 16_383, &[&primary])]));
        let cluster = cluster_with(&Settings { lazy: true, ..patient() }, &[&seed]);
        for key in ["{7}a", "{8}b", "{7}a", "c"] {
            cluster.take(vec![acquire(key)]);
        }

        cluster.look_up().await;

        assert_eq!(waiting_keys(&cluster, &primary), ["{7}a", "{8}b", "{7}a", "c"]);
    }

    #[tokio::test]
    async fn servers_of_the_url_are_asked_while_no_primary_is_used() {
        let seed = ScriptedServer::start(reports("ok", &[]));
        let cluster = cluster(&[&seed]);
        let away = at("127.0.0.1", 1);
        assign(&cluster, Slot::of("{7}"), &away, OwnershipSource::Map);
        let replica = ScriptedServer::start(reports("ok", &[]));
        lock(&cluster.state).replicas.push(replica.address());

        assert_eq!(cluster.views().await.len(), 1);
        assert!(was_asked(&seed) && !was_asked(&replica));
        lost_member(&cluster, &away);
        assert_eq!(cluster.views().await.len(), 2);

        assert!(was_asked(&replica), "a primary in use is away, and its successor knows more");
    }

    #[tokio::test]
    async fn a_few_servers_are_asked_at_once() {
        let seed = ScriptedServer::start(reports("ok", &[]));
        let servers: Vec<_> = (0..9).map(|_| ScriptedServer::start(reports("ok", &[]))).collect();
        let (cluster, mut running) = (cluster(&[&seed]), JoinSet::new());
        connected_member(&cluster, &servers[0].address(), &mut running).await;
        for (slot, server) in Slot::all().zip(&servers) {
            assign(&cluster, slot, &server.address(), OwnershipSource::Map);
        }

        assert_eq!(cluster.views().await.len(), 1, "only the primary in use");
        assert!(was_asked(&servers[0]));
        lock(&cluster.state).is_down = true;
        assert_eq!(cluster.views().await.len(), MAX_QUERIED);

        assert_eq!(servers.iter().filter(|server| was_asked(server)).count(), MAX_QUERIED);
        assert!(!was_asked(&seed));
    }

    #[tokio::test]
    async fn a_stale_map_is_refreshed_before_the_interval_ends() {
        let (old, new, slot) = (at("10.0.0.1", 1), at("10.0.0.2", 2), Slot::of("{7}"));
        let (before, after) =
            (reports("ok", &[(0, 16_383, &[&old])]), reports("ok", &[(0, 16_383, &[&new])]));
        let has_moved = Arc::new(AtomicBool::new(false));
        let moved = Arc::clone(&has_moved);
        let seed = ScriptedServer::start(move |command| {
            if moved.load(Ordering::SeqCst) { after(command) } else { before(command) }
        });
        let cluster = cluster(&[&seed]);
        let owner = || lock(&cluster.state).table.owner(slot).map(|owner| owner.address.clone());
        let refreshed = async {
            until(|| owner() == Some(old.clone())).await;
            has_moved.store(true, Ordering::SeqCst);
            let begun = Instant::now();
            cluster.map_stale.notify_one();
            until(|| owner() == Some(new.clone())).await;
            assert!(begun.elapsed() < REFRESH_INTERVAL);
        };

        tokio::select! {
            () = cluster.watch() => panic!("it watches forever"),
            () = refreshed => {}
        }
    }
}
