//! [`Token`], which identifies one acquisition attempt, and [`TokenSource`], which issues tokens.
//!
//! See `protocol::fencing` for fencing tokens.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A token that identifies one acquisition attempt, and the holder while it holds the lock.
///
/// It is written as [`Token::WIDTH`] characters: `dl2-`, 16 hex digits for the process, and 12 for
/// its number. All tokens have the same width, so that a value, which is a sequence of tokens, is
/// compared by position, and `..1` never matches `..12`. A random UUID for each would cost a system
/// call; a random process ID and a counter are as unique. The number is the counter, permuted in an
/// order that only its manager knows ([`Order`]). A client that learns the process ID or one token
/// cannot derive another token, and so cannot forge a grant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Token {
    process: ProcessId,
    counter: u64,
}

impl Token {
    /// The number of characters of every token.
    pub(crate) const WIDTH: usize = PREFIX.len() + 16 + 12;

    /// Returns the manager that issued the token.
    pub(crate) const fn process(self) -> ProcessId {
        self.process
    }

    /// Returns the numbers that identify the token: that of its process, and its own.
    pub(crate) const fn numbers(self) -> (u64, u64) {
        (self.process.0, self.counter)
    }

    /// Returns the token's number within its process.
    pub(crate) const fn number(self) -> u64 {
        self.counter
    }

    /// Returns the token with these numbers, or `None` if the second is out of range.
    pub(crate) fn of_numbers(process: u64, counter: u64) -> Option<Self> {
        (counter <= COUNTER_MASK).then_some(Self { process: ProcessId(process), counter })
    }

    /// Returns the token as it is written in a value.
    ///
    /// The formatter of the standard library would cost more than the rest of a command.
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

    /// Parses a token as it is written in a value or a message.
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
    /// A token proves ownership, so only a hash of it is printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({:08x})", spread(spread(self.process.0) ^ self.counter) >> 32)
    }
}

/// The manager that a token belongs to: a random number that no other manager has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ProcessId(u64);

impl ProcessId {
    /// Returns the prefix of all tokens of this manager, which is secret, as the tokens are.
    pub(crate) fn token_prefix(self) -> String {
        format!("{PREFIX}{:016x}", self.0)
    }

    /// Returns the manager whose tokens have this prefix, or `None` if it is no prefix.
    #[cfg(feature = "idempotent")]
    pub(crate) fn of_token_prefix(prefix: &str) -> Option<Self> {
        Token::parse(&format!("{prefix}{:012x}", 0)).map(Token::process)
    }

    /// Returns the ID of the manager for an operator: half of the prefix of its tokens, too little
    /// to guess a token.
    pub(crate) fn shown(self) -> String {
        format!("{PREFIX}{:08x}", self.0 >> 32)
    }

    /// The number of characters of a token that identify its process.
    #[cfg(test)]
    pub(crate) const TOKEN_PREFIX: usize = PREFIX.len() + 16;
}

impl fmt::Debug for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProcessId(..)")
    }
}

/// Issues the tokens of one manager, each once.
#[derive(Debug)]
pub(crate) struct TokenSource {
    process: ProcessId,
    /// How many numbers have been drawn.
    counter: AtomicU64,
    order: Order,
}

impl TokenSource {
    /// Returns a source with a random process ID.
    pub(crate) fn new() -> Self {
        #[cfg(any(test, dlock_shuttle))]
        if let Some(number) = crate::simulated::next_process() {
            return Self::of_process(number);
        }
        let random = || {
            let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
            high.rotate_left(32) ^ low
        };
        let (process, order) = (ProcessId(random()), Order(std::array::from_fn(|_| random())));
        Self { process, counter: AtomicU64::new(0), order }
    }

    /// Returns a source whose tokens are the same in every run.
    #[cfg(any(test, dlock_shuttle))]
    pub(crate) const fn of_process(number: u64) -> Self {
        Self { process: ProcessId(number), counter: AtomicU64::new(0), order: Order::of(number) }
    }

    /// Returns a token that has not been issued before.
    pub(crate) fn next(&self) -> Token {
        loop {
            let counter = self.order.number(self.counter.fetch_add(1, Ordering::Relaxed) & COUNTER_MASK);
            // Zero, one of 2^48 numbers, is skipped: it means that there is no token.
            if counter != 0 {
                return Token { process: self.process, counter };
            }
        }
    }

    /// Returns a sort key for the token of this number: its process, then its position there.
    pub(crate) fn place(&self, number: u64) -> (u64, u64) {
        (self.process.0, self.order.counter(number))
    }

