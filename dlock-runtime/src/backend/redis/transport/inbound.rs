//! The bytes that a server sends over one connection: bounded, and remembered as far as errors need
//! it.
//!
//! ```text
//!  socket --[ TLS ]--> InboundStream --> client library --> queue of messages --> handler
//!                          |  writes          ^                                     |
//!                          +---> Inbound: first bytes, errors, violation <----------+  reads, counts down
//! ```
//!
//! If a connection ends, the client library reports only the error of the operating system. An
//! error that the server sent before says more, so it is kept here.

use std::collections::VecDeque;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use redis::{PushInfo, PushKind};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::backend::redis::transport::framing::{
    FramedReply, Framing, Rejected, ReplyLimits, Size, Violation,
};
use crate::backend::redis::transport::redacted::Redacted;
use crate::sync::lock;
use crate::telemetry;

/// The state of the bytes that were received over one connection.
#[derive(Debug)]
pub(crate) struct Inbound {
    /// The server's address, as texts show it.
    server: Arc<str>,
    content: Content,
    received: Mutex<Received>,
    /// How many more replies may have the limits of [`ReplyLimits::DESCRIPTION`].
    descriptions: AtomicU32,
    /// Whether every reply may have those limits.
    allows_large_replies: AtomicBool,
}

/// The kind of data that a connection receives in addition to replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Nothing: other bytes are discarded.
    Replies,
    /// Pub/sub messages in RESP2.
    Messages,
    /// Push messages in RESP3.
    Pushes,
}

#[derive(Debug, Default)]
struct Received {
    /// The first bytes.
    first: Vec<u8>,
    /// The first bytes before decryption.
    #[cfg(feature = "tls")]
    before_tls: Vec<u8>,
    /// The text of the first error replies, and of the last one.
    errors: Vec<String>,
    /// Whether the last reply was an error.
    ends_with_error: bool,
    violation: Option<Violation>,
    /// The memory that each waiting message takes, and their sum below.
    waiting: VecDeque<u32>,
    waiting_bytes: usize,
}

impl Inbound {
    pub(crate) fn new(server: &Redacted, content: Content) -> Arc<Self> {
        let server = server.to_string().into();
        Arc::new(Self {
            server,
            content,
            received: Mutex::default(),
            descriptions: AtomicU32::new(0),
            allows_large_replies: AtomicBool::new(false),
        })
    }

    /// Raises the limits of `count` more large replies to [`ReplyLimits::DESCRIPTION`].
    pub(crate) fn allow_descriptions(&self, count: u32) {
        self.descriptions.fetch_add(count, Ordering::Relaxed);
    }

    /// Ends what [`allow_descriptions`](Self::allow_descriptions) has allowed. No such reply may be
    /// outstanding: a late reply is as large as any other.
    pub(crate) fn end_descriptions(&self) {
        self.descriptions.store(0, Ordering::Relaxed);
    }

