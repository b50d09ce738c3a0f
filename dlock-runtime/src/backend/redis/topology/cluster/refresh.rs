//! How the map of a cluster is kept: asked of servers that serve, now and then, and again and again while something is amiss.
//!
//! A server that nobody reaches says nothing of who takes its place: the others do, over connections of their own where no key of theirs
//! is in use. While no master can be asked, their replicas are, and the servers that the URL names.
//!
//! Not here: how a map is read and what of it is believed (`map`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::backend::redis::node::connect::ConnectTarget;
use crate::backend::redis::topology::cluster::cluster_view::{self, ClusterView};
use crate::backend::redis::topology::cluster::primary::Primary;
use crate::backend::redis::topology::cluster::slot_map::Slot;
use crate::backend::redis::topology::cluster::slot_migration::OwnershipSource;
use crate::backend::redis::topology::cluster::{Cluster, first_to_tell};
use crate::protocol::command::{Failure, FailureKind};
use crate::sync::lock;

impl Cluster {
    /// Learns the map from the first of the servers of the URL that has a whole one.
    pub(super) async fn find(&self) -> Result<(), Failure> {
        let mut contender: FuturesUnordered<_> = self
            .seeds
            .iter()
            .map(|seed| async move {
                let view = ask_at(seed).await?;
                view.check(&seed.shown)?;
                Ok(view)
            })
            .collect();
        let mut failures = Vec::new();
        while let Some(answer) = contender.next().await {
            match answer {
                Ok(view) => {
                    self.adopt(&[view]);
                    return Ok(());
                }
                Err(failure) => failures.push(failure),
            }
        }
        Err(first_to_tell(failures)
            .unwrap_or_else(|| Failure::new(FailureKind::Passing, "the url names no server")))
    }

    /// Looks at the map whenever it may be another, and now and then; without end.
    pub(super) async fn watch(&self) {
        loop {
            let looked = Instant::now();
            self.look().await;
            let every = if self.is_troubled() { SOON } else { NOW_AND_THEN };
            let _ = tokio::time::timeout(every, self.doubt.notified()).await;
            tokio::time::sleep(SOON.saturating_sub(looked.elapsed())).await;
        }
    }

    /// Asks some servers for the map, and takes over what they agree on.
    async fn look(&self) {
        self.begin_look();
        let views = self.views().await;
        if views.is_empty() {
            return;
        }
        self.adopt(&views);
        let is_up = views.iter().filter(|view| view.is_up).count() * 2 > views.len();
        if is_up && std::mem::take(&mut lock(&self.state).is_down) {
            self.take_wakers(false, |_| true); // what was refused meanwhile
        }
    }

    /// Notes that what servers say from now on is newer than the map that is about to be asked for.
    pub(super) fn begin_look(&self) {
        lock(&self.state).just_told.clear();
    }

    /// Asks masters that can be asked at once, and while something is amiss some that no key has needed yet; while there is none,
    /// everybody else.
    async fn views(&self) -> Vec<ClusterView> {
        let is_troubled = self.is_troubled();
        let members: Vec<_> = lock(&self.state).serving().into_iter().cloned().collect();
        let ready: Vec<_> = members.iter().filter(|member| member.node.is_ready()).take(MOST_ASKED).collect();
        // A master that is cut off from the others must not be the only one that is asked.
        let unused = members.iter().filter(|member| is_troubled && !member.is_used());
        let unused = unused.take(MOST_ASKED - ready.len()).map(|member| async {
            let contender = tokio::time::timeout(LONGEST_ASIDE, ask_at(&member.route)).await;
            contender.unwrap_or_else(|_| Err(Failure::new(FailureKind::Passing, "no answer in time")))
        });
        let contender = ready.into_iter().map(ask).collect::<FuturesUnordered<_>>();
        let aside = unused.collect::<FuturesUnordered<_>>();
        let (asked, aside): (Vec<_>, Vec<_>) = tokio::join!(contender.collect(), aside.collect());
        let views: Vec<_> = asked.into_iter().chain(aside).flatten().collect();
        if !views.is_empty() {
            return views;
        }
        if !members.iter().any(|member| member.is_used()) {
            let contender = self.seeds.iter().take(MOST_ASKED).map(ask_at).collect::<FuturesUnordered<_>>();
            let views: Vec<_> = contender.collect().await;
            let views: Vec<_> = views.into_iter().flatten().collect();
            if !views.is_empty() {
                return views;
            }
        }
        let replicas = lock(&self.state).replicas.clone();
        let known = members.into_iter().map(|member| member.address.clone()).chain(replicas);
        let routes: Vec<_> =
            known.filter_map(|address| self.route_to(&address).ok()).take(MOST_ASKED).collect();
        let contender = routes.iter().chain(&self.seeds).map(ask_at);
        let views: Vec<_> = contender.collect::<FuturesUnordered<_>>().collect().await;
        views.into_iter().flatten().collect()
    }

    /// Takes over what views agree on, and forgets servers that nobody has needed for a while.
    fn adopt(&self, views: &[ClusterView]) {
        let agreed = cluster_view::agreed(views).into_iter();
        let changed = Slot::all().zip(agreed).filter_map(|(slot, owner)| {
            let owner = owner?;
            let is_known = lock(&self.state).table.owner(slot).is_some_and(|known| known.address == *owner);
            (!is_known).then(|| (slot, owner.clone()))
        });
        let changed = changed.collect();
        let (moved, forgotten) = self.decide(|state, _| {
            let moved = self.give(state, changed, OwnershipSource::Map);
            state.serving().into_iter().for_each(|member| member.is_needed());
            if let Some(view) = views.first() {
                state.replicas.clone_from(&view.replicas);
            }
            let forgotten = state.members.extract_if(.., |member| member.is_forgotten()).collect::<Vec<_>>();
            (moved, forgotten)
        });
        let waiting = forgotten.iter().flat_map(|member: &Arc<Primary>| member.finish_connecting());
        let waiting: Vec<_> = waiting.map(|waiting| waiting.request).collect();
        drop(forgotten); // with nothing locked
        if !waiting.is_empty() {
            self.take(waiting); // to whom serves their slots now
        }
        self.look_again_at(&moved);
    }

    /// Returns whether a change is to be expected.
    fn is_troubled(&self) -> bool {
        let state = lock(&self.state);
        let serving = state.serving();
        let is_missed = |member: &&Arc<Primary>| member.is_open() && !member.node.is_ready();
        state.is_down || serving.is_empty() || serving.iter().any(is_missed)
    }
}

/// Asks a master over its connection for commands.
async fn ask(member: &Arc<Primary>) -> Result<ClusterView, Failure> {
    let answers = member.node.ask(&cluster_view::question()).await?;
    ClusterView::read(&answers, &member.route)
}

/// Asks a server over a connection of its own.
async fn ask_at(route: &ConnectTarget) -> Result<ClusterView, Failure> {
    let answers = route.ask_all(&cluster_view::question()).await?;
    ClusterView::read(&answers, route)
}

/// How long until the next look while something is amiss; no two are closer together.
const SOON: Duration = Duration::from_millis(100);

/// How long until the next look while nothing is.
const NOW_AND_THEN: Duration = Duration::from_secs(5);

/// How long a server is waited for that is asked beside masters in use: a vote more is not worth more.
const LONGEST_ASIDE: Duration = Duration::from_secs(1);

/// How many servers are asked at once.
const MOST_ASKED: usize = 5;
