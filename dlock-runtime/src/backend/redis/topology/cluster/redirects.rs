//! Requests that a server did not run, since they belong to another one: they go there, or wait for that to be settled.
//!
//! ```text
//!  MOVED        the slot is noted as the other's, the request goes there, and the map is looked at
//!  ASK          the request goes there behind an ASKING, in one pipeline; the slot stays where it is
//!  TRYAGAIN     the request waits a little and is sent again
//!  CLUSTERDOWN  the request is refused, and the map is looked at until the cluster is up
//! ```
//!
//! Each is a request that did not run, so that none runs twice; and each is answered in the time of one answer.
//!
//! Not here: who serves what by the map (`watching`), what else a move takes (`moving`), sending (`node`).

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::backend::Request;
use crate::backend::redis::node::pipeline::RouteHistory;
use crate::backend::redis::topology::address::Address;
use crate::backend::redis::topology::cluster::primary::Primary;
use crate::backend::redis::topology::cluster::slot_map::Slot;
use crate::backend::redis::topology::cluster::slot_migration::OwnershipSource;
use crate::backend::redis::topology::cluster::{Cluster, ClusterState, RoutingDecision};
use crate::clock::boot_time;
use crate::key::Name;
use crate::protocol::command::FailureKind;

/// Where a server says that a request belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend::redis) enum Redirect {
    /// To the server there, which serves the slot.
    Moved(Slot, Address),
    /// To the server there, where the slot is about to move.
    Ask(Address),
    /// To two servers: some of its keys have moved.
    Both,
    /// To nobody for now.
    Nobody,
}

impl Redirect {
    /// Reads an answer of the server at `from`, which stands for a host that has no name.
    pub(super) fn read(answer: &Value, from: &Address) -> Option<Self> {
        let Value::ServerError(error) = answer else { return None };
        let there = || {
            let (slot, place) = error.details()?.split_once(' ')?;
            let (host, port) = place.split_once(' ').map_or(place, |(place, _)| place).rsplit_once(':')?;
            let host = if matches!(host, "" | "?") { &from.host } else { host };
            Slot::numbered(slot.parse().ok()?).zip(Address::parse(host, port))
        };
        match error.code() {
            "MOVED" => there().map(|(slot, address)| Self::Moved(slot, address)),
            "ASK" => there().map(|(_, address)| Self::Ask(address)),
            "TRYAGAIN" => Some(Self::Both),
            "CLUSTERDOWN" => Some(Self::Nobody),
            _ => None,
        }
    }

    fn said_by(&self, server: &Address) -> String {
        let what = match self {
            Self::Moved(_, address) => format!("{address} serves its slot"),
            Self::Ask(address) => format!("its slot is on the way to {address}"),
            Self::Both => "its slot is on the way to another server".to_owned(),
            Self::Nobody => "the cluster is down, or nobody serves its slot".to_owned(),
        };
        format!("redis at {server} did not run the request and says that {what}")
    }
}

/// A request on its way to whom it belongs.
pub(super) struct RedirectedRequest {
    pub(super) request: Request,
    passage: RouteHistory,
    /// Who is to take it; whoever serves its slot where that is nobody.
    to: Option<Arc<Primary>>,
    why: Arc<str>,
}

