//! A server that replies with whatever a test specifies.
//!
//! It implements enough of the protocol to pass for an empty Redis: greeting, login, scripts, and
//! subscriptions. For each command, it first calls a closure of the test, which may reply with an
//! error, with garbage, with silence, or by closing the connection.
//!
//! It has no lock logic: every `SET` returns `OK`, and every script returns `1`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::io_thread::IoThread;
use crate::resp::split_request;

/// A hostile server. It is closed on drop.
#[derive(Debug)]
pub struct HostileServer {
    port: u16,
    counts: Counts,
    _thread: IoThread,
}

impl HostileServer {
    /// Starts a server on a free port of 127.0.0.1 that calls `script` for every command on a
    /// separate thread.
    ///
    /// # Panics
    ///
    /// Panics if no port is available.
    #[must_use]
    pub fn start(script: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        Self::launch(Script { answer: Arc::new(script), greeting: None })
    }

    /// Starts a server that sends `bytes` to each new client, and then nothing else.
    ///
    /// If `hangs_up` is true, it also closes the connection.
    ///
    /// # Panics
    ///
    /// Panics if no port is available.
    #[must_use]
    pub fn greeting(bytes: &[u8], hangs_up: bool) -> Self {
        let greeting = Some((Arc::from(bytes), hangs_up));
        Self::launch(Script { answer: Arc::new(|_| Answer::Silence), greeting })
    }

    fn launch(script: Script) -> Self {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("this machine has a free port");
        listener.set_nonblocking(true).expect("a socket can be made non-blocking");
        let port = listener.local_addr().expect("a bound socket has an address").port();

        let counts = Counts::default();
        let seen = counts.clone();
        let thread = IoThread::spawn("test-hostile", move || async move {
            let listener = TcpListener::from_std(listener).expect("the server's runtime takes its socket");
            serve(listener, script, seen).await;
        });
        Self { port, counts, _thread: thread }
    }

    /// Starts a server that replies to the commands `names` with `answer`, and to others as a Redis
    /// would.
    #[must_use]
    pub fn answering(names: &'static [&'static str], answer: &Answer) -> Self {
        let answer = answer.clone();
        Self::start(
            move |request| {
                if names.contains(&request.name()) { answer.clone() } else { Answer::Usual }
            },
        )
    }

    /// Returns the URL of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the port of the server.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns how often the command `name`, in capitals, was received.
    #[must_use]
    pub fn count(&self, name: &str) -> usize {
        self.counts.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied().unwrap_or_default()
    }
}

/// A command that the server received.
#[derive(Clone, PartialEq, Eq)]
pub struct Request {
    name: String,
    words: Vec<Vec<u8>>,
    /// The number of the command on its connection, from 0.
    pub index: usize,
}

impl Request {
    fn new(words: Vec<Vec<u8>>, index: usize) -> Self {
        let name = words.first().map(|word| String::from_utf8_lossy(word).to_uppercase()).unwrap_or_default();
        Self { name, words, index }
    }

    /// Returns the name of the command in capitals.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the word at `position` as text, or an empty text if it is missing. The name is at 0.
    #[must_use]
    pub fn word(&self, position: usize) -> String {
        self.words.get(position).map(|word| String::from_utf8_lossy(word).into_owned()).unwrap_or_default()
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries((0..self.words.len()).map(|position| self.word(position))).finish()
    }
}

/// The reply to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The reply of an empty Redis.
    Usual,
    /// An error with its code: `LOADING Redis is loading the dataset in memory`.
    Error(&'static str),
    /// These bytes.
    Raw(Vec<u8>),
    /// These bytes, followed by the end of the connection.
    RawThenClose(Vec<u8>),
    /// The usual reply, the first text once, and then the second text until the client disconnects.
    UsualThenFlood(&'static str, &'static str),
    /// The first text once, and then the second text until the client disconnects.
    Flood(&'static str, &'static str),
    /// These bytes, one every 20 ms.
    Trickle(Vec<u8>),
    /// No reply, ever. Later commands of the connection get no reply either, because replies are in
    /// order.
    Silence,
    /// The end of the connection.
    Close,
}

#[derive(Clone)]
struct Script {
    answer: Arc<dyn Fn(&Request) -> Answer + Send + Sync>,
    /// The bytes that each client is sent first, and whether the connection is closed after them.
    greeting: Option<(Arc<[u8]>, bool)>,
}

#[derive(Clone, Debug, Default)]
struct Counts(Arc<Mutex<BTreeMap<String, usize>>>);

impl Counts {
    fn add(&self, name: &str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(name.to_owned()).or_default() += 1;
    }
}

async fn serve(listener: TcpListener, script: Script, counts: Counts) {
    let slots = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok((client, _)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        let Ok(permit) = Arc::clone(&slots).try_acquire_owned() else { continue };
        let (script, counts) = (script.clone(), counts.clone());
        tokio::spawn(async move {
            // How the connection of a client ends does not matter.
            let _ = converse(client, &script, &counts).await;
            drop(permit);
        });
    }
}

