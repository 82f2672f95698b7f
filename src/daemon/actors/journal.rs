//! The journal actor: serialises writes to SQLite on a thread of its own. Whatever waits when the
//! disk is free goes into one transaction; the effects leave only after its commit.

mod batch_size;
mod commit_schedule;
mod delete;
mod deletions;
mod doubt;
mod file_sizes;
mod partial_commit;
mod wal_size;

use super::client_response::{ClientResponse, RequestError};
use super::completion_latch::CompletionLatch;
use super::health::{Health, JournalWait};
use super::inputs::{Append, JournalInput, Outgoing, RouterInput, StopRequest};
use super::mailbox::{Envelope, Mailbox, MailboxActor};
use super::mailboxes::Mailboxes;
use super::manager_core::ManagerCore;
use super::outbox::{Outbox, PublicationBatch};
use super::pending_offsets::PendingOffsets;
use super::routes::Routes;
use crate::settings::JournalSettings;
use crate::telemetry::{Metrics, log};
use actix::{Actor, AsyncContext, Context, Handler};
use base::clock;
use base::faults;
use commit_schedule::{CommitSchedule, CommitTimer};
use deletions::Deletions;
use journal::{FileLoss, JobNumber, Journal, JournalError, Records, Remedy};
use partial_commit::{CommitOutcome, WaitingRecord};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use wal_size::WalSizeReporter;

/// What the journal actor uses.
pub(super) struct JournalEnv {
    router: Mailbox<RouterInput>,
    outbox: Arc<Outbox>,
    routes: Routes,
    /// Closed when the journal is lost.
    reader: Arc<dyn Records>,
    health: Arc<Health>,
    settings: JournalSettings,
    metrics: Metrics,
}

impl JournalEnv {
    pub(super) fn new(
        core: &ManagerCore,
        mailboxes: &Mailboxes,
        outbox: &Arc<Outbox>,
    ) -> JournalEnv {
        JournalEnv {
            router: mailboxes.router.clone(),
            outbox: outbox.clone(),
            routes: core.routes.clone(),
            reader: core.reader.clone(),
            health: core.health.clone(),
            settings: core.settings.journal.clone(),
            metrics: core.metrics.clone(),
        }
    }
}

/// Owns the journal's writing end.
pub struct JournalActor {
    store: Box<dyn Journal>,
    env: JournalEnv,
    waiting_records: Vec<WaitingRecord>,
    commit_schedule: CommitSchedule,
    /// Whether the projection of committed entries is scheduled.
    is_projection_scheduled: bool,
    /// Whether records for confirms are scheduled.
    is_confirm_write_scheduled: bool,
    /// The offsets that buses have reached.
    pending_offsets: PendingOffsets,
    deletions: Deletions,
    wal_reporter: WalSizeReporter,
}

/// How often the journal's files are checked while nothing is committed.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How often confirms get a record of their own, if no other record of their job has come since.
const CONFIRM_WRITE_INTERVAL: Duration = Duration::from_secs(1);

/// How often offsets of buses are stored. After a crash, a bus reads again what it took in since.
const OFFSET_STORE_INTERVAL: Duration = Duration::from_secs(1);

/// The exit code after an I/O error, for the supervisor of the process (EX_IOERR of sysexits).
const EXIT_IO_ERROR: i32 = 74;

impl JournalActor {
    /// Creates the actor around an opened journal.
    pub(super) fn new(store: Box<dyn Journal>, env: JournalEnv) -> JournalActor {
        // A journal that cannot be read now shows it with the first commit.
        let newest = store.newest().ok().flatten();
        JournalActor {
            store,
            env,
            waiting_records: Vec::new(),
            commit_schedule: CommitSchedule::new(),
            is_projection_scheduled: false,
            is_confirm_write_scheduled: false,
            pending_offsets: PendingOffsets::default(),
            deletions: Deletions::new(newest),
            wal_reporter: WalSizeReporter::default(),
        }
    }

