//! The format of rows: their columns and checksums.

use crate::error::{JournalError, Remedy};
use crate::record::{JobNumber, Notice, NoticeNumber, StoredOffset};
use crate::recover::JobRow;
use engine::{DefinitionHash, Entry, JobId, Recorded, Timestamp};
use rusqlite::{Connection, ErrorCode, Row, params};

/// Returns the checksum of a text, which binds it to a number.
pub(super) fn checksum(number: i64, text: &str) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(&number.to_le_bytes());
    hash.update(text.as_bytes());
    hash.finalize()
}

/// Converts the number of an entry to SQLite's type.
pub(super) fn to_sql_number(first: u64) -> i64 {
    i64::try_from(first).unwrap_or(i64::MAX)
}

/// The texts of a row of `entries`: its body, the confirms before it, and the origin of its job.
pub(super) type EntryTexts<'a> = (&'a str, Option<&'a str>, Option<&'a str>);

/// Returns the checksum of a row of `entries`, which binds the texts to its job, its first entry
/// and its time.
pub(super) fn entry_checksum(
    job: JobNumber,
    first: u64,
    at: Timestamp,
    (body, confirms, origin): EntryTexts<'_>,
) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(&job.to_le_bytes());
    hash.update(&first.to_le_bytes());
    hash.update(&at.0.to_le_bytes());
    hash.update(body.as_bytes());
    for (mark, text) in [(0xfe, confirms), (0xff, origin)] {
        // No text contains these bytes.
        if let Some(text) = text {
            hash.update(&[mark]);
            hash.update(text.as_bytes());
        }
    }
    hash.finalize()
}

pub(super) fn to_json<T: serde::Serialize + ?Sized>(entries: &T) -> rusqlite::Result<String> {
    serde_json::to_string(entries)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

/// Returns the number of a row, by which an error names it; 0 if the column has no number.
pub(super) fn row_number(row: &Row<'_>, column: usize) -> i64 {
    row.get(column).unwrap_or(0)
}

/// Selects the checked columns of `jobs`, in the order that [`parse_job_row`] reads.
pub(super) const SELECT_JOBS: &str = "SELECT number, id, definition, graph, root, parent, step, \
                                   item, depth, created, checksum, state FROM jobs";

/// Returns the checksum of a row of `jobs`, over the fields that never change.
pub(super) fn job_checksum(row: &JobRow) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(row.id.0.as_bytes());
    let numbers = [
        row.number,
        row.definition,
        i64::from(row.graph),
        row.root,
        row.parent.unwrap_or(-1),
        row.step.map_or(-1, i64::from),
        row.item.map_or(-1, i64::from),
        i64::from(row.depth),
        row.created.0,
    ];
    numbers.iter().for_each(|number| hash.update(&number.to_le_bytes()));
    hash.finalize()
}

/// Parses a row of [`SELECT_JOBS`] and checks its checksum.
pub(super) fn parse_job_row(row: &Row<'_>, file: &str) -> Result<JobRow, JournalError> {
    let number = row_number(row, 0);
    let damaged = |what: String| JournalError::damaged_row(file, "jobs", number, what);
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
    let (job, stored) = read().map_err(|error| damaged(error.to_string()))?;
    if job_checksum(&job) == stored {
        Ok(job)
    } else {
        Err(damaged("the checksum does not match".to_owned()))
    }
}

/// The columns of `entries` that [`parse_entry_row`] reads.
pub(super) const ENTRY_COLUMNS: &str = "job, first, at, body, checksum, seq, confirms, origin";

/// A row of `entries`.
pub(super) struct EntryRow {
    /// The position among all rows.
    pub(super) seq: i64,
    pub(super) job: JobNumber,
    /// The number of its first entry within the job.
    pub(super) first: u64,
    pub(super) at: Timestamp,
    body: String,
    confirms: Option<String>,
    /// The fields of the job that never change; only in the job's first row.
    pub(super) origin: Option<JobRow>,
}

