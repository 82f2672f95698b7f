//! Limits connections: their number, and the time until one of their calls is admitted.

use super::super::places::{Place, Places, Seated};
use super::super::socket::Socket;
use crate::access::Certificate;
use futures_util::Stream;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tonic::transport::server::Connected;

/// The delay after a connection could not be accepted, for example for lack of file descriptors.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// The slot of a connection, by which its calls know it.
pub(super) type Peer = Arc<Place>;

/// A connection of a client.
pub(super) struct Connection {
    socket: Socket,
    seated: Seated,
    /// When it is closed unless a call was admitted by then. The TLS handshake has the same time.
    unknown_until: Option<Pin<Box<Sleep>>>,
    _accepted: OwnedSemaphorePermit,
}

/// Returns the accepted connections. Each has the time `timeout` until one of its calls must be
/// admitted. When `connections_max` are open, further ones wait.
pub(super) fn incoming(
    listener: TcpListener,
    certificate: Option<Arc<Certificate>>,
    connections_max: usize,
    places: Arc<Places>,
    patience: Duration,
) -> impl Stream<Item = Result<Connection, Infallible>> + use<> {
    let accepted = Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS)));
    futures_util::stream::unfold(
        (listener, accepted, places, certificate),
        move |(listener, accepted, places, certificate)| async move {
            // The semaphore is never closed.
            let permit = accepted.clone().acquire_owned().await.ok()?;
            let (socket, seated) = loop {
                match listener.accept().await {
                    Ok((socket, address)) => {
                        if let Some(seated) = places.enter(address) {
                            break (socket, seated);
                        }
                    }
                    Err(error) => {
                        tracing::debug!(%error, "a connection of gRPC was not accepted");
                        tokio::time::sleep(REFUSED_PAUSE).await;
                    }
                }
            };
            let tls = certificate.as_ref().map(|shown| TlsAcceptor::from(shown.shown().grpc));
            let connection = Connection {
                socket: Socket::of(socket, tls.as_ref()),
                seated,
                unknown_until: Some(Box::pin(tokio::time::sleep(patience))),
                _accepted: permit,
            };
            Some((Ok(connection), (listener, accepted, places, certificate)))
        },
    )
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.seated.0.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.seated.0.is_ended(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if self.seated.0.is_known() {
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
