//! The router: maps replies by correlation id to job actors, and lets new jobs in.

mod calls;
mod children;

use super::call::{Call, Refusal};
use super::job::{self, JobInput, Spawn, Start};
use super::journal::{JournalInput, RebuiltFor};
use super::observe::beginning;
use super::outbox::{Answer, Done, NewChild, Outgoing, ToChild, promised};
use super::redispatch::Bulk;
use super::shared::Shared;
use super::{Mail, Owner, clock};
use crate::bus::Delivery;
use crate::engine::words::shortened;
use crate::engine::{
    Claims, CorrelationId, Definition, Input, JobId, JobState, Message, Operation, Origin, Reply,
};
use crate::faults;
use crate::journal::{JobNumber, Recovered};
use actix::{Actor, Context, Handler};
use children::TAKEN;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use tokio::sync::oneshot;

/// The one router of a process.
pub struct Router {
    pub(super) shared: Arc<Shared>,
    /// Calls that came while the manager takes no jobs, in their order.
    pub(super) waiting: VecDeque<Call>,
    /// They are tried again after a pause that has begun.
    pub(super) is_waiting: bool,
    /// Ended jobs that the journal rebuilds, and why.
    reviving: HashMap<JobNumber, Vec<Errand>>,
    /// The child jobs among them, by parent and id.
    reviving_children: HashSet<(JobNumber, JobId)>,
}

/// What the router can be told.
pub enum RouterInput {
    /// A message came in on a reply queue.
    Delivered(Delivery),
    /// A message came in on a workflow's queue.
    Called {
        /// The workflow's full name.
        workflow: Arc<str>,
        /// The message.
        delivery: Delivery,
    },
    /// A call, with what the job says whose step it names.
    Asked(Call),
    /// A client asks for a job.
    Create(NewJob),
    /// A parent starts a child job.
    StartChild(Box<NewChild>),
    /// Something for a job, if it takes input.
    ToJob(JobId, Input),
    /// What a parent tells its child job. One that has ended is brought back to be retried.
    ToChild(ToChild),
    /// A client asks something of a job.
    Operate(JobId, Operation, oneshot::Sender<Answer>),
    /// The journal has rebuilt an ended job that is to go on, if it is still there.
    Revived(JobNumber, Option<Box<Recovered>>),
    /// A client ends a job.
    End(JobId, Ending, oneshot::Sender<Answer>),
    /// A queue was found missing in a virtual host.
    QueueMissing {
        /// The virtual host.
        vhost: Arc<str>,
        /// The queue.
        queue: Arc<str>,
        /// Answered once all its running steps are journaled as unconfirmed.
        taken: oneshot::Sender<()>,
    },
    /// The messages of the steps that wait on a queue are to be sent once more; answered after all
    /// commits.
    Redispatch(Arc<Bulk>, oneshot::Sender<()>),
}

/// How a client ends a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It is cancelled. If it has ended already its state is told, so that asking twice does no
    /// harm.
    Cancel,
    /// It is erased from the journal, if it has ended.
    Erase,
}

/// Why an ended job is brought back.
pub enum Errand {
    /// Its parent has it retried.
    Order(ToChild),
    /// A client asks something of it.
    Operate(Operation, oneshot::Sender<Answer>),
    /// A message on its workflow's queue asks for it: it is told how it ended.
    Call(Call),
}

/// A top-level job that a client asks for.
pub struct NewJob {
    /// The id that the client chose.
    pub id: Option<JobId>,
    /// What to run.
    pub definition: Arc<Definition>,
    /// With what.
    pub message: Message,
    /// Answered after the commit.
    pub answer: oneshot::Sender<Answer>,
}

impl Router {
    /// The router.
    pub fn new(shared: Arc<Shared>) -> Router {
        Router {
            shared,
            waiting: VecDeque::new(),
            is_waiting: false,
            reviving: HashMap::new(),
            reviving_children: HashSet::new(),
        }
    }

    fn receive(&mut self, input: RouterInput, ctx: &mut Context<Self>) {
        match input {
            RouterInput::Delivered(delivery) => self.deliver(delivery),
            RouterInput::Called { workflow, delivery } => self.called(&workflow, delivery, ctx),
            RouterInput::Asked(call) => self.take_call(call, ctx),
            RouterInput::Create(job) => self.create(job),
            RouterInput::StartChild(child) => self.start_child(*child),
            RouterInput::ToJob(id, input) => {
                if let Some(job) = self.shared.routes.find(id) {
                    job.post(JobInput::Take { input, ack: None });
                }
            }
            RouterInput::ToChild(told) => self.tell_child(told),
            RouterInput::Operate(id, operation, answer) => self.operate(id, operation, answer),
            RouterInput::Revived(number, recovered) => {
                self.revived(number, recovered.map(|recovered| *recovered), ctx)
            }
            RouterInput::End(id, ending, answer) => self.end(id, ending, answer),
            RouterInput::Redispatch(bulk, answer) => {
                let done = Done::new(answer);
                for mailbox in self.shared.routes.all_live() {
                    mailbox.post(JobInput::Redispatch { bulk: bulk.clone(), done: done.clone() });
                }
            }
            RouterInput::QueueMissing { vhost, queue, taken } => {
                let done = Done::new(taken);
                tracing::info!(%vhost, %queue, "the queue is not there: it is declared, and running steps that waited in it are dispatched again");
                for mailbox in self.shared.routes.all_live() {
                    mailbox.post(JobInput::QueueMissing {
                        vhost: vhost.clone(),
                        queue: queue.clone(),
                        done: done.clone(),
                    });
                }
            }
        }
    }

