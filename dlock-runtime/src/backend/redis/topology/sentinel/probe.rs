//! What sentinels are asked for an examination, all of them at once.
//!
//! Not here: what the answers mean (`doctor`).

use futures_util::future::join_all;
use redis::{Cmd, Value};

use crate::backend::redis::encoding::codec;
use crate::backend::redis::node::connect::ConnectTarget;
use crate::backend::redis::probe::session::{ProbeSession, ProbeTimeout};
use crate::backend::redis::topology::address::Address;
use crate::backend::redis::topology::sentinel::Sentinels;
use crate::backend::redis::topology::sentinel::replies;
use crate::doctor::facts::{Read, Sentinel};

/// What they said.
pub(in crate::backend::redis) struct SentinelAnswer {
    pub(in crate::backend::redis) sentinels: Vec<Sentinel>,
    /// Host and port of the master that most of them name.
    pub(in crate::backend::redis) master: Option<(String, u16)>,
    /// Hosts and ports of its replicas, by those who may tell.
    pub(in crate::backend::redis) replicas: Vec<(String, u16)>,
}

/// What one of them said.
struct SentinelFacts {
    said: Sentinel,
    master: Option<Address>,
    replicas: Vec<Address>,
}

impl Sentinels {
    /// Asks each sentinel.
    pub(in crate::backend::redis) async fn examine(&self, retry_state: ProbeTimeout) -> SentinelAnswer {
        let all = join_all(self.routes.iter().map(|sentinel| self.examine_one(sentinel, retry_state))).await;
        let votes = |master: &Address| all.iter().filter(|one| one.master.as_ref() == Some(master)).count();
        let master =
            all.iter().filter_map(|one| one.master.as_ref()).max_by_key(|master| votes(master)).cloned();
        let replicas = all.iter().filter(|one| one.master == master).max_by_key(|one| one.replicas.len());
        let replicas = replicas.map(|one| one.replicas.clone()).unwrap_or_default();
        let apart = |Address { host, port }| (host, port);
        SentinelAnswer {
            master: master.map(apart),
            replicas: replicas.into_iter().map(apart).collect(),
            sentinels: all.into_iter().map(|one| one.said).collect(),
        }
    }

    async fn examine_one(&self, sentinel: &ConnectTarget, retry_state: ProbeTimeout) -> SentinelFacts {
        let asked = async {
            let mut asker = ProbeSession::connect(sentinel, retry_state).await?;
            let named = asker.ask(&self.question("GET-MASTER-ADDR-BY-NAME")).await?;
            let master =
                replies::master(&named, &self.name, &sentinel.shown).map_err(|failure| failure.reason)?;
            let known = asker.ask(&self.question("MASTER")).await;
            let known = known.and_then(|answer| others(&answer).ok_or_else(|| asker.refusal(answer)));
            let quorum = asker.ask(&self.question("CKQUORUM")).await.and_then(|answer| match &answer {
                Value::ServerError(error) if error.code() == "NOQUORUM" => {
                    Ok(Err(asker.refusal(answer).to_string()))
                }
                Value::ServerError(_) => Err(asker.refusal(answer)),
                _ => Ok(Ok(())),
            });
            let replicas = asker.ask(&self.question("REPLICAS")).await;
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
                let said = Sentinel { address, master: Ok(master.to_string()), known, quorum };
                SentinelFacts { said, master: Some(master), replicas }
            }
            Err(why) => {
                let why: Read<_> = Err(why);
                let said = Sentinel {
                    address,
                    known: why.clone().map(|_: Address| 0),
                    quorum: why.clone().map(|_| Ok(())),
                    master: why.map(|master| master.to_string()),
                };
                SentinelFacts { said, master: None, replicas: Vec::new() }
            }
        }
    }

    fn question(&self, about: &str) -> Cmd {
        let mut question = redis::cmd("SENTINEL");
        question.arg(about).arg(&self.name);
        question
    }
}

/// Reads how many other sentinels one knows, from what it says of a master.
fn others(answer: &Value) -> Option<u64> {
    field(answer, "num-other-sentinels")?.parse().ok()
}

/// Reads where the replicas are that can be reached, from a list of what is said of each.
fn of_list(answer: Value) -> Vec<Address> {
    let Value::Array(replicas) = answer else { return Vec::new() };
    let at = |replica: &Value| Address::parse(&field(replica, "ip")?, &field(replica, "port")?);
    replicas.iter().filter_map(at).collect()
}

/// Reads a field of an answer that is a row of names and values, or a map.
fn field(answer: &Value, name: &str) -> Option<String> {
    let text = |value: &Value| codec::text(value).map(str::to_owned);
    match answer {
        Value::Array(row) => row.chunks_exact(2).find_map(|pair| match pair {
            [key, value] if codec::text(key) == Some(name) => text(value),
            _ => None,
        }),
        Value::Map(pairs) => {
            pairs.iter().find(|(key, _)| codec::text(key) == Some(name)).and_then(|(_, value)| text(value))
        }
        _ => None,
    }
}
