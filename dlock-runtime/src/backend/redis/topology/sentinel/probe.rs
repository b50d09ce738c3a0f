//! The queries of `doctor` to all sentinels at once.
//!
//! See also `doctor`, which evaluates the replies.

use futures_util::future::join_all;
use redis::{Cmd, Value};

use crate::backend::redis::probe::session::{ProbeSession, ProbeTimeout};
use crate::backend::redis::topology::sentinel::Sentinels;
use crate::backend::redis::topology::sentinel::replies;
use crate::backend::redis::transport::address::Address;
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::backend::redis::transport::error_kind;
use crate::doctor::facts::{Read, Sentinel};

/// The replies of all sentinels.
pub(in crate::backend::redis) struct SentinelAnswer {
    pub(in crate::backend::redis) sentinels: Vec<Sentinel>,
    /// Host and port of the primary that most sentinels report.
    pub(in crate::backend::redis) master: Option<(String, u16)>,
    /// Hosts and ports of its replicas.
    pub(in crate::backend::redis) replicas: Vec<(String, u16)>,
}

/// The replies of one sentinel.
struct SentinelFacts {
    facts: Sentinel,
    master: Option<Address>,
    replicas: Vec<Address>,
}

impl Sentinels {
    /// Queries each sentinel.
    pub(in crate::backend::redis) async fn examine(&self, timeout: ProbeTimeout) -> SentinelAnswer {
        let all = join_all(self.routes.iter().map(|sentinel| self.examine_one(sentinel, timeout))).await;
        let votes = |master: &Address| all.iter().filter(|one| one.master.as_ref() == Some(master)).count();
        let master =
            all.iter().filter_map(|one| one.master.as_ref()).max_by_key(|master| votes(master)).cloned();
        let replicas = all.iter().filter(|one| one.master == master).max_by_key(|one| one.replicas.len());
        let replicas = replicas.map(|one| one.replicas.clone()).unwrap_or_default();
        let apart = |Address { host, port }| (host, port);
        SentinelAnswer {
            master: master.map(apart),
            replicas: replicas.into_iter().map(apart).collect(),
            sentinels: all.into_iter().map(|one| one.facts).collect(),
        }
    }

    async fn examine_one(&self, sentinel: &ConnectTarget, timeout: ProbeTimeout) -> SentinelFacts {
        let asked = async {
            let mut session = ProbeSession::connect(sentinel, timeout).await?;
            let named = session.ask(&self.question("GET-MASTER-ADDR-BY-NAME")).await?;
            let master =
                replies::master(&named, &self.name, &sentinel.shown).map_err(|failure| failure.reason)?;
            let known = session.ask(&self.question("MASTER")).await;
            let known = known.and_then(|answer| others(&answer).ok_or_else(|| session.refusal(answer)));
            let quorum = session.ask(&self.question("CKQUORUM")).await.and_then(|answer| match &answer {
                Value::ServerError(error) if error.code() == "NOQUORUM" => {
                    Ok(Err(session.refusal(answer).to_string()))
                }
                Value::ServerError(_) => Err(session.refusal(answer)),
                _ => Ok(Ok(())),
            });
            let replicas = session.ask(&self.question("REPLICAS")).await;
            Ok((
                master,
                known.map(|others| others + 1),
                quorum,
                replicas.map_or_else(|_| Vec::new(), of_list),
            ))
        };
        let address = sentinel.shown.to_string();
        match asked.await {
            Ok((master, known, quorum, replicas)) => {
                let facts = Sentinel { address, master: Ok(master.to_string()), known, quorum };
                SentinelFacts { facts, master: Some(master), replicas }
            }
            Err(why) => {
                let why: Read<_> = Err(why);
                let facts = Sentinel {
                    address,
                    known: why.clone().map(|_: Address| 0),
                    quorum: why.clone().map(|_| Ok(())),
                    master: why.map(|master| master.to_string()),
                };
                SentinelFacts { facts, master: None, replicas: Vec::new() }
            }
        }
    }

    fn question(&self, about: &str) -> Cmd {
        let mut question = redis::cmd("SENTINEL");
        question.arg(about).arg(&self.name);
        question
    }
}

/// Parses the number of other sentinels that a sentinel knows.
fn others(answer: &Value) -> Option<u64> {
    field(answer, "num-other-sentinels")?.parse().ok()
}

/// Parses the addresses of the reachable replicas.
fn of_list(answer: Value) -> Vec<Address> {
    let Value::Array(replicas) = answer else { return Vec::new() };
    let at = |replica: &Value| Address::parse(&field(replica, "ip")?, &field(replica, "port")?);
    replicas.iter().filter_map(at).collect()
}

/// Reads a field of a reply that is a list of names and values, or a map.
fn field(answer: &Value, name: &str) -> Option<String> {
    let text = |value: &Value| error_kind::text(value).map(str::to_owned);
    match answer {
        Value::Array(row) => row.chunks_exact(2).find_map(|pair| match pair {
            [key, value] if error_kind::text(key) == Some(name) => text(value),
            _ => None,
        }),
        Value::Map(pairs) => pairs
            .iter()
            .find(|(key, _)| error_kind::text(key) == Some(name))
            .and_then(|(_, value)| text(value)),
        _ => None,
    }
}
