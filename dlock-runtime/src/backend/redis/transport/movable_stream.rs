//! A socket that can move to another runtime while it is open.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::runtime::Handle;

use crate::sync::lock;

/// A socket that is registered with the runtime that its [`Relocation`] names, while that runtime
/// has I/O, and with the home runtime afterwards.
#[derive(Debug)]
pub(super) struct MovableStream<S> {
    /// `None` after a move has failed.
    stream: Option<S>,
    relocation: Arc<Relocation>,
}

/// A requested move of a stream. The next poll of the stream makes it, on any thread.
#[derive(Debug)]
pub(crate) struct Relocation {
    is_requested: AtomicBool,
    to: Mutex<Option<Handle>>,
    /// The runtime that opened the stream. No other one outlives it.
    home: Handle,
}

impl Relocation {
    /// Starts without a request, for a stream that the current runtime opens.
    pub(crate) fn at_home() -> Arc<Self> {
        let home = Handle::current();
        Arc::new(Self { is_requested: AtomicBool::new(false), to: Mutex::default(), home })
    }

    /// Requests a move. The stream must be polled afterwards.
    pub(crate) fn request(&self, to: &Handle) {
        *lock(&self.to) = Some(to.clone());
        self.is_requested.store(true, Ordering::Release);
    }
}

/// A socket of tokio.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Sized {
    /// Registers the socket with `runtime` instead of its own, or with `home` if `runtime` has
    /// ended.
    ///
    /// # Errors
    ///
    /// Fails if both have ended.
    fn move_to(self, runtime: &Handle, home: &Handle) -> io::Result<Self>;
}

/// Implements [`Socket::move_to`] by the conversions of the type.
macro_rules! move_by_conversion {
    () => {
        fn move_to(self, runtime: &Handle, home: &Handle) -> io::Result<Self> {
            let socket = self.into_std()?;
            let spare = socket.try_clone(); // a socket that cannot be registered is closed
            let entered = runtime.enter();
            let moved = Self::from_std(socket);
            drop(entered);
            moved.or_else(|_| {
                let _entered = home.enter();
                Self::from_std(spare?)
            })
        }
    };
}

impl Socket for TcpStream {
    move_by_conversion!();
}

#[cfg(unix)]
impl Socket for UnixStream {
    move_by_conversion!();
}

impl<S: Socket> MovableStream<S> {
    pub(super) fn new(stream: S, relocation: Arc<Relocation>) -> Self {
        Self { stream: Some(stream), relocation }
    }

    /// Returns the stream, after a requested move.
    fn get(&mut self) -> io::Result<Pin<&mut S>> {
        if self.relocation.is_requested.load(Ordering::Acquire) {
            self.relocate()?;
        }
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Polls the stream after a requested move. If its runtime has ended, the stream moves home and
    /// is polled once more.
    fn poll_with<T>(
        &mut self,
        mut poll: impl FnMut(Pin<&mut S>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let polled = poll(self.get()?);
        if let Poll::Ready(Err(error)) = &polled
            && is_of_runtime(error)
        {
            self.move_to(&self.relocation.home.clone())?;
            return poll(self.get()?);
        }
        polled
    }

    #[cold]
    fn relocate(&mut self) -> io::Result<()> {
        let to = {
            let mut to = lock(&self.relocation.to);
            self.relocation.is_requested.store(false, Ordering::Release);
            to.take()
        };
        to.map_or(Ok(()), |to| self.move_to(&to))
    }

    fn move_to(&mut self, runtime: &Handle) -> io::Result<()> {
        if let Some(stream) = self.stream.take() {
            self.stream = Some(stream.move_to(runtime, &self.relocation.home)?);
        }
        Ok(())
    }
}

/// Returns `true` if tokio has reported the error, and not the operating system: the runtime of the
/// socket has ended.
fn is_of_runtime(error: &io::Error) -> bool {
    error.raw_os_error().is_none()
}

impl<S: Socket> AsyncRead for MovableStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_with(|stream| stream.poll_read(cx, buffer))
    }
}

