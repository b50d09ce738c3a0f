//! Slots that move to another primary.
//!
//! New requests for such a slot wait until every request to its old primaries is answered, because
//! an old primary may redirect some. So requests for one key keep their order. Holds and waiters in
//! the slot are checked again, because the new primary may lack writes of the old one.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use crate::backend::redis::topology::cluster::primary::Primary;
use crate::backend::redis::topology::cluster::slot_map::Slot;
use crate::backend::redis::topology::cluster::{Cluster, ClusterState, QueuedSend};
use crate::backend::redis::transport::address::Address;
use crate::sync::lock;

/// The source of an ownership change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnershipSource {
    /// A redirect: current.
    Redirect,
    /// A cluster view: current when it was queried.
    Map,
}

impl Cluster {
    /// Records the owners of slots, and returns the slots whose owner changed. New requests for
    /// these slots wait until the old primary has replied to everything.
    ///
    /// A view does not override a redirect that is newer than the query of the view. Otherwise the
    /// redirected request would go back to the old primary, behind later requests for its key.
    pub(super) fn assign_slots(
        &self,
        state: &mut ClusterState,
        owners: Vec<(Slot, Address)>,
        source: OwnershipSource,
    ) -> HashSet<Slot> {
        let mut moved = HashSet::new();
        let mut left: Vec<(Arc<Primary>, HashSet<Slot>)> = Vec::new();
        for (slot, address) in owners {
            let Some(member) = self.member_at(state, &address) else { continue };
            match source {
                OwnershipSource::Redirect => _ = state.recently_redirected.insert(slot),
                OwnershipSource::Map if state.recently_redirected.contains(&slot) => continue,
                OwnershipSource::Map => {}
            }
            let old = state.table.owner(slot).cloned();
            if old.as_ref().is_some_and(|old| Arc::ptr_eq(old, &member)) {
                continue;
            }
            if !member.node.is_ready() {
                member.on_slot_gained();
            }
            state.table.assign(slot, member);
            moved.insert(slot);
            let may_have_requests = |old: &Arc<Primary>| old.is_used() && old.node.may_have_requests();
            let Some(old) = old.filter(may_have_requests) else { continue };
            match left.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &old)) {
                Some((_, slots)) => _ = slots.insert(slot),
                None => left.push((old, HashSet::from([slot]))),
            }
        }
        for (old, slots) in left {
            for slot in &slots {
                *state.migrating.entry(*slot).or_default() += 1;
            }
            // Behind all requests that are queued for it.
            let barrier = MigrationBarrier { cluster: Weak::clone(&self.me), slots };
            self.outgoing.push(QueuedSend::Behind(old, barrier));
        }
        moved
    }

    /// Rechecks holds, waiters, and pending cleanup in some slots.
    pub(super) fn recheck(&self, moved: bool, concerns: impl Fn(Slot) -> bool) {
        self.engine.on_reconnect(moved, |key| concerns(Slot::of(key)));
    }

    /// Rechecks the slots that have moved if their new primary is ready. Otherwise they are
    /// rechecked when it connects.
    pub(super) fn recheck_moved(&self, moved: &HashSet<Slot>) {
        if moved.is_empty() {
            return;
        }
        self.recheck(true, |slot| {
            let owner = moved.contains(&slot).then(|| lock(&self.state).table.owner(slot).cloned()).flatten();
            owner.is_some_and(|owner| {
                let can_be_asked = owner.node.is_ready();
                if !can_be_asked {
                    owner.on_slot_gained(); // it may have been ready before
                    self.open(&owner);
                }
                can_be_asked
            })
        });
    }
}

/// A barrier behind all requests to the old primary of some slots, over each of its connections. It
/// is dropped when that primary has replied to all of them, or its connections are closed.
///
/// A slot that moves again has a barrier behind each of its old primaries. The deferred requests
/// for its keys are sent when the last one is dropped.
pub(super) struct MigrationBarrier {
    cluster: Weak<Cluster>,
    pub(super) slots: HashSet<Slot>,
}

