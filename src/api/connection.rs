//! A connection of the HTTP API: its slot, and the time limit for each request head.

use super::first_head::FirstHead;
use super::places::{Place, Seated};
use super::socket::Socket;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;

/// A connection that enforces its slot and its time limits.
pub(super) struct Connection {
    socket: Socket,
    seated: Seated,
    head_timeout: Duration,
    /// When the TLS handshake must be done, counted from the beginning.
    shaken_until: Pin<Box<Sleep>>,
    /// When the next call must begin, and how many had begun before. It counts from the first byte
    /// behind a call; the server itself limits the first head alone.
    head_until: Option<(usize, Pin<Box<Sleep>>)>,
    first_head: FirstHead,
}

impl Connection {
    pub(super) fn new(
        socket: TcpStream,
        tls: Option<&TlsAcceptor>,
        seated: Seated,
        head_timeout: Duration,
    ) -> Connection {
        Connection {
            socket: Socket::of(socket, tls),
            seated,
            head_timeout,
            shaken_until: Box::pin(tokio::time::sleep(head_timeout)),
            head_until: None,
            first_head: FirstHead::default(),
        }
    }

    pub(super) fn place(&self) -> &Arc<Place> {
        &self.seated.0
    }

    /// Returns an error if the connection must end. Otherwise registers the task to be woken when
    /// it must.
    fn poll_alive(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.place().is_ended(context) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let is_late =
            self.socket.is_shaking() && self.shaken_until.as_mut().poll(context).is_ready();
        if is_late || self.is_head_late(context) {
            self.place().is_late();
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// Checks the connection only while nothing can be done: what can be written is still written,
    /// because a response may be among it.
    fn alive_if_pending<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_pending() {
            self.poll_alive(context)?;
        }
        polled
    }

    fn is_head_late(&mut self, context: &mut Context<'_>) -> bool {
        let begun = self.place().begun();
        match &mut self.head_until {
            Some((before, _)) if *before != begun => self.head_until = None,
            Some((_, until)) => return until.as_mut().poll(context).is_ready(),
            None => {}
        }
        false
    }

    /// Starts the timer for the next head, if bytes have come between calls.
    fn has_read(&mut self, context: &mut Context<'_>) {
        let place = self.place();
        let begun = place.begun();
        if begun == 0 || place.is_busy() || self.head_until.is_some() {
            return;
        }
        let mut until = Box::pin(tokio::time::sleep(self.head_timeout));
        // Polled once, so that it wakes the task from now on.
        if until.as_mut().poll(context).is_pending() {
            self.head_until = Some((begun, until));
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_alive(context)?;
        let this = &mut *self;
        let before = buffer.filled().len();
        let read = this.first_head.poll_read(buffer, |buffer| {
            this.socket.poll(context, |socket, context| socket.poll_read(context, buffer))
        });
        if buffer.filled().len() > before {
            this.has_read(context);
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written =
            self.socket.poll(context, |socket, context| socket.poll_write(context, bytes));
        self.alive_if_pending(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written =
            self.socket.poll(context, |socket, context| socket.poll_write_vectored(context, parts));
        self.alive_if_pending(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.socket.poll(context, |socket, context| socket.poll_flush(context));
        self.alive_if_pending(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = self.socket.poll(context, |socket, context| socket.poll_shutdown(context));
        self.alive_if_pending(context, shut)
    }
}
