//! A fake server whose replies a test decides, and the receiver of the events of a topology.

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::Value;

use crate::backend::event_effects::EventEffects;
use crate::backend::redis::transport::address::Address;
use crate::backend::redis::transport::error_kind;
use crate::backend::{BackendEvents, Request};
use crate::config::Settings;
use crate::config::node_spec::NodeSpec;
use crate::key::Name;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootInstant;
use crate::protocol::foreign_clients::Grant;
use crate::sync::lock;
use crate::token::Token;

/// The reply in RESP to a command, whose words are separated by spaces.
type Script = Box<dyn Fn(&str) -> String + Send + Sync>;

/// A fake server, on threads of its own. It ends when it is dropped.
pub(in crate::backend::redis) struct ScriptedServer {
    pub(in crate::backend::redis) port: u16,
    shared: Arc<ServerState>,
    accepting: Option<std::thread::JoinHandle<()>>,
}

struct ServerState {
    script: Script,
    received: Mutex<Vec<String>>,
    streams: Mutex<Vec<TcpStream>>,
    has_ended: AtomicBool,
}

impl ScriptedServer {
    /// Starts a server. It confirms subscriptions itself, and sends nothing for an empty reply.
    pub(in crate::backend::redis) fn start(script: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("this machine has a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let shared = Arc::new(ServerState {
            script: Box::new(script),
            received: Mutex::default(),
            streams: Mutex::default(),
            has_ended: AtomicBool::new(false),
        });
        let state = Arc::clone(&shared);
        let accepting = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if state.has_ended.load(Ordering::SeqCst) {
                    return;
                }
                lock(&state.streams).push(stream.try_clone().expect("the stream is open"));
                let state = Arc::clone(&state);
                std::thread::spawn(move || state.serve(stream));
            }
        });
        Self { port, shared, accepting: Some(accepting) }
    }

    pub(in crate::backend::redis) fn address(&self) -> Address {
        Address { host: "127.0.0.1".to_owned(), port: self.port }
    }

    pub(in crate::backend::redis) fn spec(&self) -> NodeSpec {
        NodeSpec { host: "127.0.0.1".to_owned(), port: self.port, ..NodeSpec::default() }
    }

    /// Returns the commands that it has received, without those that begin a connection.
    pub(in crate::backend::redis) fn received(&self) -> Vec<String> {
        let received = lock(&self.shared.received).clone();
        received.into_iter().filter(|command| !command.starts_with("CLIENT SETINFO")).collect()
    }

    /// Returns `true` if it has received a command that starts so.
    pub(in crate::backend::redis) fn was_asked(&self, start: &str) -> bool {
        self.received().iter().any(|command| command.starts_with(start))
    }

    /// Sends bytes on every connection, such as a message to its subscribers.
    pub(in crate::backend::redis) fn push(&self, bytes: &str) {
        for mut stream in &*lock(&self.shared.streams) {
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
        for stream in &*lock(&self.shared.streams) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl ServerState {
    fn serve(&self, mut stream: TcpStream) {
        let mut parser = redis::Parser::new();
        while let Ok(Value::Array(words)) = parser.parse_value(&mut stream) {
            let words: Vec<_> = words.iter().filter_map(error_kind::text).collect();
            let command = words.join(" ");
            lock(&self.received).push(command.clone());
            let mut reply = (self.script)(&command);
            if words.first() == Some(&"SUBSCRIBE") && reply == OK {
                let confirmed =
                    |channel: &&str| format!("*3\r\n{}{}:1\r\n", bulk("subscribe"), bulk(channel));
                reply = words.iter().skip(1).map(confirmed).collect();
            }
            if stream.write_all(reply.as_bytes()).is_err() {
                return;
            }
        }
    }
}

/// The settings of tests: a busy machine is given time to reply.
pub(in crate::backend::redis) fn patient() -> Settings {
    let mut settings = Settings { connect_timeout: LIMIT, ..Settings::default() };
    settings.rules.response_timeout = LIMIT;
    settings.rules.tracking = false;
    settings
}

/// The time limit of whatever a test waits for.
pub(in crate::backend::redis) const LIMIT: Duration = Duration::from_secs(20);

/// The reply of a primary without keys.
pub(in crate::backend::redis) fn primary(command: &str) -> String {
    match command.split(' ').next() {
        Some("ROLE") => list(&["master"]),
        Some("SCRIPT") => bulk("hash"),
        _ => OK.to_owned(),
    }
}

/// The reply to a command that succeeds.
pub(in crate::backend::redis) const OK: &str = "+OK\r\n";

/// Encodes a text.
pub(in crate::backend::redis) fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// Encodes a list of texts.
pub(in crate::backend::redis) fn list(texts: &[&str]) -> String {
    format!("*{}\r\n{}", texts.len(), texts.iter().map(|text| bulk(text)).collect::<String>())
}

/// Encodes the view of a cluster: ranges of slots, each with its primary and its replicas.
pub(in crate::backend::redis) fn slots(ranges: &[(u16, u16, &[&Address])]) -> String {
    let server = |at: &&Address| format!("*2\r\n{}:{}\r\n", bulk(&at.host), at.port);
    let range = |(first, last, servers): &(u16, u16, &[&Address])| {
        let shown: String = servers.iter().map(server).collect();
        format!("*{}\r\n:{first}\r\n:{last}\r\n{shown}", servers.len() + 2)
    };
    format!("*{}\r\n{}", ranges.len(), ranges.iter().map(range).collect::<String>())
}

/// Returns the script of a server of a cluster that reports this state and these ranges of slots.
pub(in crate::backend::redis) fn reports(
    state: &str,
    ranges: &[(u16, u16, &[&Address])],
) -> impl Fn(&str) -> String + Send + Sync + use<> {
    let (info, slots) = (bulk(&format!("cluster_state:{state}\r\n")), slots(ranges));
    move |command| match command {
        "CLUSTER INFO" => info.clone(),
        "CLUSTER SLOTS" => slots.clone(),
        _ => primary(command),
    }
}

/// Records the events of a backend.
#[derive(Debug, Default)]
pub(in crate::backend::redis) struct RecordedEvents {
    pub(in crate::backend::redis) replies: Mutex<Vec<(Request, Reply)>>,
    pub(in crate::backend::redis) grants: Mutex<Vec<Name>>,
    pub(in crate::backend::redis) invalidations: Mutex<Vec<Option<Name>>>,
    /// Of each reconnect, whether the server has moved, and the keys of [`Self::keys`] that it
    /// concerns.
    pub(in crate::backend::redis) reconnects: Mutex<Vec<(bool, Vec<&'static str>)>>,
    /// The keys in use.
    pub(in crate::backend::redis) keys: Vec<&'static str>,
}

impl RecordedEvents {
    /// Returns the keys and reasons of refused requests.
    pub(in crate::backend::redis) fn refused(&self) -> Vec<(String, String)> {
        let replies = lock(&self.replies);
        let refused = replies.iter().filter_map(|(request, reply)| match reply {
            Reply::Refused(failure) => Some((request.key.to_string(), failure.reason.to_string())),
            _ => None,
        });
        refused.collect()
    }
}

impl BackendEvents for RecordedEvents {
    fn on_reply(
        &self,
        request: Request,
        reply: Reply,
        _sent: BootInstant,
        _now: BootInstant,
        _effects: &mut EventEffects,
    ) -> Vec<(Name, Token)> {
        lock(&self.replies).push((request, reply));
        Vec::new()
    }

    fn on_grant(
        &self,
        key: &Name,
        _token: Token,
        _grant: Grant,
        _now: BootInstant,
        _effects: &mut EventEffects,
    ) {
        lock(&self.grants).push(Name::clone(key));
    }

    fn on_invalidation(&self, key: Option<&Name>, _now: BootInstant, _effects: &mut EventEffects) {
        lock(&self.invalidations).push(key.cloned());
    }

    fn on_reconnect(
        &self,
        moved: bool,
        concerns: &dyn Fn(&str) -> bool,
        _now: BootInstant,
        _effects: &mut EventEffects,
    ) {
        let concerned = self.keys.iter().copied().filter(|key| concerns(key)).collect();
        lock(&self.reconnects).push((moved, concerned));
    }

    fn on_timeout(&self, _now: BootInstant, _effects: &mut EventEffects) -> BootInstant {
        BootInstant::NEVER
    }

    fn due(&self) -> BootInstant {
        BootInstant::NEVER
    }

    fn is_in_use(&self, _key: &Name) -> bool {
        true
    }

    #[cfg(feature = "testing")]
    fn waiting(&self, _key: &Name) -> usize {
        0
    }
}
