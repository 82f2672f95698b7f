//! The journal actor: serialises writes to SQLite on a thread of its own. Whatever waits when the
//! disk is free goes into one transaction; the effects leave only after its commit.

mod delete;
mod deletions;
mod doubt;
mod files;
mod pace;
mod room;
mod wal;

use super::answer::{Answer, Refusal};
use super::answer_on_drop::AnswerOnDrop;
use super::health::Want;
use super::mail::{Append, JournalInput, Leave, Outgoing, RouterInput};
use super::mailbox::{Mail, Owner};
use super::outbox::Messages;
use super::positions::Positions;
use super::ways::Ways;
use crate::clock;
use crate::faults;
use crate::journal::{JobNumber, Journal, JournalError, Loss, Remedy};
use crate::telemetry::log;
use actix::{Actor, AsyncContext, Context, Handler};
use deletions::Deletions;
use room::{Appended, WaitingRecord};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use wal::WalTold;

/// Owns the journal's writing end.
pub struct JournalActor {
    store: Box<dyn Journal>,
    ways: Arc<Ways>,
    waiting: Vec<WaitingRecord>,
    flush: Flush,
    /// Whether another attempt to commit is scheduled.
    is_retried: bool,
    /// Whether the projection of committed entries is scheduled.
    is_deriving: bool,
    /// Whether records for confirms are scheduled.
    is_writing_confirms: bool,
    /// The offsets that buses have reached.
    positions: Positions,
    deletions: Deletions,
    wal_told: WalTold,
    /// How many records the last commit had.
    group: usize,
}

/// When the next commit is due.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flush {
    NotDue,
    /// After the lag, unless an urgent record comes.
    Lagging,
    /// As soon as the mailbox is empty; under load, after `journal.linger`.
    Due,
    /// When there may be room on the disk again, or another program may have released the file.
    Waiting,
    /// Never again: the journal's file is lost.
    Lost,
}

/// How often the journal's files are checked while nothing is committed.
const FILES_CHECKED_EVERY: Duration = Duration::from_secs(1);

/// How often confirms get a record of their own, if no other record of their job has come since.
const CONFIRMS_WRITTEN_EVERY: Duration = Duration::from_secs(1);

/// How often offsets of buses are stored. After a crash, a bus reads again what it took in since.
const POSITIONS_WRITTEN_EVERY: Duration = Duration::from_secs(1);

/// If the last commit had at least this many records, the next one waits for more: a commit costs
/// almost the same for a hundred as for ten.
const GROUP_UNDER_LOAD: usize = 8;

/// The exit code after an I/O error, for the supervisor of the process (EX_IOERR of sysexits).
const EXIT_IO_ERROR: i32 = 74;

impl JournalActor {
    /// Creates the actor around an opened journal.
    pub fn new(store: Box<dyn Journal>, ways: Arc<Ways>) -> JournalActor {
        // A journal that cannot be read now shows it with the first commit.
        let newest = store.newest().ok().flatten();
        JournalActor {
            store,
            ways,
            waiting: Vec::new(),
            flush: Flush::NotDue,
            is_retried: false,
            is_deriving: false,
            is_writing_confirms: false,
            positions: Positions::default(),
            deletions: Deletions::new(newest),
            wal_told: WalTold::default(),
            group: 0,
        }
    }

