//! A journal in a PostgreSQL database (docs/how-to/use-postgresql.md).
//!
//! Table `entries` is the source of truth: one row for each decision of a job, with its entries as
//! JSON and a checksum. The commit that writes a row also writes what follows from it: the row of
//! the job (`jobs`), the statuses of its steps (`statuses`), and the notice for the webhook. So
//! lists, searches and statuses never lag behind.
//!
//! Of all processes with one name, one is active and writes (`claim`), which it shows by its
//! `beat`. Each of its transactions locks the process's own *fence* row (`commit_connection`). A
//! process that takes the name over marks that row dead first, so the earlier process cannot commit
//! any more.

mod append;
mod beat;
mod cells;
mod children;
mod claim;
mod cluster;
mod commit_columns;
mod commit_connection;
mod commit_sql;
mod connection;
mod controls;
mod copy;
mod copy_reader;
mod day_drops;
mod day_keeper;
mod day_survey;
mod days;
mod definitions;
mod deletion_plan;
mod failure_groups;
mod failures;
mod fault;
mod history;
mod io_thread;
mod limit_rates;
mod options;
mod pool;
mod reader;
mod retention;
mod rows;
mod schema;
mod search;
mod statistics;
mod status_query;
mod status_steps;
mod store;
mod trends;
mod view_columns;
mod writer;

pub use claim::{Announcement, DatabaseInspection};
pub(crate) use copy::{copy_from_database, copy_into_database};
pub use options::{PostgresAddress, PostgresOptions, check_manager_name};
pub use store::{PostgresJournal, PostgresStandby};
