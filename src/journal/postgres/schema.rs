//! Checks the database before anything is written, and creates the tables.

use super::connection::{Connection, params};
use super::days;
use super::failures;
use super::fault::to_journal_error;
use crate::error::{JournalError, Remedy};
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// The oldest supported server: PostgreSQL 14.
const OLDEST_SERVER_VERSION: i32 = 140_000;

/// The format of the tables, which grows by one with each change.
const FORMAT: i32 = 5;

/// How often the tables are tried to be created while other processes do the same.
const CREATE_ATTEMPTS_MAX: u32 = 5;

/// The tables of this program, in the order in which they are created.
const TABLES: [&str; 19] = [
    "cluster",
    "names",
    "managers",
    "fences",
    "definitions",
    "jobs",
    "entries",
    "steps",
    "definition_steps",
    "statuses",
    "notices",
    "bus_offsets",
    "limit_rates",
    "controls",
    "schedules",
    "cells",
    "failures",
    "trends",
    "tolerated",
];

/// The tables that format 1 does not have.
const LATER_TABLES: [&str; 7] =
    ["limit_rates", "controls", "schedules", "cells", "failures", "trends", "tolerated"];

/// The script that creates the tables in an empty schema.
const CREATE_TABLES: &str = "
-- Whose database this is.
CREATE TABLE cluster(
  format integer NOT NULL,
  program text NOT NULL CHECK (program = 'workflow-manager')
);
CREATE UNIQUE INDEX cluster_has_one_row ON cluster(program);

-- Who is active.
CREATE TABLE names(
  name text PRIMARY KEY,
  ordinal smallint NOT NULL UNIQUE CHECK (ordinal BETWEEN 0 AND 1023),
  owner uuid,
  epoch bigint NOT NULL DEFAULT 0,
  -- No job of the name has a higher number.
  high bigint NOT NULL DEFAULT 0,
  -- The journal whose copy under this name has begun and not ended.
  copied_from text,
  since timestamptz,
  -- The workflows that its active process has loaded.
  workflows text[] NOT NULL DEFAULT '{}',
  api_address text
);
CREATE TABLE managers(
  id uuid PRIMARY KEY,
  name text NOT NULL,
  version text NOT NULL,
  seen timestamptz NOT NULL DEFAULT now(),
  beat bigint NOT NULL,
  newest bigint,
  state text NOT NULL,
  broker text,
  api_address text
);
-- Commits lock the row of their process; only a takeover changes it.
CREATE TABLE fences(
  manager uuid PRIMARY KEY,
  dead boolean NOT NULL
);

CREATE TABLE definitions(
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  hash bytea NOT NULL UNIQUE,
  body text NOT NULL
);

-- The number of a job consists of 41 bits of milliseconds since 2020, 10 bits of the ordinal of its
-- name, and 12 bits of a counter. Each day has a partition, such as jobs_20261126.
CREATE TABLE jobs(
  number bigint PRIMARY KEY,
  id uuid NOT NULL,
  workflow text NOT NULL,
  definition bigint NOT NULL,
  graph integer NOT NULL,
  root bigint NOT NULL,
  parent bigint,
  step integer,
  item bigint,
  depth integer NOT NULL,
  created bigint NOT NULL,
  state text NOT NULL,
  ended bigint,
  open boolean NOT NULL,
  changed bigint NOT NULL,
  checksum bigint NOT NULL
) PARTITION BY RANGE (number);
CREATE INDEX jobs_by_id ON jobs(id, number);
CREATE INDEX jobs_by_place ON jobs(root, parent, step, item, number) WHERE parent IS NOT NULL;
CREATE INDEX jobs_open ON jobs(number) WHERE open;
CREATE INDEX jobs_running ON jobs(workflow, number) WHERE parent IS NULL AND ended IS NULL;
CREATE INDEX jobs_ended ON jobs(workflow, ended, number)
  WHERE parent IS NULL AND ended IS NOT NULL;