impl Drop for MigrationBarrier {
    fn drop(&mut self) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.route(|state| {
                state.migrating.retain(|slot, barriers| {
                    *barriers -= usize::from(self.slots.contains(slot));
                    *barriers > 0
                });
                std::mem::take(&mut state.deferred)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::backend::Request;
    use crate::backend::redis::node::pipeline::RouteHistory;
    use crate::backend::redis::node::test_node::acquire;
    use crate::backend::redis::reply_sink::ReplySink as _;
    use crate::backend::redis::tests::resp::primary;
    use crate::backend::redis::tests::scripted_server::{LIMIT, ScriptedServer, patient};
    use crate::backend::redis::topology::cluster::MAX_PRIMARIES;
    use crate::backend::redis::topology::cluster::primary::PrimaryReplySink;
    use crate::backend::redis::topology::cluster::redirects::Redirect;
    use crate::backend::redis::topology::cluster::tests::{
        Primaries, assign, at, cluster, cluster_with, connected_member, member, recorded, until, waiting_keys,
    };
    use crate::protocol::command::Command;
    use tokio::task::JoinSet;

    #[tokio::test]
    async fn a_view_does_not_override_a_newer_redirect() {
        let cluster = cluster(&[]);
        let (slot, other) = (Slot::of("order:7"), Slot::of("order:8"));
        let assign = |slot, port, source| assign(&cluster, slot, &at("10.0.0.1", port), source);
        let owner = |slot| lock(&cluster.state).table.owner(slot).map(|member| member.address.port);
        assign(slot, 1, OwnershipSource::Map);
        assign(other, 1, OwnershipSource::Map);

        cluster.start_refresh();
        assert_eq!(assign(slot, 2, OwnershipSource::Redirect), 1);
        assert_eq!((assign(slot, 3, OwnershipSource::Map), assign(other, 3, OwnershipSource::Map)), (0, 1));
        assert_eq!((owner(slot), owner(other)), (Some(2), Some(3)));

        cluster.start_refresh();
        assign(slot, 3, OwnershipSource::Map);
        assert_eq!(owner(slot), Some(3), "a newer view is adopted");
    }

    #[tokio::test]
    async fn a_redirect_beyond_the_bound_of_primaries_is_not_followed() {
        let cluster = cluster(&[]);
        let address = |number: usize| at("10.0.0.1", u16::try_from(number).expect("it is a port"));
        let member_at = |number| cluster.member_at(&mut lock(&cluster.state), &address(number));
        for number in 1..=MAX_PRIMARIES {
            assert!(member_at(number).is_some(), "{number}");
        }

        let assigned =
            |number| assign(&cluster, Slot::of("order:7"), &address(number), OwnershipSource::Redirect);

        assert_eq!((assigned(MAX_PRIMARIES + 1), assigned(MAX_PRIMARIES)), (0, 1));
        assert!(member_at(MAX_PRIMARIES + 1).is_none());
    }

    #[tokio::test]
    async fn requests_for_a_moving_slot_wait_for_its_old_primary() {
        let mut primaries = Primaries::start(2).await;
        let (cluster, slot) = (Arc::clone(&primaries.cluster), Slot::of("{7}"));
        assign(&cluster, slot, &primaries.addresses[0], OwnershipSource::Map);
        primaries.servers[0].hold();
        cluster.take(vec![acquire("{7}a")]);
        assert_eq!(primaries.asked().await, "{7}a");

        assign(&cluster, slot, &primaries.addresses[1], OwnershipSource::Redirect);
        cluster.take(vec![acquire("{7}b")]);
        tokio::task::yield_now().await;
        assert_eq!(lock(&cluster.state).deferred.len(), 1);
        primaries.running.abort_all();
        while primaries.running.join_next().await.is_some() {}

        let state = lock(&cluster.state);
        assert!(state.migrating.is_empty() && state.deferred.is_empty());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn requests_keep_their_order_while_their_slot_moves() {
        // A wrong order shows in about one move of seven.
        const MOVES: usize = 50;
        let mut primaries = Primaries::start(2).await;
        let (cluster, slot) = (Arc::clone(&primaries.cluster), Slot::of("{7}"));
        assign(&cluster, slot, &primaries.addresses[0], OwnershipSource::Map);
        let is_moving = || !lock(&cluster.state).migrating.is_empty();

        let (sent, has_moved) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for thread in ["a", "b", "c"] {
                let (cluster, sent, has_moved) = (&cluster, &sent, &has_moved);
                scope.spawn(move || {
                    for number in (0..).take_while(|_| !has_moved.load(Ordering::Relaxed)) {
                        cluster.take(vec![acquire(&format!("{{7}}{thread}{number}"))]);
                        sent.fetch_add(1, Ordering::Relaxed);
                        std::thread::yield_now();
                    }
                });
            }
            for number in 1..=MOVES {
                let before = sent.load(Ordering::Relaxed);
                assign(&cluster, slot, &primaries.addresses[number % 2], OwnershipSource::Redirect);
                while is_moving() || sent.load(Ordering::Relaxed) == before {
                    std::thread::yield_now();
                }
            }
            has_moved.store(true, Ordering::Relaxed);
        });

        let mut next = HashMap::new();
        for _ in 0..sent.into_inner() {
            let asked = primaries.asked().await;
            let (thread, number) = asked.trim_start_matches("{7}").split_at(1);
            let expected = next.entry(thread.to_owned()).or_insert(0);
            assert_eq!(number.parse(), Ok(*expected), "{thread}");
            *expected += 1;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn redirected_requests_keep_their_order() {
        let mut primaries = Primaries::start(2).await;
        let (cluster, old, new) =
            (Arc::clone(&primaries.cluster), &primaries.addresses[0], &primaries.addresses[1]);
        assign(&cluster, Slot::of("{7}"), old, OwnershipSource::Map);
        let moved = |key: &str| (acquire(key), Redirect::Moved(Slot::of(key), new.clone()));
        let asks = |key: &str| (acquire(key), Redirect::Ask(new.clone()));

        // One slot has moved, and another moves between the second and the third request.
        cluster.follow(
            old,
            vec![moved("{8}first"), asks("{7}second"), moved("{7}third")],
            RouteHistory::default(),
        );

        for key in ["{8}first", "{7}second", "{7}third"] {
            assert_eq!(primaries.asked().await, key);
        }
    }

    #[tokio::test]
    async fn requests_do_not_overtake_a_parked_request() {
        let cluster = cluster(&[]);
        let (old, new) = (at("10.0.0.1", 1), at("10.0.0.2", 2));
        let later = |key: &str| (acquire(key), Redirect::TryAgain);
        let moved = |key: &str| (acquire(key), Redirect::Moved(Slot::of(key), new.clone()));

        let sent = vec![later("{7}a"), moved("{7}a"), moved("{7}b")];
        let order: Vec<_> = sent.iter().map(|(request, _)| request.token).collect();
        cluster.follow(&old, sent, RouteHistory::default());

        // There is no connection to the new primary yet.
        let parked: Vec<_> =
            lock(&cluster.state).parked.iter().map(|redirected| redirected.request.token).collect();
        assert_eq!(parked, order);
    }

    #[tokio::test]
    async fn requests_that_wait_for_the_old_primary_move_first() {
        let cluster = cluster(&[]);
        let (old, new) = (at("10.0.0.1", 1), at("10.0.0.2", 2));
        for key in ["{7}", "{8}"] {
            assign(&cluster, Slot::of(key), &old, OwnershipSource::Map);
        }
        cluster.take(vec![acquire("{7}a"), acquire("{8}b")]);
        lock(&cluster.state).deferred.push(acquire("{7}later"));

        assign(&cluster, Slot::of("{7}"), &new, OwnershipSource::Redirect);

        assert!(lock(&cluster.state).deferred.is_empty(), "no reply of the old primary is outstanding");
        assert_eq!(waiting_keys(&cluster, &new), ["{7}a", "{7}later"]);
        assert_eq!(waiting_keys(&cluster, &old), ["{8}b"]);
    }

    /// Returns a request that replicas must acknowledge.
    fn renewal(key: &str, lease: u64) -> Request {
        let lease = Duration::from_millis(lease);
        Request { command: Command::Renew { lease }, ..acquire(key) }
    }

    /// The renewal would extend the time to live that `SetTtl` shortens.
    #[tokio::test]
    async fn requests_wait_for_acknowledged_ones_at_the_old_primary() {
        let (slot, new) = (Slot::of("{7}"), ScriptedServer::start(primary));
        let moved = format!("-MOVED {} {}\r\n", slot.index(), new.address());
        let (reply, may_reply) = std::sync::mpsc::channel::<()>();
        let may_reply = std::sync::Mutex::new(may_reply);
        let old = ScriptedServer::start(move |command| {
            if !command.starts_with("EVALSHA ") {
                return primary(command);
            }
            let _ = lock(&may_reply).recv_timeout(LIMIT);
            moved.clone()
        });
        let mut settings = patient();
        settings.rules.replica_acks = 1;
        let (cluster, mut running) = (cluster_with(&settings, &[]), JoinSet::new());
        for server in [&old, &new] {
            connected_member(&cluster, &server.address(), &mut running).await;
        }
        assign(&cluster, slot, &old.address(), OwnershipSource::Map);
        cluster.take(vec![renewal("{7}", 1_001)]);
        until(|| old.was_asked("EVALSHA ")).await;
        cluster.take(vec![renewal("{7}", 1_002)]); // it waits for the first one

        assign(&cluster, slot, &new.address(), OwnershipSource::Redirect);
        let set_ttl = Command::SetTtl { ttl: Duration::from_millis(1_003) };
        cluster.take(vec![Request { command: set_ttl, ..acquire("{7}") }]);
        assert_eq!(lock(&cluster.state).deferred.len(), 2);
        reply.send(()).expect("the server runs");
        until(|| new.count("EVALSHA ") == 3).await;

        let received = new.received().into_iter().filter(|(command, _)| command.starts_with("EVALSHA "));
        let order = received.map(|(command, _)| {
            let is_part = |part: &&str| command.split(' ').any(|word| word == *part);
            ["1001", "1002", "1003"].into_iter().find(is_part)
        });
        assert_eq!(order.collect::<Vec<_>>(), [Some("1001"), Some("1002"), Some("1003")]);
        assert_eq!(old.count("EVALSHA "), 1, "the second one was not written there");
    }

    #[tokio::test]
    async fn each_migration_ends_with_its_own_requests() {
        let mut primaries = Primaries::start(3).await;
        let (cluster, to) = (Arc::clone(&primaries.cluster), &primaries.addresses[2].clone());
        let (busy, other) = (Slot::of("{7}"), Slot::of("{8}"));
        assign(&cluster, busy, &primaries.addresses[0], OwnershipSource::Map);
        assign(&cluster, other, &primaries.addresses[1], OwnershipSource::Map);
        primaries.servers[0].hold();
        cluster.take(vec![acquire("{7}a")]);
        assert_eq!(primaries.asked().await, "{7}a");

        assign(&cluster, busy, to, OwnershipSource::Redirect);
        assign(&cluster, other, to, OwnershipSource::Redirect); // nothing is in flight there

        let migrating: Vec<_> = lock(&cluster.state).migrating.keys().copied().collect();
        assert_eq!(migrating, [busy]);
    }

    #[tokio::test]
    async fn a_slot_that_moves_again_waits_for_each_old_primary() {
        let mut primaries = Primaries::start(3).await;
        let (cluster, slot) = (Arc::clone(&primaries.cluster), Slot::of("{7}"));
        let [first, second, third] = [0, 1, 2].map(|number: usize| primaries.addresses[number].clone());
        assign(&cluster, slot, &first, OwnershipSource::Map);
        primaries.servers[0].hold();
        cluster.take(vec![acquire("{7}old")]);
        assert_eq!(primaries.asked().await, "{7}old");
        assign(&cluster, slot, &second, OwnershipSource::Redirect);
        cluster.take(vec![acquire("{7}new")]);

        assign(&cluster, slot, &third, OwnershipSource::Redirect); // nothing is in flight at the second
        let redirected = vec![(acquire("{7}old"), Redirect::Moved(slot, third))];
        cluster.follow(&first, redirected, RouteHistory::default());

        assert_eq!(primaries.asked().await, "{7}old", "it is older");
        assert_eq!(lock(&cluster.state).deferred.len(), 1);
        primaries.running.abort_all();
        while primaries.running.join_next().await.is_some() {}
        let state = lock(&cluster.state);
        assert!(state.migrating.is_empty() && state.deferred.is_empty());
    }

    #[tokio::test]
    async fn a_primary_that_gained_a_slot_while_away_has_moved() {
        let mut primaries = Primaries::start(1).await;
        let (cluster, away) = (Arc::clone(&primaries.cluster), at("10.0.0.1", 1));
        let events = recorded(&cluster, &["{7}a", "{8}b"]);
        member(&cluster, &away);
        let reconnect = |address: &Address| {
            let sink = PrimaryReplySink { cluster: Arc::downgrade(&cluster), address: address.clone() };
            sink.connected(false);
            events.take().pop().unwrap_or_default()
        };
        let ready = primaries.addresses[0].clone();
        assert_eq!(reconnect(&away), "reconnect moved=true []", "it is new");
        for address in [&away, &ready] {
            reconnect(address);
            assert_eq!(reconnect(address), "reconnect moved=false []");
        }

        assign(&cluster, Slot::of("{7}"), &away, OwnershipSource::Map);
        assign(&cluster, Slot::of("{8}"), &ready, OwnershipSource::Map);

        assert_eq!(reconnect(&away), r#"reconnect moved=true ["{7}a"]"#);
        assert_eq!(reconnect(&ready), r#"reconnect moved=false ["{8}b"]"#, "it is rechecked when it moves");
        primaries.running.shutdown().await;
    }

    #[tokio::test]
    async fn moved_slots_are_rechecked_once_their_primary_is_connected() {
        let primaries = Primaries::start(1).await;
        let (cluster, away) = (Arc::clone(&primaries.cluster), at("10.0.0.1", 1));
        let events = recorded(&cluster, &["{7}a", "{8}b", "{9}c"]);
        let slots = ["{7}", "{8}"].map(Slot::of);
        assign(&cluster, slots[0], &primaries.addresses[0], OwnershipSource::Map);
        assign(&cluster, slots[1], &away, OwnershipSource::Map);
        events.take();

        cluster.recheck_moved(&HashSet::new());
        assert!(events.take().is_empty());
        cluster.recheck_moved(&HashSet::from(slots));

        assert_eq!(events.take(), [r#"reconnect moved=true ["{7}a"]"#]);
        assert!(member(&cluster, &away).is_used(), "it is connected to");
    }
}
