//! A socket, with TLS or without.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

/// A socket. The TLS handshake makes progress whenever the socket is polled.
pub enum Socket {
    /// Without TLS.
    Plain(TcpStream),
    /// With TLS, before the handshake is done.
    Handshaking(Box<Accept<TcpStream>>),
    /// With TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

/// A stream that bytes are read from and written to.
pub trait ReadWrite: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> ReadWrite for T {}

impl Socket {
    /// Accepts a connection; its handshake begins when it is first polled.
    pub fn accept(socket: TcpStream, tls: Option<&TlsAcceptor>) -> Socket {
        // Responses are short, and a client waits for each.
        let _ = socket.set_nodelay(true);
        match tls {
            None => Socket::Plain(socket),
            Some(tls) => Socket::Handshaking(Box::new(tls.accept(socket))),
        }
    }

    /// Returns whether the TLS handshake is under way.
    pub(super) fn is_handshaking(&self) -> bool {
        matches!(self, Socket::Handshaking(_))
    }

    /// Polls `act` on the socket, once the handshake is done.
    pub fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        act: impl FnOnce(Pin<&mut (dyn ReadWrite + '_)>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Socket::Handshaking(accept) = self {
            let stream = std::task::ready!(Pin::new(accept).poll(context))?;
            *self = Socket::Tls(Box::new(stream));
        }
        match self {
            Socket::Plain(socket) => act(Pin::new(socket), context),
            Socket::Tls(socket) => act(Pin::new(&mut **socket), context),
            // The handshake was completed above.
            Socket::Handshaking(_) => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}
