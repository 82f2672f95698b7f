//! A worker over gRPC for tests and measurements. It sends only what its caller asks for.

#[allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated")]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "generated: not every test needs all")]
#[rustfmt::skip]
mod client;

pub use client::workers_client::WorkersClient;
use std::net::SocketAddr;
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use workflow_manager::grpc::wire::from_worker::Say;
use workflow_manager::grpc::wire::to_worker::Say as ManagerMessage;
use workflow_manager::grpc::wire::{
    ExtendRequest, FromWorker, Hello, Kind, NackRequest, ReplyRequest, StepMessage, ToWorker, Want,
};

/// The maximum size of a message from the manager, in bytes. It is more than any test sends.
const DECODED_BYTES_MAX: usize = 64 << 20;

/// Connects to the manager at an address. Panics if that fails.
pub async fn connect(address: SocketAddr) -> WorkersClient<Channel> {
    try_connect(address).await.expect("connected")
}

/// Connects to the manager at an address. `None` if that fails.
pub async fn try_connect(address: SocketAddr) -> Option<WorkersClient<Channel>> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let client = WorkersClient::new(endpoint.connect().await.ok()?);
    Some(client.max_decoding_message_size(DECODED_BYTES_MAX))
}

/// Makes a request with a bearer token.
pub fn with_bearer<T>(request: T, token: &str) -> Request<T> {
    let mut request = Request::new(request);
    let bearer = format!("Bearer {token}").parse().expect("a header");
    request.metadata_mut().insert("authorization", bearer);
    request
}

/// A worker with one stream.
pub struct GrpcWorker {
    /// `None` once the worker has closed its half of the stream.
    outgoing: Option<mpsc::UnboundedSender<FromWorker>>,
    incoming: Streaming<ToWorker>,
}

impl GrpcWorker {
    /// Opens a stream, and sends a hello for these queues.
    pub async fn open(
        client: &WorkersClient<Channel>,
        queues: &[&str],
    ) -> Result<GrpcWorker, Status> {
        let queues = queues.iter().map(|queue| (*queue).to_owned()).collect();
        Self::open_with(client, Hello { queues, worker: "w1".to_owned(), ..Hello::default() }, "")
            .await
    }

    /// Opens a stream, and sends this hello. An empty token is not sent.
    pub async fn open_with(
        client: &WorkersClient<Channel>,
        hello: Hello,
        token: &str,
    ) -> Result<GrpcWorker, Status> {
        let mut worker = Self::open_silent(client, token).await?;
        worker.send(Say::Hello(hello));
        Ok(worker)
    }

    /// Opens a stream without sending anything on it. An empty token is not sent.
    pub async fn open_silent(
        client: &WorkersClient<Channel>,
        token: &str,
    ) -> Result<GrpcWorker, Status> {
        let (outgoing, messages) = mpsc::unbounded_channel();
        let messages = futures_util::stream::unfold(messages, |mut messages| async move {
            messages.recv().await.map(|message| (message, messages))
        });
        let request = match token {
            "" => Request::new(messages),
            token => with_bearer(messages, token),
        };
        let incoming = client.clone().work(request).await?.into_inner();
        Ok(GrpcWorker { outgoing: Some(outgoing), incoming })
    }

    /// Sends a message to the manager. Does nothing once this half of the stream is closed.
    pub fn send(&mut self, say: Say) {
        if let Some(outgoing) = &self.outgoing {
            // Sending fails if the stream has ended, which `receive` returns.
            let _ = outgoing.send(FromWorker { say: Some(say) });
        }
    }

    /// Gives the manager credit for this many messages.
    pub fn want(&mut self, messages: u32) {
        self.send(Say::Want(Want { messages }));
    }

    /// Replies to a message.
    pub fn reply(&mut self, receipt: &str, kind: Kind, body: impl Into<bytes::Bytes>) {
        let (receipt, body) = (receipt.to_owned(), body.into());
        self.send(Say::Reply(ReplyRequest { receipt, kind: kind.into(), body }));
    }

    /// Extends a lease.
    pub fn extend(&mut self, receipt: &str) {
        let receipt = receipt.to_owned();
        self.send(Say::Extend(ExtendRequest { receipt, lease: None }));
    }

    /// Rejects a message.
    pub fn nack(&mut self, receipt: &str, requeue: bool) {
        let receipt = receipt.to_owned();
        self.send(Say::Nack(NackRequest { receipt, requeue, delay: None }));
    }

    /// Closes the worker's half of the stream.
    pub fn close(&mut self) {
        self.outgoing = None;
    }

    /// Waits for the next message of the manager. `None` if the stream has ended without an error.
    pub async fn receive(&mut self) -> Result<Option<ManagerMessage>, Status> {
        let message = self.incoming.message().await?;
        Ok(message.map(|message| message.say.expect("a message with content")))
    }

    /// Waits for the next message of the manager, which must be a step message.
    pub async fn message(&mut self) -> StepMessage {
        match self.receive().await {
            Ok(Some(ManagerMessage::Message(message))) => message,
            other => panic!("expected a message, got {other:?}"),
        }
    }
}
