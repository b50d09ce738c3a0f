//! A network in front of a server that loses, holds, delays, cuts, and floods on demand.
//!
//! The proxy runs on a separate thread, so that a test may pause its clock or block its runtime.
//! Like TCP, it never skips bytes. A connection that has *lost* bytes in a direction carries
//! nothing more in that direction, as if TCP never retransmitted them, even if the settings change.
//! A connection whose bytes were *held* delivers them when the hold ends, as after a
//! retransmission. New connections start afresh.
//!
//! ```text
//!  client --requests--> [delay] -> [pass | hold | swallow, drop the next n] -> server
//!  client <--replies--- [delay] <- [pass | hold | swallow | flood]         <- server
//! ```
//!
//! Requests are parsed only so that they can be counted, recorded by name, and dropped one by one.

mod connection;
mod notes;
mod plan;
mod sightings;

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::io_thread::IoThread;
use crate::server::RedisServer;
use notes::Notes;
use plan::{Flow, HoldLater, Plan, Way};
use sightings::Sightings;

pub use notes::Sent;
pub use sightings::Seen;

/// A proxy. It is closed on drop, with all its connections.
#[derive(Debug)]
pub struct Proxy {
    handle: ProxyHandle,
    /// Keeps the port bound while connections are refused. Otherwise, another test's server could
    /// bind it and receive connections of this test.
    _port: TcpSocket,
    _thread: IoThread,
}

impl Proxy {
    /// Starts a proxy on a free port of 127.0.0.1 that forwards everything to the local port
    /// `target`.
    ///
    /// # Panics
    ///
    /// Panics if no port is available.
    #[must_use]
    pub fn start(target: u16) -> Self {
        Self::start_for(target, "")
    }

    /// Starts a proxy whose URL has the user and the password of `server`.
    ///
    /// # Panics
    ///
    /// Panics if no port is available.
    #[must_use]
    pub fn in_front_of(server: &RedisServer) -> Self {
        Self::start_for(server.port(), server.access())
    }

    fn start_for(target: u16, access: &str) -> Self {
        let port = socket((Ipv4Addr::LOCALHOST, 0).into()).expect("this machine has a free port");
        let address = port.local_addr().expect("a bound socket has an address");

        let (orders, inbox) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            target: ([127, 0, 0, 1], target).into(),
            plan: watch::Sender::new(Plan::default()),
            requests_to_drop: AtomicUsize::new(0),
            hold_later: HoldLater::default(),
            sightings: Sightings::default(),
            notes: Notes::default(),
            connections: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            on_their_way: AtomicUsize::new(0),
            flooded: AtomicUsize::new(0),
            request_bytes: AtomicU64::new(0),
            reply_bytes: AtomicU64::new(0),
        });
        let handle = ProxyHandle { access: access.into(), address, shared: Arc::clone(&shared), orders };
        let thread = IoThread::spawn("test-proxy", move || serve(address, inbox, shared));
        handle.accept();
        Self { handle, _port: port, _thread: thread }
    }

    /// Returns a handle for other tasks and threads.
    #[must_use]
    pub fn handle(&self) -> ProxyHandle {
        self.handle.clone()
    }
}

impl Deref for Proxy {
    type Target = ProxyHandle;

    fn deref(&self) -> &ProxyHandle {
        &self.handle
    }
}

/// A handle that controls a [`Proxy`]. It is cheap to clone.
///
/// Settings apply to open and new connections.
#[derive(Clone, Debug)]
pub struct ProxyHandle {
    access: Arc<str>,
    address: SocketAddr,
    shared: Arc<Shared>,
    orders: mpsc::UnboundedSender<Order>,
}

