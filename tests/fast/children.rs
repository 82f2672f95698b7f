//! Child jobs in the journal: listed by step and item, found by state among very many, with the
//! reason of each.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use workflow_manager::engine::{
    Decision, Definition, Entry, FanOutKeys, Graph, JobEntry, JobId, JobState, Origin, ParentItem,
    Recorded, Step, StepEntry, StepIndex, Timestamp,
};
use workflow_manager::journal::{ChildCursor, ChildFilter, ChildRecords, ChildRow, Journal};
use workflow_manager::journal::{JournalOptions, NewJob, Reader, Record, SqliteJournal};

const PARENT: JobId = JobId(uuid::Uuid::from_u128(1));

/// Two steps with child jobs.
fn definition() -> Arc<Definition> {
    let with_task = |name: &str| Step { task: Some(1), ..Step::with_name(name) };
    let task = Graph::new(
        "t".to_owned(),
        Some(FanOutKeys::new("items", "item")),
        vec![Step::with_name("work")],
    );
    Arc::new(Definition::new(
        "w",
        vec![Graph::new("w".to_owned(), None, vec![with_task("first"), with_task("second")]), task],
    ))
}

fn open(file: &Path) -> SqliteJournal {
    SqliteJournal::open(&JournalOptions {
        file: file.to_owned(),
        cache_bytes: 16 << 20,
        verify_bytes_max: 0,
        pages_max: 0,
    })
    .expect("opens")
}

fn record(
    number: i64,
    created: Option<NewJob>,
    (first, entry): (u64, Entry),
    state: Option<JobState>,
) -> Record {
    let recorded = Recorded { first, at: Timestamp(number + 1), entries: vec![entry] };
    let decision = Decision { recorded, state, ..Decision::default() };
    Record::from_decision(number, created, decision)
}

/// The first entry of a job.
fn begun() -> (u64, Entry) {
    let creation = JobEntry::Created {
        message: None,
        deadline: None,
        trace: None,
        trace_state: None,
        starts_at: None,
        slot: None,
    };
    (0, Entry::Job(creation))
}

fn parent(definition: &Arc<Definition>) -> Record {
    let origin = Origin::for_root_job(PARENT, definition.clone(), Timestamp(1));
    let created = NewJob { origin: Arc::new(origin), root: 1, parent: None };
    record(1, Some(created), begun(), None)
}

fn child(definition: &Arc<Definition>, number: i64, step: u16, index: u32) -> Record {
    let id = JobId(uuid::Uuid::from_u128(1000 + number as u128));
    let place = ParentItem { job: PARENT, step: StepIndex(step), index };
    let (definition, created) = (definition.clone(), Timestamp(number));
    let origin = Origin {
        id,
        definition,
        graph: 1,
        parent: Some(place),
        root: PARENT,
        depth: 1,
        created,
        trace: None,
        starts_at: None,
        slot: None,
    };
    let created = NewJob { origin: Arc::new(origin), root: 1, parent: Some(1) };
    record(number, Some(created), begun(), None)
}

fn failed(number: i64, reason: &str) -> Record {
    let failed = JobEntry::Failed { reason: reason.into(), expired: false, step: None };
    record(number, None, (1, Entry::Job(failed)), Some(JobState::Failed))
}

/// All pages.
fn all(reader: &Reader, filter: ChildFilter, limit: u32) -> Vec<ChildRow> {
    let family = reader.find_parent_job(PARENT).expect("read").expect("is there");
    let (mut rows, mut after) = (Vec::new(), ChildCursor::START);
    loop {
        let page = reader.load_children(&family, filter, after, limit).expect("read");
        assert!(page.len() <= limit as usize);
        let Some(last) = page.last() else { return rows };
        after = last.cursor;
        rows.extend(page);
    }
}

