//! Requests of clients, and calls.

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
    /// Answers a client that asks for a job under the same id.
    pub(super) fn handle_duplicate_create(
        &self,
        workflow: &str,
        message: &Message,
        answer: ResponseSender<CreateResponse>,
    ) {
        let Some(job) = self.job() else { return };
        let created = CreateResponse::from_existing(self.id, job, workflow, message);
        let is_known = created.is_ok();
        let answered = Outgoing::Respond(ClientResponse::Create(answer, created));
        if is_known {
            // Through the journal, so that it follows the commit of the creation, which may still
            // be under way.
            self.send_after_commit(vec![answered]);
        } else {
            answered.send(&self.env.outbox);
        }
    }

    /// Handles a message on its workflow's queue that asks for a job under the same id.
    pub(super) fn handle_call(&mut self, call: Call) {
        let Some(job) = self.job() else { return };
        match call.check_join(job, &self.env.calls) {
            None => {}
            Some((Some(caller), ack)) if !job.is_caller_waiting(&caller) => {
                self.handle_engine_input(Input::CallerJoined(caller), vec![Outgoing::Ack(ack)])
            }
            // The acknowledgement follows the commit of the caller's first message, which may still
            // be under way.
            Some((_, ack)) => self.send_after_commit(vec![Outgoing::Ack(ack)]),
        }
    }

    /// Checks whether one of its steps has sent a call.
    pub(super) fn verify_call(&self, call: Call) {
        let Some(job) = self.job() else { return };
        self.env.router.send(RouterInput::CallVerified(call.verified_by(job)));
    }

    pub(super) fn handle_cancel(
        &mut self,
        by: Option<Arc<str>>,
        answer: ResponseSender<OperationResponse>,
    ) {
        let Some(job) = self.job() else { return };
        let state = job.state();
        if state.is_ended() {
            // The response follows the commit of the job's end, which may still be under way.
            let answered = ClientResponse::Operation(answer, Ok(OperationResponse::Job(state)));
            self.send_after_commit(vec![Outgoing::Respond(answered)]);
        } else {
            let operation = Operation::Cancel { reason: CANCEL_REASON.into() };
            self.handle_operation(
                OperationRequest { operation, reason: None, principal: by },
                answer,
            );
        }
    }

    pub(super) fn handle_erase(&mut self, answer: ResponseSender<Erased>) {
        let Some(job) = self.job() else { return };
        let state = job.state();
        let refusal = if !state.is_ended() {
            RequestError::job_not_ended(self.id, state)
        } else if self.parent.is_some() {
            RequestError::ended_child_job(self.id)
        } else {
            // It has failed and was kept for late replies. Whatever comes after this is void.
            let erase = JournalInput::Erase(self.number, answer);
            return self.env.journal.send(erase);
        };
        Outgoing::Respond(ClientResponse::Erase(answer, Err(refusal))).send(&self.env.outbox);
    }

    pub(super) fn handle_operation(
        &mut self,
        request: OperationRequest,
        answer: ResponseSender<OperationResponse>,
    ) {
        let operation = &request.operation;
        let Some(job) = self.job() else { return };
        if let Some(objection) = job.check_operation(operation, &self.env.limits) {
            let refused = ClientResponse::Operation(answer, Err(objection.into()));
            return Outgoing::Respond(refused).send(&self.env.outbox);
        }
        // An operation with a reason or a name is in the record, and logged with it.
        if request.reason.is_none() && request.principal.is_none() {
            tracing::info!(job = %self.id, operation = operation.as_str(), "asked for by a client");
        }
        let pending =
            PendingOperation { step: operation.step().map(str::to_owned), response: answer };
        self.decide(Input::Operate(request), Vec::new(), Some(pending));
    }
}
