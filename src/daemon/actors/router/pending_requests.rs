//! The requests about an id, and the lookups by the archive for which they wait.

use crate::actors::call::Call;
use crate::actors::client_response::{Erased, OperationResponse, ResponseSender};
use crate::actors::inputs::{ChildOrder, CreateJob, Lookup, LookupResult, RouterInput};
use crate::actors::routes::RouteRef;
use engine::{Instruction, JobId, OperationRequest};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// A request about one id. It is sent to the job under that id. If there is none, the archive looks
/// up the id.
pub(super) enum PendingRequest {
    /// A client asks for a job under the id.
    Create(CreateJob),
    /// A client asks for an operation on the job.
    Operate(OperationRequest, ResponseSender<OperationResponse>),
    /// A client cancels the job, in the name of a principal if it has a token.
    Cancel(Option<Arc<str>>, ResponseSender<OperationResponse>),
    /// A client erases the job.
    Erase(ResponseSender<Erased>),
    /// A message on the workflow's queue asks for a job under the id.
    Call(Call),
    /// The job's parent gives it an order.
    Order(ChildOrder),
}

impl PendingRequest {
    /// Converts the request into the router input that leads to it.
    pub(super) fn into_input(self, id: JobId) -> RouterInput {
        match self {
            PendingRequest::Create(job) => RouterInput::Create(job),
            PendingRequest::Operate(request, response) => {
                RouterInput::Operate(id, request, response)
            }
            PendingRequest::Cancel(principal, response) => {
                RouterInput::Cancel(id, principal, response)
            }
            PendingRequest::Erase(response) => RouterInput::Erase(id, response),
            PendingRequest::Call(call) => RouterInput::CallVerified(call),
            PendingRequest::Order(child_order) => RouterInput::OrderChild(child_order),
        }
    }

    /// Returns the first lookup that the request needs if no job takes input under the id.
    pub(super) fn lookup(&self) -> Lookup {
        match self {
            PendingRequest::Create(_) | PendingRequest::Call(_) | PendingRequest::Erase(_) => {
                Lookup::Creation
            }
            PendingRequest::Operate(..) | PendingRequest::Cancel(..) => Lookup::Job,
            PendingRequest::Order(child_order) => Lookup::ChildOf(child_order.parent),
        }
    }

    /// Returns whether the request is for this job, which has the id of the request. An order is
    /// only for the child job of one step and item.
    pub(super) fn is_for(&self, job: &RouteRef<'_>) -> bool {
        match self {
            PendingRequest::Order(child_order) => {
                job.is_child_of(child_order.parent, child_order.parent_item)
            }
            PendingRequest::Create(_)
            | PendingRequest::Operate(..)
            | PendingRequest::Cancel(..)
            | PendingRequest::Erase(_)
            | PendingRequest::Call(_) => true,
        }
    }

    /// Returns whether an ended job must handle the request. Of the orders of a parent, only a
    /// retry concerns it.
    pub(super) fn concerns_ended_job(&self) -> bool {
        match self {
            PendingRequest::Order(child_order) => {
                child_order.order.instruction == Instruction::Retry
            }
            PendingRequest::Create(_)
            | PendingRequest::Operate(..)
            | PendingRequest::Cancel(..)
            | PendingRequest::Erase(_)
            | PendingRequest::Call(_) => true,
        }
    }

    /// Returns whether the request counts towards the limit of waiting requests.
    pub(super) fn is_from_client(&self) -> bool {
        match self {
            PendingRequest::Create(_)
            | PendingRequest::Operate(..)
            | PendingRequest::Cancel(..)
            | PendingRequest::Erase(_) => true,
            // The prefetch bounds the number of calls, and the window the number of orders.
            PendingRequest::Call(_) | PendingRequest::Order(_) => false,
        }
    }
}

/// The outcome of a request after a lookup.
pub(super) enum RequestOutcome {
    /// The request is done. The next request can use the same result.
    KeepResult(LookupResult),
    /// The request is done. Its result was consumed, or may be out of date.
    DropResult,
    /// The request needs this lookup.
    LookUp(PendingRequest, Lookup),
}

impl RequestOutcome {
    /// Returns the outcome that the request needs its first lookup.
    pub(super) fn look_up(request: PendingRequest) -> RequestOutcome {
        let lookup = request.lookup();
        RequestOutcome::LookUp(request, lookup)
    }
}

/// The pending lookups, with the requests that wait for their results.
#[derive(Default)]
pub(super) struct PendingLookups {
    /// The requests that wait, by the id that is looked up, in order.
    pub(super) waiting: HashMap<JobId, VecDeque<PendingRequest>>,
    /// How many requests wait.
    pub(super) request_count: usize,
    /// How many of these requests are calls.
    call_count: usize,
}

impl PendingLookups {
    /// Returns how many calls wait for a lookup, and may start a job afterwards.
    pub(super) fn call_count(&self) -> usize {
        self.call_count
    }

    /// Counts a request as waiting, or no longer: `delta` is 1 or -1.
    pub(super) fn adjust_counts(&mut self, request: &PendingRequest, delta: isize) {
        self.request_count = self.request_count.saturating_add_signed(delta);
        if matches!(request, PendingRequest::Call(_)) {
            self.call_count = self.call_count.saturating_add_signed(delta);
        }
    }
}
