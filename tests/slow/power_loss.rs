//! Power loss: what was not synced is dropped, torn and put in another order, at every write, sync
//! and commit of a journal's life; each time the journal must open and hold every commit that had
//! been answered, and no half of another.
//!
//! A process with `recorder.c` preloaded writes a journal: small commits, one large enough for a
//! checkpoint, retention, and closing and reopening the file. Its writes and syncs are replayed on
//! a model of a disk: a write is durable after a later sync of its file; until then any of its
//! sectors may be there or not, whatever came before or after; a file's name, and every removal
//! before it, is durable with its first sync.
//!
//! `kill -9` would find nothing if the journal never synced; this does: with `synchronous` OFF or
//! NORMAL in `journal/schema.rs` answered commits are missing.
//!
//! `POWER_LOSS_SEEDS=N` tries N disks at each point instead of few; `POWER_LOSS_SEED=S` starts with
//! seed S.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use workflow_manager::engine::{
    Context, Definition, Graph, Input, Job, JobId, Limits, Message, Millis, Origin, Reply, Sender,
    Step, Timestamp,
};
use workflow_manager::journal::{Journal, JournalOptions, NewJob, Record, SqliteJournal};

/// Disks tried at each point.
const SEEDS: u64 = 2;

/// How many writes at the beginning, and at the end, of a row of writes are each followed by a loss
/// of power.
const EDGE: usize = 4;

/// What a disk writes whole.
const SECTOR_BYTES: usize = 512;

/// Where the writing process finds its folder; without it the test of that name has nothing to do.
const FOLDER: &str = "RECORDER_FOLDER";

/// The file to which a byte is added after each commit that was answered.
const ANSWERED: &str = "answered";

#[test]
fn what_was_committed_outlives_a_loss_of_power() {
    let folder = tempfile::tempdir_in(memory()).expect("a folder");
    let operations = recorded(folder.path());
    let states = states(&folder.path().join("calm"));
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).ok().map_or(otherwise, |text| text.parse().expect("a number"))
    };
    let (first, seeds) = (number("POWER_LOSS_SEED", 1), number("POWER_LOSS_SEEDS", SEEDS));
    eprintln!(
        "{} operations, {} commits; seeds {first}..{}",
        operations.len(),
        states.len() - 1,
        first + seeds
    );
    let mut disk = Disk::default();
    let mut answered = 0;
    let place = folder.path().join("after");
    for (at, operation) in operations.iter().enumerate() {
        if operation.file == ANSWERED {
            answered += usize::from(matches!(operation.what, What::Write(..)));
            continue;
        }
        disk.apply(operation);
        // Of a long row of writes, the first ones and the last ones.
        let writes = |part: &[Operation]| {
            part.len() == EDGE
                && part.iter().all(|operation| matches!(operation.what, What::Write(..)))
        };
        if writes(&operations[at.saturating_sub(EDGE)..at])
            && writes(&operations[at + 1..(at + 1 + EDGE).min(operations.len())])
        {
            continue;
        }
        for seed in first..first + seeds {
            let _ = std::fs::remove_dir_all(&place);
            std::fs::create_dir(&place).expect("a folder");
            disk.lose_power(&place, &mut Chance(seed << 32 | at as u64));
            let told = format!(
                "seed {seed}, after operation {at} ({operation:?}), {answered} commits answered"
            );
            let file = place.join("j.db");
            let store = SqliteJournal::open(&options(&file))
                .unwrap_or_else(|error| panic!("{told}: {error}"));
            store.recover().unwrap_or_else(|error| panic!("{told}: {error}"));
            drop(store);
            let held = rows(&file);
            let allowed = &states[answered..(answered + 2).min(states.len())];
            assert!(
                allowed.contains(&held),
                "{told}: holds what {:?} commits hold",
                states.iter().position(|state| *state == held)
            );
        }
    }
    assert_eq!(answered, states.len() - 1, "every commit was answered");
}

/// The process that is recorded: this test alone, with the recorder preloaded.
#[test]
fn the_recorded_writer() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let mut answers =
        OpenOptions::new().create(true).append(true).open(folder.join(ANSWERED)).expect("a file");
    live(&folder.join("j.db"), |_| answers.write_all(b".").expect("writable"));
}

fn recorded(folder: &Path) -> Vec<Operation> {
    let (recorder, log, files) =
        (folder.join("recorder.so"), folder.join("log"), folder.join("files"));
    std::fs::create_dir(&files).expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slow/recorder.c");
    let compiled = Command::new("cc")
        .args(["-O1", "-shared", "-fPIC", "-o"])
        .arg(&recorder)
        .arg(source)
        .status()
        .expect("a C compiler");
    assert!(compiled.success(), "the recorder was not compiled");
    let writer = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "power_loss::the_recorded_writer", "--test-threads", "1"])
        .env("LD_PRELOAD", &recorder)
        .env("RECORDER_LOG", &log)
        .env(FOLDER, &files)
        .output()
        .expect("it runs");
    assert!(
        writer.status.success(),
        "the writer failed:\n{}",
        String::from_utf8_lossy(&writer.stdout)
    );
    let log = std::fs::read(&log).expect("the recorder wrote its log");
    let operations: Vec<Operation> =
        operations(&log).into_iter().filter(|operation| operation.is_durable_state()).collect();
    assert!(
        operations.iter().any(|operation| matches!(operation.what, What::Unlink)),
        "the journal was never closed"
    );
    operations
}

