//! A primary of a cluster, and the handling of its replies.
//!
//! ```text
//!  Unused --a request, or a used key moves here--> Opening --connected, or failed--> Open
//! ```
//!
//! A connection is made when a key of its slots is used. Requests wait for the first attempt to
//! connect in its node. Afterwards, an unreachable primary refuses requests at once.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use once_cell::sync::OnceCell;
use redis::Value;
use tokio::task::AbortHandle;

use crate::backend::Request;
use crate::backend::redis::node::Node;
use crate::backend::redis::node::grant_message::GrantMessage;
use crate::backend::redis::node::pipeline::RouteHistory;
use crate::backend::redis::reply_sink::{RedirectHandler, ReplySink};
use crate::backend::redis::topology::cluster::Cluster;
use crate::backend::redis::topology::cluster::redirects::Redirect;
use crate::backend::redis::topology::cluster::slot_map::Slot;
use crate::backend::redis::transport::address::Address;
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::key::Name;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;

/// A primary of a cluster.
pub(super) struct Primary {
    pub(super) address: Address,
    pub(super) route: Arc<ConnectTarget>,
    pub(super) node: Arc<Node>,
    /// The task that runs the node, once it is spawned.
    pub(super) running: OnceCell<AbortHandle>,
    /// Whether it was assigned slots since the last connect.
    gained: AtomicBool,
    needed: Mutex<Instant>,
    /// The state of the first attempt to connect.
    opening: AtomicU8,
}

/// No key of its slots has been used.
const UNUSED: u8 = 0;
/// The first attempt to connect has not ended.
const OPENING: u8 = 1;
/// The first attempt to connect has ended.
const OPEN: u8 = 2;

impl Primary {
    pub(super) fn new(address: Address, route: Arc<ConnectTarget>, node: Arc<Node>) -> Self {
        let (running, needed) = (OnceCell::new(), Mutex::new(Instant::now()));
        let (gained, opening) = (AtomicBool::new(true), AtomicU8::new(UNUSED));
        Self { address, route, node, running, gained, needed, opening }
    }

    /// Returns `true` if a key of its slots has been used, so a connection is needed.
    pub(super) fn is_used(&self) -> bool {
        self.opening.load(Ordering::Acquire) != UNUSED
    }

    /// Returns `true` if the first attempt to connect has ended.
    pub(super) fn is_open(&self) -> bool {
        self.opening.load(Ordering::Acquire) == OPEN
    }

    /// Starts the first attempt to connect. Returns `true` if it was unused before.
    pub(super) fn start_connecting(&self) -> bool {
        !self.is_used()
            && self.opening.compare_exchange(UNUSED, OPENING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Records that the first attempt to connect has ended, if it has begun.
    pub(super) fn finish_connecting(&self) {
        let _ = self.opening.compare_exchange(OPENING, OPEN, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Records that it was assigned slots while it is unreachable, and retries the connection.
    pub(super) fn on_slot_gained(&self) {
        self.gained.store(true, Ordering::Release);
        self.node.try_again();
    }

    /// Records that it is in use now.
    pub(super) fn mark_needed(&self) {
        *lock(&self.needed) = Instant::now();
    }

    /// Returns `true` if it has been unused for so long that all its requests are answered.
    pub(super) fn is_expired(&self) -> bool {
        lock(&self.needed).elapsed() > RETENTION
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        if let Some(running) = self.running.get() {
            running.abort();
        }
    }
}

/// Receives the replies of the server at one address.
pub(super) struct PrimaryReplySink {
    pub(super) cluster: Weak<Cluster>,
    pub(super) address: Address,
}

impl ReplySink for PrimaryReplySink {
    fn on_replies(&self, replies: Vec<(Request, Reply)>, sent: BootInstant, epoch: Option<u64>) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.engine.on_replies(replies, sent, epoch);
        }
    }

    /// Delivers a grant once. The servers of a cluster forward each message to all others, and the
    /// manager subscribes to every primary in use.
    ///
    /// Only the message from the primary of the key counts, or from any primary while that one has
    /// no subscription. It is no proof: the publishing server counts only its own subscribers.
    fn on_grant(&self, grant: GrantMessage) {
        let Some(cluster) = self.cluster.upgrade() else { return };
        let owner = lock(&cluster.state).table.owner(Slot::of(&grant.key)).cloned();
        let counts = owner.is_none_or(|owner| {
            owner.address == self.address || !owner.node.receives_messages_about(&grant.key)
        });
        if counts {
            cluster.engine.on_grant(grant);
        }
    }

    fn on_key_event(&self, key: Option<&Name>) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.engine.on_key_event(key);
        }
    }