CREATE INDEX jobs_retained ON jobs(definition, ended) WHERE parent IS NULL AND ended IS NOT NULL;
CREATE INDEX jobs_top ON jobs(number) WHERE parent IS NULL;
CREATE INDEX jobs_of_workflow ON jobs(workflow, number) WHERE parent IS NULL;
CREATE INDEX jobs_by_state ON jobs(workflow, state, number) WHERE parent IS NULL;
CREATE INDEX jobs_top_by_state ON jobs(state, number) WHERE parent IS NULL;
CREATE INDEX jobs_children_failed ON jobs(parent, step, item, number)
  WHERE parent IS NOT NULL AND state IN ('failed', 'cancelled');

-- The source of truth. A row is never changed.
CREATE TABLE entries(
  job bigint NOT NULL,
  first bigint NOT NULL,
  seq bigint NOT NULL,
  at bigint NOT NULL,
  body text NOT NULL,
  checksum bigint NOT NULL,
  PRIMARY KEY (job, first)
) PARTITION BY RANGE (job);

-- The steps of each workflow, and which of them a definition has.
CREATE TABLE steps(
  id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  workflow text NOT NULL,
  name text NOT NULL,
  UNIQUE (workflow, name)
);
CREATE TABLE definition_steps(
  definition bigint NOT NULL,
  index integer NOT NULL,
  step integer NOT NULL,
  PRIMARY KEY (definition, index)
);
CREATE TABLE statuses(
  job bigint NOT NULL,
  step integer NOT NULL,
  word text NOT NULL,
  at bigint NOT NULL,
  PRIMARY KEY (job, step)
) PARTITION BY RANGE (job);
CREATE INDEX statuses_by_word ON statuses(step, word, job);

CREATE TABLE notices(
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  -- The ordinal of the name.
  name smallint NOT NULL,
  at bigint NOT NULL,
  body text NOT NULL,
  checksum bigint NOT NULL
);

CREATE TABLE bus_offsets(
  -- The ordinal of the name.
  name smallint NOT NULL,
  bus text NOT NULL,
  topic text NOT NULL,
  partition integer NOT NULL,
  next_offset bigint NOT NULL,
  checksum bigint NOT NULL,
  PRIMARY KEY (name, bus, topic, partition)
);

INSERT INTO cluster(format, program) VALUES (1, 'workflow-manager');
";

/// The script that changes tables of format 1 to format 2, also right after [`CREATE_TABLES`].
const MIGRATE_TO_2: &str = "
CREATE TABLE limit_rates(
  -- The ordinal of the name.
  name smallint NOT NULL,
  limit_name text NOT NULL,
  key text NOT NULL,
  time bigint NOT NULL,
  checksum bigint NOT NULL,
  PRIMARY KEY (name, limit_name, key)
);
UPDATE cluster SET format = 2;
";

/// The script that adds the table `controls` in format 2.
const CREATE_CONTROLS: &str = "
-- What operators have changed for a time: pauses, and other values of limits.
CREATE TABLE controls(
  -- The ordinal of the name.
  name smallint NOT NULL,
  kind text NOT NULL,
  bus text NOT NULL,
  vhost text NOT NULL,
  subject text NOT NULL,
  body text NOT NULL,
  checksum bigint NOT NULL,
  PRIMARY KEY (name, kind, bus, vhost, subject)
);
";

/// The part of the change to format 2 that is for schedules.
const CREATE_SCHEDULES: &str = "
CREATE TABLE schedules(
  -- The ordinal of the name.
  name smallint NOT NULL,
  schedule text NOT NULL,
  ledger text NOT NULL,
  checksum bigint NOT NULL,
  PRIMARY KEY (name, schedule)
);
";

/// The script that changes tables of format 2 to format 3. The table has no partitions: a process
/// of an earlier version, which may still be active, would make days without one.
const MIGRATE_TO_3: &str = "
-- The labels and columns of root jobs, for lists and searches. They follow from the entries.
CREATE TABLE cells(
  job bigint NOT NULL,
  name text NOT NULL,
  workflow text NOT NULL,
  kind text NOT NULL,
  value text NOT NULL,
  PRIMARY KEY (job, name)
);
CREATE INDEX cells_by_value ON cells(name, value, workflow, job);
UPDATE cluster SET format = 3;
";

