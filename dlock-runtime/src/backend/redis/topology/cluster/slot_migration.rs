//! Slots whose master is another one now.
//!
//! What comes in for them waits until all is dealt with that the old one was asked, since it sends that on: requests on one key keep
//! their order. And what is held and waited for in them is looked at again, since the new one may not have all that the old one had.
//!
//! Not here: how a move is found out (`redirects`, `watching`).

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use crate::backend::redis::topology::address::Address;
use crate::backend::redis::topology::cluster::primary::Primary;
use crate::backend::redis::topology::cluster::slot_map::Slot;
use crate::backend::redis::topology::cluster::{Cluster, ClusterState, QueuedSend};
use crate::sync::lock;

/// Who says that a slot has another master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnershipSource {
    /// A server that was sent a request, just now.
    Redirect,
    /// A map, as it was when it was asked for.
    Map,
}

impl Cluster {
    /// Notes who serves slots now, and returns those for which it was somebody else. What comes in for them waits until all is dealt with
    /// that the old one was asked.
    ///
    /// A map does not take back what a server has said since it was asked for: the request that was sent on would go to the old master
    /// again, behind others of its key that are on their way there.
    pub(super) fn give(
        &self,
        state: &mut ClusterState,
        owners: Vec<(Slot, Address)>,
        source: OwnershipSource,
    ) -> HashSet<Slot> {
        let mut moved = HashSet::new();
        let mut left: Vec<(Arc<Primary>, u64)> = Vec::new();
        for (slot, address) in owners {
            let Some(member) = self.member_at(state, &address) else { continue };
            match source {
                OwnershipSource::Redirect => _ = state.just_told.insert(slot),
                OwnershipSource::Map if state.just_told.contains(&slot) => continue,
                OwnershipSource::Map => {}
            }
            let old = state.table.owner(slot).cloned();
            if old.as_ref().is_some_and(|old| Arc::ptr_eq(old, &member)) {
                continue;
            }
            if !member.node.is_ready() {
                member.on_slot_gained();
            }
            state.table.give(slot, member);
            moved.insert(slot);
            if let Some(old) = &old {
                // What waits for a connection to the old one goes to the new one, before what comes in.
                let waiting = old.take_waiting(|waiting| Slot::of(&waiting.request.key) == slot);
                if !waiting.is_empty() {
                    // They are older than what is held back.
                    state.held_back.splice(0..0, waiting.into_iter().map(|waiting| waiting.request));
                    self.parked.notify_one();
                }
            }
            let Some(old) = old.filter(|old| old.node.may_have_requests()) else { continue };
            let known = left.iter().find(|(other, _)| Arc::ptr_eq(other, &old)).map(|(_, number)| *number);
            let number = known.unwrap_or(state.moves + 1);
            state.moves = state.moves.max(number);
            state.settling.insert(slot, number);
            if known.is_none() {
                left.push((old, number));
            }
        }
        for (old, number) in left {
            // Behind all that is on its way to him.
            let settles = MigrationBarrier { cluster: Weak::clone(&self.me), number };
            self.outgoing.push(QueuedSend::Behind(old, settles));
        }
        moved
    }

    /// Has what is held and waited for, and what is to be undone, in some slots looked at again.
    pub(super) fn take_wakers(&self, moved: bool, concerns: impl Fn(Slot) -> bool) {
        self.engine.on_reconnect(moved, |key| concerns(Slot::of(key)));
    }

    /// Has what is held and waited for in slots that another serves now looked at again, where that one can be asked; else it is as soon
    /// as he can be.
    pub(super) fn look_again_at(&self, moved: &HashSet<Slot>) {
        if moved.is_empty() {
            return;
        }
        self.take_wakers(true, |slot| {
            let owner = moved.contains(&slot).then(|| lock(&self.state).table.owner(slot).cloned()).flatten();
            owner.is_some_and(|owner| {
                let can_be_asked = owner.node.is_ready();
                if !can_be_asked {
                    owner.on_slot_gained(); // he could be a moment ago
                    self.open(&owner);
                }
                can_be_asked
            })
        });
    }
}

