//! The holder of a lock in Redisson's format: `<UUID of the client>:<thread number>`.
//!
//! ```text
//!  646c6f63-6b31-8PPP-8PPP-00PPPPPPPPPP:C
//!  "dlock1" in hexadecimal, a UUID of version 8 (RFC 9562), 16 digits of the manager, and the token's counter as the thread
//! ```
//!
//! See also `token`, which defines tokens.

use crate::token::{REDISSON_PREFIX, Token};

/// Returns a token in the format of an owner.
pub(crate) fn written(token: Token) -> String {
    let (process, counter) = token.numbers();
    let (first, second, third) = (process >> 52, process >> 40 & 0xfff, process & 0xff_ffff_ffff);
    format!("{REDISSON_PREFIX}8{first:03x}-8{second:03x}-00{third:010x}:{counter}")
}

/// Parses an owner. Returns `None` for an owner of another client.
pub(crate) fn parse(text: &str) -> Option<Token> {
    let (uuid, counter) = text.split_once(':')?;
    let digits = uuid.strip_prefix(REDISSON_PREFIX)?.replace('-', "");
    let number = |from: usize, to: usize| u64::from_str_radix(digits.get(from..to)?, 16).ok();
    let process = number(1, 4)? << 52 | number(5, 8)? << 40 | number(10, 20)?;
    // Only the exact form that `written` produces is accepted.
    Token::of_numbers(process, counter.parse().ok()?).filter(|token| written(*token) == text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::TokenSource;

    #[test]
    fn an_owner_round_trips() {
        for process in [0, 1, 0x0123_4567_89ab_cdef, u64::MAX] {
            let tokens = TokenSource::of_process(process);
            let (_, token) = (tokens.next(), tokens.next());

            assert_eq!(parse(&written(token)), Some(token));
        }
    }

    #[test]
    fn an_owner_is_a_uuid_and_a_number() {
        let token = Token::of_numbers(0x0123_4567_89ab_cdef, 12).expect("a token");

        let owner = written(token);

        assert_eq!(owner, "646c6f63-6b31-8012-8345-006789abcdef:12");
        let (uuid, _) = owner.split_once(':').expect("a colon");
        assert_eq!(uuid::Uuid::parse_str(uuid).map(|uuid| uuid.get_version_num()), Ok(8));
    }

    #[test]
    fn owners_of_other_clients_are_rejected() {
        for text in [
            "",
            "mode",
            "2b130015-a627-4ad5-af85-0b847b19b029:12",
            "646c6f63-6b31-8012-8345-006789abcdef",
            "646c6f63-6b31-8012-8345-006789abcdef:",
            "646c6f63-6b31-8012-8345-006789abcdef:-1",
            "646c6f63-6b31-8012-8345-006789abcdef:012",
            "646c6f63-6b31-8012-8345-016789abcdef:12",
            "646c6f63-6b31-8012-8345-006789ABCDEF:12",
            "646c6f63-6b31-\u{e9}012-8345-006789abcdef:12",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