/// Temporary files that need no disk: thousands of journals are written and opened.
fn memory() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

// ---- the journal's life

fn options(file: &Path) -> JournalOptions {
    JournalOptions {
        file: file.to_owned(),
        cache_bytes: 1 << 20,
        verify_bytes_max: 1 << 30,
        pages_max: 0,
    }
}

/// Opens a journal, commits, closes, again and again; calls after each commit.
fn live(file: &Path, mut committed: impl FnMut(&mut SqliteJournal)) {
    let mut jobs: Vec<(i64, Job)> = Vec::new();
    let mut number = 0;
    for phase in 0..3 {
        let mut store = SqliteJournal::open(&options(file)).expect("opens");
        for round in 0..10 {
            // More pages than SQLite keeps in its WAL before it writes them back: the next commit
            // begins it anew.
            let (count, bytes) = if (phase, round) == (2, 6) {
                (70, 65_536)
            } else {
                (1 + round % 3, 10 + 700 * round)
            };
            let records: Vec<Record> = (0..count)
                .map(|_| {
                    number += 1;
                    let (job, record) = new_job(number, bytes);
                    jobs.push((number, job));
                    record
                })
                .collect();
            store.append(&records.iter().collect::<Vec<_>>()).expect("commits");
            if round % 3 == 2 {
                store.project().expect("derives");
            }
            committed(&mut store);
            if round % 2 == 1 {
                let (number, mut job) = jobs.remove(0);
                store.append(&[&reply(&mut job, number)]).expect("commits");
                committed(&mut store);
            }
        }
        assert!(
            store.delete_expired(Timestamp(i64::MAX), Millis(0), 6).expect("deletes").roots > 0
        );
        committed(&mut store);
    }
}

/// The rows after each commit, from none on, of a life without interruption.
fn states(folder: &Path) -> Vec<Rows> {
    std::fs::create_dir(folder).expect("a folder");
    let mut states = vec![Rows::default()];
    let file = folder.join("j.db");
    live(&file, |store| {
        store.project().expect("derives");
        states.push(rows(&file));
    });
    states
}

type Rows = Vec<(i64, i64, String, Vec<u8>)>;

fn rows(file: &Path) -> Rows {
    let connection =
        rusqlite::Connection::open_with_flags(file, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY)
            .expect("opens");
    let sql = "SELECT j.number, e.seq, j.state || j.open, sum_of(e.body) FROM jobs j \
               JOIN entries e ON e.job = j.number ORDER BY e.seq";
    let mut statement =
        connection
            .prepare(&sql.replace(
                "sum_of(e.body)",
                "CAST(substr(e.body, 1, 200) || length(e.body) AS BLOB)",
            ))
            .expect("prepares");
    let rows = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .expect("reads");
    rows.collect::<Result<_, _>>().expect("rows")
}

const LIMITS: Limits = Limits {
    step_message_bytes_max: 1 << 20,
    reply_bytes_max: 1 << 20,
    depth_max: 32,
    window: 100,
    window_bytes: 1 << 26,
};

fn context(now: i64) -> Context<'static> {
    Context { now: Timestamp(now), limits: &LIMITS, pauses: None, spare: None }
}

fn new_job(number: i64, bytes: usize) -> (Job, Record) {
    let step = Step::with_name("only");
    let graph = Graph::new("w".to_owned(), None, vec![step]);
    let definition = Arc::new(Definition::new("w", vec![graph]));
    let id = JobId(uuid::Uuid::from_u128(number.unsigned_abs().into()));
    let origin = Origin::for_root_job(id, definition, Timestamp(number));
    let message = format!("{{\"n\":{number},\"text\":\"{}\"}}", "x".repeat(bytes));
    let (job, decision) = Job::create(
        origin.clone(),
        Message::parse(message.as_bytes()).expect("a message"),
        &context(number),
    );
    (
        job,
        Record::from_decision(
            number,
            Some(NewJob { origin: Arc::new(origin), root: number, parent: None }),
            decision,
        ),
    )
}

fn reply(job: &mut Job, number: i64) -> Record {
    let input = Input::Reply {
        step: "only".to_owned(),
        attempt: None,
        reply: Reply::Result("{\"done\":true}".into()),
        from: Sender::Unknown,
    };
    Record::from_decision(number, None, job.handle_input(input, &context(number)).expect("taken"))
}

// ---- the disk

struct Operation {
    file: String,
    what: What,
}

