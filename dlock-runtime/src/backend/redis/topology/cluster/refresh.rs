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
use crate::backend::redis::topology::cluster::initial_lookup::InitialLookup;
use crate::backend::redis::topology::cluster::primary::Primary;
use crate::backend::redis::topology::cluster::slot_map::Slot;
use crate::backend::redis::topology::cluster::slot_migration::OwnershipSource;
use crate::backend::redis::topology::cluster::{Cluster, first_to_report};
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
            self.decide(|state, decided| {
                if let Some(lookup) = &mut state.lookup {
                    decided.refused.extend(lookup.fail(failure));
                }
            });
            backoff.pause(Duration::ZERO).await;
        }
        self.route(|state| state.lookup.take().map(InitialLookup::finish).unwrap_or_default());
        self.recheck(false, |_| true); // retry requests that were refused meanwhile
    }

    /// Returns the limit of a lookup: requests wait for the first one only.
    fn longest_lookup(&self) -> Duration {
        let response_timeout = self.settings.rules.response_timeout;
        if lock(&self.state).lookup.as_ref().is_some_and(InitialLookup::is_in_progress) {
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
        let waiting = expired.iter().flat_map(|member: &Arc<Primary>| member.finish_connecting());
        let waiting: Vec<_> = waiting.map(|waiting| waiting.request).collect();
        drop(expired); // nothing is locked
        if !waiting.is_empty() {
            self.take(waiting); // routed to the new primary of their slots
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
