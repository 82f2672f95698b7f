//! The days: `jobs`, `entries` and `statuses` have a partition for the jobs that are created on a
//! day, such as `jobs_20261126`. There is no default partition, because with one PostgreSQL could
//! not detach a day while others write.
//!
//! A day is made before its first job: days ahead at a takeover and with the retention, and else by
//! the commit that needs it.

use super::connection::{Connection, params};
use crate::numbers::Day;
use std::collections::BTreeSet;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// How many days are made ahead.
pub(super) const DAYS_AHEAD: i64 = 3;

/// The tables with a partition for each day, and the column with the number of the job. The first
/// is detached first: without its row a job does not exist.
pub(super) const TABLES: [(&str, &str); 3] =
    [("jobs", "number"), ("entries", "job"), ("statuses", "job")];

/// The errors of a day that another process has made at the same time.
const EXISTS_ERRORS: [SqlState; 3] =
    [SqlState::DUPLICATE_TABLE, SqlState::UNIQUE_VIOLATION, SqlState::DUPLICATE_OBJECT];

/// Returns the name of a table's partition for a day.
pub(super) fn partition(table: &str, day: Day) -> String {
    format!("{table}_{}", day.date())
}

/// Returns the day of a partition, by its name; `None` if it is not a partition.
pub(super) fn day_of_partition(name: &str) -> Option<Day> {
    let (table, date) = name.rsplit_once('_')?;
    TABLES.iter().any(|(known, _)| *known == table).then(|| Day::from_date(date)).flatten()
}

/// Returns the days that can take jobs.
pub(super) async fn load_days(connection: &Connection) -> Result<BTreeSet<Day>, Error> {
    let sql = "SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
               WHERE i.inhparent = 'jobs'::regclass AND NOT i.inhdetachpending";
    let rows = connection.query(sql, &params![]).await?;
    Ok(rows.iter().filter_map(|row| day_of_partition(row.get(0))).collect())
}

/// Makes those of these days that do not exist yet. Returns all days that can take jobs.
///
/// A table is created and then attached, which, unlike `CREATE TABLE … PARTITION OF`, waits for no
/// reader, and keeps none waiting.
pub(super) async fn make_days(
    connection: &Connection,
    days: &BTreeSet<Day>,
) -> Result<BTreeSet<Day>, Error> {
    let existing = load_days(connection).await?;
    if days.is_subset(&existing) {
        return Ok(existing);
    }
    for day in days.difference(&existing) {
        // The statements of one message are one transaction.
        match connection.batch_execute(&make_sql(*day)).await {
            Ok(()) => {}
            Err(error) if error.code().is_some_and(|code| EXISTS_ERRORS.contains(code)) => {}
            Err(error) => return Err(error),
        }
    }
    load_days(connection).await
}

/// Returns the SQL that makes a day.
fn make_sql(day: Day) -> String {
    let (first, end) = (day.first(), day.end());
    let statements = TABLES.map(|(table, _)| {
        let partition = partition(table, day);
        format!(
            "CREATE TABLE {partition} (LIKE {table} INCLUDING ALL);
             ALTER TABLE {table} ATTACH PARTITION {partition} FOR VALUES FROM ({first}) TO ({end});"
        )
    });
    statements.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_partition_tells_its_day() {
        let day = Day::from_date("20261126").unwrap();
        assert_eq!(partition("entries", day), "entries_20261126");
        assert_eq!(day_of_partition("entries_20261126"), Some(day));
        for other in ["entries", "definition_steps", "customers_20261126", "jobs_2026", "jobs_x"] {
            assert_eq!(day_of_partition(other), None, "{other}");
        }
    }
}