    /// Raises the limits of all replies to [`ReplyLimits::DESCRIPTION`]: the connection is used for
    /// keys that are no locks.
    pub(crate) fn allow_large_replies(&self) {
        self.allows_large_replies.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if all replies have those limits.
    pub(crate) fn allows_large_replies(&self) -> bool {
        self.allows_large_replies.load(Ordering::Relaxed)
    }

    /// Notes that a message has left the queue of the client library.
    pub(crate) fn on_handled(&self) {
        let mut received = lock(&self.received);
        if let Some(bytes) = received.waiting.pop_front() {
            received.waiting_bytes -= bytes as usize;
        }
    }

    /// Returns why this side ended the connection.
    pub(crate) fn violation(&self) -> Option<Violation> {
        lock(&self.received).violation.clone()
    }

    /// Reports a connection that this side ended.
    pub(crate) fn on_end(&self) {
        if let Some(violation) = self.violation() {
            telemetry::disconnected(&format!("redis at {} {violation}", self.server));
        }
    }

    /// Returns the first bytes that were received.
    pub(crate) fn first_bytes(&self) -> Vec<u8> {
        lock(&self.received).first.clone()
    }

    /// Returns a function that keeps the first of the bytes that it is called with, before their
    /// decryption: they may not be TLS.
    #[cfg(feature = "tls")]
    pub(super) fn keep_before_tls(self: Arc<Self>) -> impl FnMut(&[u8]) + Send {
        let mut left = FIRST;
        move |bytes| {
            if left > 0 {
                let kept = bytes.iter().take(left);
                left -= kept.len();
                lock(&self.received).before_tls.extend(kept);
            }
        }
    }

    /// Returns the first bytes before decryption; none without TLS.
    #[cfg(feature = "tls")]
    pub(crate) fn bytes_before_tls(&self) -> Vec<u8> {
        lock(&self.received).before_tls.clone()
    }

    /// Returns the text of the first error replies, and of the last one.
    pub(crate) fn errors(&self) -> Vec<String> {
        lock(&self.received).errors.clone()
    }

    /// Returns the text of the last reply if it was an error.
    pub(crate) fn last_error(&self) -> Option<String> {
        let received = lock(&self.received);
        received.errors.last().filter(|_| received.ends_with_error).cloned()
    }

    /// Returns the limits of a large reply, if one is allowed.
    fn raised(&self) -> Option<ReplyLimits> {
        if self.allows_large_replies() {
            return Some(ReplyLimits::DESCRIPTION);
        }
        let take = |left: u32| left.checked_sub(1);
        let taken = self.descriptions.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.ok().map(|_| ReplyLimits::DESCRIPTION)
    }

    fn on_message(&self, size: Size) -> Result<(), Violation> {
        let bytes = size.bytes + size.values * VALUE;
        let mut received = lock(&self.received);
        received.waiting_bytes += bytes;
        received.waiting.push_back(u32::try_from(bytes).unwrap_or(u32::MAX));
        if received.waiting_bytes > MOST_WAITING { Err(Violation::Backlog(MOST_WAITING)) } else { Ok(()) }
    }

    /// Returns `true` if a reply is a message, which waits in a queue until it is handled.
    fn is_message(&self, reply: &FramedReply<'_>) -> bool {
        match self.content {
            Content::Replies => false,
            Content::Pushes => reply.head.starts_with(b">"),
            // Every reply that the client library does not count as the reply to a request.
            Content::Messages => {
                let is_list = reply.head.starts_with(b"*") || reply.head.starts_with(b">");
                is_list && !TO_REQUESTS.iter().any(|first| reply.head.starts_with(first))
            }
        }
    }
}

/// The push messages of a connection.
#[derive(Debug)]
pub(crate) struct Pushes {
    queue: UnboundedReceiver<PushInfo>,
    inbound: Arc<Inbound>,
}

impl Pushes {
    pub(crate) fn new(queue: UnboundedReceiver<PushInfo>, inbound: &Arc<Inbound>) -> Self {
        Self { queue, inbound: Arc::clone(inbound) }
    }

    /// Returns the next message, or `None` if the connection has ended.
    pub(crate) async fn next(&mut self) -> Option<PushInfo> {
        let next = self.queue.recv().await.filter(|next| next.kind != PushKind::Disconnection);
        if next.is_some() {
            self.inbound.on_handled();
        }
        next
    }
}

/// Not at the end of the queue: if a request on the connection fails first, nothing reads on.
impl Drop for Pushes {
    fn drop(&mut self) {
        self.inbound.on_end();
    }
}

/// A stream that enforces limits. The results are in [`Inbound`] once a read or write fails, or
/// once it is dropped.
#[derive(Debug)]
pub(super) struct InboundStream<S> {
    stream: S,
    inbound: Arc<Inbound>,
    framing: Framing,
    /// The first bytes, at most [`FIRST`].
    first: Vec<u8>,
    last_is_error: bool,
    ended: StreamEnd,
    /// The number of bytes of messages that were read without a pause.
    burst: usize,
}

#[derive(Debug)]
enum StreamEnd {
    No,
    /// The first bytes are not RESP. More of them are collected for the error text.
    Foreign,
    /// The next read fails because of a violation.
    Rejected(Violation),
    /// A write has failed. The bytes that the peer sent before are read, and then the write fails.
    Unwritten(io::Error),
}

impl<S> InboundStream<S> {
    pub(super) fn new(stream: S, inbound: &Arc<Inbound>) -> Self {
        Self {
            stream,
            inbound: Arc::clone(inbound),
            framing: Framing::new(),
            first: Vec::new(),
            last_is_error: false,
            ended: StreamEnd::No,
            burst: 0,
        }
    }

