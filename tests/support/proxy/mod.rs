//! A network in front of a server that loses, holds, delays and cuts on demand.
//!
//! It runs on a thread of its own, so that a test may pause its clock or block its runtime. It keeps TCP's promise: bytes are never
//! skipped. A connection that has *lost* bytes in a direction carries nothing more in that direction, whatever is set later, just
//! as after a gap that nobody resends; one whose bytes were *held* delivers them when the hold ends, as after a resend. New
//! connections start afresh.
//!
//! ```text
//!  client --requests--> [delay] -> [pass | hold | swallow, drop the next n] -> server
//!  client <--replies--- [delay] <- [pass | hold | swallow]                 <- server
//! ```
//!
//! Not here: what travels. Requests are told apart only so that they can be counted, noted by their names, and dropped one by one.

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

/// A proxy; closed, with all its connections, when dropped. Derefs to its handle.
#[derive(Debug)]
pub struct Proxy {
    handle: ProxyHandle,
    /// Has the port while connections are refused: else somebody else's server could have it then, and its clients be taken for ours.
    _port: TcpSocket,
    _thread: IoThread,
}

impl Proxy {
    /// Starts a proxy on a free port of 127.0.0.1 that passes everything on to `target`, a port of this machine.
    ///
    /// # Panics
    ///
    /// Panics if the system gives no port.
    #[must_use]
    pub fn start(target: u16) -> Self {
        Self::start_for(target, "")
    }

    /// Starts a proxy as [`start`](Self::start) does, whose URL has the user and the password of the server behind it.
    ///
    /// # Panics
    ///
    /// Panics if the system gives no port.
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
            request_bytes: AtomicU64::new(0),
            reply_bytes: AtomicU64::new(0),
        });
        let handle = ProxyHandle { access: access.into(), address, shared: Arc::clone(&shared), orders };
        let thread = IoThread::spawn("test-proxy", move || serve(address, inbox, shared));
        handle.accept();
        Self { handle, _port: port, _thread: thread }
    }

    /// Returns a handle that can be given to other tasks and threads.
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

/// Steers a [`Proxy`] while it runs; cheap to clone. Settings hold for open connections and for new ones.
#[derive(Clone, Debug)]
pub struct ProxyHandle {
    access: Arc<str>,
    address: SocketAddr,
    shared: Arc<Shared>,
    orders: mpsc::UnboundedSender<Order>,
}

