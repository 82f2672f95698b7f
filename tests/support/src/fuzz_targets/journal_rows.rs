//! Fuzzes damaged journals: some rows of a journal are changed by SQL, with or without a repair of
//! their checksums. The journal must then be refused with an error, or read, without a panic and
//! without a change of its file.

use super::bytes_in::Choices;
use crate::world::LIMITS;
use rusqlite::types::Value;
use rusqlite::{Connection, params};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use workflow_manager::engine::{
    Context, Definition, Dependency, Effect, FanOutKeys, Graph, Input, Job, JobId, Message, Origin,
    Reply, Sender, Step, StepIndex, Timestamp,
};
use workflow_manager::journal::{
    JobRecords, Journal, JournalError, JournalOptions, NewJob, Reader, Record, SqliteJournal,
};

/// Damages the sample journal by the chosen changes, and reads it in all ways.
pub fn run(data: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    std::fs::write(&file, sample_journal()).expect("writable");
    let has_wrong_checksum = damage(&file, &mut Choices { bytes: data });
    let damaged_bytes = std::fs::read(&file).expect("readable");
    match SqliteJournal::open(&options(file.clone())) {
        Ok(journal) => {
            assert!(!has_wrong_checksum, "a row with a wrong checksum was accepted");
            check_error(
                journal.recover().map(|jobs| {
                    jobs.iter().for_each(|recovered| recovered.job.assert_invariants())
                }),
            );
        }
        Err(error) => check_error(Err(error)),
    }
    assert!(std::fs::read(&file).expect("readable") == damaged_bytes, "the file was changed");
    let reader = Reader::new(&file);
    // The sample has fewer jobs than that, so missing ones are also read.
    for number in 0..6 {
        check_error(reader.recover_jobs(&[number]).map(drop));
    }
    for number in 1..6 {
        check_error(reader.load_job(id(number)).map(drop));
        check_error(reader.load_creation(id(number)).map(drop));
    }
}

/// Checks that an error, if there is one, names the file.
fn check_error(result: Result<(), JournalError>) {
    if let Err(error) = result {
        assert!(error.to_string().contains("j.db"), "{error}");
    }
}

fn options(file: PathBuf) -> JournalOptions {
    JournalOptions { file, cache_bytes: 1 << 20, verify_bytes_max: 1 << 30, pages_max: 0 }
}

/// The columns that may be changed: the table, the column, and whether a checksum covers it.
const COLUMNS: [(&str, &str, bool); 21] = [
    ("entries", "body", true),
    ("entries", "job", true),
    ("entries", "first", true),
    ("entries", "at", true),
    ("entries", "checksum", true),
    ("jobs", "id", true),
    ("jobs", "workflow", false),
    ("jobs", "definition", true),
    ("jobs", "graph", true),
    ("jobs", "root", true),
    ("jobs", "parent", true),
    ("jobs", "step", true),
    ("jobs", "item", true),
    ("jobs", "depth", true),
    ("jobs", "created", true),
    ("jobs", "checksum", true),
    ("jobs", "state", false),
    ("jobs", "ended", false),
    ("jobs", "open", false),
    ("definitions", "body", true),
    ("definitions", "hash", true),
];

/// Changes rows: the first choice says whether checksums are repaired, and the others name the rows
/// and their new values. Returns whether a row certainly has a wrong checksum in the end. With
/// repairs that is not known, so it returns false.
fn damage(file: &Path, choices: &mut Choices<'_>) -> bool {
    let connection = Connection::open(file).expect("opens");
    connection.pragma_update(None, "synchronous", "OFF").expect("a pragma");
    connection.pragma_update(None, "foreign_keys", "OFF").expect("a pragma");
    let must_repair = choices.byte() & 1 == 1;
    let mut has_wrong_checksum = false;
    while choices.has_more() {
        let (table, column, is_covered) = COLUMNS[choices.below(COLUMNS.len())];
        let offset = choices.byte() % 8;
        let sql =
            format!("SELECT rowid, {column} FROM {table} ORDER BY rowid LIMIT 1 OFFSET {offset}");
        let Ok((rowid, old_value)) = connection
            .query_row(&sql, [], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Value>(1)?)))
        else {
            continue;
        };
        let new_value = choose_value(choices, &old_value);
        // A constraint of the table, such as STRICT, may refuse the value.
        let update = connection.execute(
            &format!("UPDATE {table} SET {column} = ?1 WHERE rowid = ?2"),
            params![new_value, rowid],
        );
        let is_updated = update.is_ok();
        // Read again, because SQLite may have converted the value.
        let stored_value: Value = connection
            .query_row(&format!("SELECT {column} FROM {table} WHERE rowid = ?1"), [rowid], |row| {
                row.get(0)
            })
            .expect("a row");
        // In a checksum, NULL counts as -1.
        let checksum_value =
            |value: &Value| if *value == Value::Null { Value::Integer(-1) } else { value.clone() };
        let is_changed = checksum_value(&stored_value) != checksum_value(&old_value);
        has_wrong_checksum |= is_covered && is_updated && is_changed && !must_repair;
        if must_repair && is_updated && column != "checksum" && column != "hash" {
            repair_checksum(&connection, table, rowid);
        }
    }
    // A later change may have undone an earlier one.
    has_wrong_checksum && !are_checksums_correct(&connection)
}

