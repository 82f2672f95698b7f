//! The archive looks up jobs that take no input, and rebuilds those that are to go on. It reads the
//! journal on its own thread, so that a slow read delays only those who wait for it. A job is
//! rebuilt behind a barrier: everything appended before the lookup is committed when the job's rows
//! are read.

use super::mail::{ArchiveInput, Finding, JournalInput, Question, RouterInput, SupervisorInput};
use super::mailbox::{Mail, Owner};
use super::ways::Ways;
use crate::engine::JobId;
use crate::faults;
use crate::journal::{JobNumber, JournalError, Recovered};
use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, WrapFuture};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Reads the journal for the router and the supervisor.
pub struct Archive {
    ways: Arc<Ways>,
    /// Jobs that are to be rebuilt.
    wanted: Vec<WantedBy>,
    /// Passivated job trees that are to be rebuilt.
    at_rest: Families,
    /// Whether a barrier is under way, for jobs that were requested before.
    is_behind: bool,
}

/// Who asks for a job to be rebuilt.
enum WantedBy {
    Router(JobId, Question),
    Supervisor(JobNumber),
}

/// Passivated job trees that are to be rebuilt, each with the number of its root job and the
/// numbers of all its jobs.
type Families = Vec<(JobNumber, Vec<JobNumber>)>;

/// The most jobs that one read rebuilds: another lookup waits for it.
const REBUILT_AT_ONCE: usize = 200;

impl Archive {
    /// Creates the archive.
    pub fn new(ways: Arc<Ways>) -> Archive {
        Archive { ways, wanted: Vec::new(), at_rest: Vec::new(), is_behind: false }
    }

    fn receive(&mut self, input: ArchiveInput, ctx: &mut Context<Self>) {
        match input {
            // A job's route is removed behind its last commit: no barrier is needed.
            ArchiveInput::Find(id, Question::Creation) => self.find_creation(id),
            ArchiveInput::Find(id, question) => {
                self.wanted.push(WantedBy::Router(id, question));
                self.rebuild(ctx);
            }
            ArchiveInput::Rebuild(number) => {
                self.wanted.push(WantedBy::Supervisor(number));
                self.rebuild(ctx);
            }
            ArchiveInput::BringBack(families) => {
                self.at_rest.extend(families);
                self.rebuild(ctx);
            }
        }
    }

    fn find_creation(&self, id: JobId) {
        faults::hit("archive::read");
        let found = self.ways.common.reader.creation(id);
        self.tell_router(id, found.map(Finding::Creation));
    }

    /// Rebuilds the requested jobs behind a barrier. Those requested meanwhile follow behind the
    /// next one.
    fn rebuild(&mut self, ctx: &mut Context<Self>) {
        let is_idle = self.wanted.is_empty() && self.at_rest.is_empty();
        if is_idle || std::mem::replace(&mut self.is_behind, true) {
            return;
        }
        let at_rest = std::mem::take(&mut self.at_rest);
        let rest = self.wanted.split_off(self.wanted.len().min(REBUILT_AT_ONCE));
        let wanted = std::mem::replace(&mut self.wanted, rest);
        let ways = self.ways.clone();
        let barrier = async move { barrier(&ways).await };
        ctx.spawn(barrier.into_actor(self).map(move |(), archive, ctx| {
            archive.read(wanted);
            archive.bring_back(at_rest);
            archive.is_behind = false;
            archive.rebuild(ctx);
        }));
    }