/// Has what waits for a move sent when it is dropped: all is dealt with that its old master was asked, or there is no connection to him
/// any more, and nothing to wait for.
pub(super) struct MigrationBarrier {
    cluster: Weak<Cluster>,
    number: u64,
}

impl Drop for MigrationBarrier {
    fn drop(&mut self) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.route(|state| {
                state.settling.retain(|_, last| *last != self.number);
                std::mem::take(&mut state.held_back)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::Duration;

    use tokio::sync::{mpsc, oneshot};
    use tokio::task::JoinSet;

    use super::*;
    use crate::backend::redis::command_queue::CommandQueue;
    use crate::backend::redis::node::pipeline::RouteHistory;
    use crate::backend::redis::node::test_node::{FakeServer, acquire};
    use crate::backend::redis::reply_sink::EngineSink;
    use crate::backend::redis::topology::cluster::redirects::Redirect;
    use crate::config::Settings;
    use crate::config::cluster::ClusterEndpoint;
    use crate::config::url::Server;
    use crate::token::TokenSource;

    const SOON: Duration = Duration::from_secs(20);

    fn cluster() -> Arc<Cluster> {
        let seeds = ClusterEndpoint { servers: Vec::new(), access: Server::default() };
        let answers = EngineSink { shared: Arc::new(CommandQueue::default()), engine: Weak::new() };
        let process = TokenSource::of_process(1).process();
        let mut settings = Settings::default();
        settings.rules.tracking = false;
        Cluster::new(seeds, &settings, answers, process).expect("no server is wrong")
    }

    fn at(host: &str, port: u16) -> Address {
        Address { host: host.to_owned(), port }
    }

    fn give(cluster: &Cluster, slot: Slot, to: &Address, source: OwnershipSource) -> usize {
        cluster.decide(|state, _| cluster.give(state, vec![(slot, to.clone())], source)).len()
    }

    /// A cluster with masters that are connected to.
    struct Masters {
        cluster: Arc<Cluster>,
        addresses: Vec<Address>,
        servers: Vec<FakeServer>,
        /// The keys that they were asked to lock.
        asked: mpsc::UnboundedReceiver<String>,
        running: JoinSet<()>,
    }

    impl Masters {
        async fn start(count: usize) -> Self {
            let (cluster, mut running) = (cluster(), JoinSet::new());
            cluster.engine.shared.moves_to(Some(tokio::runtime::Handle::current()));
            let (ask, asked) = mpsc::unbounded_channel();
            let servers: Vec<_> = (0..count).map(|_| FakeServer::start(ask.clone())).collect();
            let addresses: Vec<_> = servers.iter().map(|server| at("127.0.0.1", server.port)).collect();
            for address in &addresses {
                let member = cluster.member_at(&mut lock(&cluster.state), address).expect("there is room");
                let (first, connected) = oneshot::channel();
                running.spawn(Arc::clone(&member.node).run(Some(first)));
                connected.await.expect("it tells").expect("the server takes connections");
            }
            let driven = Arc::clone(&cluster);
            running.spawn(async move {
                loop {
                    driven.engine.shared.wake.notified().await;
                    driven.take(Vec::new()); // where somebody has been at it for long, as the driver does
                }
            });
            Self { cluster, addresses, servers, asked, running }
        }

        async fn asked(&mut self) -> String {
            tokio::time::timeout(SOON, self.asked.recv()).await.expect("it is asked").expect("servers run")
        }
    }

    #[test]
    fn a_map_does_not_take_back_what_a_server_said_since_it_was_asked_for() {
        let cluster = cluster();
        let (slot, other) = (Slot::of("order:7"), Slot::of("order:8"));
        let give = |slot, port, source| give(&cluster, slot, &at("10.0.0.1", port), source);
        let owner = |slot| lock(&cluster.state).table.owner(slot).map(|member| member.address.port);
        give(slot, 1, OwnershipSource::Map);
        give(other, 1, OwnershipSource::Map);

        cluster.begin_look();
        assert_eq!(give(slot, 2, OwnershipSource::Redirect), 1);
        assert_eq!((give(slot, 3, OwnershipSource::Map), give(other, 3, OwnershipSource::Map)), (0, 1));
        assert_eq!((owner(slot), owner(other)), (Some(2), Some(3)));

        cluster.begin_look();
        give(slot, 3, OwnershipSource::Map);
        assert_eq!(owner(slot), Some(3), "a map that was asked for later is believed");
    }

    #[tokio::test]
    async fn what_comes_in_for_a_slot_that_moves_waits_for_its_old_master_and_not_for_one_that_is_gone() {
        let mut masters = Masters::start(2).await;
        let (cluster, slot) = (Arc::clone(&masters.cluster), Slot::of("{7}"));
        give(&cluster, slot, &masters.addresses[0], OwnershipSource::Map);
        masters.servers[0].hold();
        cluster.take(vec![acquire("{7}a")]);
        assert_eq!(masters.asked().await, "{7}a");

        give(&cluster, slot, &masters.addresses[1], OwnershipSource::Redirect);
        cluster.take(vec![acquire("{7}b")]);
        tokio::task::yield_now().await;
        assert_eq!(lock(&cluster.state).held_back.len(), 1);
        masters.running.abort_all();
        while masters.running.join_next().await.is_some() {}

        let state = lock(&cluster.state);
        assert!(state.settling.is_empty() && state.held_back.is_empty());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn requests_of_a_slot_keep_their_order_whoever_sends_them_while_it_goes_to_and_fro() {
        const EACH: usize = 1_000;
        let mut masters = Masters::start(2).await;
        let (cluster, slot) = (Arc::clone(&masters.cluster), Slot::of("{7}"));
        give(&cluster, slot, &masters.addresses[0], OwnershipSource::Map);

        std::thread::scope(|scope| {
            for thread in ["a", "b", "c"] {
                let cluster = &cluster;
                scope.spawn(move || {
                    for number in 0..EACH {
                        cluster.take(vec![acquire(&format!("{{7}}{thread}{number}"))]);
                    }
                });
            }
            let mut moves = 0;
            while lock(&cluster.state).moves < 200 && moves < 100_000 {
                moves += 1;
                give(&cluster, slot, &masters.addresses[moves % 2], OwnershipSource::Redirect);
                std::thread::yield_now();
            }
        });

        let mut next = HashMap::new();
        for _ in 0..3 * EACH {
            let asked = masters.asked().await;
            let (thread, number) = asked.trim_start_matches("{7}").split_at(1);
            let expected = next.entry(thread.to_owned()).or_insert(0);
            assert_eq!(number.parse(), Ok(*expected), "{thread}");
            *expected += 1;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_one_server_sends_elsewhere_keeps_its_order_whichever_way_it_goes() {
        let mut masters = Masters::start(2).await;
        let (cluster, old, new) =
            (Arc::clone(&masters.cluster), &masters.addresses[0], &masters.addresses[1]);
        give(&cluster, Slot::of("{7}"), old, OwnershipSource::Map);
        let moved = |key: &str| (acquire(key), Redirect::Moved(Slot::of(key), new.clone()));
        let asks = |key: &str| (acquire(key), Redirect::Ask(new.clone()));

        // One slot has moved, and another one does between the second and the third.
        cluster.follow(
            old,
            vec![moved("{8}first"), asks("{7}second"), moved("{7}third")],
            RouteHistory::default(),
        );

        for key in ["{8}first", "{7}second", "{7}third"] {
            assert_eq!(masters.asked().await, key);
        }
    }

    #[test]
    fn who_came_behind_one_that_is_to_come_again_later_does_not_overtake_it() {
        let cluster = cluster();
        let (old, new) = (at("10.0.0.1", 1), at("10.0.0.2", 2));
        let later = |key: &str| (acquire(key), Redirect::Both);
        let moved = |key: &str| (acquire(key), Redirect::Moved(Slot::of(key), new.clone()));

        let sent = vec![later("{7}a"), moved("{7}a"), moved("{7}b")];
        let order: Vec<_> = sent.iter().map(|(request, _)| request.token).collect();
        cluster.follow(&old, sent, RouteHistory::default());

        // There is no connection to the new master yet.
        let parked: Vec<_> = lock(&cluster.state).parked.iter().map(|errand| errand.request.token).collect();
        assert_eq!(parked, order);
    }
}
