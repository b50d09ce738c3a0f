//! Who serves which slots, as the servers of a cluster say, and what of it to believe.
//!
//! Topology learn of a change one after the other, and one that was cut off not at all: what more than half of those that answer agree
//! on is believed.
//!
//! Not here: who is asked, and when (`watching`).

use redis::{Pipeline, Value};

use crate::backend::redis::encoding::codec::{self, Redacted};
use crate::backend::redis::node::connect::ConnectTarget;
use crate::backend::redis::topology::address::Address;
use crate::backend::redis::topology::cluster::MOST_MASTERS;
use crate::backend::redis::topology::cluster::slot_map::Slot;
use crate::protocol::command::{Failure, FailureKind};

/// The cluster, as one of its servers sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClusterView {
    /// Whether the server takes requests: it does not while it misses too many others.
    pub(super) is_up: bool,
    ranges: Vec<SlotRange>,
    pub(super) replicas: Vec<Address>,
}

/// Slots in a row that one master serves.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SlotRange {
    first: Slot,
    last: Slot,
    master: Address,
}

/// Returns the commands that ask a server for its view.
pub(super) fn question() -> Pipeline {
    let mut pipeline = redis::pipe();
    pipeline.cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
    pipeline
}

impl ClusterView {
    /// Reads the answers of the server that was `asked` the [`question`]; it stands for a host that has no name.
    ///
    /// # Errors
    ///
    /// Fails where the server is none of a cluster, or does not let us ask.
    pub(super) fn read(answers: &[Value], asked: &ConnectTarget) -> Result<Self, Failure> {
        let (server, here) = (&asked.shown, asked.address());
        let strange = || {
            Failure::new(FailureKind::Passing, format!("redis at {server} gave no map that a cluster gives"))
        };
        let refused = answers.iter().find_map(|answer| match answer {
            Value::ServerError(error) => Some(error),
            _ => None,
        });
        if let Some(error) = refused {
            let said = error.details().unwrap_or_default();
            let problem = if said.contains("cluster support disabled") || said.contains("unknown command") {
                "is none of a cluster: write `redis://host:port` for one server, or `redis+sentinel://host,host/name` for the \
                 master that sentinels name"
            } else if error.code() == "NOPERM" {
                "does not let this user ask who serves what: allow it `+cluster|info +cluster|slots +asking +role`"
            } else {
                return Err(asked.failure(error.clone().into()));
            };
            return Err(Failure::new(FailureKind::Lasting, format!("redis at {server} {problem}")));
        }
        let [info, Value::Array(entries)] = answers else { return Err(strange()) };
        let info = codec::text(info).ok_or_else(strange)?;
        let is_up = info.lines().any(|line| line.trim_end() == "cluster_state:ok");
        let (mut ranges, mut replicas) = (Vec::new(), Vec::new());
        for entry in entries {
            let Value::Array(entry) = entry else { return Err(strange()) };
            let [Value::Int(first), Value::Int(last), master, others @ ..] = entry.as_slice() else {
                return Err(strange());
            };
            let slots = Slot::numbered(*first).zip(Slot::numbered(*last));
            let ((first, last), master) = slots.zip(address(master, &here)).ok_or_else(strange)?;
            ranges.push(SlotRange { first, last, master });
            replicas.extend(others.iter().filter_map(|other| address(other, &here)));
        }
        ranges.sort_by_key(|range| range.first);
        replicas.sort_by(|a, b| (&a.host, a.port).cmp(&(&b.host, b.port)));
        replicas.dedup();
        let view = Self { is_up, ranges, replicas };
        let masters = view.masters().len();
        if masters > MOST_MASTERS {
            let problem =
                format!("names {masters} masters, of which a cluster may have {MOST_MASTERS} at most");
            return Err(Failure::new(FailureKind::Lasting, format!("redis at {server} {problem}")));
        }
        Ok(view)
    }

