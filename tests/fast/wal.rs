//! While another program reads the journal without an end, its `-wal` cannot be emptied. That it
//! grows is told, and once it is empty again it is made small.

use crate::alone::{Log, alone};
use rusqlite::Connection;
use std::time::Duration;
use support::waits::{DEADLINE, until};
use workflow_manager::actors::manager;
use workflow_manager::bus::embedded::Workers;
use workflow_manager::engine::Message;
use workflow_manager::load::load_text;
use workflow_manager::settings::Settings;

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
    let mut settings = Settings::defaults().expect("defaults");
    settings.journal.file.clone_from(&file);
    settings.limits.jobs_bytes_max = 1 << 30;
    let definitions =
        load_text("test.yaml", "workflows: [{name: w, steps: [{name: a}]}]").expect("valid");
    let manager =
        manager::start(settings, definitions.definitions, Workers::new()).await.expect("starts");
    let metrics = &manager.common().metrics;
    let wal = || metrics.journal_bytes.with_label_values(&["wal"]).get();

    let reader = Connection::open(&file).expect("opens");
    reader.execute_batch("BEGIN; SELECT count(*) FROM jobs").expect("reads");
    let large = format!("{{\"k\":\"{}\"}}", "x".repeat(LARGE));
    let large = Message::parse(large.as_bytes()).expect("a message");
    for _ in 0..LARGE_COUNT {
        manager.create("w", None, large.clone()).await.expect("created");
    }
    until("that it grows is told", || log.has("the journal's -wal grows").then_some(())).await;
    assert!(wal() >= (LARGE * LARGE_COUNT) as i64, "{}", wal());
    assert!(!log.has("the journal's -wal is small again"));

    drop(reader);
    let emptied = tokio::time::timeout(DEADLINE, async {
        while !log.has("the journal's -wal is small again") {
            // A commit writes it back, and the next one begins it anew.
            let small = Message::parse(b"{}").expect("a message");
            manager.create("w", None, small).await.expect("created");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    emptied.await.expect("it is emptied in time");
    until("it is small", || (wal() <= KEPT_MAX).then_some(())).await;
    manager.stop().await;
}

#[test]
fn a_wal_that_grows_is_told_and_made_small_again() {
    alone("wal::a_wal_that_grows_is_told_and_made_small_again", a_reader_without_end());
}