    fn handle_input(&mut self, input: JournalInput, ctx: &mut Context<Self>) {
        match input {
            JournalInput::Append(mut append) => {
                if self.commit_schedule.is_lost() {
                    refuse_clients(&mut append, &self.env);
                }
                let is_urgent = append.is_urgent;
                self.waiting_records.push(WaitingRecord { append, since: clock::instant() });
                self.schedule(is_urgent, ctx);
            }
            JournalInput::StartRetention => {
                ctx.run_interval(self.env.settings.retention_interval.0, |actor, ctx| {
                    actor.start_retention(ctx)
                });
                self.start_retention(ctx);
            }
            JournalInput::Delete(number, answer) => self.handle_erase(number, answer, ctx),
            JournalInput::DeleteNotices(_) if self.commit_schedule.is_lost() => {}
            JournalInput::DeleteNotices(notices) => match self.store.delete_notices(&notices) {
                Ok(()) => {}
                Err(error) if error.remedy().is_retryable() => {
                    ctx.run_later(self.env.settings.full_retry.0, move |actor, ctx| {
                        actor.handle_input(JournalInput::DeleteNotices(notices), ctx)
                    });
                }
                Err(error) => self.handle_fatal(&error),
            },
            JournalInput::StoreOffset(position) => {
                if self.pending_offsets.is_empty() {
                    ctx.run_later(OFFSET_STORE_INTERVAL, Self::store_offsets);
                }
                self.pending_offsets.set(position);
            }
            JournalInput::CreateStatusTables(definitions) => {
                if !self.commit(ctx) {
                    // There is no room: the first job of each workflow creates its table.
                    return;
                }
                if let Err(error) = self.store.create_status_tables(
                    &definitions.iter().map(|definition| &**definition).collect::<Vec<_>>(),
                ) {
                    match error.remedy() {
                        Remedy::WaitForSpace | Remedy::WaitForLock => {
                            tracing::warn!(%error, "the tables of statuses have to wait")
                        }
                        Remedy::Exit => self.handle_fatal(&error),
                    }
                }
            }
            // The receiver may have gone.
            JournalInput::LivenessProbe(answer) => drop(answer.send(())),
            JournalInput::CommitBarrier(answer) => {
                let done = CompletionLatch::new(answer);
                if let Some(last) = self.waiting_records.last_mut() {
                    last.append.outgoing.push(Outgoing::ReleaseLatch(done));
                    self.schedule(true, ctx);
                }
            }
            JournalInput::ProjectionBarrier(answer) => {
                if self.commit(ctx) && self.project() {
                    self.store_offsets(ctx);
                    // The receiver may have given up at its deadline.
                    let _ = answer.send(());
                }
            }
        }
    }

    fn schedule(&mut self, is_urgent: bool, ctx: &mut Context<Self>) {
        let Some(timer) = self.commit_schedule.request(is_urgent) else { return };
        let pause = match timer {
            CommitTimer::Mailbox => return ctx.notify(CommitIsDue),
            CommitTimer::Linger => self.env.settings.linger.0,
            CommitTimer::ConfirmLag => self.env.settings.confirm_lag.0,
        };
        ctx.run_later(pause, move |actor, ctx| actor.commit_if_due(timer, ctx));
    }

    fn commit_if_due(&mut self, timer: CommitTimer, ctx: &mut Context<Self>) {
        if self.commit_schedule.is_due(timer) {
            self.commit(ctx);
        }
    }

