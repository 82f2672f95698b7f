//! A server of the protocol without a manager behind it, with which `worker-test` plays the
//! manager. What workers say is handed out as it is, and answered by whoever takes it.

use super::status::REASON_METADATA;
use super::times::to_wire;
use super::wire::from_worker::Say;
use super::wire::to_worker::Say as ToWorkerMessage;
use super::wire::workers_server::{Workers, WorkersServer};
use super::wire::{
    ExtendRequest, FromWorker, Lease, NackRequest, ReceiveAnswer, ReceiveRequest, ReplyRequest,
    Taken, ToWorker,
};
use actix_rt::Arbiter;
use engine::Timestamp;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Streaming};

pub use tonic::Status;

/// How many messages of a stream wait until its worker reads them.
const UNREAD_MESSAGES_MAX: usize = 16;

/// The largest metadata of a call, in bytes: as of a manager.
const METADATA_BYTES_MAX: u32 = 16 * 1024;

/// What a stub server takes.
#[derive(Clone, Copy)]
pub struct StubLimits {
    /// The largest message of a worker, in bytes.
    pub message_bytes_max: usize,
    /// How many calls and streams may be open at the same time.
    pub calls_max: usize,
}

/// A call of a worker.
pub enum StubCall {
    /// A stream was opened.
    Work(StubStream),
    /// It asks for messages.
    Receive(ReceiveRequest, StubResponder<ReceiveAnswer>),
    /// It replies to a message.
    Reply(ReplyRequest, StubResponder<Taken>),
    /// It extends a lease.
    Extend(ExtendRequest, StubResponder<Lease>),
    /// It refuses a message.
    Nack(NackRequest, StubResponder<Taken>),
}

/// Answers a call. Dropping it answers `UNAVAILABLE`.
pub type StubResponder<T> = oneshot::Sender<Result<T, Status>>;

/// The stream of a worker. Dropping it ends the stream with `OK`.
pub struct StubStream {
    inbound: Streaming<FromWorker>,
    outbound: mpsc::Sender<Result<ToWorker, Status>>,
    /// Counts the stream towards the limit until it is dropped.
    _permit: OwnedSemaphorePermit,
}

impl StubStream {
    /// Returns what the worker says next. `None`: it has closed its half, or has disconnected.
    pub async fn next(&mut self) -> Option<Say> {
        self.inbound.message().await.ok()??.say
    }

    /// Says something to the worker. An error means that it has disconnected.
    pub async fn send(&self, message: ToWorkerMessage) -> Result<(), ()> {
        let message = ToWorker { say: Some(message) };
        self.outbound.send(Ok(message)).await.map_err(|_| ())
    }

    /// Ends the stream with an error.
    pub async fn end(self, status: Status) {
        // An error means that the worker has disconnected.
        let _ = self.outbound.send(Err(status)).await;
    }
}

/// A running stub server, on its own thread.
pub struct StubServer(Arbiter);

impl StubServer {
    /// Stops the server, and closes all connections, whatever is open on them.
    pub async fn stop(self) {
        let StubServer(arbiter) = self;
        arbiter.stop();
        // Its tasks and their connections are dropped when its thread has ended. Joining it may
        // block, so a thread for blocking tasks does it.
        let _ = actix_rt::task::spawn_blocking(move || arbiter.join()).await;
    }
}

/// Starts a stub server, whose calls go to `calls`. With port 0 the system chooses a port.
///
/// # Errors
///
/// Returns an error if it cannot listen on that address.
pub fn serve(
    listen: SocketAddr,
    calls: mpsc::Sender<StubCall>,
    limits: StubLimits,
) -> io::Result<(StubServer, SocketAddr)> {
    let listener = TcpListener::bind(listen)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let permits = Arc::new(Semaphore::new(limits.calls_max));
    let workers = WorkersServer::new(StubService { calls, permits })
        .max_decoding_message_size(limits.message_bytes_max);
    let arbiter = Arbiter::new();
    arbiter.spawn(async move {
        let result = match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => Server::builder()
                .http2_max_header_list_size(METADATA_BYTES_MAX)
                .max_concurrent_streams(u32::try_from(limits.calls_max).ok())
                .add_service(workers)
                .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
                .await
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = result {
            tracing::error!(error, "the gRPC server ended");
        }
    });
    Ok((StubServer(arbiter), address))
}

