//! The queries of `doctor` to the servers of a cluster, all at once.
//!
//! See also `backend/redis/probe`, which queries each server about itself, and `doctor`, which
//! evaluates the replies.

use futures_util::future::join_all;

use crate::backend::redis::probe::session::{ProbeSession, ProbeTimeout};
use crate::backend::redis::topology::cluster::cluster_view::{self, ClusterView};
use crate::backend::redis::transport::address::Address;
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::doctor::facts::{Read, Refusal, Seed};

/// The replies of the servers.
pub(in crate::backend::redis) struct ClusterReplies {
    pub(in crate::backend::redis) seeds: Vec<Seed>,
    /// Each primary with a key in one of its slots.
    pub(in crate::backend::redis) primaries: Vec<(Address, String)>,
    pub(in crate::backend::redis) replicas: Vec<Address>,
}

/// Queries servers for their view of the cluster, and uses the view with the most primaries.
pub(in crate::backend::redis) async fn look(
    seeds: &[ConnectTarget],
    stem: &str,
    timeout: ProbeTimeout,
) -> ClusterReplies {
    let views = join_all(seeds.iter().map(|seed| view(seed, timeout))).await;
    let fullest = views.iter().flatten().max_by_key(|view| view.primaries().len());
    let (primaries, replicas) =
        fullest.map(|view| (view.keys(stem), view.replicas.clone())).unwrap_or_default();
    let reported = seeds.iter().zip(&views).map(|(seed, view)| {
        let whole = match view {
            Ok(view) => view.check(&seed.shown).map_err(|failure| failure.reason),
            Err(why) => Err(why.clone()),
        };
        Seed { address: seed.shown.to_string(), whole }
    });
    ClusterReplies { seeds: reported.collect(), primaries, replicas }
}

async fn view(seed: &ConnectTarget, timeout: ProbeTimeout) -> Read<ClusterView> {
    let mut session = ProbeSession::connect(seed, timeout).await.map_err(|failure| failure.reason)?;
    let replies =
        session.ask_all(&cluster_view::question()).await.into_iter().collect::<Result<Vec<_>, Refusal>>()?;
    ClusterView::read(&replies, seed).map_err(|failure| failure.reason)
}
