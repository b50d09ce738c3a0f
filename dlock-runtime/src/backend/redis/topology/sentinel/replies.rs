//! Parses the replies and messages of sentinels.

use redis::Value;

use crate::backend::redis::transport::address::Address;
use crate::backend::redis::transport::error_kind::text;
use crate::backend::redis::transport::redacted::Redacted;
use crate::config::deployment::Deployment;
use crate::protocol::command::{Failure, FailureKind};

/// A completed failover.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SwitchMaster {
    pub(super) from: Address,
    pub(super) to: Address,
}

impl SwitchMaster {
    /// Parses a message, `<name> <old host> <old port> <new host> <new port>`. Returns `None` if it
    /// concerns another primary.
    pub(super) fn parse(message: &[u8], of: &str) -> Option<Self> {
        let mut words = std::str::from_utf8(message).ok()?.split(' ');
        let name = words.next()?;
        let from = Address::parse(words.next()?, words.next()?)?;
        let to = Address::parse(words.next()?, words.next()?)?;
        (name == of && words.next().is_none()).then_some(Self { from, to })
    }
}

/// Parses a sentinel's reply to the query for the primary `name`.
pub(super) fn master(reply: &Value, name: &str, sentinel: &Redacted) -> Result<Address, Failure> {
    let problem = match reply {
        Value::Array(pair) => {
            if let [host, port] = pair.as_slice()
                && let Some(address) = text(host).zip(text(port)).and_then(|(h, p)| Address::parse(h, p))
            {
                return Ok(address);
            }
            "gave an unexpected reply".to_owned()
        }
        Value::Nil => format!(
            "knows no master `{name}`: the path of the url must be the name in its line `sentinel monitor <name> ..`"
        ),
        Value::ServerError(error) => match error.code() {
            "NOAUTH" => "requires a password: write `?sentinel_password=..`, or `?sentinel_user=..&sentinel_password=..`"
                .to_owned(),
            "NOPERM" => {
                "rejects this user's query: allow `+sentinel|get-master-addr-by-name +sentinel|master +subscribe +ping` and \
                 the channel `&+switch-master`"
                    .to_owned()
            }
            "LOADING" => return Err(sentinel.failure(error)),
            _ if error.details().is_some_and(|text| text.contains("unknown command")) => {
                format!(
                    "is not a sentinel: write the addresses of sentinels before the `/`, or `{}host:port` for one server without \
                     sentinels",
                    sentinel.advice().scheme_of(Deployment::One)
                )
            }
            _ => return Err(sentinel.failure(error)),
        },
        _ => "gave an unexpected reply".to_owned(),
    };
    Err(Failure::new(FailureKind::Lasting, format!("the sentinel at {sentinel} {problem}")))
}

/// Parses the number of the last failover from a sentinel's reply about a primary. Returns 0 if the
/// sentinel does not report it.
pub(super) fn epoch(reply: &Value) -> u64 {
    field(reply, "config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0)
}

/// Reads a field of a reply that is a list of names and values, or a map.
pub(super) fn field(reply: &Value, name: &str) -> Option<String> {
    let mut fields = reply.as_map_iter()?;
    let (_, value) = fields.find(|(key, _)| text(key) == Some(name))?;
    text(value).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::tests::resp;

    #[test]
    fn only_a_server_without_the_command_is_no_sentinel() {
        let refused = |text: &str| {
            let error = resp::error(text);
            master(&error, "shop", &Redacted::new("h:1")).expect_err("an error").reason.to_string()
        };

        let (unknown, other) = (refused("ERR unknown command 'SENTINEL'"), refused("ERR wait for a moment"));

        assert!(unknown.contains("is not a sentinel"), "{unknown}");
        assert!(!other.contains("is not a sentinel") && other.contains("wait for a moment"), "{other}");
    }

    #[test]
    fn a_switch_of_the_named_primary_is_parsed() {
        let message = b"shop 10.0.0.1 6379 10.0.0.2 6380";

        let switch = SwitchMaster::parse(message, "shop").expect("it names this primary");

        assert_eq!(
            (switch.from.to_string(), switch.to.to_string()),
            ("10.0.0.1:6379".to_owned(), "10.0.0.2:6380".to_owned())
        );
        assert_eq!(SwitchMaster::parse(message, "sho"), None);
        for invalid in
            ["", "shop", "shop a 1 b", "shop a 1 b x", "shop a 1 b 0", "shop a 1 b 2 c", "shop  1 b 2"]
        {
            assert_eq!(SwitchMaster::parse(invalid.as_bytes(), "shop"), None, "{invalid}");
        }
    }

    #[test]
    fn a_reply_without_a_primary_says_what_to_do() {
        for (reply, kind, text) in [
            ("*-1", FailureKind::Lasting, "knows no master `shop`"),
            ("*1\r\n$1\r\nh", FailureKind::Lasting, "gave an unexpected reply"),
            ("*2\r\n$1\r\nh\r\n$1\r\n0", FailureKind::Lasting, "gave an unexpected reply"),
            (":1", FailureKind::Lasting, "gave an unexpected reply"),
            ("-NOAUTH Authentication required.", FailureKind::Lasting, "`?sentinel_password=..`"),
            ("-NOPERM no", FailureKind::Lasting, "allow `+sentinel|get-master-addr-by-name"),
            ("-LOADING it", FailureKind::Passing, "LOADING it"),
            ("-ERR unknown command 'SENTINEL'", FailureKind::Lasting, "is not a sentinel"),
        ] {
            let reply = redis::parse_redis_value(format!("{reply}\r\n").as_bytes()).expect("it is RESP");

            let failure = master(&reply, "shop", &Redacted::new("h:1")).expect_err("it names none");

            assert!(failure.kind == kind && failure.reason.contains(text), "{failure:?}");
        }
        let named = redis::parse_redis_value(b"*2\r\n$1\r\nh\r\n$4\r\n6379\r\n").expect("it is RESP");
        let named = master(&named, "shop", &Redacted::new("h:1")).expect("it names one");
        assert_eq!(named.to_string(), "h:6379");
    }
}
