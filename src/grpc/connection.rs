//! Limits the connections of the server: their number, and the time until the first call of each is
//! admitted.

use daemon::access::CertificateStore;
use daemon::api::connection_slots::{ConnectionSlot, ConnectionSlots, SlotGuard};
use daemon::api::socket::Socket;
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

/// The delay before accepting is retried, for example when file descriptors are exhausted.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The slot of a connection, which its calls share.
pub(super) type Peer = Arc<ConnectionSlot>;

/// A connection of a client.
pub(super) struct Connection {
    socket: Socket,
    slot: SlotGuard,
    /// Closes the connection if no call is admitted in time, including the TLS handshake; `None`: a
    /// call was admitted.
    admission_timeout: Option<Pin<Box<Sleep>>>,
    /// Counts the connection towards the limit until it is dropped.
    _permit: OwnedSemaphorePermit,
}

/// Returns the accepted connections. On each, a call must be admitted within `admission_timeout`.
/// While `connections_max` connections are open, no further one is accepted.
pub(super) fn incoming(
    listener: TcpListener,
    certificate: Option<Arc<CertificateStore>>,
    connections_max: usize,
    slots: Arc<ConnectionSlots>,
    admission_timeout: Duration,
) -> impl Stream<Item = Result<Connection, Infallible>> + use<> {
    let permits = Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS)));
    futures_util::stream::unfold(
        (listener, permits, slots, certificate),
        move |(listener, permits, slots, certificate)| async move {
            // This always succeeds, because the semaphore is never closed.
            let permit = permits.clone().acquire_owned().await.ok()?;
            let (socket, slot) = loop {
                match listener.accept().await {
                    Ok((socket, address)) => {
                        if let Some(slot) = slots.acquire_slot(address) {
                            break (socket, slot);
                        }
                    }
                    Err(error) => {
                        tracing::debug!(%error, "a gRPC connection was not accepted");
                        tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    }
                }
            };
            let tls = certificate.as_ref().map(|store| TlsAcceptor::from(store.current().grpc));
            let connection = Connection {
                socket: Socket::accept(socket, tls.as_ref()),
                slot,
                admission_timeout: Some(Box::pin(tokio::time::sleep(admission_timeout))),
                _permit: permit,
            };
            Some((Ok(connection), (listener, permits, slots, certificate)))
        },
    )
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.slot.0.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.slot.0.poll_closed(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if self.slot.0.is_admitted() {
            self.admission_timeout = None;
        }
        if let Some(timeout) = &mut self.admission_timeout
            && timeout.as_mut().poll(context).is_ready()
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
