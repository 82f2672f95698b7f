//! The archive looks up jobs that take no input, and rebuilds those that are to go on. It reads the
//! journal on its own thread, so that a slow read delays only those who wait for it. A job is
//! rebuilt behind a barrier: everything appended before the lookup is committed when the job's rows
//! are read.

use super::fatal::FatalReporter;
use super::health::Health;
use super::inputs::{
    ArchiveInput, JournalInput, Lookup, LookupResult, RouterInput, SupervisorInput,
};
use super::mailbox::{Envelope, Mailbox, MailboxActor};
use super::mailboxes::Mailboxes;
use super::manager_core::ManagerCore;
use super::rules::Rules;
use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, WrapFuture};
use base::faults;
use engine::JobId;
use journal::{JobNumber, JournalError, Records, RecoveredJob};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// What the archive uses.
pub(super) struct ArchiveEnv {
    router: Mailbox<RouterInput>,
    supervisor: Mailbox<SupervisorInput>,
    journal: Mailbox<JournalInput>,
    reader: Arc<dyn Records>,
    rules: Arc<dyn Rules>,
    health: Arc<Health>,
    fatal: FatalReporter,
    /// The pause before a barrier is tried again while the disk is full.
    barrier_retry: Duration,
}

impl ArchiveEnv {
    pub(super) fn new(core: &ManagerCore, mailboxes: &Mailboxes) -> ArchiveEnv {
        ArchiveEnv {
            router: mailboxes.router.clone(),
            supervisor: mailboxes.supervisor.clone(),
            journal: mailboxes.journal.clone(),
            reader: core.reader.clone(),
            rules: core.rules.clone(),
            health: core.health.clone(),
            fatal: core.fatal.clone(),
            barrier_retry: core.settings.journal.full_retry.0,
        }
    }

    /// Waits until everything appended before this is committed. If the journal is lost, that never
    /// happens: then the read reports it.
    async fn wait_for_barrier(&self) {
        loop {
            let (answer, committed) = oneshot::channel();
            self.journal.send(JournalInput::ProjectionBarrier(answer));
            if committed.await.is_ok() || self.health.journal_loss().is_some() {
                return;
            }
            // The disk is full.
            tokio::time::sleep(self.barrier_retry).await;
        }
    }
}

/// Reads the journal for the router and the supervisor.
pub struct Archive {
    env: Arc<ArchiveEnv>,
    /// Jobs that are to be rebuilt.
    requests: Vec<RebuildRequest>,
    /// Passivated job trees that are to be rebuilt.
    passivated: TreeNumbers,
    /// Whether a barrier is under way, for jobs that were requested before.
    is_barrier_pending: bool,
}

/// Who asks for a job to be rebuilt.
enum RebuildRequest {
    Router(JobId, Lookup),
    Supervisor(JobNumber),
}

/// Passivated job trees that are to be rebuilt, each with the number of its root job and the
/// numbers of all its jobs.
type TreeNumbers = Vec<(JobNumber, Vec<JobNumber>)>;

/// The most jobs that one read rebuilds: another lookup waits for it.
const JOBS_PER_READ: usize = 200;

impl Archive {
    /// Creates the archive.
    pub(super) fn new(env: ArchiveEnv) -> Archive {
        Archive {
            env: Arc::new(env),
            requests: Vec::new(),
            passivated: Vec::new(),
            is_barrier_pending: false,
        }
    }

    fn handle_input(&mut self, input: ArchiveInput, ctx: &mut Context<Self>) {
        match input {
            // A job's route is removed behind its last commit: no barrier is needed.
            ArchiveInput::LookUp(id, Lookup::Creation) => self.find_creation(id),
            ArchiveInput::LookUp(id, lookup) => {
                self.requests.push(RebuildRequest::Router(id, lookup));
                self.rebuild(ctx);
            }
            ArchiveInput::Rebuild(number) => {
                self.requests.push(RebuildRequest::Supervisor(number));
                self.rebuild(ctx);
            }
            ArchiveInput::Activate(trees) => {
                self.passivated.extend(trees);
                self.rebuild(ctx);
            }
        }
    }

    fn find_creation(&self, id: JobId) {
        faults::hit("archive::read");
        let found = self.env.reader.load_creation(id);
        self.send_to_router(id, found.map(LookupResult::Creation));
    }

    /// Rebuilds the requested jobs behind a barrier. Those requested meanwhile follow behind the
    /// next one.
    fn rebuild(&mut self, ctx: &mut Context<Self>) {
        let is_idle = self.requests.is_empty() && self.passivated.is_empty();
        if is_idle || std::mem::replace(&mut self.is_barrier_pending, true) {
            return;
        }
        let trees = std::mem::take(&mut self.passivated);
        let remaining = self.requests.split_off(self.requests.len().min(JOBS_PER_READ));
        let requests = std::mem::replace(&mut self.requests, remaining);
        let env = self.env.clone();
        let barrier = async move { env.wait_for_barrier().await };
        ctx.spawn(barrier.into_actor(self).map(move |(), archive, ctx| {
            archive.rebuild_jobs(requests);
            archive.rebuild_trees(trees);
            archive.is_barrier_pending = false;
            archive.rebuild(ctx);
        }));
    }

