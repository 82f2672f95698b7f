//! Handles requests about an id. If no job takes input under the id, the archive looks it up. Until
//! its result arrives, further requests for the same id wait, in order. Requests for other ids do
//! not wait.

use super::Router;
use super::pending_requests::{PendingRequest, RequestOutcome};
use crate::actors::client_response::{ClientResponse, RequestError};
use crate::actors::inputs::{
    ArchiveInput, CreateJob, JobInput, JournalInput, Lookup, LookupResult,
};
use actix::Context;
use engine::{Input, JobId};
use std::collections::VecDeque;

impl Router {
    /// Sends a request to the job under the id, or has the archive look up the id. If a lookup of
    /// the id is pending, the request waits for its result.
    pub(super) fn handle_request(&mut self, id: JobId, new_request: PendingRequest) {
        let is_lookup_pending = self.lookups.waiting.contains_key(&id);
        if !is_lookup_pending && self.env.routes.is_passivated(id) {
            // An ended job is deleted without activation. So disk space can be freed even if the
            // disk is too full to activate a job.
            return match (new_request, self.find_ended_passivated(id)) {
                (PendingRequest::Erase(response), Some(number)) => {
                    self.env.journal.send(JournalInput::Erase(number, response))
                }
                (request, _) => drop(self.stash_if_passivated(id, request.into_input(id))),
            };
        }
        let unhandled = if is_lookup_pending {
            Some(new_request)
        } else {
            self.send_to_running(id, new_request)
        };
        let Some(request) = unhandled else { return };
        let limit = self.env.limits.creations_waiting_max;
        if request.is_from_client() && self.lookups.request_count >= limit {
            let reason = format!(
                "{limit} requests wait for the journal already (setting \
                 limits.creations_waiting_max)"
            );
            return self.refuse(id, request, RequestError::Overloaded(reason));
        }
        self.lookups.adjust_counts(&request, 1);
        if is_lookup_pending {
            self.lookups.waiting.entry(id).or_default().push_back(request);
        } else {
            let lookup = request.lookup();
            self.look_up(id, lookup, VecDeque::from([request]));
        }
        self.update_lookup_gauge();
    }

    /// Updates the gauge of requests that wait for the archive.
    fn update_lookup_gauge(&self) {
        let request_count = i64::try_from(self.lookups.request_count).unwrap_or(i64::MAX);
        self.env.metrics.lookups_waiting.set(request_count);
    }

    /// Sends a lookup to the archive, and stores the requests that wait for its result.
    fn look_up(&mut self, id: JobId, lookup: Lookup, requests: VecDeque<PendingRequest>) {
        self.lookups.waiting.insert(id, requests);
        self.env.archive.send(ArchiveInput::LookUp(id, lookup));
    }

    /// Resumes all requests that wait for the id, in order, with the result of the archive.
    pub(super) fn handle_lookup_result(
        &mut self,
        id: JobId,
        lookup_result: Result<LookupResult, String>,
        ctx: &mut Context<Self>,
    ) {
        let Some(mut requests) = self.lookups.waiting.remove(&id) else { return };
        requests.iter().for_each(|request| self.lookups.adjust_counts(request, -1));
        if self.env.routes.is_passivated(id) {
            // A job with this id was started during the lookup, and is passivated already.
            for request in requests {
                drop(self.stash_if_passivated(id, request.into_input(id)));
            }
            return self.update_lookup_gauge();
        }
        let mut reusable_result = match lookup_result {
            Ok(result) => Some(result),
            Err(reason) => {
                tracing::error!(job = %id, reason, "a job cannot be looked up in the journal");
                for request in requests {
                    self.fail_lookup(id, request, &reason, ctx);
                }
                self.update_lookup_gauge();
                return;
            }
        };
        while let Some(request) = requests.pop_front() {
            let Some(request) = self.send_to_running(id, request) else { continue };
            let outcome = match reusable_result.take() {
                Some(result) => self.resume_request(id, request, result, ctx),
                None => RequestOutcome::look_up(request),
            };
            match outcome {
                RequestOutcome::KeepResult(result) => reusable_result = Some(result),
                RequestOutcome::DropResult => {}
                RequestOutcome::LookUp(request, lookup) => {
                    requests.push_front(request);
                    requests.iter().for_each(|request| self.lookups.adjust_counts(request, 1));
                    self.look_up(id, lookup, requests);
                    return self.update_lookup_gauge();
                }
            }
        }
        self.update_lookup_gauge();
    }