    /// Returns the token at this position, issued or not.
    #[cfg(test)]
    pub(crate) fn at(&self, counter: u64) -> Token {
        Token { process: self.process, counter: self.order.number(counter) }
    }

    /// Returns how many numbers have been drawn.
    #[cfg(test)]
    pub(crate) fn drawn(&self) -> u64 {
        self.counter.load(Ordering::Relaxed)
    }

    pub(crate) const fn process(&self) -> ProcessId {
        self.process
    }

    /// Returns `true` if this source issued `token`.
    pub(crate) fn has_issued(&self, token: Token) -> bool {
        token.process == self.process
            && self.order.counter(token.counter) < self.counter.load(Ordering::Relaxed)
    }

    /// Returns the next number of a sequence that is uniform over `u32` and differs between
    /// processes, which is enough for jitter (splitmix64; Steele, Lea and Flood, OOPSLA 2014).
    pub(crate) fn draw(&self) -> u32 {
        draw(self.process, self.counter.fetch_add(1, Ordering::Relaxed))
    }
}

/// Returns the number at one place of the sequence of a process.
fn draw(process: ProcessId, place: u64) -> u32 {
    u32::try_from(spread(process.0 ^ place.wrapping_mul(GOLDEN_RATIO)) >> 32).unwrap_or_default()
}

/// The random delays of a backend, which differ between processes.
#[derive(Debug)]
pub(crate) struct Jitter {
    process: ProcessId,
    drawn: AtomicU64,
}

impl Jitter {
    /// Creates the jitter of one part of a process.
    pub(crate) fn of(process: ProcessId) -> Self {
        Self { process, drawn: AtomicU64::new(0) }
    }

    /// Returns a random duration of at most `longest`, evenly distributed.
    pub(crate) fn up_to(&self, longest: Duration) -> Duration {
        let place = self.drawn.fetch_add(1, Ordering::Relaxed);
        longest.mul_f64(f64::from(draw(self.process, place)) / f64::from(u32::MAX))
    }
}

/// The order in which a manager issues its numbers: a permutation of 48 bits with secret keys.
///
/// It is a Feistel network (Luby and Rackoff, SIAM Journal on Computing, 1988), so the same steps
/// invert it. A step folds a product, which costs 2 to 3 ns. It is not a cipher for data: it
/// protects against clients that see no or few tokens. A client that can read all tokens can read
/// the locks.
struct Order([u64; ROUNDS]);

impl Order {
    /// Returns an order that is the same in every run.
    #[cfg(any(test, dlock_shuttle))]
    const fn of(number: u64) -> Self {
        let (mut keys, mut round) = ([0; ROUNDS], 0);
        let mut key = spread(number);
        while round < ROUNDS {
            key = spread(key ^ GOLDEN_RATIO);
            // A `const fn` cannot use an iterator.
            #[allow(
                clippy::indexing_slicing,
                reason = "the index is below the length, or this does not compile"
            )]
            {
                keys[round] = key;
            }
            round += 1;
        }
        Self(keys)
    }

    /// Returns the number at this position.
    fn number(&self, counter: u64) -> u64 {
        let (left, right) = halves(counter);
        let (left, right) =
            self.0.iter().fold((left, right), |(left, right), key| (right, left ^ step(*key, right)));
        left << HALF | right
    }

    /// Returns the position of this number.
    fn counter(&self, number: u64) -> u64 {
        let (left, right) = halves(number);
        let back = self.0.iter().rev();
        let (left, right) = back.fold((left, right), |(left, right), key| (right ^ step(*key, left), left));
        left << HALF | right
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Order(..)")
    }
}

fn halves(number: u64) -> (u64, u64) {
    (number >> HALF & HALF_MASK, number & HALF_MASK)
}

fn step(key: u64, half: u64) -> u64 {
    let product = u128::from(key ^ half) * u128::from(key.rotate_left(32) | 1);
    let [high, low] = [product >> 64, product].map(|part| part & u128::from(u64::MAX));
    u64::try_from((high ^ low) >> 20).unwrap_or_default() & HALF_MASK
}

/// Mixes the bits of a number, one to one (splitmix64).
const fn spread(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z
}

/// The beginning of every token in Redisson's format, a UUID. Redisson's own UUIDs are of version 4
/// and never start with it.
pub(crate) const REDISSON_PREFIX: &str = "646c6f63-6b31-";

/// The prefix of every token. A value without it belongs to a client of another library.
pub(crate) const PREFIX: &str = "dl2-";

/// 48 bits: at a million tokens per second, they last nine years.
const COUNTER_MASK: u64 = (1 << 48) - 1;