    /// Commits what waits, then sends its effects; returns false while the journal has to wait, and
    /// when it is lost.
    fn commit(&mut self, ctx: &mut Context<Self>) -> bool {
        if !self.check_files() {
            return false;
        }
        self.commit_schedule.begin_commit();
        if self.waiting_records.is_empty() {
            return true;
        }
        let started = clock::instant();
        let CommitOutcome { count, deleted, disk_full } =
            match partial_commit::append_what_fits(&mut *self.store, &mut self.waiting_records) {
                Ok(appended) => appended,
                Err(error) => {
                    match error.remedy() {
                        Remedy::WaitForSpace => {
                            self.wait_and_retry(JournalWait::DiskSpace, &error, ctx)
                        }
                        Remedy::WaitForLock => self.wait_and_retry(JournalWait::Lock, &error, ctx),
                        Remedy::Exit => self.handle_fatal(&error),
                    }
                    return false;
                }
            };
        // What went into a file that is gone was not committed.
        if !self.check_files() {
            return false;
        }
        self.schedule_follow_up(ctx);
        faults::observe("journal::committed", || -> Vec<JobNumber> {
            let records = self.waiting_records[..count].iter();
            records.filter_map(|waiting| Some(waiting.append.record.as_ref()?.job)).collect()
        });
        faults::hit("journal::committed");
        let metrics = &self.env.metrics;
        metrics.commit.observe(started.elapsed().as_secs_f64());
        metrics.batch_records.observe(count as f64);
        if disk_full.is_none() {
            self.report_writable();
        }
        let mut waiting: Vec<_> = self.waiting_records.drain(..count).collect();
        self.commit_schedule.end_commit(waiting.len());
        self.request_stops(&mut waiting, &deleted);
        let mut messages = PublicationBatch::default();
        for WaitingRecord { append, since } in waiting {
            metrics.journal_queue.observe(since.elapsed().as_secs_f64());
            let Append { id, job: number, outgoing: after_commit, .. } = append;
            let after_commit = if deleted.contains(&number) {
                let route = self.env.routes.find(id);
                let is_replaced = route.is_some_and(|job| job.number() != number);
                after_commit
                    .into_iter()
                    .filter_map(|effect| effect.after_deletion(is_replaced))
                    .collect()
            } else {
                after_commit
            };
            for outgoing in after_commit {
                // If this panics, the process ends at once. Otherwise what waits behind it would be
                // dropped, and clients would take that for a response.
                exit_on_panic(|| {
                    if let Outgoing::Publish(message) = outgoing {
                        return messages.add(message);
                    }
                    // A latch of this commit also waits for its messages, and a withdrawal of a
                    // message comes after the message.
                    if let Outgoing::ReleaseLatch(_) | Outgoing::Withdraw(..) = outgoing {
                        std::mem::take(&mut messages).send(&self.env.outbox);
                    }
                    outgoing.send(&self.env.outbox);
                });
            }
        }
        exit_on_panic(|| messages.send(&self.env.outbox));
        if let Some(error) = &disk_full {
            self.wait_and_retry(JournalWait::DiskSpace, error, ctx);
        }
        disk_full.is_none()
    }

    /// Asks the router to stop jobs that have nothing left to do, before anybody is notified of
    /// what was committed. A deleted job is stopped even if it has something left to do.
    fn request_stops(&self, committed: &mut [WaitingRecord], deleted: &BTreeSet<JobNumber>) {
        let to_stop = |WaitingRecord { append, .. }: &WaitingRecord| {
            let (id, number) = (append.id, append.job);
            if deleted.contains(&number) {
                return Some(StopRequest { id, number, inputs_handled: None });
            }
            append.stop_after.map(|inputs_handled| StopRequest {
                id,
                number,
                inputs_handled: Some(inputs_handled),
            })
        };
        let stops: Vec<StopRequest> = committed.iter().filter_map(to_stop).collect();
        for WaitingRecord { append, .. } in committed.iter_mut() {
            let is_deleted = deleted.contains(&append.job);
            if let Some(request) = append.passivate.take().filter(|_| !is_deleted) {
                self.env.router.send(RouterInput::Passivate(request));
            }
        }
        if !stops.is_empty() {
            self.env.router.send(RouterInput::StopJobs(stops));
        }
    }