impl ProxyHandle {
    /// Returns the URL that clients are given.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}{}", self.access, self.address)
    }

    /// Returns the URL followed by `suffix`, such as `?namespace=shop`.
    #[must_use]
    pub fn url_with(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.url())
    }

    /// Returns the port that clients are given.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Takes back every setting: everything passes, what was held is delivered, connections are accepted.
    pub fn pass(&self) {
        self.shared.requests_to_drop.store(0, Ordering::SeqCst);
        self.shared.hold_later.cancel();
        self.shared.plan.send_modify(|plan| *plan = Plan { resets: plan.resets, ..Plan::default() });
        self.accept();
    }

    /// Accepts connections and swallows everything, both ways, until [`pass`](Self::pass).
    pub fn black_hole(&self) {
        self.shared.plan.send_modify(|plan| {
            plan.requests = Flow::Swallow;
            plan.replies = Flow::Swallow;
        });
    }

    /// Drops the next `count` requests before they reach the server; their connections carry no further request.
    pub fn drop_next_requests(&self, count: usize) {
        self.shared.requests_to_drop.store(count, Ordering::SeqCst);
    }

    /// Lets requests through and drops what the server answers, until [`pass`](Self::pass).
    pub fn swallow_replies(&self) {
        self.shared.plan.send_modify(|plan| plan.replies = Flow::Swallow);
    }

    /// Keeps requests back until [`pass`](Self::pass), which delivers them: a request that was given up is executed later.
    pub fn hold_requests(&self) {
        self.shared.plan.send_modify(|plan| plan.requests = Flow::Hold);
    }

    /// Keeps replies back until [`pass`](Self::pass), which delivers them.
    pub fn hold_replies(&self) {
        self.shared.plan.send_modify(|plan| plan.replies = Flow::Hold);
    }

    /// Lets the next `count` requests through and then holds them, as [`hold_requests`](Self::hold_requests) does.
    pub fn hold_requests_after(&self, count: usize) {
        self.shared.hold_later.set(Way::Requests, count);
    }

    /// Lets the next `count` requests be answered and then holds replies, as [`hold_replies`](Self::hold_replies) does: the next
    /// request is executed and its client not told.
    pub fn hold_replies_after(&self, count: usize) {
        self.shared.hold_later.set(Way::Replies, count);
    }

    /// Makes every request that comes from now on arrive `delay` later.
    pub fn delay_requests(&self, delay: Duration) {
        self.shared.plan.send_modify(|plan| plan.request_delay = delay);
    }

    /// Makes every reply that comes from now on arrive `delay` later.
    pub fn delay_replies(&self, delay: Duration) {
        self.shared.plan.send_modify(|plan| plan.reply_delay = delay);
    }

    /// Makes the server as far away as a `round_trip` says: requests that come from now on take half of it, and so do their replies.
    pub fn round_trip(&self, round_trip: Duration) {
        self.delay_requests(round_trip / 2);
        self.delay_replies(round_trip / 2);
    }

    /// Writes every byte on its own, both ways, until [`pass`](Self::pass).
    pub fn one_byte_at_a_time(&self) {
        self.shared.plan.send_modify(|plan| plan.one_byte = true);
    }

    /// Resets all open connections (RST, not an orderly end). New ones are accepted.
    pub fn reset_all(&self) {
        self.shared.plan.send_modify(|plan| plan.resets += 1);
    }

    /// Refuses new connections until [`accept`](Self::accept) or [`pass`](Self::pass); open ones stay.
    pub fn refuse(&self) {
        self.order(Order::Refuse);
    }

    /// Accepts new connections again.
    pub fn accept(&self) {
        self.order(Order::Accept);
    }

    /// Returns a future that ends when a request that contains `needle` has come: by then it has been written to the server, or
    /// is held, or has been dropped, as is set. Only requests that come after this call count.
    pub fn on_request(&self, needle: &[u8]) -> Seen {
        self.shared.sightings.requests.watch_for(needle)
    }

    /// Returns a future that ends when the server has answered something that contains `needle`: by then it has been passed on,
    /// or is held, or has been swallowed, as is set. Only what comes after this call counts; an empty needle takes anything.
    pub fn on_reply(&self, needle: &[u8]) -> Seen {
        self.shared.sightings.replies.watch_for(needle)
    }

    /// Begins to note the requests that come, and forgets those that it has noted before.
    pub fn note_requests(&self) {
        self.shared.notes.begin();
    }

    /// Returns the requests that were noted, in the order in which they came.
    ///
    /// # Panics
    ///
    /// Panics if they are more than a hundred thousand.
    #[must_use]
    pub fn noted(&self) -> Vec<Sent> {
        self.shared.notes.all()
    }

    /// Returns what has gone through so far.
    #[must_use]
    pub fn stats(&self) -> ProxyStats {
        ProxyStats {
            connections: self.shared.connections.load(Ordering::SeqCst),
            open: self.shared.open.load(Ordering::SeqCst),
            on_their_way: self.shared.on_their_way.load(Ordering::SeqCst),
            request_bytes: self.shared.request_bytes.load(Ordering::SeqCst),
            reply_bytes: self.shared.reply_bytes.load(Ordering::SeqCst),
        }
    }

    /// Gives an order to the accepting task and returns when it has been carried out.
    fn order(&self, order: fn(std::sync::mpsc::Sender<()>) -> Order) {
        let (done, carried_out) = std::sync::mpsc::channel();
        if self.orders.send(order(done)).is_ok() {
            let _ = carried_out.recv_timeout(ORDER_LIMIT);
        }
    }
}

/// What has gone through a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyStats {
    /// Connections accepted since the start.
    pub connections: usize,
    /// Connections open now.
    pub open: usize,
    /// Requests, and parts of replies, that have come and not yet been delivered or dropped; also of connections that their clients have
    /// closed.
    pub on_their_way: usize,
    /// Bytes that clients have sent, dropped ones included.
    pub request_bytes: u64,
    /// Bytes that the server has sent, dropped ones included.
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
    request_bytes: AtomicU64,
    reply_bytes: AtomicU64,
}

#[derive(Debug)]
enum Order {
    Refuse(std::sync::mpsc::Sender<()>),
    Accept(std::sync::mpsc::Sender<()>),
}

async fn serve(address: SocketAddr, mut inbox: mpsc::UnboundedReceiver<Order>, shared: Arc<Shared>) {
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
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
                let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    connection::carry(client, &shared).await;
                    drop(permit);
                });
            }
        }
    }
}

/// Waits for a client; without a listener for ever.
async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        // An error is the client's, gone before it was accepted, or a lack of descriptors that passes.
        match listener.accept().await {
            Ok((client, _)) => return client,
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// Returns a socket at an address that others of the proxy may have, too, and nobody else (without `SO_REUSEADDR`, which all others have). It
/// refuses connections as long as none of them listens.
fn socket(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}

const BACKLOG: u32 = 1_024;
const MOST_CONNECTIONS: usize = 1_024;
const ORDER_LIMIT: Duration = Duration::from_secs(2);
