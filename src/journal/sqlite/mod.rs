//! A journal in one SQLite file (SPEC §5).
//!
//! Table `entries` is the truth: one row for each decision of a job, its entries as JSON under a
//! checksum. Table `jobs` holds what never changes about a job, and what lists and filters need. The
//! tables `status_…` follow from the entries, for users to read (`status`, `status_query`).

mod children;
mod former;
mod history;
mod notices;
mod place;
mod reader;
mod relate;
mod relation;
mod retention;
mod row;
mod rows;
mod schema;
mod search;
mod status;
mod status_query;
mod store;
mod watch;

pub use reader::Reader;
pub use relation::INDEXED_COLUMNS_MAX;
pub use schema::Options;
pub use store::Store;
