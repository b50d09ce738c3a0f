//! Connects clients of the redis crate, with `TCP_NODELAY`, like the floor and dlock.

use dlock_bench_peer::Result;
use redis::io::tcp::TcpSettings;
use redis::{Client, IntoConnectionInfo};

pub(crate) fn client(server: &str) -> Result<Client> {
    let tcp = TcpSettings::default().set_nodelay(true);
    let place = format!("redis://{server}").into_connection_info()?;
    Ok(Client::open(place.set_tcp_settings(tcp))?)
}
