//! A journal in one SQLite file (see docs/why/guarantees.md).
//!
//! Table `entries` is the source of truth: one row for each decision of a job, with its entries as
//! JSON and a checksum. A commit appends to this table (`append`). Confirms of running steps are
//! the exception: they share rows of another table first (`confirms`).
//!
//! The other tables are projected later, for many commits at once. A watermark records up to which
//! row they are complete (`projection`). They are the index of a job's rows (`places`), the tables
//! `jobs`, `cells`, `failures` and `tolerated`, which lists and searches read, and the status
//! tables `status_…`, which users read (`status_projection`, `status_query`).

mod append;
mod backup;
mod cells;
mod children;
mod confirms;
mod controls;
mod copy;
mod definitions;
mod disk_full;
mod failure_groups;
mod failures;
mod file_rows;
mod file_watch;
mod files;
mod history;
mod ledgers;
mod limit_rates;
mod notices;
mod offsets;
mod projection;
mod reader;
mod refill;
mod reserve;
mod retention;
mod row_format;
mod schema;
mod schema_objects;
mod search;
mod shm;
mod statistics;
mod status_projection;
mod status_query;
mod status_table;
mod status_table_setup;
mod store;
mod trends;
mod unprojected;
mod writer;

pub use backup::{BackupSummary, back_up, inspect_backup, restore};
pub(crate) use copy::{FileCopySource, copy_into_file};
pub use reader::Reader;
pub use schema::JournalOptions;
pub use store::SqliteJournal;

/// Creates a journal without jobs, for tests of SQLite's schema and query plans. Returns its
/// temporary directory too.
#[cfg(test)]
fn empty_journal() -> (tempfile::TempDir, rusqlite::Connection) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("j.db");
    let options = JournalOptions {
        file: file.clone(),
        cache_bytes: 1 << 20,
        verify_bytes_max: 0,
        pages_max: 0,
    };
    drop(SqliteJournal::open(&options).expect("the journal opens"));
    (directory, rusqlite::Connection::open(&file).expect("the file opens"))
}
