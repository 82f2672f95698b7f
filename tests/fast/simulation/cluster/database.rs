//! The database: who is active, and the journal behind the fence.

use super::super::world::{World, lock};
use super::scheduler::{Baton, Pause};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use workflow_manager::engine::{Control, ControlKey, Definition, Millis, RateMark, Timestamp};
use workflow_manager::journal::{
    CellRefill, Deletion, DiskUsage, FileLoss, JobNumber, JobNumbers, Journal, JournalError,
    NoticeNumber, Record, Records, RecoveredJob, Remedy, SqliteJournal, StoredLedger, StoredOffset,
    StoredTrend,
};

/// The number of a process.
pub(crate) type ProcessId = u32;

/// One commit in so many is interrupted: its process stands still in the middle of it.
const PAUSED_COMMITS: u32 = 12;

/// One commit in so many is not answered, although it counts.
const UNANSWERED_COMMITS: u32 = 25;

/// What the database knows of processes.
#[derive(Default)]
pub(crate) struct Cluster {
    pub(crate) owner: Option<ProcessId>,
    /// The rows of processes that commit no more.
    dead: BTreeSet<ProcessId>,
    pub(crate) beats: BTreeMap<ProcessId, Beat>,
    /// Whose row is locked by a commit under way.
    locked: Option<ProcessId>,
    /// Whose commit under way the server has given up.
    aborted: BTreeSet<ProcessId>,
}

/// What a process writes to show that it lives.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Beat {
    pub(crate) count: u64,
    /// The time of its clock, which only a wrong standby looks at.
    pub(crate) written_ns: i64,
}

impl Cluster {
    /// Gives the name to a process, in one transaction. It waits for the commit under way of the
    /// owner, which the server gives up if its process stands still.
    pub(crate) fn take_over(&mut self, process: ProcessId, bug: Option<&str>) {
        if let Some(owner) = self.owner.filter(|_| bug != Some("no fence")) {
            if self.locked == Some(owner) {
                self.locked = None;
                self.aborted.insert(owner);
            }
            self.dead.insert(owner);
        }
        self.owner = Some(process);
        self.beats.insert(process, Beat::default());
    }

    /// Locks the fence of a process for a commit. Returns whether it is alive.
    fn lock_fence(&mut self, process: ProcessId, bug: Option<&str>) -> bool {
        let row = match bug {
            Some("fence of another process") => self.owner.unwrap_or(process),
            Some(_) | None => process,
        };
        let is_alive = bug == Some("no fence") || !self.dead.contains(&row);
        if is_alive {
            self.locked = Some(row);
        }
        is_alive
    }

    fn unlock_fence(&mut self, process: ProcessId) {
        if self.locked == Some(process) {
            self.locked = None;
        }
    }
}

/// The journal of one process: the file that all share, behind the fence.
pub(crate) struct FencedJournal {
    pub(crate) process: ProcessId,
    pub(crate) server: Arc<Mutex<Option<SqliteJournal>>>,
    pub(crate) world: Arc<Mutex<World>>,
    pub(crate) baton: Baton,
    /// The records of the last commit, if its answer was lost.
    pub(crate) unanswered: bool,
}

fn server(slot: &Mutex<Option<SqliteJournal>>) -> MutexGuard<'_, Option<SqliteJournal>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connection is lost: whether a commit under way counts is unknown.
fn connection_lost() -> JournalError {
    let (file, problem) = ("simulated".to_owned(), "the connection is lost".to_owned());
    JournalError::Failed { file, problem, remedy: Remedy::WaitForServer }
}

impl FencedJournal {
    fn with<T>(&self, read: impl FnOnce(&mut SqliteJournal) -> T) -> T {
        read(server(&self.server).as_mut().expect("the server is up"))
    }

    /// Writes in a transaction that holds the fence.
    fn commit<T>(
        &mut self,
        write: impl FnOnce(&mut SqliteJournal) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let is_paused = {
            let mut world = lock(&self.world);
            if world.crashed {
                return Err(connection_lost());
            }
            let bug = world.bug;
            if !world.cluster.lock_fence(self.process, bug) {
                let process = self.process;
                world.note(|| format!("manager {process} finds its fence dead, and ends"));
                world.counts.fenced += 1;
                world.crashed = true;
                return Err(connection_lost());
            }
            world.has_cluster_faults() && world.rng.u32(0..PAUSED_COMMITS) == 0
        };
        if is_paused {
            self.baton.pass(Pause::InCommit);
        }
        {
            let mut world = lock(&self.world);
            let process = self.process;
            if world.cluster.aborted.remove(&process) {
                world.note(|| format!("the server has given up a commit of manager {process}"));
                return Err(connection_lost());
            }
            if world.crashed {
                world.cluster.unlock_fence(process);
                return Err(connection_lost());
            }
        }
        let result = self.with(write);
        let mut world = lock(&self.world);
        world.cluster.unlock_fence(self.process);
        let is_lost = world.has_cluster_faults() && world.rng.u32(0..UNANSWERED_COMMITS) == 0;
        if is_lost && result.is_ok() {
            world.note(|| "a commit is not answered".to_owned());
            self.unanswered = true;
            return Err(connection_lost());
        }
        if let Some(error) = result.as_ref().err().filter(|error| !error.remedy().is_retryable()) {
            // The manager would end its process, which is that of the test.
            world.violate(format!("the database refuses a commit: {error}"));
            world.crashed = true;
            return Err(connection_lost());
        }
        result
    }
}