/// The script that changes tables of format 3 to format 4, after which the table is filled. It has
/// no partitions, for the same reason.
const MIGRATE_TO_4: &str = "
-- The failed jobs and child jobs, with the id of the pattern of their reason. They follow from the
-- entries.
CREATE TABLE failures(
  job bigint PRIMARY KEY,
  root bigint NOT NULL,
  reason bigint NOT NULL,
  workflow text NOT NULL,
  ended bigint NOT NULL
);
CREATE INDEX failures_by_reason ON failures(reason, root);
CREATE INDEX failures_by_end ON failures(ended);
CREATE INDEX failures_of_workflow ON failures(workflow, ended);
-- What happened over time, in rings of buckets: a bucket replaces the one that had its position.
CREATE TABLE trends(
  -- The ordinal of the name.
  name smallint NOT NULL,
  ring integer NOT NULL,
  position integer NOT NULL,
  -- Empty: all workflows together.
  workflow text NOT NULL,
  start bigint NOT NULL,
  body text NOT NULL,
  checksum bigint NOT NULL,
  PRIMARY KEY (name, ring, position, workflow)
);
UPDATE cluster SET format = 4;
";

/// The script that changes tables of format 4 to format 5. It has no partitions, for the same
/// reason. What is filled in follows from child jobs: the newest of an item has no result, and was
/// not cancelled with its step. It may be of an item that a later run of the step did not have.
const MIGRATE_TO_5: &str = "
-- The completed jobs and child jobs of which items have failed. They follow from the entries. A
-- rerun may say that it is about failed items alone, which versions before cannot do.
CREATE TABLE tolerated(
  job bigint PRIMARY KEY,
  workflow text NOT NULL,
  is_root boolean NOT NULL
);
CREATE INDEX tolerated_roots ON tolerated(job) WHERE is_root;
CREATE INDEX tolerated_roots_of_workflow ON tolerated(workflow, job) WHERE is_root;
INSERT INTO tolerated(job, workflow, is_root)
SELECT p.number, p.workflow, p.parent IS NULL FROM jobs p
WHERE p.state = 'completed' AND p.number IN (
  SELECT c.parent FROM jobs c
  WHERE c.parent IS NOT NULL AND c.state IN ('failed', 'cancelled')
    AND NOT EXISTS (SELECT 1 FROM jobs n
      WHERE n.root = c.root AND n.parent = c.parent AND n.step = c.step AND n.item = c.item
        AND n.parent IS NOT NULL AND n.number > c.number)
    AND NOT EXISTS (SELECT 1 FROM entries e
      WHERE c.state = 'cancelled' AND e.job = c.number
        AND e.body LIKE '%\"by_parent\":true%'));
UPDATE cluster SET format = 5;
";

/// Compresses large texts with LZ4, which is faster, where the server has it.
const COMPRESS: &str = "
DO $$
BEGIN
  IF EXISTS (SELECT 1 FROM pg_settings
             WHERE name = 'default_toast_compression' AND 'lz4' = ANY(enumvals)) THEN
    ALTER TABLE entries ALTER COLUMN body SET COMPRESSION lz4;
  END IF;
END
$$";

/// Checks that the database can hold a journal, and creates the tables if it is empty.
///
/// # Errors
///
/// Returns an error if the server is too old, the encoding is not UTF-8, the schema has tables of
/// another program, or the tables were written by a newer version. Then nothing was changed.
pub(super) async fn prepare(connection: &Connection, journal: &str) -> Result<(), JournalError> {
    let schema = check_server(connection, journal).await?;
    let mut attempt = 0;
    loop {
        attempt += 1;
        match prepare_once(connection, journal, &schema).await {
            // Another process has created the tables at the same time.
            Err(PrepareError::Server(error))
                if is_duplicate(&error) && attempt < CREATE_ATTEMPTS_MAX => {}
            result => return result.map_err(|error| error.into_journal_error(journal)),
        }
    }
}

