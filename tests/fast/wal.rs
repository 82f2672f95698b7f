//! While another program reads the journal without an end, its `-wal` cannot be emptied. That it
//! grows is told, and once it is empty again it is made small.

use crate::alone::{Log, alone};
use rusqlite::Connection;
use support::manager::TestManager;
use support::waits::{until, until_async};

/// The value of a large message, in bytes.
const LARGE: usize = 14 << 20;

/// With so many of them the `-wal` is told to be large.
const LARGE_COUNT: usize = 5;

/// What it may keep of its size once it is empty, in bytes.
const KEPT_MAX: i64 = 16 << 20;

async fn a_reader_without_end() {
    let log = Log::begin();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let setup = TestManager::with("workflows: [{name: w, steps: [{name: a}]}]").journal(&file);
    let manager = setup.set(|settings| settings.limits.jobs_bytes_max = 1 << 30).await;
    let metrics = &manager.core().metrics;
    let wal = || metrics.journal_bytes.with_label_values(&["wal"]).get();

    let reader = Connection::open(&file).expect("opens");
    reader.execute_batch("BEGIN; SELECT count(*) FROM jobs").expect("reads");
    let large = format!("{{\"k\":\"{}\"}}", "x".repeat(LARGE));
    for _ in 0..LARGE_COUNT {
        manager.create_job("w", &large).await;
    }
    until("that it grows is told", || log.has("the journal's -wal grows")).await;
    assert!(wal() >= (LARGE * LARGE_COUNT) as i64, "{}", wal());
    assert!(!log.has("the journal's -wal is small again"));

    drop(reader);
    // A commit writes it back, and the next one begins it anew.
    until_async("it is emptied", async || {
        manager.create_job("w", "{}").await;
        log.has("the journal's -wal is small again")
    })
    .await;
    until("it is small", || wal() <= KEPT_MAX).await;
    manager.stop().await;
}

#[test]
fn a_wal_that_grows_is_told_and_made_small_again() {
    alone("wal::a_wal_that_grows_is_told_and_made_small_again", a_reader_without_end());
}
