//! Connections: so many at once, and each for a short time only until one of its calls is admitted.

use futures_util::Stream;
use futures_util::task::AtomicWaker;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};
use tonic::transport::server::Connected;

/// The pause after a connection could not be accepted, because there are no file descriptors, say.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// A connection.
pub(super) struct Connection {
    socket: Socket,
    peer: Peer,
    /// When it is closed, unless a call was admitted by then.
    unknown_until: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

/// A socket, with TLS or without. The handshake goes on whenever the connection is looked at,
/// within the time that a connection has until one of its calls is admitted.
enum Socket {
    Plain(TcpStream),
    Shaking(Box<Accept<TcpStream>>),
    Secret(Box<TlsStream<TcpStream>>),
}

/// What bytes come from and go to.
trait ReadWrite: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> ReadWrite for T {}

impl Socket {
    fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        act: impl FnOnce(Pin<&mut (dyn ReadWrite + '_)>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Socket::Shaking(accept) = self {
            let shaken = std::task::ready!(Pin::new(accept).poll(context))?;
            *self = Socket::Secret(Box::new(shaken));
        }
        match self {
            Socket::Plain(socket) => act(Pin::new(socket), context),
            Socket::Secret(socket) => act(Pin::new(&mut **socket), context),
            // Done above.
            Socket::Shaking(_) => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

/// The other end of a connection.
#[derive(Clone)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    is_known: Arc<AtomicBool>,
    broken: Arc<Broken>,
}

/// Whether a connection is broken off, and who reads from it.
#[derive(Default)]
struct Broken {
    is_broken: AtomicBool,
    reader: AtomicWaker,
}

impl Peer {
    /// A call of its was admitted: the connection may stay.
    pub(super) fn admit(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    /// Breaks the connection off, with all that it keeps.
    pub(super) fn break_off(&self) {
        tracing::debug!(peer = %self.address, "a connection of gRPC is broken off");
        self.broken.is_broken.store(true, Ordering::Release);
        self.broken.reader.wake();
    }
}

/// The connections that come in, each with so much time until one of its calls is admitted. While
/// there are as many as there may be, further ones wait.
pub(super) fn incoming(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    connections_max: usize,
    patience: Duration,
) -> impl Stream<Item = Result<Connection, Infallible>> + use<> {
    let places = Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS)));
    futures_util::stream::unfold(
        (listener, places, tls),
        move |(listener, places, tls)| async move {
            // Never closed.
            let place = places.clone().acquire_owned().await.ok()?;
            let (socket, address) = loop {
                match listener.accept().await {
                    Ok(accepted) => break accepted,
                    Err(error) => {
                        tracing::debug!(%error, "a connection of gRPC was not accepted");
                        tokio::time::sleep(REFUSED_PAUSE).await;
                    }
                }
            };
            // Answers are short, and somebody waits for each.
            let _ = socket.set_nodelay(true);
            let socket = match &tls {
                None => Socket::Plain(socket),
                Some(tls) => Socket::Shaking(Box::new(tls.accept(socket))),
            };
            let connection = Connection {
                socket,
                peer: Peer { address, is_known: Arc::default(), broken: Arc::default() },
                unknown_until: Some(Box::pin(tokio::time::sleep(patience))),
                _place: place,
            };
            Some((Ok(connection), (listener, places, tls)))
        },
    )
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.peer.broken.reader.register(context.waker());
        if self.peer.broken.is_broken.load(Ordering::Acquire) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if self.peer.is_known.load(Ordering::Relaxed) {
            self.unknown_until = None;
        }
        if let Some(unknown_until) = &mut self.unknown_until
            && unknown_until.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        self.socket.poll(context, |socket, context| socket.poll_read(context, buffer))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll(context, |socket, context| socket.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll(context, |socket, context| socket.poll_write_vectored(context, parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll(context, |socket, context| socket.poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll(context, |socket, context| socket.poll_shutdown(context))
    }
}
