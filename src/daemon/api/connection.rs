//! A connection of the HTTP API. It holds its slot, and enforces time limits on the TLS handshake
//! and on each request head.

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

/// A connection that returns an error when it is evicted from its slot, or exceeds a time limit.
pub(super) struct Connection {
    socket: Socket,
    slot_guard: SlotGuard,
    head_timeout: Duration,
    /// Expires when the TLS handshake must be complete. It starts with the connection.
    handshake_deadline: Pin<Box<Sleep>>,
    /// The time limit for the next head. `None`: no byte has arrived since the last request. The
    /// HTTP server itself limits only the first head.
    head_timer: Option<HeadTimer>,
    first_head: FirstHead,
}

/// The time limit for a request head. It starts with the first byte after the previous request.
struct HeadTimer {
    /// How many calls had begun when the timer started. A higher count means that the head is
    /// complete.
    calls_before: usize,
    deadline: Pin<Box<Sleep>>,
}

impl Connection {
    /// Makes the connection of an accepted socket. With `tls`, the handshake begins when the
    /// connection is first polled.
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
            head_timer: None,
            first_head: FirstHead::default(),
        }
    }

    /// Returns the slot that the connection holds.
    pub(super) fn slot(&self) -> &Arc<ConnectionSlot> {
        &self.slot_guard.0
    }

    /// Returns an error if the manager has closed the connection, or if the handshake or a head has
    /// exceeded its time limit. Otherwise registers the task to be woken when that happens.
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

    /// Checks the connection, but only if a write is pending. Bytes that can be written without
    /// waiting are written even if the connection must close: they may be a response.
    fn check_if_pending<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if poll.is_pending() {
            self.check_alive(context)?;
        }
        poll
    }

    /// Returns whether the current head has exceeded its time limit. Stops the timer if the head is
    /// complete.
    fn is_head_late(&mut self, context: &mut Context<'_>) -> bool {
        let call_count = self.slot().call_count();
        match &mut self.head_timer {
            Some(timer) if timer.calls_before != call_count => self.head_timer = None,
            Some(timer) => return timer.deadline.as_mut().poll(context).is_ready(),
            None => {}
        }
        false
    }

    /// Starts the timer for a head whose first bytes have just arrived. Does nothing before the
    /// first request and during a request.
    fn start_head_timer(&mut self, context: &mut Context<'_>) {
        let slot = self.slot();
        let calls_before = slot.call_count();
        if calls_before == 0 || slot.is_busy() || self.head_timer.is_some() {
            return;
        }
        let mut deadline = Box::pin(tokio::time::sleep(self.head_timeout));
        // The first poll registers the task to be woken.
        if deadline.as_mut().poll(context).is_pending() {
            self.head_timer = Some(HeadTimer { calls_before, deadline });
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
        let filled_before = buffer.filled().len();
        let poll = this.first_head.poll_read(buffer, |buffer| {
            this.socket.poll(context, |socket, context| socket.poll_read(context, buffer))
        });
        if buffer.filled().len() > filled_before {
            this.start_head_timer(context);
        }
        poll
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = self.socket.poll(context, |socket, context| socket.poll_write(context, bytes));
        self.check_if_pending(context, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll =
            self.socket.poll(context, |socket, context| socket.poll_write_vectored(context, parts));
        self.check_if_pending(context, poll)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = self.socket.poll(context, |socket, context| socket.poll_flush(context));
        self.check_if_pending(context, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = self.socket.poll(context, |socket, context| socket.poll_shutdown(context));
        self.check_if_pending(context, poll)
    }
}
