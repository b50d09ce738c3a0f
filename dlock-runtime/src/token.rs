//! Who holds: the ids that stand in a lock's value.
//!
//! Not here: fencing tokens, which say *which turn* it is (`protocol::fencing`).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The id of one contender for one wait, and its nonce while it holds.
///
/// Written as [`Token::WIDTH`] characters, `dl1-` + 16 hex digits of the process + 12 of a counter. All have one width, so that a
/// value that is a row of them is compared by position and `..1` never matches `..12`. A random UUID for each would cost a system
/// call; a process nonce and a counter are as unique.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Token {
    process: ProcessId,
    counter: u64,
}

impl Token {
    /// The number of characters of every token.
    pub(crate) const WIDTH: usize = PREFIX.len() + 16 + 12;

    /// The manager that made the token.
    pub(crate) const fn process(self) -> ProcessId {
        self.process
    }

    /// Returns what tells it from all others: the number of its process, and that of its turn there.
    pub(crate) const fn numbers(self) -> (u64, u64) {
        (self.process.0, self.counter)
    }

    /// Returns which of its process's tokens it is.
    pub(crate) const fn number(self) -> u64 {
        self.counter
    }

    /// Returns the token of these numbers, if there is one.
    pub(crate) fn of_numbers(process: u64, counter: u64) -> Option<Self> {
        (counter <= COUNTER_MASK).then_some(Self { process: ProcessId(process), counter })
    }

    /// Returns the token as it is written in a value: the formatter of the standard library would cost more than all the rest of a
    /// command.
    pub(crate) fn written(self) -> [u8; Self::WIDTH] {
        let mut text = [0; Self::WIDTH];
        let (prefix, digits) = text.split_at_mut(PREFIX.len());
        prefix.copy_from_slice(PREFIX.as_bytes());
        let (process, counter) = digits.split_at_mut(16);
        for (number, digits) in [(self.process.0, process), (self.counter, counter)] {
            let mut rest = number;
            for digit in digits.iter_mut().rev() {
                let nibble = u8::try_from(rest & 15).unwrap_or_default();
                *digit = if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 };
                rest >>= 4;
            }
        }
        text
    }

    /// Reads a token as it is written in a value or a message.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(PREFIX).filter(|_| text.len() == Self::WIDTH)?;
        let (process, counter) = digits.split_at_checked(16)?;
        let hex = |s: &str| {
            s.bytes()
                .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
                .then(|| u64::from_str_radix(s, 16).ok())?
        };
        Self::of_numbers(hex(process)?, hex(counter)?)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{:016x}{:012x}", self.process.0, self.counter)
    }
}

impl fmt::Debug for Token {
    /// A token is what proves ownership: it is never printed whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(..{})", self.counter)
    }
}

/// The manager that a token belongs to: random, so that no two managers of the world share it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ProcessId(u64);

impl ProcessId {
    /// The channel on which this manager is told of grants. A script makes the same name from the first
    /// [`ProcessId::TOKEN_PREFIX`] characters of a token.
    pub(crate) fn channel(self) -> String {
        format!("{CHANNEL_PREFIX}{PREFIX}{:016x}", self.0)
    }

    /// A number that no other process has.
    pub(crate) const fn number(self) -> u64 {
        self.0
    }

    /// How the process is shown to an operator: what its tokens begin with, in a value too, but not so much of it that a token
    /// could be guessed.
    pub(crate) fn shown(self) -> String {
        format!("{PREFIX}{:08x}", self.0 >> 32)
    }

    /// How many of a token's characters name its process.
    #[cfg(test)]
    pub(crate) const TOKEN_PREFIX: usize = PREFIX.len() + 16;
}

impl fmt::Debug for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProcessId(..)")
    }
}

/// Makes the tokens of one manager, each once.
#[derive(Debug)]
pub(crate) struct TokenSource {
    process: ProcessId,
    counter: AtomicU64,
}

impl TokenSource {
    /// Starts a source with a process nonce that no other has.
    pub(crate) fn new() -> Self {
        #[cfg(any(test, dlock_shuttle))]
        if let Some(number) = crate::simulated::next_process() {
            return Self::of_process(number);
        }
        let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
        Self { process: ProcessId(high.rotate_left(32) ^ low), counter: AtomicU64::new(0) }
    }

    /// Starts a source whose tokens are the same in every run.
    #[cfg(any(test, dlock_shuttle))]
    pub(crate) const fn of_process(number: u64) -> Self {
        Self { process: ProcessId(number), counter: AtomicU64::new(0) }
    }

    /// Returns a token that was never given before.
    pub(crate) fn next(&self) -> Token {
        let counter = self.counter.fetch_add(1, Ordering::Relaxed) & COUNTER_MASK;
        Token { process: self.process, counter }
    }

    /// Returns the token of this number, which was made here.
    pub(crate) const fn numbered(&self, counter: u64) -> Token {
        Token { process: self.process, counter }
    }

    pub(crate) const fn process(&self) -> ProcessId {
        self.process
    }

    /// Returns whether `token` was made here.
    pub(crate) fn has_issued(&self, token: Token) -> bool {
        token.process == self.process && token.counter < self.counter.load(Ordering::Relaxed)
    }

    /// Returns the next of a row of numbers that spread evenly over `u32` and differ between processes: jitter needs no more
    /// (splitmix64; Steele, Lea and Flood, OOPSLA 2014).
    pub(crate) fn draw(&self) -> u32 {
        let mut z =
            self.process.0 ^ self.counter.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from(z >> 32).unwrap_or_default()
    }
}

/// What every token begins with; a value that does not is a foreign client's.
pub(crate) const PREFIX: &str = "dl1-";

/// What the channel of every manager begins with. An ACL user needs `&dlock:grant:*`.
pub(crate) const CHANNEL_PREFIX: &str = "dlock:grant:";

/// 48 bits: at a million tokens a second they last nine years.
const COUNTER_MASK: u64 = (1 << 48) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_back_as_it_was_written() {
        let token = TokenSource::new().next();

        let text = token.to_string();

        assert_eq!(text.as_bytes(), token.written());
        assert_eq!(Token::parse(&text), Some(token));
        assert_eq!(
            token.process().channel(),
            format!("{CHANNEL_PREFIX}{}", &text[..ProcessId::TOKEN_PREFIX])
        );
    }

    #[test]
    fn no_token_is_given_twice() {
        const EACH: usize = 50_000;
        let tokens = TokenSource::of_process(1);

        let given = std::thread::scope(|scope| {
            let give = || (0..EACH).map(|_| tokens.next()).collect::<Vec<_>>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(give)).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("it only counts")).collect::<Vec<_>>()
        });

        assert_eq!(given.iter().collect::<std::collections::HashSet<_>>().len(), 4 * EACH);
    }

    #[test]
    fn what_is_not_a_token_is_not_read_as_one() {
        for text in [
            "",
            "dl1-",
            "dl1-00000000000000000000000000",
            "xx1-0000000000000000000000000000",
            "dl1-+000000000000000000000000000",
        ] {
            assert_eq!(Token::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_token_is_not_printed_by_debug() {
        let token = TokenSource::new().next();

        assert!(!format!("{token:?}").contains(&token.to_string()[..20]));
    }
}
