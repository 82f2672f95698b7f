//! The state of the active process: its commit connection, its beat, and what it knows of the rows
//! that are stored. What it writes is in `append`, `retention` and `status_steps`.

use super::beat::Beat;
use super::claim::{Candidate, TakenState};
use super::commit_connection::CommitConnection;
use super::day_keeper::DayKeeper;
use super::days::DAYS_AHEAD;
use super::deletion_plan::{DeletionPlan, PartialDeletions};
use super::view_columns::ViewColumn;
use crate::error::{JournalError, Remedy};
use crate::numbers::{Day, NameOrdinal};
use crate::record::{Deletion, JobNumber};
use base::clock;
use engine::{Definition, DefinitionHash, Millis, Timestamp};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The `seq` of a row is the epoch of its process, shifted by this many bits, plus a counter.
const EPOCH_SHIFT: u32 = 40;

/// The state of the active process.
pub(super) struct PostgresWriter {
    pub(super) commits: CommitConnection,
    pub(super) beat: Beat,
    /// The address of the database, for messages.
    pub(super) journal: String,
    /// The ordinal of this manager's name.
    pub(super) ordinal: NameOrdinal,
    /// The highest number of a job of the name.
    pub(super) highest: JobNumber,
    /// No job has a higher number, as the database knows it.
    pub(super) reserved: JobNumber,
    /// The `seq` of the newest row of `entries`.
    pub(super) last_seq: i64,
    /// When the newest record was decided; `None` if there is none.
    pub(super) newest: Option<Timestamp>,
    /// The numbers of the definitions that are known to be stored.
    pub(super) definitions: HashMap<DefinitionHash, i64>,
    /// The definition of the newest job, and its number.
    pub(super) last_definition: Option<(Arc<Definition>, i64)>,
    /// The columns of each workflow's view after those of the job.
    pub(super) views: HashMap<String, Vec<ViewColumn>>,
    pub(super) partial_deletions: PartialDeletions,
    /// A deletion whose transaction may have been committed; `None` if there is none.
    pub(super) unfinished_deletion: Option<DeletionPlan>,
    /// What has been deleted, and is not reported yet.
    pub(super) unreported: Deletion,
    /// The retention of each definition, by its number; `None`: that of the settings.
    pub(super) retentions: BTreeMap<i64, Option<Millis>>,
    pub(super) days: DayKeeper,
}

impl PostgresWriter {
    /// Begins to beat and to write as the active process.
    pub(super) fn new(candidate: Candidate, state: TakenState) -> PostgresWriter {
        let (io, options) = (candidate.io.clone(), candidate.options.clone());
        let journal = options.server.to_string();
        let TakenState { epoch, high, newest, last_row } = state;
        let ordinal = candidate.ordinal;
        tracing::info!(journal, name = options.name, epoch, "this manager is active");
        let mut commits = CommitConnection::new(io, options, candidate.manager);
        commits.set_committed_row(last_row);
        let beat = Beat::start(candidate);
        PostgresWriter {
            commits,
            beat,
            journal,
            ordinal,
            highest: high,
            reserved: high,
            last_seq: epoch << EPOCH_SHIFT,
            newest,
            definitions: HashMap::new(),
            last_definition: None,
            views: HashMap::new(),
            partial_deletions: PartialDeletions::default(),
            unfinished_deletion: None,
            unreported: Deletion::default(),
            retentions: BTreeMap::new(),
            days: DayKeeper::new(),
        }
    }

    /// Makes today and the days ahead. A day that cannot be made now is made by the first commit
    /// that needs it.
    pub(super) fn make_days_ahead(&mut self) {
        let today = Day::of_time(clock::now());
        let days = (0..=DAYS_AHEAD).map(|days| today.plus(days)).collect();
        if let Err(error) = self.commits.make_days(days) {
            tracing::warn!(%error, "the days ahead cannot be made now");
        }
    }

    /// Creates the error of something that a transaction should have done.
    pub(super) fn failure(&self, problem: String) -> JournalError {
        JournalError::Failed { file: self.journal.clone(), problem, remedy: Remedy::Exit }
    }
}