impl ProxyHandle {
    /// Returns the URL for clients.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}{}", self.access, self.address)
    }

    /// Returns the URL for clients, followed by `suffix`, such as `?namespace=shop`.
    #[must_use]
    pub fn url_with(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.url())
    }

    /// Returns the port for clients.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Resets all settings: everything passes, held bytes are delivered, and connections are
    /// accepted.
    pub fn pass(&self) {
        self.shared.requests_to_drop.store(0, Ordering::SeqCst);
        self.shared.hold_later.cancel();
        self.shared.plan.send_modify(|plan| *plan = Plan { resets: plan.resets, ..Plan::default() });
        self.accept();
    }

    /// Accepts connections and drops everything in both directions, until [`pass`](Self::pass).
    pub fn black_hole(&self) {
        self.shared.plan.send_modify(|plan| {
            plan.requests = Flow::Swallow;
            plan.replies = Flow::Swallow;
        });
    }

    /// Drops the next `count` requests. Their connections carry no further requests.
    pub fn drop_next_requests(&self, count: usize) {
        self.shared.requests_to_drop.store(count, Ordering::SeqCst);
    }

    /// Passes requests and drops all replies, until [`pass`](Self::pass).
    pub fn swallow_replies(&self) {
        self.shared.plan.send_modify(|plan| plan.replies = Flow::Swallow);
    }

    /// Holds requests until [`pass`](Self::pass), which delivers them, even if clients have given
    /// up on them.
    pub fn hold_requests(&self) {
        self.shared.plan.send_modify(|plan| plan.requests = Flow::Hold);
    }

    /// Holds replies until [`pass`](Self::pass), which delivers them.
    pub fn hold_replies(&self) {
        self.shared.plan.send_modify(|plan| plan.replies = Flow::Hold);
    }

    /// Passes the next `count` requests, and then holds requests as
    /// [`hold_requests`](Self::hold_requests) does.
    pub fn hold_requests_after(&self, count: usize) {
        self.shared.hold_later.set(Way::Requests, count);
    }

    /// Lets the next `count` requests be answered, and then holds replies.
    ///
    /// It holds them as [`hold_replies`](Self::hold_replies) does: the next request is executed,
    /// but its client receives no reply.
    pub fn hold_replies_after(&self, count: usize) {
        self.shared.hold_later.set(Way::Replies, count);
    }

    /// Delays every request that arrives from now on by `delay`.
    pub fn delay_requests(&self, delay: Duration) {
        self.shared.plan.send_modify(|plan| plan.request_delay = delay);
    }

    /// Delays every reply that arrives from now on by `delay`.
    pub fn delay_replies(&self, delay: Duration) {
        self.shared.plan.send_modify(|plan| plan.reply_delay = delay);
    }

    /// Simulates a round-trip time: delays requests and replies by half of it each.
    pub fn round_trip(&self, round_trip: Duration) {
        self.delay_requests(round_trip / 2);
        self.delay_replies(round_trip / 2);
    }

    /// Writes every byte separately in both directions, until [`pass`](Self::pass).
    pub fn one_byte_at_a_time(&self) {
        self.shared.plan.send_modify(|plan| plan.one_byte = true);
    }

    /// Sends `first` once, and then `again` without end, to each open and new connection, until
    /// [`pass`](Self::pass). Then these connections are closed.
    pub fn flood(&self, first: &'static str, again: &'static str) {
        self.shared.plan.send_modify(|plan| plan.flood = Some((first, again)));
    }

    /// Resets all open connections (with RST instead of FIN). New ones are accepted.
    pub fn reset_all(&self) {
        self.shared.plan.send_modify(|plan| plan.resets += 1);
    }

    /// Refuses new connections until [`accept`](Self::accept) or [`pass`](Self::pass). Open ones
    /// stay.
    pub fn refuse(&self) {
        self.order(Order::Refuse);
    }

    /// Accepts new connections again.
    pub fn accept(&self) {
        self.order(Order::Accept);
    }

    /// Returns a future that completes when a request that contains `needle` has been handled.
    ///
    /// By then the request has been written to the server, is held, or has been dropped, depending
    /// on the settings. Only requests that arrive after this call count.
    pub fn on_request(&self, needle: &[u8]) -> Seen {
        self.shared.sightings.requests.watch_for(needle)
    }

    /// Returns a future that completes when a reply that contains `needle` has been handled.
    ///
    /// By then the reply has been passed on, is held, or has been dropped, depending on the
    /// settings. Only replies that arrive after this call count. An empty `needle` matches any
    /// reply.
    pub fn on_reply(&self, needle: &[u8]) -> Seen {
        self.shared.sightings.replies.watch_for(needle)
    }

    /// Starts to record requests, and discards earlier records.
    pub fn note_requests(&self) {
        self.shared.notes.begin();
    }

    /// Returns the recorded requests in order of arrival.
    ///
    /// # Panics
    ///
    /// Panics if there are 100,000 or more.
    #[must_use]
    pub fn noted(&self) -> Vec<Sent> {
        self.shared.notes.all()
    }

    /// Returns the traffic so far.
    #[must_use]
    pub fn stats(&self) -> ProxyStats {
        ProxyStats {
            connections: self.shared.connections.load(Ordering::SeqCst),
            open: self.shared.open.load(Ordering::SeqCst),
            on_their_way: self.shared.on_their_way.load(Ordering::SeqCst),
            flooded: self.shared.flooded.load(Ordering::SeqCst),
            request_bytes: self.shared.request_bytes.load(Ordering::SeqCst),
            reply_bytes: self.shared.reply_bytes.load(Ordering::SeqCst),
        }
    }

    /// Sends an order to the accepting task, and returns when it is done, or after 2 s.
    fn order(&self, order: fn(std::sync::mpsc::Sender<()>) -> Order) {
        let (done, carried_out) = std::sync::mpsc::channel();
        if self.orders.send(order(done)).is_ok() {
            let _ = carried_out.recv_timeout(ORDER_LIMIT);
        }
    }
}

