//! A journal in one SQLite file (docs/guarantees.md).
//!
//! Table `entries` is the source of truth: one row for each decision of a job, with its entries as
//! JSON and a checksum. A commit appends to this table and writes what cannot wait (`append`).
//! Everything else is projected later, for many commits at once, with a mark up to which row it is
//! complete (`projection`): the index of a job's rows (`places`), the table `jobs`, which lists and
//! searches read, and the status tables `status_…`, for users to read (`status_projection`,
//! `status_query`). Confirms are the exception (`confirms`).

mod append;
mod backup;
mod changes;
mod children;
mod confirms;
mod core;
mod definitions;
mod derive;
mod former;
mod history;
mod lending;
mod notices;
mod objects;
mod past;
mod place;
mod positions;
mod reader;
mod records;
mod relation;
mod reserve;
mod retention;
mod row;
mod rows;
mod schema;
mod search;
mod shm;
mod status;
mod status_query;
mod status_tables;
mod store;
mod watch;

pub use backup::{Copied, back_up, check, restore};
pub use reader::Reader;
pub use relation::INDEXED_COLUMNS_MAX;
pub use schema::Options;
pub use store::Store;

/// Creates a journal without jobs, for tests of SQLite's query plans; returns its folder too.
#[cfg(test)]
fn empty_journal() -> (tempfile::TempDir, rusqlite::Connection) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let options =
        Options { file: file.clone(), cache_bytes: 1 << 20, verify_bytes_max: 0, pages_max: 0 };
    drop(Store::open(&options).expect("a journal"));
    (folder, rusqlite::Connection::open(&file).expect("opens"))
}
