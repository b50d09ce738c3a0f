//! The framing of RESP: where a reply begins and ends, and which replies are too large to be read.
//!
//! The client library reads a reply of any size before it returns it. The scanner in this module
//! reads ahead of the library, and rejects a reply by the size that its header announces. The bytes
//! after a rejected reply cannot be framed, so the connection ends.

use std::fmt;

/// A scanner that finds where replies end.
#[derive(Debug)]
pub(super) struct Framing {
    state: ScanState,
    /// How many values are missing in each unfinished list.
    missing: [usize; MAX_DEPTH],
    depth: usize,
    /// The bytes and values of the current reply so far.
    reply: Size,
    limits: ReplyLimits,
    /// The first bytes of the reply, which distinguish messages from other replies.
    head: Head,
    /// The text of the reply if it is an error.
    error: Vec<u8>,
    /// Whether a complete reply has been received.
    has_replied: bool,
}

#[derive(Clone, Copy, Debug)]
enum ScanState {
    /// The byte that announces a type.
    Type,
    /// A number up to the end of its line, which is the length of a value.
    Length { of: Sized, digits: Digits },
    /// Text up to the end of its line.
    Line { length: usize, after_cr: bool },
    /// The remaining bytes of a body.
    Body(usize),
    /// The line end after a body.
    End { after_cr: bool },
}

/// The types that have a length.
#[derive(Clone, Copy, Debug)]
enum Sized {
    Body,
    /// A body that is never null.
    Blob,
    List,
    /// A list of keys and values.
    Map,
    /// A map, and the value that it belongs to.
    Attribute,
}

impl Sized {
    fn is_body(self) -> bool {
        matches!(self, Self::Body | Self::Blob)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Digits {
    number: usize,
    count: u8,
    is_negative: bool,
    after_cr: bool,
}

/// The size of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) bytes: usize,
    pub(super) values: usize,
}

/// The limits of one reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyLimits {
    bytes: usize,
    values: usize,
}

impl ReplyLimits {
    /// The limits of most replies.
    ///
    /// The largest that a lock needs are the value of a lock with a full queue, which is below 5
    /// KiB, and a message with a key of 512 bytes. `HELLO` has a few hundred values at most. Up to
    /// 100 replies are kept until the last of their pipeline is received.
    pub(super) const REPLY: Self = Self { bytes: 64 << 10, values: 1 << 10 };
    /// The limits of a reply that describes servers: `CLUSTER SLOTS`, `INFO`, and the replicas that
    /// Sentinel knows.
    ///
    /// The description of a cluster of 1,000 primaries with two replicas each and two ranges of
    /// slots per primary has 0.8 MB and 36,000 values.
    pub(super) const DESCRIPTION: Self = Self { bytes: 4 << 20, values: 1 << 17 };
}

/// Why no more bytes of a server are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// A reply has more bytes than this limit.
    TooLong(usize),
    /// A reply has more values than this limit.
    TooManyValues(usize),
    /// A reply has more nested lists than [`MAX_DEPTH`].
    TooDeep,
    /// The bytes are not RESP.
    Malformed,
    /// The first bytes of the connection are not RESP.
    Foreign,
    /// More bytes of messages than this limit wait to be handled.
    Backlog(usize),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(limit) => write!(f, "sent a reply of more than {} KiB", limit >> 10),
            Self::TooManyValues(limit) => write!(f, "sent a reply of more than {limit} values"),
            Self::TooDeep => write!(f, "sent a reply with more than {MAX_DEPTH} nested lists"),
            Self::Malformed | Self::Foreign => f.write_str("sent bytes that are not the Redis protocol"),
            Self::Backlog(limit) => write!(
                f,
                "sent messages faster than they are handled: more than {} MiB of them waited",
                limit >> 20
            ),
        }
    }
}

impl std::error::Error for Violation {}

