//! Requests that wait for the archive. If no job takes input under an id, the archive looks it up.
//! Further requests for that id wait, in order; the router goes on with all other ids.

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
    /// Sends a request to the job under the id, or to the archive, behind the requests that already
    /// wait for it.
    pub(super) fn handle_request(&mut self, id: JobId, incoming: PendingRequest) {
        let is_lookup_pending = self.lookups.waiting.contains_key(&id);
        if !is_lookup_pending && self.env.routes.is_passivated(id) {
            // The disk may be full: then nothing can be activated, and deleting makes room.
            return match (incoming, self.find_ended_passivated(id)) {
                (PendingRequest::Erase(answer), Some(number)) => {
                    self.env.journal.send(JournalInput::Erase(number, answer))
                }
                (unhandled, _) => drop(self.stash_if_passivated(id, unhandled.into_input(id))),
            };
        }
        let request =
            if is_lookup_pending { Some(incoming) } else { self.send_to_running(id, incoming) };
        let Some(request) = request else { return };
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

    fn update_lookup_gauge(&self) {
        let waiting = i64::try_from(self.lookups.request_count).unwrap_or(i64::MAX);
        self.env.metrics.lookups_waiting.set(waiting);
    }

    fn look_up(&mut self, id: JobId, lookup: Lookup, requests: VecDeque<PendingRequest>) {
        self.lookups.waiting.insert(id, requests);
        self.env.archive.send(ArchiveInput::LookUp(id, lookup));
    }

    /// Goes on with all requests that wait for the id, in order, now that the archive has answered.
    pub(super) fn handle_lookup_result(
        &mut self,
        id: JobId,
        found: Result<LookupResult, String>,
        ctx: &mut Context<Self>,
    ) {
        let Some(mut requests) = self.lookups.waiting.remove(&id) else { return };
        requests.iter().for_each(|pending| self.lookups.adjust_counts(pending, -1));
        if self.env.routes.is_passivated(id) {
            // A job under that id has begun, and is passivated already.
            for pending in requests {
                drop(self.stash_if_passivated(id, pending.into_input(id)));
            }
            return self.update_lookup_gauge();
        }
        let mut result = match found {
            Ok(found_result) => Some(found_result),
            Err(reason) => {
                tracing::error!(job = %id, reason, "a job cannot be looked up in the journal");
                for pending in requests {
                    self.fail_lookup(id, pending, &reason, ctx);
                }
                self.update_lookup_gauge();
                return;
            }
        };
        while let Some(request) = requests.pop_front() {
            let Some(request) = self.send_to_running(id, request) else { continue };
            let outcome = match result.take() {
                Some(earlier_result) => self.resume_request(id, request, earlier_result, ctx),
                None => RequestOutcome::look_up(request),
            };
            match outcome {
                RequestOutcome::KeepResult(reused) => result = Some(reused),
                RequestOutcome::DropResult => {}
                RequestOutcome::LookUp(request, lookup) => {
                    requests.push_front(request);
                    requests.iter().for_each(|pending| self.lookups.adjust_counts(pending, 1));
                    self.look_up(id, lookup, requests);
                    return self.update_lookup_gauge();
                }
            }
        }
        self.update_lookup_gauge();
    }

    /// Goes on with one request, now that the archive has answered.
    fn resume_request(
        &mut self,
        id: JobId,
        request: PendingRequest,
        result: LookupResult,
        ctx: &mut Context<Self>,
    ) -> RequestOutcome {
        match (result, request) {
            (finding, PendingRequest::Create(job)) => self.create_unless_existing(id, job, finding),
            (finding, PendingRequest::Call(call)) => self.start_or_join_call(call, finding, ctx),
            (finding, PendingRequest::Cancel(by, answer)) => self.cancel_ended(by, answer, finding),
            (finding, PendingRequest::Erase(answer)) => self.erase_ended(id, answer, finding),
            (LookupResult::Job(found), PendingRequest::Operate(operation, answer)) => {
                self.operate_ended(id, operation, answer, found)
            }
            (LookupResult::Child(found), PendingRequest::Order(to_child)) => {
                self.order_ended_child(to_child, found)
            }
            (
                LookupResult::Creation(_) | LookupResult::Child(_),
                unanswered @ PendingRequest::Operate(..),
            )
            | (
                LookupResult::Creation(_) | LookupResult::Job(_),
                unanswered @ PendingRequest::Order(_),
            ) => RequestOutcome::look_up(unanswered),
        }
    }

    /// Sends a request to the job that takes input under the id. Returns the request if there is
    /// none, unless an ended job would ignore it.
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
            PendingRequest::Operate(operation, answer) => JobInput::Operate(operation, answer),
            PendingRequest::Cancel(by, answer) => JobInput::Cancel(by, answer),
            PendingRequest::Erase(answer) => JobInput::Erase(answer),
            PendingRequest::Call(call) => JobInput::Call(call),
            PendingRequest::Order(to_child) => {
                JobInput::Engine { input: Input::Order(to_child.order), ack: None }
            }
        });
        None
    }

    fn refuse(&self, id: JobId, request: PendingRequest, refusal: RequestError) {
        match request {
            PendingRequest::Create(CreateJob { response, .. }) => {
                ClientResponse::Create(response, Err(refusal)).send()
            }
            PendingRequest::Operate(_, answer) | PendingRequest::Cancel(_, answer) => {
                ClientResponse::Operation(answer, Err(refusal)).send()
            }
            PendingRequest::Erase(answer) => ClientResponse::Erase(answer, Err(refusal)).send(),
            // The call goes back to its queue.
            PendingRequest::Call(_) => {}
            PendingRequest::Order(to_child) => {
                let round = to_child.order.round;
                self.report_child_failed(
                    to_child.parent_item,
                    id,
                    round,
                    "it cannot be read from the journal",
                )
            }
        }
    }

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