    fn read(&self, wanted: Vec<WantedBy>) {
        if wanted.is_empty() {
            return;
        }
        faults::hit("archive::read");
        let numbers: Vec<_> = wanted.iter().map(|wanted| self.number(wanted)).collect();
        let known: Vec<JobNumber> = numbers.iter().flatten().flatten().copied().collect();
        let mut recovered = match self.ways.common.reader.recover_some(&known) {
            Ok(recovered) => recovered,
            // A job that cannot be read must not make the others fail.
            Err(_) if known.len() > 1 => HashMap::new(),
            Err(error) => return wanted.iter().for_each(|wanted| self.tell(wanted, Err(&error))),
        };
        for (wanted, number) in wanted.iter().zip(numbers) {
            let number = match number {
                Ok(Some(number)) => number,
                Ok(None) => {
                    self.tell(wanted, Ok(None));
                    continue;
                }
                Err(error) => {
                    self.tell(wanted, Err(&error));
                    continue;
                }
            };
            if let Some(job) = recovered.remove(&number) {
                self.tell(wanted, Ok(Some(Box::new(job))));
                continue;
            }
            match self.ways.common.reader.recover_some(&[number]) {
                Ok(mut job) => self.tell(wanted, Ok(job.remove(&number).map(Box::new))),
                Err(error) => self.tell(wanted, Err(&error)),
            }
        }
    }

    /// Rebuilds passivated jobs, one tree after the other.
    fn bring_back(&self, at_rest: Families) {
        let Ways { common, .. } = &*self.ways;
        for (number, jobs) in at_rest {
            faults::hit("archive::read");
            match common.reader.recover_family(&jobs) {
                Ok(found) => {
                    let found = found.into_iter().map(|job| common.rules.recovered(job)).collect();
                    let brought_back = RouterInput::BroughtBack(number, found);
                    self.ways.mailboxes().router.post(brought_back);
                }
                // The manager is stopping, or its journal is lost.
                Err(JournalError::Closed { .. }) => return,
                Err(error) => {
                    return common.fail(format!(
                        "a job at rest cannot be rebuilt from the journal: {error}"
                    ));
                }
            }
        }
    }

    fn number(&self, wanted: &WantedBy) -> Result<Option<JobNumber>, JournalError> {
        match wanted {
            WantedBy::Supervisor(number) => Ok(Some(*number)),
            WantedBy::Router(id, Question::ChildOf(parent)) => {
                self.ways.common.reader.child(*parent, *id)
            }
            WantedBy::Router(id, Question::Job | Question::Creation) => {
                self.ways.common.reader.number(*id)
            }
        }
    }

    fn tell(&self, wanted: &WantedBy, job: Result<Option<Box<Recovered>>, &JournalError>) {
        let rules = &self.ways.common.rules;
        let job = job.map(|found| found.map(|found| Box::new(rules.recovered(*found))));
        match wanted {
            WantedBy::Router(id, Question::ChildOf(_)) => {
                self.tell_router(*id, job.map(Finding::Child))
            }
            WantedBy::Router(id, Question::Job | Question::Creation) => {
                self.tell_router(*id, job.map(Finding::Job))
            }
            WantedBy::Supervisor(number) => match job {
                Ok(job) => {
                    self.ways.mailboxes().supervisor.post(SupervisorInput::Rebuilt(*number, job))
                }
                // The manager is stopping, or its journal is lost.
                Err(JournalError::Closed { .. }) => {}
                Err(error) => self.ways.common.fail(format!(
                    "a job whose actor panicked cannot be rebuilt from the journal: {error}"
                )),
            },
        }
    }

    fn tell_router(&self, id: JobId, found: Result<Finding, impl ToString>) {
        let found = found.map_err(|error| error.to_string());
        self.ways.mailboxes().router.post(RouterInput::Found(id, found));
    }
}

/// Waits until everything appended before this is committed. If the journal is lost, that never
/// happens: then the read reports it.
async fn barrier(ways: &Ways) {
    loop {
        let (answer, committed) = oneshot::channel();
        ways.mailboxes().journal.post(JournalInput::Barrier(answer));
        if committed.await.is_ok() || ways.common.health.lost_journal().is_some() {
            return;
        }
        // The disk is full.
        tokio::time::sleep(ways.common.settings.journal.full_retry.0).await;
    }
}

impl Actor for Archive {
    type Context = Context<Self>;
}

impl Owner for Archive {
    type Input = ArchiveInput;
    const KIND: &'static str = "archive";
}

impl Handler<Mail<ArchiveInput>> for Archive {
    type Result = ();

    fn handle(&mut self, mail: Mail<ArchiveInput>, ctx: &mut Self::Context) {
        mail.handle(|input| self.receive(input, ctx));
    }
}
