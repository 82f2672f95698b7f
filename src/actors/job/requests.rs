//! Requests of clients, and calls.

use super::{AskedOperation, JobActor};
use crate::actors::answer::{Answer, CANCELLED_BY, Client, Created, Erased, Now, Refusal};
use crate::actors::call::Call;
use crate::actors::mail::{JournalInput, Outgoing, RouterInput};
use crate::engine::{Input, Message, Operation, Request};
use std::sync::Arc;

impl JobActor {
    /// Answers a client that asks for a job under the same id.
    pub(super) fn create_again(&self, workflow: &str, message: &Message, answer: Client<Created>) {
        let Some(job) = self.job() else { return };
        let created = Created::again(self.id, job, workflow, message);
        let is_known = created.is_ok();
        let answered = Outgoing::Answer(Answer::Created(answer, created));
        if is_known {
            // Through the journal, so that it follows the commit of the creation, which may still
            // be under way.
            self.release_after_commit(vec![answered]);
        } else {
            answered.release(&self.ways);
        }
    }

    /// Handles a message on its workflow's queue that asks for a job under the same id.
    pub(super) fn called(&mut self, call: Call) {
        let Some(job) = self.job() else { return };
        match call.join(job, &self.ways) {
            None => {}
            Some((Some(caller), ack)) if !job.owes(&caller) => {
                self.take(Input::Called(caller), vec![Outgoing::Ack(ack)])
            }
            // The acknowledgement follows the commit of the caller's first message, which may still
            // be under way.
            Some((_, ack)) => self.release_after_commit(vec![Outgoing::Ack(ack)]),
        }
    }

    /// Checks whether one of its steps has sent a call.
    pub(super) fn vouch(&self, call: Call) {
        let Some(job) = self.job() else { return };
        self.ways.mailboxes().router.post(RouterInput::Vouched(call.vouched_by(job)));
    }

    pub(super) fn cancel(&mut self, by: Option<Arc<str>>, answer: Client<Now>) {
        let Some(job) = self.job() else { return };
        let state = job.state();
        if state.is_ended() {
            // The response follows the commit of the job's end, which may still be under way.
            let answered = Answer::Now(answer, Ok(Now::Job(state)));
            self.release_after_commit(vec![Outgoing::Answer(answered)]);
        } else {
            let operation = Operation::Cancel { reason: CANCELLED_BY.into() };
            self.operate(Request { operation, reason: None, by }, answer);
        }
    }

    pub(super) fn erase(&mut self, answer: Client<Erased>) {
        let Some(job) = self.job() else { return };
        let state = job.state();
        let refusal = if !state.is_ended() {
            Refusal::of_running(self.id, state)
        } else if self.parent.is_some() {
            Refusal::of_ended_child(self.id)
        } else {
            // It has failed and was kept for late replies. Whatever comes after this is void.
            let erase = JournalInput::Delete(self.number, answer);
            return self.ways.mailboxes().journal.post(erase);
        };
        Outgoing::Answer(Answer::Erased(answer, Err(refusal))).release(&self.ways);
    }

    pub(super) fn operate(&mut self, request: Request, answer: Client<Now>) {
        let operation = &request.operation;
        let Some(job) = self.job() else { return };
        if let Some(objection) = job.objection(operation, &self.ways.common.limits) {
            let refused = Answer::Now(answer, Err(objection.into()));
            return Outgoing::Answer(refused).release(&self.ways);
        }
        // An operation with a reason or a name is in the record, and logged with it.
        if request.reason.is_none() && request.by.is_none() {
            tracing::info!(job = %self.id, operation = operation.word(), "asked for by a client");
        }
        let asked = AskedOperation { step: operation.step().map(str::to_owned), answer };
        self.decide(Input::Operate(request), Vec::new(), Some(asked));
    }
}