    /// Checks that locks can be had of every slot.
    ///
    /// # Errors
    ///
    /// Fails where the cluster is down, or nobody serves a slot.
    pub(super) fn check(&self, server: &Redacted) -> Result<(), Failure> {
        let uncovered = Slot::all().count() - self.owners().iter().flatten().count();
        let problem = if uncovered > 0 {
            format!(
                "nobody serves {uncovered} of its slots: give each to a master, by `CLUSTER ADDSLOTSRANGE` or \
                 `redis-cli --cluster fix`"
            )
        } else if !self.is_up {
            "it is down, since masters are missed: wait for the fail-over, or start them again".to_owned()
        } else {
            return Ok(());
        };
        let text = format!("the cluster of redis at {server} cannot be used: {problem}");
        Err(Failure::new(FailureKind::Passing, text))
    }

    /// Returns the masters that serve slots.
    pub(super) fn masters(&self) -> Vec<&Address> {
        let mut masters: Vec<_> = self.ranges.iter().map(|range| &range.master).collect();
        masters.sort_by(|a, b| (&a.host, a.port).cmp(&(&b.host, b.port)));
        masters.dedup();
        masters
    }

    /// Returns the masters, each with a key that begins with `stem` and that it serves.
    pub(super) fn keys(&self, stem: &str) -> Vec<(Address, String)> {
        let owners = self.owners();
        let serves = |master: &Address, key: &str| {
            owners.get(Slot::of(key).index()).is_some_and(|owner| *owner == Some(master))
        };
        let key = |master: &Address| {
            // Every slot has a key among so many, nearly always.
            let keys = (0..Slot::all().count() * 8).map(|number| format!("{stem}:{number}"));
            Some((master.clone(), keys.into_iter().find(|key| serves(master, key))?))
        };
        self.masters().into_iter().filter_map(key).collect()
    }

    /// Returns who serves each slot, in the order of the slots.
    fn owners(&self) -> Vec<Option<&Address>> {
        let mut owners = vec![None; Slot::all().count()];
        for SlotRange { first, last, master } in &self.ranges {
            if let Some(slots) = owners.get_mut(first.index()..=last.index()) {
                slots.fill(Some(master));
            }
        }
        owners
    }
}

/// Returns whom more than half of all views name for a slot; `None` where there is nobody.
pub(super) fn agreed(views: &[ClusterView]) -> Vec<Option<&Address>> {
    let Some((first, others)) = views.split_first() else { return Vec::new() };
    let owners = first.owners();
    if others.iter().all(|other| other.ranges == first.ranges) {
        return owners;
    }
    let all: Vec<_> = views.iter().map(ClusterView::owners).collect();
    let majority = |index: usize| {
        let named: Vec<&Address> = all.iter().filter_map(|owners| *owners.get(index)?).collect();
        let votes = |name: &Address| named.iter().filter(|other| **other == name).count();
        named.iter().find(|name| votes(name) * 2 > views.len()).copied()
    };
    (0..owners.len()).map(majority).collect()
}

