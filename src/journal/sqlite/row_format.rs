//! The format of rows: the columns of each table, their parsers, and the checksums that the parsers
//! verify. It also converts SQLite's errors.

use crate::checksums::{
    EntryTexts, checksum, entry_checksum, job_checksum, ledger_checksum, offset_checksum,
};
use crate::copy::rows::DecisionText;
use crate::error::{JournalError, Remedy};
use crate::record::{JobNumber, Notice, NoticeNumber, StoredLedger, StoredOffset};
use crate::recover::JobRow;
use engine::{DefinitionHash, Entry, JobId, Recorded, Timestamp};
use rusqlite::{Connection, ErrorCode, Row, params};

/// Converts a value to JSON, with an error that fits a write transaction.
pub(super) fn to_json<T: serde::Serialize + ?Sized>(value: &T) -> rusqlite::Result<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

/// Returns the key of a row for an error message, from the column with this index; 0 if the column
/// has no integer.
pub(super) fn row_number(row: &Row<'_>, column: usize) -> i64 {
    row.get(column).unwrap_or(0)
}

/// Selects the columns of `jobs` that [`parse_job_row`] reads.
pub(super) const SELECT_JOBS: &str = "SELECT number, id, definition, graph, root, parent, step, \
                                   item, depth, created, checksum, state FROM jobs";

/// Parses a row of [`SELECT_JOBS`] and checks its checksum.
pub(super) fn parse_job_row(row: &Row<'_>, file: &str) -> Result<JobRow, JournalError> {
    let number = row_number(row, 0);
    let damage_error = |problem: String| JournalError::damaged_row(file, "jobs", number, problem);
    let read = || -> rusqlite::Result<(JobRow, u32)> {
        let id: [u8; 16] = row.get(1)?;
        let job = JobRow {
            number,
            id: JobId(uuid::Uuid::from_bytes(id)),
            definition: row.get(2)?,
            graph: row.get(3)?,
            root: row.get(4)?,
            parent: row.get(5)?,
            step: row.get(6)?,
            item: row.get(7)?,
            depth: row.get(8)?,
            created: Timestamp(row.get(9)?),
        };
        Ok((job, row.get(10)?))
    };
    let (job, stored_checksum) = read().map_err(|error| damage_error(error.to_string()))?;
    if job_checksum(&job) == stored_checksum {
        Ok(job)
    } else {
        Err(damage_error("the checksum does not match".to_owned()))
    }
}

/// The columns of `entries` that [`parse_entry_row`] reads.
pub(super) const ENTRY_COLUMNS: &str = "job, first, at, body, checksum, seq, confirms, origin";

/// A row of `entries`.
pub(super) struct EntryRow {
    /// The position among all rows of `entries` and `confirmed`, in the order of their commits.
    pub(super) seq: i64,
    pub(super) job: JobNumber,
    /// The number of the first entry in `body`, counted from 0 within the job.
    pub(super) first: u64,
    /// When the entries in `body` were decided.
    pub(super) at: Timestamp,
    /// The row's own entries, as JSON.
    body: String,
    /// The confirms before them, as JSON; `None` if there are none.
    confirms: Option<String>,
    /// The fields of the job that never change; `None` in all but the job's first row.
    pub(super) origin: Option<JobRow>,
}

/// A decision within a row of another decision, as its JSON: the number of its first entry, its
/// time, and its entries.
pub(super) type InnerDecision = (u64, Timestamp, Vec<Entry>);

/// Converts an inner decision to the type from which jobs are rebuilt.
pub(super) fn to_recorded((first, at, entries): InnerDecision) -> Recorded {
    Recorded { first, at, entries }
}

impl EntryRow {
    /// Returns the size in bytes of the entries and confirms, without the origin.
    pub(super) fn size(&self) -> usize {
        self.body.len() + self.confirms.as_ref().map_or(0, String::len)
    }

    /// Parses the decisions of the row: first the confirms, then its own.
    pub(super) fn parse_decisions(&self, file: &str) -> Result<Vec<Recorded>, JournalError> {
        let read = || -> serde_json::Result<Vec<Recorded>> {
            let confirms: Option<Vec<InnerDecision>> =
                self.confirms.as_deref().map(serde_json::from_str).transpose()?;
            let own_decision = (self.first, self.at, serde_json::from_str(&self.body)?);
            Ok(confirms.into_iter().flatten().chain([own_decision]).map(to_recorded).collect())
        };
        read().map_err(|error| self.unreadable_error(file, &error))
    }

    /// Parses the row's own entries, without the confirms before them.
    pub(super) fn parse_entries(&self, file: &str) -> Result<Vec<Entry>, JournalError> {
        serde_json::from_str(&self.body).map_err(|error| self.unreadable_error(file, &error))
    }

