//! The copy of a journal from a database, and into one (`crate::copy`). Whoever copies is the
//! active process of its name, so no manager can be. While a copy into a database has not ended,
//! the table `cluster` names its original, and no manager becomes active.

use super::append::{EntryChunk, JobColumns};
use super::claim::{ActiveManager, Candidate, Look, Purpose};
use super::commit_connection::{BatchStatement, Results};
use super::connection::{params, to_sql_text};
use super::copy_reader::DatabaseCopyReader;
use super::options::PostgresOptions;
use super::store::PostgresJournal;
use crate::checksums::{EntryTexts, checksum, entry_checksum};
use crate::copy::{
    CopyProgress, CopyReader, CopySummary, CopyWriter, DecisionText, DerivedStatuses, NewJobRow,
    StatusWriter, StoredJobRow, copy_and_check,
};
use crate::error::{JournalError, Remedy};
use crate::record::{JobNumber, Notice, StoredOffset};
use crate::recover::JobRow;
use crate::traits::Journal;
use engine::{Definition, DefinitionHash, Timestamp};
use std::time::Duration;

/// How often it is looked whether another process is active.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How often a transaction is sent while the server cannot be reached, and the pause between.
const ATTEMPTS_MAX: u32 = 120;
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(500);

/// Removes everything of a journal but the columns of statuses, on which views depend.
const EMPTY: &str =
    "TRUNCATE jobs, entries, statuses, notices, bus_offsets, definitions, definition_steps";

const INSERT_STATUSES: &str = "
INSERT INTO statuses(job, step, word, at)
SELECT u.job, d.step, u.word, u.at
FROM unnest($1::bigint[], $2::integer[], $3::text[], $4::bigint[]) AS u(job, index, word, at)
JOIN jobs j ON j.number = u.job
JOIN definition_steps d ON d.definition = j.definition AND d.index = u.index
ON CONFLICT (job, step) DO NOTHING";

/// Inserts notices, unless an earlier attempt has done it.
const INSERT_NOTICES: &str = "
INSERT INTO notices(at, body, checksum)
SELECT u.at, u.body, u.checksum
FROM unnest($1::bigint[], $2::text[], $3::bigint[]) WITH ORDINALITY
  AS u(at, body, checksum, position)
WHERE (SELECT count(*) FROM notices) = $4 ORDER BY u.position";

/// Calls `copy` with what reads the journal in a database, and the size of the database in bytes.
/// No manager can become active meanwhile.
pub(crate) fn copy_from_database(
    options: PostgresOptions,
    copy: impl FnOnce(&dyn CopyReader, u64) -> Result<CopySummary, JournalError>,
) -> Result<CopySummary, JournalError> {
    // Otherwise the tables would be created.
    if !Candidate::inspect(options.clone())?.has_tables {
        return Err(refuse(options.server.to_string(), "it has no journal".to_owned()));
    }
    let journal = become_active(options)?;
    let session = journal.pool.begin()?;
    let rows = session.query("SELECT pg_database_size(current_database())", params![])?;
    let bytes = rows.first().map_or(0, |row| row.get::<_, i64>(0)).unsigned_abs();
    copy(&DatabaseCopyReader::new(&session), bytes)
}

/// Copies a journal into a database without jobs.
pub(crate) fn copy_into_database(
    source: &dyn CopyReader,
    options: PostgresOptions,
    progress: &CopyProgress,
) -> Result<CopySummary, JournalError> {
    let mut target = DatabaseCopyTarget { journal: become_active(options)? };
    target.begin(source.journal())?;
    match copy_and_check(source, &mut target, progress) {
        Ok(summary) => {
            target.transact(&|| {
                vec![BatchStatement::new(SET_COPIED_FROM, params![None::<String>])]
            })?;
            Ok(summary)
        }
        Err(error) => {
            let statements = || {
                vec![
                    BatchStatement::new(EMPTY, params![]),
                    BatchStatement::new(SET_COPIED_FROM, params![None::<String>]),
                ]
            };
            // Otherwise the next copy does it.
            if let Err(error) = target.journal.writer.commits.transact(statements()) {
                tracing::debug!(%error, "what was copied is not removed");
            }
            Err(error)
        }
    }
}

