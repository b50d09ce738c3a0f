//! What sentinels say.
//!
//! Not here: what is made of it (`said`).

use redis::Value;

use crate::backend::redis::encoding::codec::{Redacted, text};
use crate::backend::redis::topology::address::Address;
use crate::protocol::command::{Failure, FailureKind};

/// A fail-over that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SwitchMaster {
    pub(super) from: Address,
    pub(super) to: Address,
}

impl SwitchMaster {
    /// Reads a message, `<name> <old host> <old port> <new host> <new port>`; `None` where it is about another master.
    pub(super) fn parse(message: &[u8], of: &str) -> Option<Self> {
        let mut words = std::str::from_utf8(message).ok()?.split(' ');
        let name = words.next()?;
        let from = Address::parse(words.next()?, words.next()?)?;
        let to = Address::parse(words.next()?, words.next()?)?;
        (name == of && words.next().is_none()).then_some(Self { from, to })
    }
}

/// Reads a sentinel's answer to who the master `name` is.
pub(super) fn master(answer: &Value, name: &str, sentinel: &Redacted) -> Result<Address, Failure> {
    let problem = match answer {
        Value::Array(pair) => {
            if let [host, port] = pair.as_slice()
                && let Some(address) = text(host).zip(text(port)).and_then(|(h, p)| Address::parse(h, p))
            {
                return Ok(address);
            }
            "gave an answer that no sentinel gives".to_owned()
        }
        Value::Nil => format!(
            "knows no master `{name}`: the path of the url must be the name in its line `sentinel monitor <name> ..`"
        ),
        Value::ServerError(error) => match error.code() {
            "NOAUTH" => "wants a password: write `?sentinel_password=..`, or `?sentinel_user=..&sentinel_password=..`"
                .to_owned(),
            "NOPERM" => {
                "does not let this user ask: allow it `+sentinel|get-master-addr-by-name +subscribe +ping` and the channel \
                 `&+switch-master`"
                    .to_owned()
            }
            "LOADING" => return Err(sentinel.failure(error)),
            _ if error.details().is_some_and(|said| said.contains("unknown command")) => {
                "is no sentinel: write the addresses of sentinels before the `/`, or `redis://host:port` for one server \
                 without sentinels"
                    .to_owned()
            }
            _ => return Err(sentinel.failure(error)),
        },
        _ => "gave an answer that no sentinel gives".to_owned(),
    };
    Err(Failure::new(FailureKind::Lasting, format!("the sentinel at {sentinel} {problem}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_read_where_it_is_about_our_master() {
        let message = b"shop 10.0.0.1 6379 10.0.0.2 6380";

        let switch = SwitchMaster::parse(message, "shop").expect("it is about ours");

        assert_eq!(
            (switch.from.to_string(), switch.to.to_string()),
            ("10.0.0.1:6379".to_owned(), "10.0.0.2:6380".to_owned())
        );
        assert_eq!(SwitchMaster::parse(message, "sho"), None);
        for strange in
            ["", "shop", "shop a 1 b", "shop a 1 b x", "shop a 1 b 0", "shop a 1 b 2 c", "shop  1 b 2"]
        {
            assert_eq!(SwitchMaster::parse(strange.as_bytes(), "shop"), None, "{strange}");
        }
    }
}
