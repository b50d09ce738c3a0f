//! Free ports of 127.0.0.1 for servers, which no other program gets while their server is down.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// A port that stays bound by a socket that does not listen. A server that sets `SO_REUSEADDR`, as
/// Redis does, can bind it too.
///
/// Other systems than Linux do not allow the second bind, so there the port is only chosen.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    number: u16,
    _sockets: Vec<TcpSocket>,
}

impl ReservedPort {
    /// Reserves a free port.
    ///
    /// # Panics
    ///
    /// Panics if this machine has no free port.
    pub(crate) fn new() -> Self {
        let (socket, number) = bind(0).expect("this machine has a free port");
        Self::of(number, vec![socket])
    }

    /// Reserves a free port, and that of the cluster bus.
    pub(crate) fn with_bus() -> Self {
        let with_bus = || {
            let (socket, number) = bind(0).ok()?;
            let (bus, _) = bind(number.checked_add(BUS_OFFSET)?).ok()?;
            Some(Self::of(number, vec![socket, bus]))
        };
        std::iter::repeat_with(with_bus).flatten().next().expect("this does not end")
    }

    fn of(number: u16, sockets: Vec<TcpSocket>) -> Self {
        Self { number, _sockets: if cfg!(target_os = "linux") { sockets } else { Vec::new() } }
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

fn bind(port: u16) -> io::Result<(TcpSocket, u16)> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    let number = socket.local_addr()?.port();
    Ok((socket, number))
}

/// A server of a cluster also listens on its port plus this.
const BUS_OFFSET: u16 = 10_000;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_reserved_port_is_given_once_and_refuses_connections() {
        let reserved: Vec<_> = (0..500).map(|_| ReservedPort::new()).collect();

        let numbers: HashSet<_> = reserved.iter().map(ReservedPort::number).collect();
        assert_eq!(numbers.len(), reserved.len());
        let others: Vec<_> =
            (0..500).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free")).collect();
        let is_ours = |at: &TcpListener| numbers.contains(&at.local_addr().expect("it is bound").port());
        assert!(!others.iter().any(is_ours));
        assert!(TcpStream::connect(("127.0.0.1", reserved[0].number())).is_err());
    }
}