const SET_COPIED_FROM: &str = "UPDATE cluster SET copied_from = $1";

/// Becomes the active process of the name. A process that was killed counts as active until its
/// lease is over.
fn become_active(options: PostgresOptions) -> Result<PostgresJournal, JournalError> {
    let (journal, name) = (options.server.to_string(), options.name.clone());
    let mut candidate = Candidate::register(options, Purpose::Copy)?;
    let mut seen: Option<ActiveManager> = None;
    loop {
        let (next, look) = candidate.try_claim();
        match look? {
            Look::Active(state) => {
                let mut journal = PostgresJournal::activate(next, state);
                refuse_other_names(&mut journal)?;
                return Ok(journal);
            }
            Look::HalfCopied(from) => return Err(super::claim::half_copied_error(journal, &from)),
            Look::Standby(active) => {
                if seen.is_some_and(|before| !active.is_as_before(&before)) {
                    let problem = format!("its manager {name} is active: stop it first");
                    return Err(refuse(journal, problem));
                }
                seen = Some(active);
            }
        }
        candidate = next;
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Returns an error if a process of another name is active.
fn refuse_other_names(journal: &mut PostgresJournal) -> Result<(), JournalError> {
    let session = journal.pool.begin()?;
    let sql = "SELECT name FROM names WHERE owner IS NOT NULL AND name <> $1 ORDER BY name";
    let rows = session.query(sql, params![journal.name.clone()])?;
    match rows.first() {
        Some(row) => {
            let name: String = row.get(0);
            let problem = format!("its manager {name} is active: stop it first");
            Err(refuse(journal.writer.journal.clone(), problem))
        }
        None => Ok(()),
    }
}

fn refuse(journal: String, problem: String) -> JournalError {
    JournalError::Failed { file: journal, problem, remedy: Remedy::Exit }
}

/// A journal in a database that is written as a copy.
struct DatabaseCopyTarget {
    journal: PostgresJournal,
}

impl DatabaseCopyTarget {
    /// Marks the database as the target of a copy. Removes what an earlier copy has left.
    fn begin(&mut self, from: &str) -> Result<(), JournalError> {
        let sql = "SELECT copied_from IS NULL AND (EXISTS (SELECT 1 FROM jobs)
                     OR EXISTS (SELECT 1 FROM notices) OR EXISTS (SELECT 1 FROM bus_offsets))
                   FROM cluster";
        let rows = self.journal.writer.commits.query(sql, params![])?;
        if rows.first().is_none_or(|row| row.get(0)) {
            let problem = "it has a journal already: give the copy a database of its own, made \
                           with createdb --template template0 --encoding UTF8 NAME";
            return Err(refuse(self.journal.writer.journal.clone(), problem.to_owned()));
        }
        let from = from.to_owned();
        self.transact(&|| {
            vec![
                BatchStatement::new(SET_COPIED_FROM, params![Some(from.clone())]),
                BatchStatement::new(EMPTY, params![]),
            ]
        })
        .map(drop)
    }

    /// Runs statements in one transaction, again while the server cannot be reached.
    fn transact(
        &mut self,
        statements: &dyn Fn() -> Vec<BatchStatement>,
    ) -> Result<Results, JournalError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.journal.writer.commits.transact(statements()) {
                Err(error) if error.remedy() == Remedy::WaitForServer && attempt < ATTEMPTS_MAX => {
                    std::thread::sleep(ATTEMPT_INTERVAL);
                }
                result => return result,
            }
        }
    }
}

