//! Requests that wait for the archive. If no job takes input under an id, the archive looks it up.
//! Further requests for that id wait, in order; the router goes on with all other ids.

use super::Router;
use super::asks::{Ask, Handled};
use crate::actors::answer::{Answer, Refusal};
use crate::actors::mail::{ArchiveInput, CreateJob, Finding, JobInput, JournalInput, Question};
use crate::engine::{Input, JobId};
use actix::Context;
use std::collections::VecDeque;

impl Router {
    /// Sends a request to the job under the id, or to the archive, behind the requests that already
    /// wait for it.
    pub(super) fn ask(&mut self, id: JobId, ask: Ask) {
        let is_looked_up = self.look_ups.waiting.contains_key(&id);
        if !is_looked_up && self.ways.routes.is_at_rest(id) {
            // The disk may be full: then nothing can be activated, and deleting makes room.
            return match (ask, self.ended_at_rest(id)) {
                (Ask::Erase(answer), Some(number)) => {
                    self.ways.mailboxes().journal.post(JournalInput::Delete(number, answer))
                }
                (ask, _) => drop(self.unless_at_rest(id, ask.again(id))),
            };
        }
        let ask = if is_looked_up { Some(ask) } else { self.to_live(id, ask) };
        let Some(ask) = ask else { return };
        let limit = self.ways.common.settings.limits.creations_waiting_max;
        if ask.is_of_client() && self.look_ups.asks >= limit {
            let reason = format!(
                "{limit} requests wait for the journal already (setting \
                 limits.creations_waiting_max)"
            );
            return self.refuse(id, ask, Refusal::Overloaded(reason));
        }
        self.look_ups.count(&ask, 1);
        if is_looked_up {
            self.look_ups.waiting.entry(id).or_default().push_back(ask);
        } else {
            let question = ask.question();
            self.look_up(id, question, VecDeque::from([ask]));
        }
        self.show_look_ups();
    }

    fn show_look_ups(&self) {
        let waiting = i64::try_from(self.look_ups.asks).unwrap_or(i64::MAX);
        self.ways.common.metrics.look_ups_waiting.set(waiting);
    }

    fn look_up(&mut self, id: JobId, question: Question, asks: VecDeque<Ask>) {
        self.look_ups.waiting.insert(id, asks);
        self.ways.mailboxes().archive.post(ArchiveInput::Find(id, question));
    }

    /// Goes on with all requests that wait for the id, in order, now that the archive has answered.
    pub(super) fn found(
        &mut self,
        id: JobId,
        found: Result<Finding, String>,
        ctx: &mut Context<Self>,
    ) {
        let Some(mut asks) = self.look_ups.waiting.remove(&id) else { return };
        asks.iter().for_each(|ask| self.look_ups.count(ask, -1));
        if self.ways.routes.is_at_rest(id) {
            // A job under that id has begun, and is passivated already.
            for ask in asks {
                drop(self.unless_at_rest(id, ask.again(id)));
            }
            return self.show_look_ups();
        }
        let mut finding = match found {
            Ok(finding) => Some(finding),
            Err(reason) => {
                tracing::error!(job = %id, reason, "a job cannot be looked up in the journal");
                for ask in asks {
                    self.fail(id, ask, &reason, ctx);
                }
                self.show_look_ups();
                return;
            }
        };
        while let Some(ask) = asks.pop_front() {
            let Some(ask) = self.to_live(id, ask) else { continue };
            let handled = match finding.take() {
                Some(finding) => self.go_on_with(id, ask, finding, ctx),
                None => Handled::look_up(ask),
            };
            match handled {
                Handled::KeepFinding(kept) => finding = Some(kept),
                Handled::DropFinding => {}
                Handled::LookUp(ask, question) => {
                    asks.push_front(ask);
                    asks.iter().for_each(|ask| self.look_ups.count(ask, 1));
                    self.look_up(id, question, asks);
                    return self.show_look_ups();
                }
            }
        }
        self.show_look_ups();
    }

    /// Goes on with one request, now that the archive has answered.
    fn go_on_with(
        &mut self,
        id: JobId,
        ask: Ask,
        finding: Finding,
        ctx: &mut Context<Self>,
    ) -> Handled {
        match (finding, ask) {
            (finding, Ask::Create(job)) => self.create_unless_known(id, job, finding),
            (finding, Ask::Call(call)) => self.begin_call(call, finding, ctx),
            (finding, Ask::Cancel(by, answer)) => self.cancel_ended(by, answer, finding),
            (finding, Ask::Erase(answer)) => self.erase_ended(id, answer, finding),
            (Finding::Job(found), Ask::Operate(operation, answer)) => {
                self.operate_ended(id, operation, answer, found)
            }
            (Finding::Child(found), Ask::Order(to_child)) => self.tell_ended_child(to_child, found),
            (Finding::Creation(_) | Finding::Child(_), ask @ Ask::Operate(..))
            | (Finding::Creation(_) | Finding::Job(_), ask @ Ask::Order(_)) => {
                Handled::look_up(ask)
            }
        }
    }

    /// Sends a request to the job that takes input under the id. Returns the request if there is
    /// none, unless an ended job would ignore it.
    pub(super) fn to_live(&self, id: JobId, ask: Ask) -> Option<Ask> {
        let live = self.ways.routes.find(id).filter(|job| ask.is_meant_for(job));
        let Some(job) = live else { return Some(ask).filter(Ask::concerns_an_ended_job) };
        job.post(match ask {
            Ask::Create(CreateJob { definition, message, answer, .. }) => {
                JobInput::CreateAgain { workflow: definition.full_name(), message, answer }
            }
            Ask::Operate(operation, answer) => JobInput::Operate(operation, answer),
            Ask::Cancel(by, answer) => JobInput::Cancel(by, answer),
            Ask::Erase(answer) => JobInput::Erase(answer),
            Ask::Call(call) => JobInput::Called(call),
            Ask::Order(to_child) => {
                JobInput::Take { input: Input::Order(to_child.order), ack: None }
            }
        });
        None
    }

    fn refuse(&self, id: JobId, ask: Ask, refusal: Refusal) {
        match ask {
            Ask::Create(CreateJob { answer, .. }) => Answer::Created(answer, Err(refusal)).tell(),
            Ask::Operate(_, answer) | Ask::Cancel(_, answer) => {
                Answer::Now(answer, Err(refusal)).tell()
            }
            Ask::Erase(answer) => Answer::Erased(answer, Err(refusal)).tell(),
            // The call goes back to its queue.
            Ask::Call(_) => {}
            Ask::Order(to_child) => {
                let round = to_child.order.round;
                self.cannot_start(to_child.place, id, round, "it cannot be read from the journal")
            }
        }
    }

    fn fail(&mut self, id: JobId, ask: Ask, reason: &str, ctx: &mut Context<Self>) {
        match ask {
            Ask::Call(call) => self.keep_call_for(call, reason, ctx),
            Ask::Create(_) | Ask::Operate(..) | Ask::Cancel(..) | Ask::Erase(_) | Ask::Order(_) => {
                self.refuse(id, ask, Refusal::Failed(reason.to_owned()))
            }
        }
    }
}
