//! What a server says and hears, as bytes: RESP, as far as our backend speaks it.
//!
//! Not here: what is said (`small_redis`).

/// What a server says.
#[derive(Clone, Debug)]
pub(super) enum SentinelReport {
    Line(&'static str),
    Error(&'static str),
    Int(i64),
    Text(String),
    Nil,
    List(Vec<SentinelReport>),
    Map(Vec<(SentinelReport, SentinelReport)>),
    Push(Vec<SentinelReport>),
}

impl SentinelReport {
    /// Returns it as bytes of RESP2, or of RESP3.
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

/// Takes the next command out of what a client has sent; `None` while its end is missing.
pub(super) fn next_command(heard: &mut Vec<u8>) -> Option<Vec<String>> {
    let mut rest = &heard[..];
    let words: usize = head(&mut rest, b'*')?;
    let mut command = Vec::with_capacity(words);
    for _ in 0..words {
        let length: usize = head(&mut rest, b'$')?;
        let (word, behind) = rest.split_at_checked(length + 2)?;
        command.push(String::from_utf8_lossy(&word[..length]).into_owned());
        rest = behind;
    }
    let taken = heard.len() - rest.len();
    heard.drain(..taken);
    Some(command)
}

/// Takes the head of a part; `None` while its end is missing.
fn head(rest: &mut &[u8], sign: u8) -> Option<usize> {
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    assert_eq!(rest[0], sign, "the client sends arrays of texts");
    let number = std::str::from_utf8(&rest[1..end]).ok()?.parse().expect("the client counts");
    *rest = &rest[end + 2..];
    Some(number)
}
