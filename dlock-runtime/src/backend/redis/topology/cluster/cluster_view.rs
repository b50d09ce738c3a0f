//! The slots of a cluster as its servers report them, and what a majority agrees on.
//!
//! Servers learn of a change one after another, and a partitioned server not at all. So a view is
//! adopted only if more than half of the servers that reply agree.

use std::collections::HashMap;

use redis::{Pipeline, Value};

use crate::backend::redis::topology::cluster::MAX_PRIMARIES;
use crate::backend::redis::topology::cluster::slot_map::Slot;
use crate::backend::redis::transport::address::Address;
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::backend::redis::transport::error_kind;
use crate::backend::redis::transport::redacted::Redacted;
use crate::config::deployment::Deployment;
use crate::protocol::command::{Failure, FailureKind};

/// The cluster as seen by one of its servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClusterView {
    /// Whether the server accepts requests. It does not while too many other servers are
    /// unreachable.
    pub(super) is_up: bool,
    ranges: Vec<SlotRange>,
    pub(super) replicas: Vec<Address>,
}

/// Consecutive slots of one primary.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SlotRange {
    first: Slot,
    last: Slot,
    primary: Address,
}

/// Returns the commands that query a server's view.
pub(super) fn question() -> Pipeline {
    let mut pipeline = redis::pipe();
    pipeline.cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
    pipeline
}

impl ClusterView {
    /// Parses the replies of the server `asked` to the [`question`]. Its host replaces an empty
    /// host name.
    ///
    /// # Errors
    ///
    /// Fails if the server is not part of a cluster or rejects the query.
    pub(super) fn read(replies: &[Value], asked: &ConnectTarget) -> Result<Self, Failure> {
        let (server, here) = (&asked.shown, asked.address());
        let unexpected =
            || Failure::new(FailureKind::Passing, format!("redis at {server} gave an unexpected reply"));
        let refused = replies.iter().find_map(|reply| match reply {
            Value::ServerError(error) => Some(error),
            _ => None,
        });
        if let Some(error) = refused {
            let text = error.details().unwrap_or_default();
            let problem = if text.contains("cluster support disabled") || text.contains("unknown command") {
                let [one, sentinels] =
                    [Deployment::One, Deployment::Sentinels].map(|other| server.advice().scheme_of(other));
                &format!(
                    "is not part of a cluster: write `{one}host:port` for one server, or `{sentinels}host,host/name` for the \
                     primary that sentinels report"
                )
            } else if error.code() == "NOPERM" {
                "does not allow this user to query the slots: allow it `+cluster|info +cluster|slots +asking +role`"
            } else {
                return Err(asked.failure(error.clone().into()));
            };
            return Err(Failure::new(FailureKind::Lasting, format!("redis at {server} {problem}")));
        }
        let [info, Value::Array(entries)] = replies else { return Err(unexpected()) };
        let info = error_kind::text(info).ok_or_else(unexpected)?;
        let is_up = info.lines().any(|line| line.trim_end() == "cluster_state:ok");
        let (mut ranges, mut replicas) = (Vec::new(), Vec::new());
        for entry in entries {
            let Value::Array(entry) = entry else { return Err(unexpected()) };
            let [Value::Int(first), Value::Int(last), primary, others @ ..] = entry.as_slice() else {
                return Err(unexpected());
            };
            let slots = Slot::numbered(*first).zip(Slot::numbered(*last));
            let ((first, last), primary) = slots.zip(address(primary, &here)).ok_or_else(unexpected)?;
            ranges.push(SlotRange { first, last, primary });
            replicas.extend(others.iter().filter_map(|other| address(other, &here)));
        }
        ranges.sort_by_key(|range| range.first);
        replicas.sort_by(|a, b| (&a.host, a.port).cmp(&(&b.host, b.port)));
        replicas.dedup();
        let view = Self { is_up, ranges, replicas };
        let primaries = view.primaries().len();
        if primaries > MAX_PRIMARIES {
            let problem = format!("names {primaries} primaries; the limit is {MAX_PRIMARIES}");
            return Err(Failure::new(FailureKind::Lasting, format!("redis at {server} {problem}")));
        }
        Ok(view)
    }