/// Reads `host, port, ..`; a host without a name is the one that was asked.
fn address(value: &Value, asked: &Address) -> Option<Address> {
    let Value::Array(words) = value else { return None };
    let [host, Value::Int(port), ..] = words.as_slice() else { return None };
    let host = codec::text(host).filter(|host| !matches!(*host, "" | "?")).unwrap_or(&asked.host);
    Address::parse(host, &port.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;
    use crate::config::url::Server;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn at(port: u16) -> Address {
        Address { host: "10.0.0.1".to_owned(), port }
    }

    fn asked() -> ConnectTarget {
        let server = Server { host: "10.0.0.1".to_owned(), port: 7000, ..Server::default() };
        ConnectTarget::new(server, &Settings::default()).expect("an address")
    }

    fn entry(first: i64, last: i64, servers: &[(&str, i64)]) -> Value {
        let servers = servers.iter().map(|(host, port)| {
            Value::Array(vec![bulk(host), Value::Int(*port), bulk("id"), Value::Array(Vec::new())])
        });
        Value::Array([Value::Int(first), Value::Int(last)].into_iter().chain(servers).collect())
    }

    fn read(state: &str, entries: Vec<Value>) -> Result<ClusterView, Failure> {
        let info = bulk(&format!("cluster_state:{state}\r\ncluster_slots_assigned:16384\r\n"));
        ClusterView::read(&[info, Value::Array(entries)], &asked())
    }

    fn whole(port: u16) -> ClusterView {
        read("ok", vec![entry(0, 16_383, &[("10.0.0.1", i64::from(port))])])
            .expect("a cluster gives such a map")
    }

    #[test]
    fn a_map_is_read_and_a_host_without_a_name_is_the_one_that_was_asked() {
        let view =
            read("ok", vec![entry(8_000, 16_383, &[("h2", 2)]), entry(0, 7_999, &[("", 1), ("h3", 3)])]);

        let view = view.expect("a cluster gives such a map");
        let owners = view.owners();
        assert_eq!(owners[7_999], Some(&at(1)));
        assert_eq!(owners[8_000].map(ToString::to_string).as_deref(), Some("h2:2"));
        assert_eq!(view.replicas, [Address { host: "h3".to_owned(), port: 3 }]);
        assert!(view.check(&Redacted::new("h")).is_ok());
    }

    #[test]
    fn what_keeps_a_cluster_from_giving_locks_is_told_with_its_cure() {
        let everything = || entry(0, 16_383, &[("h", 1)]);
        for (view, cure) in [
            (read("fail", vec![everything()]), "fail-over"),
            (read("fail", Vec::new()), "nobody serves 16384"),
            (read("ok", vec![entry(0, 16_382, &[("h", 1)])]), "ADDSLOTSRANGE"),
        ] {
            let failure = view.expect("a map").check(&Redacted::new("h")).expect_err("it cannot be used");
            assert!(failure.reason.contains(cure), "{}", failure.reason);
            assert_eq!(failure.kind, FailureKind::Passing);
        }
    }

    #[test]
    fn a_map_of_more_masters_than_a_cluster_may_have_is_refused() {
        let naming = |masters: i64| {
            let last = |master: i64| if master == masters { 16_383 } else { master - 1 };
            read(
                "ok",
                (1..=masters).map(|master| entry(master - 1, last(master), &[("h", master)])).collect(),
            )
        };

        let most = i64::try_from(MOST_MASTERS).expect("it is a number of servers");
        assert!(naming(most).is_ok_and(|view| view.masters().len() == MOST_MASTERS));
        for beyond in [most + 1, 16_384] {
            let failure = naming(beyond).expect_err("there are too many");
            assert_eq!(failure.kind, FailureKind::Lasting);
            assert!(failure.reason.contains(&format!("names {beyond} masters")), "{}", failure.reason);
        }
    }

    #[test]
    fn answers_that_are_no_map_are_refused() {
        for entries in [
            vec![Value::Int(1)],
            vec![Value::Array(vec![Value::Int(0), Value::Int(1)])],
            vec![entry(0, 16_384, &[("h", 1)])],
            vec![entry(-1, 5, &[("h", 1)])],
            vec![entry(0, 5, &[("h", 70_000)])],
            vec![entry(0, 5, &[("h", 0)])],
        ] {
            assert!(read("ok", entries.clone()).is_err(), "{entries:?}");
        }
        assert!(ClusterView::read(&[], &asked()).is_err());
        let upside_down = read("ok", vec![entry(9, 5, &[("h", 1)])]).expect("two slots and a server");
        assert!(upside_down.check(&Redacted::new("h")).is_err());
    }

    #[test]
    fn what_more_than_half_agree_on_is_believed() {
        let agreed_by = |views: &[ClusterView]| agreed(views).first().copied().flatten().cloned();

        assert_eq!(agreed_by(&[whole(1)]), Some(at(1)));
        assert_eq!(agreed_by(&[whole(1), whole(2)]), None);
        assert_eq!(agreed_by(&[whole(1), whole(2), whole(2)]), Some(at(2)));
        assert_eq!(agreed_by(&[whole(1), whole(2), whole(3)]), None);
        assert_eq!(agreed_by(&[]), None);
    }
}