    /// Scans bytes ahead of the client library. Returns how many of them it may read.
    fn scan(&mut self, bytes: &[u8]) -> usize {
        let room = FIRST.saturating_sub(self.first.len());
        if room > 0 {
            self.first.extend(bytes.iter().take(room));
        }
        let Self { inbound, framing, last_is_error, .. } = self;
        let on_reply = |reply: FramedReply<'_>| {
            *last_is_error = reply.error.is_some();
            if let Some(error) = reply.error {
                note_error(&mut lock(&inbound.received).errors, error);
            }
            if inbound.is_message(&reply) { inbound.on_message(reply.size) } else { Ok(()) }
        };
        match framing.scan(bytes, || inbound.raised(), on_reply) {
            Ok(()) => bytes.len(),
            Err(Rejected { at: 0, violation: Violation::Foreign }) => {
                self.ended = StreamEnd::Foreign;
                0
            }
            Err(Rejected { at, violation }) => {
                self.ended = StreamEnd::Rejected(violation);
                at
            }
        }
    }

    /// Copies the results to [`Inbound`].
    fn settle(&mut self, violation: Option<Violation>) {
        let mut received = lock(&self.inbound.received);
        if received.first.len() < self.first.len() {
            received.first.clone_from(&self.first);
        }
        if let Some(error) = self.framing.unfinished_error() {
            note_error(&mut received.errors, error);
            self.last_is_error = true;
        }
        received.ends_with_error = self.last_is_error;
        if received.violation.is_none() {
            received.violation = violation;
        }
    }

    fn reject(&mut self, violation: Violation) -> io::Error {
        self.settle(Some(violation.clone()));
        // The client library treats errors of this kind as a lost connection.
        io::Error::new(io::ErrorKind::ConnectionAborted, violation)
    }
}

