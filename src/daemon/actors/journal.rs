//! The journal actor: the only writer of the journal, on a thread of its own. It uses group commit:
//! one transaction commits the waiting records of many jobs. Their effects are sent only after the
//! commit.

mod batch_size;
mod clock_doubt;
mod commit_schedule;
mod controls;
mod delete;
mod deletions;
mod effects;
mod file_sizes;
mod ledgers;
mod partial_commit;
mod refill;
mod trends;
mod wal_size;

use super::client_response::{ClientResponse, RequestError};
use super::health::{Health, JournalWait};
use super::inputs::{Append, CommitBarrier, JournalInput, Outgoing, RouterInput};
use super::mailbox::{Envelope, Mailbox, MailboxActor};
use super::mailboxes::Mailboxes;
use super::manager_core::ManagerCore;
use super::outbox::Outbox;
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
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use wal_size::WalSizeReporter;

/// The environment of the journal actor.
pub(super) struct JournalEnv {
    router: Mailbox<RouterInput>,
    outbox: Arc<Outbox>,
    routes: Routes,
    /// The readers of the journal, which are closed when it is lost.
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

/// The actor that writes the journal.
pub struct JournalActor {
    store: Box<dyn Journal>,
    env: JournalEnv,
    /// The records of the next commit, in the order of their arrival.
    waiting_records: Vec<WaitingRecord>,
    /// What is released once all waiting records are committed.
    waiting_barriers: Vec<CommitBarrier>,
    commit_schedule: CommitSchedule,
    /// Whether the projection of committed entries is scheduled.
    is_projection_scheduled: bool,
    /// Whether the write of confirms as records of their own is scheduled.
    is_confirm_write_scheduled: bool,
    pending_offsets: PendingOffsets,
    deletions: Deletions,
    wal_reporter: WalSizeReporter,
}

/// How often the journal's files are checked for loss, in addition to the checks at each commit.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The delay before confirms are written as records of their own. A confirm needs none if another
/// record of its job is written during this time.
const CONFIRM_WRITE_DELAY: Duration = Duration::from_secs(1);

/// The delay before the offset that a bus has reached is stored, so that one write stores many
/// advances. After a crash, the bus reads the messages since the stored offset again.
const OFFSET_STORE_DELAY: Duration = Duration::from_secs(1);

/// The exit code of the process after a fatal error of the journal (`EX_IOERR` of sysexits).
const EXIT_IO_ERROR: u8 = 74;

/// The exit code of a process whose name another one has taken (`EX_TEMPFAIL` of sysexits): it is
/// started again, and stands by.
pub const EXIT_TAKEN_OVER: u8 = 75;

impl JournalActor {
    pub(super) fn new(store: Box<dyn Journal>, env: JournalEnv) -> JournalActor {
        // After a read error, only the check of the wall clock is left out.
        let newest_record = store.newest_record_time().ok().flatten();
        JournalActor {
            store,
            env,
            waiting_records: Vec::new(),
            waiting_barriers: Vec::new(),
            commit_schedule: CommitSchedule::new(),
            is_projection_scheduled: false,
            is_confirm_write_scheduled: false,
            pending_offsets: PendingOffsets::default(),
            deletions: Deletions::new(newest_record),
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
                self.schedule_commit(is_urgent, ctx);
            }
            JournalInput::StartRetention => {
                ctx.run_interval(self.env.settings.retention_interval.0, |actor, ctx| {
                    actor.start_retention(ctx)
                });
                self.start_retention(ctx);
            }
            JournalInput::Erase(number, response) => self.handle_erase(number, response, ctx),
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
            JournalInput::StoreOffset(offset) => {
                if self.pending_offsets.is_empty() {
                    ctx.run_later(OFFSET_STORE_DELAY, Self::store_offsets);
                }
                self.pending_offsets.set(offset);
            }
            JournalInput::ChangeControl(change) => self.change_control(*change),
            JournalInput::StoreLedgers(..) if self.commit_schedule.is_lost() => {}
            JournalInput::StoreLedgers(ledgers, response) => {
                self.store_ledgers(ledgers, response, ctx)
            }
            JournalInput::RefillCells(write) => self.refill_cells(*write),
            JournalInput::StoreTrends(write) => self.store_trends(*write),
            JournalInput::CreateStatusTables(definitions) => {
                if !self.commit(ctx) {
                    // The journal has to wait: the first job of each workflow creates its table.
                    return;
                }
                if let Err(error) = self.store.create_status_tables(
                    &definitions.iter().map(|definition| &**definition).collect::<Vec<_>>(),
                ) {
                    if error.remedy().is_retryable() {
                        tracing::warn!(%error, "the tables of statuses have to wait")
                    } else {
                        self.handle_fatal(&error)
                    }
                }
            }
            // An error means that the receiver was dropped.
            JournalInput::LivenessProbe(answer) => drop(answer.send(())),
            JournalInput::CommitBarrier(barrier) => {
                self.waiting_barriers.push(barrier);
                self.schedule_commit(true, ctx);
            }
            JournalInput::ProjectionBarrier(answer) => {
                if self.commit(ctx) && self.project() {
                    self.store_offsets(ctx);
                    // An error means that the receiver has timed out.
                    let _ = answer.send(());
                }
            }
        }
    }

