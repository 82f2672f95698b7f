//! The unary calls of the service, and the start of streams.

use super::super::lending::{
    self, Asked, MESSAGES_MAX, Receipt, WAIT_DEFAULT, WAIT_MAX, desk_of, own_bus,
};
use super::super::problem::Problem;
use super::super::token::Caller;
use super::arriving::Slot;
use super::connection::Peer;
use super::phase::Phase;
use super::said::{LEASES, WAY, kind, message, name_of, pause, taken};
use super::sending::Sending;
use super::spans::{span, until};
use super::status::status;
use super::stream::{self, Opening};
use super::wire::workers_server::Workers;
use super::wire::{
    ExtendRequest, FromWorker, Lease, NackRequest, ReceiveAnswer, ReceiveRequest, ReplyRequest,
    Taken, ToWorker,
};
use crate::actors::ways::Ways;
use crate::bus::desk::{Borrower, Desk};
use futures_util::stream::BoxStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tonic::{Request, Response, Status, Streaming};

/// The service of workers.
pub(super) struct Face {
    ways: Arc<Ways>,
    phases: watch::Receiver<Phase>,
    /// Permits for streams.
    streams: Arc<Semaphore>,
}

impl Face {
    pub(super) fn new(
        ways: Arc<Ways>,
        phases: watch::Receiver<Phase>,
        streams: Arc<Semaphore>,
    ) -> Face {
        Face { ways, phases, streams }
    }

    /// Parses a receipt, and returns it with its lease queue, if the caller may settle it.
    async fn found(&self, caller: &Caller, text: &str) -> Result<(Receipt, Arc<Desk>), Problem> {
        let receipt = Receipt::parse(text)?;
        let desk = desk_of(&self.ways, &receipt.vhost)?;
        caller.may_settle(&self.ways, &own_bus(&self.ways, &receipt.vhost), &receipt).await?;
        Ok((receipt, desk))
    }

    async fn received(
        &self,
        caller: &Caller,
        request: ReceiveRequest,
    ) -> Result<(ReceiveAnswer, Sending), Problem> {
        let ReceiveRequest { queue, worker, lease, wait, max, vhost } = request;
        caller.may_use(&queue, &vhost)?;
        if max > MESSAGES_MAX {
            return Err(Problem::malformed(format!(
                "max is {max}, expected a whole number from 1 to {MESSAGES_MAX}"
            )));
        }
        let borrower = Borrower {
            lease: span("lease", lease, LEASES)?,
            worker: name_of(&worker)?,
            line: None,
            room: Some(self.ways.common.rooms.messages.clone()),
        };
        let wait = span("wait", wait, (Duration::ZERO, WAIT_MAX))?.unwrap_or(WAIT_DEFAULT);
        let (max, name) = (max.max(1), queue.clone());
        let asked = Asked { queue, vhost: vhost.clone(), borrower, wait, max, way: WAY };
        let mut loans = lending::receive(&self.ways, asked).await?;
        let sending = Sending::default();
        for taken in loans.iter_mut().filter_map(|loan| loan.room.take()) {
            sending.written(sending.departure(taken));
        }
        let messages = loans.iter().map(|loan| message(&name, &vhost, loan)).collect();
        Ok((ReceiveAnswer { messages }, sending))
    }

    async fn replied(&self, caller: &Caller, request: ReplyRequest) -> Result<Taken, Problem> {
        let kind = kind(request.kind)?;
        let (receipt, desk) = self.found(caller, &request.receipt).await?;
        let told =
            lending::reply(&desk, receipt, kind, (caller.sender(), None), request.body).await;
        taken(request.receipt, told)
    }

    async fn extended(&self, caller: &Caller, request: ExtendRequest) -> Result<Lease, Problem> {
        let lease = span("lease", request.lease, LEASES)?;
        let (receipt, _) = self.found(caller, &request.receipt).await?;
        let lease = lending::extend(&self.ways, &receipt, lease, None).await?;
        Ok(Lease { receipt: request.receipt, until: Some(until(lease)) })
    }

    async fn refused(&self, caller: &Caller, request: NackRequest) -> Result<Taken, Problem> {
        let pause = pause(&request)?;
        let (receipt, desk) = self.found(caller, &request.receipt).await?;
        taken(request.receipt, lending::nack(&desk, &receipt, pause, caller.sender()).await?)
    }
}

/// Returns the caller. The admission sets it on each call that it forwards.
fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| Status::internal("the call did not come through the gate"))
}

fn answered<T>(result: Result<T, Problem>) -> Result<Response<T>, Status> {
    result.map(Response::new).map_err(|problem| status(&problem))
}

#[tonic::async_trait]
impl Workers for Face {
    type WorkStream = BoxStream<'static, Result<ToWorker, Status>>;

    async fn work(
        &self,
        request: Request<Streaming<FromWorker>>,
    ) -> Result<Response<Self::WorkStream>, Status> {
        let Ok(place) = self.streams.clone().try_acquire_owned() else {
            let limit = self.ways.common.settings.grpc.streams_max;
            return Err(status(&Problem::overloaded(format!(
                "{limit} workers are on streams (setting grpc.streams_max)"
            ))));
        };
        let caller = caller(&request)?;
        let arrivals = request.extensions().get::<Slot>().and_then(Slot::take);
        let arrivals =
            arrivals.ok_or_else(|| Status::internal("the call did not come through the gate"))?;
        let sending = Sending::default();
        let opening = Opening {
            ways: self.ways.clone(),
            caller,
            arrivals,
            phases: self.phases.clone(),
            place,
            sending: sending.clone(),
            peer: request.extensions().get::<Peer>().cloned(),
        };
        let mut answer = Response::new(stream::open(opening, request.into_inner()));
        answer.extensions_mut().insert(sending);
        Ok(answer)
    }

    async fn receive(
        &self,
        request: Request<ReceiveRequest>,
    ) -> Result<Response<ReceiveAnswer>, Status> {
        let mut phases = self.phases.clone();
        let caller = caller(&request)?;
        let peer = request.extensions().get::<Peer>().cloned();
        tokio::select! {
            received = self.received(&caller, request.into_inner()) => {
                let (answer, sending) = received.map_err(|problem| status(&problem))?;
                let mut answer = Response::new(answer);
                if sending.is_under_way() {
                    answer.extensions_mut().insert(sending.clone());
                    let patience = self.ways.common.settings.http.answer_timeout.0;
                    tokio::spawn(sending.all_gone(peer, patience));
                }
                Ok(answer)
            }
            _ = phases.wait_for(|phase| *phase != Phase::Serving) => {
                answered(Err(Problem::overloaded("the manager stops: ask again later".to_owned())))
            }
        }
    }

    async fn reply(&self, mut request: Request<ReplyRequest>) -> Result<Response<Taken>, Status> {
        // The permit of the message is held until the response.
        let _room = request.extensions_mut().remove::<Slot>();
        let caller = caller(&request)?;
        answered(self.replied(&caller, request.into_inner()).await)
    }

    async fn extend(&self, request: Request<ExtendRequest>) -> Result<Response<Lease>, Status> {
        let caller = caller(&request)?;
        answered(self.extended(&caller, request.into_inner()).await)
    }

    async fn nack(&self, request: Request<NackRequest>) -> Result<Response<Taken>, Status> {
        let caller = caller(&request)?;
        answered(self.refused(&caller, request.into_inner()).await)
    }
}