/// The traffic through a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyStats {
    /// The number of accepted connections.
    pub connections: usize,
    /// The number of open connections.
    pub open: usize,
    /// The number of requests and parts of replies that are neither delivered nor dropped yet.
    ///
    /// This includes connections that their clients have closed.
    pub on_their_way: usize,
    /// The number of connections that were flooded.
    pub flooded: usize,
    /// The number of bytes that clients have sent, including dropped ones.
    pub request_bytes: u64,
    /// The number of bytes that the server has sent, including dropped ones.
    pub reply_bytes: u64,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    plan: watch::Sender<Plan>,
    requests_to_drop: AtomicUsize,
    hold_later: HoldLater,
    sightings: Sightings,
    notes: Notes,
    connections: AtomicUsize,
    open: AtomicUsize,
    on_their_way: AtomicUsize,
    flooded: AtomicUsize,
    request_bytes: AtomicU64,
    reply_bytes: AtomicU64,
}

#[derive(Debug)]
enum Order {
    Refuse(std::sync::mpsc::Sender<()>),
    Accept(std::sync::mpsc::Sender<()>),
}

async fn serve(address: SocketAddr, mut inbox: mpsc::UnboundedReceiver<Order>, shared: Arc<Shared>) {
    let slots = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut listener = None;
    loop {
        tokio::select! {
            order = inbox.recv() => match order {
                None => return,
                Some(Order::Refuse(done)) => {
                    listener = None;
                    let _ = done.send(());
                }
                Some(Order::Accept(done)) => {
                    if listener.is_none() {
                        let listens = socket(address).and_then(|socket| socket.listen(BACKLOG));
                        listener = Some(listens.expect("the port is the proxy's own"));
                    }
                    let _ = done.send(());
                }
            },
            client = accept(listener.as_ref()) => {
                let Ok(permit) = Arc::clone(&slots).try_acquire_owned() else { continue };
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    connection::carry(client, &shared).await;
                    drop(permit);
                });
            }
        }
    }
}

/// Waits for a client. Without a listener, it never returns.
async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        // An error means that the client disconnected before it was accepted, or a temporary lack
        // of descriptors.
        match listener.accept().await {
            Ok((client, _)) => return client,
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// Returns a socket whose address only sockets of this proxy can share.
///
/// They use `SO_REUSEPORT`, while other sockets use `SO_REUSEADDR`. Connections are refused while
/// none of these sockets listens.
fn socket(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}

const BACKLOG: u32 = 1_024;
const MOST_CONNECTIONS: usize = 1_024;
const ORDER_LIMIT: Duration = Duration::from_secs(2);
