//! Commits of which a part is there already, and what a commit costs a database server.

use super::{InDatabase, Live, Place, chain, numbers, opened};
use workflow_manager::engine::{JobState, Timestamp};
use workflow_manager::journal::{
    EndedCursor, JobNumber, Journal, NEWEST_CURSOR, Record, Records, StatusFilter,
};

/// So many jobs are in a commit of which the costs are counted.
const MANY: JobNumber = 300;

/// A job that completes: its creation and its end.
fn complete(number: JobNumber) -> (Live, [Record; 3]) {
    let (mut live, created) = Live::create(number, number as u128, &chain());
    let records = [created, live.reply("a", "{}"), live.reply("b", "{}")];
    (live, records)
}

fn statuses(records: &dyn Records, number: JobNumber) -> Vec<String> {
    let columns = records.load_status_columns("w").expect("reads").expect("has some");
    let filter = StatusFilter::default();
    let rows = records.load_statuses("w", &columns, &filter, NEWEST_CURSOR, 9).expect("reads");
    rows.into_iter().find(|row| row.number == number).expect("is there").statuses
}

pub fn a_commit_of_which_a_part_is_there_writes_the_rest(place: &dyn Place) {
    let mut journal = opened(place);
    let (first, of_first) = complete(1);
    let (mut second, of_second) = Live::create(2, 2, &chain());
    let (third, of_third) = complete(3);
    let (fourth, of_fourth) = Live::create(4, 4, &chain());
    journal.append(&[&of_first[0], &of_first[1], &of_second, &of_fourth]).expect("commits");
    let of_running = statuses(&*journal.records(), 4);
    let reply = second.reply("a", "{}");
    let all = [&of_first[0], &of_first[1], &of_first[2], &of_second, &reply];
    let all: Vec<&Record> = all.into_iter().chain(&of_third).collect();
    for what in ["in part", "whole"] {
        assert!(journal.append(&all).expect("commits").is_empty(), "{what}");
        let records = journal.records();
        for live in [&first, &second, &third, &fourth] {
            live.assert_read_by(&*records, what);
        }
        assert_eq!(numbers(&*journal), [2, 4], "{what}");
        let running = records.load_running_root_jobs("w", 0, 9).expect("reads");
        assert_eq!(running.iter().map(|row| row.0).collect::<Vec<_>>(), [2, 4], "{what}");
        let ended = records.load_ended_root_jobs("w", Timestamp(0), EndedCursor::NEWEST, 9);
        let ended: Vec<(JobNumber, String)> =
            ended.expect("reads").into_iter().map(|row| (row.0.number, row.2)).collect();
        let completed = || JobState::Completed.as_str().to_owned();
        assert_eq!(ended, [(3, completed()), (1, completed())], "{what}");
        assert_eq!(statuses(&*records, 1), ["COMPLETED", "COMPLETED"], "{what}");
        assert_eq!(statuses(&*records, 2), ["COMPLETED", "PENDING"], "{what}");
        assert_eq!(statuses(&*records, 3), ["COMPLETED", "COMPLETED"], "{what}");
        assert_eq!(statuses(&*records, 4), of_running, "{what}");
    }
}

/// The log of the server, which its user may read.
const LOG: &str = "current_setting('data_directory') || '/../server.log'";

/// Returns what the server has logged beyond so many bytes.
fn log_beyond(database: &InDatabase, bytes: u64) -> String {
    database.query(&format!("SELECT pg_read_file({LOG}, {bytes}, 100000000)"))
}

fn log_bytes(database: &InDatabase) -> u64 {
    let size = database.query(&format!("SELECT size FROM pg_stat_file({LOG})"));
    size.trim().parse().expect("a number")
}

/// Returns the most rows that a part of a logged plan has returned, over all its runs.
fn most_rows(log: &str) -> f64 {
    let products = log.split("(actual rows=").skip(1).filter_map(|text| {
        let (rows, text) = text.split_once(" loops=")?;
        let (loops, _) = text.split_once(')')?;
        Some(rows.parse::<f64>().ok()? * loops.parse::<f64>().ok()?)
    });
    products.fold(0.0, f64::max)
}

/// The server tells for each statement what each part of its plan has done. A new day has no
/// statistics, with which the plan would be another.
pub fn a_commit_costs_the_server_in_proportion_to_its_records(database: &InDatabase) {
    let settings = [
        "session_preload_libraries = 'auto_explain'",
        "auto_explain.log_min_duration = 0",
        "auto_explain.log_analyze = on",
        "auto_explain.log_timing = off",
    ];
    let name = database.query("SELECT current_database()");
    for setting in settings {
        database.query(&format!("ALTER DATABASE {} SET {setting}", name.trim()));
    }
    let mut journal = opened(database);
    let (_, records): (Vec<Live>, Vec<[Record; 3]>) = (1..=MANY).map(complete).unzip();
    let part = |of: std::ops::Range<usize>| -> Vec<&Record> {
        records.iter().flat_map(|of_job| &of_job[of.clone()]).collect()
    };
    let cost = |journal: &mut dyn Journal, records: &[&Record], insertion: &str| {
        let before = log_bytes(database);
        assert!(journal.append(records).expect("commits").is_empty());
        let log = log_beyond(database, before);
        assert!(log.contains(insertion), "no statement with {insertion} is logged: {log}");
        most_rows(&log)
    };
    let new = "INSERT INTO entries(";
    let careful = "INSERT INTO entries AS e";
    let costs = [
        cost(&mut *journal, &part(0..1), new),
        cost(&mut *journal, &part(1..2), new),
        // A half is there, so it is written in the other form.
        cost(&mut *journal, &part(0..3), careful),
    ];
    let linear = (4 * MANY) as f64;
    assert!(costs.iter().all(|rows| *rows >= MANY as f64), "the rows are counted: {costs:?}");
    assert!(costs.iter().all(|rows| *rows <= linear), "more than so many rows: {costs:?}");
    let ended = "SELECT count(*) FROM jobs WHERE state = 'completed' AND ended = 100 AND NOT open";
    assert_eq!(database.query(ended).trim(), MANY.to_string());
}