    fn connected(&self, moved: bool) {
        let Some(cluster) = self.cluster.upgrade() else { return };
        let Some(member) = cluster.known(&self.address) else { return };
        member.finish_connecting();
        let moved = member.gained.swap(false, Ordering::AcqRel) || moved;
        cluster.recheck(moved, |slot| {
            lock(&cluster.state).table.owner(slot).is_some_and(|owner| Arc::ptr_eq(owner, &member))
        });
        cluster.parked.notify_one();
    }

    fn disconnected(&self) {
        if let Some(cluster) = self.cluster.upgrade() {
            if let Some(member) = cluster.known(&self.address) {
                member.finish_connecting();
            }
            cluster.map_stale.notify_one();
        }
    }

    fn redirects(&self) -> Option<&dyn RedirectHandler> {
        Some(self)
    }
}

impl RedirectHandler for PrimaryReplySink {
    fn read(&self, reply: &Value) -> Option<Redirect> {
        Redirect::read(reply, &self.address)
    }

    fn follow(&self, sent_away: Vec<(Request, Redirect)>, history: RouteHistory) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.follow(&self.address, sent_away, history);
        }
    }
}

/// How long a server without slots is kept. By then its requests are answered, and a slot that is
/// migrating to it has arrived.
const RETENTION: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::node::test_node::acquire;
    use crate::backend::redis::tests::is_notified;
    use crate::backend::redis::tests::resp::reports;
    use crate::backend::redis::tests::scripted_server::{ScriptedServer, patient};
    use crate::backend::redis::topology::cluster::slot_migration::OwnershipSource;
    use crate::backend::redis::topology::cluster::tests::{
        assign, at, cluster, cluster_with, member, recorded, until,
    };
    use crate::config::Settings;
    use crate::layout::Layout;
    use crate::protocol::foreign_clients::Grant;

    fn sink_of(cluster: &Arc<Cluster>, primary: &Primary) -> PrimaryReplySink {
        PrimaryReplySink { cluster: Arc::downgrade(cluster), address: primary.address.clone() }
    }

    /// Sets when a primary was last in use.
    fn last_needed(primary: &Primary, ago: Duration) {
        *lock(&primary.needed) = Instant::now().checked_sub(ago).expect("this machine is up longer");
    }

    #[tokio::test]
    async fn a_primary_opens_once() {
        let cluster = cluster(&[]);
        let primary = member(&cluster, &at("10.0.0.1", 1));
        primary.finish_connecting(); // of an earlier primary at this address
        assert!(!primary.is_used() && !primary.is_open());

        assert!(primary.start_connecting() && !primary.start_connecting());
        assert!(primary.is_used() && !primary.is_open());

        primary.finish_connecting();
        assert!(primary.is_used() && primary.is_open() && !primary.start_connecting());
    }

    #[tokio::test]
    async fn a_primary_without_slots_is_kept_for_ten_seconds() {
        let cluster = cluster(&[]);
        let primary = member(&cluster, &at("10.0.0.1", 1));
        assert!(!primary.is_expired());
        last_needed(&primary, RETENTION / 2);
        assert!(!primary.is_expired());
        last_needed(&primary, RETENTION + Duration::from_millis(1));
        assert!(primary.is_expired());

        primary.mark_needed();

        assert!(!primary.is_expired());
    }

    #[tokio::test]
    async fn requests_of_an_expired_primary_are_refused() {
        let (old, new) = (at("10.0.0.1", 1), at("10.0.0.2", 2));
        let seed = ScriptedServer::start(reports("ok", &[(0, 16_383, &[&new])]));
        let cluster = cluster(&[&seed]);
        let events = recorded(&cluster, &["{7}a"]);
        let (expired, kept) = (member(&cluster, &old), member(&cluster, &at("10.0.0.3", 3)));
        expired.node.take(vec![acquire("{7}a")], RouteHistory::default());
        last_needed(&expired, RETENTION * 2);

        cluster.find().await.expect("the view is complete");

        assert!(cluster.known(&old).is_none() && cluster.known(&kept.address).is_some());
        let owner = cluster.known(&new).expect("it serves the slots");
        assert!(owner.is_used() && !owner.is_expired());
        assert_eq!(events.refused().len(), 1);
        let latest = events.take().pop();
        assert_eq!(latest.as_deref(), Some("reconnect moved=true []"), "it is rechecked once connected");
    }

    #[tokio::test]
    async fn a_dropped_primary_ends_its_task() {
        let cluster = cluster(&[]);
        let primary = member(&cluster, &at("10.0.0.1", 1));
        let task = tokio::spawn(std::future::pending::<()>());
        let _ = primary.running.set(task.abort_handle());

        lock(&cluster.state).members.clear();
        drop(primary);

        assert!(task.await.is_err_and(|error| error.is_cancelled()));
    }

    #[tokio::test]
    async fn a_grant_counts_once_though_each_primary_forwards_it() {
        let cluster = cluster_with(&Settings { layout: Layout::Redisson, ..patient() }, &[]);
        let events = recorded(&cluster, &[]);
        let [owner, other] = [1, 2].map(|port| member(&cluster, &at("10.0.0.1", port)));
        assign(&cluster, Slot::of("{7}"), &owner.address, OwnershipSource::Map);
        let counts = |from: &Primary, key: &str| {
            let grant = GrantMessage { token: acquire(key).token, offer: Grant::NONE, key: key.into() };
            sink_of(&cluster, from).on_grant(grant);
            events.take().iter().any(|event| event.starts_with("grant "))
        };
        assert!(counts(&owner, "{7}") && counts(&other, "{7}"), "the owner has no subscription");

        owner.node.listening.store(true, Ordering::Release);

        assert!(counts(&owner, "{7}") && !counts(&other, "{7}"));
        assert!(counts(&other, "{8}"), "no primary serves it");
    }

    #[tokio::test]
    async fn a_change_of_a_key_is_passed_on() {
        let cluster = cluster(&[]);
        let events = recorded(&cluster, &[]);
        let sink = sink_of(&cluster, &member(&cluster, &at("10.0.0.1", 1)));

        sink.on_key_event(Some(&"k".into()));
        sink.on_key_event(None);

        assert_eq!(events.take(), ["invalidation k", "invalidation *"]);
    }

    #[tokio::test]
    async fn a_connection_rechecks_the_keys_of_its_primary() {
        let cluster = cluster(&[]);
        let events = recorded(&cluster, &["{7}a", "{8}b"]);
        let primary = member(&cluster, &at("10.0.0.1", 1));
        assign(&cluster, Slot::of("{7}"), &primary.address, OwnershipSource::Map);
        let sink = sink_of(&cluster, &primary);

        for (moved, expected) in [(false, true), (false, false), (true, true)] {
            sink.connected(moved);

            let expected = format!(r#"reconnect moved={expected} ["{{7}}a"]"#);
            assert_eq!(events.take().pop(), Some(expected), "{moved}");
            assert!(is_notified(&cluster.parked), "parked requests are sent");
        }
    }

    #[tokio::test]
    async fn requests_wait_for_the_end_of_the_first_attempt() {
        let cluster = cluster(&[]);
        let events = recorded(&cluster, &[]);
        let primary = member(&cluster, &at("127.0.0.1", 1)); // refuses connections
        assign(&cluster, Slot::of("{7}"), &primary.address, OwnershipSource::Map);
        cluster.take(vec![acquire("{7}a")]);
        assert!(primary.is_used() && !primary.is_open() && events.refused().is_empty());
        assert!(is_notified(&cluster.joined), "it is connected to");

        let connecting = tokio::spawn(Arc::clone(&primary.node).run(None));
        until(|| primary.is_open()).await;

        assert_eq!(events.refused().len(), 1);
        connecting.abort();
    }

    #[tokio::test]
    async fn a_connection_opens_its_primary() {
        let cluster = cluster(&[]);
        let primary = member(&cluster, &at("10.0.0.1", 1));

        primary.start_connecting();
        sink_of(&cluster, &primary).connected(false);

        assert!(primary.is_open());
    }

    #[tokio::test]
    async fn a_lost_primary_has_the_map_refreshed() {
        let cluster = cluster(&[]);
        let primary = member(&cluster, &at("10.0.0.1", 1));
        assert!(!is_notified(&cluster.map_stale));

        sink_of(&cluster, &primary).disconnected();

        assert!(is_notified(&cluster.map_stale));
    }
}
