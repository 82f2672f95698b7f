//! Handles the requests of clients for one job, and calls of its workflow under the job's id.

use super::{JobActor, PendingOperation};
use crate::actors::call::Call;
use crate::actors::client_response::{
    CANCEL_REASON, ClientResponse, CreateResponse, Erased, OperationResponse, RequestError,
    ResponseSender,
};
use crate::actors::inputs::{JournalInput, Outgoing, RouterInput};
use engine::{Input, Message, Operation, OperationRequest};
use std::sync::Arc;

impl JobActor {
    /// Responds to a client that asks for a job under the same id.
    pub(super) fn handle_duplicate_create(
        &self,
        workflow: &str,
        message: &Message,
        response: ResponseSender<CreateResponse>,
    ) {
        let Some(job) = self.job() else { return };
        let result = CreateResponse::from_existing(self.id, job, workflow, message);
        let is_same_job = result.is_ok();
        let outgoing = Outgoing::Respond(ClientResponse::Create(response, result));
        if is_same_job {
            // The creation may not be committed yet.
            self.send_after_commit(vec![outgoing]);
        } else {
            outgoing.send(&self.env.outbox);
        }
    }

    /// Handles a message on its workflow's queue that asks for a job under the same id.
    pub(super) fn handle_call(&mut self, call: Call) {
        let Some(job) = self.job() else { return };
        match call.check_join(job, &self.env.call_env) {
            None => {}
            Some((Some(caller), ack)) if !job.is_caller_waiting(&caller) => {
                self.handle_engine_input(Input::CallerJoined(caller), vec![Outgoing::Ack(ack)])
            }
            // The call needs no reply, or its caller waits already. What it relies on may not be
            // committed yet.
            Some((_, ack)) => self.send_after_commit(vec![Outgoing::Ack(ack)]),
        }
    }

    /// Checks whether a step of the job has sent the call, as it claims, and returns the call to
    /// the router.
    pub(super) fn verify_call(&self, call: Call) {
        let Some(job) = self.job() else { return };
        self.env.router.send(RouterInput::CallVerified(call.verified_by(job)));
    }

    /// Cancels the job for a client. If it has ended, the response is its state.
    pub(super) fn handle_cancel(
        &mut self,
        principal: Option<Arc<str>>,
        response: ResponseSender<OperationResponse>,
    ) {
        let Some(job) = self.job() else { return };
        let state = job.state();
        if state.is_ended() {
            // The job's end may not be committed yet.
            let response = ClientResponse::Operation(response, Ok(OperationResponse::Job(state)));
            self.send_after_commit(vec![Outgoing::Respond(response)]);
        } else {
            let operation = Operation::Cancel { reason: CANCEL_REASON.into() };
            self.handle_operation(
                OperationRequest { operation, reason: None, principal },
                response,
            );
        }
    }

    /// Has the journal erase the job for a client, or refuses that.
    pub(super) fn handle_erase(&mut self, response: ResponseSender<Erased>) {
        let Some(job) = self.job() else { return };
        let state = job.state();
        let refusal = if !state.is_ended() {
            RequestError::job_not_ended(self.id, state)
        } else if self.parent.is_some() {
            RequestError::ended_child_job(self.id)
        } else {
            // The job has failed, and its actor still waits for late replies. The journal deletes
            // the job, and has the router stop the actor.
            return self.env.journal.send(JournalInput::Erase(self.number, response));
        };
        Outgoing::Respond(ClientResponse::Erase(response, Err(refusal))).send(&self.env.outbox);
    }

    /// Lets the engine decide about an operation of a client, or refuses it.
    pub(super) fn handle_operation(
        &mut self,
        request: OperationRequest,
        response: ResponseSender<OperationResponse>,
    ) {
        let Some(job) = self.job() else { return };
        let operation = &request.operation;
        if let Some(error) = job.check_operation(operation, &self.env.limits) {
            let refusal = ClientResponse::Operation(response, Err(error.into()));
            return Outgoing::Respond(refusal).send(&self.env.outbox);
        }
        // An operation with a reason or a principal is recorded in an entry, and logged with it.
        if request.reason.is_none() && request.principal.is_none() {
            tracing::info!(job = %self.id, operation = operation.as_str(), "asked for by a client");
        }
        let pending = PendingOperation { step: operation.step().map(str::to_owned), response };
        self.decide(Input::Operate(request), Vec::new(), Some(pending));
    }
}
