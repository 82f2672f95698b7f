//! Entries as versions before schema 6 wrote them, read once when such a journal is opened. Their
//! rows had no entry number and no time; most entries contained their own time.

use super::row_format::{
    checksum, damaged_entry, entry_checksum, row_number, to_journal_error, to_json, to_sql_number,
};
use crate::error::JournalError;
use crate::record::JobNumber;
use engine::{
    Caller, CallerEntry, Entry, Failure, FanOutEntry, JobEntry, JobId, Json, Message, Progress,
    StepEntry, StepIndex, Timestamp,
};
use rusqlite::{Connection, Row, params};
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::Arc;

/// Selects the rows of the old table.
pub(super) const SELECT_PREVIOUS_ENTRIES: &str = "SELECT job, body, checksum, seq FROM entries";

/// Reads a row of [`SELECT_PREVIOUS_ENTRIES`] and checks its checksum.
pub(super) fn parse_row(row: &Row<'_>, file: &str) -> Result<String, JournalError> {
    let seq = row_number(row, 3);
    let read = || -> rusqlite::Result<(JobNumber, String, u32)> {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    };
    let (job, body, stored) =
        read().map_err(|error| damaged_entry(file, seq, error.to_string()))?;
    if checksum(job, &body) == stored {
        Ok(body)
    } else {
        Err(damaged_entry(file, seq, "the checksum does not match".to_owned()))
    }
}

/// Writes the rows of the table `former_entries` to `entries`, and drops it. A row whose entries
/// contain no time gets the time of the row before, or of the job's creation.
pub(super) fn migrate(connection: &Connection, file: &str) -> Result<(), JournalError> {
    let failed = |error: rusqlite::Error| to_journal_error(file, error);
    let mut written: HashMap<JobNumber, WrittenRows> = HashMap::new();
    let sql = "SELECT e.job, e.body, e.checksum, e.seq, j.created FROM former_entries e
               JOIN jobs j ON j.number = e.job ORDER BY e.seq";
    let mut statement = connection.prepare(sql).map_err(failed)?;
    let mut insert = connection
        .prepare(
            "INSERT INTO entries(seq, job, first, at, body, checksum) VALUES (?1, ?2, ?3, ?4, ?5, \
             ?6)",
        )
        .map_err(failed)?;
    let mut rows = statement.query([]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let body = parse_row(row, file)?;
        let (job, seq, created): (JobNumber, i64, i64) =
            (row.get(0).map_err(failed)?, row.get(3).map_err(failed)?, row.get(4).map_err(failed)?);
        let old: Vec<PreviousEntry> = serde_json::from_str(&body).map_err(|error| {
            damaged_entry(file, seq, format!("not an entry of a version before: {error}"))
        })?;
        let past = written.entry(job).or_insert(WrittenRows { entries: 0, at: Timestamp(created) });
        let now = old.into_iter().map(PreviousEntry::into_current);
        let (entries, times): (Vec<Entry>, Vec<Option<Timestamp>>) = now.unzip();
        past.at = times.into_iter().flatten().next_back().unwrap_or(past.at);
        let body = to_json(&entries).map_err(failed)?;
        let sum = entry_checksum(job, past.entries, past.at, &body);
        insert
            .execute(params![seq, job, to_sql_number(past.entries), past.at.0, body, sum])
            .map_err(failed)?;
        past.entries += entries.len() as u64;
    }
    drop(rows);
    drop(statement);
    drop_table(connection).map_err(failed)
}

/// Drops the table `former_entries`.
pub(super) fn drop_table(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("DROP TABLE former_entries;")
}

/// What was written of a job so far.
struct WrittenRows {
    entries: u64,
    at: Timestamp,
}

/// An entry as it was written.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum PreviousEntry {
    JobCreated {
        message: Option<Message>,
        deadline: Option<Timestamp>,
    },
    StepStarted {
        step: StepIndex,
        attempt: u32,
        at: Timestamp,
        deadline: Option<Timestamp>,
    },
    StepConfirmed {
        step: StepIndex,
    },
    StepUnconfirmed {
        step: StepIndex,
        at: Option<Timestamp>,
    },
    StepCompleted {
        step: StepIndex,
        at: Timestamp,
        output: Message,
    },
    StepProgressed {
        step: StepIndex,
        at: Timestamp,
        progress: Progress,
        deadline: Option<Timestamp>,
    },
    AttemptFailed {
        step: StepIndex,
        attempt: u32,
        at: Timestamp,
        failure: Failure,
        retry_at: Timestamp,
    },
    StepSkipped {
        step: StepIndex,
        at: Timestamp,
    },
    StepCancelled {
        step: StepIndex,
        at: Timestamp,
    },
    StepFailed {
        step: StepIndex,
        at: Timestamp,
        failure: Failure,
    },
    FanOutStarted {
        step: StepIndex,
        at: Timestamp,
        items: u32,
        warning: Option<Arc<str>>,
        deadline: Option<Timestamp>,
    },
    FanOutRestarted {
        step: StepIndex,
        attempt: u32,
        at: Timestamp,
        deadline: Option<Timestamp>,
    },
    ChildrenStarted {
        step: StepIndex,
        from: u32,
        count: u32,
        #[serde(default)]
        own_ids: Vec<(u32, JobId)>,
    },
    ChildCompleted {
        step: StepIndex,
        index: u32,
        item: Option<(u16, Json)>,
        #[serde(default)]
        others: Vec<(u16, Arc<str>, Json)>,
    },
    ChildFailed {
        step: StepIndex,
        index: u32,
    },
    FanOutCompleted {
        step: StepIndex,
        at: Timestamp,
    },
    JobCompleted {
        at: Timestamp,
    },
    JobFailed {
        at: Timestamp,
        reason: Arc<str>,
        #[serde(default)]
        expired: bool,
        step: Option<StepIndex>,
    },
    JobPaused {
        at: Timestamp,
    },
    JobResumed {
        at: Timestamp,
    },
    JobRetried {
        at: Timestamp,
        round: u32,
        deadline: Option<Timestamp>,
    },
    JobRerun {
        at: Timestamp,
        step: StepIndex,
        deadline: Option<Timestamp>,
    },
    JobCancelled {
        at: Timestamp,
        reason: Arc<str>,
    },
    CallerJoined {
        caller: Caller,
    },
    CallerAnswered {
        caller: u32,
    },
}

