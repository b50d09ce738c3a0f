//! The pub/sub message that grants a lock to a waiter.

use std::time::Duration;

use crate::key::Name;
use crate::protocol::foreign_clients::{FleetHold, Grant};
use crate::token::Token;

/// A lock was granted to a token of this process.
#[derive(Debug)]
pub(crate) struct GrantMessage {
    pub(crate) token: Token,
    pub(crate) offer: Grant,
    pub(crate) key: Name,
}

impl GrantMessage {
    /// Parses `<token><grant lease in ms>[+<fleet hold in ms>]|<key>`.
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(payload).ok()?;
        let (token, rest) = text.split_at_checked(Token::WIDTH)?;
        let (grant, key) = rest.split_once('|')?;
        let (lease, fleet_hold) =
            grant.split_once('+').map_or((grant, None), |(lease, held)| (lease, Some(held)));
        let fleet_hold = match fleet_hold {
            Some(held) => FleetHold::of(Duration::from_millis(held.parse().ok()?)),
            None => FleetHold::UNKNOWN,
        };
        let offer = Grant { lease: Duration::from_millis(lease.parse().ok()?), fleet_hold };
        Some(Self { token: Token::parse(token)?, offer, key: key.into() })
    }
}

/// Parses `changed|<key>`: a key that is no lock has changed, and this process waits for it.
pub(crate) fn changed_key(payload: &[u8]) -> Option<&str> {
    std::str::from_utf8(payload).ok()?.strip_prefix("changed|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::TokenSource;

    #[test]
    fn a_grant_message_has_a_lease_and_maybe_a_fleet_hold() {
        let token = TokenSource::new().next();
        let parse = |grant: &str| {
            let message = GrantMessage::parse(format!("{token}{grant}|order+|7").as_bytes())?;
            assert_eq!((message.token, &*message.key), (token, "order+|7"));
            Some((message.offer.lease.as_millis(), message.offer.fleet_hold))
        };

        assert_eq!(parse("1000"), Some((1_000, FleetHold::UNKNOWN)));
        assert_eq!(parse("1000+20"), Some((1_000, FleetHold::of(Duration::from_millis(20)))));
        assert_eq!(parse("0"), Some((0, Grant::NONE.fleet_hold)));
        assert!(["", "+20", "1000+", "1000+x", "-1", "1+2+3"].iter().all(|grant| parse(grant).is_none()));
    }

    #[test]
    fn a_message_about_a_changed_key_names_it() {
        assert_eq!(changed_key(b"changed|order:7"), Some("order:7"));
        assert_eq!(changed_key(b"changed|changed|7"), Some("changed|7"));
        for message in [&b"changed"[..], b"order:7", b"|order:7", b"changed|\xff"] {
            assert_eq!(changed_key(message), None, "{message:?}");
        }
    }
}
