//! The SQL of a commit, in two forms.
//!
//! A commit is sent first in the *plain* form, as if all in it were new, which costs the server the
//! least. If something of it is there already, or a job of it is gone, the server refuses it, and
//! it is sent again in the *careful* form, which looks at each row.
//!
//! No statement joins tables freely: while a day's table is new, the server has no statistics of
//! it, takes the range of numbers, which is there to skip days, for the way to the rows, and
//! compares all of it with each record. So rows of `jobs` are found by `= ANY`, by hashed
//! subqueries (`IS TRUE` keeps the planner from making joins of them), and by subqueries for each
//! row that `OFFSET 0` keeps apart.

/// Takes the columns of new root jobs. It ends where a condition may follow.
macro_rules! insert_roots {
    () => {
        "
INSERT INTO jobs(number, id, workflow, definition, graph, root, depth, created, state, ended, open,
                 changed, checksum)
SELECT u.number, u.id, u.workflow, u.definition, u.graph, u.number, u.depth, u.created, u.state,
       u.ended, u.open, u.created, u.checksum
FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::bigint[], $5::integer[], $6::bigint[],
            $7::text[], $8::bigint[], $9::boolean[], $10::bigint[], $11::integer[])
  AS u(number, id, workflow, definition, graph, created, state, ended, open, checksum, depth)"
    };
}

/// Takes the columns of new child jobs. It ends where a condition may follow.
macro_rules! insert_children {
    () => {
        "
INSERT INTO jobs(number, id, workflow, definition, graph, root, parent, step, item, depth, created,
                 state, ended, open, changed, checksum)
SELECT u.number, u.id, u.workflow, u.definition, u.graph, u.root, u.parent, u.step, u.item, u.depth,
       u.created, u.state, u.ended, u.open, u.created, u.checksum
FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::bigint[], $5::integer[], $6::bigint[],
            $7::text[], $8::bigint[], $9::boolean[], $10::bigint[], $11::bigint[], $12::bigint[],
            $13::integer[], $14::bigint[], $15::integer[])
  AS u(number, id, workflow, definition, graph, created, state, ended, open, checksum, root, parent,
       step, item, depth)"
    };
}

