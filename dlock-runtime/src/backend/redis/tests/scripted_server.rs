//! A server whose replies a test decides.

use std::collections::HashMap;
use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::backend::redis::tests::resp::words;
use crate::backend::redis::transport::address::Address;
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::config::Settings;
use crate::config::node_spec::NodeSpec;
use crate::sync::lock;

/// The time limit of whatever a test waits for.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Returns settings whose timeouts do not end on a busy machine.
pub(crate) fn patient() -> Settings {
    let mut settings = Settings { connect_timeout: LIMIT, ..Settings::default() };
    settings.rules.response_timeout = LIMIT;
    settings.rules.tracking = false;
    settings
}

/// Returns the bytes to send after a command, whose words are separated by spaces.
type Script = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// A server on threads of its own, which reply while the runtime of a test is blocked. It ends when
/// it is dropped.
pub(crate) struct ScriptedServer {
    pub(crate) port: u16,
    shared: Arc<ServerState>,
    accepting: Option<JoinHandle<()>>,
}

struct ServerState {
    script: Script,
    /// The commands, and the numbers of their connections.
    received: Mutex<Vec<(String, usize)>>,
    /// The open connections, by number.
    streams: Mutex<HashMap<usize, TcpStream>>,
    has_ended: AtomicBool,
}

impl ScriptedServer {
    /// Starts a server that replies as `script` does. `None` closes the connection. After an empty
    /// reply, no other is sent on the connection: it would be taken for the reply to that command.
    pub(crate) fn start<R: Into<Option<String>>>(script: impl Fn(&str) -> R + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("this machine has a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let shared = Arc::new(ServerState {
            script: Box::new(move |command| script(command).into()),
            received: Mutex::default(),
            streams: Mutex::default(),
            has_ended: AtomicBool::new(false),
        });
        let state = Arc::clone(&shared);
        let accepting = std::thread::spawn(move || {
            for number in 0.. {
                let Ok((stream, _)) = listener.accept() else { return };
                if state.has_ended.load(Ordering::SeqCst) {
                    return;
                }
                let connection = stream.try_clone().expect("the stream is open");
                lock(&state.streams).insert(number, connection);
                let state = Arc::clone(&state);
                std::thread::spawn(move || {
                    state.serve(&stream, number);
                    let _ = stream.shutdown(Shutdown::Write);
                    // Without it, unread commands reset the connection, and replies are lost.
                    let _ = std::io::copy(&mut &stream, &mut std::io::sink());
                    lock(&state.streams).remove(&number);
                });
            }
        });
        Self { port, shared, accepting: Some(accepting) }
    }

    pub(crate) fn address(&self) -> Address {
        Address { host: "127.0.0.1".to_owned(), port: self.port }
    }

    pub(crate) fn spec(&self) -> NodeSpec {
        NodeSpec { host: "127.0.0.1".to_owned(), port: self.port, ..NodeSpec::default() }
    }

    /// Returns the server as a target of connections.
    pub(crate) fn target(&self, settings: &Settings) -> ConnectTarget {
        ConnectTarget::new(self.spec(), settings)
    }

    /// Returns the commands so far, each with the number of its connection.
    pub(crate) fn received(&self) -> Vec<(String, usize)> {
        lock(&self.shared.received).clone()
    }

    /// Returns how many of the commands so far begin with `words`.
    pub(crate) fn count(&self, words: &str) -> usize {
        lock(&self.shared.received).iter().filter(|(command, _)| command.starts_with(words)).count()
    }

    /// Returns `true` if a command so far begins with `words`.
    pub(crate) fn was_asked(&self, words: &str) -> bool {
        self.count(words) > 0
    }

    /// Sends bytes on every connection, such as a message to its subscribers.
    pub(crate) fn push(&self, bytes: &str) {
        for mut stream in lock(&self.shared.streams).values() {
            let _ = stream.write_all(bytes.as_bytes());
        }
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port)); // ends `accept`
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        for stream in lock(&self.shared.streams).values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl ServerState {
    /// Replies to the commands on a connection, until it is to be closed.
    fn serve(&self, mut stream: &TcpStream, number: usize) {
        let mut parser = redis::Parser::new();
        while let Ok(command) = parser.parse_value(stream) {
            let command = words(&command);
            lock(&self.received).push((command.clone(), number));
            let Some(reply) = (self.script)(&command) else { return };
            if reply.is_empty() {
                let _ = std::io::copy(&mut stream, &mut std::io::sink());
                return;
            }
            if stream.write_all(reply.as_bytes()).is_err() {
                return;
            }
        }
    }
}