    fn rebuild_jobs(&self, requests: Vec<RebuildRequest>) {
        if requests.is_empty() {
            return;
        }
        faults::hit("archive::read");
        let numbers: Vec<_> = requests.iter().map(|wanted| self.find_number(wanted)).collect();
        let known: Vec<JobNumber> = numbers.iter().flatten().flatten().copied().collect();
        let mut recovered = match self.env.reader.recover_jobs(&known) {
            Ok(recovered) => recovered,
            // A job that cannot be read must not make the others fail.
            Err(_) if known.len() > 1 => HashMap::new(),
            Err(error) => {
                return requests.iter().for_each(|wanted| self.send_result(wanted, Err(&error)));
            }
        };
        for (request, number) in requests.iter().zip(numbers) {
            let number = match number {
                Ok(Some(number)) => number,
                Ok(None) => {
                    self.send_result(request, Ok(None));
                    continue;
                }
                Err(error) => {
                    self.send_result(request, Err(&error));
                    continue;
                }
            };
            if let Some(job) = recovered.remove(&number) {
                self.send_result(request, Ok(Some(Box::new(job))));
                continue;
            }
            match self.env.reader.recover_jobs(&[number]) {
                Ok(mut job) => self.send_result(request, Ok(job.remove(&number).map(Box::new))),
                Err(error) => self.send_result(request, Err(&error)),
            }
        }
    }

    /// Rebuilds passivated jobs, one tree after the other.
    fn rebuild_trees(&self, trees: TreeNumbers) {
        let env = &self.env;
        for (number, jobs) in trees {
            faults::hit("archive::read");
            match env.reader.recover_job_tree(&jobs) {
                Ok(found) => {
                    let found =
                        found.into_iter().map(|job| env.rules.adjust_recovered(job)).collect();
                    let activated = RouterInput::Activated(number, found);
                    self.env.router.send(activated);
                }
                // The manager is stopping, or its journal is lost.
                Err(JournalError::Closed { .. }) => return,
                Err(error) => {
                    return env.fatal.report(format!(
                        "a job at rest cannot be rebuilt from the journal: {error}"
                    ));
                }
            }
        }
    }

    fn find_number(&self, request: &RebuildRequest) -> Result<Option<JobNumber>, JournalError> {
        match request {
            RebuildRequest::Supervisor(number) => Ok(Some(*number)),
            RebuildRequest::Router(id, Lookup::ChildOf(parent)) => {
                self.env.reader.find_child_number(*parent, *id)
            }
            RebuildRequest::Router(id, Lookup::Job | Lookup::Creation) => {
                self.env.reader.find_job_number(*id)
            }
        }
    }

    fn send_result(
        &self,
        request: &RebuildRequest,
        job: Result<Option<Box<RecoveredJob>>, &JournalError>,
    ) {
        let rules = &self.env.rules;
        let job = job.map(|found| found.map(|found| Box::new(rules.adjust_recovered(*found))));
        match request {
            RebuildRequest::Router(id, Lookup::ChildOf(_)) => {
                self.send_to_router(*id, job.map(LookupResult::Child))
            }
            RebuildRequest::Router(id, Lookup::Job | Lookup::Creation) => {
                self.send_to_router(*id, job.map(LookupResult::Job))
            }
            RebuildRequest::Supervisor(number) => match job {
                Ok(job) => self.env.supervisor.send(SupervisorInput::Rebuilt(*number, job)),
                // The manager is stopping, or its journal is lost.
                Err(JournalError::Closed { .. }) => {}
                Err(error) => self.env.fatal.report(format!(
                    "a job whose actor panicked cannot be rebuilt from the journal: {error}"
                )),
            },
        }
    }

    fn send_to_router(&self, id: JobId, found: Result<LookupResult, impl ToString>) {
        let found = found.map_err(|error| error.to_string());
        self.env.router.send(RouterInput::LookupFinished(id, found));
    }
}

impl Actor for Archive {
    type Context = Context<Self>;
}

impl MailboxActor for Archive {
    type Input = ArchiveInput;
    const KIND: &'static str = "archive";
}

impl Handler<Envelope<ArchiveInput>> for Archive {
    type Result = ();

    fn handle(&mut self, envelope: Envelope<ArchiveInput>, ctx: &mut Self::Context) {
        envelope.handle(|input| self.handle_input(input, ctx));
    }
}