async fn converse(mut client: TcpStream, script: &Script, counts: &Counts) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    if let Some((greeting, hangs_up)) = &script.greeting {
        client.write_all(greeting).await?;
        if *hangs_up {
            return Ok(());
        }
    }
    let mut conversation = Usual::default();
    let mut buffer = Vec::new();
    let mut is_silent = false;
    let mut index = 0;
    while client.read_buf(&mut buffer).await? > 0 {
        while let Some((_, words)) = split_request(&mut buffer) {
            let request = Request::new(words, index);
            index += 1;
            counts.add(request.name());
            if is_silent {
                continue;
            }
            match (script.answer)(&request) {
                Answer::Usual => client.write_all(&conversation.answer(&request)).await?,
                Answer::Error(text) => client.write_all(format!("-{text}\r\n").as_bytes()).await?,
                Answer::Raw(bytes) => client.write_all(&bytes).await?,
                Answer::RawThenClose(bytes) => {
                    client.write_all(&bytes).await?;
                    return Ok(());
                }
                Answer::UsualThenFlood(first, again) => {
                    client.write_all(&conversation.answer(&request)).await?;
                    flood(&mut client, first, again).await?;
                }
                Answer::Flood(first, again) => flood(&mut client, first, again).await?,
                Answer::Trickle(bytes) => {
                    for byte in bytes {
                        client.write_all(&[byte]).await?;
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
                Answer::Silence => is_silent = true,
                Answer::Close => return Ok(()),
            }
        }
    }
    Ok(())
}

/// Sends until the client disconnects.
async fn flood(client: &mut TcpStream, first: &str, again: &str) -> std::io::Result<()> {
    client.write_all(first.as_bytes()).await?;
    let again = again.repeat((64 << 10) / again.len().max(1));
    loop {
        client.write_all(again.as_bytes()).await?;
    }
}

/// The replies of an empty Redis on one connection.
#[derive(Debug, Default)]
struct Usual {
    speaks_version_3: bool,
    subscriptions: usize,
}

impl Usual {
    fn answer(&mut self, request: &Request) -> Vec<u8> {
        match request.name() {
            "HELLO" => self.greet(&request.word(1)),
            "SCRIPT" if request.word(1).eq_ignore_ascii_case("LOAD") => bulk(&digest(&request.word(2))),
            "SCRIPT" if request.word(1).eq_ignore_ascii_case("EXISTS") => b"*1\r\n:1\r\n".to_vec(),
            "CLIENT" if request.word(1).eq_ignore_ascii_case("ID") => b":7\r\n".to_vec(),
            "AUTH" | "SELECT" | "CLIENT" | "SCRIPT" | "SET" | "READONLY" | "ASKING" => b"+OK\r\n".to_vec(),
            "PING" => b"+PONG\r\n".to_vec(),
            "EVAL" | "EVALSHA" | "DEL" | "PEXPIRE" | "PUBLISH" => b":1\r\n".to_vec(),
            "PTTL" => b":-2\r\n".to_vec(),
            "GET" => self.nil(),
            "GETRANGE" => bulk(""),
            "EXISTS" => b":0\r\n".to_vec(),
            "TIME" => b"*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n".to_vec(),
            "ROLE" => b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".to_vec(),
            "INFO" => bulk("# Server\r\nredis_version:7.0.15\r\nrole:master\r\n"),
            "SUBSCRIBE" | "UNSUBSCRIBE" => self.subscribe(request),
            name => format!("-ERR unknown command '{name}'\r\n").into_bytes(),
        }
    }

    fn greet(&mut self, version: &str) -> Vec<u8> {
        self.speaks_version_3 = version == "3";
        let (start, version) = if self.speaks_version_3 { ("%4", 3) } else { ("*8", 2) };
        let fields = [bulk("server"), bulk("redis"), bulk("version"), bulk("7.0.15"), bulk("proto")].concat();
        let role = [bulk("role"), bulk("master")].concat();
        [format!("{start}\r\n").into_bytes(), fields, format!(":{version}\r\n").into_bytes(), role].concat()
    }

    fn subscribe(&mut self, request: &Request) -> Vec<u8> {
        let word = request.name().to_lowercase();
        let start = if self.speaks_version_3 { ">3" } else { "*3" };
        let mut bytes = Vec::new();
        for position in 1..request.words.len() {
            self.subscriptions = match word.as_str() {
                "subscribe" => self.subscriptions + 1,
                _ => self.subscriptions.saturating_sub(1),
            };
            bytes.extend_from_slice(format!("{start}\r\n").as_bytes());
            bytes.extend_from_slice(&[bulk(&word), bulk(&request.word(position))].concat());
            bytes.extend_from_slice(format!(":{}\r\n", self.subscriptions).as_bytes());
        }
        bytes
    }

    fn nil(&self) -> Vec<u8> {
        if self.speaks_version_3 { b"_\r\n".to_vec() } else { b"$-1\r\n".to_vec() }
    }
}

fn bulk(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into_bytes()
}

/// Returns 40 hexadecimal digits that depend on the script.
///
/// This is not its SHA-1: clients use the digest that `SCRIPT LOAD` returns.
fn digest(script: &str) -> String {
    let sum = script.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{sum:040x}")
}

const MOST_CONNECTIONS: usize = 1_024;