    /// Starts the timer of the next commit, unless one is active or the journal has to wait.
    fn schedule_commit(&mut self, is_urgent: bool, ctx: &mut Context<Self>) {
        let Some(timer) = self.commit_schedule.request(is_urgent) else { return };
        let delay = match timer {
            CommitTimer::Mailbox => return ctx.notify(CommitIsDue),
            CommitTimer::Linger => self.env.settings.linger.0,
            CommitTimer::ConfirmLag => self.env.settings.confirm_lag.0,
        };
        ctx.run_later(delay, move |actor, ctx| actor.commit_if_due(timer, ctx));
    }

    fn commit_if_due(&mut self, timer: CommitTimer, ctx: &mut Context<Self>) {
        if self.commit_schedule.is_due(timer) {
            self.commit(ctx);
        }
    }

    /// Commits the waiting records, then sends their effects. Returns false if some are not
    /// committed, because the journal has to wait or is lost.
    fn commit(&mut self, ctx: &mut Context<Self>) -> bool {
        if self.detect_loss() {
            return false;
        }
        self.commit_schedule.begin_commit();
        if self.waiting_records.is_empty() && self.waiting_barriers.is_empty() {
            return true;
        }
        let started = clock::instant();
        let CommitOutcome { count, deleted, disk_full_error } =
            match partial_commit::append_what_fits(&mut *self.store, &mut self.waiting_records) {
                Ok(outcome) => outcome,
                Err(error) => {
                    match JournalWait::for_remedy(error.remedy()) {
                        Some(wait) => self.wait_and_retry(wait, &error, ctx),
                        None => self.handle_fatal(&error),
                    }
                    return false;
                }
            };
        // A write to a deleted file succeeds, but is not a commit.
        if self.detect_loss() {
            return false;
        }
        self.schedule_follow_up(ctx);
        faults::observe("journal::committed", || -> Vec<JobNumber> {
            let committed = self.waiting_records[..count].iter();
            committed.filter_map(|waiting| Some(waiting.append.record.as_ref()?.job)).collect()
        });
        faults::hit("journal::committed");
        let metrics = &self.env.metrics;
        if count > 0 {
            metrics.commit.observe(started.elapsed().as_secs_f64());
            metrics.batch_records.observe(count as f64);
        }
        if disk_full_error.is_none() {
            self.report_writable();
        }
        let mut committed: Vec<_> = self.waiting_records.drain(..count).collect();
        self.commit_schedule.end_commit(committed.len());
        self.forward_router_requests(&mut committed, &deleted);
        self.tell_gate(&mut committed, &deleted);
        self.send_effects(committed, &deleted);
        match &disk_full_error {
            Some(error) => self.wait_and_retry(JournalWait::DiskSpace, error, ctx),
            None => self.waiting_barriers.drain(..).for_each(CommitBarrier::release),
        }
        disk_full_error.is_none()
    }