    /// Checks that every slot can be used.
    ///
    /// # Errors
    ///
    /// Fails if the cluster is down or a slot has no primary.
    pub(super) fn check(&self, server: &Redacted) -> Result<(), Failure> {
        let uncovered = Slot::all().count() - self.owners().iter().flatten().count();
        let problem = if uncovered > 0 {
            format!(
                "no primary serves {uncovered} of its slots: assign each to a primary with `CLUSTER ADDSLOTSRANGE` or \
                 `redis-cli --cluster fix`"
            )
        } else if !self.is_up {
            "it is down because primaries are unreachable: wait for the failover, or restart them".to_owned()
        } else {
            return Ok(());
        };
        let text = format!("the cluster of redis at {server} cannot be used: {problem}");
        Err(Failure::new(FailureKind::Passing, text))
    }

    /// Returns the primaries that serve slots.
    pub(super) fn primaries(&self) -> Vec<&Address> {
        let mut primaries: Vec<_> = self.ranges.iter().map(|range| &range.primary).collect();
        primaries.sort_by(|a, b| (&a.host, a.port).cmp(&(&b.host, b.port)));
        primaries.dedup();
        primaries
    }

    /// Returns each primary with a key that starts with `stem` and is in one of its slots.
    pub(super) fn keys(&self, stem: &str) -> Vec<(Address, String)> {
        let (owners, primaries) = (self.owners(), self.primaries());
        let mut keys = HashMap::new();
        // Among so many keys, almost certainly every slot has one.
        for number in 0..Slot::all().count() * 8 {
            let key = format!("{stem}:{number}");
            if let Some(owner) = owners.get(Slot::of(&key).index()).copied().flatten() {
                keys.entry(owner).or_insert(key);
            }
            if keys.len() == primaries.len() {
                break;
            }
        }
        primaries.into_iter().filter_map(|primary| Some((primary.clone(), keys.remove(primary)?))).collect()
    }

    /// Returns the primary of each slot, in the order of the slots.
    fn owners(&self) -> Vec<Option<&Address>> {
        let mut owners = vec![None; Slot::all().count()];
        for SlotRange { first, last, primary } in &self.ranges {
            if let Some(slots) = owners.get_mut(first.index()..=last.index()) {
                slots.fill(Some(primary));
            }
        }
        owners
    }
}

/// Returns, for each slot, the primary that more than half of the views name.
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