/// A complete reply.
#[derive(Debug)]
pub(super) struct FramedReply<'a> {
    pub(super) head: &'a Head,
    pub(super) size: Size,
    /// The text of the reply if it is an error.
    pub(super) error: Option<&'a [u8]>,
}

/// The first bytes of a reply.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Head {
    bytes: [u8; HEAD],
    length: usize,
}

impl Head {
    pub(super) fn starts_with(&self, prefix: &[u8]) -> bool {
        self.bytes.get(..self.length).is_some_and(|head| head.starts_with(prefix))
    }

    fn extend(&mut self, bytes: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(self.length).zip(bytes) {
            *to = *from;
        }
        self.length = (self.length + bytes.len()).min(HEAD);
    }
}

/// Bytes that were rejected. Those before `at` may be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rejected {
    pub(super) at: usize,
    pub(super) violation: Violation,
}

impl Framing {
    pub(super) fn new() -> Self {
        Self {
            state: ScanState::Type,
            missing: [0; MAX_DEPTH],
            depth: 0,
            reply: Size::default(),
            limits: ReplyLimits::REPLY,
            head: Head::default(),
            error: Vec::new(),
            has_replied: false,
        }
    }

    /// Returns the text of an error whose end is missing.
    pub(super) fn unfinished_error(&self) -> Option<&[u8]> {
        (!self.error.is_empty()).then_some(&*self.error)
    }

