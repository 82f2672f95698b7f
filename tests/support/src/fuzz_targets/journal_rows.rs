//! Damaged rows: a journal whose rows were changed behind its back, with and without their
//! checksums made right, is refused with an error or read, never with a panic; its file stays as it
//! was.

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

/// Changes of a row, each four choices or more.
pub fn run(data: &[u8]) {
    let (folder, sample) = (tempfile::tempdir().expect("a folder"), sample());
    let file = folder.path().join("j.db");
    std::fs::write(&file, sample).expect("writable");
    let must_refuse = damage(&file, &mut Choices(data));
    let before = std::fs::read(&file).expect("readable");
    match SqliteJournal::open(&options(file.clone())) {
        Ok(store) => {
            assert!(!must_refuse, "a row under a wrong checksum was taken");
            told(
                store.recover().map(|jobs| {
                    jobs.iter().for_each(|recovered| recovered.job.assert_invariants())
                }),
            );
        }
        Err(error) => told(Err(error)),
    }
    assert!(std::fs::read(&file).expect("readable") == before, "the file was changed");
    let reader = Reader::new(&file);
    for number in 0..6 {
        told(reader.recover_jobs(&[number]).map(|_| ()));
    }
    for number in 1..6 {
        told(reader.load_job(id(number)).map(|_| ()));
        told(reader.load_creation(id(number)).map(|_| ()));
    }
}

fn told(result: Result<(), JournalError>) {
    if let Err(error) = result {
        assert!(error.to_string().contains("j.db"), "{error}");
    }
}

fn options(file: PathBuf) -> JournalOptions {
    JournalOptions { file, cache_bytes: 1 << 20, verify_bytes_max: 1 << 30, pages_max: 0 }
}

/// Columns, and whether a checksum covers them.
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

/// Changes rows; true if one is left whose checksum is wrong.
fn damage(file: &Path, choices: &mut Choices<'_>) -> bool {
    let connection = Connection::open(file).expect("opens");
    connection.pragma_update(None, "synchronous", "OFF").expect("a pragma");
    connection.pragma_update(None, "foreign_keys", "OFF").expect("a pragma");
    let repair = choices.byte() & 1 == 1;
    let mut wrong = false;
    while choices.more() {
        let (table, column, covered) = COLUMNS[choices.below(COLUMNS.len())];
        let row = choices.byte() % 8;
        let sql =
            format!("SELECT rowid, {column} FROM {table} ORDER BY rowid LIMIT 1 OFFSET {row}");
        let Ok((rowid, old)) = connection
            .query_row(&sql, [], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Value>(1)?)))
        else {
            continue;
        };
        let new = value(choices, &old);
        // STRICT tables take no value of another type; that is SQLite's to say.
        let changed = connection.execute(
            &format!("UPDATE {table} SET {column} = ?1 WHERE rowid = ?2"),
            params![new, rowid],
        );
        // The checksum takes no value for -1 in these columns.
        let read: Value = connection
            .query_row(&format!("SELECT {column} FROM {table} WHERE rowid = ?1"), [rowid], |row| {
                row.get(0)
            })
            .expect("a row");
        let alike =
            |value: &Value| if *value == Value::Null { Value::Integer(-1) } else { value.clone() };
        wrong |= covered && changed.is_ok() && alike(&read) != alike(&old) && !repair;
        if repair && changed.is_ok() && column != "checksum" && column != "hash" {
            make_right(&connection, table, rowid);
        }
    }
    // Changes may have taken one another back.
    if wrong {
        wrong = !all_right(&connection);
    }
    wrong
}