    fn receive(&mut self, input: JournalInput, ctx: &mut Context<Self>) {
        match input {
            JournalInput::Append(mut append) => {
                if self.flush == Flush::Lost {
                    refuse(&mut append, &self.ways);
                }
                let urgent = append.urgent;
                self.waiting.push(WaitingRecord { append, since: clock::instant() });
                self.schedule(urgent, ctx);
            }
            JournalInput::Retain => {
                ctx.run_interval(
                    self.ways.common.settings.journal.retention_interval.0,
                    |actor, ctx| actor.retain(ctx),
                );
                self.retain(ctx);
            }
            JournalInput::Delete(number, answer) => self.erase(number, answer, ctx),
            JournalInput::Forget(_) if self.flush == Flush::Lost => {}
            JournalInput::Forget(notices) => match self.store.forget(&notices) {
                Ok(()) => {}
                Err(error) if error.remedy().is_wait() => {
                    ctx.run_later(
                        self.ways.common.settings.journal.full_retry.0,
                        move |actor, ctx| actor.receive(JournalInput::Forget(notices), ctx),
                    );
                }
                Err(error) => self.broken(&error),
            },
            JournalInput::Reached(position) => {
                if self.positions.is_empty() {
                    ctx.run_later(POSITIONS_WRITTEN_EVERY, Self::write_positions);
                }
                self.positions.reached(position);
            }
            JournalInput::MakeStatusTables(definitions) => {
                if !self.commit(ctx) {
                    // There is no room: the first job of each workflow creates its table.
                    return;
                }
                if let Err(error) = self.store.make_status_tables(
                    &definitions.iter().map(|definition| &**definition).collect::<Vec<_>>(),
                ) {
                    match error.remedy() {
                        Remedy::WaitForRoom | Remedy::WaitForLock => {
                            tracing::warn!(%error, "the tables of statuses have to wait")
                        }
                        Remedy::Exit => self.broken(&error),
                    }
                }
            }
            // The receiver may have gone.
            JournalInput::Round(answer) => drop(answer.send(())),
            JournalInput::Committed(answer) => {
                let done = AnswerOnDrop::new(answer);
                if let Some(last) = self.waiting.last_mut() {
                    last.append.release.push(Outgoing::Hold(done));
                    self.schedule(true, ctx);
                }
            }
            JournalInput::Barrier(answer) => {
                if self.commit(ctx) && self.derive() {
                    self.write_positions(ctx);
                    // The receiver may have given up at its deadline.
                    let _ = answer.send(());
                }
            }
        }
    }

    fn schedule(&mut self, urgent: bool, ctx: &mut Context<Self>) {
        match (self.flush, urgent) {
            (Flush::NotDue | Flush::Lagging, true) => {
                self.flush = Flush::Due;
                if self.group < GROUP_UNDER_LOAD {
                    // Handled behind the inputs that wait already: their records are the group of
                    // the group commit.
                    ctx.notify(CommitIsDue);
                } else {
                    ctx.run_later(self.ways.common.settings.journal.linger.0, Self::commit_if_due);
                }
            }
            (Flush::NotDue, false) => {
                self.flush = Flush::Lagging;
                ctx.run_later(self.ways.common.settings.journal.confirm_lag.0, |actor, ctx| {
                    if actor.flush == Flush::Lagging {
                        actor.commit(ctx);
                    }
                });
            }
            (Flush::Lagging, false) | (Flush::Due | Flush::Waiting | Flush::Lost, _) => {}
        }
    }

    fn commit_if_due(&mut self, ctx: &mut Context<Self>) {
        if self.flush == Flush::Due {
            self.commit(ctx);
        }
    }

    /// Commits what waits, then sends its effects; returns false while the journal has to wait, and
    /// when it is lost.
    fn commit(&mut self, ctx: &mut Context<Self>) -> bool {
        if !self.check_files() {
            return false;
        }
        self.flush = Flush::NotDue;
        if self.waiting.is_empty() {
            return true;
        }
        let started = clock::instant();
        let Appended { count, gone, no_room } =
            match room::append(&mut *self.store, &mut self.waiting) {
                Ok(appended) => appended,
                Err(error) => {
                    match error.remedy() {
                        Remedy::WaitForRoom => self.wait_for(Want::Room, &error, ctx),
                        Remedy::WaitForLock => self.wait_for(Want::Lock, &error, ctx),
                        Remedy::Exit => self.broken(&error),
                    }
                    return false;
                }
            };
        // What went into a file that is gone was not committed.
        if !self.check_files() {
            return false;
        }
        self.follow_up(ctx);
        faults::observe("journal::committed", || -> Vec<JobNumber> {
            let decided = self.waiting[..count]
                .iter()
                .map(|waiting| &waiting.append.record)
                .filter(|record| !record.recorded.entries.is_empty());
            decided.map(|record| record.job).collect()
        });
        faults::hit("journal::committed");
        let metrics = &self.ways.common.metrics;
        metrics.commit.observe(started.elapsed().as_secs_f64());
        metrics.batch_records.observe(count as f64);
        if no_room.is_none() {
            self.note_room();
        }
        let mut waiting: Vec<_> = self.waiting.drain(..count).collect();
        self.group = waiting.len();
        self.ask_to_leave(&mut waiting, &gone);
        let mut messages = Messages::default();
        for WaitingRecord { append, since } in waiting {
            metrics.journal_queue.observe(since.elapsed().as_secs_f64());
            let Append { id, record, release, .. } = append;
            let release = if gone.contains(&record.job) {
                let live = self.ways.routes.find(id);
                let is_replaced = live.is_some_and(|job| job.number() != record.job);
                release.into_iter().filter_map(|left| left.of_deleted(is_replaced)).collect()
            } else {
                release
            };
            for outgoing in release {
                // If this panics, the process ends at once. Otherwise what waits behind it would be
                // dropped, and clients would take that for a response.
                or_end(|| {
                    if let Outgoing::Send(message) = outgoing {
                        return messages.add(message);
                    }
                    // A latch of this commit also waits for its messages, and a withdrawal of a
                    // message comes after the message.
                    if let Outgoing::Hold(_) | Outgoing::Withdraw(..) = outgoing {
                        std::mem::take(&mut messages).send(&self.ways);
                    }
                    outgoing.release(&self.ways);
                });
            }
        }
        or_end(|| messages.send(&self.ways));
        if let Some(error) = &no_room {
            self.wait_for(Want::Room, error, ctx);
        }
        no_room.is_none()
    }

