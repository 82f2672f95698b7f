//! Jobs that clients ask for, and what they ask of them.

use super::lookups::{Ask, Left, tell};
use super::{Ending, NewJob, Router};
use crate::actors::archive::Finding;
use crate::actors::clock;
use crate::actors::job::{Spawn, Start};
use crate::actors::journal::JournalInput;
use crate::actors::outbox::{Answer, Outgoing, promised};
use crate::engine::{JobId, Operation, Origin};
use crate::faults;
use crate::journal::Recovered;
use std::sync::Arc;
use tokio::sync::oneshot;

impl Router {
    pub(super) fn create(&mut self, job: NewJob) {
        match job.id {
            None => self.start_job(clock::new_id(), job),
            Some(id) if faults::planted("known ids not looked up") => self.start_job(id, job),
            Some(id) => self.ask(id, Ask::Create(job)),
        }
    }

    /// Starts a job under the id, or says what job has it.
    pub(super) fn create_unless_known(&self, id: JobId, job: NewJob, finding: Finding) -> Left {
        let workflow = job.definition.full_name();
        let known = match &finding {
            Finding::Creation(creation) => creation
                .as_ref()
                .map(|creation| Answer::again(id, creation, &workflow, &job.message)),
            Finding::Job(found) => {
                found.as_ref().map(|found| Answer::again(id, &found.job, &workflow, &job.message))
            }
            Finding::Child(_) => {
                let ask = Ask::Create(job);
                let question = ask.question();
                return Left::Ask(ask, question);
            }
        };
        match known {
            Some(answer) => tell(job.answer, answer),
            None if self.shared.routes.has(id) => tell(job.answer, Answer::Conflict(promised(id))),
            None => self.start_job(id, job),
        }
        Left::Finding(finding)
    }

    fn start_job(&self, id: JobId, job: NewJob) {
        let limit = self.shared.settings.limits.jobs_running_max;
        if self.shared.routes.roots() >= limit {
            return tell(job.answer, Answer::of_full(limit));
        }
        let origin = Origin {
            id,
            definition: job.definition,
            graph: 0,
            parent: None,
            root: id,
            depth: 0,
            created: clock::now(),
        };
        let number = self.shared.take_number();
        let release = vec![Outgoing::Answer(job.answer, Answer::Created(id))];
        let start =
            Start::New { origin: Arc::new(origin), message: job.message, caller: None, release };
        self.spawn(Spawn { id, number, root: number, parent: None, start });
    }

    /// Brings back a job that has ended, if the operation makes sense of it.
    pub(super) fn operate_ended(
        &self,
        id: JobId,
        operation: Operation,
        answer: oneshot::Sender<Answer>,
        found: Option<Box<Recovered>>,
    ) -> Left {
        let Some(found) = found else {
            tell(answer, Answer::Unknown);
            return Left::Finding(Finding::Job(None));
        };
        let vhost = &found.job.definition().vhost;
        let refusal = if let Some(objection) = found.job.objection(&operation, &self.shared.limits)
        {
            Some(objection.into())
        } else if !self.shared.has_bus_for(found.job.definition()) {
            Some(Answer::Conflict(format!(
                "no workflow of the virtual host \"{vhost}\" is loaded, so job {id} cannot go on: load one (`workflow-manager reload`)"
            )))
        } else {
            self.refusal_to_revive(&found)
        };
        if let Some(refusal) = refusal {
            tell(answer, refusal);
            return Left::Finding(Finding::Job(Some(found)));
        }
        self.revive(*found);
        if let Some(Ask::Operate(_, answer)) = self.to_live(id, Ask::Operate(operation, answer)) {
            // Deleted in this very moment, as a late record of its last actor has shown.
            tell(answer, Answer::Unknown);
        }
        Left::Nothing
    }

    /// Why a job that has ended cannot go on.
    pub(super) fn refusal_to_revive(&self, found: &Recovered) -> Option<Answer> {
        let (id, limit) = (found.job.id(), self.shared.settings.limits.jobs_running_max);
        if found.parent.is_none() && self.shared.routes.roots() >= limit {
            Some(Answer::of_full(limit))
        } else {
            self.shared.routes.has(id).then(|| Answer::Conflict(promised(id)))
        }
    }

    pub(super) fn end_ended(
        &self,
        id: JobId,
        ending: Ending,
        answer: oneshot::Sender<Answer>,
        finding: Finding,
    ) -> Left {
        match (ending, &finding) {
            (_, Finding::Creation(None) | Finding::Job(None)) => tell(answer, Answer::Unknown),
            (Ending::Cancel, Finding::Job(Some(found))) => {
                tell(answer, Answer::Changed(found.job.state()))
            }
            (Ending::Erase, Finding::Job(Some(found))) => {
                self.erase(id, found.number, found.parent.is_some(), answer);
                return Left::Nothing;
            }
            (Ending::Erase, Finding::Creation(Some(found))) => {
                self.erase(id, found.number, found.is_child, answer);
                return Left::Nothing;
            }
            (Ending::Cancel, Finding::Creation(Some(_))) | (_, Finding::Child(_)) => {
                let ask = Ask::End(ending, answer);
                let question = ask.question();
                return Left::Ask(ask, question);
            }
        }
        Left::Finding(finding)
    }

    fn erase(&self, id: JobId, number: i64, is_child: bool, answer: oneshot::Sender<Answer>) {
        if is_child {
            return tell(answer, Answer::of_ended_child(id));
        }
        self.shared.wiring().journal.post(JournalInput::Delete(number, answer));
    }
}