/// Chooses a new value for a column: a variation of the old one, or another value of any type.
fn choose_value(choices: &mut Choices<'_>, old_value: &Value) -> Value {
    match (choices.below(4), old_value) {
        (0, Value::Text(text)) => {
            // Replaces up to 15 bytes of the text.
            let mut bytes = text.clone().into_bytes();
            let start = (choices.below(256) * 256 + choices.below(256)) % bytes.len().max(1);
            let replacement = choices.text();
            let end = (start + choices.below(16)).min(bytes.len());
            bytes.splice(start..end, replacement.into_bytes());
            Value::Text(String::from_utf8_lossy(&bytes).into_owned())
        }
        (0, Value::Blob(blob)) => {
            let mut blob = blob.clone();
            let index = choices.below(blob.len().max(1));
            if let Some(byte) = blob.get_mut(index) {
                *byte ^= choices.byte();
            }
            Value::Blob(blob)
        }
        (0 | 1, Value::Integer(_)) => Value::Integer(i64::from(choices.byte())),
        (0 | 1, Value::Null) => Value::Integer(1),
        (1, Value::Text(_)) => Value::Text(choices.text()),
        (0 | 1, _) => Value::Blob(choices.text().into_bytes()),
        (2, Value::Integer(_)) => {
            let bytes = choices.take(8);
            Value::Integer(bytes.iter().fold(0, |number, byte| number << 8 | i64::from(*byte)))
        }
        (2, Value::Text(_)) => Value::Text(String::new()),
        _ => Value::Null,
    }
}

/// Corrects the checksum of a row.
fn repair_checksum(connection: &Connection, table: &str, rowid: i64) {
    let checksums = load_checksums(connection, table);
    let Some(row) = checksums.into_iter().find(|row| row.rowid == rowid) else { return };
    let column = if table == "definitions" { "hash" } else { "checksum" };
    connection
        .execute(
            &format!("UPDATE {table} SET {column} = ?1 WHERE rowid = ?2"),
            params![row.correct, rowid],
        )
        .expect("updates");
}

/// Returns whether all rows have correct checksums.
fn are_checksums_correct(connection: &Connection) -> bool {
    ["definitions", "jobs", "entries"]
        .iter()
        .all(|table| load_checksums(connection, table).iter().all(|row| row.stored == row.correct))
}

/// The checksums of a row.
struct RowChecksums {
    rowid: i64,
    /// The checksum in the row.
    stored: Value,
    /// The checksum of the other columns.
    correct: Value,
}