impl Journal for FencedJournal {
    fn records(&self) -> Arc<dyn Records> {
        self.with(|journal| journal.records())
    }

    fn check_files(&mut self) -> Result<(), FileLoss> {
        Ok(())
    }

    fn disk_usage(&mut self) -> Option<DiskUsage> {
        None
    }

    fn is_disk_full(&self) -> bool {
        false
    }

    fn fill_reserve(&mut self) {}

    fn job_numbers(&mut self) -> Result<JobNumbers, JournalError> {
        self.with(|journal| journal.job_numbers())
    }

    fn append_and_check(
        &mut self,
        records: &[&Record],
        others: &[JobNumber],
    ) -> Result<BTreeSet<JobNumber>, JournalError> {
        let is_again = std::mem::take(&mut self.unanswered);
        if is_again && lock(&self.world).bug == Some("resent under new keys") {
            let renamed: Vec<Record> = records.iter().map(|record| rename(record)).collect();
            let renamed: Vec<&Record> = renamed.iter().collect();
            return self.commit(|journal| journal.append_and_check(&renamed, others));
        }
        self.commit(|journal| journal.append_and_check(records, others))
    }

    fn load_rate_marks(&mut self) -> Result<Vec<RateMark>, JournalError> {
        self.with(|journal| journal.load_rate_marks())
    }

    fn store_control(&mut self, control: &Control) -> Result<(), JournalError> {
        self.with(|journal| journal.store_control(control))
    }

    fn delete_control(&mut self, key: &ControlKey) -> Result<(), JournalError> {
        self.with(|journal| journal.delete_control(key))
    }

    fn load_controls(&mut self) -> Result<Vec<Control>, JournalError> {
        self.with(|journal| journal.load_controls())
    }

    fn has_unprojected(&self) -> bool {
        self.with(|journal| journal.has_unprojected())
    }

    fn project(&mut self) -> Result<(), JournalError> {
        self.with(Journal::project)
    }

    fn has_pending_confirms(&self) -> bool {
        self.with(|journal| journal.has_pending_confirms())
    }

    fn write_confirms(&mut self) -> Result<bool, JournalError> {
        self.with(Journal::write_confirms)
    }

    fn store_offsets(&mut self, offsets: &[StoredOffset]) -> Result<(), JournalError> {
        self.commit(|journal| journal.store_offsets(offsets))
    }

    fn store_ledgers(&mut self, ledgers: &[StoredLedger]) -> Result<(), JournalError> {
        self.commit(|journal| journal.store_ledgers(ledgers))
    }

    fn refill_cells(
        &mut self,
        definition: &Definition,
        refills: &[CellRefill],
    ) -> Result<BTreeSet<JobNumber>, JournalError> {
        self.commit(|journal| journal.refill_cells(definition, refills))
    }

    fn store_trends(
        &mut self,
        trends: &[StoredTrend],
        forgotten: &[Arc<str>],
    ) -> Result<(), JournalError> {
        self.commit(|journal| journal.store_trends(trends, forgotten))
    }

    fn for_each_job_tree(
        &self,
        handler: &(dyn Fn(Vec<RecoveredJob>) + Sync),
    ) -> Result<(), JournalError> {
        self.with(|journal| journal.for_each_job_tree(handler))
    }

    fn create_status_tables(&mut self, definitions: &[&Definition]) -> Result<(), JournalError> {
        self.with(|journal| journal.create_status_tables(definitions))
    }

    fn newest_record_time(&self) -> Result<Option<Timestamp>, JournalError> {
        self.with(|journal| journal.newest_record_time())
    }

    fn count_expired(&mut self, now: Timestamp, default: Millis) -> Result<u64, JournalError> {
        self.with(|journal| journal.count_expired(now, default))
    }

    fn delete_expired(
        &mut self,
        now: Timestamp,
        default: Millis,
        rows_max: u32,
    ) -> Result<Deletion, JournalError> {
        self.commit(|journal| journal.delete_expired(now, default, rows_max))
    }

    fn delete_jobs(
        &mut self,
        roots: &[JobNumber],
        rows_max: u32,
    ) -> Result<Deletion, JournalError> {
        self.commit(|journal| journal.delete_jobs(roots, rows_max))
    }

    fn delete_notices(&mut self, notices: &[NoticeNumber]) -> Result<(), JournalError> {
        self.commit(|journal| journal.delete_notices(notices))
    }
}

/// The same record, under a key that the sender has made anew.
fn rename(record: &Record) -> Record {
    let is_new = record.created.is_some();
    Record {
        job: record.job + if is_new { 1_000_000 } else { 0 },
        created: record.created.clone(),
        recorded: record.recorded.clone(),
        state: record.state,
        has_failed_items: record.has_failed_items,
        is_closed: record.is_closed,
        statuses: record.statuses.clone(),
        cells: record.cells.clone(),
        notice: None,
        marks: record.marks.clone(),
    }
}

impl Drop for FencedJournal {
    /// Says goodbye behind all commits.
    fn drop(&mut self) {
        let mut world = lock(&self.world);
        if !world.crashed && world.cluster.owner == Some(self.process) {
            let process = self.process;
            world.note(|| format!("manager {process} has left"));
            world.cluster.owner = None;
        }
    }
}