impl<S: Socket> AsyncWrite for MovableStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_with(|stream| stream.poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_with(|stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_with(|stream| stream.poll_shutdown(cx))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(|stream| stream.poll_write_vectored(cx, bytes))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().expect("a runtime can be made")
    }

    /// Opens a stream at home, and returns it with its peer.
    async fn connected() -> (MovableStream<TcpStream>, TcpStream, Arc<Relocation>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let (stream, peer) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (stream, (peer, _)) = (stream.expect("it connects"), peer.expect("it accepts"));
        let relocation = Relocation::at_home();
        (MovableStream::new(stream, Arc::clone(&relocation)), peer, relocation)
    }

    /// Writes and reads on both ends, on `runtime`.
    fn assert_works(stream: &mut MovableStream<TcpStream>, peer: &mut TcpStream, runtime: &Runtime) {
        runtime.block_on(async {
            let (mut request, mut reply) = ([0; 4], [0; 5]);
            stream.write_all(b"PING").await.expect("it is open");
            peer.read_exact(&mut request).await.expect("it was written");
            peer.write_all(b"+PONG").await.expect("it is open");
            stream.read_exact(&mut reply).await.expect("it was written");
            assert_eq!((&request, &reply), (b"PING", b"+PONG"));
        });
    }

    #[test]
    fn an_open_stream_moves_to_another_runtime_and_outlives_its_own() {
        let (first, second) = (runtime(), runtime());
        let (mut stream, peer, relocation) = first.block_on(connected());
        let mut peer = peer.into_std().expect("it is idle");

        // Bytes that arrived before the move are read after it.
        std::io::Write::write_all(&mut peer, b"before").expect("it is connected");
        relocation.request(second.handle());
        drop(first);
        let mut read = [0; 6];
        second.block_on(stream.read_exact(&mut read)).expect("it has moved");
        assert_eq!(&read, b"before");

        second.block_on(stream.write_all(b"reply")).expect("it is open");
        peer.set_nonblocking(false).expect("it is a socket");
        let mut read = [0; 5];
        std::io::Read::read_exact(&mut peer, &mut read).expect("it was written");
        assert_eq!(&read, b"reply");
    }

    #[test]
    fn a_stream_whose_runtime_ends_moves_home() {
        let (home, away) = (runtime(), runtime());
        let (mut stream, mut peer, relocation) = home.block_on(connected());
        relocation.request(away.handle());
        away.block_on(stream.write_all(b"away")).expect("it has moved");
        home.block_on(peer.read_exact(&mut [0; 4])).expect("it was written");

        drop(away);

        assert_works(&mut stream, &mut peer, &home);
    }

    #[test]
    fn a_read_that_is_pending_when_its_runtime_ends_continues_at_home() {
        let (home, away) = (runtime(), runtime());
        let (mut stream, mut peer, relocation) = home.block_on(connected());
        relocation.request(away.handle());
        let mut read = home.spawn(async move {
            let mut read = [0; 5];
            stream.read_exact(&mut read).await.map(|_| read)
        });
        home.block_on(async { tokio::time::timeout(Duration::from_millis(20), &mut read).await })
            .expect_err("nothing was written");

        drop(away);

        home.block_on(peer.write_all(b"+PONG")).expect("it is open");
        let read = home.block_on(async { tokio::time::timeout(Duration::from_secs(20), read).await });
        assert_eq!(read.expect("it is woken").expect("no panic").expect("it is open"), *b"+PONG");
    }

    #[test]
    fn a_move_to_an_ended_runtime_ends_at_home() {
        let (home, away) = (runtime(), runtime());
        let (mut stream, mut peer, relocation) = home.block_on(connected());
        relocation.request(away.handle());

        drop(away);

        assert_works(&mut stream, &mut peer, &home);
    }

    #[test]
    fn without_a_runtime_a_stream_fails() {
        let (home, away, current) = (runtime(), runtime(), runtime());
        let (mut stream, _peer, relocation) = home.block_on(connected());
        relocation.request(away.handle());
        drop((home, away));

        for _ in 0..2 {
            assert!(current.block_on(stream.read(&mut [0])).is_err());
        }
        let _context = current.enter();
        assert!(!stream.is_write_vectored());
        let written = current.block_on(stream.write(b"PING"));
        let vectored = current.block_on(stream.write_vectored(&[io::IoSlice::new(b"PING")]));
        let ended = current.block_on(async { (stream.flush().await, stream.shutdown().await) });
        assert!(written.is_err() && vectored.is_err() && ended.0.is_err() && ended.1.is_err());
    }

    /// The move would lose an error that the operating system reports once.
    #[test]
    fn an_error_of_the_socket_is_returned() {
        let home = runtime();
        let (mut stream, peer, _) = home.block_on(connected());
        peer.set_zero_linger().expect("it is open");
        drop(peer); // resets the connection

        let read = home.block_on(stream.read(&mut [0]));

        assert_eq!(read.expect_err("it is reset").kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn writes_reach_the_peer_up_to_their_end() {
        let (mut stream, mut peer, _) = connected().await;

        let parts = [io::IoSlice::new(b"PI"), io::IoSlice::new(b"NG\r\n")];
        assert!(stream.is_write_vectored());
        assert_eq!(stream.write_vectored(&parts).await.expect("it is open"), 6);
        stream.flush().await.expect("it is open");
        stream.shutdown().await.expect("it is open");

        let mut received = Vec::new();
        peer.read_to_end(&mut received).await.expect("the stream is shut down");
        assert_eq!(received, b"PING\r\n");
    }
}
