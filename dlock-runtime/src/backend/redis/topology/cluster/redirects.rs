//! Requests that a server did not run because another server owns their slot.
//!
//! ```text
//!  MOVED        the slot is assigned to the other server, the request follows, and the slot map is refreshed
//!  ASK          the request is sent behind an ASKING, in one pipeline; the slot stays where it is
//!  TRYAGAIN     the request is sent again after 10 ms
//!  CLUSTERDOWN  the request is refused, and the slot map is refreshed until the cluster is up
//! ```
//!
//! A redirected request did not run, so no request runs twice. Each is answered within one response
//! timeout, unless it waits for a connection and its slot moves again.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::backend::Request;
use crate::backend::redis::node::pipeline::RouteHistory;
use crate::backend::redis::topology::cluster::primary::Primary;
use crate::backend::redis::topology::cluster::slot_map::Slot;
use crate::backend::redis::topology::cluster::slot_migration::OwnershipSource;
use crate::backend::redis::topology::cluster::{Cluster, ClusterState, RoutingDecision};
use crate::backend::redis::transport::address::Address;
use crate::clock::boot_time;
use crate::key::Name;
use crate::protocol::command::FailureKind;

/// Where a request belongs, according to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend::redis) enum Redirect {
    /// At the server that owns the slot.
    Moved(Slot, Address),
    /// At the server that the slot is migrating to.
    Ask(Address),
    /// At two servers: some of its keys have migrated.
    TryAgain,
    /// Nowhere: the cluster is down.
    ClusterDown,
}

impl Redirect {
    /// Parses a reply of the server at `from`, whose host replaces an empty host name.
    pub(super) fn read(reply: &Value, from: &Address) -> Option<Self> {
        let Value::ServerError(error) = reply else { return None };
        let there = || {
            let (slot, place) = error.details()?.split_once(' ')?;
            let (host, port) = place.split_once(' ').map_or(place, |(place, _)| place).rsplit_once(':')?;
            let host = if matches!(host, "" | "?") { &from.host } else { host };
            Slot::numbered(slot.parse().ok()?).zip(Address::parse(host, port))
        };
        match error.code() {
            "MOVED" => there().map(|(slot, address)| Self::Moved(slot, address)),
            "ASK" => there().map(|(_, address)| Self::Ask(address)),
            "TRYAGAIN" => Some(Self::TryAgain),
            "CLUSTERDOWN" => Some(Self::ClusterDown),
            _ => None,
        }
    }

    fn reason(&self, server: &Address) -> String {
        let why = match self {
            Self::Moved(_, address) => format!("{address} serves its slot"),
            Self::Ask(address) => format!("its slot is migrating to {address}"),
            Self::TryAgain => "its slot is migrating to another server".to_owned(),
            Self::ClusterDown => "the cluster is down, or no primary serves its slot".to_owned(),
        };
        format!("redis at {server} did not run the request because {why}")
    }
}

/// A redirected request.
pub(super) struct RedirectedRequest {
    pub(super) request: Request,
    history: RouteHistory,
    /// The server that must receive it; `None`: the current owner of its slot.
    to: Option<Arc<Primary>>,
    why: Arc<str>,
}

impl Cluster {
    /// Takes over requests that the server at `from` redirected.
    pub(super) fn follow(&self, from: &Address, sent_away: Vec<(Request, Redirect)>, history: RouteHistory) {
        let (moved, is_down) = self.decide(|state, decided| {
            let onward = RouteHistory { hops: history.hops + 1, asking: false, ..history };
            let (mut owners, mut requests) = (Vec::new(), Vec::new());
            for (request, elsewhere) in sent_away {
                let why = elsewhere.reason(from);
                let is_late = elsewhere == Redirect::TryAgain;
                let (history, to) = match elsewhere {
                    Redirect::Moved(slot, address) => {
                        owners.push((slot, address));
                        (onward, None)
                    }
                    Redirect::Ask(address) => {
                        (RouteHistory { asking: true, ..onward }, self.member_at(state, &address))
                    }
                    Redirect::TryAgain => (RouteHistory { hops: 0, ..onward }, None),
                    Redirect::ClusterDown => {
                        state.is_down = true;
                        decided.refuse(request, FailureKind::Passing, &why);
                        continue;
                    }
                };
                requests.push((RedirectedRequest { request, history, to, why: why.into() }, is_late));
            }
            let moved = self.assign_slots(state, owners, OwnershipSource::Redirect);
            let mut before = Vec::new();
            for (redirected, is_late) in requests {
                if is_late {
                    // Keep the order: after the requests before it, and before those behind it.
                    self.dispatch(state, std::mem::take(&mut before), decided);
                    state.parked.push(redirected);
                    self.parked.notify_one();
                } else {
                    before.push(redirected);
                }
            }
            self.dispatch(state, before, decided);
            (moved, state.is_down)
        });
        if is_down || !moved.is_empty() {
            self.map_stale.notify_one();
        }
        self.recheck_moved(&moved);
    }

