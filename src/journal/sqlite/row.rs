//! Rows as they stand in the file: their columns and checksums.

use crate::engine::{Entry, JobId, Timestamp};
use crate::journal::error::{JournalError, Remedy};
use crate::journal::record::{JobNumber, Notice, NoticeNumber};
use crate::journal::recover::JobRow;
use rusqlite::{Connection, Row, params};
use sha2::{Digest, Sha256};

/// The checksum of a row of `entries`, which ties the body to its job.
pub(super) fn checksum(job: JobNumber, body: &str) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(&job.to_le_bytes());
    hash.update(body.as_bytes());
    hash.finalize()
}

pub(super) fn encode(entries: &[Entry]) -> rusqlite::Result<String> {
    serde_json::to_string(entries)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

/// The content hash that names a definition.
pub(super) fn content_hash(body: &str) -> [u8; 32] {
    Sha256::digest(body.as_bytes()).into()
}

/// The checked columns of `jobs`, in the order that [`job_row`] reads.
pub(super) const JOB_ROWS: &str = "SELECT number, id, definition, graph, root, parent, step, item, depth, created, checksum, state FROM jobs";

/// The checksum of a row of `jobs`, over what never changes.
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

/// Reads a row of [`JOB_ROWS`] and compares its checksum.
pub(super) fn job_row(row: &Row<'_>, file: &str) -> Result<JobRow, JournalError> {
    let number: i64 = row.get(0).unwrap_or_default();
    let damaged = |what: String| JournalError::Damaged {
        file: file.to_owned(),
        table: "jobs",
        row: number,
        what,
    };
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

/// Reads `job, body, checksum, seq` of `entries` and compares the checksum.
pub(super) fn checked_body(row: &Row<'_>, file: &str) -> Result<String, JournalError> {
    let seq: i64 = row.get(3).unwrap_or_default();
    let damaged = |what: String| JournalError::Damaged {
        file: file.to_owned(),
        table: "entries",
        row: seq,
        what,
    };
    let read =
        || -> rusqlite::Result<(i64, String, u32)> { Ok((row.get(0)?, row.get(1)?, row.get(2)?)) };
    let (job, body, stored) = read().map_err(|error| damaged(error.to_string()))?;
    if checksum(job, &body) == stored {
        Ok(body)
    } else {
        Err(damaged("the checksum does not match".to_owned()))
    }
}

/// The entries in a row of `job, body, checksum, seq`.
pub(super) fn decoded_body(row: &Row<'_>, file: &str) -> Result<Vec<Entry>, JournalError> {
    let body = checked_body(row, file)?;
    serde_json::from_str(&body).map_err(|error| JournalError::Damaged {
        file: file.to_owned(),
        table: "entries",
        row: row.get(3).unwrap_or_default(),
        what: format!("not an entry of this version: {error}"),
    })
}

/// Reads `number, hash, body` of `definitions` and compares the hash.
pub(super) fn checked_definition(row: &Row<'_>, file: &str) -> Result<String, JournalError> {
    let number: i64 = row.get(0).unwrap_or_default();
    let damaged = |what: String| JournalError::Damaged {
        file: file.to_owned(),
        table: "definitions",
        row: number,
        what,
    };
    let read = || -> rusqlite::Result<([u8; 32], String)> { Ok((row.get(1)?, row.get(2)?)) };
    let (hash, body) = read().map_err(|error| damaged(error.to_string()))?;
    if content_hash(&body) == hash {
        Ok(body)
    } else {
        Err(damaged("the content does not match its hash".to_owned()))
    }
}

/// What SQLite says, with what to do about it.
pub(super) fn failed(file: &str, error: &rusqlite::Error) -> JournalError {
    let is_full = error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull);
    JournalError::Failed {
        file: file.to_owned(),
        what: error.to_string(),
        remedy: if is_full { Remedy::WaitForRoom } else { Remedy::Exit },
    }
}

/// Tells damage of the file from other errors of SQLite.
pub(super) fn damaged_or_failed(file: &str, error: rusqlite::Error) -> JournalError {
    let file = file.to_owned();
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseCorrupt) => {
            JournalError::Malformed { file, what: error.to_string() }
        }
        Some(rusqlite::ErrorCode::NotADatabase) => {
            JournalError::Malformed { file, what: "it is no SQLite database".to_owned() }
        }
        _ => failed(&file, &error),
    }
}

/// The columns that [`notice`] reads.
pub(super) const NOTICE_ROWS: &str = "SELECT number, at, body, checksum FROM notices";

/// Reads a row of [`NOTICE_ROWS`] and compares its checksum.
pub(super) fn notice(row: &Row<'_>, file: &str) -> Result<(NoticeNumber, Notice), JournalError> {
    let number = row.get(0).unwrap_or_default();
    let damaged = |what: String| JournalError::Damaged {
        file: file.to_owned(),
        table: "notices",
        row: number,
        what,
    };
    let read =
        || -> rusqlite::Result<(i64, String, u32)> { Ok((row.get(1)?, row.get(2)?, row.get(3)?)) };
    let (at, body, stored) = read().map_err(|error| damaged(error.to_string()))?;
    if checksum(at, &body) != stored {
        return Err(damaged("the checksum does not match".to_owned()));
    }
    Ok((number, Notice { at: Timestamp(at), body: body.into() }))
}

/// Writes a notice.
pub(super) fn insert_notice(connection: &Connection, notice: &Notice) -> rusqlite::Result<()> {
    let mut statement =
        connection.prepare_cached("INSERT INTO notices(at, body, checksum) VALUES (?1, ?2, ?3)")?;
    statement
        .execute(params![notice.at.0, notice.body, checksum(notice.at.0, &notice.body)])
        .map(|_| ())
}