    /// Schedules what follows commits: the projection, and records for confirms.
    fn schedule_follow_up(&mut self, ctx: &mut Context<Self>) {
        if self.store.has_unprojected()
            && !std::mem::replace(&mut self.is_projection_scheduled, true)
        {
            ctx.run_later(self.env.settings.lag.0, |actor, ctx| {
                actor.is_projection_scheduled = false;
                let projected = actor.store.project();
                actor.handle_follow_up(projected, ctx);
            });
        }
        if self.store.has_pending_confirms()
            && !std::mem::replace(&mut self.is_confirm_write_scheduled, true)
        {
            ctx.run_later(CONFIRM_WRITE_INTERVAL, |actor, ctx| {
                actor.is_confirm_write_scheduled = false;
                if actor.check_files() {
                    let written = actor.store.write_confirms();
                    actor.handle_follow_up(written.map(|_| ()), ctx);
                }
            });
        }
    }

    /// Stores the offsets that buses have reached. Everything that they count as done is committed
    /// already.
    fn store_offsets(&mut self, ctx: &mut Context<Self>) {
        if self.pending_offsets.is_empty() || !self.check_files() {
            return;
        }
        match self.store.store_offsets(&self.pending_offsets.to_vec()) {
            Ok(()) => self.pending_offsets.clear(),
            Err(error) => match error.remedy() {
                // Until then, more is read again after a crash.
                Remedy::WaitForSpace | Remedy::WaitForLock => {
                    ctx.run_later(self.env.settings.full_retry.0, Self::store_offsets);
                }
                Remedy::Exit => self.handle_fatal(&error),
            },
        }
    }

    /// Projects what is committed; returns false while that has to wait.
    fn project(&mut self) -> bool {
        match self.store.project() {
            Ok(()) => true,
            Err(error) => {
                if error.remedy() == Remedy::Exit {
                    self.handle_fatal(&error);
                }
                false
            }
        }
    }

    fn handle_follow_up(&mut self, result: Result<(), JournalError>, ctx: &mut Context<Self>) {
        match result {
            Ok(()) => {
                if !self.commit_schedule.is_blocked() {
                    self.report_writable();
                }
                self.schedule_follow_up(ctx);
            }
            Err(error) => match error.remedy() {
                // All is committed: lists and statuses stay behind until then.
                wait @ (Remedy::WaitForSpace | Remedy::WaitForLock) => {
                    if wait == Remedy::WaitForSpace {
                        self.report_waiting(JournalWait::DiskSpace, &error);
                    }
                    ctx.run_later(self.env.settings.full_retry.0, Self::schedule_follow_up);
                }
                Remedy::Exit => self.handle_fatal(&error),
            },
        }
    }

    fn wait_and_retry(&mut self, wait: JournalWait, error: &JournalError, ctx: &mut Context<Self>) {
        self.report_waiting(wait, error);
        if self.commit_schedule.block() {
            ctx.run_later(self.env.settings.full_retry.0, |actor, ctx| {
                actor.commit_schedule.begin_retry();
                actor.commit(ctx);
            });
        }
    }

    fn report_waiting(&self, wait: JournalWait, error: &JournalError) {
        let kind = match wait {
            JournalWait::DiskSpace => "full",
            JournalWait::Lock => "locked",
        };
        self.env.metrics.journal_failures.with_label_values(&[kind]).inc();
        if self.env.health.set_waiting(wait) {
            let what = wait.as_str();
            tracing::error!(%error, waiting = self.waiting_records.len(), "{what}");
        }
    }

    fn report_writable(&self) {
        let waited_for = self.env.health.journal_wait();
        if self.env.health.set_writable(true) {
            match waited_for {
                Some(JournalWait::Lock) => {
                    tracing::info!("the other program has let go of the journal: it goes on")
                }
                Some(JournalWait::DiskSpace) | None => {
                    tracing::info!("there is room on the disk again: the journal goes on")
                }
            }
            self.env.health.notify_change();
        }
    }