    /// Sends redirected requests. A request that cannot be sent yet is parked, and so are later
    /// ones for the same key.
    fn dispatch(
        &self,
        state: &mut ClusterState,
        requests: Vec<RedirectedRequest>,
        decided: &mut RoutingDecision,
    ) {
        let now = boot_time();
        let mut behind = state.parked_keys();
        for redirected in requests {
            let RedirectedRequest { request, history, to, why } = &redirected;
            let since = history.since.unwrap_or(now);
            if history.hops > MAX_HOPS || now.since(since) >= self.settings.rules.response_timeout {
                let why = Arc::clone(why);
                decided.refuse(redirected.request, FailureKind::Passing, &why);
                continue;
            }
            let member = to.as_ref().or_else(|| state.table.owner(Slot::of(&request.key)));
            let can_go = |member: &&Arc<Primary>| member.node.is_ready() && !behind.contains(&request.key);
            if let Some(member) = member.filter(can_go).cloned() {
                decided.send(&member, *history, redirected.request);
                continue;
            }
            if let Some(member) = member {
                self.open(member);
            }
            behind.insert(Name::clone(&request.key));
            state.parked.push(redirected);
            self.parked.notify_one();
        }
    }

    /// Sends parked requests again until they are accepted or time out; runs forever.
    pub(super) async fn send_parked(&self) {
        loop {
            // Before the first wait: a driver that panicked may have left some.
            self.decide(|state, decided| {
                let parked = std::mem::take(&mut state.parked);
                self.dispatch(state, parked, decided);
            });
            self.route(|state| std::mem::take(&mut state.deferred));
            self.parked.notified().await;
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }
}

/// How often a request may be redirected before it is refused. Two servers that name each other are
/// a loop.
const MAX_HOPS: u32 = 5;

/// How long a parked request waits before it is sent again.
const RETRY_DELAY: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;

    use super::*;
    use crate::backend::redis::node::test_node::acquire;
    use crate::backend::redis::tests::is_notified;
    use crate::backend::redis::tests::resp::{self, primary};
    use crate::backend::redis::tests::scripted_server::ScriptedServer;
    use crate::backend::redis::topology::cluster::tests::{
        assign, at, cluster, connected_member, recorded, until,
    };
    use crate::protocol::command::Reply;
    use crate::protocol::deadline::BootInstant;
    use crate::sync::lock;

    fn read(line: &str) -> Option<Redirect> {
        let reply = resp::error(line);
        Redirect::read(&reply, &at("10.0.0.1", 7000))
    }

    #[test]
    fn redirects_are_parsed() {
        let moved = |host, port| Slot::numbered(3999).map(|slot| Redirect::Moved(slot, at(host, port)));

        assert_eq!(read("MOVED 3999 127.0.0.1:6381"), moved("127.0.0.1", 6381));
        assert_eq!(read("MOVED 3999 ::1:6381"), moved("::1", 6381));
        assert_eq!(read("MOVED 3999 :6381"), moved("10.0.0.1", 6381), "an empty host is the queried server");
        assert_eq!(read("ASK 3999 redis-2.example:6381"), Some(Redirect::Ask(at("redis-2.example", 6381))));
        assert_eq!(read("TRYAGAIN Multiple keys request during rehashing of slot"), Some(Redirect::TryAgain));
        assert_eq!(read("CLUSTERDOWN The cluster is down"), Some(Redirect::ClusterDown));
    }

