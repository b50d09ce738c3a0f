//! Slots whose master is another one now.
//!
//! What comes in for them waits until the old one has answered all that it was sent, since it sends that on: requests on one key keep
//! their order. And what is held and waited for in them is looked at again, since the new one may not have all that the old one had.
//!
//! Not here: how a move is found out (`redirects`, `watching`).

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use crate::backend::redis::servers::address::Address;
use crate::backend::redis::servers::cluster::Cluster;
use crate::backend::redis::servers::cluster::members::Member;
use crate::backend::redis::servers::cluster::slots::Slot;
use crate::sync::lock;

/// Who says that a slot has another master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A server that was sent a request, just now.
    Redirect,
    /// A map, as it was when it was asked for.
    Map,
}

impl Cluster {
    /// Notes who serves slots now, and returns those for which it was somebody else. What comes in for them waits until the old one
    /// has answered everything.
    ///
    /// A map does not take back what a server has said since it was asked for: the request that was sent on would go to the old master
    /// again, behind others of its key that are on their way there.
    pub(super) fn give(&self, owners: Vec<(Slot, Address)>, source: Source) -> HashSet<Slot> {
        let mut moved = HashSet::new();
        let mut left: Vec<(Arc<Member>, u64)> = Vec::new();
        for (slot, address) in owners {
            let Some(member) = self.member_at(&address) else { continue };
            let mut state = lock(&self.state);
            match source {
                Source::Redirect => _ = state.just_told.insert(slot),
                Source::Map if state.just_told.contains(&slot) => continue,
                Source::Map => {}
            }
            let old = state.table.owner(slot).cloned();
            if old.as_ref().is_some_and(|old| Arc::ptr_eq(old, &member)) {
                continue;
            }
            if !member.node.is_ready() {
                member.has_gained();
            }
            state.table.give(slot, member);
            moved.insert(slot);
            let Some(old) = old.filter(|old| old.node.is_ready()) else { continue };
            let known = left.iter().find(|(other, _)| Arc::ptr_eq(other, &old)).map(|(_, number)| *number);
            let number = known.unwrap_or(state.moves + 1);
            state.moves = state.moves.max(number);
            state.settling.insert(slot, number);
            if known.is_none() {
                left.push((old, number));
            }
        }
        for (old, number) in left {
            self.settle_after(number, async move {
                let _ = old.node.ask(redis::pipe().cmd("PING")).await;
            });
        }
        moved
    }

    /// Has what waits for a move sent once its old master has `answered`.
    fn settle_after(&self, number: u64, answered: impl Future<Output = ()> + Send + 'static) {
        let settles = Settles { cluster: Weak::clone(&self.me), number };
        self.shared().spawn(async move {
            let _settles = settles;
            answered.await;
        });
    }

    /// Has what is held and waited for, and what is to be undone, in some slots looked at again.
    pub(super) fn look_again(&self, moved: bool, concerns: impl Fn(Slot) -> bool) {
        self.engine.reconnected(moved, |key| concerns(Slot::of(key)));
    }

    /// Has requests that waited behind others sent, where these are out of the way.
    pub(super) fn take_held_back(&self) {
        let held_back = std::mem::take(&mut lock(&self.state).held_back);
        self.take(held_back);
    }

    /// Has what is held and waited for in slots that another serves now looked at again, where that one can be asked; else it is as soon
    /// as he can be.
    pub(super) fn look_again_at(&self, moved: &HashSet<Slot>) {
        if moved.is_empty() {
            return;
        }
        self.look_again(true, |slot| {
            let can_be_asked = |owner: &Arc<Member>| owner.node.is_ready();
            moved.contains(&slot) && lock(&self.state).table.owner(slot).is_some_and(can_be_asked)
        });
    }
}

/// However what waits for an answer ends. Where that is with its runtime, the connections end as well: there is nothing to wait for.
struct Settles {
    cluster: Weak<Cluster>,
    number: u64,
}

impl Drop for Settles {
    fn drop(&mut self) {
        if let Some(cluster) = self.cluster.upgrade() {
            lock(&cluster.state).settling.retain(|_, last| *last != self.number);
            cluster.take_held_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::answers::ToEngine;
    use crate::backend::redis::node::rig::acquire;
    use crate::backend::redis::shared::Shared;
    use crate::config::Settings;
    use crate::config::cluster::Seeds;
    use crate::config::url::Server;
    use crate::token::TokenSource;

    fn cluster(shared: Shared) -> Arc<Cluster> {
        let seeds = Seeds { servers: Vec::new(), access: Server::default() };
        let answers = ToEngine { shared: Arc::new(shared), engine: Weak::new() };
        let process = TokenSource::of_process(1).process();
        Cluster::new(seeds, &Settings::default(), answers, process).expect("no server is wrong")
    }

    #[test]
    fn a_map_does_not_take_back_what_a_server_said_since_it_was_asked_for() {
        let cluster = cluster(Shared::new(true));
        let (slot, other) = (Slot::of("order:7"), Slot::of("order:8"));
        let at = |port| Address { host: "10.0.0.1".to_owned(), port };
        let all_at = |port| vec![(slot, at(port)), (other, at(port))];
        let owner = |slot| lock(&cluster.state).table.owner(slot).map(|member| member.address.port);
        cluster.give(all_at(1), Source::Map);

        cluster.begin_look();
        let moved = cluster.give(vec![(slot, at(2))], Source::Redirect);
        let by_the_older_map = cluster.give(all_at(3), Source::Map);
        assert_eq!((moved.len(), by_the_older_map.contains(&slot)), (1, false));
        assert_eq!((owner(slot), owner(other)), (Some(2), Some(3)));

        cluster.begin_look();
        cluster.give(all_at(3), Source::Map);
        assert_eq!(owner(slot), Some(3), "a map that was asked for later is believed");
    }

    #[test]
    fn a_slot_whose_move_is_waited_for_is_settled_though_the_runtime_ends() {
        for is_on_a_runtime in [true, false] {
            let shared = Shared::new(true);
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("one can be made");
            shared.moves_to(is_on_a_runtime.then(|| runtime.handle().clone()));
            let cluster = cluster(shared);
            let request = acquire("order:7");
            lock(&cluster.state).settling.insert(Slot::of(&request.key), 1);
            cluster.take(vec![request]);
            assert_eq!(lock(&cluster.state).held_back.len(), 1);

            cluster.settle_after(1, std::future::pending());
            drop(runtime);

            let state = lock(&cluster.state);
            assert!(state.settling.is_empty() && state.held_back.is_empty(), "{is_on_a_runtime}");
        }
    }
}
