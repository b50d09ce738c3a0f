//! What the servers of a cluster are asked about it for an examination, all that were named at once.
//!
//! Not here: what each is asked of itself (`backend/redis/examine`), what the answers mean (`doctor`).

use futures_util::future::join_all;

use crate::backend::redis::examine::asking::{Asker, Patience};
use crate::backend::redis::node::link::Route;
use crate::backend::redis::servers::address::Address;
use crate::backend::redis::servers::cluster::map::{self, View};
use crate::doctor::facts::{Read, Seed};

/// What they said.
pub(in crate::backend::redis) struct Heard {
    pub(in crate::backend::redis) seeds: Vec<Seed>,
    /// The masters, each with a key that it serves.
    pub(in crate::backend::redis) masters: Vec<(Address, String)>,
    pub(in crate::backend::redis) replicas: Vec<Address>,
}

/// Asks servers for their view of the cluster; the fullest is gone by.
pub(in crate::backend::redis) async fn look(seeds: &[Route], stem: &str, patience: Patience) -> Heard {
    let views = join_all(seeds.iter().map(|seed| view(seed, patience))).await;
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
    Heard { seeds: said.collect(), masters, replicas }
}

async fn view(seed: &Route, patience: Patience) -> Read<View> {
    let mut asker = Asker::connect(seed, patience).await?;
    let answers = asker.ask_all(&map::question()).await.into_iter().collect::<Read<Vec<_>>>()?;
    View::read(&answers, seed).map_err(|failure| failure.reason)
}
