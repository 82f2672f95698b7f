//! The copy of a journal from a database, and into one (`crate::copy`). It is that of one name:
//! others may be active beside it. Whoever copies is the active process of the name, so no manager
//! can be. While a copy into a database has not ended, the row of its name tells the original, and
//! no manager becomes active.

use super::cells::CellChanges;
use super::claim::{ActiveManager, Candidate, Look, Purpose, half_copied_error};
use super::commit_columns::{CommitForms, EntryChunk, JobColumns};
use super::commit_connection::{BatchStatement, Results};
use super::connection::{params, to_sql_text};
use super::copy_reader::DatabaseCopyReader;
use super::failures::FailureChanges;
use super::limit_rates;
use super::options::PostgresOptions;
use super::pool::ReaderPool;
use super::store::PostgresJournal;
use crate::checksums::{EntryTexts, checksum, entry_checksum};
use crate::copy::progress::CopyProgress;
use crate::copy::rows::{
    CopyReader, CopySummary, CopyWriter, DecisionText, DerivedStatuses, GateRows, NewJobRow,
    StatusWriter, StoredJobRow,
};
use crate::copy::run::copy_and_check;
use crate::error::{JournalError, Remedy};
use crate::failures::FailureChange;
use crate::numbers::{Day, JobNumbers};
use crate::record::{JobNumber, Notice, StoredLedger, StoredOffset, StoredTrend};
use crate::recover::JobRow;
use crate::traits::Journal;
use engine::{Definition, DefinitionHash, RateMark, Timestamp};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How often it is looked whether another process is active.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How often a transaction is sent while the server cannot be reached.
const ATTEMPTS_MAX: u32 = 60;

/// The pause between two such attempts.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(500);

/// Sets or clears the mark of a copy that has not ended.
const SET_COPIED_FROM: &str = "UPDATE names SET copied_from = $1 WHERE ordinal = $2";

const INSERT_STATUSES: &str = "
INSERT INTO statuses(job, step, word, at)
SELECT u.job, d.step, u.word, u.at
FROM unnest($1::bigint[], $2::bigint[], $3::integer[], $4::text[], $5::bigint[])
  AS u(job, definition, index, word, at)
JOIN definition_steps d ON d.definition = u.definition AND d.index = u.index
ON CONFLICT (job, step) DO NOTHING";

/// Inserts notices, unless an earlier attempt has done it.
const INSERT_NOTICES: &str = "
INSERT INTO notices(name, at, body, checksum)
SELECT $4, u.at, u.body, u.checksum
FROM unnest($1::bigint[], $2::text[], $3::bigint[]) WITH ORDINALITY
  AS u(at, body, checksum, position)
WHERE (SELECT count(*) FROM notices WHERE name = $4) = $5 ORDER BY u.position";

/// Calls `copy` with what reads the journal in a database, and the size of the database in bytes.
/// No manager can become active meanwhile.
pub(crate) fn copy_from_database(
    options: PostgresOptions,
    copy: impl FnOnce(&dyn CopyReader, u64) -> Result<CopySummary, JournalError>,
) -> Result<CopySummary, JournalError> {
    let (server, name) = (options.server.to_string(), options.name.clone());
    // Otherwise the tables or the name would be created.
    let inspection = Candidate::inspect(options.clone())?;
    if !inspection.has_tables {
        return Err(refuse(server, "it has no journal".to_owned()));
    }
    if !inspection.names.contains(&name) {
        let names = inspection.names.join(", ");
        let problem = format!(
            "it has no journal of the name {name}: set cluster.name to one of those that it has \
             ({names})"
        );
        return Err(refuse(server, problem));
    }
    let journal = become_active(options)?;
    let session = journal.pool.begin()?;
    let rows = session.query("SELECT pg_database_size(current_database())", params![])?;
    let bytes = rows.first().map_or(0, |row| row.get::<_, i64>(0)).unsigned_abs();
    copy(&DatabaseCopyReader::new(&session), bytes)
}

/// Copies a journal into a database in which its name has none.
pub(crate) fn copy_into_database(
    source: &dyn CopyReader,
    options: PostgresOptions,
    progress: &CopyProgress,
) -> Result<CopySummary, JournalError> {
    let journal = become_active(options)?;
    let numbers = JobNumbers::timed(journal.writer.ordinal, 0);
    let mut target = DatabaseCopyTarget { journal, numbers };
    target.refuse_used()?;
    let result = target
        .empty(Some(source.journal()))
        .and_then(|()| copy_and_check(source, &mut target, progress))
        .and_then(|summary| target.set_copied_from(None).map(|()| summary));
    if result.is_err()
        && let Err(error) = target.empty(None)
    {
        // The next copy begins with it.
        tracing::debug!(%error, "what was copied is not removed");
    }
    result
}

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
                let pool = Arc::new(ReaderPool::of_candidate(&next));
                return Ok(PostgresJournal::activate(next, pool, state));
            }
            Look::HalfCopied(from) => return Err(half_copied_error(journal, &from)),
            // A copy tries no broker, so it leaves the name to nobody.
            Look::LeftTo(_) => {}
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