/// Four rounds are enough if each is random; these are not quite random.
const ROUNDS: usize = 6;
const HALF: u32 = 24;
const HALF_MASK: u64 = (1 << HALF) - 1;

/// 2^64 divided by the golden ratio.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_back_as_it_was_written() {
        let token = TokenSource::new().next();

        let text = token.to_string();

        assert_eq!(text.as_bytes(), token.written());
        assert_eq!(Token::parse(&text), Some(token));
        assert_eq!(token.process().token_prefix(), text[..ProcessId::TOKEN_PREFIX]);
    }

    #[test]
    fn a_step_depends_on_its_input_for_every_key_of_one_bit() {
        for bit in 0..64 {
            let steps: std::collections::HashSet<_> =
                (0..16).map(|part| step(1 << bit, part << 20)).collect();
            assert!(steps.len() > 1, "bit {bit}: the multiplier is even");
        }
    }

    #[test]
    fn numbers_are_not_consecutive_and_do_not_repeat() {
        const MANY: u64 = 100_000;
        let tokens = TokenSource::new();

        let numbers: Vec<_> = (0..MANY).map(|_| tokens.next().number()).collect();

        let distinct: std::collections::HashSet<_> = numbers.iter().collect();
        assert_eq!(distinct.len(), numbers.len());
        let near = numbers.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 1 << 24).count();
        // About one pair of 2^23, by chance.
        assert!(near <= 2, "{near} follow each other closely");
        let high = numbers.iter().filter(|number| **number >> 47 == 1).count();
        assert!((48_000..52_000).contains(&high), "{high} have the highest bit");
    }

    #[test]
    fn each_bit_of_the_counter_changes_half_of_the_number() {
        let order = Order::of(7);
        for bit in 0..48 {
            let changed: u32 =
                (0..1_000).map(|at| (order.number(at) ^ order.number(at ^ 1 << bit)).count_ones()).sum();
            assert!((22_000..26_000).contains(&changed), "bit {bit}: {changed} of 48,000");
        }
    }

    #[test]
    fn a_number_leads_back_to_its_counter() {
        for key in 0..50 {
            let order = Order::of(key);
            for counter in (0..100).chain([1 << 24, (1 << 24) - 1, 1 << 47, COUNTER_MASK]) {
                let number = order.number(counter);
                assert!(number <= COUNTER_MASK);
                assert_eq!(order.counter(number), counter);
            }
        }
    }

    #[test]
    fn managers_give_numbers_in_orders_of_their_own() {
        let (one, other) = (TokenSource::new(), TokenSource::new());

        let same = (0..1_000).filter(|_| one.next().number() == other.next().number()).count();

        assert_eq!(same, 0);
    }

    #[test]
    fn has_issued_is_false_for_other_tokens() {
        let tokens = TokenSource::of_process(1);
        let given: Vec<_> = (0..100).map(|_| tokens.next()).collect();
        assert!(given.iter().all(|token| tokens.has_issued(*token)));

        let forged = (0..100_000).filter_map(|number| Token::of_numbers(1, number));
        assert_eq!(forged.filter(|token| !given.contains(token) && tokens.has_issued(*token)).count(), 0);
        assert!(!TokenSource::of_process(2).has_issued(given[0]));
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
    fn other_text_is_not_parsed_as_a_token() {
        for text in [
            "",
            "dl2-",
            "dl2-00000000000000000000000000",
            "dl1-0000000000000000000000000001",
            "xx1-0000000000000000000000000000",
            "dl2-+000000000000000000000000000",
        ] {
            assert_eq!(Token::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_token_is_not_printed_by_debug() {
        let token = TokenSource::new().next();

        let (shown, whole) = (format!("{token:?}"), token.to_string());
        for start in 4..whole.len() - 6 {
            assert!(!shown.contains(&whole[start..start + 6]), "{shown} of {whole}");
        }
    }

    #[test]
    fn jitter_is_spread_up_to_its_limit() {
        let (jitter, longest) =
            (Jitter::of(TokenSource::of_process(7).process()), Duration::from_millis(100));

        let drawn: Vec<_> = (0..1_000).map(|_| jitter.up_to(longest)).collect();

        assert!(drawn.iter().all(|time| *time <= longest));
        for tenth in 0..10 {
            let of_tenth = |time: &&Duration| (tenth * 10..tenth * 10 + 10).contains(&time.as_millis());
            let count = drawn.iter().filter(of_tenth).count();
            assert!((50..150).contains(&count), "{count} of 1,000 in tenth {tenth}");
        }
    }
}
