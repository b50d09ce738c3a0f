//! A proxy that lacks commands, like managed services and proxies for Redis.
//!
//! It forwards commands one by one. A missing command is either answered with an error, in order,
//! or ends the connection.

use std::io::{self, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::Value;

use crate::server::RedisServer;

/// The reaction of the proxy to a command that it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The error for an unknown command.
    Unknown,
    /// The error for a missing permission.
    Forbidden,
    /// The proxy closes the connection.
    Closes,
    /// The proxy closes the connection after this time.
    ClosesAfter(Duration),
}

impl Lack {
    /// The reactions without a delay.
    pub const ALL: [Self; 3] = [Self::Unknown, Self::Forbidden, Self::Closes];
}

/// A proxy in front of a server. It accepts no connections after it is dropped.
#[derive(Debug)]
pub struct FilterProxy {
    port: u16,
    access: String,
    passed: Arc<Mutex<Vec<String>>>,
    is_over: Arc<AtomicBool>,
}

impl FilterProxy {
    /// Starts a proxy that lacks `commands`, such as `SCRIPT LOAD`.
    ///
    /// # Panics
    ///
    /// Panics if no port is available.
    #[must_use]
    pub fn in_front_of(server: &RedisServer, commands: &[(&'static str, Lack)]) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("this machine has a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let (target, commands) = (server.port(), commands.to_vec());
        let (passed, is_over) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(AtomicBool::new(false)));
        let (notes, over) = (Arc::clone(&passed), Arc::clone(&is_over));
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let (commands, notes) = (commands.clone(), Arc::clone(&notes));
                std::thread::spawn(move || drop(carry(&client, target, &commands, &notes)));
            }
        });
        Self { port, access: server.access().to_owned(), passed, is_over }
    }

    /// Returns the URL of the proxy, followed by `suffix`, such as `?namespace=shop`.
    #[must_use]
    pub fn url_with(&self, suffix: &str) -> String {
        format!("redis://{}127.0.0.1:{}{suffix}", self.access, self.port)
    }

    /// Returns the port of the proxy.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns how often a command was received, forwarded or not.
    #[must_use]
    pub fn count(&self, command: &str) -> usize {
        let noted = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        noted.iter().filter(|name| name.starts_with(command)).count()
    }
}

impl Drop for FilterProxy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port)); // wakes `accept`
    }
}

fn carry(
    client: &TcpStream,
    target: u16,
    lacks: &[(&str, Lack)],
    notes: &Mutex<Vec<String>>,
) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", target))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut replies, mut to_client) = (server.try_clone()?, client.try_clone()?);
    std::thread::spawn(move || {
        let _ = io::copy(&mut replies, &mut to_client);
        let _ = to_client.shutdown(Shutdown::Both);
    });
    let carried = carry_requests(client, &server, lacks, notes);
    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
    carried
}

fn carry_requests(
    client: &TcpStream,
    mut server: &TcpStream,
    lacks: &[(&str, Lack)],
    notes: &Mutex<Vec<String>>,
) -> io::Result<()> {
    let (mut parser, mut requests) = (redis::Parser::new(), client);
    while let Ok(Value::Array(words)) = parser.parse_value(&mut requests) {
        let words: Vec<Vec<u8>> = words
            .into_iter()
            .map(|word| if let Value::BulkString(word) = word { word } else { Vec::new() })
            .collect();
        let name = |word: &Vec<u8>| String::from_utf8_lossy(word).to_ascii_uppercase();
        let full = words.iter().take(2).map(name).collect::<Vec<_>>().join(" ");
        notes.lock().unwrap_or_else(PoisonError::into_inner).push(full.clone());
        let is_it = |command: &str| full == command || full.split(' ').next() == Some(command);
        let lack = lacks.iter().find(|(command, _)| is_it(command));
        let first = full.split(' ').next().unwrap_or_default().to_ascii_lowercase();
        let error = match lack {
            None => {
                server.write_all(&packed(&words))?;
                continue;
            }
            Some((_, Lack::Closes)) => return Ok(()),
            Some((_, Lack::ClosesAfter(delay))) => {
                std::thread::sleep(*delay);
                return Ok(());
            }
            Some((_, Lack::Unknown)) => format!("ERR unknown command '{first}', with args beginning with: "),
            Some((command, Lack::Forbidden)) => {
                let command = command.to_ascii_lowercase().replace(' ', "|");
                format!("NOPERM User app has no permissions to run the '{command}' command")
            }
        };
        // The server sends the error, so that it has the right position among the replies.
        let said: [&[u8]; 4] = [b"EVAL", b"return redis.error_reply(ARGV[1])", b"0", error.as_bytes()];
        server.write_all(&packed(&said))?;
    }
    Ok(())
}

fn packed<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.as_ref();
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend(word);
        bytes.extend(b"\r\n");
    }
    bytes
}