/// Makes the status for a worker that no longer has a message.
pub fn gone(reason: &'static str, detail: &str) -> Status {
    let mut metadata = MetadataMap::new();
    metadata.insert(REASON_METADATA, MetadataValue::from_static(reason));
    Status::with_metadata(Code::FailedPrecondition, detail, metadata)
}

/// Makes the confirmation that a lease ends at this time.
pub fn lease(receipt: String, until: Timestamp) -> Lease {
    Lease { receipt, until: Some(to_wire(until)) }
}

/// Sets when a message was dispatched, and when its lease ends.
pub fn set_times(
    message: &mut super::wire::StepMessage,
    dispatched: Timestamp,
    lease_until: Timestamp,
) {
    message.dispatched = Some(to_wire(dispatched));
    message.lease_until = Some(to_wire(lease_until));
}

/// The service: hands out each call.
struct StubService {
    calls: mpsc::Sender<StubCall>,
    permits: Arc<Semaphore>,
}

impl StubService {
    fn admit(&self) -> Result<OwnedSemaphorePermit, Status> {
        let permit = self.permits.clone().try_acquire_owned();
        permit.map_err(|_| Status::unavailable("too many calls are open"))
    }

    /// Hands out a call, and waits for its answer.
    async fn hand_out<T>(
        &self,
        call: impl FnOnce(StubResponder<T>) -> StubCall,
    ) -> Result<Response<T>, Status> {
        let _permit = self.admit()?;
        let (responder, answer) = oneshot::channel();
        let unanswered = || Status::unavailable("there is no answer now: try again");
        self.calls.send(call(responder)).await.map_err(|_| unanswered())?;
        answer.await.map_err(|_| unanswered())?.map(Response::new)
    }
}

#[tonic::async_trait]
impl Workers for StubService {
    type WorkStream = BoxStream<'static, Result<ToWorker, Status>>;

    async fn work(
        &self,
        request: Request<Streaming<FromWorker>>,
    ) -> Result<Response<Self::WorkStream>, Status> {
        let permit = self.admit()?;
        let (outbound, messages) = mpsc::channel(UNREAD_MESSAGES_MAX);
        let stream = StubStream { inbound: request.into_inner(), outbound, _permit: permit };
        if self.calls.send(StubCall::Work(stream)).await.is_err() {
            return Err(Status::unavailable("no stream is taken now: try again"));
        }
        let messages = futures_util::stream::unfold(messages, |mut messages| async move {
            Some((messages.recv().await?, messages))
        });
        Ok(Response::new(messages.boxed()))
    }

    async fn receive(
        &self,
        request: Request<ReceiveRequest>,
    ) -> Result<Response<ReceiveAnswer>, Status> {
        self.hand_out(|responder| StubCall::Receive(request.into_inner(), responder)).await
    }

    async fn reply(&self, request: Request<ReplyRequest>) -> Result<Response<Taken>, Status> {
        self.hand_out(|responder| StubCall::Reply(request.into_inner(), responder)).await
    }

    async fn extend(&self, request: Request<ExtendRequest>) -> Result<Response<Lease>, Status> {
        self.hand_out(|responder| StubCall::Extend(request.into_inner(), responder)).await
    }

    async fn nack(&self, request: Request<NackRequest>) -> Result<Response<Taken>, Status> {
        self.hand_out(|responder| StubCall::Nack(request.into_inner(), responder)).await
    }
}