    /// Returns the decisions of the row with the JSON of their entries as it is stored: first the
    /// confirms, then its own.
    pub(super) fn into_texts(self, file: &str) -> Result<Vec<DecisionText>, JournalError> {
        type InnerText = (u64, Timestamp, Box<serde_json::value::RawValue>);
        let confirms = self.confirms.as_deref().map(serde_json::from_str::<Vec<InnerText>>);
        let confirms = confirms.transpose().map_err(|error| self.unreadable_error(file, &error))?;
        let EntryRow { job, first, at, body, .. } = self;
        let to_text = |(first, at, body): InnerText| {
            let body = body.get().to_owned();
            DecisionText { job, first, at, body }
        };
        let own = DecisionText { job, first, at, body };
        Ok(confirms.into_iter().flatten().map(to_text).chain([own]).collect())
    }

    fn unreadable_error(&self, file: &str, error: &serde_json::Error) -> JournalError {
        damaged_entry(file, self.seq, format!("not an entry of this version: {error}"))
    }
}

/// Creates the error of a row that does not continue the entries before it.
pub(super) fn misplaced_row(seq: i64, first: u64, entries_before: u64, file: &str) -> JournalError {
    let problem = format!(
        "it begins with entry {first} of its job, and {entries_before} entries come before it: a \
         row is missing or duplicated"
    );
    damaged_entry(file, seq, problem)
}

/// Creates the error of a damaged row of `entries`.
pub(super) fn damaged_entry(file: &str, seq: i64, problem: String) -> JournalError {
    JournalError::damaged_row(file, "entries", seq, problem)
}

/// Parses a row of [`ENTRY_COLUMNS`] and checks its checksum.
pub(super) fn parse_entry_row(row: &Row<'_>, file: &str) -> Result<EntryRow, JournalError> {
    let seq = row_number(row, 5);
    let damage_error = |problem: String| damaged_entry(file, seq, problem);
    let read = || -> rusqlite::Result<(JobNumber, i64, i64, String, u32)> {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
    };
    let read_optional =
        || -> rusqlite::Result<(Option<String>, Option<String>)> { Ok((row.get(6)?, row.get(7)?)) };
    let (job, first, at, body, stored_checksum) =
        read().map_err(|error| damage_error(error.to_string()))?;
    let (confirms, origin) = read_optional().map_err(|error| damage_error(error.to_string()))?;
    let first = u64::try_from(first)
        .map_err(|_| damage_error(format!("its first entry has the number {first}")))?;
    let at = Timestamp(at);
    let texts =
        EntryTexts { body: &body, confirms: confirms.as_deref(), origin: origin.as_deref() };
    if entry_checksum(job, first, at, texts) != stored_checksum {
        return Err(damage_error("the checksum does not match".to_owned()));
    }
    let origin = origin
        .map(|origin| parse_origin(job, &origin))
        .transpose()
        .map_err(|error| damage_error(format!("its origin cannot be read: {error}")))?;
    Ok(EntryRow { seq, job, first, at, body, confirms, origin })
}

/// The fields of a job that never change, in the order of their JSON in the job's first row of
/// `entries`: id, definition, graph, root, parent, step, item, depth and creation time.
type OriginFields =
    (uuid::Uuid, i64, u16, JobNumber, Option<JobNumber>, Option<u16>, Option<u32>, u16, i64);

/// Formats a job's origin as JSON for its first row: an array of [`OriginFields`]. The id comes
/// first, for [`ORIGIN_ID_SQL`].
pub(super) fn format_origin(row: &JobRow) -> rusqlite::Result<String> {
    let JobRow { number: _, id, definition, graph, root, parent, step, item, depth, created } = row;
    let id = id.to_string();
    to_json(&(id, definition, graph, root, parent, step, item, depth, created.0))
}

/// The SQL expression of the id in the JSON of an origin: 36 characters after `["`.
pub(super) const ORIGIN_ID_SQL: &str = "substr(origin, 3, 36)";

/// Parses what [`format_origin`] has formatted, for the job with this number.
fn parse_origin(number: JobNumber, text: &str) -> serde_json::Result<JobRow> {
    let (id, definition, graph, root, parent, step, item, depth, created): OriginFields =
        serde_json::from_str(text)?;
    let (id, created) = (JobId(id), Timestamp(created));
    Ok(JobRow { number, id, definition, graph, root, parent, step, item, depth, created })
}

/// Selects the columns of `confirmed` that [`parse_confirm_row`] reads.
pub(super) const SELECT_CONFIRMS: &str = "SELECT seq, body, checksum FROM confirmed";

