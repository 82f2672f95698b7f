//! Names and days in one database.

use super::{FIRST, InDatabase, Live, Place, chain, numbers};
use workflow_manager::engine::{JobId, Millis, Timestamp};
use workflow_manager::journal::{
    ForeignName, JobFilter, JobNumber, Journal, NEWEST_CURSOR, Notice, Record, SearchOrder,
    StoredOffset,
};

/// A day in milliseconds, as in the number of a job.
const DAY: JobNumber = 86_400_000 << 22;

fn opened_as(database: &InDatabase, name: &str) -> Box<dyn Journal> {
    let mut journal = database.open_as(name).expect("opens");
    journal.create_status_tables(&[&chain()]).expect("tables of statuses");
    journal
}

fn offset(offset: i64) -> StoredOffset {
    StoredOffset { bus: "a".into(), topic: "r".into(), partition: 0, offset }
}

pub fn names_keep_to_their_own_jobs_and_lists_show_all(database: &InDatabase) {
    let mut journals = ["default", "second"].map(|name| opened_as(database, name));
    let id = JobId(uuid::Uuid::from_u128(7));
    let mut own = Vec::new();
    for (index, journal) in journals.iter_mut().enumerate() {
        let number = journal.job_numbers().expect("numbers").take(Timestamp(0));
        let (mut live, created) = Live::create(number, 7, &chain());
        let notice = Notice { at: Timestamp(1), body: format!("of {index}").into() };
        journal.append(&[&Record { notice: Some(notice), ..created }]).expect("commits");
        journal.append(&[&live.confirm(FIRST.0)]).expect("commits");
        journal.store_offsets(&[offset(index as i64)]).expect("stores");
        own.push(live);
    }
    assert_ne!(own[0].number, own[1].number);
    let highest = own[1].number;
    for (index, journal) in journals.iter_mut().enumerate() {
        let (number, records) = (own[index].number, journal.records());
        assert_eq!(numbers(&**journal), [number], "its own are recovered");
        // What a client's id means, within the name.
        assert_eq!(records.find_job_number(id).expect("reads"), Some(number));
        let creation = records.load_creation(id).expect("reads").expect("is there");
        assert_eq!(creation.number, number);
        let notices = records.load_notices(0, 9).expect("reads");
        assert_eq!(notices.len(), 1);
        assert_eq!(&*notices[0].1.body, format!("of {index}"));
        assert_eq!(records.count_notices().expect("reads"), 1);
        assert_eq!(records.load_offsets("a").expect("reads"), [offset(index as i64)]);
        let mut created = 0;
        records.for_each_creation(NEWEST_CURSOR, 9, &mut |_, _| created += 1).expect("reads");
        assert_eq!(created, 1, "for its rates");
        // Everybody sees all.
        let found = records.search(&JobFilter::default(), SearchOrder::NewestFirst, i64::MAX, 9);
        assert_eq!(found.expect("reads").len(), 2);
        assert_eq!(records.load_running_jobs(0, 9).expect("reads").len(), 2);
        assert_eq!(records.load_job(id).expect("reads").expect("is there").number, highest);
        assert!(records.load_job_by_number(own[1 - index].number).expect("reads").is_some());
        let name = records.find_foreign_name(own[1 - index].number).expect("reads");
        let expected = ["second", "default"][index].to_owned();
        assert_eq!(name, Some(ForeignName { name: expected, api_address: None }));
        assert_eq!(records.find_foreign_name(number).expect("reads"), None);
    }
    for (journal, live) in journals.iter_mut().zip(&mut own) {
        journal.append(&[&live.reply("a", "{}"), &live.reply("b", "{}")]).expect("commits");
    }
    let first = &mut journals[0];
    assert_eq!(first.count_expired(Timestamp(i64::MAX), Millis(0)).expect("counts"), 1);
    let deletion = first.delete_expired(Timestamp(i64::MAX), Millis(0), 99).expect("deletes");
    assert_eq!(deletion.roots, 1, "its own are deleted");
    own[1].assert_read_by(&*first.records(), "the other's stays");
}

pub fn numbers_increase_over_a_takeover_with_a_clock_that_is_behind(database: &InDatabase) {
    let mut journal = opened_as(database, "default");
    let mut numbers = journal.job_numbers().expect("numbers");
    let mut last = 0;
    for _ in 0..3 {
        last = numbers.take(Timestamp(1_700_000_000_000_000_000));
        let (_, created) = Live::create(last, last as u128, &chain());
        journal.append(&[&created]).expect("commits");
    }
    let copy = database.crash();
    let next = |place: &dyn Place| {
        let mut journal = place.open().expect("opens");
        journal.job_numbers().expect("numbers").take(Timestamp(0))
    };
    assert!(next(&*copy) > last, "after a crash");
    let newest = journal.records().load_job_by_number(last).expect("reads").expect("is there");
    assert_eq!(journal.newest_record_time().expect("reads"), Some(newest.origin().created));
    drop(journal);
    assert_eq!(next(database), last + 1, "after a stop");
}

pub fn a_commit_makes_the_day_that_it_needs(database: &InDatabase) {
    let mut journal = opened_as(database, "default");
    let partitions = || {
        let sql = "SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class
                   WHERE relispartition AND relkind = 'r' AND relname LIKE '%_20200412'";
        database.query(sql).trim().to_owned()
    };
    let all = "entries_20200412 jobs_20200412 statuses_20200412";
    let append = |journal: &mut dyn Journal, number| {
        let (live, created) = Live::create(102 * DAY + number, number as u128, &chain());
        journal.append(&[&created]).expect("commits");
        live.assert_read_by(&*journal.records(), "committed");
    };
    assert_eq!(partitions(), "");
    append(&mut *journal, 1);
    assert_eq!(partitions(), all);
    // The day is dropped by another process.
    database.query("DROP TABLE jobs_20200412, entries_20200412, statuses_20200412");
    append(&mut *journal, 2);
    assert_eq!(partitions(), all);
    let ahead = "SELECT count(*) FROM pg_class WHERE relispartition AND relkind = 'r'
                   AND relname >= 'jobs_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')
                   AND relname < 'jobs_3'";
    assert_eq!(database.query(ahead).trim(), "4", "today, and three days ahead");
}