/// Checks that commits wait for a synchronous standby, if that is required. Otherwise warns if the
/// server has standbys, and waits for none.
pub(super) async fn check_synchronous(
    connection: &Connection,
    journal: &str,
    is_required: bool,
) -> Result<(), JournalError> {
    let sql = "SELECT current_setting('synchronous_standby_names') <> '',
                      (SELECT count(*) FROM pg_stat_replication)";
    let rows = connection.query(sql, &params![]).await;
    let rows = rows.map_err(|error| to_journal_error(journal, &error))?;
    let Some((false, standbys)) = rows.first().map(|row| (row.get(0), row.get::<_, i64>(1))) else {
        return Ok(());
    };
    if is_required {
        let problem = "journal.require_synchronous is on, and commits on this server wait for no \
                       standby: set synchronous_standby_names on the server, or turn the setting \
                       off if jobs may be lost with the server";
        return Err(refuse(journal, problem.to_owned()));
    }
    if standbys > 0 {
        tracing::warn!(
            journal,
            standbys,
            "the database server has standbys, and commits wait for none of them \
             (synchronous_standby_names is empty): a failover loses jobs that were accepted. See \
             journal.require_synchronous"
        );
    }
    Ok(())
}

/// Checks the database like [`prepare`], and changes nothing. Returns whether it has the tables.
pub(super) async fn inspect(connection: &Connection, journal: &str) -> Result<bool, JournalError> {
    let schema = check_server(connection, journal).await?;
    let result = check_tables(connection, journal, &schema).await;
    result.map_err(|error| error.into_journal_error(journal))
}

/// Checks the version and the encoding of the server. Returns the schema of the tables.
async fn check_server(connection: &Connection, journal: &str) -> Result<String, JournalError> {
    let sql = "SELECT current_setting('server_version_num')::integer,
                      current_setting('server_version'),
                      current_setting('server_encoding'), current_schema()";
    let rows = connection.query(sql, &params![]).await;
    let rows = rows.map_err(|error| to_journal_error(journal, &error))?;
    let refuse = |problem: String| refuse(journal, problem);
    let row = rows.first().ok_or_else(|| refuse("it returns no settings".to_owned()))?;
    let (number, version, encoding): (i32, String, String) = (row.get(0), row.get(1), row.get(2));
    if number < OLDEST_SERVER_VERSION {
        return Err(refuse(format!(
            "the server is PostgreSQL {version}; supported are 14 and newer: upgrade it, or name \
             another server in journal.url"
        )));
    }
    if encoding != "UTF8" {
        return Err(refuse(format!(
            "the database has the encoding {encoding}, and JSON needs UTF8: create another with \
             createdb --template template0 --encoding UTF8 NAME"
        )));
    }
    row.get::<_, Option<String>>(3).ok_or_else(|| {
        refuse(
            "its user has no schema to create tables in: GRANT CREATE, USAGE ON SCHEMA public TO \
             its user, or make it the owner of the database"
                .to_owned(),
        )
    })
}

/// The error of an attempt to create the tables.
enum PrepareError {
    Server(Error),
    Refused(JournalError),
}

impl From<Error> for PrepareError {
    fn from(error: Error) -> PrepareError {
        PrepareError::Server(error)
    }
}

impl PrepareError {
    fn into_journal_error(self, journal: &str) -> JournalError {
        match self {
            PrepareError::Server(error) => to_journal_error(journal, &error),
            PrepareError::Refused(error) => error,
        }
    }
}

fn is_duplicate(error: &Error) -> bool {
    error
        .code()
        .is_some_and(|code| [SqlState::DUPLICATE_TABLE, SqlState::UNIQUE_VIOLATION].contains(code))
}

async fn prepare_once(
    connection: &Connection,
    journal: &str,
    schema: &str,
) -> Result<(), PrepareError> {
    connection.batch_execute("BEGIN").await?;
    let result = prepare_in_transaction(connection, journal, schema).await;
    let end = if result.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let end_result = connection.batch_execute(end).await;
    result.and(end_result.map_err(PrepareError::from))
}

