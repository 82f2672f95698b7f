//! A stub manager over HTTP: serves the queue API for one queue. The server forwards requests to a
//! lease queue, which runs as a separate task.

mod lease_queue;
mod replies;
mod server;

use super::super::error::ClientError;
use super::cut::CutTiming;
use super::event_log::EventLog;
use super::messages::TestMessage;
use lease_queue::{QueueCommand, StubLeaseQueue};
use std::net::SocketAddr;
use tokio::sync::mpsc;

/// A stub manager that serves the queue API for one queue.
pub(super) struct HttpStub {
    address: SocketAddr,
    commands: mpsc::UnboundedSender<QueueCommand>,
    queue_task: actix_rt::task::JoinHandle<()>,
}

impl HttpStub {
    /// Listens on a free port of the loopback interface.
    pub(super) fn open(queue: &str, log: EventLog) -> Result<HttpStub, ClientError> {
        let (requests, request_receiver) = mpsc::channel(server::PENDING_REQUESTS_MAX);
        let (server, address) = server::serve(([127, 0, 0, 1], 0).into(), requests.clone())?;
        let (commands, command_receiver) = mpsc::unbounded_channel();
        let lease_queue = StubLeaseQueue::new(queue, log, address, requests, server);
        let queue_task = actix_rt::spawn(lease_queue.run(request_receiver, command_receiver));
        Ok(HttpStub { address, commands, queue_task })
    }

    /// Returns the base URL of the server.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Enqueues a message.
    pub(super) fn send(&self, message: &TestMessage) {
        self.send_command(QueueCommand::Put(message.clone()));
    }

    /// Cuts the worker's connection once, at this message.
    pub(super) fn cut(&self, number: usize, timing: CutTiming) {
        self.send_command(QueueCommand::Cut(number, timing));
    }

    /// Ends the attempt of this message.
    pub(super) fn end_attempt(&self, number: usize) {
        self.send_command(QueueCommand::EndAttempt(number));
    }

    /// Ends the attempt as soon as the message is leased.
    pub(super) fn cancel_when_leased(&self, number: usize) {
        self.send_command(QueueCommand::CancelWhenLeased(number));
    }

    /// Removes all messages that are not settled.
    pub(super) fn clear(&self) {
        self.send_command(QueueCommand::Clear);
    }

    fn send_command(&self, command: QueueCommand) {
        // Sending fails only after the queue was closed.
        let _ = self.commands.send(command);
    }

    /// Stops the server and the lease queue.
    pub(super) async fn close(self) {
        self.send_command(QueueCommand::Close);
        // An error means that the task panicked, so it has ended, too.
        let _ = self.queue_task.await;
    }
}