/// Parses `host, port, ..`. An empty host is the host of the queried server.
fn address(value: &Value, asked: &Address) -> Option<Address> {
    let Value::Array(words) = value else { return None };
    let [host, Value::Int(port), ..] = words.as_slice() else { return None };
    let host = error_kind::text(host).filter(|host| !matches!(*host, "" | "?")).unwrap_or(&asked.host);
    Address::parse(host, &port.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::tests::resp;
    use crate::bounds::{assert_listed, written};
    use crate::config::Settings;
    use crate::config::node_spec::NodeSpec;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn at(port: u16) -> Address {
        Address { host: "10.0.0.1".to_owned(), port }
    }

    fn asked() -> ConnectTarget {
        let server = NodeSpec { host: "10.0.0.1".to_owned(), port: 7000, ..NodeSpec::default() };
        ConnectTarget::new(server, &Settings::default())
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
        read("ok", vec![entry(0, 16_383, &[("10.0.0.1", i64::from(port))])]).expect("the view is valid")
    }

    #[test]
    fn an_empty_host_is_the_queried_server() {
        let view =
            read("ok", vec![entry(8_000, 16_383, &[("h2", 2)]), entry(0, 7_999, &[("", 1), ("h3", 3)])]);

        let view = view.expect("the view is valid");
        let owners = view.owners();
        assert_eq!(owners[7_999], Some(&at(1)));
        assert_eq!(owners[8_000].map(ToString::to_string).as_deref(), Some("h2:2"));
        assert_eq!(view.replicas, [Address { host: "h3".to_owned(), port: 3 }]);
        assert!(view.check(&Redacted::new("h")).is_ok());
    }

    #[test]
    fn an_unusable_cluster_is_reported_with_a_remedy() {
        let everything = || entry(0, 16_383, &[("h", 1)]);
        for (view, remedy) in [
            (read("fail", vec![everything()]), "failover"),
            (read("fail", Vec::new()), "no primary serves 16384"),
            (read("ok", vec![entry(0, 16_382, &[("h", 1)])]), "ADDSLOTSRANGE"),
        ] {
            let failure = view.expect("a view").check(&Redacted::new("h")).expect_err("it cannot be used");
            assert!(failure.reason.contains(remedy), "{}", failure.reason);
            assert_eq!(failure.kind, FailureKind::Passing);
        }
    }

    #[test]
    fn a_view_with_too_many_primaries_is_rejected() {
        let naming = |primaries: i64| {
            let last = |primary: i64| if primary == primaries { 16_383 } else { primary - 1 };
            read(
                "ok",
                (1..=primaries).map(|primary| entry(primary - 1, last(primary), &[("h", primary)])).collect(),
            )
        };

        assert_listed("primaries of a cluster", &written(MAX_PRIMARIES));
        let most = i64::try_from(MAX_PRIMARIES).expect("it is a number of servers");
        assert!(naming(most).is_ok_and(|view| view.primaries().len() == MAX_PRIMARIES));
        for beyond in [most + 1, 16_384] {
            let failure = naming(beyond).expect_err("there are too many");
            assert_eq!(failure.kind, FailureKind::Lasting);
            assert!(failure.reason.contains(&format!("names {beyond} primaries")), "{}", failure.reason);
        }
    }

    #[test]
    fn each_primary_has_a_key_in_one_of_its_slots() {
        let most = i64::try_from(MAX_PRIMARIES).expect("it is a number of servers");
        // One slot each, except the last one.
        let mut entries: Vec<_> =
            (1..most).map(|primary| entry(primary, primary, &[("h", primary)])).collect();
        entries.push(entry(most, 16_383, &[("h", most)]));
        let view = read("ok", entries).expect("the view is valid");

        let keys = view.keys("dlock:##doctor");

        assert!(keys.len() > MAX_PRIMARIES - 5, "{} of {MAX_PRIMARIES}", keys.len());
        for (primary, key) in keys {
            let slot = Slot::of(&key).index();
            assert!(usize::from(primary.port) == slot.clamp(1, MAX_PRIMARIES), "{primary} {key} {slot}");
        }
    }

    #[test]
    fn malformed_views_are_rejected() {
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
        let reversed = read("ok", vec![entry(9, 5, &[("h", 1)])]).expect("two slots and a server");
        assert!(reversed.check(&Redacted::new("h")).is_err());
    }

    #[test]
    fn a_majority_of_views_decides() {
        let agreed_by = |views: &[ClusterView]| agreed(views).first().copied().flatten().cloned();

        assert_eq!(agreed_by(&[whole(1)]), Some(at(1)));
        assert_eq!(agreed_by(&[whole(1), whole(2)]), None);
        assert_eq!(agreed_by(&[whole(1), whole(2), whole(2)]), Some(at(2)));
        assert_eq!(agreed_by(&[whole(1), whole(2), whole(3)]), None);
        assert_eq!(agreed_by(&[]), None);
    }

    #[test]
    fn a_server_that_reports_no_slots_says_what_to_do() {
        for (line, kind, text) in [
            (
                "ERR This instance has cluster support disabled",
                FailureKind::Lasting,
                "is not part of a cluster",
            ),
            ("ERR unknown command 'CLUSTER'", FailureKind::Lasting, "is not part of a cluster"),
            ("NOPERM no", FailureKind::Lasting, "allow it `+cluster|info"),
            ("LOADING it", FailureKind::Passing, "LOADING it"),
        ] {
            let error = resp::error(line);

            let failure =
                ClusterView::read(&[bulk("cluster_state:ok"), error], &asked()).expect_err("an error");

            assert!(failure.kind == kind && failure.reason.contains(text), "{failure:?}");
        }
    }

    #[test]
    fn a_server_is_asked_for_its_state_and_its_slots() {
        let words =
            |command: &redis::Cmd| String::from_utf8_lossy(&command.get_packed_command()).into_owned();

        let asked: Vec<_> = question().cmd_iter().map(words).collect();

        assert!(asked.len() == 2 && asked[0].contains("INFO") && asked[1].contains("SLOTS"), "{asked:?}");
    }
}
