//! The journal: the durable, ordered log of entries from which all jobs can be rebuilt.
//!
//! A job has a *number*, which is unique in the journal; the numbers of a manager's jobs increase
//! in the order of creation.
//! Its id, a UUID, may be used again once the job has ended. The traits [`Journal`] and [`Records`]
//! are the interface of any journal; [`SqliteJournal`] stores a journal in a file,
//! [`PostgresJournal`] in a database.

mod checksums;
mod cluster;
mod copy;
mod error;
mod failures;
mod inconsistency;
mod last_instant;
mod numbers;
mod ownership;
mod postgres;
mod query;
mod record;
mod recover;
mod sql;
mod sqlite;
mod traits;
mod tree_rebuilder;

pub use cluster::{ActiveProcess, ClusterName, ClusterProcess, ClusterStatus};
pub use copy::{CopyCounts, CopyProgress, CopySummary, JournalPlace, copy_journal};
pub use error::{FileLoss, JournalError, Remedy};
pub use failures::{FailureFilter, FailureGroup, FailureGroups, GROUPED_FAILURES_MAX};
pub use numbers::{JobNumbers, NameOrdinal, spread_key};
pub use ownership::{LEASE, Ownership};
pub use postgres::{
    Announcement, DatabaseInspection, PostgresAddress, PostgresJournal, PostgresOptions,
    PostgresStandby, check_manager_name,
};
pub use query::{
    CellRefill, ChildCursor, ChildFilter, ChildRow, DefinitionUse, EndedCursor, ForeignName,
    ItemRow, JobAtEntry, JobCreation, JobFilter, NEWEST_CURSOR, ParentKey, ParentRecord,
    RecordHead, RecordPage, RecordVersion, SearchHit, SearchOrder, StatusFilter, StatusRow,
    StoredJob,
};
pub use record::{
    DeletedJob, Deletion, DiskUsage, JobNumber, NewJob, Notice, NoticeNumber, Record, StoredLedger,
    StoredOffset, StoredTrend,
};
pub use recover::RecoveredJob;
pub use sqlite::{
    BackupSummary, JournalOptions, Reader, SqliteJournal, back_up, inspect_backup, restore,
};
pub use traits::{
    ChildRecords, ClusterRecords, DefinitionRecords, FailureRecords, HistoryRecords, JobRecords,
    Journal, NoticeRecords, OffsetRecords, Records, ScheduleRecords, SearchRecords,
    StatisticsRecords, StatusRecords, TrendRecords,
};
