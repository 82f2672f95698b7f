//! Handles requests of clients: creations of jobs, and operations on ended jobs.

use super::Router;
use super::job_limits::ClaimRefusal;
use super::pending_requests::{PendingRequest, RequestOutcome};
use crate::actors::client_response::{
    ClientResponse, CreateResponse, Erased, OperationResponse, RequestError, ResponseSender,
};
use crate::actors::inputs::{CreateJob, JobInput, JournalInput, LookupResult, Outgoing};
use crate::actors::job::{JobStart, SpawnRequest};
use crate::actors::memory::{job_bytes, new_job_bytes};
use actix::Context;
use base::clock;
use bus::BusKey;
use engine::{JobId, OperationRequest, Origin};
use journal::{JobNumber, RecoveredJob};
use std::sync::Arc;

impl Router {
    pub(super) fn handle_create(&mut self, job: CreateJob, ctx: &mut Context<Self>) {
        match job.id {
            None => self.start_job(clock::new_id(), job, ctx),
            Some(id) => self.handle_request(id, PendingRequest::Create(job)),
        }
    }

    /// Starts a job under the id, or responds with the job that has the id.
    pub(super) fn create_unless_existing(
        &mut self,
        id: JobId,
        job: CreateJob,
        result: LookupResult,
        ctx: &mut Context<Self>,
    ) -> RequestOutcome {
        let workflow = job.definition.full_name();
        let existing = match &result {
            LookupResult::Creation(creation) => creation.as_ref().map(|creation| {
                CreateResponse::from_existing(id, creation, &workflow, &job.message)
            }),
            LookupResult::Job(recovered) => recovered.as_ref().map(|recovered| {
                CreateResponse::from_existing(id, &recovered.job, &workflow, &job.message)
            }),
            LookupResult::Child(_) => {
                return RequestOutcome::look_up(PendingRequest::Create(job));
            }
        };
        match existing {
            Some(result) => ClientResponse::Create(job.response, result).send(),
            None => self.start_job(id, job, ctx),
        }
        RequestOutcome::KeepResult(result)
    }

    /// Starts a job for a client, or refuses it at a limit.
    fn start_job(&mut self, id: JobId, job: CreateJob, ctx: &mut Context<Self>) {
        let limit = self.env.limits.jobs_running_max;
        if self.env.routes.root_count() >= limit {
            return ClientResponse::Create(
                job.response,
                Err(RequestError::jobs_running_max(limit)),
            )
            .send();
        }
        let trace = job.trace.map(Arc::new);
        let (starts_at, slot) = (job.starts_at, job.slot);
        let root = Origin::for_root_job(id, job.definition, clock::now());
        let origin = Origin { trace, starts_at, slot, ..root };
        if let Some(refusal) = self.check_memory(new_job_bytes(&origin, &job.message)) {
            return ClientResponse::Create(job.response, Err(refusal)).send();
        }
        let place = match self.check_claim(&origin, &job.message) {
            Ok(place) => place,
            Err(refusal) => return self.refuse_claim(refusal, job.response, ctx),
        };
        let number = self.take_job_number();
        let outgoing = vec![Outgoing::Respond(ClientResponse::Create(
            job.response,
            Ok(CreateResponse::New(id)),
        ))];
        let origin = Arc::new(origin);
        let start =
            JobStart::New { origin: origin.clone(), message: job.message, caller: None, outgoing };
        self.spawn(SpawnRequest { id, number, root: number, parent: None, start });
        if let Some(place) = place {
            self.reserve(number, &origin, place, ctx);
        }
    }

    /// Refuses a job that has no place. If that is because of jobs whose creations are not
    /// committed yet, the client is told after the commits.
    fn refuse_claim(
        &self,
        refusal: ClaimRefusal,
        response: ResponseSender<CreateResponse>,
        ctx: &mut Context<Self>,
    ) {
        match refusal {
            ClaimRefusal::Key(reason) => {
                ClientResponse::Create(response, Err(RequestError::Invalid(reason))).send()
            }
            ClaimRefusal::Held { pending, reason } => {
                let respond = move |_: &Router| {
                    ClientResponse::Create(response, Err(RequestError::NoPlace(reason))).send()
                };
                self.broadcast_to(pending, JobInput::AwaitCommit, respond, ctx);
            }
        }
    }