    /// Asks the router to stop jobs that have nothing left to do, before anybody is notified of
    /// what was committed. A deleted job is stopped even if it has something left to do.
    fn ask_to_leave(&self, committed: &mut [WaitingRecord], gone: &BTreeSet<JobNumber>) {
        let leaves = |WaitingRecord { append, .. }: &WaitingRecord| {
            let (id, number) = (append.id, append.record.job);
            if gone.contains(&number) {
                return Some(Leave { id, number, heard: None });
            }
            append.leaves.map(|heard| Leave { id, number, heard: Some(heard) })
        };
        let leaving: Vec<Leave> = committed.iter().filter_map(leaves).collect();
        for WaitingRecord { append, .. } in committed.iter_mut() {
            let is_gone = gone.contains(&append.record.job);
            if let Some(rest) = append.rests.take().filter(|_| !is_gone) {
                self.ways.mailboxes().router.post(RouterInput::Rest(rest));
            }
        }
        if !leaving.is_empty() {
            self.ways.mailboxes().router.post(RouterInput::Leave(leaving));
        }
    }

    /// Schedules what follows commits: the projection, and records for confirms.
    fn follow_up(&mut self, ctx: &mut Context<Self>) {
        if self.store.is_behind() && !std::mem::replace(&mut self.is_deriving, true) {
            ctx.run_later(self.ways.common.settings.journal.lag.0, |actor, ctx| {
                actor.is_deriving = false;
                let derived = actor.store.derive();
                actor.followed_up(derived, ctx);
            });
        }
        if self.store.has_confirms() && !std::mem::replace(&mut self.is_writing_confirms, true) {
            ctx.run_later(CONFIRMS_WRITTEN_EVERY, |actor, ctx| {
                actor.is_writing_confirms = false;
                if actor.check_files() {
                    let written = actor.store.write_confirms();
                    actor.followed_up(written.map(|_| ()), ctx);
                }
            });
        }
    }

    /// Stores the offsets that buses have reached. Everything that they count as done is committed
    /// already.
    fn write_positions(&mut self, ctx: &mut Context<Self>) {
        if self.positions.is_empty() || !self.check_files() {
            return;
        }
        match self.store.write_positions(&self.positions.all()) {
            Ok(()) => self.positions.written(),
            Err(error) => match error.remedy() {
                // Until then, more is read again after a crash.
                Remedy::WaitForRoom | Remedy::WaitForLock => {
                    ctx.run_later(
                        self.ways.common.settings.journal.full_retry.0,
                        Self::write_positions,
                    );
                }
                Remedy::Exit => self.broken(&error),
            },
        }
    }

    /// Projects what is committed; returns false while that has to wait.
    fn derive(&mut self) -> bool {
        match self.store.derive() {
            Ok(()) => true,
            Err(error) => {
                if error.remedy() == Remedy::Exit {
                    self.broken(&error);
                }
                false
            }
        }
    }

    fn followed_up(&mut self, result: Result<(), JournalError>, ctx: &mut Context<Self>) {
        match result {
            Ok(()) => {
                if self.flush != Flush::Waiting {
                    self.note_room();
                }
                self.follow_up(ctx);
            }
            Err(error) => match error.remedy() {
                // All is committed: lists and statuses stay behind until then.
                wait @ (Remedy::WaitForRoom | Remedy::WaitForLock) => {
                    if wait == Remedy::WaitForRoom {
                        self.note_waiting(Want::Room, &error);
                    }
                    ctx.run_later(self.ways.common.settings.journal.full_retry.0, Self::follow_up);
                }
                Remedy::Exit => self.broken(&error),
            },
        }
    }

