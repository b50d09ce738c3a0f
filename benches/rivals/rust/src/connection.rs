//! How clients of the redis crate connect: with `TCP_NODELAY`, as the floor and we do.

use dlock_bench_peer::Result;
use redis::io::tcp::TcpSettings;
use redis::{Client, IntoConnectionInfo};

pub(crate) fn client(server: &str) -> Result<Client> {
    let tcp = TcpSettings::default().set_nodelay(true);
    let place = format!("redis://{server}").into_connection_info()?;
    Ok(Client::open(place.set_tcp_settings(tcp))?)
}
