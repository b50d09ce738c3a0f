//! One connection through a proxy: each parcel is read, delayed, and then handled by the current
//! plan.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::Shared;
use super::plan::{Flow, Way};
use super::sightings::Watchers;
use crate::resp::split_request;

/// Carries the bytes of one client until both sides have ended, or all connections are reset.
pub(super) async fn carry(mut client: TcpStream, shared: &Shared) {
    shared.connections.fetch_add(1, Ordering::SeqCst);
    // To the client, an unreachable server looks like one that accepts the connection and closes
    // it.
    let Ok(mut server) = TcpStream::connect(shared.target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let _open = Counted::in_(&shared.open);

    let mut plan = shared.plan.subscribe();
    let resets = plan.borrow_and_update().resets;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let reset = tokio::select! {
        ((), ()) = async { tokio::join!(
            carry_one_way(Way::Requests, from_client, to_server, shared),
            carry_one_way(Way::Replies, from_server, to_client, shared),
        ) } => false,
        _ = plan.wait_for(|plan| plan.resets != resets) => true,
    };

    if reset {
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
}

async fn carry_one_way(way: Way, from: ReadHalf<'_>, to: WriteHalf<'_>, shared: &Shared) {
    let (parcels, arriving) = mpsc::channel(MOST_PARCELS);
    tokio::join!(read(way, from, parcels, shared), deliver(way, to, arriving, shared));
}

struct Parcel<'a> {
    due: Instant,
    bytes: Vec<u8>,
    _on_its_way: Counted<'a>,
}

async fn read<'a>(way: Way, mut from: ReadHalf<'_>, parcels: mpsc::Sender<Parcel<'a>>, shared: &'a Shared) {
    let mut buffer = Vec::new();
    while let Ok(1..) = from.read_buf(&mut buffer).await {
        let delay = shared.plan.borrow().delay(way);
        let due = Instant::now() + delay;
        while let Some((bytes, words)) = next_parcel(way, &mut buffer) {
            if let Some(name) = words.first() {
                shared.notes.note(name);
            }
            shared.bytes(way).fetch_add(bytes.len() as u64, Ordering::SeqCst);
            let counted = Counted::in_(&shared.on_their_way);
            if parcels.send(Parcel { due, bytes, _on_its_way: counted }).await.is_err() {
                return;
            }
        }
    }
}

/// Requests travel one by one, with their words, so that they can be counted. Replies travel as
/// read.
fn next_parcel(way: Way, buffer: &mut Vec<u8>) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
    match way {
        Way::Requests => split_request(buffer),
        Way::Replies => Some((std::mem::take(buffer), Vec::new())).filter(|(bytes, _)| !bytes.is_empty()),
    }
}

async fn deliver(way: Way, mut to: WriteHalf<'_>, mut parcels: mpsc::Receiver<Parcel<'_>>, shared: &Shared) {
    let mut plan = shared.plan.subscribe();
    let mut has_lost_bytes = false;
    loop {
        let parcel = tokio::select! {
            parcel = parcels.recv() => parcel,
            (first, again) = flood_begins(way, shared), if !has_lost_bytes => {
                send_flood(first, again, &mut to, shared).await;
                let _ = to.shutdown().await; // the client is within a reply that never ends
                return;
            }
        };
        let Some(Parcel { due, bytes, _on_its_way }) = parcel else { break };
        sleep_until(due).await;
        if way == Way::Requests {
            shared.begin_hold_that_is_due();
        }
        if plan.borrow_and_update().flow(way) == Flow::Hold && !has_lost_bytes {
            shared.watchers(way).saw(&bytes);
            if plan.wait_for(|plan| plan.flow(way) != Flow::Hold).await.is_err() {
                return;
            }
        }
        has_lost_bytes |= plan.borrow_and_update().flow(way) == Flow::Swallow;
        has_lost_bytes |= way == Way::Requests && shared.drops_this_request();
        if !has_lost_bytes {
            let one_byte = plan.borrow().one_byte;
            if write(&mut to, &bytes, one_byte).await.is_err() {
                return;
            }
        }
        shared.watchers(way).saw(&bytes);
    }
    if !has_lost_bytes {
        let _ = to.shutdown().await;
    }
}

/// Waits until a flood of replies begins, and returns it.
async fn flood_begins(way: Way, shared: &Shared) -> (&'static str, &'static str) {
    let mut plan = shared.plan.subscribe();
    let begun = plan.wait_for(|plan| way == Way::Replies && plan.flood.is_some()).await;
    match begun.ok().and_then(|plan| plan.flood) {
        Some(flood) => flood,
        None => std::future::pending().await,
    }
}

/// Sends a flood until it ends or the client disconnects.
async fn send_flood(first: &str, again: &str, to: &mut WriteHalf<'_>, shared: &Shared) {
    shared.flooded.fetch_add(1, Ordering::SeqCst);
    let mut plan = shared.plan.subscribe();
    let again = again.repeat((64 << 10) / again.len().max(1));
    let flood = async {
        to.write_all(first.as_bytes()).await?;
        loop {
            to.write_all(again.as_bytes()).await?;
        }
    };
    let flood: std::io::Result<()> = tokio::select! {
        _ = plan.wait_for(|plan| plan.flood.is_none()) => Ok(()),
        ended = flood => ended,
    };
    drop(flood); // how the connection of a client ends does not matter
}

async fn write(to: &mut WriteHalf<'_>, bytes: &[u8], one_byte: bool) -> std::io::Result<()> {
    if !one_byte {
        return to.write_all(bytes).await;
    }
    for byte in bytes {
        to.write_all(&[*byte]).await?;
        tokio::task::yield_now().await;
    }
    Ok(())
}

impl Shared {
    fn bytes(&self, way: Way) -> &AtomicU64 {
        match way {
            Way::Requests => &self.request_bytes,
            Way::Replies => &self.reply_bytes,
        }
    }

    fn watchers(&self, way: Way) -> &Watchers {
        match way {
            Way::Requests => &self.sightings.requests,
            Way::Replies => &self.sightings.replies,
        }
    }

    fn begin_hold_that_is_due(&self) {
        if let Some(way) = self.hold_later.count() {
            self.plan.send_modify(|plan| match way {
                Way::Requests => plan.requests = Flow::Hold,
                Way::Replies => plan.replies = Flow::Hold,
            });
        }
    }

    /// Returns `true` if this request is to be dropped, and counts it.
    fn drops_this_request(&self) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        self.requests_to_drop.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
    }
}

/// Increases a counter for its lifetime.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn in_(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

const MOST_PARCELS: usize = 1_024;