    fn deliver(&self, delivery: Delivery) {
        let Some(text) = &delivery.correlation_id else {
            return self.reject(delivery, "no_correlation_id");
        };
        let Ok(CorrelationId { job, step }) = text.parse() else {
            return self.reject(delivery, "malformed_correlation_id");
        };
        let Some(job) = self.shared.routes.find(job) else {
            return self.reject(delivery, "unknown_job");
        };
        let reply = match (&delivery.dead_letter, delivery.kind.as_deref()) {
            (Some(dead), _) => {
                Reply::DeadLettered { queue: dead.queue.clone(), reason: dead.reason.clone() }
            }
            (None, Some("error")) => Reply::Error(delivery.body.clone()),
            (None, Some("progress")) => Reply::Progress(delivery.body.clone()),
            (None, None | Some("result")) => Reply::Result(delivery.body.clone()),
            (None, Some(kind)) => {
                self.log_unknown_kind(kind, text);
                Reply::Result(delivery.body.clone())
            }
        };
        let input = Input::Reply { step, attempt: delivery.attempt, reply };
        job.post(JobInput::Take { input, ack: Some(delivery.into_settlement()) });
    }

    /// A worker that says `Error` where `error` is meant should hear of it.
    fn log_unknown_kind(&self, kind: &str, correlation_id: &str) {
        if self.shared.throttle.may_log("unknown_type") {
            let (kind, correlation_id) = (shortened(kind), shortened(correlation_id));
            tracing::warn!(
                kind,
                correlation_id,
                "a reply of a type that is not known counts as a result; known are result, error and progress (logged once a minute)"
            );
        }
    }

    fn reject(&self, delivery: Delivery, reason: &'static str) {
        self.shared.metrics.rejected.with_label_values(&[reason]).inc();
        if self.shared.throttle.may_log(reason) {
            let correlation_id: String =
                delivery.correlation_id.iter().flat_map(|text| text.chars()).take(100).collect();
            let (kind, value) =
                (delivery.kind.as_deref().map(shortened), beginning(&delivery.body));
            tracing::warn!(
                reason,
                correlation_id,
                kind,
                value,
                bytes = delivery.body.len(),
                "a reply that changes nothing (logged once a minute per reason)"
            );
        }
        if !faults::planted("unknown replies sent back") {
            delivery.ack();
        }
    }

    fn create(&self, job: NewJob) {
        let limit = self.shared.settings.limits.jobs_running_max;
        if let Some(id) = job.id {
            if !faults::planted("known ids not looked up")
                && let Some(found) = self.shared.routes.find(id)
            {
                return found.post(JobInput::Same {
                    workflow: job.definition.full_name(),
                    message: job.message,
                    answer: job.answer,
                });
            }
            let is_promised = self.shared.routes.has(id);
            let earlier = if is_promised {
                Some(Answer::Conflict(promised(id)))
            } else {
                self.earlier(id, &job)
            };
            if let Some(answer) = earlier {
                return tell(job.answer, answer);
            }
        }
        if self.shared.routes.roots() >= limit {
            return tell(job.answer, Answer::of_full(limit));
        }
        let id = job.id.unwrap_or_else(clock::new_id);
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
        job::spawn(&self.shared, Spawn { id, number, root: number, parent: None, start });
    }

    /// What a job that has ended says of a creation under its id.
    fn earlier(&self, id: JobId, job: &NewJob) -> Option<Answer> {
        match self.shared.reader.creation(id) {
            Ok(None) => None,
            Ok(Some(earlier)) => {
                Some(Answer::again(id, &earlier, &job.definition.full_name(), &job.message))
            }
            Err(error) => Some(Answer::Failed(error.to_string())),
        }
    }

    fn operate(&mut self, id: JobId, operation: Operation, answer: oneshot::Sender<Answer>) {
        if let Some(job) = self.shared.routes.find(id) {
            return job.post(JobInput::Operate(operation, answer));
        }
        match self.shared.reader.job(id) {
            Ok(None) => tell(answer, Answer::Unknown),
            Ok(Some(found)) => match found.job.objection(&operation, &self.shared.limits) {
                Some(objection) => tell(answer, objection.into()),
                None if self.shared.bus(&found.job.definition().vhost).is_none() => {
                    let vhost = &found.job.definition().vhost;
                    let reason = format!(
                        "no workflow of the virtual host \"{vhost}\" is loaded, so job {id} cannot go on: load one (`workflow-manager reload`)"
                    );
                    tell(answer, Answer::Conflict(reason));
                }
                None => self.revive(found.number, Errand::Operate(operation, answer)),
            },
            Err(error) => tell(answer, Answer::Failed(error.to_string())),
        }
    }

