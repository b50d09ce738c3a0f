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

/// A socket that is registered with the runtime that its [`Relocation`] names.
#[derive(Debug)]
pub(super) struct MovableStream<S> {
    /// `None` after a move has failed.
    stream: Option<S>,
    relocation: Arc<Relocation>,
}

/// A requested move of a stream. The next poll of the stream makes it, on any thread.
#[derive(Debug, Default)]
pub(crate) struct Relocation {
    is_requested: AtomicBool,
    to: Mutex<Option<Handle>>,
}

impl Relocation {
    /// Requests a move. The stream must be polled afterwards.
    pub(crate) fn request(&self, to: &Handle) {
        *lock(&self.to) = Some(to.clone());
        self.is_requested.store(true, Ordering::Release);
    }
}

/// A socket of tokio.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Sized {
    /// Registers the socket with the current runtime instead of its own.
    ///
    /// # Errors
    ///
    /// Fails if the current runtime has ended.
    fn register_here(self) -> io::Result<Self>;
}

impl Socket for TcpStream {
    fn register_here(self) -> io::Result<Self> {
        Self::from_std(self.into_std()?)
    }
}

#[cfg(unix)]
impl Socket for UnixStream {
    fn register_here(self) -> io::Result<Self> {
        Self::from_std(self.into_std()?)
    }
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

    /// Polls the stream after a requested move, and once more if the move was requested meanwhile:
    /// an error may be that of the runtime which it leaves.
    fn poll_with<T>(
        &mut self,
        mut poll: impl FnMut(Pin<&mut S>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let polled = poll(self.get()?);
        if matches!(polled, Poll::Ready(Err(_))) && self.relocation.is_requested.load(Ordering::Acquire) {
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
        if let (Some(to), Some(stream)) = (to, self.stream.take()) {
            let _entered = to.enter();
            self.stream = Some(stream.register_here()?);
        }
        Ok(())
    }
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_io().build().expect("a runtime can be made")
    }

    #[test]
    fn an_open_stream_moves_to_another_runtime_and_outlives_its_own() {
        let (first, second, relocation) = (runtime(), runtime(), Arc::<Relocation>::default());
        let (mut stream, mut peer) = first.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
            let address = listener.local_addr().expect("it is bound");
            let (stream, peer) = tokio::join!(TcpStream::connect(address), listener.accept());
            let (stream, (peer, _)) = (stream.expect("it connects"), peer.expect("it accepts"));
            (MovableStream::new(stream, Arc::clone(&relocation)), peer.into_std().expect("it is idle"))
        });

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
    fn a_move_to_an_ended_runtime_is_an_error() {
        let (first, second, relocation) = (runtime(), runtime(), Arc::<Relocation>::default());
        let mut stream = first.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
            let address = listener.local_addr().expect("it is bound");
            MovableStream::new(
                TcpStream::connect(address).await.expect("it connects"),
                Arc::clone(&relocation),
            )
        });
        relocation.request(second.handle());
        drop(second);

        for _ in 0..2 {
            assert!(first.block_on(stream.read(&mut [0])).is_err());
        }
        let _context = first.enter();
        assert!(!stream.is_write_vectored());
        let written = first.block_on(stream.write(b"PING"));
        let vectored = first.block_on(stream.write_vectored(&[io::IoSlice::new(b"PING")]));
        let ended = first.block_on(async { (stream.flush().await, stream.shutdown().await) });
        assert!(written.is_err() && vectored.is_err() && ended.0.is_err() && ended.1.is_err());
    }

    /// A socket whose first runtime ends in the middle of a write.
    struct EndingSocket {
        relocation: Arc<Relocation>,
        has_moved: bool,
    }

    impl Socket for EndingSocket {
        fn register_here(self) -> io::Result<Self> {
            Ok(Self { has_moved: true, ..self })
        }
    }

    impl AsyncRead for EndingSocket {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for EndingSocket {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            if self.has_moved {
                return Poll::Ready(Ok(bytes.len()));
            }
            self.relocation.request(&Handle::current());
            Poll::Ready(Err(io::Error::other("its runtime has ended")))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    #[tokio::test]
    async fn a_write_during_which_the_runtime_ends_is_repeated_after_the_move() {
        let relocation = Arc::<Relocation>::default();
        let socket = EndingSocket { relocation: Arc::clone(&relocation), has_moved: false };
        let mut stream = MovableStream::new(socket, relocation);

        assert_eq!(stream.write(b"PING").await.expect("it has moved"), 4);
    }

    #[tokio::test]
    async fn writes_reach_the_peer_up_to_their_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let (stream, peer) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (stream, (mut peer, _)) = (stream.expect("it connects"), peer.expect("it accepts"));
        let mut stream = MovableStream::new(stream, Arc::default());

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
