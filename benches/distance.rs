//! A proxy that simulates a distant server: it delays each direction by half a round trip.
//!
//! Bytes are delayed as they arrive, independently in each direction, so pipelines stay pipelines.
//! The timers of the runtime are coarse, so the actual round trip is measured.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::Failure;
use crate::figures::median;
use crate::server::{Server, connect};

/// A proxy to a server. Dropping it closes all its connections.
#[derive(Debug)]
pub(crate) struct Distance {
    address: SocketAddr,
    _carrying: JoinSet<()>,
}

impl Distance {
    /// Starts listening on a free port.
    pub(crate) async fn to(server: &Server, round_trip: Duration) -> Result<Self, Failure> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let (address, target) = (listener.local_addr()?, server.address());
        let mut carrying = JoinSet::new();
        carrying.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                open.spawn(carry(client, target.clone(), round_trip / 2));
                while open.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, _carrying: carrying })
    }

    /// Returns the address that clients connect to.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Returns the median round trip of a `PING` in nanoseconds.
    pub(crate) async fn nanos_of_a_trip(&self) -> Result<f64, Failure> {
        let mut connection = connect(&self.address()).await?;
        let mut taken = Vec::new();
        for _ in 0..20 {
            let asked = Instant::now();
            redis::cmd("PING").exec_async(&mut connection).await?;
            taken.push(asked.elapsed().as_secs_f64() * 1e9);
        }
        Ok(median(taken))
    }
}

async fn carry(client: TcpStream, target: String, delay: Duration) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    if client.set_nodelay(true).and_then(|()| server.set_nodelay(true)).is_err() {
        return;
    }
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::select! {
        () = carry_one_way(from_client, to_server, delay) => {}
        () = carry_one_way(from_server, to_client, delay) => {}
    }
}

/// Forwards bytes until one of the two ends closes.
async fn carry_one_way(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Duration) {
    let (send, mut arriving) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async {
        loop {
            let mut bytes = Vec::with_capacity(16 * 1_024);
            match from.read_buf(&mut bytes).await {
                Ok(1..) if send.send((Instant::now() + delay, bytes)).is_ok() => {}
                _ => return,
            }
        }
    };
    let write = async {
        while let Some((due, bytes)) = arriving.recv().await {
            sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = read => {}
        () = write => {}
    }
}