#[test]
fn of_fifty_thousand_items_the_failed_ones_are_found_by_an_index_with_their_reasons() {
    const ITEMS: u32 = 50_000;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let definition = definition();
    let mut store = open(&file);
    let mut records = vec![parent(&definition)];
    records.extend((0..ITEMS).map(|item| child(&definition, i64::from(item) + 2, 0, item)));
    records.extend((0..10).map(|item| child(&definition, i64::from(ITEMS + item) + 2, 1, item)));
    let those_failed = [17, 4_711, 49_999];
    for item in those_failed {
        records.push(failed(i64::from(item) + 2, &format!("item {item} is broken")));
        // A reply that came after the end is kept, but is not the reason.
        let late = Entry::Step(StepIndex(0), StepEntry::Confirmed);
        records.push(record(i64::from(item) + 2, None, (2, late), None));
    }
    let cancelled = JobEntry::Cancelled { reason: "a user".into(), by_parent: false };
    records.push(record(7, None, (1, Entry::Job(cancelled)), Some(JobState::Cancelled)));
    let completed = Entry::Job(JobEntry::Completed);
    records.push(record(8, None, (1, completed), Some(JobState::Completed)));
    store.append(&records.iter().collect::<Vec<_>>()).expect("commits");

    let reader = store.reader();
    let found = all(&reader, ChildFilter { state: Some(JobState::Failed), step: None }, 2);
    let items: Vec<(u32, &str, Option<&str>)> =
        found.iter().map(|row| (row.item, &*row.state, row.reason.as_deref())).collect();
    let wanted: Vec<(u32, String)> =
        those_failed.iter().map(|item| (*item, format!("item {item} is broken"))).collect();
    assert_eq!(
        items,
        wanted.iter().map(|(item, reason)| (*item, "failed", Some(&**reason))).collect::<Vec<_>>()
    );
    assert_eq!((found[0].created, found[0].ended), (Timestamp(19), Some(Timestamp(20))));
    let count = |state, step| all(&reader, ChildFilter { state, step }, 10_000).len();
    assert_eq!(count(None, None), ITEMS as usize + 10);
    assert_eq!(count(None, Some(StepIndex(1))), 10);
    assert_eq!(count(Some(JobState::Running), Some(StepIndex(0))), ITEMS as usize - 5);
    assert_eq!(
        (count(Some(JobState::Completed), None), count(Some(JobState::Paused), None)),
        (1, 0)
    );
    let cancelled = all(&reader, ChildFilter { state: Some(JobState::Cancelled), step: None }, 10);
    assert_eq!(
        cancelled.iter().map(|row| (row.item, row.reason.as_deref())).collect::<Vec<_>>(),
        [(5, Some("a user"))]
    );

    let rows = all(&reader, ChildFilter::default(), 7_001);
    let places: BTreeSet<(u16, u32)> = rows.iter().map(|row| (row.step.0, row.item)).collect();
    assert_eq!(places.len(), rows.len(), "none comes twice");
    assert!(rows.is_sorted_by_key(|row| (row.step.0, row.item)));
    assert!(reader.find_parent_job(JobId(uuid::Uuid::from_u128(2))).expect("read").is_none());
}

#[test]
fn of_an_item_that_was_done_again_the_newest_child_job_is_listed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let definition = definition();
    let records = [
        parent(&definition),
        child(&definition, 2, 0, 0),
        child(&definition, 3, 0, 1),
        failed(2, "first"),
        failed(3, "first"),
        child(&definition, 4, 0, 0),
    ];
    open(&file).append(&records.iter().collect::<Vec<_>>()).expect("commits");
    let reader = Reader::new(&file);
    let of = |state| {
        all(&reader, ChildFilter { state, step: None }, 1)
            .iter()
            .map(|row| (row.item, row.cursor.number))
            .collect::<Vec<_>>()
    };
    assert_eq!(of(None), [(0, 4), (1, 3)]);
    assert_eq!(of(Some(JobState::Failed)), [(1, 3)], "what was done again has not failed");
}