/// Changes jobs. The numbers `$jobs` increase. `$states` are numbers of [`JobState::ALL`], whose
/// names are `$names`, beginning with 1, and `$opens` are 1 for false and 2 for true; 0 changes
/// nothing. In `$ended` and `$changed` the value `$none` stands for none. It ends where a further
/// condition may follow.
///
/// [`JobState::ALL`]: engine::JobState::ALL
macro_rules! change_jobs {
    ($jobs:literal, $states:literal, $ended:literal, $opens:literal, $changed:literal,
     $lowest:literal, $highest:literal, $names:literal, $none:literal) => {
        concat!(
            "
UPDATE jobs j SET
  state = coalesce((",
            $names,
            "::text[])[(",
            $states,
            "::integer[])[width_bucket(j.number, ",
            $jobs,
            "::bigint[])]], j.state),
  ended = CASE (",
            $states,
            "::integer[])[width_bucket(j.number, ",
            $jobs,
            "::bigint[])] WHEN 0 THEN j.ended
    ELSE nullif((",
            $ended,
            "::bigint[])[width_bucket(j.number, ",
            $jobs,
            "::bigint[])], ",
            $none,
            "::bigint) END,
  open = coalesce((ARRAY[false, true])[(",
            $opens,
            "::integer[])[width_bucket(j.number, ",
            $jobs,
            "::bigint[])]], j.open),
  changed = coalesce(nullif((",
            $changed,
            "::bigint[])[width_bucket(j.number, ",
            $jobs,
            "::bigint[])], ",
            $none,
            "::bigint), j.changed)
WHERE j.number = ANY(",
            $jobs,
            "::bigint[]) AND j.number BETWEEN ",
            $lowest,
            "::bigint AND ",
            $highest,
            "::bigint"
        )
    };
}

/// Sets statuses by job and index of the step. It ends with `$condition`.
macro_rules! set_statuses {
    ($job:literal, $index:literal, $word:literal, $at:literal, $lowest:literal, $highest:literal,
     $condition:literal) => {
        concat!(
            "
INSERT INTO statuses AS s (job, step, word, at)
SELECT u.job, d.step, u.word, u.at
FROM unnest(",
            $job,
            "::bigint[], ",
            $index,
            "::integer[], ",
            $word,
            "::text[], ",
            $at,
            "::bigint[])
  AS u(job, index, word, at)
CROSS JOIN LATERAL (
  SELECT j.definition FROM jobs j
  WHERE j.number = u.job AND j.number BETWEEN ",
            $lowest,
            "::bigint AND ",
            $highest,
            "::bigint OFFSET 0) j
CROSS JOIN LATERAL (
  SELECT d.step FROM definition_steps d
  WHERE d.definition = j.definition AND d.index = u.index OFFSET 0) d",
            $condition,
            "
ON CONFLICT (job, step) DO UPDATE SET word = excluded.word, at = excluded.at"
        )
    };
}

/// Inserts notices.
macro_rules! insert_notices {
    ($job:literal, $first:literal, $at:literal, $body:literal, $sum:literal) => {
        concat!(
            "
INSERT INTO notices(name, at, body, checksum)
SELECT (u.job >> 12) & 1023, u.at, u.body, u.checksum
FROM unnest(",
            $job,
            "::bigint[], ",
            $first,
            "::bigint[], ",
            $at,
            "::bigint[], ",
            $body,
            "::text[], ",
            $sum,
            "::bigint[])
  AS u(job, first, at, body, checksum)"
        )
    };
}

/// Inserts the rows of root jobs, which are new.
pub(super) const INSERT_NEW_ROOTS: &str = insert_roots!();

/// Inserts the rows of root jobs, unless they are there.
pub(super) const INSERT_ROOTS: &str = concat!(insert_roots!(), "\nON CONFLICT (number) DO NOTHING");

/// Inserts the rows of child jobs, which are new, and whose root jobs exist.
pub(super) const INSERT_NEW_CHILDREN: &str = insert_children!();

/// Inserts the rows of child jobs, unless they are there or their root job is deleted.
pub(super) const INSERT_CHILDREN: &str = concat!(
    insert_children!(),
    "
WHERE (u.root IN (SELECT r.number FROM jobs r
                  WHERE r.number = ANY($11) AND r.number BETWEEN $16 AND $17)) IS TRUE
ON CONFLICT (number) DO NOTHING"
);

/// Inserts rows of `entries`, which are new.
pub(super) const INSERT_NEW_ENTRIES: &str = "
INSERT INTO entries(job, first, seq, at, body, checksum)
SELECT u.* FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[],
                       $6::bigint[]) AS u(job, first, seq, at, body, checksum)";

/// Changes the jobs of new rows of `entries`.
pub(super) const CHANGE_JOBS: &str =
    change_jobs!("$1", "$2", "$3", "$4", "$5", "$6", "$7", "$8", "$9");

/// Sets the statuses that follow from new rows of `entries`.
pub(super) const SET_STATUSES: &str = set_statuses!("$1", "$2", "$3", "$4", "$5", "$6", "");

/// Inserts the notices of new rows of `entries`.
pub(super) const INSERT_NOTICES: &str = insert_notices!("$1", "$2", "$3", "$4", "$5");

/// Inserts rows of `entries` of jobs that exist, and writes what follows from them. What the
/// journal has already changes nothing; another decision in its place fails with a division by
/// zero.
pub(super) const INSERT_ENTRIES: &str = concat!(
    "
WITH entry AS (
INSERT INTO entries AS e (job, first, seq, at, body, checksum)
SELECT u.* FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[],
                       $6::bigint[]) AS u(job, first, seq, at, body, checksum)
WHERE (u.job IN (SELECT j.number FROM jobs j
                 WHERE j.number = ANY($1) AND j.number BETWEEN $21 AND $22)) IS TRUE
ON CONFLICT (job, first) DO UPDATE SET checksum = 1 / (e.first - e.first)
  WHERE e.checksum <> excluded.checksum
RETURNING e.job, e.first),
change AS (",
    change_jobs!("$7", "$8", "$9", "$10", "$11", "$21", "$22", "$23", "$24"),
    "
  AND (j.number IN (SELECT job FROM entry)) IS TRUE),
status AS (",
    set_statuses!(
        "$12",
        "$13",
        "$14",
        "$15",
        "$21",
        "$22",
        "
WHERE (u.job IN (SELECT job FROM entry)) IS TRUE"
    ),
    ")",
    insert_notices!("$16", "$17", "$18", "$19", "$20"),
    "
WHERE ((u.job, u.first) IN (SELECT job, first FROM entry)) IS TRUE"
);

/// The errors of [`INSERT_ENTRIES`] when another decision is in the place of one: an earlier one,
/// or one of the same transaction.
pub(super) const OTHER_DECISION_ERRORS: [&str; 2] = ["(SQLSTATE 22012)", "(SQLSTATE 21000)"];

/// Fails with a division by zero if one of these jobs, which are all different, does not exist.
pub(super) const REFUSE_DELETED: &str = "
SELECT 1 / (count(*) = cardinality($1::bigint[]))::integer FROM jobs j
WHERE j.number = ANY($1::bigint[]) AND j.number BETWEEN $2::bigint AND $3::bigint";

/// Selects the jobs among these that do not exist.
pub(super) const SELECT_DELETED: &str = "
SELECT u.number FROM unnest($1::bigint[]) AS u(number)
WHERE (u.number IN (SELECT j.number FROM jobs j
                    WHERE j.number = ANY($1::bigint[])
                      AND j.number BETWEEN $2::bigint AND $3::bigint)) IS NOT TRUE";