/// A row of `confirmed`: its `seq`, and the confirms of each job.
pub(super) type ConfirmRow = (i64, Vec<(JobNumber, Vec<InnerDecision>)>);

/// Parses a row of [`SELECT_CONFIRMS`] and checks its checksum.
pub(super) fn parse_confirm_row(row: &Row<'_>, file: &str) -> Result<ConfirmRow, JournalError> {
    let seq = row_number(row, 0);
    let damage_error = |problem: String| JournalError::damaged_row(file, "confirmed", seq, problem);
    let read = || -> rusqlite::Result<(String, u32)> { Ok((row.get(1)?, row.get(2)?)) };
    let (body, stored_checksum) = read().map_err(|error| damage_error(error.to_string()))?;
    if checksum(seq, &body) != stored_checksum {
        return Err(damage_error("the checksum does not match".to_owned()));
    }
    let confirms_by_job = serde_json::from_str(&body)
        .map_err(|error| damage_error(format!("not confirms of this version: {error}")))?;
    Ok((seq, confirms_by_job))
}

/// Parses the columns `number, hash, body` of `definitions`, checks the hash, and returns the body.
pub(super) fn parse_definition_row(row: &Row<'_>, file: &str) -> Result<String, JournalError> {
    let number = row_number(row, 0);
    let damage_error =
        |problem: String| JournalError::damaged_row(file, "definitions", number, problem);
    let read = || -> rusqlite::Result<([u8; 32], String)> { Ok((row.get(1)?, row.get(2)?)) };
    let (hash, body) = read().map_err(|error| damage_error(error.to_string()))?;
    if DefinitionHash::from_json_text(&body).0 == hash {
        Ok(body)
    } else {
        Err(damage_error("the content does not match its hash".to_owned()))
    }
}

/// Converts an error of SQLite to [`JournalError::Failed`], with advice and a remedy.
pub(super) fn sqlite_error(file: &str, error: &rusqlite::Error) -> JournalError {
    let (advice, remedy) = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => {
            (". It needs room on its disk, or a higher journal.pages_max", Remedy::WaitForSpace)
        }
        Some(ErrorCode::SystemIoFailure) => {
            (". Its disk is full or broken: see df and the system log", Remedy::Exit)
        }
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            (". It and its directory must be writable by this user", Remedy::Exit)
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            ". Another program has it open, and keeps it locked: end that one",
            Remedy::WaitForLock,
        ),
        Some(ErrorCode::OutOfMemory) => {
            (". The process has no memory for it", Remedy::WaitForMemory)
        }
        Some(_) | None => ("", Remedy::Exit),
    };
    JournalError::Failed { file: file.to_owned(), problem: format!("{error}{advice}"), remedy }
}

/// Converts an error of SQLite like [`sqlite_error`], but reports a damaged file as such.
pub(super) fn to_journal_error(file: &str, error: rusqlite::Error) -> JournalError {
    let file = file.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt) => {
            JournalError::Malformed { file, problem: error.to_string() }
        }
        Some(ErrorCode::NotADatabase) => {
            JournalError::Malformed { file, problem: "it is not a SQLite database".to_owned() }
        }
        _ => sqlite_error(&file, &error),
    }
}

/// Selects the columns of `notices` that [`parse_notice_row`] reads.
pub(super) const SELECT_NOTICES: &str = "SELECT number, at, body, checksum FROM notices";

/// Parses a row of [`SELECT_NOTICES`] and checks its checksum.
pub(super) fn parse_notice_row(
    row: &Row<'_>,
    file: &str,
) -> Result<(NoticeNumber, Notice), JournalError> {
    let number = row_number(row, 0);
    let damage_error =
        |problem: String| JournalError::damaged_row(file, "notices", number, problem);
    let read =
        || -> rusqlite::Result<(i64, String, u32)> { Ok((row.get(1)?, row.get(2)?, row.get(3)?)) };
    let (timestamp, body, stored_checksum) =
        read().map_err(|error| damage_error(error.to_string()))?;
    if checksum(timestamp, &body) != stored_checksum {
        return Err(damage_error("the checksum does not match".to_owned()));
    }
    Ok((number, Notice { at: Timestamp(timestamp), body: body.into() }))
}

/// Inserts a notice with its checksum.
pub(super) fn insert_notice(connection: &Connection, notice: &Notice) -> rusqlite::Result<()> {
    let mut statement =
        connection.prepare_cached("INSERT INTO notices(at, body, checksum) VALUES (?1, ?2, ?3)")?;
    statement
        .execute(params![notice.at.0, notice.body, checksum(notice.at.0, &notice.body)])
        .map(|_| ())
}