/// A decision within another row: the number of its first entry, its time, its entries.
pub(super) type InnerDecision = (u64, Timestamp, Vec<Entry>);

/// Converts an inner decision to the type from which jobs are rebuilt.
pub(super) fn to_recorded((first, at, entries): InnerDecision) -> Recorded {
    Recorded { first, at, entries }
}

impl EntryRow {
    /// Returns the size of the texts in bytes.
    pub(super) fn size(&self) -> usize {
        self.body.len() + self.confirms.as_ref().map_or(0, String::len)
    }

    /// Returns the decisions of the row: the confirms before it, then its own.
    pub(super) fn parse_decisions(&self, file: &str) -> Result<Vec<Recorded>, JournalError> {
        let read = || -> serde_json::Result<Vec<Recorded>> {
            let confirms: Option<Vec<InnerDecision>> =
                self.confirms.as_deref().map(serde_json::from_str).transpose()?;
            let own = (self.first, self.at, serde_json::from_str(&self.body)?);
            Ok(confirms.into_iter().flatten().chain([own]).map(to_recorded).collect())
        };
        read().map_err(|error| self.unreadable(file, &error))
    }

    /// Parses the row's own entries.
    pub(super) fn parse_entries(&self, file: &str) -> Result<Vec<Entry>, JournalError> {
        serde_json::from_str(&self.body).map_err(|error| self.unreadable(file, &error))
    }

    fn unreadable(&self, file: &str, error: &serde_json::Error) -> JournalError {
        damaged_entry(file, self.seq, format!("not an entry of this version: {error}"))
    }
}

/// Returns the error of a row that does not continue the entries before it.
pub(super) fn misplaced_row(seq: i64, first: u64, entries_before: u64, file: &str) -> JournalError {
    let what = format!(
        "it begins with entry {first} of its job, and {entries_before} entries come before it: a \
         row is missing, or there twice"
    );
    damaged_entry(file, seq, what)
}

/// Returns the error of a damaged row of `entries`.
pub(super) fn damaged_entry(file: &str, seq: i64, what: String) -> JournalError {
    JournalError::damaged_row(file, "entries", seq, what)
}

/// Parses a row of [`ENTRY_COLUMNS`] and checks its checksum.
pub(super) fn parse_entry_row(row: &Row<'_>, file: &str) -> Result<EntryRow, JournalError> {
    let seq = row_number(row, 5);
    let damaged = |what: String| damaged_entry(file, seq, what);
    let read = || -> rusqlite::Result<(JobNumber, i64, i64, String, u32)> {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
    };
    let read_optional =
        || -> rusqlite::Result<(Option<String>, Option<String>)> { Ok((row.get(6)?, row.get(7)?)) };
    let (job, first, at, body, stored) = read().map_err(|error| damaged(error.to_string()))?;
    let (confirms, origin) = read_optional().map_err(|error| damaged(error.to_string()))?;
    let first = u64::try_from(first).map_err(|_| damaged(format!("its place is {first}")))?;
    let at = Timestamp(at);
    let texts = (&*body, confirms.as_deref(), origin.as_deref());
    if entry_checksum(job, first, at, texts) != stored {
        return Err(damaged("the checksum does not match".to_owned()));
    }
    let origin = origin
        .map(|origin| parse_origin(job, &origin))
        .transpose()
        .map_err(|error| damaged(format!("its origin cannot be read: {error}")))?;
    Ok(EntryRow { seq, job, first, at, body, confirms, origin })
}

/// The fields of a job that never change, as its first row of `entries` has them: id, definition,
/// graph, root, parent, step, item, depth and creation time.
type OriginFields =
    (uuid::Uuid, i64, u16, JobNumber, Option<JobNumber>, Option<u16>, Option<u32>, u16, i64);