    /// Scans the next bytes.
    ///
    /// `raise` returns the limits of a reply that exceeds [`ReplyLimits::REPLY`]. `on_reply` is
    /// called for each complete reply.
    ///
    /// # Errors
    ///
    /// Returns the position of the first byte that must not be read.
    pub(super) fn scan(
        &mut self,
        bytes: &[u8],
        mut raise: impl FnMut() -> Option<ReplyLimits>,
        mut on_reply: impl FnMut(FramedReply<'_>) -> Result<(), Violation>,
    ) -> Result<(), Rejected> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let before = rest;
            let scanned = self.step(&mut rest, &mut raise);
            let used = before.len() - rest.len();
            let scanned = scanned.and_then(|is_value| {
                self.reply.bytes += used;
                if self.head.length < HEAD {
                    self.head.extend(before.get(..used).unwrap_or_default());
                }
                if is_value && self.is_whole() { self.finish(&mut on_reply) } else { Ok(()) }
            });
            if let Err(violation) = scanned {
                return Err(Rejected { at: bytes.len() - before.len(), violation });
            }
        }
        Ok(())
    }

    /// Scans one header, or a part of a line or of a body. Returns `true` if a value has ended.
    fn step(
        &mut self,
        rest: &mut &[u8],
        raise: &mut impl FnMut() -> Option<ReplyLimits>,
    ) -> Result<bool, Violation> {
        match self.state {
            ScanState::Type => {
                let Some((kind, after)) = rest.split_first() else { return Ok(false) };
                *rest = after;
                self.state = match kind {
                    b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => {
                        ScanState::Line { length: 0, after_cr: false }
                    }
                    b'$' => ScanState::length_of(Sized::Body),
                    b'!' | b'=' => ScanState::length_of(Sized::Blob),
                    b'*' | b'~' | b'>' => ScanState::length_of(Sized::List),
                    b'%' => ScanState::length_of(Sized::Map),
                    b'|' => ScanState::length_of(Sized::Attribute),
                    _ => return Err(self.not_resp()),
                };
                Ok(false)
            }
            ScanState::Line { length, after_cr } => {
                let end = rest.iter().position(|byte| *byte == b'\n');
                let taken = end.map_or(rest.len(), |end| end + 1);
                let (line, after) = rest.split_at_checked(taken).unwrap_or((rest, &[]));
                let before_lf = line.len().checked_sub(2).and_then(|at| line.get(at));
                let has_cr = before_lf.map_or(after_cr && line.len() == 1, |byte| *byte == b'\r');
                let length = length + line.len();
                if length > LINE {
                    return Err(Violation::TooLong(LINE));
                }
                let bytes = self.reply.bytes + line.len();
                self.admit(Size { bytes, ..self.reply }, raise)?;
                if self.depth == 0 && self.head.starts_with(b"-") {
                    let room = LONGEST_ERROR.saturating_sub(self.error.len());
                    self.error.extend(line.iter().take(room));
                }
                *rest = after;
                let is_over = end.is_some() && has_cr;
                let after_cr = line.last() == Some(&b'\r');
                self.state = if is_over { ScanState::Type } else { ScanState::Line { length, after_cr } };
                Ok(is_over)
            }
            ScanState::Length { of, mut digits } => {
                let before = rest.len();
                while let Some((byte, after)) = rest.split_first() {
                    *rest = after;
                    if digits.after_cr {
                        return if *byte == b'\n' {
                            self.sized(of, digits, before - rest.len(), raise)
                        } else {
                            Err(self.not_resp())
                        };
                    }
                    match byte {
                        b'0'..=b'9' if digits.count < MOST_DIGITS => {
                            digits.number = digits.number * 10 + usize::from(byte - b'0');
                            digits.count += 1;
                        }
                        b'-' if digits.count == 0 && !digits.is_negative => digits.is_negative = true,
                        b'\r' if digits.count > 0 => digits.after_cr = true,
                        b'0'..=b'9' if of.is_body() => return Err(Violation::TooLong(self.limits.bytes)),
                        b'0'..=b'9' => return Err(Violation::TooManyValues(self.limits.values)),
                        _ => return Err(self.not_resp()),
                    }
                }
                self.state = ScanState::Length { of, digits };
                Ok(false)
            }
            ScanState::Body(left) => {
                let taken = left.min(rest.len());
                *rest = rest.get(taken..).unwrap_or_default();
                let is_over = taken == left;
                self.state =
                    if is_over { ScanState::End { after_cr: false } } else { ScanState::Body(left - taken) };
                Ok(false)
            }
            ScanState::End { after_cr } => {
                let Some((byte, after)) = rest.split_first() else { return Ok(false) };
                if *byte != if after_cr { b'\n' } else { b'\r' } {
                    return Err(self.not_resp());
                }
                *rest = after;
                self.state = if after_cr { ScanState::Type } else { ScanState::End { after_cr: true } };
                Ok(after_cr)
            }
        }
    }

    /// Begins a value whose length is known. Returns `true` if the value has ended.
    ///
    /// `scanned` is the number of bytes of this step, which `reply` does not count yet.
    fn sized(
        &mut self,
        of: Sized,
        digits: Digits,
        scanned: usize,
        raise: &mut impl FnMut() -> Option<ReplyLimits>,
    ) -> Result<bool, Violation> {
        self.state = ScanState::Type;
        let number = digits.number;
        let values = match of {
            Sized::Body | Sized::Blob => 0,
            Sized::List => number,
            Sized::Map => number * 2,
            Sized::Attribute => number * 2 + 1,
        };
        if digits.is_negative {
            // A null list or a null body of RESP2.
            let is_missing = number > 0 && matches!(of, Sized::List | Sized::Body);
            return if is_missing { Ok(true) } else { Err(self.not_resp()) };
        }
        let body = if of.is_body() { number + 2 } else { 0 };
        let bytes = self.reply.bytes + scanned + body;
        let wanted = Size { bytes, values: self.reply.values + values + 1 };
        self.admit(wanted, raise)?;
        if of.is_body() {
            self.state = ScanState::Body(number);
            return Ok(false);
        }
        self.reply.values += values;
        if values == 0 {
            return Ok(true);
        }
        let missing = self.missing.get_mut(self.depth).ok_or(Violation::TooDeep)?;
        *missing = values;
        self.depth += 1;
        Ok(false)
    }

    /// Checks that a reply may grow to `wanted`.
    fn admit(
        &mut self,
        wanted: Size,
        raise: &mut impl FnMut() -> Option<ReplyLimits>,
    ) -> Result<(), Violation> {
        if wanted.bytes > self.limits.bytes || wanted.values > self.limits.values {
            self.limits = raise().unwrap_or(self.limits);
        }
        if wanted.bytes > self.limits.bytes {
            return Err(Violation::TooLong(self.limits.bytes));
        }
        if wanted.values > self.limits.values {
            return Err(Violation::TooManyValues(self.limits.values));
        }
        Ok(())
    }

    /// Counts a value that has ended. Returns `true` if the reply has ended.
    fn is_whole(&mut self) -> bool {
        while let Some(missing) = self.depth.checked_sub(1).and_then(|last| self.missing.get_mut(last)) {
            *missing -= 1;
            if *missing > 0 {
                return false;
            }
            self.depth -= 1;
        }
        true
    }

    fn finish(
        &mut self,
        on_reply: &mut impl FnMut(FramedReply<'_>) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        let size = Size { values: self.reply.values + 1, ..self.reply };
        let error = (!self.error.is_empty()).then(|| self.error.trim_ascii_end());
        let accepted = on_reply(FramedReply { head: &self.head, size, error });
        self.error.clear();
        (self.reply, self.limits, self.head.length) = (Size::default(), ReplyLimits::REPLY, 0);
        self.has_replied = true;
        accepted
    }

    fn not_resp(&self) -> Violation {
        if self.has_replied { Violation::Malformed } else { Violation::Foreign }
    }
}