    /// Schedules the writes that follow a commit: the projection, and the confirms that no record
    /// has.
    fn schedule_follow_up(&mut self, ctx: &mut Context<Self>) {
        if self.store.has_unprojected()
            && !std::mem::replace(&mut self.is_projection_scheduled, true)
        {
            ctx.run_later(self.env.settings.lag.0, |actor, ctx| {
                actor.is_projection_scheduled = false;
                let result = actor.store.project();
                actor.handle_follow_up(result, ctx);
            });
        }
        if self.store.has_pending_confirms()
            && !std::mem::replace(&mut self.is_confirm_write_scheduled, true)
        {
            ctx.run_later(CONFIRM_WRITE_DELAY, |actor, ctx| {
                actor.is_confirm_write_scheduled = false;
                if !actor.detect_loss() {
                    let result = actor.store.write_confirms();
                    actor.handle_follow_up(result.map(|_| ()), ctx);
                }
            });
        }
    }

    /// Stores the offsets that buses have reached. Everything that follows from the messages before
    /// an offset is committed already.
    fn store_offsets(&mut self, ctx: &mut Context<Self>) {
        if self.pending_offsets.is_empty() || self.detect_loss() {
            return;
        }
        match self.store.store_offsets(&self.pending_offsets.to_vec()) {
            Ok(()) => self.pending_offsets.clear(),
            // A later retry stores them. Until then, a crash has more messages read again.
            Err(error) if error.remedy().is_retryable() => {
                ctx.run_later(self.env.settings.full_retry.0, Self::store_offsets);
            }
            Err(error) => self.handle_fatal(&error),
        }
    }

    /// Projects the committed entries. Returns false if that failed.
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

    /// Handles the result of a write that follows a commit, and schedules the next such write.
    fn handle_follow_up(&mut self, result: Result<(), JournalError>, ctx: &mut Context<Self>) {
        match result {
            Ok(()) => {
                if !self.commit_schedule.is_blocked() {
                    self.report_writable();
                }
                self.schedule_follow_up(ctx);
            }
            // The entries are committed. Only lists and statuses are out of date until the retry.
            Err(error) if error.remedy().is_retryable() => {
                if error.remedy() == Remedy::WaitForSpace {
                    self.report_waiting(JournalWait::DiskSpace, &error);
                }
                ctx.run_later(self.env.settings.full_retry.0, Self::retry_follow_up);
            }
            Err(error) => self.handle_fatal(&error),
        }
    }

    /// Schedules the writes that follow a commit once more. If a reader has projected meanwhile,
    /// and nothing else is left, no later write would report that there is room.
    fn retry_follow_up(&mut self, ctx: &mut Context<Self>) {
        let is_done = !self.store.has_unprojected() && !self.store.has_pending_confirms();
        if is_done && !self.commit_schedule.is_blocked() {
            self.report_writable();
        }
        self.schedule_follow_up(ctx);
    }