impl<S: AsyncRead + Unpin> InboundStream<S> {
    /// Collects bytes that are not RESP for the error text.
    fn poll_foreign(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        while self.first.len() < ENOUGH && !self.first.contains(&b'\n') {
            let mut bytes = [0; ENOUGH];
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                break;
            }
            self.first.extend_from_slice(buffer.filled());
        }
        Poll::Ready(self.reject(Violation::Foreign))
    }

    /// Reads the bytes that the peer sent before a write failed. Returns the error that ends them.
    fn poll_last_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Error>> {
        for _ in 0..LAST_BYTES / FIRST {
            let mut bytes = [0; FIRST];
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer));
            let filled = buffer.filled();
            if read.is_err() || filled.is_empty() || self.scan(filled) < filled.len() {
                return Poll::Ready(read.err());
            }
        }
        Poll::Ready(None)
    }

    /// Writes with `write`. If that fails, first reads the bytes that were sent before.
    fn poll_with<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if !matches!(self.ended, StreamEnd::Unwritten(_)) {
            match write(Pin::new(&mut self.stream), cx) {
                Poll::Ready(Err(error)) if is_hung_up(&error) => self.ended = StreamEnd::Unwritten(error),
                Poll::Ready(Err(error)) => {
                    self.settle(None);
                    return Poll::Ready(Err(error));
                }
                written => return written,
            }
        }
        self.poll_unwritten(cx)
    }

    fn poll_unwritten<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let StreamEnd::Unwritten(error) = std::mem::replace(&mut self.ended, StreamEnd::No) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let Poll::Ready(ended) = self.poll_last_bytes(cx) else {
            self.ended = StreamEnd::Unwritten(error);
            return Poll::Pending;
        };
        let violation = match std::mem::replace(&mut self.ended, StreamEnd::No) {
            StreamEnd::Foreign => Some(Violation::Foreign),
            StreamEnd::Rejected(violation) => Some(violation),
            StreamEnd::No | StreamEnd::Unwritten(_) => None,
        };
        self.settle(violation);
        // An error of TLS says why the peer closed the connection.
        Poll::Ready(Err(ended.filter(|ended| !is_hung_up(ended)).unwrap_or(error)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for InboundStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match &this.ended {
            StreamEnd::No => {}
            StreamEnd::Foreign => return this.poll_foreign(cx).map(Err),
            StreamEnd::Rejected(violation) => {
                let violation = violation.clone();
                return Poll::Ready(Err(this.reject(violation)));
            }
            StreamEnd::Unwritten(_) => return this.poll_unwritten(cx),
        }
        if this.burst > LONGEST_BURST {
            this.burst = 0;
            // The client library parses what it reads in one poll. Timers must run in between.
            return pin!(tokio::task::yield_now()).poll(cx).map(Ok);
        }
        let before = buffer.filled().len();
        let Poll::Ready(read) = Pin::new(&mut this.stream).poll_read(cx, buffer) else {
            this.burst = 0;
            return Poll::Pending;
        };
        if let Err(error) = read {
            this.settle(None);
            return Poll::Ready(Err(error));
        }
        let new = buffer.filled().get(before..).unwrap_or_default();
        if new.is_empty() {
            this.settle(None);
            return Poll::Ready(Ok(()));
        }
        if this.inbound.content != Content::Replies {
            this.burst += new.len();
        }
        let good = this.scan(new);
        if good < new.len() {
            buffer.set_filled(before + good);
            if good == 0 {
                return Pin::new(this).poll_read(cx, buffer); // fails with the violation
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for InboundStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_with(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_with(cx, S::poll_flush)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_with(cx, |stream, cx| stream.poll_write_vectored(cx, buffers))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl<S> Drop for InboundStream<S> {
    /// If connecting times out, the stream is dropped, and its results are needed for the error.
    fn drop(&mut self) {
        let violation = matches!(self.ended, StreamEnd::Foreign).then_some(Violation::Foreign);
        self.settle(violation);
    }
}

fn is_hung_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted
    )
}

fn note_error(errors: &mut Vec<String>, error: &[u8]) {
    if errors.len() == KEPT_ERRORS {
        errors.pop(); // the first ones belong to the handshake, the last one may be why the connection ended
    }
    errors.push(String::from_utf8_lossy(error).trim().to_owned());
}

/// The memory that a queue of messages may take. A grant takes about 350 bytes, so it holds 24,000.
const MOST_WAITING: usize = 8 << 20;

/// How many bytes of messages are read before other tasks run: about 150 grants.
const LONGEST_BURST: usize = 16 << 10;

/// More than the client library takes for a value, not counting its bytes.
const VALUE: usize = 64;

/// The first bytes of the replies to `SUBSCRIBE`, `UNSUBSCRIBE`, and `PING`.
const TO_REQUESTS: [&[u8]; 5] = [
    b"*3\r\n$9\r\nsubscribe\r\n",
    b"*3\r\n$11\r\nunsubscribe\r\n",
    b">3\r\n$9\r\nsubscribe\r\n",
    b">3\r\n$11\r\nunsubscribe\r\n",
    b"*2\r\n$4\r\npong\r\n",
];

/// How much is read after a write has failed: a server that keeps sending must not block the
/// thread.
const LAST_BYTES: usize = 64 * 1024;

/// How many of the first bytes are kept.
const FIRST: usize = 256;

/// Enough bytes that are not RESP to show, even without the end of their line.
const ENOUGH: usize = 64;

const KEPT_ERRORS: usize = 6;

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::backend::redis::simulation::disconnects::Reasons;

    /// Returns what a client reads of `bytes` before the server closes the connection, and how it
    /// ends.
    async fn read(bytes: &[u8], content: Content) -> (Vec<u8>, io::Result<usize>, Arc<Inbound>) {
        let inbound = Inbound::new(&Redacted::new("h:1"), content);
        let (near, mut far) = tokio::io::duplex(1 << 24);
        far.write_all(bytes).await.expect("there is room");
        drop(far);
        let mut read = Vec::new();
        let ended = InboundStream::new(near, &inbound).read_to_end(&mut read).await;
        (read, ended, inbound)
    }

    #[tokio::test]
    async fn replies_within_the_bounds_pass_unchanged() {
        let replies = b"+OK\r\n*2\r\n:1\r\n$3\r\nabc\r\n".repeat(10_000);

        let (read, ended, inbound) = read(&replies, Content::Replies).await;

        assert!(ended.is_ok() && read == replies);
        assert_eq!((inbound.violation(), inbound.last_error()), (None, None));
    }

    #[tokio::test]
    async fn a_too_long_reply_ends_the_connection() {
        let (read, ended, inbound) = read(b"+OK\r\n$99999999\r\nabc", Content::Replies).await;

        let error = ended.expect_err("it is too long");
        assert!(read.starts_with(b"+OK\r\n") && !read.contains(&b'a'), "{read:?}");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Violation>());
        assert!(matches!(inner, Some(Violation::TooLong(_))), "{error:?}");
        assert!(matches!(inbound.violation(), Some(Violation::TooLong(_))), "{inbound:?}");
    }

    #[tokio::test]
    async fn waiting_messages_are_bounded_by_their_memory() {
        let message = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n";
        let push = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";
        for (bytes, content) in [(&message[..], Content::Messages), (&push[..], Content::Pushes)] {
            let few = read(&bytes.repeat(10_000), content).await;
            let many = read(&bytes.repeat(50_000), content).await;

            assert!(few.1.is_ok(), "{content:?}: {:?}", few.1);
            assert_eq!(many.2.violation(), Some(Violation::Backlog(MOST_WAITING)), "{content:?}");
        }
    }

    #[test]
    fn the_guide_lists_the_bound_of_messages() {
        let bound = format!("{} MiB", MOST_WAITING >> 20);
        crate::bounds::assert_listed("messages of one connection that wait", &bound);
    }

    #[tokio::test]
    async fn handled_messages_are_not_counted() {
        let message = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n";
        let inbound = Inbound::new(&Redacted::new("h:1"), Content::Messages);
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut near = InboundStream::new(near, &inbound);
        let mut read = vec![0; message.len() * 100];

        for _ in 0..1_000 {
            far.write_all(&message.repeat(100)).await.expect("there is room");
            near.read_exact(&mut read).await.expect("they are within the bounds");
            (0..100).for_each(|_| inbound.on_handled());
        }

        assert_eq!(lock(&inbound.received).waiting_bytes, 0);
    }

    /// A request on the connection may fail before its messages are read to their end.
    #[tokio::test]
    async fn a_flood_is_reported_if_nothing_reads_the_end_of_the_messages() {
        let reasons = Reasons::record();
        let (_, ended, inbound) = read(b"*1000000000\r\n:1\r\n", Content::Pushes).await;
        let (_sender, queue) = unbounded_channel();

        drop(Pushes::new(queue, &inbound));

        assert!(ended.is_err());
        let reasons = reasons.taken();
        assert!(reasons.len() == 1 && reasons[0].contains("more than 1024 values"), "{reasons:?}");
    }

    #[tokio::test]
    async fn a_flood_of_messages_is_read_with_pauses() {
        let flood = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n".repeat(10_000);
        let inbound = Inbound::new(&Redacted::new("h:1"), Content::Messages);
        let (near, mut far) = tokio::io::duplex(1 << 20);
        far.write_all(&flood).await.expect("there is room");
        let mut near = InboundStream::new(near, &inbound);
        let (mut bytes, mut pauses) = ([0; 1_000], 0);

        let read = async {
            for _ in 0..flood.len() / bytes.len() {
                near.read_exact(&mut bytes).await.expect("they are within the bounds");
            }
        };
        tokio::pin!(read);
        while read.as_mut().now_or_never().is_none() {
            pauses += 1;
            tokio::task::yield_now().await;
        }

        // The runtime alone interrupts a task after 128 reads.
        assert!(pauses > flood.len() / LONGEST_BURST / 2, "{pauses} pauses in {} bytes", flood.len());
    }

    #[tokio::test]
    async fn replies_to_requests_are_not_counted_as_messages() {
        let replies: Vec<u8> = [
            &b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"[..],
            b"*3\r\n$11\r\nunsubscribe\r\n$1\r\nc\r\n:0\r\n",
            b"*2\r\n$4\r\npong\r\n$0\r\n\r\n",
        ]
        .concat()
        .repeat(30_000);

        let (_, ended, inbound) = read(&replies, Content::Messages).await;

        assert!(ended.is_ok(), "{ended:?}");
        assert_eq!(lock(&inbound.received).waiting.len(), 0);
    }

    #[tokio::test]
    async fn the_last_reply_is_known_if_it_was_an_error() {
        for (bytes, last) in [
            (&b"-DENIED go away\r\n"[..], Some("DENIED go away")),
            (b"+OK\r\n-ERR max number of clients reached\r\n", Some("ERR max number of clients reached")),
            (b"-ERR unknown\r\n+OK\r\n", None),
            (b"-DENIED half of a li", Some("DENIED half of a li")),
        ] {
            let inbound = read(bytes, Content::Replies).await.2;
            assert_eq!(inbound.last_error().as_deref(), last, "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[tokio::test]
    async fn a_foreign_protocol_is_shown_by_its_first_bytes() {
        for first in
            ["HTTP/1.1 400 Bad Request\r\nServer: x\r\n", "220 mail ESMTP", "J\0\0\0\n8.0.36\0native"]
        {
            let (read, ended, inbound) = read(first.as_bytes(), Content::Replies).await;

            assert!(read.is_empty() && ended.is_err(), "{first}");
            assert_eq!(inbound.violation(), Some(Violation::Foreign), "{first}");
            assert!(first.as_bytes().starts_with(&inbound.first_bytes()), "{first}");
            assert!(inbound.first_bytes().len() >= first.len().min(24), "{first}");
        }
    }

    #[tokio::test]
    async fn bytes_sent_before_a_failed_write_are_read() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let near = tokio::net::TcpStream::connect(address).await.expect("it listens");
        let (mut far, _) = listener.accept().await.expect("a client has come");
        far.write_all(b"-DENIED go away\r\n").await.expect("it takes it");
        drop(far);
        let inbound = Inbound::new(&Redacted::new("h:1"), Content::Replies);
        let mut near = InboundStream::new(near, &inbound);

        let mut failed = near.write_all(b"PING\r\n").await;
        while failed.is_ok() {
            failed = near.write_all(b"PING\r\n").await;
        }

        assert_eq!(inbound.last_error().as_deref(), Some("DENIED go away"));
    }

    #[tokio::test]
    async fn a_large_reply_needs_a_permission() {
        let large = format!("${}\r\n{}\r\n+OK\r\n", 100_000, "a".repeat(100_000));
        let accepted = async |inbound: &Arc<Inbound>, count: usize| {
            let bytes = large.repeat(count);
            InboundStream::new(bytes.as_bytes(), inbound).read_to_end(&mut Vec::new()).await.is_ok()
        };
        let inbound = Inbound::new(&Redacted::new("h:1"), Content::Replies);

        assert!(!inbound.allows_large_replies() && !accepted(&inbound, 1).await);
        inbound.allow_descriptions(3);
        assert!(accepted(&inbound, 2).await, "as many as were allowed");
        assert!(!accepted(&inbound, 2).await, "one is left");
        inbound.allow_descriptions(2);
        inbound.end_descriptions();
        assert!(!accepted(&inbound, 1).await, "none is left");
        inbound.allow_large_replies();
        assert!(inbound.allows_large_replies() && accepted(&inbound, 5).await);
    }

    #[test]
    fn messages_may_wait_up_to_exactly_the_bound() {
        let inbound = Inbound::new(&Redacted::new("h:1"), Content::Messages);
        let value = Size { bytes: 0, values: 1 };

        assert_eq!(inbound.on_message(Size { bytes: MOST_WAITING - 2 * VALUE, values: 1 }), Ok(()));
        assert_eq!(inbound.on_message(value), Ok(()));
        assert_eq!(inbound.on_message(value), Err(Violation::Backlog(MOST_WAITING)));
    }

    #[tokio::test]
    async fn pushes_are_counted_down_and_end_with_the_connection() {
        let inbound = Inbound::new(&Redacted::new("h:1"), Content::Pushes);
        inbound.on_message(Size { bytes: 30, values: 2 }).expect("it is within the bounds");
        let (sender, queue) = unbounded_channel();
        for kind in [PushKind::Invalidate, PushKind::Disconnection, PushKind::Invalidate] {
            sender.send(PushInfo { kind, data: Vec::new() }).expect("it is received");
        }
        let mut pushes = Pushes::new(queue, &inbound);

        let first = pushes.next().await.map(|push| push.kind);
        assert_eq!((first, lock(&inbound.received).waiting_bytes), (Some(PushKind::Invalidate), 0));
        assert!(pushes.next().await.is_none(), "the connection has ended");
    }

    #[tokio::test]
    async fn the_first_errors_and_the_last_one_are_kept() {
        let errors = (1..=8).map(|number| format!("-ERR {number}\r\n")).collect::<Vec<_>>().concat();

        let inbound = read(errors.as_bytes(), Content::Replies).await.2;

        assert_eq!(inbound.errors(), ["ERR 1", "ERR 2", "ERR 3", "ERR 4", "ERR 5", "ERR 8"]);
    }

    #[cfg(feature = "tls")]
    #[test]
    fn the_first_bytes_before_decryption_are_kept() {
        let inbound = Inbound::new(&Redacted::new("h:1"), Content::Replies);
        let mut keep = Arc::clone(&inbound).keep_before_tls();
        let bytes: Vec<u8> = (0..=255).collect();

        for piece in [&bytes[..100], &bytes[100..200], &[&bytes[200..], b"more"].concat(), b"more"] {
            keep(piece);
        }

        assert_eq!(inbound.bytes_before_tls(), bytes);
    }

    #[tokio::test]
    async fn an_open_foreign_connection_ends_once_enough_is_known() {
        for first in ["SSH-2.0\r\n", "\n", &"x".repeat(ENOUGH), &"x".repeat(ENOUGH + 1)] {
            let inbound = Inbound::new(&Redacted::new("h:1"), Content::Replies);
            let (near, mut far) = tokio::io::duplex(1_024);
            far.write_all(first.as_bytes()).await.expect("there is room");

            let ended = InboundStream::new(near, &inbound).read(&mut [0; 512]).now_or_never();

            assert!(ended.is_some_and(|ended| ended.is_err()), "{first:?}");
            assert_eq!(inbound.first_bytes(), first.as_bytes());
        }
    }

    #[tokio::test]
    async fn the_rest_of_a_foreign_line_is_waited_for() {
        let inbound = Inbound::new(&Redacted::new("h:1"), Content::Replies);
        let (near, mut far) = tokio::io::duplex(1_024);
        let mut near = InboundStream::new(near, &inbound);

        far.write_all(b"220 mail").await.expect("there is room");
        assert!(near.read(&mut [0; 512]).now_or_never().is_none());
        far.write_all(b" ESMTP\n").await.expect("there is room");
        let ended = near.read(&mut [0; 512]).await;

        assert!(ended.is_err());
        assert_eq!(inbound.first_bytes(), b"220 mail ESMTP\n");
    }

    #[tokio::test]
    async fn a_foreign_connection_that_is_dropped_is_known_as_such() {
        let inbound = Inbound::new(&Redacted::new("h:1"), Content::Replies);
        let (near, mut far) = tokio::io::duplex(1_024);
        let mut near = InboundStream::new(near, &inbound);
        far.write_all(b"220 mail").await.expect("there is room");
        assert!(near.read(&mut [0; 512]).now_or_never().is_none());

        drop(near);

        assert_eq!(inbound.violation(), Some(Violation::Foreign));
        assert_eq!(inbound.first_bytes(), b"220 mail");
    }

    /// A stream whose reads and writes return what a test specifies.
    struct FakeStream {
        /// The next reads. A read beyond them waits.
        reads: VecDeque<io::Result<Vec<u8>>>,
        /// The kind of the error of each write, if writes fail.
        write_error: Option<io::ErrorKind>,
        is_vectored: bool,
        calls: Arc<Mutex<Vec<&'static str>>>,
    }

    impl FakeStream {
        fn failing(write_error: io::ErrorKind, reads: Vec<io::Result<Vec<u8>>>) -> Self {
            let write_error = Some(write_error);
            Self { reads: reads.into(), write_error, is_vectored: false, calls: Arc::default() }
        }

        fn record(&self, call: &'static str, length: usize) -> Poll<io::Result<usize>> {
            lock(&self.calls).push(call);
            Poll::Ready(self.write_error.map_or(Ok(length), |kind| Err(kind.into())))
        }
    }

    impl AsyncRead for FakeStream {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            lock(&self.calls).push("read");
            match self.reads.pop_front() {
                Some(read) => Poll::Ready(read.map(|bytes| buffer.put_slice(&bytes))),
                None => Poll::Pending,
            }
        }
    }

    impl AsyncWrite for FakeStream {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.record("write", bytes.len())
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.record("flush", 0).map_ok(drop)
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.record("shutdown", 0).map_ok(drop)
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffers: &[io::IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            self.record("write_vectored", buffers.iter().map(|buffer| buffer.len()).sum())
        }

        fn is_write_vectored(&self) -> bool {
            self.is_vectored
        }
    }

    #[tokio::test]
    async fn writes_are_passed_on() {
        for is_vectored in [true, false] {
            let inbound = Inbound::new(&Redacted::new("h:1"), Content::Replies);
            let calls = Arc::default();
            let stream = FakeStream {
                reads: VecDeque::new(),
                write_error: None,
                is_vectored,
                calls: Arc::clone(&calls),
            };
            let mut stream = InboundStream::new(stream, &inbound);

            assert_eq!(stream.is_write_vectored(), is_vectored);
            assert_eq!(stream.write(b"PING").await.ok(), Some(4));
            let parts = [io::IoSlice::new(b"PI"), io::IoSlice::new(b"NG\r")];
            assert_eq!(stream.write_vectored(&parts).await.ok(), Some(5));
            assert!(stream.flush().await.is_ok() && stream.shutdown().await.is_ok());
            assert_eq!(*lock(&calls), ["write", "write_vectored", "flush", "shutdown"]);
        }
    }

    #[tokio::test]
    async fn a_write_that_fails_on_an_open_connection_fails_at_once() {
        let inbound = Inbound::new(&Redacted::new("h:1"), Content::Replies);
        let stream = FakeStream::failing(io::ErrorKind::OutOfMemory, Vec::new());

        let failed = InboundStream::new(stream, &inbound).write(b"PING").now_or_never();

        assert_eq!(failed.expect("it does not wait").map_err(|error| error.kind()), {
            Err(io::ErrorKind::OutOfMemory)
        });
    }

    #[tokio::test]
    async fn a_failed_write_reports_why_the_peer_closed_the_connection() {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, InvalidData};
        let replies = || (0..3).map(|_| Ok(b"+OK\r\n".repeat(50))).chain([Ok(b"-DENIED\r\n".to_vec())]);
        for (end, kind) in [
            (Ok(Vec::new()), BrokenPipe),
            (Err(ConnectionReset.into()), BrokenPipe),
            (Err(ConnectionAborted.into()), BrokenPipe),
            (Err(InvalidData.into()), InvalidData), // as an alert of TLS
        ] {
            let inbound = Inbound::new(&Redacted::new("h:1"), Content::Replies);
            let stream = FakeStream::failing(BrokenPipe, replies().chain([end]).collect());

            let failed = InboundStream::new(stream, &inbound).write(b"PING").now_or_never();

            assert_eq!(failed.expect("all has come").map_err(|error| error.kind()), Err(kind));
            assert_eq!(inbound.last_error().as_deref(), Some("DENIED"));
        }
    }

    #[tokio::test]
    async fn reading_after_a_failed_write_stops_at_a_violation() {
        let reads = vec![Ok(b"+OK\r\n$99999999\r\n".to_vec()), Ok(b"-DENIED\r\n".to_vec())];
        let inbound = Inbound::new(&Redacted::new("h:1"), Content::Replies);
        let stream = FakeStream::failing(io::ErrorKind::ConnectionReset, reads);
        let calls = Arc::clone(&stream.calls);

        let failed = InboundStream::new(stream, &inbound).write(b"PING").now_or_never();

        assert!(failed.is_some_and(|failed| failed.is_err()));
        assert_eq!(*lock(&calls), ["write", "read"]);
        assert!(matches!(inbound.violation(), Some(Violation::TooLong(_))), "{inbound:?}");
    }

    #[tokio::test]
    async fn a_failed_write_reads_at_most_64_kib_of_an_endless_peer() {
        let inbound = Inbound::new(&Redacted::new("h:1"), Content::Replies);
        let endless = (0..1_000).map(|_| Ok(b"+12345\r\n".repeat(FIRST / 8)));
        let stream = FakeStream::failing(io::ErrorKind::BrokenPipe, endless.collect());
        let calls = Arc::clone(&stream.calls);

        let failed = InboundStream::new(stream, &inbound).write(b"PING").now_or_never();

        assert!(failed.is_some_and(|failed| failed.is_err()));
        assert_eq!(lock(&calls).iter().filter(|call| **call == "read").count() * FIRST, 64 << 10);
    }

    #[tokio::test]
    async fn a_failed_write_waits_for_the_last_bytes() {
        let inbound = Inbound::new(&Redacted::new("h:1"), Content::Replies);
        let stream = FakeStream::failing(io::ErrorKind::BrokenPipe, vec![Ok(b"-DEN".to_vec())]);
        let mut stream = InboundStream::new(stream, &inbound);

        assert!(stream.write(b"PING").now_or_never().is_none());
        stream.stream.reads.extend([Ok(b"IED\r\n".to_vec()), Ok(Vec::new())]);
        let read = stream.read(&mut [0; 8]).now_or_never().expect("all has come");

        assert_eq!(read.map_err(|error| error.kind()), Err(io::ErrorKind::BrokenPipe));
        assert_eq!(inbound.last_error().as_deref(), Some("DENIED"));
    }
}
