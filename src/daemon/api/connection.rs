//! A connection of the HTTP API: its slot, and the time limit for each request head.

use super::connection_slots::{ConnectionSlot, SlotGuard};
use super::first_head::FirstHead;
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
    slot_guard: SlotGuard,
    head_timeout: Duration,
    /// When the TLS handshake must be done, counted from the beginning.
    handshake_deadline: Pin<Box<Sleep>>,
    /// When the next call must begin, and how many had begun before. It counts from the first byte
    /// behind a call; the server itself limits the first head alone.
    head_deadline: Option<(usize, Pin<Box<Sleep>>)>,
    first_head: FirstHead,
}

impl Connection {
    pub(super) fn new(
        socket: TcpStream,
        tls: Option<&TlsAcceptor>,
        slot_guard: SlotGuard,
        head_timeout: Duration,
    ) -> Connection {
        Connection {
            socket: Socket::accept(socket, tls),
            slot_guard,
            head_timeout,
            handshake_deadline: Box::pin(tokio::time::sleep(head_timeout)),
            head_deadline: None,
            first_head: FirstHead::default(),
        }
    }

    pub(super) fn slot(&self) -> &Arc<ConnectionSlot> {
        &self.slot_guard.0
    }

    /// Returns an error if the connection must end. Otherwise registers the task to be woken when
    /// it must.
    fn check_alive(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.slot().poll_closed(context) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let is_late = self.socket.is_handshaking()
            && self.handshake_deadline.as_mut().poll(context).is_ready();
        if is_late || self.is_head_late(context) {
            self.slot().report_late_head();
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// Checks the connection only while nothing can be done: what can be written is still written,
    /// because a response may be among it.
    fn check_if_pending<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_pending() {
            self.check_alive(context)?;
        }
        polled
    }

    fn is_head_late(&mut self, context: &mut Context<'_>) -> bool {
        let calls_begun = self.slot().calls_begun();
        match &mut self.head_deadline {
            Some((before, _)) if *before != calls_begun => self.head_deadline = None,
            Some((_, until)) => return until.as_mut().poll(context).is_ready(),
            None => {}
        }
        false
    }

    /// Starts the timer for the next head, if bytes have come between calls.
    fn start_head_timer(&mut self, context: &mut Context<'_>) {
        let slot = self.slot();
        let calls_begun = slot.calls_begun();
        if calls_begun == 0 || slot.is_busy() || self.head_deadline.is_some() {
            return;
        }
        let mut until = Box::pin(tokio::time::sleep(self.head_timeout));
        // Polled once, so that it wakes the task from now on.
        if until.as_mut().poll(context).is_pending() {
            self.head_deadline = Some((calls_begun, until));
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_alive(context)?;
        let this = &mut *self;
        let before = buffer.filled().len();
        let read = this.first_head.poll_read(buffer, |buffer| {
            this.socket.poll(context, |socket, context| socket.poll_read(context, buffer))
        });
        if buffer.filled().len() > before {
            this.start_head_timer(context);
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
        self.check_if_pending(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written =
            self.socket.poll(context, |socket, context| socket.poll_write_vectored(context, parts));
        self.check_if_pending(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.socket.poll(context, |socket, context| socket.poll_flush(context));
        self.check_if_pending(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = self.socket.poll(context, |socket, context| socket.poll_shutdown(context));
        self.check_if_pending(context, shut)
    }
}