    /// Reopens an ended job and sends it the operation, or refuses the operation.
    pub(super) fn operate_ended(
        &self,
        id: JobId,
        request: OperationRequest,
        response: ResponseSender<OperationResponse>,
        recovered: Option<Box<RecoveredJob>>,
    ) -> RequestOutcome {
        let Some(recovered) = recovered else {
            ClientResponse::Operation(response, Err(RequestError::NotFound)).send();
            return RequestOutcome::KeepResult(LookupResult::Job(None));
        };
        let refusal = if let Some(error) =
            recovered.job.check_operation(&request.operation, &self.env.decision_limits)
        {
            Some(error.into())
        } else if let Some(bus) = self.env.buses.find_missing(recovered.job.definition()) {
            Some(RequestError::Conflict(self.missing_bus_reason(id, &bus)))
        } else {
            self.check_reopen(&recovered)
        };
        if let Some(refusal) = refusal {
            ClientResponse::Operation(response, Err(refusal)).send();
            return RequestOutcome::KeepResult(LookupResult::Job(Some(recovered)));
        }
        self.reopen(*recovered);
        if let Some(PendingRequest::Operate(_, response)) =
            self.send_to_running(id, PendingRequest::Operate(request, response))
        {
            // The job was deleted concurrently: its actor was stopped at once.
            ClientResponse::Operation(response, Err(RequestError::NotFound)).send();
        }
        RequestOutcome::DropResult
    }

    /// Returns why a job cannot continue without a bus.
    fn missing_bus_reason(&self, job: JobId, BusKey { name: bus, vhost }: &BusKey) -> String {
        if !self.env.buses.is_known(bus) {
            return format!(
                "the settings have no bus \"{bus}\", so job {job} cannot go on: add it to buses \
                 and start again"
            );
        }
        let in_vhost = match &**vhost {
            "" => String::new(),
            vhost => format!(" of the virtual host \"{vhost}\""),
        };
        format!(
            "no workflow{in_vhost} is loaded that uses the bus \"{bus}\", so job {job} cannot go \
             on: load one (`workflow-manager reload`)"
        )
    }

    /// Returns why an ended job cannot be reopened; `None`: it can.
    pub(super) fn check_reopen(&self, recovered: &RecoveredJob) -> Option<RequestError> {
        let (id, limit) = (recovered.job.id(), self.env.limits.jobs_running_max);
        if recovered.parent.is_none() {
            if self.env.routes.root_count() >= limit {
                return Some(RequestError::jobs_running_max(limit));
            }
            if let Some(refusal) = self.check_memory(job_bytes(&recovered.job)) {
                return Some(refusal);
            }
        }
        self.env
            .routes
            .is_active(id)
            .then(|| RequestError::Conflict(format!("the id {id} belongs to another job by now")))
    }

    /// Returns why a job of `bytes` bytes cannot be admitted to memory; `None`: it can.
    pub(super) fn check_memory(&self, bytes: usize) -> Option<RequestError> {
        let memory = &self.env.memory;
        if memory.can_admit(bytes) {
            memory.note_admitted();
            return None;
        }
        memory.note_rejected(bytes);
        self.notify_if_memory_short();
        Some(RequestError::memory_full(memory.used_bytes(), memory.limit_bytes(), bytes))
    }

    /// Responds to a cancellation with the state of the ended job, which does not change.
    pub(super) fn cancel_ended(
        &self,
        principal: Option<Arc<str>>,
        response: ResponseSender<OperationResponse>,
        result: LookupResult,
    ) -> RequestOutcome {
        let response_result = match &result {
            LookupResult::Creation(None) | LookupResult::Job(None) => Err(RequestError::NotFound),
            LookupResult::Job(Some(recovered)) => Ok(OperationResponse::Job(recovered.job.state())),
            LookupResult::Creation(Some(_)) | LookupResult::Child(_) => {
                return RequestOutcome::look_up(PendingRequest::Cancel(principal, response));
            }
        };
        ClientResponse::Operation(response, response_result).send();
        RequestOutcome::KeepResult(result)
    }

    /// Has the journal erase an ended job, or refuses that.
    pub(super) fn erase_ended(
        &self,
        id: JobId,
        response: ResponseSender<Erased>,
        result: LookupResult,
    ) -> RequestOutcome {
        let (number, is_child): (JobNumber, bool) = match &result {
            LookupResult::Creation(Some(creation)) => (creation.number, creation.is_child),
            LookupResult::Job(Some(recovered)) => (recovered.number, recovered.parent.is_some()),
            LookupResult::Creation(None) | LookupResult::Job(None) => {
                ClientResponse::Erase(response, Err(RequestError::NotFound)).send();
                return RequestOutcome::KeepResult(result);
            }
            LookupResult::Child(_) => {
                return RequestOutcome::look_up(PendingRequest::Erase(response));
            }
        };
        if is_child {
            ClientResponse::Erase(response, Err(RequestError::ended_child_job(id))).send();
            return RequestOutcome::KeepResult(result);
        }
        self.env.journal.send(JournalInput::Erase(number, response));
        RequestOutcome::DropResult
    }
}
