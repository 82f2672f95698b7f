//! Requests about one id, and those that wait for the archive.

use crate::actors::call::Call;
use crate::actors::client_response::{Erased, OperationResponse, ResponseSender};
use crate::actors::inputs::{ChildOrder, CreateJob, Lookup, LookupResult, RouterInput};
use crate::actors::routes::RouteRef;
use engine::{Instruction, JobId, OperationRequest};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// A request about one id. It goes to the job under that id; if there is none, the archive looks
/// the id up.
pub(super) enum PendingRequest {
    /// A client asks for a job under the id.
    Create(CreateJob),
    /// A client asks for an operation on the job.
    Operate(OperationRequest, ResponseSender<OperationResponse>),
    /// A client cancels the job.
    Cancel(Option<Arc<str>>, ResponseSender<OperationResponse>),
    /// A client erases the job.
    Erase(ResponseSender<Erased>),
    /// A message on the workflow's queue asks for a job under the id.
    Call(Call),
    /// The job's parent gives it an order.
    Order(ChildOrder),
}

impl PendingRequest {
    /// Returns the router input that it came by, or would come by.
    pub(super) fn into_input(self, id: JobId) -> RouterInput {
        match self {
            PendingRequest::Create(job) => RouterInput::Create(job),
            PendingRequest::Operate(request, answer) => RouterInput::Operate(id, request, answer),
            PendingRequest::Cancel(by, answer) => RouterInput::Cancel(id, by, answer),
            PendingRequest::Erase(answer) => RouterInput::Erase(id, answer),
            PendingRequest::Call(call) => RouterInput::CallVerified(call),
            PendingRequest::Order(to_child) => RouterInput::OrderChild(to_child),
        }
    }

    /// Returns what must be looked up first if no job takes input under the id.
    pub(super) fn lookup(&self) -> Lookup {
        match self {
            PendingRequest::Create(_) | PendingRequest::Call(_) | PendingRequest::Erase(_) => {
                Lookup::Creation
            }
            PendingRequest::Operate(..) | PendingRequest::Cancel(..) => Lookup::Job,
            PendingRequest::Order(to_child) => Lookup::ChildOf(to_child.parent),
        }
    }

    /// Returns whether it is for this job, which has the id. An order is only for the child job of
    /// one step and item.
    pub(super) fn is_for(&self, job: &RouteRef<'_>) -> bool {
        match self {
            PendingRequest::Order(to_child) => {
                job.is_child_of(to_child.parent, to_child.parent_item)
            }
            PendingRequest::Create(_)
            | PendingRequest::Operate(..)
            | PendingRequest::Cancel(..)
            | PendingRequest::Erase(_)
            | PendingRequest::Call(_) => true,
        }
    }

    /// Returns whether it may concern a job that has ended. Of the orders of its parent, only a
    /// retry does.
    pub(super) fn concerns_ended_job(&self) -> bool {
        match self {
            PendingRequest::Order(to_child) => to_child.order.instruction == Instruction::Retry,
            PendingRequest::Create(_)
            | PendingRequest::Operate(..)
            | PendingRequest::Cancel(..)
            | PendingRequest::Erase(_)
            | PendingRequest::Call(_) => true,
        }
    }

    pub(super) fn is_from_client(&self) -> bool {
        match self {
            PendingRequest::Create(_)
            | PendingRequest::Operate(..)
            | PendingRequest::Cancel(..)
            | PendingRequest::Erase(_) => true,
            // Calls are bounded by the prefetch, orders by the window.
            PendingRequest::Call(_) | PendingRequest::Order(_) => false,
        }
    }
}

/// The outcome of a request after a lookup.
pub(super) enum RequestOutcome {
    /// It is done. The result of the lookup also serves the next request.
    KeepResult(LookupResult),
    /// It is done. The result of the lookup is used up, or may be out of date.
    DropResult,
    /// It goes back to the archive, with this lookup.
    LookUp(PendingRequest, Lookup),
}

impl RequestOutcome {
    /// Sends the request to the archive with the lookup that it begins with.
    pub(super) fn look_up(request: PendingRequest) -> RequestOutcome {
        let lookup = request.lookup();
        RequestOutcome::LookUp(request, lookup)
    }
}

/// The ids that the archive looks up now, and the requests that wait for each.
#[derive(Default)]
pub(super) struct PendingLookups {
    pub(super) waiting: HashMap<JobId, VecDeque<PendingRequest>>,
    pub(super) request_count: usize,
    call_count: usize,
}

impl PendingLookups {
    /// Returns how many calls may start a job once their lookup is done.
    pub(super) fn call_count(&self) -> usize {
        self.call_count
    }

    pub(super) fn adjust_counts(&mut self, request: &PendingRequest, by: isize) {
        self.request_count = self.request_count.saturating_add_signed(by);
        if matches!(request, PendingRequest::Call(_)) {
            self.call_count = self.call_count.saturating_add_signed(by);
        }
    }
}