impl PreviousEntry {
    /// Converts the entry to the current type, with its time, if it contained one.
    fn into_current(self) -> (Entry, Option<Timestamp>) {
        match self {
            PreviousEntry::JobCreated { message, deadline } => {
                let (trace, trace_state) = (None, None);
                (Entry::Job(JobEntry::Created { message, deadline, trace, trace_state }), None)
            }
            PreviousEntry::StepStarted { step, attempt, at, deadline } => {
                (Entry::Step(step, StepEntry::Started { attempt, deadline }), Some(at))
            }
            PreviousEntry::StepConfirmed { step } => {
                (Entry::Step(step, StepEntry::Confirmed), None)
            }
            PreviousEntry::StepUnconfirmed { step, at } => {
                (Entry::Step(step, StepEntry::Unconfirmed), at)
            }
            PreviousEntry::StepCompleted { step, at, output } => {
                (Entry::Step(step, StepEntry::Completed(output)), Some(at))
            }
            PreviousEntry::StepProgressed { step, at, progress, deadline } => {
                (Entry::Step(step, StepEntry::Progressed { progress, deadline }), Some(at))
            }
            PreviousEntry::AttemptFailed { step, attempt, at, failure, retry_at } => {
                let entry = StepEntry::AttemptFailed { attempt, failure, retry_at };
                (Entry::Step(step, entry), Some(at))
            }
            PreviousEntry::StepSkipped { step, at } => {
                (Entry::Step(step, StepEntry::Skipped), Some(at))
            }
            PreviousEntry::StepCancelled { step, at } => {
                (Entry::Step(step, StepEntry::Cancelled), Some(at))
            }
            PreviousEntry::StepFailed { step, at, failure } => {
                (Entry::Step(step, StepEntry::Failed(failure)), Some(at))
            }
            PreviousEntry::FanOutStarted { step, at, items, warning, deadline } => {
                let entry = FanOutEntry::Started { items, warning, deadline };
                (Entry::FanOut(step, entry), Some(at))
            }
            PreviousEntry::FanOutRestarted { step, attempt, at, deadline } => {
                (Entry::FanOut(step, FanOutEntry::Restarted { attempt, deadline }), Some(at))
            }
            PreviousEntry::ChildrenStarted { step, from, count, own_ids } => {
                (Entry::FanOut(step, FanOutEntry::ChildrenStarted { from, count, own_ids }), None)
            }
            PreviousEntry::ChildCompleted { step, index, item, others } => {
                (Entry::FanOut(step, FanOutEntry::ChildCompleted { index, item, others }), None)
            }
            PreviousEntry::ChildFailed { step, index } => {
                (Entry::FanOut(step, FanOutEntry::ChildFailed { index }), None)
            }
            PreviousEntry::FanOutCompleted { step, at } => {
                (Entry::FanOut(step, FanOutEntry::Completed), Some(at))
            }
            PreviousEntry::JobCompleted { at } => (Entry::Job(JobEntry::Completed), Some(at)),
            PreviousEntry::JobFailed { at, reason, expired, step } => {
                (Entry::Job(JobEntry::Failed { reason, expired, step }), Some(at))
            }
            PreviousEntry::JobPaused { at } => (Entry::Job(JobEntry::Paused), Some(at)),
            PreviousEntry::JobResumed { at } => (Entry::Job(JobEntry::Resumed), Some(at)),
            PreviousEntry::JobRetried { at, round, deadline } => {
                (Entry::Job(JobEntry::Retried { round, deadline }), Some(at))
            }
            PreviousEntry::JobRerun { at, step, deadline } => {
                (Entry::Job(JobEntry::Rerun { step, deadline }), Some(at))
            }
            PreviousEntry::JobCancelled { at, reason } => {
                (Entry::Job(JobEntry::Cancelled { reason, by_parent: false }), Some(at))
            }
            PreviousEntry::CallerJoined { caller } => {
                (Entry::Caller(CallerEntry::Joined(caller)), None)
            }
            PreviousEntry::CallerAnswered { caller } => {
                (Entry::Caller(CallerEntry::Answered(caller)), None)
            }
        }
    }
}