async fn prepare_in_transaction(
    connection: &Connection,
    journal: &str,
    schema: &str,
) -> Result<(), PrepareError> {
    if !check_tables(connection, journal, schema).await? {
        tracing::info!(journal, schema, "the tables of the journal are created");
        connection.batch_execute(CREATE_TABLES).await?;
        connection.batch_execute(COMPRESS).await?;
    }
    let rows = connection.query("SELECT format FROM cluster FOR UPDATE", &params![]).await?;
    let format = rows.first().map_or(FORMAT, |row| row.get::<_, i32>(0));
    if format == 1 {
        tracing::info!(journal, schema, "the tables of the journal are changed to format 2");
        connection.batch_execute(CREATE_CONTROLS).await?;
        connection.batch_execute(CREATE_SCHEDULES).await?;
        connection.batch_execute(MIGRATE_TO_2).await?;
    }
    if format <= 2 {
        tracing::info!(journal, schema, "the tables of the journal are changed to format 3");
        connection.batch_execute(MIGRATE_TO_3).await?;
    }
    if format <= 3 {
        tracing::info!(journal, schema, "the tables of the journal are changed to format 4");
        connection.batch_execute(MIGRATE_TO_4).await?;
        failures::fill(connection).await?;
    }
    if format <= 4 {
        tracing::info!(journal, schema, "the tables of the journal are changed to format 5");
        connection.batch_execute(MIGRATE_TO_5).await?;
    }
    Ok(())
}

/// Checks that the schema has all tables of a journal and no others, or none at all. Returns
/// whether it has them.
async fn check_tables(
    connection: &Connection,
    journal: &str,
    schema: &str,
) -> Result<bool, PrepareError> {
    let sql = "SELECT relname::text FROM pg_class
               WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
                 AND relkind IN ('r', 'p', 'f', 'm') AND NOT relispartition ORDER BY relname";
    let rows = connection.query(sql, &params![schema.to_owned()]).await?;
    // A day that is being dropped is not a partition any more.
    let is_day = |name: &&str| days::day_of_partition(name).is_some();
    let names = rows.iter().map(|row| row.get(0)).filter(|name| !is_day(name));
    let names: Vec<&str> = names.collect();
    if names.is_empty() {
        return Ok(false);
    }
    let foreign: Vec<&str> = names.iter().copied().filter(|name| !TABLES.contains(name)).collect();
    let has_all = TABLES
        .iter()
        .filter(|table| !LATER_TABLES.contains(table))
        .all(|table| names.contains(table));
    if !has_all || !foreign.is_empty() {
        let (problem, listed) = if has_all {
            ("also has tables of another program", foreign)
        } else {
            ("has tables that are not those of a journal", names)
        };
        let listed = list_some(&listed);
        return Err(PrepareError::Refused(refuse(
            journal,
            format!(
                "its schema {schema} {problem} ({listed}). Nothing was changed. Give the journal a \
                 database of its own: createdb --template template0 --encoding UTF8 NAME"
            ),
        )));
    }
    check_format(connection, journal).await.map_err(PrepareError::Refused)?;
    Ok(true)
}

/// Checks that the tables were not written by a newer version of this program.
///
/// # Errors
///
/// Returns [`JournalError::Newer`] if they were, or an error of the server.
pub(super) async fn check_format(
    connection: &Connection,
    journal: &str,
) -> Result<(), JournalError> {
    let rows = connection.query("SELECT format FROM cluster", &params![]).await;
    let rows = rows.map_err(|error| to_journal_error(journal, &error))?;
    let format: i32 = rows.first().map_or(0, |row| row.get(0));
    if format > FORMAT {
        return Err(JournalError::Newer {
            file: journal.to_owned(),
            file_version: format.into(),
            newest_version: FORMAT.into(),
        });
    }
    Ok(())
}

/// Creates the error of a database that cannot hold the journal.
fn refuse(journal: &str, problem: String) -> JournalError {
    JournalError::Failed { file: journal.to_owned(), problem, remedy: Remedy::Exit }
}

/// Returns the first names of a list, as text.
fn list_some(names: &[&str]) -> String {
    const SHOWN_MAX: usize = 3;
    let shown = names.iter().take(SHOWN_MAX).copied().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN_MAX { format!("{shown}, …") } else { shown }
}