    /// Ends the process. It returns only if the reason is that the journal is lost.
    fn handle_fatal(&mut self, error: &JournalError) {
        if !self.check_files() {
            return;
        }
        // Not an orderly stop: nothing may be written or acknowledged after this. The next start
        // recovers.
        tracing::error!(%error, "the journal cannot be trusted any more: the process ends");
        exit_now();
    }

    /// Returns whether the journal's files are still there. Once they are not, nothing is
    /// committed, acknowledged or sent until the next start. Decisions are held, as while the disk
    /// is full. Clients that wait for a response get an error.
    fn check_files(&mut self) -> bool {
        if self.commit_schedule.is_lost() {
            return false;
        }
        match self.store.check_files() {
            Ok(()) => true,
            Err(loss) => {
                self.handle_loss(&loss);
                false
            }
        }
    }

    fn handle_loss(&mut self, loss: &FileLoss) {
        self.commit_schedule.lose();
        let env = &self.env;
        env.metrics.journal_failures.with_label_values(&["lost"]).inc();
        let what = env.health.set_journal_lost(loss);
        tracing::error!(waiting = self.waiting_records.len(), "{what}");
        // What is read now may be the file of another program.
        env.reader.close(what, Duration::ZERO);
        self.waiting_records
            .iter_mut()
            .for_each(|waiting| refuse_clients(&mut waiting.append, &self.env));
        for client in self.deletions.take_waiting_clients() {
            let refused = ClientResponse::Erase(client, Err(journal_lost_error(&self.env)));
            Outgoing::Respond(refused).send(&self.env.outbox);
        }
    }
}

/// Sends an error to clients that wait for a commit that will not come. Everything else is held.
fn refuse_clients(append: &mut Append, env: &JournalEnv) {
    for outgoing in
        append.outgoing.extract_if(.., |outgoing| matches!(outgoing, Outgoing::Respond(..)))
    {
        if let Outgoing::Respond(answer) = outgoing {
            Outgoing::Respond(answer.with_error(journal_lost_error(env))).send(&env.outbox);
        }
    }
}

/// Returns the error for clients once the journal is lost, or the process has to end for it.
fn journal_lost_error(env: &JournalEnv) -> RequestError {
    let loss = env.health.journal_loss();
    RequestError::Overloaded(loss.unwrap_or("the journal cannot be written").to_owned())
}

struct CommitIsDue;
impl actix::Message for CommitIsDue {
    type Result = ();
}

impl Actor for JournalActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(FILE_CHECK_INTERVAL, |actor, _| {
            if actor.check_files() {
                actor.report_file_sizes();
                actor.store.fill_reserve();
            }
        });
    }
}

impl MailboxActor for JournalActor {
    type Input = JournalInput;
    const KIND: &'static str = "journal";
}

impl Handler<Envelope<JournalInput>> for JournalActor {
    type Result = ();

    fn handle(&mut self, envelope: Envelope<JournalInput>, ctx: &mut Self::Context) {
        envelope.handle(|input| self.handle_input(input, ctx));
    }
}

impl Handler<CommitIsDue> for JournalActor {
    type Result = ();

    fn handle(&mut self, _: CommitIsDue, ctx: &mut Self::Context) {
        self.commit_if_due(CommitTimer::Mailbox, ctx);
    }
}

/// Calls `act`. If it panics, the process ends.
fn exit_on_panic(act: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(act)).is_err() {
        exit_now();
    }
}

/// Ends the process. What was logged is written as far as possible.
fn exit_now() -> ! {
    log::flush();
    std::process::exit(EXIT_IO_ERROR)
}

impl Drop for JournalActor {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A panic here left the store in an unknown state; nothing may be acknowledged after
            // it.
            exit_now();
        }
    }
}