#[derive(Clone)]
enum What {
    Write(usize, Arc<[u8]>),
    Truncate(usize),
    Sync,
    Unlink,
}

impl Operation {
    /// The WAL's index is shared memory, the lock is empty: both are made anew.
    fn is_durable_state(&self) -> bool {
        !self.file.ends_with("-shm") && !self.file.ends_with(".lock")
    }
}

impl std::fmt::Debug for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.what {
            What::Write(offset, data) => {
                write!(f, "write {} bytes at {offset} of {}", data.len(), self.file)
            }
            What::Truncate(length) => write!(f, "truncate {} to {length}", self.file),
            What::Sync => write!(f, "sync {}", self.file),
            What::Unlink => write!(f, "remove {}", self.file),
        }
    }
}

fn operations(mut log: &[u8]) -> Vec<Operation> {
    fn take<'a>(log: &mut &'a [u8], length: usize) -> &'a [u8] {
        let (taken, rest) = log.split_at(length);
        *log = rest;
        taken
    }
    fn number(log: &mut &[u8]) -> usize {
        usize::try_from(u64::from_le_bytes(take(log, 8).try_into().expect("eight bytes")))
            .expect("a size")
    }
    let mut found = Vec::new();
    while !log.is_empty() {
        let kind = take(&mut log, 1)[0];
        let name_length = usize::from(take(&mut log, 1)[0]);
        let file = String::from_utf8(take(&mut log, name_length).to_vec()).expect("a name");
        let (offset, length) = (number(&mut log), number(&mut log));
        let what = match kind {
            b'w' => What::Write(offset, take(&mut log, length).into()),
            b't' => What::Truncate(offset),
            b's' => What::Sync,
            b'u' => What::Unlink,
            other => panic!("kind {other} in the log"),
        };
        found.push(Operation { file, what });
    }
    found
}

#[derive(Default)]
struct Disk {
    files: HashMap<String, OnDisk>,
}

#[derive(Default)]
struct OnDisk {
    /// None until the first sync: until then the name may be lost.
    durable: Option<Vec<u8>>,
    /// What came after the last sync.
    pending: Vec<What>,
    /// Removed, which may be lost.
    removed: bool,
}

impl Disk {
    fn apply(&mut self, operation: &Operation) {
        let file = self.files.entry(operation.file.clone()).or_default();
        match &operation.what {
            What::Unlink => file.removed = true,
            What::Sync => {
                let mut content = file.durable.clone().unwrap_or_default();
                file.pending.drain(..).for_each(|what| change(&mut content, &what));
                if file.durable.replace(content).is_none() {
                    // A new file's first sync also syncs its folder, and with it what was removed
                    // there before.
                    self.files.retain(|_, file| !file.removed);
                }
            }
            What::Write(..) | What::Truncate(_) => {
                if std::mem::take(&mut file.removed) {
                    *file = OnDisk::default();
                }
                file.pending.push(operation.what.clone());
            }
        }
    }

    /// Writes what such a disk may hold if the power goes now.
    fn lose_power(&self, folder: &Path, chance: &mut Chance) {
        let mut names: Vec<&String> = self.files.keys().collect();
        names.sort();
        for name in names {
            let file = &self.files[name];
            if (file.removed || file.durable.is_none()) && chance.below(2) == 0 {
                continue;
            }
            let mut content = file.durable.clone().unwrap_or_default();
            // Some disks lose everything that was not synced, some lose nothing, most lose some
            // sectors of it.
            let kept_of_8 = [0, 8, 1, 4, 7, 4][chance.below(6)];
            let mut pending: Vec<&What> = file.pending.iter().collect();
            if chance.below(2) == 0 {
                (1..pending.len()).rev().for_each(|at| pending.swap(at, chance.below(at + 1)));
            }
            for what in pending {
                match what {
                    What::Write(offset, data) => {
                        let mut at = 0;
                        while at < data.len() {
                            let end = (((offset + at) / SECTOR_BYTES + 1) * SECTOR_BYTES - offset)
                                .min(data.len());
                            if chance.below(8) < kept_of_8 {
                                change(
                                    &mut content,
                                    &What::Write(offset + at, data[at..end].into()),
                                );
                            }
                            at = end;
                        }
                    }
                    What::Truncate(_) | What::Sync | What::Unlink => {
                        if chance.below(8) < kept_of_8 {
                            change(&mut content, what);
                        }
                    }
                }
            }
            std::fs::write(folder.join(name), content).expect("writable");
        }
    }
}

fn change(content: &mut Vec<u8>, what: &What) {
    match what {
        What::Write(offset, data) => {
            if content.len() < offset + data.len() {
                content.resize(offset + data.len(), 0);
            }
            content[*offset..offset + data.len()].copy_from_slice(data);
        }
        What::Truncate(length) => content.resize(*length, 0),
        What::Sync | What::Unlink => {}
    }
}

/// Chance that follows from a seed (splitmix64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((bits ^ (bits >> 31)) % end as u64).unwrap_or_default()
    }
}
