//! What the servers of a cluster are asked about it for an examination, all that were named at once.
//!
//! Not here: what each is asked of itself (`backend/redis/examine`), what the answers mean (`doctor`).

use futures_util::future::join_all;

use crate::backend::redis::node::connect::ConnectTarget;
use crate::backend::redis::probe::session::{ProbeSession, ProbeTimeout};
use crate::backend::redis::topology::address::Address;
use crate::backend::redis::topology::cluster::cluster_view::{self, ClusterView};
use crate::doctor::facts::{Read, Seed};

/// What they said.
pub(in crate::backend::redis) struct ClusterAnswer {
    pub(in crate::backend::redis) seeds: Vec<Seed>,
    /// The masters, each with a key that it serves.
    pub(in crate::backend::redis) masters: Vec<(Address, String)>,
    pub(in crate::backend::redis) replicas: Vec<Address>,
}

/// Asks servers for their view of the cluster; the fullest is gone by.
pub(in crate::backend::redis) async fn look(
    seeds: &[ConnectTarget],
    stem: &str,
    retry_state: ProbeTimeout,
) -> ClusterAnswer {
    let views = join_all(seeds.iter().map(|seed| view(seed, retry_state))).await;
    let fullest = views.iter().flatten().max_by_key(|view| view.masters().len());
    let (masters, replicas) =
        fullest.map(|view| (view.keys(stem), view.replicas.clone())).unwrap_or_default();
    let said = seeds.iter().zip(&views).map(|(seed, view)| {
        let whole = match view {
            Ok(view) => view.check(&seed.shown).map_err(|failure| failure.reason),
            Err(why) => Err(why.clone()),
        };
        Seed { address: seed.shown.to_string(), whole }
    });
    ClusterAnswer { seeds: said.collect(), masters, replicas }
}

async fn view(seed: &ConnectTarget, retry_state: ProbeTimeout) -> Read<ClusterView> {
    let mut asker = ProbeSession::connect(seed, retry_state).await?;
    let answers = asker.ask_all(&cluster_view::question()).await.into_iter().collect::<Read<Vec<_>>>()?;
    ClusterView::read(&answers, seed).map_err(|failure| failure.reason)
}
