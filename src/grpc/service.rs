//! The gRPC service of workers: its unary calls, and the start of streams.

use super::connection::Peer;
use super::conversions::{
    LEASE_BOUNDS, TRANSPORT, parse_delay, parse_kind, parse_optional_worker_name, to_step_message,
    to_taken,
};
use super::incoming::SignalsSlot;
use super::outbound::OutboundTracker;
use super::phase::ServerPhase;
use super::status::to_status;
use super::stream::{self, StreamStart};
use super::stream_action::authorize_settlement;
use super::times::{lease_end, parse_duration};
use super::wire::workers_server::Workers;
use super::wire::{
    ExtendRequest, FromWorker, Lease, NackRequest, ReceiveAnswer, ReceiveRequest, ReplyRequest,
    Taken, ToWorker,
};
use bus::lease_queue::{LeaseQueue, ReceiveOptions};
use daemon::api::leases::{self, LeaseRequest, MESSAGES_MAX, Receipt, WAIT_DEFAULT, WAIT_MAX};
use daemon::api::problem::Problem;
use daemon::api::state::ApiState;
use daemon::api::token::Authenticated;
use futures_util::stream::BoxStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tonic::{Request, Response, Status, Streaming};

/// The gRPC service of workers.
pub(super) struct WorkerService {
    api: Arc<ApiState>,
    phases: watch::Receiver<ServerPhase>,
    /// Limits the open streams to the setting `grpc.streams_max`.
    streams: Arc<Semaphore>,
}

impl WorkerService {
    pub(super) fn new(
        api: Arc<ApiState>,
        phases: watch::Receiver<ServerPhase>,
        streams: Arc<Semaphore>,
    ) -> WorkerService {
        WorkerService { api, phases, streams }
    }

    /// Returns the principal, which the admission adds to each call of this service. A process that
    /// stands by refuses every call.
    fn admitted_principal<T>(&self, request: &Request<T>) -> Result<Authenticated, Status> {
        self.api.active().map_err(|problem| to_status(&problem))?;
        let principal = request.extensions().get::<Authenticated>().cloned();
        principal.ok_or_else(|| Status::internal("the call was not admitted"))
    }

    /// Parses a receipt. Returns it with its lease queue, if the principal may settle the message.
    async fn find_message(
        &self,
        principal: &Authenticated,
        receipt_text: &str,
    ) -> Result<(Receipt, Arc<LeaseQueue>), Problem> {
        let receipt = Receipt::parse(receipt_text)?;
        let lease_queue = authorize_settlement(&self.api, principal, &receipt).await?;
        Ok((receipt, lease_queue))
    }

    /// Leases messages of a queue, and waits for the first if there is none. Returns them with the
    /// tracker that holds their permits.
    async fn receive_messages(
        &self,
        principal: &Authenticated,
        request: ReceiveRequest,
    ) -> Result<(ReceiveAnswer, OutboundTracker), Problem> {
        let ReceiveRequest { queue, worker, lease, wait, max, vhost } = request;
        principal.check_queue_access(&queue, &vhost)?;
        if max > MESSAGES_MAX {
            return Err(Problem::malformed(format!(
                "max is {max}, expected a whole number from 1 to {MESSAGES_MAX}; 0 counts as 1"
            )));
        }
        let options = ReceiveOptions {
            lease: parse_duration("lease", lease, LEASE_BOUNDS)?,
            worker: parse_optional_worker_name(&worker)?,
            revocations: None,
            budget: Some(self.api.budgets.messages.clone()),
        };
        let wait =
            parse_duration("wait", wait, (Duration::ZERO, WAIT_MAX))?.unwrap_or(WAIT_DEFAULT);
        let request = LeaseRequest {
            queue: queue.clone(),
            vhost: vhost.clone(),
            options,
            wait,
            max: max.max(1),
            transport: TRANSPORT,
        };
        let mut messages = leases::receive(&self.api, request).await?;
        let tracker = OutboundTracker::default();
        // The memory permits are held until the bytes of the messages have been sent.
        for permit in messages.iter_mut().filter_map(|message| message.permit.take()) {
            tracker.add_to_next_chunk(tracker.track(permit));
        }
        let messages =
            messages.iter().map(|message| to_step_message(&queue, &vhost, message)).collect();
        Ok((ReceiveAnswer { messages }, tracker))
    }

