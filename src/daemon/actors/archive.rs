//! The archive: it looks up jobs that take no input, and rebuilds jobs from the journal. It reads
//! the journal on a thread of its own, so that a slow read delays only other requests to the
//! archive. Before it rebuilds jobs, it waits for a barrier: the commit of all records that were
//! appended before.

use super::fatal::FatalReporter;
use super::health::Health;
use super::inputs::{
    ArchiveInput, JournalInput, Lookup, LookupResult, RouterInput, SupervisorInput, TreeNumbers,
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

/// The environment of the archive.
pub(super) struct ArchiveEnv {
    router: Mailbox<RouterInput>,
    supervisor: Mailbox<SupervisorInput>,
    journal: Mailbox<JournalInput>,
    reader: Arc<dyn Records>,
    rules: Arc<dyn Rules>,
    health: Arc<Health>,
    fatal: FatalReporter,
    /// The delay before a barrier is retried while the journal has to wait.
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

    /// Waits until all records that were appended before are committed. If the journal is lost,
    /// returns anyway, because the read will fail.
    async fn wait_for_barrier(&self) {
        loop {
            let (sender, receiver) = oneshot::channel();
            self.journal.send(JournalInput::ProjectionBarrier(sender));
            if receiver.await.is_ok() || self.health.journal_loss().is_some() {
                return;
            }
            // The journal has to wait for disk space or a lock.
            tokio::time::sleep(self.barrier_retry).await;
        }
    }
}

/// The actor that reads the journal for the router and the supervisor.
pub struct Archive {
    env: Arc<ArchiveEnv>,
    /// The requests to rebuild a job that wait for the next barrier.
    requests: Vec<RebuildRequest>,
    /// The passivated job trees that wait for the next barrier.
    trees: Vec<TreeNumbers>,
    /// Whether a barrier is pending.
    is_barrier_pending: bool,
}

/// A request to rebuild a job.
enum RebuildRequest {
    /// From the router, which looks up an id.
    Router(JobId, Lookup),
    /// From the supervisor, after a panic.
    Supervisor(JobNumber),
}

/// The most jobs that one read rebuilds, because other requests wait for the read. A passivated
/// tree is always read as a whole.
const JOBS_PER_READ: usize = 200;

impl Archive {
    pub(super) fn new(env: ArchiveEnv) -> Archive {
        Archive {
            env: Arc::new(env),
            requests: Vec::new(),
            trees: Vec::new(),
            is_barrier_pending: false,
        }
    }

    fn handle_input(&mut self, input: ArchiveInput, ctx: &mut Context<Self>) {
        match input {
            // No barrier is needed: a job's creation is committed before its route is removed.
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
                self.trees.extend(trees);
                self.rebuild(ctx);
            }
        }
    }

    fn find_creation(&self, id: JobId) {
        faults::hit("archive::read");
        let creation = self.env.reader.load_creation(id);
        self.send_to_router(id, creation.map(LookupResult::Creation));
    }

    /// Rebuilds the requested jobs after a barrier. Jobs that are requested while it is pending
    /// wait for the next barrier.
    fn rebuild(&mut self, ctx: &mut Context<Self>) {
        let is_idle = self.requests.is_empty() && self.trees.is_empty();
        if is_idle || std::mem::replace(&mut self.is_barrier_pending, true) {
            return;
        }
        let trees = std::mem::take(&mut self.trees);
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

    /// Rebuilds jobs in one read, or one by one if that read fails, and sends the results.
    fn rebuild_jobs(&self, requests: Vec<RebuildRequest>) {
        if requests.is_empty() {
            return;
        }
        faults::hit("archive::read");
        let number_results: Vec<Result<Option<JobNumber>, JournalError>> =
            requests.iter().map(|request| self.find_number(request)).collect();
        let numbers: Vec<JobNumber> = number_results.iter().flatten().flatten().copied().collect();
        let mut recovered = match self.env.reader.recover_jobs(&numbers) {
            Ok(recovered) => recovered,
            // Below, the jobs are read one by one, so that only the unreadable ones fail.
            Err(_) if numbers.len() > 1 => HashMap::new(),
            Err(error) => {
                return requests.iter().for_each(|request| self.send_result(request, Err(&error)));
            }
        };
        for (request, number_result) in requests.iter().zip(number_results) {
            let number = match number_result {
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
            // The read above failed, it has not found the job, or an earlier request has taken it.
            match self.env.reader.recover_jobs(&[number]) {
                Ok(mut jobs) => self.send_result(request, Ok(jobs.remove(&number).map(Box::new))),
                Err(error) => self.send_result(request, Err(&error)),
            }
        }
    }

    /// Rebuilds passivated job trees, one after another.
    fn rebuild_trees(&self, trees: Vec<TreeNumbers>) {
        let env = &self.env;
        for TreeNumbers { root, members } in trees {
            faults::hit("archive::read");
            match env.reader.recover_job_tree(&members) {
                Ok(recovered) => {
                    let jobs =
                        recovered.into_iter().map(|job| env.rules.adjust_recovered(job)).collect();
                    env.router.send(RouterInput::Activated(root, jobs));
                }
                // The manager is stopping, or its journal is lost.
                Err(JournalError::Closed { .. }) => return,
                Err(error) => {
                    return env.fatal.report(format!(
                        "a passivated job cannot be rebuilt from the journal: {error}"
                    ));
                }
            }
        }
    }

    /// Finds the number of the requested job; `None`: the journal has no such job.
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

    /// Sends the result of a request to the actor that made it.
    fn send_result(
        &self,
        request: &RebuildRequest,
        result: Result<Option<Box<RecoveredJob>>, &JournalError>,
    ) {
        let rules = &self.env.rules;
        let adjust = |job: Box<RecoveredJob>| Box::new(rules.adjust_recovered(*job));
        let result = result.map(|job| job.map(adjust));
        match request {
            RebuildRequest::Router(id, Lookup::ChildOf(_)) => {
                self.send_to_router(*id, result.map(LookupResult::Child))
            }
            RebuildRequest::Router(id, Lookup::Job | Lookup::Creation) => {
                self.send_to_router(*id, result.map(LookupResult::Job))
            }
            RebuildRequest::Supervisor(number) => match result {
                Ok(job) => self.env.supervisor.send(SupervisorInput::Rebuilt(*number, job)),
                // The manager is stopping, or its journal is lost.
                Err(JournalError::Closed { .. }) => {}
                Err(error) => self.env.fatal.report(format!(
                    "a job whose actor panicked cannot be rebuilt from the journal: {error}"
                )),
            },
        }
    }

    fn send_to_router(&self, id: JobId, result: Result<LookupResult, impl ToString>) {
        let result = result.map_err(|error| error.to_string());
        self.env.router.send(RouterInput::LookupFinished(id, result));
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