impl Cluster {
    /// Takes over requests that the server at `from` did not run.
    pub(super) fn follow(&self, from: &Address, sent_away: Vec<(Request, Redirect)>, passage: RouteHistory) {
        let (moved, is_down) = self.decide(|state, decided| {
            let onward = RouteHistory { hops: passage.hops + 1, contender: false, ..passage };
            let (mut owners, mut errands) = (Vec::new(), Vec::new());
            for (request, elsewhere) in sent_away {
                let why = elsewhere.said_by(from);
                match elsewhere {
                    Redirect::Moved(slot, address) => {
                        owners.push((slot, address));
                        errands.push((
                            RedirectedRequest { request, passage: onward, to: None, why: why.into() },
                            false,
                        ));
                    }
                    Redirect::Ask(address) => {
                        let passage = RouteHistory { contender: true, ..onward };
                        let to = self.member_at(state, &address);
                        errands.push((RedirectedRequest { request, passage, to, why: why.into() }, false));
                    }
                    Redirect::Both => {
                        let passage = RouteHistory { hops: 0, ..onward };
                        errands
                            .push((RedirectedRequest { request, passage, to: None, why: why.into() }, true));
                    }
                    Redirect::Nobody => {
                        state.is_down = true;
                        decided.refuse(request, FailureKind::Passing, &why);
                    }
                }
            }
            let moved = self.give(state, owners, OwnershipSource::Redirect);
            let mut before = Vec::new();
            for (errand, is_late) in errands {
                if is_late {
                    // Behind what came before it, and before what came behind.
                    self.dispatch(state, std::mem::take(&mut before), decided);
                    state.parked.push(errand);
                    self.parked.notify_one();
                } else {
                    before.push(errand);
                }
            }
            self.dispatch(state, before, decided);
            (moved, state.is_down)
        });
        if is_down || !moved.is_empty() {
            self.doubt.notify_one();
        }
        self.look_again_at(&moved);
    }

    /// Sends requests to whom they belong. What cannot be sent yet waits, and so does what is behind it for the same key.
    fn dispatch(
        &self,
        state: &mut ClusterState,
        errands: Vec<RedirectedRequest>,
        decided: &mut RoutingDecision,
    ) {
        let now = boot_time();
        let mut behind = state.parked_keys();
        for errand in errands {
            let RedirectedRequest { request, passage, to, why } = &errand;
            let since = passage.since.unwrap_or(now);
            if passage.hops > MOST_HOPS || now.since(since) >= self.settings.rules.response_timeout {
                let why = Arc::clone(why);
                decided.refuse(errand.request, FailureKind::Passing, &why);
                continue;
            }
            let member = to.as_ref().or_else(|| state.table.owner(Slot::of(&request.key)));
            let can_go = |member: &&Arc<Primary>| member.node.is_ready() && !behind.contains(&request.key);
            if let Some(member) = member.filter(can_go).cloned() {
                decided.ask(&member, *passage, errand.request);
                continue;
            }
            if let Some(member) = member {
                self.open(member);
            }
            behind.insert(Name::clone(&request.key));
            state.parked.push(errand);
            self.parked.notify_one();
        }
    }

    /// Sends what waits, again and again until it is taken or its time is up; without end.
    pub(super) async fn send_what_waits(&self) {
        loop {
            self.parked.notified().await;
            tokio::time::sleep(A_LITTLE).await;
            self.decide(|state, decided| {
                let parked = std::mem::take(&mut state.parked);
                self.dispatch(state, parked, decided);
            });
            self.route(|state| std::mem::take(&mut state.held_back));
        }
    }
}

/// How often servers may send a request on before it is refused: two that name each other are a loop.
const MOST_HOPS: u32 = 5;

/// How long a request waits before it is sent again.
const A_LITTLE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Option<Redirect> {
        let answer = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("it is an error");
        Redirect::read(&answer, &at("10.0.0.1", 7000))
    }

    fn at(host: &str, port: u16) -> Address {
        Address { host: host.to_owned(), port }
    }

    #[test]
    fn it_is_read_where_a_request_belongs() {
        let moved = |host, port| Slot::numbered(3999).map(|slot| Redirect::Moved(slot, at(host, port)));

        assert_eq!(read("MOVED 3999 127.0.0.1:6381"), moved("127.0.0.1", 6381));
        assert_eq!(read("MOVED 3999 ::1:6381"), moved("::1", 6381));
        assert_eq!(
            read("MOVED 3999 :6381"),
            moved("10.0.0.1", 6381),
            "a host without a name is the one that was asked"
        );
        assert_eq!(read("ASK 3999 redis-2.example:6381"), Some(Redirect::Ask(at("redis-2.example", 6381))));
        assert_eq!(read("TRYAGAIN Multiple keys request during rehashing of slot"), Some(Redirect::Both));
        assert_eq!(read("CLUSTERDOWN The cluster is down"), Some(Redirect::Nobody));
    }

    #[test]
    fn what_names_no_server_is_an_answer_like_any_other() {
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
}