fn value(choices: &mut Choices<'_>, old: &Value) -> Value {
    match (choices.below(4), old) {
        (0, Value::Text(text)) => {
            // A few bytes of the text in another's place.
            let mut bytes = text.clone().into_bytes();
            let at = (choices.below(256) * 256 + choices.below(256)) % bytes.len().max(1);
            let new = choices.text();
            let end = (at + choices.below(16)).min(bytes.len());
            bytes.splice(at..end, new.into_bytes());
            Value::Text(String::from_utf8_lossy(&bytes).into_owned())
        }
        (0, Value::Blob(blob)) => {
            let mut blob = blob.clone();
            let at = choices.below(blob.len().max(1));
            if let Some(byte) = blob.get_mut(at) {
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

fn make_right(connection: &Connection, table: &str, rowid: i64) {
    let sums = sums(connection, table);
    let Some((_, _, right)) = sums.into_iter().find(|(row, _, _)| *row == rowid) else { return };
    let column = if table == "definitions" { "hash" } else { "checksum" };
    connection
        .execute(
            &format!("UPDATE {table} SET {column} = ?1 WHERE rowid = ?2"),
            params![right, rowid],
        )
        .expect("updates");
}

fn all_right(connection: &Connection) -> bool {
    ["definitions", "jobs", "entries"]
        .iter()
        .all(|table| sums(connection, table).iter().all(|(_, stored, right)| stored == right))
}

/// Rows with their stored and their right checksums.
fn sums(connection: &Connection, table: &str) -> Vec<(i64, Value, Value)> {
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
        let number = |at: usize| {
            row.get::<_, Option<i64>>(at).map(|number| number.unwrap_or(-1).to_le_bytes())
        };
        let right = match table {
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
        Ok((row.get(0)?, row.get(1)?, right))
    });
    rows.expect("reads").collect::<Result<_, _>>().expect("rows")
}

/// A journal of a job with a fan-out: its parent runs, one child has ended, one waits for a reply.
fn sample() -> &'static [u8] {
    static SAMPLE: OnceLock<Vec<u8>> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("j.db");
        write_sample(&file);
        std::fs::read(&file).expect("readable")
    })
}

fn context(now: i64) -> Context<'static> {
    Context { now: Timestamp(now), limits: &LIMITS }
}

fn id(number: i64) -> JobId {
    JobId(uuid::Uuid::from_u128(number.unsigned_abs().into()))
}

fn write_sample(file: &Path) {
    let mut store = SqliteJournal::open(&options(file.to_owned())).expect("opens");
    let definition = definition();
    let origin = Origin::for_root_job(id(1), definition, Timestamp(1));
    let message =
        Message::parse(br#"{"items":["a","00000000-0000-0000-0000-000000000003"],"n":1e400}"#)
            .expect("a message");
    let (mut parent, created) = Job::create(origin.clone(), message, &context(1));
    let origin = NewJob { origin: Arc::new(origin), root: 1, parent: None };
    store.append(&[&Record::from_decision(1, Some(origin), created)]).expect("commits");
    let mut replied = parent
        .handle_input(reply("first", r#"{"items":["a",["b"],3],"k":0.10}"#), &context(2))
        .expect("taken");
    let effects = std::mem::take(&mut replied.effects);
    store.append(&[&Record::from_decision(1, None, replied)]).expect("commits");
    for (number, effect) in (2..).zip(effects) {
        let Effect::StartChild { mut origin, message } = effect else { continue };
        origin.id = id(number);
        let (mut child, created) = Job::create((*origin).clone(), message, &context(number));
        let origin = NewJob { origin: Arc::new(*origin), root: 1, parent: Some(1) };
        store.append(&[&Record::from_decision(number, Some(origin), created)]).expect("commits");
        if number == 2 {
            let ended = child
                .handle_input(reply("child", r#"{"item":1,"x":"y"}"#), &context(9))
                .expect("taken");
            store.append(&[&Record::from_decision(number, None, ended)]).expect("commits");
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

fn definition() -> Arc<Definition> {
    let step = |name: &str, on: Option<u16>, task| {
        let depends = on.map(|on| Dependency::Step(StepIndex(on))).into_iter().collect();
        Step { depends, task, ..Step::with_name(name) }
    };
    let keys = FanOutKeys::new("items", "item");
    let own = Graph::new(
        "w".to_owned(),
        None,
        vec![
            step("first", None, None),
            step("each", Some(0), Some(1)),
            step("last", Some(1), None),
        ],
    );
    let task = Graph::new("t".to_owned(), Some(keys), vec![step("child", None, None)]);
    Arc::new(Definition::new("w", vec![own, task]))
}