/// Selects the columns of `schedules` that [`parse_ledger_row`] reads.
const SELECT_LEDGERS: &str = "SELECT name, ledger, checksum FROM schedules ORDER BY name";

/// Reads the ledgers of all schedules, ordered by schedule, and checks their checksums. Journals
/// before schema 11 have none.
pub(super) fn read_ledgers(
    connection: &Connection,
    file: &str,
) -> Result<Vec<StoredLedger>, JournalError> {
    let mut ledgers = Vec::new();
    let has_table = connection.table_exists(None, "schedules");
    if has_table.map_err(|error| to_journal_error(file, error))? {
        for_each_row((connection, file), SELECT_LEDGERS, [], |row| {
            ledgers.push(parse_ledger_row(row, file)?);
            Ok(())
        })?;
    }
    Ok(ledgers)
}

/// Parses a row of [`SELECT_LEDGERS`] and checks its checksum: with a wrong mark, slots would be
/// skipped.
fn parse_ledger_row(row: &Row<'_>, file: &str) -> Result<StoredLedger, JournalError> {
    let damage_error = |problem: String| JournalError::damaged_row(file, "schedules", 0, problem);
    let read = || -> rusqlite::Result<(String, String, u32)> {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    };
    let (name, ledger, stored_checksum) =
        read().map_err(|error| damage_error(error.to_string()))?;
    if ledger_checksum(&name, &ledger) != stored_checksum {
        return Err(damage_error(format!("the checksum of the schedule {name} does not match")));
    }
    Ok(StoredLedger { schedule: name.into(), ledger: Some(ledger.into()) })
}

/// Selects the columns of `bus_positions` that [`parse_offset_row`] reads.
pub(super) const SELECT_OFFSETS: &str =
    "SELECT bus, topic, part, position, checksum FROM bus_positions";

/// Parses a row of [`SELECT_OFFSETS`] and checks its checksum: with an offset that is too high,
/// replies would be skipped.
pub(super) fn parse_offset_row(row: &Row<'_>, file: &str) -> Result<StoredOffset, JournalError> {
    let partition = row_number(row, 2);
    let damage_error =
        |problem: String| JournalError::damaged_row(file, "bus_positions", partition, problem);
    let read = || -> rusqlite::Result<(String, String, i32, i64, u32)> {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
    };
    let (bus, topic, partition, offset, stored_checksum) =
        read().map_err(|error| damage_error(error.to_string()))?;
    let stored_offset = StoredOffset { bus: bus.into(), topic: topic.into(), partition, offset };
    if offset_checksum(&stored_offset) != stored_checksum {
        let StoredOffset { bus, topic, .. } = &stored_offset;
        return Err(damage_error(format!(
            "the checksum of the position in the topic {topic} of the bus {bus} does not match"
        )));
    }
    Ok(stored_offset)
}

/// Calls `handler` with every row of a query. `file` is the name of the file, for errors.
pub(super) fn for_each_row(
    (connection, file): (&Connection, &str),
    sql: &str,
    values: impl rusqlite::Params,
    mut handler: impl FnMut(&Row<'_>) -> Result<(), JournalError>,
) -> Result<(), JournalError> {
    let to_error = |error: rusqlite::Error| to_journal_error(file, error);
    let mut statement = connection.prepare_cached(sql).map_err(to_error)?;
    let mut rows = statement.query(values).map_err(to_error)?;
    while let Some(row) = rows.next().map_err(to_error)? {
        handler(row)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    #[test]
    fn sqlite_errors_have_advice_and_a_remedy() {
        for (code, advice, remedy) in [
            (ffi::SQLITE_FULL, "needs room", Remedy::WaitForSpace),
            (ffi::SQLITE_IOERR_SHMSIZE, "disk is full or broken", Remedy::Exit),
            (ffi::SQLITE_READONLY, "must be writable", Remedy::Exit),
            (ffi::SQLITE_CANTOPEN, "must be writable", Remedy::Exit),
            (ffi::SQLITE_BUSY, "Another program", Remedy::WaitForLock),
            (ffi::SQLITE_LOCKED, "Another program", Remedy::WaitForLock),
            (ffi::SQLITE_NOMEM, "no memory", Remedy::WaitForMemory),
            (ffi::SQLITE_MISUSE, "", Remedy::Exit),
        ] {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            let converted = sqlite_error("j.db", &error);
            assert!(
                converted.to_string().starts_with(&format!("journal j.db: {error}")),
                "{converted}"
            );
            assert!(converted.to_string().contains(advice), "{converted}");
            assert_eq!(converted.remedy(), remedy);
        }
    }
}
