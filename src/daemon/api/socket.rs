//! A TCP socket with or without TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

/// A TCP socket with or without TLS. Polling it drives the TLS handshake.
pub enum Socket {
    /// Without TLS.
    Plain(TcpStream),
    /// With TLS, during the handshake.
    Handshaking(Box<Accept<TcpStream>>),
    /// With TLS, after the handshake.
    Tls(Box<TlsStream<TcpStream>>),
}

/// A stream of bytes in both directions.
pub trait ReadWrite: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> ReadWrite for T {}

impl Socket {
    /// Wraps an accepted socket. With `tls`, the handshake begins at the first poll.
    pub fn accept(socket: TcpStream, tls: Option<&TlsAcceptor>) -> Socket {
        // Nagle's algorithm would delay responses, which are short and which a client waits for.
        let _ = socket.set_nodelay(true);
        match tls {
            None => Socket::Plain(socket),
            Some(tls) => Socket::Handshaking(Box::new(tls.accept(socket))),
        }
    }

    /// Returns whether the TLS handshake is in progress.
    pub(super) fn is_handshaking(&self) -> bool {
        matches!(self, Socket::Handshaking(_))
    }

    /// Drives the handshake. After the handshake, applies `poll_io` to the socket.
    pub fn poll<T, F>(&mut self, context: &mut Context<'_>, poll_io: F) -> Poll<io::Result<T>>
    where
        F: FnOnce(Pin<&mut (dyn ReadWrite + '_)>, &mut Context<'_>) -> Poll<io::Result<T>>,
    {
        if let Socket::Handshaking(accept) = self {
            let stream = std::task::ready!(Pin::new(accept).poll(context))?;
            *self = Socket::Tls(Box::new(stream));
        }
        match self {
            Socket::Plain(socket) => poll_io(Pin::new(socket), context),
            Socket::Tls(socket) => poll_io(Pin::new(&mut **socket), context),
            // The handshake was completed above.
            Socket::Handshaking(_) => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}