/// Loads the checksums of all rows of a table, and computes the correct ones: SHA-256 for
/// definitions, and CRC-32 for other tables.
fn load_checksums(connection: &Connection, table: &str) -> Vec<RowChecksums> {
    let columns = match table {
        "definitions" => "number, hash, body",
        "entries" => "seq, checksum, job, first, at, CAST(body AS BLOB)",
        _ => {
            "number, checksum, id, number, definition, graph, root, parent, step, item, \
             depth, created"
        }
    };
    let mut statement =
        connection.prepare(&format!("SELECT {columns} FROM {table}")).expect("prepares");
    let rows = statement.query_map([], |row| {
        let number = |column: usize| {
            row.get::<_, Option<i64>>(column).map(|number| number.unwrap_or(-1).to_le_bytes())
        };
        let correct = match table {
            "definitions" => {
                Value::Blob(Sha256::digest(row.get::<_, String>(2)?.as_bytes()).to_vec())
            }
            "entries" => Value::Integer(i64::from(crc32fast::hash(
                &[&number(2)?[..], &number(3)?, &number(4)?, &row.get::<_, Vec<u8>>(5)?].concat(),
            ))),
            _ => {
                let numbers: Vec<[u8; 8]> = (3..12).map(number).collect::<Result<_, _>>()?;
                Value::Integer(i64::from(crc32fast::hash(
                    &[row.get::<_, Vec<u8>>(2)?, numbers.concat()].concat(),
                )))
            }
        };
        Ok(RowChecksums { rowid: row.get(0)?, stored: row.get(1)?, correct })
    });
    rows.expect("reads").collect::<Result<_, _>>().expect("rows")
}

/// Returns the file of a journal, which is written once. It has a running job with a fan-out, of
/// whose child jobs the first has ended.
fn sample_journal() -> &'static [u8] {
    static SAMPLE: OnceLock<Vec<u8>> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("j.db");
        write_sample(&file);
        std::fs::read(&file).expect("readable")
    })
}

fn context(now: i64) -> Context<'static> {
    Context { now: Timestamp(now), limits: &LIMITS, pauses: None, spare: None }
}

fn id(number: i64) -> JobId {
    JobId(uuid::Uuid::from_u128(number.unsigned_abs().into()))
}

/// Writes the sample journal. The engine decides, and each decision is committed.
fn write_sample(file: &Path) {
    let mut journal = SqliteJournal::open(&options(file.to_owned())).expect("opens");
    let origin = Origin::for_root_job(id(1), definition(), Timestamp(1));
    let message =
        Message::parse(br#"{"items":["a","00000000-0000-0000-0000-000000000003"],"n":1e400}"#)
            .expect("a message");
    let (mut parent, creation) = Job::create(origin.clone(), message, &context(1));
    let new_job = NewJob { origin: Arc::new(origin), root: 1, parent: None };
    journal.append(&[&Record::from_decision(1, Some(new_job), creation)]).expect("commits");
    let mut fan_out = parent
        .handle_input(reply("first", r#"{"items":["a",["b"],3],"k":0.10}"#), &context(2))
        .expect("accepted");
    let effects = std::mem::take(&mut fan_out.effects);
    journal.append(&[&Record::from_decision(1, None, fan_out)]).expect("commits");
    // The numbers of jobs: the parent has 1, so the child jobs begin at 2.
    for (number, effect) in (2..).zip(effects) {
        let Effect::StartChild { mut origin, message } = effect else { continue };
        origin.id = id(number);
        let (mut child, creation) = Job::create((*origin).clone(), message, &context(number));
        let new_job = NewJob { origin: Arc::new(*origin), root: 1, parent: Some(1) };
        journal
            .append(&[&Record::from_decision(number, Some(new_job), creation)])
            .expect("commits");
        if number == 2 {
            let completion = child
                .handle_input(reply("child", r#"{"item":1,"x":"y"}"#), &context(9))
                .expect("accepted");
            journal.append(&[&Record::from_decision(number, None, completion)]).expect("commits");
        }
    }
}

fn reply(step: &str, body: &str) -> Input {
    Input::Reply {
        step: step.to_owned(),
        attempt: None,
        reply: Reply::Result(body.to_owned().into()),
        from: Sender::Unknown,
    }
}

/// Returns a workflow of three steps in a row, of which the second fans out.
fn definition() -> Arc<Definition> {
    let step = |name: &str, dependency: Option<u16>, task| {
        let depends =
            dependency.map(|index| Dependency::Step(StepIndex(index))).into_iter().collect();
        Step { depends, task, ..Step::with_name(name) }
    };
    let keys = FanOutKeys::new("items", "item");
    let workflow = Graph::new(
        "w".to_owned(),
        None,
        vec![
            step("first", None, None),
            step("each", Some(0), Some(1)),
            step("last", Some(1), None),
        ],
    );
    let task = Graph::new("t".to_owned(), Some(keys), vec![step("child", None, None)]);
    Arc::new(Definition::new("w", vec![workflow, task]))
}