    fn wait_for(&mut self, want: Want, error: &JournalError, ctx: &mut Context<Self>) {
        self.flush = Flush::Waiting;
        self.note_waiting(want, error);
        if !std::mem::replace(&mut self.is_retried, true) {
            ctx.run_later(self.ways.common.settings.journal.full_retry.0, |actor, ctx| {
                actor.is_retried = false;
                actor.commit(ctx);
            });
        }
    }

    fn note_waiting(&self, want: Want, error: &JournalError) {
        let kind = match want {
            Want::Room => "full",
            Want::Lock => "locked",
        };
        self.ways.common.metrics.journal_failures.with_label_values(&[kind]).inc();
        if self.ways.common.health.note_waiting(want) {
            let what = want.sentence();
            tracing::error!(%error, waiting = self.waiting.len(), "{what}");
        }
    }

    fn note_room(&self) {
        let wanted = self.ways.common.health.journal_wants();
        if self.ways.common.health.note_room(true) {
            match wanted {
                Some(Want::Lock) => {
                    tracing::info!("the other program has let go of the journal: it goes on")
                }
                Some(Want::Room) | None => {
                    tracing::info!("there is room on the disk again: the journal goes on")
                }
            }
            self.ways.common.health.tell_change();
        }
    }

    /// Ends the process. It returns only if the reason is that the journal is lost.
    fn broken(&mut self, error: &JournalError) {
        if !self.check_files() {
            return;
        }
        // Not an orderly stop: nothing may be written or acknowledged after this. The next start
        // recovers.
        tracing::error!(%error, "the journal cannot be trusted any more: the process ends");
        end_at_once();
    }

    /// Returns whether the journal's files are still there. Once they are not, nothing is
    /// committed, acknowledged or sent until the next start. Decisions are held, as while the disk
    /// is full. Clients that wait for a response get an error.
    fn check_files(&mut self) -> bool {
        if self.flush == Flush::Lost {
            return false;
        }
        match self.store.check_files() {
            Ok(()) => true,
            Err(loss) => {
                self.lose(&loss);
                false
            }
        }
    }

    fn lose(&mut self, loss: &Loss) {
        self.flush = Flush::Lost;
        let ways = &self.ways;
        ways.common.metrics.journal_failures.with_label_values(&["lost"]).inc();
        let what = ways.common.health.lose_journal(loss);
        tracing::error!(waiting = self.waiting.len(), "{what}");
        // What is read now may be the file of another program.
        ways.common.reader.close(what, Duration::ZERO);
        self.waiting.iter_mut().for_each(|waiting| refuse(&mut waiting.append, &self.ways));
        for client in self.deletions.take_clients() {
            let refused = Answer::Erased(client, Err(refusal(&self.ways)));
            Outgoing::Answer(refused).release(&self.ways);
        }
    }
}

/// Sends an error to clients that wait for a commit that will not come. Everything else is held.
fn refuse(append: &mut Append, ways: &Ways) {
    for outgoing in
        append.release.extract_if(.., |outgoing| matches!(outgoing, Outgoing::Answer(..)))
    {
        if let Outgoing::Answer(answer) = outgoing {
            Outgoing::Answer(answer.refused(refusal(ways))).release(ways);
        }
    }
}

/// Returns the error for clients once the journal is lost.
fn refusal(ways: &Ways) -> Refusal {
    Refusal::Overloaded(ways.common.health.lost_journal().unwrap_or_default().to_owned())
}

struct CommitIsDue;
impl actix::Message for CommitIsDue {
    type Result = ();
}

impl Actor for JournalActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(FILES_CHECKED_EVERY, |actor, _| {
            if actor.check_files() {
                actor.show_files();
                actor.store.keep_reserve();
            }
        });
    }
}

impl Owner for JournalActor {
    type Input = JournalInput;
    const KIND: &'static str = "journal";
}

impl Handler<Mail<JournalInput>> for JournalActor {
    type Result = ();

    fn handle(&mut self, mail: Mail<JournalInput>, ctx: &mut Self::Context) {
        mail.handle(|input| self.receive(input, ctx));
    }
}

impl Handler<CommitIsDue> for JournalActor {
    type Result = ();

    fn handle(&mut self, _: CommitIsDue, ctx: &mut Self::Context) {
        self.commit_if_due(ctx);
    }
}

/// Calls `act`. If it panics, the process ends.
fn or_end(act: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(act)).is_err() {
        end_at_once();
    }
}

/// Ends the process. What was logged is written as far as possible.
fn end_at_once() -> ! {
    log::flush();
    std::process::exit(EXIT_IO_ERROR)
}

impl Drop for JournalActor {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A panic here left the store in an unknown state; nothing may be acknowledged after
            // it.
            end_at_once();
        }
    }
}
