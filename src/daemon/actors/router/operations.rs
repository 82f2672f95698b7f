//! Jobs that clients create, and operations on them.

use super::Router;
use super::pending_requests::{PendingRequest, RequestOutcome};
use crate::actors::client_response::{
    ClientResponse, CreateResponse, Erased, OperationResponse, RequestError, ResponseSender,
};
use crate::actors::inputs::{CreateJob, JournalInput, LookupResult, Outgoing};
use crate::actors::job::{JobStart, SpawnRequest};
use crate::actors::memory::{job_bytes, new_job_bytes};
use base::clock;
use bus::BusKey;
use engine::{JobId, OperationRequest, Origin};
use journal::{JobNumber, RecoveredJob};
use std::sync::Arc;

impl Router {
    pub(super) fn handle_create(&mut self, job: CreateJob) {
        match job.id {
            None => self.start_job(clock::new_id(), job),
            Some(id) => self.handle_request(id, PendingRequest::Create(job)),
        }
    }

    /// Starts a job under the id, or sends the client the job that has it.
    pub(super) fn create_unless_existing(
        &mut self,
        id: JobId,
        job: CreateJob,
        result: LookupResult,
    ) -> RequestOutcome {
        let workflow = job.definition.full_name();
        let known = match &result {
            LookupResult::Creation(creation) => creation.as_ref().map(|creation| {
                CreateResponse::from_existing(id, creation, &workflow, &job.message)
            }),
            LookupResult::Job(found) => found.as_ref().map(|found| {
                CreateResponse::from_existing(id, &found.job, &workflow, &job.message)
            }),
            LookupResult::Child(_) => {
                return RequestOutcome::look_up(PendingRequest::Create(job));
            }
        };
        match known {
            Some(answer) => ClientResponse::Create(job.response, answer).send(),
            None => self.start_job(id, job),
        }
        RequestOutcome::KeepResult(result)
    }

    fn start_job(&mut self, id: JobId, job: CreateJob) {
        let limit = self.env.limits.jobs_running_max;
        if self.env.routes.root_count() >= limit {
            return ClientResponse::Create(
                job.response,
                Err(RequestError::jobs_running_max(limit)),
            )
            .send();
        }
        let trace = job.trace.map(Arc::new);
        let origin = Origin { trace, ..Origin::for_root_job(id, job.definition, clock::now()) };
        if let Some(refusal) = self.check_memory(new_job_bytes(&origin, &job.message)) {
            return ClientResponse::Create(job.response, Err(refusal)).send();
        }
        let number = self.take_job_number();
        let outgoing = vec![Outgoing::Respond(ClientResponse::Create(
            job.response,
            Ok(CreateResponse::New(id)),
        ))];
        let start = JobStart::New {
            origin: Arc::new(origin),
            message: job.message,
            caller: None,
            outgoing,
        };
        self.spawn(SpawnRequest { id, number, root: number, parent: None, start });
    }

    /// Reopens an ended job, if the operation is possible.
    pub(super) fn operate_ended(
        &self,
        id: JobId,
        request: OperationRequest,
        answer: ResponseSender<OperationResponse>,
        found: Option<Box<RecoveredJob>>,
    ) -> RequestOutcome {
        let Some(found) = found else {
            ClientResponse::Operation(answer, Err(RequestError::NotFound)).send();
            return RequestOutcome::KeepResult(LookupResult::Job(None));
        };
        let refusal = if let Some(objection) =
            found.job.check_operation(&request.operation, &self.env.decision_limits)
        {
            Some(objection.into())
        } else if let Some(bus) = self.env.buses.find_missing(found.job.definition()) {
            Some(RequestError::Conflict(self.missing_bus_reason(id, &bus)))
        } else {
            self.check_reopen(&found)
        };
        if let Some(refusal) = refusal {
            ClientResponse::Operation(answer, Err(refusal)).send();
            return RequestOutcome::KeepResult(LookupResult::Job(Some(found)));
        }
        self.reopen(*found);
        if let Some(PendingRequest::Operate(_, answer)) =
            self.send_to_running(id, PendingRequest::Operate(request, answer))
        {
            // The job has just been deleted: a late record of its last actor has shown that.
            ClientResponse::Operation(answer, Err(RequestError::NotFound)).send();
        }
        RequestOutcome::DropResult
    }

    /// Returns why a job cannot go on without a bus.
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

    /// Returns why an ended job cannot be reopened, if it cannot.
    pub(super) fn check_reopen(&self, found: &RecoveredJob) -> Option<RequestError> {
        let (id, limit) = (found.job.id(), self.env.limits.jobs_running_max);
        if found.parent.is_none() && self.env.routes.root_count() >= limit {
            return Some(RequestError::jobs_running_max(limit));
        }
        let memory_refusal = || self.check_memory(job_bytes(&found.job));
        found.parent.is_none().then(memory_refusal).flatten().or_else(|| {
            let id_conflict =
                || RequestError::Conflict(format!("the id {id} belongs to another job by now"));
            self.env.routes.is_under_way(id).then(id_conflict)
        })
    }

    /// Returns why a job of so many bytes cannot be admitted, if memory has no room for it.
    pub(super) fn check_memory(&self, bytes: usize) -> Option<RequestError> {
        let memory = &self.env.memory;
        if memory.can_admit(bytes) {
            memory.note_admitted();
            return None;
        }
        memory.note_rejected(bytes);
        self.check_memory_shortage();
        Some(RequestError::memory_full(memory.used_bytes(), memory.max(), bytes))
    }

    /// Sends the state of a job that has ended.
    pub(super) fn cancel_ended(
        &self,
        by: Option<Arc<str>>,
        answer: ResponseSender<OperationResponse>,
        result: LookupResult,
    ) -> RequestOutcome {
        let state = match &result {
            LookupResult::Creation(None) | LookupResult::Job(None) => Err(RequestError::NotFound),
            LookupResult::Job(Some(found)) => Ok(OperationResponse::Job(found.job.state())),
            LookupResult::Creation(Some(_)) | LookupResult::Child(_) => {
                return RequestOutcome::look_up(PendingRequest::Cancel(by, answer));
            }
        };
        ClientResponse::Operation(answer, state).send();
        RequestOutcome::KeepResult(result)
    }

    /// Erases a job that has ended.
    pub(super) fn erase_ended(
        &self,
        id: JobId,
        answer: ResponseSender<Erased>,
        result: LookupResult,
    ) -> RequestOutcome {
        let (number, is_child): (JobNumber, bool) = match &result {
            LookupResult::Creation(Some(found)) => (found.number, found.is_child),
            LookupResult::Job(Some(found)) => (found.number, found.parent.is_some()),
            LookupResult::Creation(None) | LookupResult::Job(None) => {
                ClientResponse::Erase(answer, Err(RequestError::NotFound)).send();
                return RequestOutcome::KeepResult(result);
            }
            LookupResult::Child(_) => {
                return RequestOutcome::look_up(PendingRequest::Erase(answer));
            }
        };
        if is_child {
            ClientResponse::Erase(answer, Err(RequestError::ended_child_job(id))).send();
            return RequestOutcome::KeepResult(result);
        }
        self.env.journal.send(JournalInput::Erase(number, answer));
        RequestOutcome::DropResult
    }
}