    /// Resumes one request with the result of a lookup. If that is of the wrong kind, the outcome
    /// is another lookup.
    fn resume_request(
        &mut self,
        id: JobId,
        request: PendingRequest,
        result: LookupResult,
        ctx: &mut Context<Self>,
    ) -> RequestOutcome {
        match (result, request) {
            (result, PendingRequest::Create(job)) => {
                self.create_unless_existing(id, job, result, ctx)
            }
            (result, PendingRequest::Call(call)) => self.start_or_join_call(call, result, ctx),
            (result, PendingRequest::Cancel(principal, response)) => {
                self.cancel_ended(principal, response, result)
            }
            (result, PendingRequest::Erase(response)) => self.erase_ended(id, response, result),
            (LookupResult::Job(recovered), PendingRequest::Operate(operation, response)) => {
                self.operate_ended(id, operation, response, recovered)
            }
            (LookupResult::Child(recovered), PendingRequest::Order(child_order)) => {
                self.order_ended_child(child_order, recovered)
            }
            (
                LookupResult::Creation(_) | LookupResult::Child(_),
                request @ PendingRequest::Operate(..),
            )
            | (
                LookupResult::Creation(_) | LookupResult::Job(_),
                request @ PendingRequest::Order(_),
            ) => RequestOutcome::look_up(request),
        }
    }

    /// Sends a request to the job that takes input under the id. Returns the request if there is no
    /// such job and an ended job would handle it.
    pub(super) fn send_to_running(
        &self,
        id: JobId,
        request: PendingRequest,
    ) -> Option<PendingRequest> {
        let route = self.env.routes.find(id).filter(|job| request.is_for(job));
        let Some(job) = route else {
            return Some(request).filter(PendingRequest::concerns_ended_job);
        };
        job.send(match request {
            PendingRequest::Create(CreateJob { definition, message, response, .. }) => {
                JobInput::CreateDuplicate { workflow: definition.full_name(), message, response }
            }
            PendingRequest::Operate(operation, response) => JobInput::Operate(operation, response),
            PendingRequest::Cancel(principal, response) => JobInput::Cancel(principal, response),
            PendingRequest::Erase(response) => JobInput::Erase(response),
            PendingRequest::Call(call) => JobInput::Call(call),
            PendingRequest::Order(child_order) => {
                JobInput::Engine { input: Input::Order(child_order.order), ack: None }
            }
        });
        None
    }

    /// Refuses a request with an error.
    fn refuse(&self, id: JobId, request: PendingRequest, refusal: RequestError) {
        match request {
            PendingRequest::Create(CreateJob { response, .. }) => {
                ClientResponse::Create(response, Err(refusal)).send()
            }
            PendingRequest::Operate(_, response) | PendingRequest::Cancel(_, response) => {
                ClientResponse::Operation(response, Err(refusal)).send()
            }
            PendingRequest::Erase(response) => ClientResponse::Erase(response, Err(refusal)).send(),
            // Dropping the call requeues its delivery.
            PendingRequest::Call(_) => {}
            PendingRequest::Order(child_order) => {
                let round = child_order.order.round;
                self.report_child_failed(
                    child_order.parent_item,
                    id,
                    round,
                    "it cannot be read from the journal",
                )
            }
        }
    }

    /// Handles a request whose lookup failed: a call waits for a retry, and others are refused.
    fn fail_lookup(
        &mut self,
        id: JobId,
        request: PendingRequest,
        reason: &str,
        ctx: &mut Context<Self>,
    ) {
        match request {
            PendingRequest::Call(call) => self.queue_call_with_reason(call, reason, ctx),
            PendingRequest::Create(_)
            | PendingRequest::Operate(..)
            | PendingRequest::Cancel(..)
            | PendingRequest::Erase(_)
            | PendingRequest::Order(_) => {
                self.refuse(id, request, RequestError::Failed(reason.to_owned()))
            }
        }
    }
}
