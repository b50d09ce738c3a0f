//! The queries of `doctor` to all sentinels at once.
//!
//! See also `doctor`, which evaluates the replies.

use std::sync::Arc;

use futures_util::future::join_all;
use redis::Value;

use crate::backend::redis::probe::session::{ProbeSession, ProbeTimeout};
use crate::backend::redis::topology::sentinel::Sentinels;
use crate::backend::redis::topology::sentinel::replies;
use crate::backend::redis::transport::address::Address;
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::doctor::facts::{Sentinel, Unreached};

/// The replies of all sentinels.
pub(in crate::backend::redis) struct SentinelReplies {
    pub(in crate::backend::redis) sentinels: Vec<Sentinel>,
    /// The primary that most sentinels report.
    pub(in crate::backend::redis) master: Option<Address>,
    pub(in crate::backend::redis) replicas: Vec<Address>,
}

/// The replies of one sentinel.
struct SentinelFacts {
    facts: Sentinel,
    master: Option<Address>,
    replicas: Vec<Address>,
}

impl Sentinels {
    /// Queries each sentinel.
    pub(in crate::backend::redis) async fn examine(&self, timeout: ProbeTimeout) -> SentinelReplies {
        let all = join_all(self.routes.iter().map(|sentinel| self.examine_one(sentinel, timeout))).await;
        let votes = |master: &Address| all.iter().filter(|one| one.master.as_ref() == Some(master)).count();
        let master =
            all.iter().filter_map(|one| one.master.as_ref()).max_by_key(|master| votes(master)).cloned();
        let replicas = all.iter().filter(|one| one.master == master).max_by_key(|one| one.replicas.len());
        let replicas = replicas.map(|one| one.replicas.clone()).unwrap_or_default();
        SentinelReplies { sentinels: all.into_iter().map(|one| one.facts).collect(), master, replicas }
    }

    async fn examine_one(&self, sentinel: &ConnectTarget, timeout: ProbeTimeout) -> SentinelFacts {
        let asked = async {
            let mut session = ProbeSession::connect(sentinel, timeout).await?;
            let named = session.ask(&self.question("GET-MASTER-ADDR-BY-NAME")).await;
            let named = named.map_err(|refusal| Unreached::passing(refusal.said))?;
            let master = replies::master(&named, &self.name, &sentinel.shown)?;
            let known = session.ask(&self.question("MASTER")).await.map_err(Arc::<str>::from);
            let known = known.and_then(|reply| others(&reply).ok_or_else(|| session.refusal(reply)));
            let quorum = session.ask(&self.question("CKQUORUM")).await.map_err(Arc::from);
            let quorum = quorum.and_then(|reply| match &reply {
                Value::ServerError(error) if error.code() == "NOQUORUM" => {
                    Ok(Err(session.refusal(reply).to_string()))
                }
                Value::ServerError(_) => Err(session.refusal(reply)),
                _ => Ok(Ok(())),
            });
            let replicas = session.ask(&self.question("REPLICAS")).await.map_or_else(|_| Vec::new(), of_list);
            Ok((master, known.map(|others| others + 1), quorum, replicas))
        };
        let address = sentinel.shown.to_string();
        match asked.await {
            Ok((master, known, quorum, replicas)) => {
                let facts = Sentinel { address, master: Ok(master.to_string()), known, quorum };
                SentinelFacts { facts, master: Some(master), replicas }
            }
            Err(unreached) => {
                let unreached: Unreached = unreached;
                let (known, quorum) = (Err(Arc::clone(&unreached.why)), Err(Arc::clone(&unreached.why)));
                let facts = Sentinel { address, master: Err(unreached), known, quorum };
                SentinelFacts { facts, master: None, replicas: Vec::new() }
            }
        }
    }
}

/// Parses the number of other sentinels that a sentinel knows.
fn others(reply: &Value) -> Option<u64> {
    replies::field(reply, "num-other-sentinels")?.parse().ok()
}

/// Parses the addresses of the reachable replicas.
fn of_list(reply: Value) -> Vec<Address> {
    let Value::Array(replicas) = reply else { return Vec::new() };
    let at =
        |replica: &Value| Address::parse(&replies::field(replica, "ip")?, &replies::field(replica, "port")?);
    replicas.iter().filter_map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(fields: &[(&str, &str)]) -> Value {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        Value::Array(fields.iter().flat_map(|(name, value)| [text(name), text(value)]).collect())
    }

    #[test]
    fn sentinels_and_replicas_are_read_from_fields() {
        let master = fields(&[("name", "mymaster"), ("num-other-sentinels", "2"), ("quorum", "3")]);
        let replica = fields(&[("ip", "10.0.0.7"), ("port", "6380")]);
        let unknown = fields(&[("ip", "10.0.0.8")]);

        assert_eq!((others(&master), others(&replica), others(&Value::Nil)), (Some(2), None, None));
        let replicas = of_list(Value::Array(vec![replica, unknown]));
        assert_eq!(replicas.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.7:6380"]);
        assert!(of_list(Value::Nil).is_empty());
    }
}