impl CopyWriter for DatabaseCopyTarget {
    fn read_back(
        &mut self,
        read: &mut dyn FnMut(&dyn CopyReader, &mut dyn StatusWriter) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let pool = self.journal.pool.clone();
        let session = pool.begin()?;
        read(&DatabaseCopyReader::new(&session), self)
    }

    fn insert_definition(
        &mut self,
        definition: &Definition,
        body: &str,
    ) -> Result<i64, JournalError> {
        let hash = DefinitionHash::from_json_text(body);
        self.journal.writer.insert_definition(definition, hash, body.to_owned())
    }

    fn number_job(&mut self, original: &JobRow) -> JobNumber {
        original.number
    }

    fn insert_jobs(&mut self, jobs: &[NewJobRow]) -> Result<(), JournalError> {
        self.transact(&|| {
            let (mut roots, mut children) = (JobColumns::default(), JobColumns::default());
            for NewJobRow { job, workflow } in jobs {
                let StoredJobRow { row, state, ended, is_open } = job;
                let columns = if row.parent.is_some() { &mut children } else { &mut roots };
                columns.add(row, workflow.to_string(), (*state, *ended, *is_open));
            }
            let statements = [roots.into_root_statement(), children.into_child_statement()];
            statements.into_iter().flatten().collect()
        })
        .map(drop)
    }

    fn insert_decisions(&mut self, decisions: &[DecisionText]) -> Result<(), JournalError> {
        let first_seq = self.journal.writer.last_seq + 1;
        self.transact(&|| {
            let mut chunk = EntryChunk::default();
            for (seq, decision) in (first_seq..).zip(decisions) {
                let DecisionText { job, first, at, body } = decision;
                let sum = entry_checksum(*job, *first, *at, EntryTexts::body_alone(body));
                chunk.add_row((*job, *first, *at), body.clone(), sum, seq);
            }
            vec![chunk.into_statement()]
        })?;
        self.journal.writer.last_seq += decisions.len() as i64;
        Ok(())
    }

    fn insert_notices(&mut self, notices: &[Notice], before: u64) -> Result<(), JournalError> {
        self.transact(&|| {
            let at: Vec<i64> = notices.iter().map(|notice| notice.at.0).collect();
            let body: Vec<String> = notices.iter().map(|notice| notice.body.to_string()).collect();
            let sum = |notice: &Notice| i64::from(checksum(notice.at.0, &notice.body));
            let sums: Vec<i64> = notices.iter().map(sum).collect();
            vec![BatchStatement::new(INSERT_NOTICES, params![at, body, sums, before as i64])]
        })
        .map(drop)
    }

    fn insert_offsets(&mut self, offsets: &[StoredOffset]) -> Result<(), JournalError> {
        self.journal.store_offsets(offsets)
    }

    fn set_newest(&mut self, newest: Timestamp) -> Result<(), JournalError> {
        let owner = "SELECT owner FROM names WHERE name = $1";
        let sql = format!("UPDATE managers SET newest = $2 WHERE id = ({owner})");
        let name = self.journal.name.clone();
        self.transact(&|| {
            let params = params![name.clone(), newest.0];
            vec![BatchStatement { sql: sql.clone().into(), params }]
        })
        .map(drop)
    }
}

impl StatusWriter for DatabaseCopyTarget {
    fn insert_statuses(&mut self, statuses: &[DerivedStatuses]) -> Result<(), JournalError> {
        self.transact(&|| {
            let (mut job, mut index, mut word, mut at): (
                Vec<i64>,
                Vec<i32>,
                Vec<String>,
                Vec<i64>,
            ) = Default::default();
            for derived in statuses {
                for (step, status) in (0..).zip(&derived.words) {
                    job.push(derived.job);
                    index.push(step);
                    word.push(to_sql_text(status));
                    at.push(derived.updated.0);
                }
            }
            vec![BatchStatement::new(INSERT_STATUSES, params![job, index, word, at])]
        })
        .map(drop)
    }
}