    /// Commits a reply.
    async fn handle_reply(
        &self,
        principal: &Authenticated,
        request: ReplyRequest,
    ) -> Result<Taken, Problem> {
        let kind = parse_kind(request.kind)?;
        let (receipt, lease_queue) = self.find_message(principal, &request.receipt).await?;
        let result = leases::handle_reply(
            &lease_queue,
            receipt,
            kind,
            (principal.sender(), None),
            request.body,
        )
        .await;
        to_taken(request.receipt, result)
    }

    /// Extends a lease.
    async fn handle_extend(
        &self,
        principal: &Authenticated,
        request: ExtendRequest,
    ) -> Result<Lease, Problem> {
        let duration = parse_duration("lease", request.lease, LEASE_BOUNDS)?;
        let (receipt, _) = self.find_message(principal, &request.receipt).await?;
        let end = leases::extend_lease(&self.api, &receipt, duration, None).await?;
        Ok(Lease { receipt: request.receipt, until: Some(lease_end(end)) })
    }

    /// Returns a message to its queue, or makes its attempt fail.
    async fn handle_nack(
        &self,
        principal: &Authenticated,
        request: NackRequest,
    ) -> Result<Taken, Problem> {
        let delay = parse_delay(&request)?;
        let (receipt, lease_queue) = self.find_message(principal, &request.receipt).await?;
        to_taken(
            request.receipt,
            leases::nack(&self.api, &lease_queue, &receipt, delay, principal.sender()).await?,
        )
    }
}

/// Converts the result of a call to its response or status.
fn to_response<T>(result: Result<T, Problem>) -> Result<Response<T>, Status> {
    result.map(Response::new).map_err(|problem| to_status(&problem))
}

#[tonic::async_trait]
impl Workers for WorkerService {
    type WorkStream = BoxStream<'static, Result<ToWorker, Status>>;

    async fn work(
        &self,
        request: Request<Streaming<FromWorker>>,
    ) -> Result<Response<Self::WorkStream>, Status> {
        let principal = self.admitted_principal(&request)?;
        let Ok(permit) = self.streams.clone().try_acquire_owned() else {
            let limit = self.api.settings.grpc.streams_max;
            return Err(to_status(&Problem::overloaded(format!(
                "{limit} workers are on streams (setting grpc.streams_max)"
            ))));
        };
        let signals = request.extensions().get::<SignalsSlot>().and_then(SignalsSlot::take);
        let signals = signals.ok_or_else(|| Status::internal("the call was not admitted"))?;
        let tracker = OutboundTracker::default();
        let start = StreamStart {
            api: self.api.clone(),
            principal,
            signals,
            phases: self.phases.clone(),
            permit,
            tracker: tracker.clone(),
            peer: request.extensions().get::<Peer>().cloned(),
        };
        let mut response = Response::new(stream::start(start, request.into_inner()));
        response.extensions_mut().insert(tracker);
        Ok(response)
    }

    async fn receive(
        &self,
        request: Request<ReceiveRequest>,
    ) -> Result<Response<ReceiveAnswer>, Status> {
        let mut phases = self.phases.clone();
        let principal = self.admitted_principal(&request)?;
        let peer = request.extensions().get::<Peer>().cloned();
        tokio::select! {
            result = self.receive_messages(&principal, request.into_inner()) => {
                let (answer, tracker) = result.map_err(|problem| to_status(&problem))?;
                let mut response = Response::new(answer);
                if tracker.is_pending() {
                    response.extensions_mut().insert(tracker.clone());
                    let timeout = self.api.settings.http.answer_timeout.0;
                    tokio::spawn(tracker.wait_until_sent(peer, timeout));
                }
                Ok(response)
            }
            _ = phases.wait_for(|phase| *phase != ServerPhase::Serving) => {
                let detail = "the manager stops: ask again later".to_owned();
                to_response(Err(Problem::overloaded(detail)))
            }
        }
    }

    async fn reply(&self, mut request: Request<ReplyRequest>) -> Result<Response<Taken>, Status> {
        // The slot holds the permit of the request's message until the reply is handled.
        let _signals = request.extensions_mut().remove::<SignalsSlot>();
        let principal = self.admitted_principal(&request)?;
        to_response(self.handle_reply(&principal, request.into_inner()).await)
    }

    async fn extend(&self, request: Request<ExtendRequest>) -> Result<Response<Lease>, Status> {
        let principal = self.admitted_principal(&request)?;
        to_response(self.handle_extend(&principal, request.into_inner()).await)
    }

    async fn nack(&self, request: Request<NackRequest>) -> Result<Response<Taken>, Status> {
        let principal = self.admitted_principal(&request)?;
        to_response(self.handle_nack(&principal, request.into_inner()).await)
    }
}
