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
use crate::backend::redis::answers::Answers as _;
use crate::backend::redis::node::batch::Passage;
use crate::backend::redis::servers::address::Address;
use crate::backend::redis::servers::cluster::Cluster;
use crate::backend::redis::servers::cluster::members::Member;
use crate::backend::redis::servers::cluster::moving::Source;
use crate::backend::redis::servers::cluster::slots::Slot;
use crate::clock::boot_time;
use crate::protocol::command::{Failure, FailureKind, Reply};
use crate::sync::lock;

/// Where a server says that a request belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend::redis) enum Elsewhere {
    /// To the server there, which serves the slot.
    Moved(Slot, Address),
    /// To the server there, where the slot is about to move.
    Ask(Address),
    /// To two servers: some of its keys have moved.
    Both,
    /// To nobody for now.
    Nobody,
}

impl Elsewhere {
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
pub(super) struct Errand {
    pub(super) request: Request,
    passage: Passage,
    /// Who is to take it; whoever serves its slot where that is nobody.
    to: Option<Arc<Member>>,
    why: Arc<str>,
}

impl Cluster {
    /// Takes over requests that the server at `from` did not run.
    pub(super) fn follow(&self, from: &Address, sent_away: Vec<(Request, Elsewhere)>, passage: Passage) {
        let onward = Passage { hops: passage.hops + 1, asking: false, ..passage };
        let (mut owners, mut errands, mut late, mut nowhere) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (request, elsewhere) in sent_away {
            let why = elsewhere.said_by(from).into();
            match elsewhere {
                Elsewhere::Moved(slot, address) => {
                    owners.push((slot, address));
                    errands.push(Errand { request, passage: onward, to: None, why });
                }
                Elsewhere::Ask(address) => {
                    let (to, passage) = (self.member_at(&address), Passage { asking: true, ..onward });
                    errands.push(Errand { request, passage, to, why });
                }
                Elsewhere::Both => {
                    late.push(Errand { request, passage: Passage { hops: 0, ..onward }, to: None, why });
                }
                Elsewhere::Nobody => nowhere.push((request, why)),
            }
        }
        let moved = self.give(owners, Source::Redirect);
        self.dispatch(errands);
        if !late.is_empty() {
            lock(&self.state).parked.extend(late);
            self.parked.notify_one();
        }
        if !nowhere.is_empty() {
            lock(&self.state).is_down = true;
            self.doubt.notify_one();
        }
        for (request, why) in nowhere {
            self.refuse(vec![request], FailureKind::Passing, &why);
        }
        if !moved.is_empty() {
            self.doubt.notify_one();
        }
        self.look_again_at(&moved);
    }

    /// Sends requests to whom they belong. What cannot be sent yet waits, and so does what is behind it for the same key.
    pub(super) fn dispatch(&self, errands: Vec<Errand>) {
        let now = boot_time();
        let mut parcels: Vec<(Arc<Member>, Passage, Vec<Request>)> = Vec::new();
        let (mut waiting, mut too_long) = (Vec::new(), Vec::new());
        let mut state = lock(&self.state);
        let mut behind = state.parked_keys();
        for errand in errands {
            let Errand { request, passage, to, .. } = &errand;
            let since = passage.since.unwrap_or(now);
            if passage.hops > MOST_HOPS || now.since(since) >= self.settings.rules.response_timeout {
                too_long.push(errand);
                continue;
            }
            let member = to.as_ref().or_else(|| state.table.owner(Slot::of(&request.key)));
            let can_go = |member: &&Arc<Member>| member.node.is_ready() && !behind.contains(&request.key);
            let Some(member) = member.filter(can_go) else {
                behind.insert(Arc::clone(&request.key));
                waiting.push(errand);
                continue;
            };
            let goes_along =
                |(other, by, _): &&mut (Arc<Member>, Passage, _)| Arc::ptr_eq(other, member) && by == passage;
            match parcels.iter_mut().find(goes_along) {
                Some((_, _, requests)) => requests.push(errand.request),
                None => parcels.push((Arc::clone(member), *passage, vec![errand.request])),
            }
        }
        if !waiting.is_empty() {
            state.parked.extend(waiting);
            self.parked.notify_one();
        }
        drop(state);
        for (member, passage, requests) in parcels {
            member.node.take(requests, passage);
        }
        for Errand { request, why, .. } in too_long {
            self.refuse(vec![request], FailureKind::Passing, &why);
        }
    }

    /// Sends what waits, again and again until it is taken or its time is up; without end.
    pub(super) async fn send_what_waits(&self) {
        loop {
            self.parked.notified().await;
            tokio::time::sleep(A_LITTLE).await;
            let parked = std::mem::take(&mut lock(&self.state).parked);
            self.dispatch(parked);
            self.take_held_back();
        }
    }

    /// Answers requests that were not sent.
    pub(super) fn refuse(&self, requests: Vec<Request>, kind: FailureKind, why: &str) {
        if requests.is_empty() {
            return;
        }
        let failure = Failure::new(kind, why);
        let refused = requests.into_iter().map(|request| (request, Reply::Refused(failure.clone())));
        self.engine.replies(refused.collect(), boot_time(), None);
    }
}

/// How often servers may send a request on before it is refused: two that name each other are a loop.
const MOST_HOPS: u32 = 5;

/// How long a request waits before it is sent again.
const A_LITTLE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Option<Elsewhere> {
        let answer = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("it is an error");
        Elsewhere::read(&answer, &at("10.0.0.1", 7000))
    }

    fn at(host: &str, port: u16) -> Address {
        Address { host: host.to_owned(), port }
    }

    #[test]
    fn it_is_read_where_a_request_belongs() {
        let moved = |host, port| Slot::numbered(3999).map(|slot| Elsewhere::Moved(slot, at(host, port)));

        assert_eq!(read("MOVED 3999 127.0.0.1:6381"), moved("127.0.0.1", 6381));
        assert_eq!(read("MOVED 3999 ::1:6381"), moved("::1", 6381));
        assert_eq!(
            read("MOVED 3999 :6381"),
            moved("10.0.0.1", 6381),
            "a host without a name is the one that was asked"
        );
        assert_eq!(read("ASK 3999 redis-2.example:6381"), Some(Elsewhere::Ask(at("redis-2.example", 6381))));
        assert_eq!(read("TRYAGAIN Multiple keys request during rehashing of slot"), Some(Elsewhere::Both));
        assert_eq!(read("CLUSTERDOWN The cluster is down"), Some(Elsewhere::Nobody));
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
