//! What is done for the days in the background, over a connection of its own: days ahead are made,
//! days whose jobs are all past their retention are found, and such days are detached.

use super::connection::{Connection, params};
use super::days::{DAYS_AHEAD, TABLES, day_of_partition, make_days, partition};
use crate::numbers::{Day, NameOrdinal};
use crate::record::{DeletedJob, JobNumber};
use engine::JobId;
use std::collections::{BTreeMap, BTreeSet};
use tokio_postgres::{Error, Row};

/// How many days one survey finds at most.
const FOUND_DAYS_MAX: usize = 10;

/// Before which time the jobs of each definition must have ended to be deleted.
#[derive(Clone, Default)]
pub(super) struct RetentionLimits {
    pub(super) definitions: Vec<i64>,
    pub(super) before: Vec<i64>,
}

/// A day whose jobs are all past their retention.
pub(super) struct PastDay {
    pub(super) day: Day,
    /// The number of its root jobs.
    pub(super) roots: usize,
    /// The number of its jobs.
    pub(super) jobs: usize,
    /// The jobs that take input, although they have ended.
    pub(super) open: Vec<DeletedJob>,
}

/// What a survey has found.
pub(super) struct Survey {
    pub(super) past_days: Vec<PastDay>,
    /// The days whose drop was interrupted.
    pub(super) interrupted: Vec<Day>,
}

/// Whether a table of a day is still a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartitionState {
    Attached,
    /// `DETACH … CONCURRENTLY` was interrupted.
    Pending,
    Detached,
}

/// Makes the days ahead, and finds those of the earlier days that can be dropped. The last day is
/// never looked at, because clocks differ.
pub(super) async fn survey(
    connection: &Connection,
    today: Day,
    is_new_day: bool,
    ordinal: NameOrdinal,
    limits: &RetentionLimits,
) -> Result<Survey, Error> {
    make_days(connection, &(0..=DAYS_AHEAD).map(|days| today.plus(days)).collect()).await?;
    if is_new_day {
        for (table, _) in TABLES {
            connection.batch_execute(&format!("ANALYZE {table}")).await?;
        }
    }
    let mut survey = Survey { past_days: Vec::new(), interrupted: Vec::new() };
    for (day, state) in load_states(connection, TABLES[0].0).await? {
        if day >= today.plus(-1) || survey.past_days.len() == FOUND_DAYS_MAX {
            continue;
        }
        if state != PartitionState::Attached {
            // A day with jobs of other names alone is theirs.
            let own = ordinal.condition("number");
            let sql = format!(
                "SELECT coalesce(bool_or({own}), true) FROM {}",
                partition(TABLES[0].0, day)
            );
            if is_true(connection, &sql).await? {
                survey.interrupted.push(day);
            }
        } else if !has_jobs_to_keep(connection, day, limits).await?
            && !has_foreign_jobs(connection, day, ordinal).await?
        {
            survey.past_days.push(describe(connection, day).await?);
        }
    }
    Ok(survey)
}

/// Returns the SQL that says whether a day has a job that must stay. Its parameters are the
/// retention limits. Each part is answered by an index: a root job that runs, one whose retention
/// is not over, and a job tree that also has jobs of other days.
pub(super) fn stay_sql(day: Day) -> String {
    let jobs = partition(TABLES[0].0, day);
    let (first, end) = (day.first(), day.end());
    format!(
        "SELECT EXISTS (SELECT 1 FROM {jobs} WHERE parent IS NULL AND ended IS NULL)
             OR EXISTS (SELECT 1 FROM unnest($1::bigint[], $2::bigint[]) AS u(definition, before)
                        JOIN {jobs} j ON j.definition = u.definition AND j.ended >= u.before
                        WHERE j.parent IS NULL AND j.ended IS NOT NULL)
             OR EXISTS (SELECT 1 FROM {jobs} WHERE parent IS NOT NULL AND root < {first})
             OR EXISTS (SELECT 1 FROM jobs WHERE parent IS NOT NULL AND number >= {end}
                          AND root >= {first} AND root < {end})"
    )
}

async fn has_jobs_to_keep(
    connection: &Connection,
    day: Day,
    limits: &RetentionLimits,
) -> Result<bool, Error> {
    let params = params![limits.definitions.clone(), limits.before.clone()];
    let rows = connection.query(&stay_sql(day), &params).await?;
    if rows.first().is_none_or(|row| row.get(0)) {
        return Ok(true);
    }
    // A definition that is newer than the limits.
    let jobs = partition(TABLES[0].0, day);
    let sql = format!("SELECT EXISTS (SELECT 1 FROM {jobs} WHERE definition <> ALL($1))");
    let rows = connection.query(&sql, &params![limits.definitions.clone()]).await?;
    Ok(rows.first().is_none_or(|row| row.get(0)))
}