impl ScanState {
    fn length_of(of: Sized) -> Self {
        Self::Length { of, digits: Digits::default() }
    }
}

/// More than any reply has: `CLUSTER SLOTS` nests lists four deep.
const MAX_DEPTH: usize = 32;

/// The longest line that Redis itself reads.
const LINE: usize = 64 << 10;

/// A number of so many digits does not overflow, and one more digit exceeds every limit.
const MOST_DIGITS: u8 = 9;

/// Long enough for `*3\r\n$11\r\nunsubscribe\r\n`.
const HEAD: usize = 24;

const LONGEST_ERROR: usize = 256;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bounds::{assert_listed, written};

    /// Scans bytes in pieces of one length. Returns the sizes of complete replies, and the
    /// rejection.
    fn scan(bytes: &[u8], piece: usize, raised: Option<ReplyLimits>) -> (Vec<Size>, Option<Violation>) {
        let (mut framing, mut sizes) = (Framing::new(), Vec::new());
        for piece in bytes.chunks(piece) {
            let scanned = framing.scan(
                piece,
                || raised,
                |reply| {
                    sizes.push(reply.size);
                    Ok(())
                },
            );
            if let Err(rejected) = scanned {
                return (sizes, Some(rejected.violation));
            }
        }
        (sizes, None)
    }

    const REPLIES: [(&[u8], usize); 22] = [
        (b"+OK\r\n", 1),
        (b"+\r\n", 1),
        (b"+a\rb\nc\r\n", 1),
        (b"-ERR no\r\n", 1),
        (b":-7\r\n", 1),
        (b"_\r\n", 1),
        (b",1.5\r\n", 1),
        (b"#t\r\n", 1),
        (b"(123456789012345678901234567890\r\n", 1),
        (b"$-1\r\n", 1),
        (b"$0\r\n\r\n", 1),
        (b"$7\r\na\r\n+b\r\r\r\n", 1),
        (b"!5\r\nERR x\r\n", 1),
        (b"=7\r\ntxt:abc\r\n", 1),
        (b"*-1\r\n", 1),
        (b"*0\r\n", 1),
        (b"*2\r\n:1\r\n*2\r\n+a\r\n$1\r\nb\r\n", 5),
        (b"*2\r\n*0\r\n*0\r\n", 3),
        (b"%1\r\n+k\r\n*1\r\n:1\r\n", 4),
        (b"~1\r\n+k\r\n", 2),
        (b"|1\r\n+k\r\n+v\r\n+data\r\n", 4),
        (b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", 4),
    ];

    #[test]
    fn replies_are_framed_in_pieces_of_any_length() {
        for (reply, values) in REPLIES {
            let of_one = Size { bytes: reply.len(), values };
            for piece in 1..=reply.len() * 2 {
                let found = scan(&reply.repeat(3), piece, None);
                let reply = String::from_utf8_lossy(reply);
                assert_eq!(found, (vec![of_one; 3], None), "{reply:?} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn the_client_library_reads_framed_replies() {
        for (reply, _) in REPLIES {
            let read = redis::parse_redis_value(reply);
            assert!(read.is_ok(), "{:?}: {read:?}", String::from_utf8_lossy(reply));
        }
    }

    #[test]
    fn bytes_that_are_not_resp_are_rejected_as_such() {
        let strange: [&[u8]; 12] = [
            b"HTTP/1.1 400 Bad Request\r\n",
            b"\r\n",
            b"\0",
            b"$x\r\n",
            b"*\r\n",
            b"* OK IMAP4rev1 ready\r\n",
            b"$--1\r\n",
            b"$-0\r\n",
            b"!-1\r\n",
            b"$1\r\nab\r\n",
            b"$1\rx",
            b"*1\r\nHTTP\r\n",
        ];
        for bytes in strange {
            let text = String::from_utf8_lossy(bytes);
            assert_eq!(scan(bytes, 1, None).1, Some(Violation::Foreign), "{text:?}");
            let behind = [b"+OK\r\n", bytes].concat();
            assert_eq!(scan(&behind, 64, None).1, Some(Violation::Malformed), "{text:?}");
        }
    }

    #[test]
    fn bytes_before_a_rejected_reply_are_accepted() {
        let mut framing = Framing::new();

        let scanned = framing.scan(b"+OK\r\n*1\r\n$999999\r\n", || None, |_| Ok(()));

        let violation = Violation::TooLong(ReplyLimits::REPLY.bytes);
        assert_eq!(scanned, Err(Rejected { at: 10, violation }));
    }

    #[test]
    fn replies_beyond_a_bound_are_rejected_by_their_announcement() {
        let ReplyLimits { bytes, values } = ReplyLimits::REPLY;
        for (reply, violation) in [
            (format!("${bytes}\r\n"), Violation::TooLong(bytes)),
            ("$536870911\r\n".to_owned(), Violation::TooLong(bytes)),
            ("$99999999999999999999\r\n".to_owned(), Violation::TooLong(bytes)),
            (format!("*{values}\r\n"), Violation::TooManyValues(values)),
            ("*1000000000\r\n".to_owned(), Violation::TooManyValues(values)),
            (format!("%{}\r\n", values / 2), Violation::TooManyValues(values)),
            (format!("|{}\r\n", values / 2), Violation::TooManyValues(values)),
            ("*1\r\n".repeat(MAX_DEPTH + 1), Violation::TooDeep),
        ] {
            assert_eq!(scan(reply.as_bytes(), 7, None), (Vec::new(), Some(violation)), "{reply}");
        }
    }

    #[test]
    fn replies_at_a_bound_are_accepted() {
        let ReplyLimits { bytes, values } = ReplyLimits::REPLY;
        let body = bytes - "$65528\r\n\r\n".len();
        for reply in [
            format!("${body}\r\n{}\r\n", "a".repeat(body)),
            format!("*{}\r\n{}", values - 1, ":1\r\n".repeat(values - 1)),
            format!("{}:1\r\n", "*1\r\n".repeat(MAX_DEPTH)),
            format!("*2\r\n:1\r\n$30000\r\n{}\r\n", "a".repeat(30_000)),
        ] {
            let (sizes, violation) = scan(reply.as_bytes(), 4096, None);
            assert_eq!((sizes.len(), violation), (1, None), "{}", &reply[..20]);
        }
    }

    #[test]
    fn the_guide_lists_the_bounds_of_replies() {
        let ReplyLimits { bytes, values } = ReplyLimits::REPLY;
        assert_listed("one reply of a server", &format!("{} KiB", bytes >> 10));
        assert_listed("one reply of a server", &format!("{} values", written(values)));
        assert_listed("one reply of a server", &format!("at most {MAX_DEPTH} nested lists"));
        let ReplyLimits { bytes, values } = ReplyLimits::DESCRIPTION;
        assert_listed("a reply that describes servers", &format!("{} MiB", bytes >> 20));
        assert_listed("a reply that describes servers", &format!("{} values", written(values)));
        assert_listed("a reply that describes servers", &format!("one line at most {} KiB", LINE >> 10));
    }

    #[test]
    fn replies_that_grow_beyond_a_bound_are_rejected() {
        let ReplyLimits { bytes, values } = ReplyLimits::REPLY;
        let line = format!("+{}", "a".repeat(LINE));
        let lines = format!("*9\r\n{}", format!("+{}\r\n", "a".repeat(bytes / 8)).repeat(9));
        let lists = format!("*2\r\n*9\r\n{}*{values}\r\n", ":1\r\n".repeat(9));

        assert_eq!(scan(line.as_bytes(), 4096, None).1, Some(Violation::TooLong(LINE)));
        assert_eq!(scan(lines.as_bytes(), 4096, None).1, Some(Violation::TooLong(bytes)));
        assert_eq!(scan(lists.as_bytes(), 4096, None).1, Some(Violation::TooManyValues(values)));
    }

    #[test]
    fn a_description_may_be_larger_than_other_replies() {
        let entry = "*3\r\n:0\r\n:1\r\n*2\r\n$9\r\n127.0.0.1\r\n:6379\r\n";
        let slots = format!("*4000\r\n{}", entry.repeat(4_000));
        let larger = ReplyLimits::DESCRIPTION;

        assert!(scan(slots.as_bytes(), 4096, None).1.is_some());
        assert_eq!(scan(slots.as_bytes(), 4096, Some(larger)).1, None);
        let endless = format!("*4000\r\n{}", "$999999\r\n".to_owned() + &"a".repeat(999_999) + "\r\n");
        let endless = endless.clone() + &endless.trim_start_matches("*4000\r\n").repeat(5);
        assert_eq!(scan(endless.as_bytes(), 1 << 16, Some(larger)).1, Some(Violation::TooLong(larger.bytes)));
    }

    #[test]
    fn error_replies_are_reported_with_their_text() {
        let (mut framing, mut errors) = (Framing::new(), Vec::new());

        for piece in b"+OK\r\n-DENIED go away\r\n$2\r\n-a\r\n-ERR".chunks(3) {
            let on_reply = |reply: FramedReply<'_>| {
                errors.push(reply.error.map(|error| String::from_utf8_lossy(error).into_owned()));
                Ok(())
            };
            framing.scan(piece, || None, on_reply).expect("it is RESP");
        }

        assert_eq!(errors, [None, Some("DENIED go away".to_owned()), None]);
        assert_eq!(framing.unfinished_error(), Some(&b"ERR"[..]));
    }

    /// Bytes that are RESP in most cases.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            proptest::sample::select(REPLIES.map(|(reply, _)| reply.to_vec()).to_vec()),
            proptest::collection::vec(proptest::sample::select(b"+-:$*%>|~!=_#(,019\r\na".to_vec()), 0..6),
            Just(b"\r\n".to_vec()),
        ];
        proptest::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn framing_does_not_depend_on_how_bytes_arrive(bytes in bytes(), piece in 1..9_usize) {
            prop_assert_eq!(scan(&bytes, piece, None), scan(&bytes, bytes.len().max(1), None));
        }

        #[test]
        fn the_client_library_ends_each_reply_where_framing_does(bytes in bytes()) {
            let mut rest = &bytes[..];
            for size in scan(&bytes, 7, None).0 {
                let (reply, behind) = rest.split_at(size.bytes);
                rest = behind;
                if let Err(error) = redis::parse_redis_value(reply) {
                    prop_assert!(error.kind() == redis::ErrorKind::Parse, "{reply:?}: {error}");
                }
            }
        }
    }

    #[test]
    fn a_line_may_have_64_kib_with_its_end() {
        let larger = Some(ReplyLimits::DESCRIPTION);
        let longest = format!("+{}\r\n", "a".repeat(LINE - 2));
        let longer = format!("+{}\r\n", "a".repeat(LINE - 1));

        for piece in [4_096, longer.len()] {
            assert_eq!(scan(longest.as_bytes(), piece, larger).1, None, "in pieces of {piece}");
            let violation = scan(longer.as_bytes(), piece, larger).1;
            assert_eq!(violation, Some(Violation::TooLong(LINE)), "in pieces of {piece}");
        }
    }

    /// Returns a list of lines that has this many bytes.
    fn lines(bytes: usize) -> String {
        let before = format!("*9\r\n{}", format!("+{}\r\n", "a".repeat(bytes / 9)).repeat(8));
        let last = bytes - before.len() - "+\r\n".len();
        format!("{before}+{}\r\n", "a".repeat(last))
    }

    #[test]
    fn the_bytes_of_all_lines_of_a_reply_count() {
        let ReplyLimits { bytes, .. } = ReplyLimits::REPLY;

        assert_eq!(scan(lines(bytes).as_bytes(), 512, None).1, None);
        assert_eq!(scan(lines(bytes + 1).as_bytes(), 512, None).1, Some(Violation::TooLong(bytes)));
    }

    #[test]
    fn the_bytes_of_headers_count_however_they_arrive() {
        let limit = ReplyLimits::REPLY.bytes;
        for bytes in [limit, limit + 1] {
            let body = bytes - "*2\r\n:1\r\n$65528\r\n\r\n".len();
            let reply = format!("*2\r\n:1\r\n${body}\r\n{}\r\n", "a".repeat(body));
            let violation = (bytes > limit).then_some(Violation::TooLong(limit));
            for piece in (1..20).chain([bytes]) {
                let found = scan(reply.as_bytes(), piece, None).1;
                assert_eq!(found, violation, "{bytes} bytes in pieces of {piece}");
            }
        }
    }

    #[test]
    fn a_number_of_ten_digits_is_rejected_before_its_end() {
        let ReplyLimits { bytes, values } = ReplyLimits::REPLY;

        assert_eq!(scan(b"$0000000001", 1, None).1, Some(Violation::TooLong(bytes)));
        assert_eq!(scan(b"*0000000001", 1, None).1, Some(Violation::TooManyValues(values)));
    }

    #[test]
    fn limits_are_raised_once_and_only_for_a_reply_that_needs_it() {
        let ReplyLimits { bytes, values } = ReplyLimits::REPLY;
        let body = |length: usize| format!("${length}\r\n{}\r\n", "a".repeat(length));
        let list = |length: usize| format!("*{length}\r\n{}", ":1\r\n".repeat(length));

        for (reply, is_larger) in [
            (lines(bytes), false),
            (lines(bytes + 1), true),
            (body(bytes), true),
            (list(values - 1), false),
            (list(values), true),
            ("+OK\r\n".to_owned(), false),
        ] {
            let (mut framing, mut raised) = (Framing::new(), 0);
            let raise = || {
                raised += 1;
                Some(ReplyLimits::DESCRIPTION)
            };

            let scanned = framing.scan(reply.as_bytes(), raise, |_| Ok(()));

            assert_eq!((scanned, raised), (Ok(()), i32::from(is_larger)), "{:?}", reply.get(..8));
        }
    }
}