/// Formats a job's origin for its first row. The id is at [`ORIGIN_ID_SQL`].
pub(super) fn format_origin(row: &JobRow) -> rusqlite::Result<String> {
    let JobRow { number: _, id, definition, graph, root, parent, step, item, depth, created } = row;
    let id = id.to_string();
    to_json(&(id, definition, graph, root, parent, step, item, depth, created.0))
}

/// The SQL expression of the id within the text of an origin.
pub(super) const ORIGIN_ID_SQL: &str = "substr(origin, 3, 36)";

fn parse_origin(number: JobNumber, text: &str) -> serde_json::Result<JobRow> {
    let (id, definition, graph, root, parent, step, item, depth, created): OriginFields =
        serde_json::from_str(text)?;
    let (id, created) = (JobId(id), Timestamp(created));
    Ok(JobRow { number, id, definition, graph, root, parent, step, item, depth, created })
}

/// Selects the columns of `confirmed` that [`parse_confirm_row`] reads.
pub(super) const SELECT_CONFIRMS: &str = "SELECT seq, body, checksum FROM confirmed";

/// A row of `confirmed`: its position among the rows of `entries`, and the confirms of each job.
pub(super) type ConfirmRow = (i64, Vec<(JobNumber, Vec<InnerDecision>)>);

/// Parses a row of [`SELECT_CONFIRMS`] and checks its checksum.
pub(super) fn parse_confirm_row(row: &Row<'_>, file: &str) -> Result<ConfirmRow, JournalError> {
    let seq = row_number(row, 0);
    let damaged = |what: String| JournalError::damaged_row(file, "confirmed", seq, what);
    let read = || -> rusqlite::Result<(String, u32)> { Ok((row.get(1)?, row.get(2)?)) };
    let (body, stored) = read().map_err(|error| damaged(error.to_string()))?;
    if checksum(seq, &body) != stored {
        return Err(damaged("the checksum does not match".to_owned()));
    }
    let group = serde_json::from_str(&body)
        .map_err(|error| damaged(format!("not confirms of this version: {error}")))?;
    Ok((seq, group))
}

/// Parses `number, hash, body` of `definitions` and checks the hash.
pub(super) fn parse_definition_row(row: &Row<'_>, file: &str) -> Result<String, JournalError> {
    let number = row_number(row, 0);
    let damaged = |what: String| JournalError::damaged_row(file, "definitions", number, what);
    let read = || -> rusqlite::Result<([u8; 32], String)> { Ok((row.get(1)?, row.get(2)?)) };
    let (hash, body) = read().map_err(|error| damaged(error.to_string()))?;
    if DefinitionHash::from_json_text(&body).0 == hash {
        Ok(body)
    } else {
        Err(damaged("the content does not match its hash".to_owned()))
    }
}

/// Converts an error of SQLite, with advice and what to do about it.
pub(super) fn sqlite_error(file: &str, error: &rusqlite::Error) -> JournalError {
    let (advice, remedy) = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => {
            (". It needs room: on its disk, or by journal.pages_max", Remedy::WaitForSpace)
        }
        Some(ErrorCode::SystemIoFailure) => {
            (". Its disk is full or broken: df and the log of the system tell", Remedy::Exit)
        }
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            (". It and its directory must be writable for this user", Remedy::Exit)
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            ". Another program has it open, and keeps it locked: end that one",
            Remedy::WaitForLock,
        ),
        Some(_) | None => ("", Remedy::Exit),
    };
    JournalError::Failed { file: file.to_owned(), what: format!("{error}{advice}"), remedy }
}

/// Converts an error of SQLite, distinguishing damage of the file from other errors.
pub(super) fn to_journal_error(file: &str, error: rusqlite::Error) -> JournalError {
    let file = file.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt) => {
            JournalError::Malformed { file, what: error.to_string() }
        }
        Some(ErrorCode::NotADatabase) => {
            JournalError::Malformed { file, what: "it is no SQLite database".to_owned() }
        }
        _ => sqlite_error(&file, &error),
    }
}

