//! A worker over gRPC, for tests and measurements: it says what it is told to say, and hears what
//! comes.

#[allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated")]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "generated: not every test needs all")]
#[rustfmt::skip]
mod client;

pub use client::workers_client::WorkersClient;
use std::net::SocketAddr;
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use workflow_manager::api::grpc::wire::from_worker::Say;
use workflow_manager::api::grpc::wire::to_worker::Say as Tell;
use workflow_manager::api::grpc::wire::{
    ExtendRequest, FromWorker, Hello, Kind, NackRequest, ReplyRequest, StepMessage, ToWorker, Want,
};

/// Connects to the manager that listens there.
pub async fn connect(address: SocketAddr) -> WorkersClient<Channel> {
    try_connect(address).await.expect("connected")
}

/// Connects, unless nobody listens there now.
pub async fn try_connect(address: SocketAddr) -> Option<WorkersClient<Channel>> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let client = WorkersClient::new(endpoint.connect().await.ok()?);
    Some(client.max_decoding_message_size(64 << 20))
}

/// Makes a call with a token.
pub fn with_bearer<T>(request: T, token: &str) -> Request<T> {
    let mut request = Request::new(request);
    let bearer = format!("Bearer {token}").parse().expect("a header");
    request.metadata_mut().insert("authorization", bearer);
    request
}

/// A worker on a stream.
pub struct GrpcWorker {
    say: Option<mpsc::UnboundedSender<FromWorker>>,
    hear: Streaming<ToWorker>,
}

impl GrpcWorker {
    /// Opens a stream, and says hello for these queues.
    pub async fn open(
        client: &WorkersClient<Channel>,
        queues: &[&str],
    ) -> Result<GrpcWorker, Status> {
        let queues = queues.iter().map(|queue| (*queue).to_owned()).collect();
        Self::greet(client, Hello { queues, worker: "w1".to_owned(), ..Hello::default() }, "").await
    }

    /// Opens a stream with another hello, and a token.
    pub async fn greet(
        client: &WorkersClient<Channel>,
        hello: Hello,
        token: &str,
    ) -> Result<GrpcWorker, Status> {
        let mut worker = Self::silent(client, token).await?;
        worker.say(Say::Hello(hello));
        Ok(worker)
    }

    /// Opens a stream on which nothing is said yet.
    pub async fn silent(
        client: &WorkersClient<Channel>,
        token: &str,
    ) -> Result<GrpcWorker, Status> {
        let (say, said) = mpsc::unbounded_channel();
        let said = futures_util::stream::unfold(said, |mut said| async move {
            said.recv().await.map(|say| (say, said))
        });
        let request = match token {
            "" => Request::new(said),
            token => with_bearer(said, token),
        };
        let hear = client.clone().work(request).await?.into_inner();
        Ok(GrpcWorker { say: Some(say), hear })
    }

    /// Sends something.
    pub fn say(&mut self, say: Say) {
        if let Some(to) = &self.say {
            // An error means that the stream has ended, as is heard.
            let _ = to.send(FromWorker { say: Some(say) });
        }
    }

    /// Gives credit for so many messages.
    pub fn want(&mut self, messages: u32) {
        self.say(Say::Want(Want { messages }));
    }

    /// Replies to a message.
    pub fn reply(&mut self, receipt: &str, kind: Kind, body: impl Into<bytes::Bytes>) {
        let (receipt, body) = (receipt.to_owned(), body.into());
        self.say(Say::Reply(ReplyRequest { receipt, kind: kind.into(), body }));
    }

    /// Extends a lease.
    pub fn extend(&mut self, receipt: &str) {
        let receipt = receipt.to_owned();
        self.say(Say::Extend(ExtendRequest { receipt, lease: None }));
    }

    /// Gives a message back.
    pub fn nack(&mut self, receipt: &str, requeue: bool) {
        let receipt = receipt.to_owned();
        self.say(Say::Nack(NackRequest { receipt, requeue, delay: None }));
    }

    /// Closes its half of the stream.
    pub fn farewell(&mut self) {
        self.say = None;
    }

    /// Waits for what comes next; none: the stream has ended well.
    pub async fn hear(&mut self) -> Result<Option<Tell>, Status> {
        let heard = self.hear.message().await?;
        Ok(heard.map(|heard| heard.say.expect("something is said")))
    }

    /// Waits for the message that comes next.
    pub async fn message(&mut self) -> StepMessage {
        match self.hear().await {
            Ok(Some(Tell::Message(message))) => message,
            other => panic!("expected a message, heard {other:?}"),
        }
    }
}