    #[test]
    fn an_error_without_a_valid_server_is_no_redirect() {
        for line in [
            "MOVED",
            "MOVED 3999",
            "MOVED 16384 h:1",
            "MOVED -1 h:1",
            "MOVED 1 h",
            "MOVED 1 h:0",
            "MOVED 1 h:70000",
            "ASK x h:1",
            "ERR MOVED 1 h:1",
            "WRONGTYPE no",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }

    #[test]
    fn a_redirect_says_where_the_request_belongs() {
        let slot = Slot::of("{7}");
        let reason = |redirect: Redirect| redirect.reason(&at("h", 1));

        for (redirect, why) in [
            (Redirect::Moved(slot, at("h", 2)), "h:2 serves its slot"),
            (Redirect::Ask(at("h", 2)), "its slot is migrating to h:2"),
            (Redirect::TryAgain, "its slot is migrating to another server"),
            (Redirect::ClusterDown, "the cluster is down, or no primary serves its slot"),
        ] {
            assert_eq!(reason(redirect), format!("redis at h:1 did not run the request because {why}"));
        }
    }

    #[tokio::test]
    async fn a_request_is_refused_after_too_many_redirects_or_too_long() {
        let history = RouteHistory::default();
        let since = |since| RouteHistory { since: Some(since), ..history };
        let hops = |hops| RouteHistory { hops, ..history };
        let moved = Redirect::Moved(Slot::of("{7}"), at("10.0.0.2", 2));

        for (redirect, history, is_refused) in [
            (&moved, hops(MAX_HOPS), true),
            (&moved, hops(MAX_HOPS - 1), false),
            (&Redirect::Ask(at("10.0.0.2", 2)), hops(MAX_HOPS), true),
            (&Redirect::TryAgain, hops(MAX_HOPS), false),
            (&moved, since(BootInstant::START), true),
            (&moved, since(boot_time()), false),
            (&Redirect::TryAgain, since(BootInstant::START), true),
            (&Redirect::ClusterDown, history, true),
        ] {
            let cluster = cluster(&[]);
            let events = recorded(&cluster, &[]);
            let from = at("10.0.0.1", 1);

            cluster.follow(&from, vec![(acquire("{7}a"), redirect.clone())], history);
            cluster.decide(|state, decided| {
                let parked = std::mem::take(&mut state.parked);
                cluster.dispatch(state, parked, decided);
            });

            let refused = events.refused();
            assert_eq!(!refused.is_empty(), is_refused, "{redirect:?}, {history:?}");
            assert_eq!(lock(&cluster.state).parked.is_empty(), is_refused, "{redirect:?}, {history:?}");
            for (_, reason) in refused {
                assert_eq!(reason, redirect.reason(&from));
            }
        }
    }

    #[tokio::test]
    async fn the_map_is_refreshed_if_it_is_wrong() {
        let (cluster, slot) = (cluster(&[]), Slot::of("{7}"));
        let (from, to) = (at("10.0.0.1", 1), at("10.0.0.2", 2));
        let is_refreshed = |redirect: &Redirect| {
            cluster.follow(&from, vec![(acquire("{7}a"), redirect.clone())], RouteHistory::default());
            is_notified(&cluster.map_stale)
        };
        let (moved, asks) = (Redirect::Moved(slot, to.clone()), Redirect::Ask(to));

        assert!(!is_refreshed(&asks) && !is_refreshed(&Redirect::TryAgain));
        assert!(is_refreshed(&moved) && !is_refreshed(&moved), "it is known now");
        assert!(is_refreshed(&Redirect::ClusterDown) && is_refreshed(&asks), "it is down");
    }

    #[tokio::test]
    async fn only_a_request_for_a_migrating_slot_is_sent_with_asking() {
        let server = ScriptedServer::start(primary);
        let (cluster, mut running) = (cluster(&[]), JoinSet::new());
        let to = server.address();
        connected_member(&cluster, &to, &mut running).await;
        assign(&cluster, Slot::of("{7}"), &to, OwnershipSource::Map);
        let from = at("10.0.0.1", 1);
        let asked = |key: &str| server.was_asked(&format!("SET {key} "));
        let count = || server.count("ASKING");

        cluster.follow(&from, vec![(acquire("{7}a"), Redirect::Ask(to.clone()))], RouteHistory::default());
        until(|| asked("{7}a")).await;
        assert_eq!(count(), 1);

        let asking = RouteHistory { asking: true, ..RouteHistory::default() };
        let moved = Redirect::Moved(Slot::of("{7}"), to);
        cluster.follow(&from, vec![(acquire("{7}b"), moved)], asking);
        until(|| asked("{7}b")).await;

        assert_eq!(count(), 1);
    }

    #[tokio::test]
    async fn a_request_follows_its_slot_to_the_named_server() {
        let (new, slot) = (ScriptedServer::start(primary), Slot::of("{7}"));
        let redirect = format!("-MOVED {} {}\r\n", slot.index(), new.address());
        let old = ScriptedServer::start(move |command| match command.split(' ').next() {
            Some("SET") => redirect.clone(),
            _ => primary(command),
        });
        let (cluster, mut running) = (cluster(&[]), JoinSet::new());
        let events = recorded(&cluster, &[]);
        for server in [&old, &new] {
            connected_member(&cluster, &server.address(), &mut running).await;
        }
        assign(&cluster, slot, &old.address(), OwnershipSource::Map);

        cluster.take(vec![acquire("{7}a")]);

        until(|| !lock(&events.replies).is_empty()).await;
        let replied = lock(&events.replies).pop();
        assert!(matches!(&replied, Some((key, Reply::Owner)) if key == "{7}a"), "{replied:?}");
        assert!(old.was_asked("SET {7}a ") && new.was_asked("SET {7}a "));
        let owner = lock(&cluster.state).table.owner(slot).map(|owner| owner.address.clone());
        assert_eq!(owner, Some(new.address()));
    }
}
