//! Jobs that clients create, and operations on them.

use super::Router;
use super::asks::{Ask, Handled};
use crate::actors::answer::{Answer, Client, Created, Erased, Now, Refusal};
use crate::actors::job::{Spawn, Start};
use crate::actors::mail::{CreateJob, Finding, JournalInput, Outgoing};
use crate::actors::memory::{bytes_of, bytes_of_new};
use crate::bus::BusKey;
use crate::clock;
use crate::engine::{JobId, Origin, Request};
use crate::journal::{JobNumber, Recovered};
use std::sync::Arc;

impl Router {
    pub(super) fn create(&mut self, job: CreateJob) {
        match job.id {
            None => self.start_job(clock::new_id(), job),
            Some(id) => self.ask(id, Ask::Create(job)),
        }
    }

    /// Starts a job under the id, or sends the client the job that has it.
    pub(super) fn create_unless_known(
        &self,
        id: JobId,
        job: CreateJob,
        finding: Finding,
    ) -> Handled {
        let workflow = job.definition.full_name();
        let known = match &finding {
            Finding::Creation(creation) => creation
                .as_ref()
                .map(|creation| Created::again(id, creation, &workflow, &job.message)),
            Finding::Job(found) => {
                found.as_ref().map(|found| Created::again(id, &found.job, &workflow, &job.message))
            }
            Finding::Child(_) => {
                return Handled::look_up(Ask::Create(job));
            }
        };
        match known {
            Some(answer) => Answer::Created(job.answer, answer).tell(),
            None => self.start_job(id, job),
        }
        Handled::KeepFinding(finding)
    }

    fn start_job(&self, id: JobId, job: CreateJob) {
        let limit = self.ways.common.settings.limits.jobs_running_max;
        if self.ways.routes.roots() >= limit {
            return Answer::Created(job.answer, Err(Refusal::of_full(limit))).tell();
        }
        let trace = job.trace.map(Arc::new);
        let origin = Origin { trace, ..Origin::top_level(id, job.definition, clock::now()) };
        if let Some(refusal) = self.refusal_of_memory(bytes_of_new(&origin, &job.message)) {
            return Answer::Created(job.answer, Err(refusal)).tell();
        }
        let number = self.ways.common.take_number();
        let release = vec![Outgoing::Answer(Answer::Created(job.answer, Ok(Created::New(id))))];
        let start =
            Start::New { origin: Arc::new(origin), message: job.message, caller: None, release };
        self.spawn(Spawn { id, number, root: number, parent: None, start });
    }

    /// Reopens an ended job, if the operation is possible.
    pub(super) fn operate_ended(
        &self,
        id: JobId,
        request: Request,
        answer: Client<Now>,
        found: Option<Box<Recovered>>,
    ) -> Handled {
        let Some(found) = found else {
            Answer::Now(answer, Err(Refusal::Unknown)).tell();
            return Handled::KeepFinding(Finding::Job(None));
        };
        let refusal = if let Some(objection) =
            found.job.objection(&request.operation, &self.ways.common.limits)
        {
            Some(objection.into())
        } else if let Some(bus) = self.ways.buses.missing(found.job.definition()) {
            Some(Refusal::Conflict(self.no_bus(id, &bus)))
        } else {
            self.refusal_to_revive(&found)
        };
        if let Some(refusal) = refusal {
            Answer::Now(answer, Err(refusal)).tell();
            return Handled::KeepFinding(Finding::Job(Some(found)));
        }
        self.revive(*found);
        if let Some(Ask::Operate(_, answer)) = self.to_live(id, Ask::Operate(request, answer)) {
            // The job has just been deleted: a late record of its last actor has shown that.
            Answer::Now(answer, Err(Refusal::Unknown)).tell();
        }
        Handled::DropFinding
    }

    /// Returns why a job cannot go on without a bus.
    fn no_bus(&self, job: JobId, BusKey { bus, vhost }: &BusKey) -> String {
        if self.ways.common.settings.bus_kind(bus).is_none() {
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
    pub(super) fn refusal_to_revive(&self, found: &Recovered) -> Option<Refusal> {
        let (id, limit) = (found.job.id(), self.ways.common.settings.limits.jobs_running_max);
        if found.parent.is_none() && self.ways.routes.roots() >= limit {
            return Some(Refusal::of_full(limit));
        }
        let of_memory = || self.refusal_of_memory(bytes_of(&found.job));
        found.parent.is_none().then(of_memory).flatten().or_else(|| {
            let taken = || Refusal::Conflict(format!("the id {id} belongs to another job by now"));
            self.ways.routes.is_live(id).then(taken)
        })
    }

    /// Returns why a job of so many bytes cannot be admitted, if memory has no room for it.
    pub(super) fn refusal_of_memory(&self, bytes: usize) -> Option<Refusal> {
        let memory = &self.ways.common.memory;
        if memory.has_room(bytes) {
            memory.let_in();
            return None;
        }
        memory.want(bytes);
        self.look_for_short_memory();
        Some(Refusal::of_memory(memory.held(), memory.max(), bytes))
    }

    /// Sends the state of a job that has ended.
    pub(super) fn cancel_ended(
        &self,
        by: Option<Arc<str>>,
        answer: Client<Now>,
        finding: Finding,
    ) -> Handled {
        let state = match &finding {
            Finding::Creation(None) | Finding::Job(None) => Err(Refusal::Unknown),
            Finding::Job(Some(found)) => Ok(Now::Job(found.job.state())),
            Finding::Creation(Some(_)) | Finding::Child(_) => {
                return Handled::look_up(Ask::Cancel(by, answer));
            }
        };
        Answer::Now(answer, state).tell();
        Handled::KeepFinding(finding)
    }

    /// Erases a job that has ended.
    pub(super) fn erase_ended(
        &self,
        id: JobId,
        answer: Client<Erased>,
        finding: Finding,
    ) -> Handled {
        let (number, is_child): (JobNumber, bool) = match &finding {
            Finding::Creation(Some(found)) => (found.number, found.is_child),
            Finding::Job(Some(found)) => (found.number, found.parent.is_some()),
            Finding::Creation(None) | Finding::Job(None) => {
                Answer::Erased(answer, Err(Refusal::Unknown)).tell();
                return Handled::KeepFinding(finding);
            }
            Finding::Child(_) => return Handled::look_up(Ask::Erase(answer)),
        };
        if is_child {
            Answer::Erased(answer, Err(Refusal::of_ended_child(id))).tell();
            return Handled::KeepFinding(finding);
        }
        self.ways.mailboxes().journal.post(JournalInput::Delete(number, answer));
        Handled::DropFinding
    }
}
