//! RESP, as far as the backend uses it.

/// A reply or message of the server.
#[derive(Clone, Debug)]
pub(super) enum RespValue {
    Line(&'static str),
    Error(&'static str),
    Int(i64),
    Text(String),
    Nil,
    List(Vec<RespValue>),
    Map(Vec<(RespValue, RespValue)>),
    Push(Vec<RespValue>),
}

impl RespValue {
    /// Encodes it as RESP2 or RESP3.
    pub(super) fn written(&self, resp3: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(resp3, &mut bytes);
        bytes
    }

    fn write(&self, resp3: bool, bytes: &mut Vec<u8>) {
        let mut line = |text: String| {
            bytes.extend_from_slice(text.as_bytes());
            bytes.extend_from_slice(b"\r\n");
        };
        match self {
            Self::Line(text) => line(format!("+{text}")),
            Self::Error(text) => line(format!("-{text}")),
            Self::Int(number) => line(format!(":{number}")),
            Self::Text(text) => line(format!("${}\r\n{text}", text.len())),
            Self::Nil => line(if resp3 { "_".to_owned() } else { "$-1".to_owned() }),
            Self::List(parts) | Self::Push(parts) => {
                let sign = if resp3 && matches!(self, Self::Push(_)) { '>' } else { '*' };
                line(format!("{sign}{}", parts.len()));
                for part in parts {
                    part.write(resp3, bytes);
                }
            }
            Self::Map(pairs) => {
                line(format!("%{}", pairs.len()));
                for (key, value) in pairs {
                    key.write(resp3, bytes);
                    value.write(resp3, bytes);
                }
            }
        }
    }
}

/// Removes the next command from the received bytes. Returns `None` if it is incomplete.
pub(super) fn next_command(received: &mut Vec<u8>) -> Option<Vec<String>> {
    let mut rest = &received[..];
    let words: usize = head(&mut rest, b'*')?;
    let mut command = Vec::with_capacity(words);
    for _ in 0..words {
        let length: usize = head(&mut rest, b'$')?;
        let (word, behind) = rest.split_at_checked(length + 2)?;
        command.push(String::from_utf8_lossy(&word[..length]).into_owned());
        rest = behind;
    }
    let taken = received.len() - rest.len();
    received.drain(..taken);
    Some(command)
}

/// Removes the header of an element. Returns `None` if it is incomplete.
fn head(rest: &mut &[u8], sign: u8) -> Option<usize> {
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    assert_eq!(rest[0], sign, "the client sends arrays of strings");
    let number = std::str::from_utf8(&rest[1..end]).ok()?.parse().expect("a number");
    *rest = &rest[end + 2..];
    Some(number)
}