async fn has_foreign_jobs(
    connection: &Connection,
    day: Day,
    ordinal: NameOrdinal,
) -> Result<bool, Error> {
    let (jobs, own) = (partition(TABLES[0].0, day), ordinal.condition("number"));
    let sql = format!("SELECT EXISTS (SELECT 1 FROM {jobs} WHERE NOT ({own}))");
    is_true(connection, &sql).await
}

async fn is_true(connection: &Connection, sql: &str) -> Result<bool, Error> {
    let rows = connection.query(sql, &params![]).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

async fn describe(connection: &Connection, day: Day) -> Result<PastDay, Error> {
    let jobs = partition(TABLES[0].0, day);
    let sql = format!("SELECT count(*) FILTER (WHERE parent IS NULL), count(*) FROM {jobs}");
    let rows = connection.query(&sql, &params![]).await?;
    let count = |column: usize| {
        let count: i64 = rows.first().map_or(0, |row| row.get(column));
        usize::try_from(count).unwrap_or(0)
    };
    let sql = format!("SELECT id, number FROM {jobs} WHERE open");
    let to_job = |row: &Row| DeletedJob { id: JobId(row.get(0)), number: row.get(1) };
    let open = connection.query(&sql, &params![]).await?.iter().map(to_job).collect();
    Ok(PastDay { day, roots: count(0), jobs: count(1), open })
}

/// Returns the days of a table that has one for each, with the state of their partitions.
async fn load_states(
    connection: &Connection,
    table: &str,
) -> Result<BTreeMap<Day, PartitionState>, Error> {
    let sql = "SELECT c.relname::text, c.relispartition, coalesce(i.inhdetachpending, false)
               FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
               WHERE c.relkind = 'r' AND c.relname LIKE $1 || '\\_%' AND c.relnamespace =
                 (SELECT relnamespace FROM pg_class WHERE oid = to_regclass($1))";
    let rows = connection.query(sql, &params![table.to_owned()]).await?;
    let to_state = |row: &Row| match (row.get(1), row.get(2)) {
        (true, false) => PartitionState::Attached,
        (true, true) => PartitionState::Pending,
        (false, _) => PartitionState::Detached,
    };
    let to_day = |row: &Row| Some((day_of_partition(row.get(0))?, to_state(row)));
    Ok(rows.iter().filter_map(to_day).collect())
}

/// The tables with rows of jobs that have no partitions, so that a day does not drop them.
pub(super) const UNPARTITIONED: [&str; 3] = ["cells", "failures", "tolerated"];

/// How many jobs lose their rows at once.
const DELETED_JOBS: i64 = 5_000;

/// Deletes what a table without partitions has of the jobs of a day, a part at a time, so that no
/// commit waits for all of it.
async fn delete_of_day(connection: &Connection, table: &str, day: Day) -> Result<(), Error> {
    let (first, end): (JobNumber, JobNumber) = (day.first(), day.end());
    let sql = format!(
        "WITH deleted AS (DELETE FROM {table} WHERE job = ANY (ARRAY(
           SELECT job FROM {table} WHERE job >= $1 AND job < $2 LIMIT $3)) RETURNING 1)
         SELECT count(*) FROM deleted"
    );
    loop {
        let rows = connection.query(&sql, &params![first, end, DELETED_JOBS]).await?;
        if rows.first().is_none_or(|row| row.get::<_, i64>(0) == 0) {
            return Ok(());
        }
    }
}

/// Detaches days, first from `jobs`. Returns those that can be dropped. A day that has got a job of
/// another name meanwhile is attached again.
pub(super) async fn detach(
    connection: &Connection,
    days: &BTreeSet<Day>,
    ordinal: NameOrdinal,
) -> Result<BTreeSet<Day>, Error> {
    let mut detached = BTreeSet::new();
    for day in days {
        let mut is_foreign = false;
        for (table, _) in TABLES {
            let state = load_states(connection, table).await?.get(day).copied();
            let partition = partition(table, *day);
            let how = match state {
                Some(PartitionState::Attached) => "CONCURRENTLY",
                Some(PartitionState::Pending) => "FINALIZE",
                Some(PartitionState::Detached) | None => "",
            };
            if !how.is_empty() {
                let sql = format!("ALTER TABLE {table} DETACH PARTITION {partition} {how}");
                connection.batch_execute(&sql).await?;
            }
            if table == TABLES[0].0 && state.is_some() {
                is_foreign = has_foreign_jobs(connection, *day, ordinal).await?;
            }
            if is_foreign {
                let (first, end): (JobNumber, JobNumber) = (day.first(), day.end());
                let sql = format!(
                    "ALTER TABLE {table} ATTACH PARTITION {partition} FOR VALUES FROM ({first}) TO \
                     ({end})"
                );
                connection.batch_execute(&sql).await?;
                break;
            }
        }
        if !is_foreign {
            for table in UNPARTITIONED {
                delete_of_day(connection, table, *day).await?;
            }
            detached.insert(*day);
        }
    }
    Ok(detached)
}
