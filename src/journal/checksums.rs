//! The checksums of rows, which any storage keeps beside them.

use super::record::{JobNumber, StoredOffset, StoredTrend};
use super::recover::JobRow;
use engine::{Control, RateMark, Timestamp};

/// Returns the checksum of a text and a number of its row, such as its key, so that a text that was
/// moved to another row is detected.
pub(crate) fn checksum(number: i64, text: &str) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(&number.to_le_bytes());
    hash.update(text.as_bytes());
    hash.finalize()
}

/// The JSON texts of a row of `entries`.
#[derive(Clone, Copy)]
pub(crate) struct EntryTexts<'a> {
    /// The row's own entries.
    pub(crate) body: &'a str,
    /// The confirms before them; `None` if there are none.
    pub(crate) confirms: Option<&'a str>,
    /// The origin of the job; only in the job's first row.
    pub(crate) origin: Option<&'a str>,
}

impl<'a> EntryTexts<'a> {
    /// Creates the texts of a row with nothing but its own entries.
    pub(crate) fn body_alone(body: &'a str) -> EntryTexts<'a> {
        EntryTexts { body, confirms: None, origin: None }
    }
}

/// Returns the checksum of a row of `entries`, over its texts, job, first entry and time.
pub(crate) fn entry_checksum(
    job: JobNumber,
    first: u64,
    at: Timestamp,
    texts: EntryTexts<'_>,
) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(&job.to_le_bytes());
    hash.update(&first.to_le_bytes());
    hash.update(&at.0.to_le_bytes());
    hash.update(texts.body.as_bytes());
    // The separators are bytes that do not occur in UTF-8.
    for (separator, text) in [(0xfe, texts.confirms), (0xff, texts.origin)] {
        if let Some(text) = text {
            hash.update(&[separator]);
            hash.update(text.as_bytes());
        }
    }
    hash.finalize()
}

/// Returns the checksum of a row of `jobs`, over the fields that never change.
pub(crate) fn job_checksum(row: &JobRow) -> u32 {
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

/// Returns the checksum of a row with how far a rate is used up.
pub(crate) fn mark_checksum(RateMark { limit, key, time }: &RateMark) -> u32 {
    // This is unambiguous, because no limit's name contains a line break.
    checksum(time.0, &format!("{limit}\n{key}"))
}

/// Returns the checksum of a stored ledger.
pub(crate) fn ledger_checksum(schedule: &str, ledger: &str) -> u32 {
    // This is unambiguous, because no schedule's name contains a line break.
    checksum(0, &format!("{schedule}\n{ledger}"))
}

/// Returns the checksum of a stored bucket of a trend.
pub(crate) fn trend_checksum(
    StoredTrend { ring, position, workflow, start, body }: &StoredTrend,
) -> u32 {
    // This is unambiguous, because no workflow's name contains a line break.
    checksum(start.0, &format!("{ring}\n{position}\n{workflow}\n{body}"))
}

/// Returns the checksum of a stored offset.
pub(crate) fn offset_checksum(
    StoredOffset { bus, topic, partition, offset }: &StoredOffset,
) -> u32 {
    // This is unambiguous, because no topic's name contains a line break.
    checksum(*offset, &format!("{bus}\n{topic}\n{partition}"))
}

/// Parses the stored form of a control. Returns `None` if it is not what was written.
pub(crate) fn parse_control(body: &str, sum: i64) -> Option<Control> {
    let control = serde_json::from_str(body).ok();
    control.filter(|_| i64::from(checksum(0, body)) == sum)
}