fn refuse(journal: String, problem: String) -> JournalError {
    JournalError::Failed { file: journal, problem, remedy: Remedy::Exit }
}

/// A journal in a database that is written as a copy.
struct DatabaseCopyTarget {
    journal: PostgresJournal,
    numbers: JobNumbers,
}

impl DatabaseCopyTarget {
    /// Returns an error if the name has a journal that is not an earlier copy's beginning.
    fn refuse_used(&mut self) -> Result<(), JournalError> {
        let name = self.journal.writer.ordinal;
        let sql = format!(
            "SELECT copied_from IS NULL AND (EXISTS (SELECT 1 FROM jobs WHERE {})
               OR EXISTS (SELECT 1 FROM notices WHERE name = $1)
               OR EXISTS (SELECT 1 FROM bus_offsets WHERE name = $1)
               OR EXISTS (SELECT 1 FROM schedules WHERE name = $1)
               OR EXISTS (SELECT 1 FROM controls WHERE name = $1))
             FROM names WHERE ordinal = $1",
            name.condition("number")
        );
        let rows = self.journal.writer.commits.query(sql, params![name.0])?;
        if rows.first().is_none_or(|row| row.get(0)) {
            let problem = format!(
                "it has a journal of the name {} already: give the copy a database of its own \
                 (createdb --template template0 --encoding UTF8 NAME), or another cluster.name",
                self.journal.name
            );
            return Err(refuse(self.journal.writer.journal.clone(), problem));
        }
        Ok(())
    }

    /// Removes what an earlier copy has left of the name, and sets or clears the mark.
    fn empty(&mut self, copied_from: Option<&str>) -> Result<(), JournalError> {
        let name = self.journal.writer.ordinal;
        let delete = |table: &str, column: &str| {
            format!("DELETE FROM {table} WHERE {}", name.condition(column))
        };
        let copied_from = copied_from.map(str::to_owned);
        self.transact(&BTreeSet::new(), &|| {
            let numbered = [
                ("entries", "job"),
                ("statuses", "job"),
                ("cells", "job"),
                ("failures", "job"),
                ("tolerated", "job"),
                ("jobs", "number"),
            ];
            let numbered = numbered.map(|(table, column)| BatchStatement {
                sql: delete(table, column).into(),
                params: params![],
            });
            let named = [
                BatchStatement::new(SET_COPIED_FROM, params![copied_from.clone(), name.0]),
                BatchStatement::new("DELETE FROM notices WHERE name = $1", params![name.0]),
                BatchStatement::new("DELETE FROM bus_offsets WHERE name = $1", params![name.0]),
                BatchStatement::new("DELETE FROM schedules WHERE name = $1", params![name.0]),
                BatchStatement::new("DELETE FROM limit_rates WHERE name = $1", params![name.0]),
                BatchStatement::new("DELETE FROM controls WHERE name = $1", params![name.0]),
                BatchStatement::new("DELETE FROM trends WHERE name = $1", params![name.0]),
            ];
            named.into_iter().chain(numbered).collect()
        })
        .map(drop)
    }

    fn set_copied_from(&mut self, copied_from: Option<String>) -> Result<(), JournalError> {
        let name = self.journal.writer.ordinal.0;
        self.transact(&BTreeSet::new(), &|| {
            vec![BatchStatement::new(SET_COPIED_FROM, params![copied_from.clone(), name])]
        })
        .map(drop)
    }

    /// Runs statements in one transaction, again while the server cannot be reached. `days` are
    /// those of new jobs.
    fn transact(
        &mut self,
        days: &BTreeSet<Day>,
        statements: &dyn Fn() -> Vec<BatchStatement>,
    ) -> Result<Results, JournalError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.journal.writer.commits.transact_on(days, statements()) {
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

    /// Numbers jobs by their creation, so that they lie in the days on which they were created.
    fn number_job(&mut self, original: &JobRow) -> JobNumber {
        let number = self.numbers.take(original.created);
        let writer = &mut self.journal.writer;
        writer.highest = writer.highest.max(number);
        number
    }

    fn insert_jobs(&mut self, jobs: &[NewJobRow]) -> Result<(), JournalError> {
        let days = jobs.iter().map(|new| Day::of_number(new.job.row.number)).collect();
        self.transact(&days, &|| {
            let (mut roots, mut children) = (JobColumns::default(), JobColumns::default());
            for NewJobRow { job, workflow } in jobs {
                let StoredJobRow { row, state, ended, is_open } = job;
                let columns = if row.parent.is_some() { &mut children } else { &mut roots };
                columns.add(row, workflow.to_string(), (*state, *ended, *is_open));
            }
            let mut forms = CommitForms::default();
            roots.add_roots_to(&mut forms);
            children.add_children_to(&mut forms);
            forms.careful
        })
        .map(drop)
    }

    fn insert_decisions(&mut self, decisions: &[DecisionText]) -> Result<(), JournalError> {
        let first_seq = self.journal.writer.last_seq + 1;
        self.transact(&BTreeSet::new(), &|| {
            let mut chunk = EntryChunk::default();
            for (seq, decision) in (first_seq..).zip(decisions) {
                let DecisionText { job, first, at, body } = decision;
                let sum = entry_checksum(*job, *first, *at, EntryTexts::body_alone(body));
                chunk.add_row((*job, *first, *at), body.clone(), sum, seq);
            }
            let mut forms = CommitForms::default();
            chunk.add_to(&mut forms);
            forms.careful
        })?;
        self.journal.writer.last_seq += decisions.len() as i64;
        Ok(())
    }

    fn insert_notices(&mut self, notices: &[Notice], before: u64) -> Result<(), JournalError> {
        let name = self.journal.writer.ordinal.0;
        self.transact(&BTreeSet::new(), &|| {
            let at: Vec<i64> = notices.iter().map(|notice| notice.at.0).collect();
            let body: Vec<String> = notices.iter().map(|notice| notice.body.to_string()).collect();
            let sum = |notice: &Notice| i64::from(checksum(notice.at.0, &notice.body));
            let sums: Vec<i64> = notices.iter().map(sum).collect();
            vec![BatchStatement::new(INSERT_NOTICES, params![at, body, sums, name, before as i64])]
        })
        .map(drop)
    }

    fn insert_offsets(&mut self, offsets: &[StoredOffset]) -> Result<(), JournalError> {
        self.journal.store_offsets(offsets)
    }

    fn insert_ledgers(&mut self, ledgers: &[StoredLedger]) -> Result<(), JournalError> {
        self.journal.store_ledgers(ledgers)
    }

    fn insert_trends(&mut self, trends: &[StoredTrend]) -> Result<(), JournalError> {
        self.journal.store_trends(trends, &[])
    }

    fn insert_gate_rows(&mut self, rows: &GateRows) -> Result<(), JournalError> {
        let ordinal = self.journal.writer.ordinal.0;
        let marks: Vec<&RateMark> = rows.marks.iter().collect();
        self.transact(&BTreeSet::new(), &|| {
            limit_rates::upsert(ordinal, &marks).into_iter().collect()
        })?;
        rows.controls.iter().try_for_each(|control| self.journal.store_control(control))
    }

    /// Stores the time, and up to which number jobs have numbers: the next start asks for both.
    fn set_newest(&mut self, newest: Timestamp) -> Result<(), JournalError> {
        let (name, highest) = (self.journal.writer.ordinal.0, self.journal.writer.highest);
        let update = "UPDATE managers SET newest = $1
                      WHERE id = (SELECT owner FROM names WHERE ordinal = $2)";
        self.transact(&BTreeSet::new(), &|| {
            let high = "UPDATE names SET high = greatest(high, $1) WHERE ordinal = $2";
            vec![
                BatchStatement::new(update, params![newest.0, name]),
                BatchStatement::new(high, params![highest, name]),
            ]
        })
        .map(drop)
    }
}

impl StatusWriter for DatabaseCopyTarget {
    fn insert_statuses(
        &mut self,
        statuses: &[DerivedStatuses],
        failures: &[(JobNumber, FailureChange)],
    ) -> Result<(), JournalError> {
        self.transact(&BTreeSet::new(), &|| {
            let (mut job, mut definition, mut at): (Vec<i64>, Vec<i64>, Vec<i64>) =
                Default::default();
            let (mut index, mut word): (Vec<i32>, Vec<String>) = Default::default();
            for derived in statuses {
                for (step, status) in (0..).zip(&derived.words) {
                    job.push(derived.job);
                    definition.push(derived.definition);
                    index.push(step);
                    word.push(to_sql_text(status));
                    at.push(derived.updated.0);
                }
            }
            let params = params![job, definition, index, word, at];
            let mut cells = CellChanges::default();
            for derived in statuses {
                cells.add(derived.job, &derived.cells);
            }
            let mut statements = vec![BatchStatement::new(INSERT_STATUSES, params)];
            statements.extend(cells.statements());
            let mut changes = FailureChanges::default();
            failures.iter().for_each(|(job, failure)| changes.add(*job, *failure));
            statements.extend(changes.statements());
            statements
        })
        .map(drop)
    }
}
