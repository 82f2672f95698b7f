//! The state of the active process: its commit connection, its beat, and what it knows of the rows
//! that are stored. What it writes is in `append`, `retention` and `status_steps`.

use super::beat::Beat;
use super::claim::{Candidate, TakenState};
use super::commit_connection::CommitConnection;
use super::deletion_plan::{DeletionPlan, PartialDeletions};
use crate::error::{JournalError, Remedy};
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
    /// The `seq` of the newest row of `entries`.
    pub(super) last_seq: i64,
    /// When the newest record was decided; `None` if there is none.
    pub(super) newest: Option<Timestamp>,
    /// The numbers of the definitions that are known to be stored.
    pub(super) definitions: HashMap<DefinitionHash, i64>,
    /// The definition of the newest job, and its number.
    pub(super) last_definition: Option<(Arc<Definition>, i64)>,
    /// The number of columns of each workflow's view.
    pub(super) views: HashMap<String, usize>,
    pub(super) partial_deletions: PartialDeletions,
    /// A deletion whose transaction may have been committed; `None` if there is none.
    pub(super) unfinished_deletion: Option<DeletionPlan>,
    /// The retention of each definition, by its number; `None`: that of the settings.
    pub(super) retentions: BTreeMap<i64, Option<Millis>>,
}

impl PostgresWriter {
    /// Begins to beat and to write as the active process.
    pub(super) fn new(candidate: Candidate, state: TakenState) -> PostgresWriter {
        let (io, options) = (candidate.io.clone(), candidate.options.clone());
        let journal = options.server.to_string();
        let TakenState { epoch, newest, last_row } = state;
        tracing::info!(journal, name = options.name, epoch, "this manager is active");
        let mut commits = CommitConnection::new(io, options, candidate.manager);
        commits.set_committed_row(last_row);
        let beat = Beat::start(candidate);
        PostgresWriter {
            commits,
            beat,
            journal,
            last_seq: epoch << EPOCH_SHIFT,
            newest,
            definitions: HashMap::new(),
            last_definition: None,
            views: HashMap::new(),
            partial_deletions: PartialDeletions::default(),
            unfinished_deletion: None,
            retentions: BTreeMap::new(),
        }
    }

    /// Creates the error of something that a transaction should have done.
    pub(super) fn failure(&self, problem: String) -> JournalError {
        JournalError::Failed { file: self.journal.clone(), problem, remedy: Remedy::Exit }
    }
}