/// Selects the columns that [`parse_notice_row`] reads.
pub(super) const SELECT_NOTICES: &str = "SELECT number, at, body, checksum FROM notices";

/// Parses a row of [`SELECT_NOTICES`] and checks its checksum.
pub(super) fn parse_notice_row(
    row: &Row<'_>,
    file: &str,
) -> Result<(NoticeNumber, Notice), JournalError> {
    let number = row_number(row, 0);
    let damaged = |what: String| JournalError::damaged_row(file, "notices", number, what);
    let read =
        || -> rusqlite::Result<(i64, String, u32)> { Ok((row.get(1)?, row.get(2)?, row.get(3)?)) };
    let (at, body, stored) = read().map_err(|error| damaged(error.to_string()))?;
    if checksum(at, &body) != stored {
        return Err(damaged("the checksum does not match".to_owned()));
    }
    Ok((number, Notice { at: Timestamp(at), body: body.into() }))
}

pub(super) fn insert_notice(connection: &Connection, notice: &Notice) -> rusqlite::Result<()> {
    let mut statement =
        connection.prepare_cached("INSERT INTO notices(at, body, checksum) VALUES (?1, ?2, ?3)")?;
    statement
        .execute(params![notice.at.0, notice.body, checksum(notice.at.0, &notice.body)])
        .map(|_| ())
}

/// Selects the columns that [`parse_offset_row`] reads.
pub(super) const SELECT_OFFSETS: &str =
    "SELECT bus, topic, part, position, checksum FROM bus_positions";

/// Parses a row of [`SELECT_OFFSETS`] and checks its checksum: too high an offset would skip
/// replies.
pub(super) fn parse_offset_row(row: &Row<'_>, file: &str) -> Result<StoredOffset, JournalError> {
    let number = row_number(row, 2);
    let damaged = |what: String| JournalError::damaged_row(file, "bus_positions", number, what);
    let read = || -> rusqlite::Result<(String, String, i32, i64, u32)> {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
    };
    let (bus, topic, partition, offset, stored) =
        read().map_err(|error| damaged(error.to_string()))?;
    let position = StoredOffset { bus: bus.into(), topic: topic.into(), partition, offset };
    if offset_checksum(&position) != stored {
        let StoredOffset { bus, topic, .. } = &position;
        return Err(damaged(format!(
            "the checksum of the position in the topic {topic} of the bus {bus} does not match"
        )));
    }
    Ok(position)
}

/// Returns the checksum of a row of `bus_positions`.
pub(super) fn offset_checksum(
    StoredOffset { bus, topic, partition, offset }: &StoredOffset,
) -> u32 {
    // No topic's name contains a line break.
    checksum(*offset, &format!("{bus}\n{topic}\n{partition}"))
}

/// Calls `each` with every row of a query on a file.
pub(super) fn for_each_row(
    (connection, file): (&Connection, &str),
    sql: &str,
    values: impl rusqlite::Params,
    mut each: impl FnMut(&Row<'_>) -> Result<(), JournalError>,
) -> Result<(), JournalError> {
    let failed = |error: rusqlite::Error| to_journal_error(file, error);
    let mut statement = connection.prepare_cached(sql).map_err(failed)?;
    let mut rows = statement.query(values).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        each(row)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    #[test]
    fn sqlite_errors_come_with_advice() {
        for (code, advice, remedy) in [
            (ffi::SQLITE_FULL, "needs room", Remedy::WaitForSpace),
            (ffi::SQLITE_IOERR_SHMSIZE, "disk is full or broken", Remedy::Exit),
            (ffi::SQLITE_READONLY, "must be writable", Remedy::Exit),
            (ffi::SQLITE_CANTOPEN, "must be writable", Remedy::Exit),
            (ffi::SQLITE_BUSY, "Another program", Remedy::WaitForLock),
            (ffi::SQLITE_LOCKED, "Another program", Remedy::WaitForLock),
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