    /// An ended job goes on: its actor is made from the journal, behind all that was committed.
    /// Once for all who ask meanwhile: what they are given is of the same moment.
    pub(super) fn revive(&mut self, number: JobNumber, errand: Errand) {
        let errands = self.reviving.entry(number).or_default();
        errands.push(errand);
        if errands.len() == 1 {
            self.shared.wiring().journal.post(JournalInput::Rebuild(number, RebuiltFor::Router));
        }
    }

    fn revived(
        &mut self,
        number: JobNumber,
        recovered: Option<Recovered>,
        ctx: &mut Context<Self>,
    ) {
        let shared = self.shared.clone();
        let errands = self.reviving.remove(&number).unwrap_or_default();
        for errand in &errands {
            if let Errand::Order(told) = errand {
                self.reviving_children.remove(&(told.parent, told.id));
            }
        }
        let Some(Recovered { root, parent, job, orders, .. }) = recovered else {
            for errand in errands {
                match errand {
                    // Deleted with its top-level job.
                    Errand::Order(_) => {}
                    Errand::Operate(_, answer) => tell(answer, Answer::Unknown),
                    Errand::Call(call) => self.take_call(call, ctx),
                }
            }
            return;
        };
        let (id, is_done) = (job.id(), job.state() == JobState::Completed);
        let limit = shared.settings.limits.jobs_running_max;
        if matches!(errands.as_slice(), [Errand::Order(_)]) && orders.is_empty() && !is_done {
            // The order was kept up on its way, and its parent has other plans since.
            return;
        }
        let refusal = if parent.is_none() && shared.routes.roots() >= limit {
            Some(Answer::of_full(limit))
        } else if shared.routes.claim(id) {
            None
        } else {
            Some(Answer::Conflict(promised(id)))
        };
        let Some(refusal) = refusal else {
            job::spawn(
                &shared,
                Spawn {
                    id,
                    number,
                    root,
                    parent,
                    start: Start::Recovered { job: Box::new(job), effects: Vec::new() },
                },
            );
            let order = |order| JobInput::Take { input: Input::Order(order), ack: None };
            let inputs = errands.into_iter().flat_map(|errand| match errand {
                // It has done it already, and says so once more.
                Errand::Order(told) if is_done => vec![order(told.order)],
                // What its parent wants by now.
                Errand::Order(_) => orders.iter().cloned().map(order).collect(),
                Errand::Operate(operation, answer) => vec![JobInput::Operate(operation, answer)],
                Errand::Call(call) => vec![JobInput::Called(call)],
            });
            match shared.routes.find(id) {
                Some(job) => inputs.for_each(|input| job.post(input)),
                // Deleted in this very moment, as a late record of its last actor has shown.
                None => inputs.for_each(|input| {
                    if let JobInput::Operate(_, answer) = input {
                        tell(answer, Answer::Unknown);
                    }
                }),
            }
            return;
        };
        for errand in errands {
            match (errand, &refusal) {
                (Errand::Operate(_, answer), _) => tell(answer, refusal.clone()),
                (Errand::Order(told), _) => {
                    self.cannot_start(told.place, id, told.order.round, TAKEN)
                }
                (Errand::Call(call), Answer::Conflict(reason)) => {
                    call.refuse(&Refusal { kind: "conflict", reason: reason.clone() }, &shared)
                }
                (Errand::Call(call), _) => self.keep_call(call, ctx),
            }
        }
    }

    fn end(&self, id: JobId, ending: Ending, answer: oneshot::Sender<Answer>) {
        if let Some(job) = self.shared.routes.find(id) {
            return job.post(JobInput::End(ending, answer));
        }
        let found = match ending {
            Ending::Cancel => self.shared.reader.job(id).map(|found| {
                Err(found.map_or(Answer::Unknown, |found| Answer::Changed(found.job.state())))
            }),
            Ending::Erase => self.shared.reader.creation(id).map(|found| match found {
                None => Err(Answer::Unknown),
                Some(found) if found.is_child => Err(Answer::of_ended_child(id)),
                Some(found) => Ok(found.number),
            }),
        };
        match found {
            Ok(Ok(number)) => {
                self.shared.wiring().journal.post(JournalInput::Delete(number, answer))
            }
            Ok(Err(told)) => tell(answer, told),
            Err(error) => tell(answer, Answer::Failed(error.to_string())),
        }
    }
}

fn tell(to: oneshot::Sender<Answer>, answer: Answer) {
    // The client may have gone.
    let _ = to.send(answer);
}

impl Actor for Router {
    type Context = Context<Self>;
}

impl Owner for Router {
    type Input = RouterInput;
    const KIND: &'static str = "router";
}

impl Handler<Mail<RouterInput>> for Router {
    type Result = ();

    fn handle(&mut self, mail: Mail<RouterInput>, ctx: &mut Self::Context) {
        mail.handle(|input| self.receive(input, ctx));
    }
}