    /// Reports that the journal has to wait, and schedules a retry of the commit.
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
            JournalWait::Server => "unreachable",
            JournalWait::Memory => "memory",
        };
        self.env.metrics.journal_failures.with_label_values(&[kind]).inc();
        if self.env.health.set_waiting(wait) {
            let message = wait.as_str();
            tracing::error!(%error, waiting = self.waiting_records.len(), "{message}");
        }
    }

    fn report_writable(&self) {
        let previous_wait = self.env.health.journal_wait();
        if self.env.health.mark_writable() {
            match previous_wait {
                Some(JournalWait::Lock) => {
                    tracing::info!("the other program has released the journal: commits continue")
                }
                Some(JournalWait::Server) => {
                    tracing::info!("the journal's database server answers again: commits continue")
                }
                Some(JournalWait::Memory) => {
                    tracing::info!("there is memory for the journal again: commits continue")
                }
                Some(JournalWait::DiskSpace) | None => {
                    tracing::info!("there is room on the disk again: commits continue")
                }
            }
            self.env.health.notify_change();
        }
    }

    /// Ends the process, unless the error follows from the loss of the journal's files.
    fn handle_fatal(&mut self, error: &JournalError) {
        if self.detect_loss() {
            return;
        }
        // The process exits without an orderly shutdown, because nothing may be written or
        // acknowledged any more. The next start recovers from the last commit.
        tracing::error!(%error, "the journal cannot be trusted any more: the process ends");
        exit_now(if error.is_fenced() { EXIT_TAKEN_OVER } else { EXIT_IO_ERROR });
    }

    /// Checks the journal's files, and handles their loss. Returns whether the journal is lost.
    ///
    /// A lost journal commits nothing until the next start, so no delivery is acknowledged and no
    /// effect is sent. Records wait, as they do while the disk is full. Clients that wait for a
    /// response get an error.
    fn detect_loss(&mut self) -> bool {
        if self.commit_schedule.is_lost() {
            return true;
        }
        match self.store.check_files() {
            Ok(()) => false,
            Err(loss @ FileLoss::TakenOver { .. }) => {
                tracing::error!("{loss}: the process ends");
                exit_now(EXIT_TAKEN_OVER);
            }
            Err(loss) => {
                self.handle_loss(&loss);
                true
            }
        }
    }

    fn handle_loss(&mut self, loss: &FileLoss) {
        self.commit_schedule.mark_lost();
        let env = &self.env;
        env.metrics.journal_failures.with_label_values(&["lost"]).inc();
        let message = env.health.set_journal_lost(loss);
        tracing::error!(waiting = self.waiting_records.len(), "{message}");
        // Another program may have replaced the journal with a file of its own.
        env.reader.close(message, Duration::ZERO);
        self.waiting_records
            .iter_mut()
            .for_each(|waiting| refuse_clients(&mut waiting.append, &self.env));
        for sender in self.deletions.take_waiting_clients() {
            let response = ClientResponse::Erase(sender, Err(journal_lost_error(&self.env)));
            Outgoing::Respond(response).send(&self.env.outbox);
        }
    }
}

/// A message that the actor sends to itself. It is handled after the inputs that are already in the
/// mailbox, so their records join the same commit.
struct CommitIsDue;

impl actix::Message for CommitIsDue {
    type Result = ();
}

impl Actor for JournalActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(FILE_CHECK_INTERVAL, |actor, _| {
            if !actor.detect_loss() {
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

impl Drop for JournalActor {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // After a panic the state of the store is unknown: nothing may be acknowledged any
            // more.
            exit_now(EXIT_IO_ERROR);
        }
    }
}

/// Sends an error to the clients that wait for this commit, which will not happen. All other
/// effects remain in `append`.
fn refuse_clients(append: &mut Append, env: &JournalEnv) {
    for outgoing in
        append.outgoing.extract_if(.., |outgoing| matches!(outgoing, Outgoing::Respond(..)))
    {
        if let Outgoing::Respond(response) = outgoing {
            Outgoing::Respond(response.with_error(journal_lost_error(env))).send(&env.outbox);
        }
    }
}

/// Returns the error for clients after the journal was lost or a write to it has failed.
fn journal_lost_error(env: &JournalEnv) -> RequestError {
    let loss = env.health.journal_loss();
    RequestError::Overloaded(loss.unwrap_or("the journal cannot be written").to_owned())
}

/// Calls `action`, and ends the process if it panics.
fn exit_on_panic(action: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(action)).is_err() {
        exit_now(EXIT_IO_ERROR);
    }
}

/// Flushes the log, and ends the process.
pub(super) fn exit_now(code: u8) -> ! {
    log::flush();
    std::process::exit(code.into())
}
