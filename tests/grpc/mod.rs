//! A worker over gRPC, for tests and measurements: it says what it is told to say, and hears what
//! comes.

#[allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated")]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "generated: not every test needs all")]
#[rustfmt::skip]
mod client;

pub(crate) use client::workers_client::WorkersClient;
use std::net::SocketAddr;
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use workflow_manager::grpc::wire::from_worker::Say;
use workflow_manager::grpc::wire::to_worker::Say as Tell;
use workflow_manager::grpc::wire::{
    ExtendRequest, FromWorker, Hello, Kind, NackRequest, ReplyRequest, StepMessage, ToWorker, Want,
};

/// A client of the manager that listens there.
#[allow(dead_code, reason = "each of the tests needs some of it")]
pub(crate) async fn client(address: SocketAddr) -> WorkersClient<Channel> {
    try_client(address).await.expect("connected")
}

/// The same; none: nobody listens there now.
pub(crate) async fn try_client(address: SocketAddr) -> Option<WorkersClient<Channel>> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let client = WorkersClient::new(endpoint.connect().await.ok()?);
    Some(client.max_decoding_message_size(64 << 20))
}

/// A call with a token.
pub(crate) fn with_token<T>(request: T, token: &str) -> Request<T> {
    let mut request = Request::new(request);
    let bearer = format!("Bearer {token}").parse().expect("a header");
    request.metadata_mut().insert("authorization", bearer);
    request
}

/// A worker on a stream.
pub(crate) struct GrpcWorker {
    say: Option<mpsc::UnboundedSender<FromWorker>>,
    hear: Streaming<ToWorker>,
}

#[allow(dead_code, reason = "each of the tests needs some of it")]
impl GrpcWorker {
    /// Opens a stream, and says hello for these queues.
    pub(crate) async fn open(
        client: &WorkersClient<Channel>,
        queues: &[&str],
    ) -> Result<GrpcWorker, Status> {
        let queues = queues.iter().map(|queue| (*queue).to_owned()).collect();
        Self::greet(client, Hello { queues, worker: "w1".to_owned(), ..Hello::default() }, "").await
    }

    /// The same with another hello, and a token.
    pub(crate) async fn greet(
        client: &WorkersClient<Channel>,
        hello: Hello,
        token: &str,
    ) -> Result<GrpcWorker, Status> {
        let mut worker = Self::silent(client, token).await?;
        worker.say(Say::Hello(hello));
        Ok(worker)
    }

    /// A stream on which nothing is said yet.
    pub(crate) async fn silent(
        client: &WorkersClient<Channel>,
        token: &str,
    ) -> Result<GrpcWorker, Status> {
        let (say, said) = mpsc::unbounded_channel();
        let said = futures_util::stream::unfold(said, |mut said| async move {
            said.recv().await.map(|say| (say, said))
        });
        let request = match token {
            "" => Request::new(said),
            token => with_token(said, token),
        };
        let hear = client.clone().work(request).await?.into_inner();
        Ok(GrpcWorker { say: Some(say), hear })
    }

    pub(crate) fn say(&mut self, say: Say) {
        if let Some(to) = &self.say {
            // An error means that the stream has ended, as is heard.
            let _ = to.send(FromWorker { say: Some(say) });
        }
    }

    pub(crate) fn want(&mut self, messages: u32) {
        self.say(Say::Want(Want { messages }));
    }

    pub(crate) fn reply(&mut self, receipt: &str, kind: Kind, body: impl Into<bytes::Bytes>) {
        let (receipt, body) = (receipt.to_owned(), body.into());
        self.say(Say::Reply(ReplyRequest { receipt, kind: kind.into(), body }));
    }

    pub(crate) fn extend(&mut self, receipt: &str) {
        let receipt = receipt.to_owned();
        self.say(Say::Extend(ExtendRequest { receipt, lease: None }));
    }

    pub(crate) fn nack(&mut self, receipt: &str, requeue: bool) {
        let receipt = receipt.to_owned();
        self.say(Say::Nack(NackRequest { receipt, requeue, delay: None }));
    }

    /// Closes its half of the stream.
    pub(crate) fn farewell(&mut self) {
        self.say = None;
    }

    /// What comes next; none: the stream has ended well.
    pub(crate) async fn hear(&mut self) -> Result<Option<Tell>, Status> {
        let heard = self.hear.message().await?;
        Ok(heard.map(|heard| heard.say.expect("something is said")))
    }

    /// The message that comes next.
    pub(crate) async fn message(&mut self) -> StepMessage {
        match self.hear().await {
            Ok(Some(Tell::Message(message))) => message,
            other => panic!("expected a message, heard {other:?}"),
        }
    }
}
