//! A minimal Redis protocol: framing of requests, and queries to a server.
//!
//! This client blocks, so it works under paused time and next to a blocked runtime. It sends only
//! the given commands and no greeting, so it does not distort the statistics of the server. Tests
//! that measure or pipeline use redis-rs instead.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A reply of a server in protocol version 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A status, such as `OK`.
    Status(String),
    /// An error with its code, such as `WRONGTYPE ...`.
    Error(String),
    /// A number.
    Integer(i64),
    /// A byte string, as text.
    Text(String),
    /// No value.
    Nil,
    /// A list of replies.
    List(Vec<Reply>),
}

impl Reply {
    /// Returns the number, or `None` if the reply is not a number.
    #[must_use]
    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns the text of a status, a string, or an error.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Status(text) | Self::Error(text) | Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the texts of a list, without its other elements.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        match self {
            Self::List(replies) => {
                replies.iter().filter_map(|reply| reply.text().map(str::to_owned)).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// A blocking connection that sends one command at a time.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    /// Connects to the local port `port`. Every later wait is limited by `limit`.
    ///
    /// # Errors
    ///
    /// Fails if no server accepts the connection within `limit`.
    pub fn connect(port: u16, limit: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), limit)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends one command and waits for its reply. An error from the server is a [`Reply::Error`].
    ///
    /// # Errors
    ///
    /// Fails if the connection breaks, the limit passes, or the reply is not Redis's protocol.
    pub fn call<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<Reply> {
        self.stream.get_mut().write_all(&encode(words))?;
        self.reply()
    }

    fn reply(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Some((kind, rest)) = line.trim_end().split_at_checked(1) else {
            return Err(not_redis(&line));
        };
        let number = || rest.parse::<i64>().map_err(|_| not_redis(&line));
        Ok(match kind {
            "+" => Reply::Status(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(number()?),
            "$" => match usize::try_from(number()?) {
                Err(_) => Reply::Nil,
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.stream.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Reply::Text(String::from_utf8_lossy(&bytes).into_owned())
                }
            },
            "*" => match usize::try_from(number()?) {
                Err(_) => Reply::Nil,
                Ok(length) => Reply::List((0..length).map(|_| self.reply()).collect::<io::Result<_>>()?),
            },
            _ => return Err(not_redis(&line)),
        })
    }
}

/// Returns the bytes of one command.
pub fn encode<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.as_ref().len()).as_bytes());
        bytes.extend_from_slice(word.as_ref());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Removes the first complete command from `buffer`, and returns its raw bytes and its words.
///
/// Returns `None` while the command is incomplete. Data that is not an array of strings is returned
/// unchanged, without words.
pub fn split_request(buffer: &mut Vec<u8>) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
    if buffer.is_empty() {
        return None;
    }
    match parse_request(buffer) {
        Parsed::Whole(length, words) => Some((buffer.drain(..length).collect(), words)),
        Parsed::Partial if buffer.len() < LARGEST_REQUEST => None,
        Parsed::Partial | Parsed::Foreign => Some((std::mem::take(buffer), Vec::new())),
    }
}

enum Parsed {
    Whole(usize, Vec<Vec<u8>>),
    Partial,
    Foreign,
}

fn parse_request(bytes: &[u8]) -> Parsed {
    let mut at = 0;
    let count = match header(bytes, &mut at, b'*') {
        Ok(count) => count,
        Err(other) => return other,
    };
    let mut words = Vec::new();
    for _ in 0..count {
        let length = match header(bytes, &mut at, b'$') {
            Ok(length) => length,
            Err(other) => return other,
        };
        match bytes.get(at..at.saturating_add(length)) {
            Some(word) if bytes.len() >= at + length + 2 => words.push(word.to_vec()),
            _ => return Parsed::Partial,
        }
        at += length + 2;
    }
    Parsed::Whole(at, words)
}

/// Reads `<kind><number>\r\n` at `at` and advances `at` past it.
fn header(bytes: &[u8], at: &mut usize, kind: u8) -> Result<usize, Parsed> {
    let rest = bytes.get(*at..).unwrap_or_default();
    if rest.first().is_some_and(|first| *first != kind) {
        return Err(Parsed::Foreign);
    }
    let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else {
        return Err(Parsed::Partial);
    };
    let digits = rest.get(1..end).and_then(|digits| std::str::from_utf8(digits).ok());
    let number = digits.and_then(|digits| digits.parse().ok()).ok_or(Parsed::Foreign)?;
    *at += end + 2;
    Ok(number)
}

fn not_redis(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not Redis's protocol: {line:?}"))
}

/// A larger request is passed on in pieces.
const LARGEST_REQUEST: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_returned_only_when_complete() {
        let whole = encode(&["SET", "a", "1"]);

        for cut in 1..whole.len() {
            let mut part = whole[..cut].to_vec();
            assert_eq!(split_request(&mut part), None, "cut at {cut}");
        }
    }

    #[test]
    fn two_requests_in_one_read_are_two() {
        let mut both = [encode(&["GET", "a"]), encode(&["DEL", "\r\n$1"])].concat();

        let first = split_request(&mut both).map(|(_, words)| words);
        let second = split_request(&mut both).map(|(_, words)| words);

        assert_eq!(first, Some(vec![b"GET".to_vec(), b"a".to_vec()]));
        assert_eq!(second, Some(vec![b"DEL".to_vec(), b"\r\n$1".to_vec()]));
        assert!(both.is_empty());
    }
}
