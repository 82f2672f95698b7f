//! What a search finds.

use super::{Live, Place, chain, opened};
use std::collections::BTreeSet;
use std::sync::Arc;
use workflow_manager::engine::{
    Column, Columns, Definition, Expression, Input, JobId, JobState, Message, Operation, Origin,
    ScheduledSlot, Timestamp,
};
use workflow_manager::journal::{
    CellRefill, EndedCursor, JobFilter, JobNumber, Journal, NEWEST_CURSOR, NewJob, SearchOrder,
    StatusFilter,
};

/// Four jobs, created at 1 to 4: the first completed and the second was cancelled, at 100; the
/// third is paused; the fourth runs.
pub fn a_search_finds_by_all_that_is_kept_in_either_order(place: &dyn Place) {
    let mut journal = opened(place);
    let (mut lives, rows): (Vec<Live>, Vec<_>) =
        (1..=4).map(|number| Live::create(number, 0x10 * number as u128, &chain())).unzip();
    journal.append(&rows.iter().collect::<Vec<_>>()).expect("commits");
    let reason = "no longer wanted";
    let more = [
        lives[0].reply("a", "{}"),
        lives[0].reply("b", "{}"),
        lives[1].take(Input::from_request(Operation::Cancel { reason: reason.into() })),
        lives[2].take(Input::from_request(Operation::Pause)),
    ];
    journal.append(&more.iter().collect::<Vec<_>>()).expect("commits");
    let records = journal.records();
    let found = |filter: &JobFilter, order: SearchOrder, beyond, limit| -> Vec<JobNumber> {
        let hits = records.search(filter, order, beyond, limit).expect("reads");
        hits.iter().map(|hit| hit.number).collect()
    };
    let all = |filter: &JobFilter| {
        found(filter, SearchOrder::OldestFirst, SearchOrder::OldestFirst.start_cursor(), 9)
    };
    let any = JobFilter::default();
    assert_eq!(all(&any), [1, 2, 3, 4]);
    assert_eq!(
        found(&any, SearchOrder::NewestFirst, SearchOrder::NewestFirst.start_cursor(), 2),
        [4, 3]
    );
    assert_eq!(found(&any, SearchOrder::NewestFirst, 3, 9), [2, 1]);
    assert_eq!(found(&any, SearchOrder::OldestFirst, 2, 1), [3]);

    use JobState::{Cancelled, Completed, Failed, Running};
    let of_states =
        |states: &[JobState]| JobFilter { states: states.to_vec(), ..JobFilter::default() };
    assert_eq!(all(&of_states(&[Running])), [4]);
    let some = of_states(&[Cancelled, Completed, Running]);
    assert_eq!(all(&some), [1, 2, 4]);
    assert_eq!(found(&some, SearchOrder::NewestFirst, 4, 1), [2], "the newest of all states");
    assert!(all(&of_states(&[Failed])).is_empty());
    let in_workflow = |name: &str| JobFilter { workflow: Some(name.to_owned()), ..some.clone() };
    assert_eq!(all(&in_workflow("w")), [1, 2, 4]);
    assert!(all(&in_workflow("x")).is_empty());

    let step = |status: &str| JobFilter {
        workflow: Some("w".to_owned()),
        statuses: vec![("a".to_owned(), status.to_owned())],
        ..JobFilter::default()
    };
    assert_eq!(all(&step("COMPLETED")), [1]);
    assert_eq!(all(&step("PENDING")), [3, 4]);

    let between = |first, last| JobFilter {
        id_range: Some((JobId(uuid::Uuid::from_u128(first)), JobId(uuid::Uuid::from_u128(last)))),
        ..JobFilter::default()
    };
    assert_eq!(all(&between(0x20, 0x3f)), [2, 3]);
    assert_eq!(all(&between(0x20, 0x20)), [2]);
    assert!(all(&between(0x11, 0x1f)).is_empty());

    let created = |from, before| JobFilter {
        created_from: Some(Timestamp(from)),
        created_before: Some(Timestamp(before)),
        ..JobFilter::default()
    };
    assert_eq!(all(&created(2, 4)), [2, 3]);
    let ended = |from, before| JobFilter {
        ended_from: Some(Timestamp(from)),
        ended_before: Some(Timestamp(before)),
        ..JobFilter::default()
    };
    assert_eq!(all(&ended(100, 101)), [1, 2]);
    assert!(all(&ended(101, 1_000)).is_empty() && all(&ended(0, 100)).is_empty());

    for (filter, count) in [(&any, 4), (&some, 3), (&between(0, 0x20), 2), (&ended(0, 1), 0)] {
        assert_eq!(records.count_matches(filter, 100).expect("reads"), count);
        assert_eq!(records.count_matches(filter, 2).expect("reads"), count.min(2), "up to two");
    }
    let hits = records.search(&any, SearchOrder::OldestFirst, 0, 9).expect("reads");
    let reasons: Vec<Option<&str>> = hits.iter().map(|hit| hit.reason.as_deref()).collect();
    assert_eq!(reasons, [None, Some(reason), None, None]);
}

/// Three jobs: the first two were started by schedules, and the messages of the last two only speak
/// of one.
pub fn a_search_finds_the_jobs_of_a_schedule(place: &dyn Place) {
    let mut journal = opened(place);
    let of_schedule = |number: JobNumber, name: &str, message: &str| {
        let slot = ScheduledSlot { schedule: name.into(), slot: Timestamp(number) };
        let id = JobId(uuid::Uuid::from_u128(number as u128));
        let root = Origin::for_root_job(id, chain(), Timestamp(number));
        let slot = (!name.is_empty()).then(|| Arc::new(slot));
        let origin = Arc::new(Origin { slot, ..root });
        let message = Message::parse(message.as_bytes()).expect("a message");
        Live::with(number, NewJob { origin, root: number, parent: None }, message).0.1
    };
    let escapes = r#"{"k":"\\u0000 \u0000 \ud800","n":1e400}"#;
    let rows = [
        of_schedule(1, "often", "{}"),
        of_schedule(2, "\"a\" \\ ä", escapes),
        of_schedule(3, "", r#"{"slot":{"schedule":"often","slot":3}}"#),
        of_schedule(4, "often", escapes),
    ];
    journal.append(&rows.iter().collect::<Vec<_>>()).expect("commits");
    let records = journal.records();
    let find = |name: &str, states: Vec<JobState>| {
        let filter = JobFilter { schedule: Some(name.to_owned()), states, ..JobFilter::default() };
        let hits = records.search(&filter, SearchOrder::OldestFirst, -1, 9).expect("reads");
        assert_eq!(records.count_matches(&filter, 9).expect("reads") as usize, hits.len());
        hits.iter().map(|hit| hit.number).collect::<Vec<_>>()
    };
    assert_eq!(find("often", Vec::new()), [1, 4]);
    assert_eq!(find("often", vec![JobState::Running]), [1, 4]);
    assert!(find("often", vec![JobState::Completed]).is_empty());
    assert_eq!(find("\"a\" \\ ä", Vec::new()), [2]);
    assert!(find("oft", Vec::new()).is_empty() && find("Often", Vec::new()).is_empty());
}

/// Jobs of a workflow with a label and columns, one of them with a name that SQL has.
pub fn labels_and_columns_are_found_until_their_job_is_deleted(place: &dyn Place) {
    let value = |text: &str| Expression::parse(text).expect(text);
    let column = |(name, text): (&str, &str)| Column { name: name.into(), value: value(text) };
    let columns =
        [("order", "job.n"), ("from", "job.n > 1"), ("total", "steps.a.output.cents")].map(column);
    let columns = Columns { label: Some(value("'Job ' + string(job.n)")), list: columns.into() };
    let definition =
        Arc::new(Definition { name: "orders".to_owned(), columns, ..(*chain()).clone() });
    let mut journal = opened(place);
    journal.create_status_tables(&[&definition]).expect("tables of statuses");
    let (mut first, created) = Live::create(1, 1, &definition);
    let (mut second, of_second) = Live::create(2, 2, &definition);
    let (_plain, of_plain) = Live::create(3, 3, &chain());
    journal.append(&[&created, &of_second, &of_plain]).expect("commits");
    journal.append(&[&first.reply("a", r#"{"cents":7.5}"#)]).expect("commits");

    let with = |name: &str, value: &str| JobFilter {
        cells: vec![(name.to_owned(), value.to_owned())],
        ..JobFilter::default()
    };
    let labelled = |text: &str| JobFilter { label: Some(text.to_owned()), ..JobFilter::default() };
    let check = |journal: &dyn Journal, first: &Live, expected: [&[JobNumber]; 4]| {
        let records = journal.records();
        let filters =
            [with("order", "1"), with("from", "true"), with("total", "7.5"), labelled("JOB")];
        for (filter, numbers) in filters.iter().zip(expected) {
            let order = SearchOrder::OldestFirst;
            let hits = records.search(filter, order, order.start_cursor(), 9).expect("reads");
            assert_eq!(
                hits.iter().map(|hit| hit.number).collect::<Vec<_>>(),
                numbers,
                "{filter:?}"
            );
            let count = records.count_matches(filter, 9).expect("reads") as usize;
            assert_eq!(count, numbers.len(), "{filter:?}");
            let cells = first.job.cells().into_iter().filter(|(_, cell)| cell.is_some());
            let cells: Vec<_> = cells.collect();
            let mut of_first = hits.iter().filter(|hit| hit.number == 1);
            assert!(of_first.all(|hit| hit.cells == cells), "{filter:?}: {cells:?}");
        }
        let hostile = with("order", "1' OR '1'='1");
        assert_eq!(records.count_matches(&hostile, 9).expect("reads"), 0);
        assert_eq!(records.count_matches(&labelled("%"), 9).expect("reads"), 0, "no pattern");
    };
    check(&*journal, &first, [&[1], &[2], &[1], &[1, 2]]);
    let copy = place.crash();
    drop(journal);
    let mut journal = opened(&*copy);
    check(&*journal, &first, [&[1], &[2], &[1], &[1, 2]]);
    second.assert_read_by(&*journal.records(), "it is whole");

    let cancel = || Input::from_request(Operation::Cancel { reason: "not wanted".into() });
    journal.append(&[&first.take(cancel()), &second.take(cancel())]).expect("commits");
    assert_eq!(journal.delete_jobs(&[1, 2], u32::MAX).expect("deletes").roots, 2);
    check(&*journal, &first, [&[], &[], &[], &[]]);
}

/// Two jobs of a workflow whose columns change: one has gone on since its cells were computed.
pub fn cells_are_refilled_unless_their_job_has_gone_on(place: &dyn Place) {
    let define = |label: Option<&str>, list: &[(&str, &str)]| {
        let value = |text: &str| Expression::parse(text).expect(text);
        let column =
            |(name, text): &(&str, &str)| Column { name: (*name).into(), value: value(text) };
        let list = list.iter().map(column).collect();
        let columns = Columns { label: label.map(value), list };
        Arc::new(Definition { name: "orders".to_owned(), columns, ..(*chain()).clone() })
    };
    let old = define(None, &[("order", "job.n")]);
    let changed = [("total", "steps.a.output.cents"), ("gone", "steps.gone.output.x")];
    let new = define(Some("'Job ' + string(job.n)"), &changed);
    let mut journal = opened(place);
    journal.create_status_tables(&[&old]).expect("tables of statuses");
    let (mut first, created) = Live::create(1, 1, &old);
    let (second, of_second) = Live::create(2, 2, &old);
    journal.append(&[&created, &of_second]).expect("commits");
    journal.create_status_tables(&[&new]).expect("tables of statuses");
    let refill = |number: JobNumber, live: &Live| {
        let refilled = live.job.refilled_cells(&new.columns);
        assert!(refilled.lacks_step, "no job has the step `gone`");
        CellRefill { job: number, entries: live.job.entry_count(), cells: refilled.cells }
    };
    let cells_of = |journal: &dyn Journal, job: JobNumber| -> String {
        let cells = journal.records().load_cells(&[job], &new.columns).expect("reads");
        let cells = cells.get(&job).map_or(&[][..], Vec::as_slice);
        let text = |(name, cell): &(Arc<str>, Option<_>)| {
            format!("{name}={}", serde_json::to_string(cell).expect("JSON"))
        };
        cells.iter().map(text).collect::<Vec<_>>().join(" ")
    };
    let early = refill(1, &first);
    journal.append(&[&first.reply("a", r#"{"cents":7.5}"#)]).expect("commits");
    let erased = CellRefill { job: 99, ..early.clone() };
    let others = journal.refill_cells(&new, &[early, refill(2, &second), erased]).expect("writes");
    assert_eq!(others, BTreeSet::from([1, 99]), "one has gone on, one does not exist");
    assert_eq!(cells_of(&*journal, 1), "order=1", "it is left as it was");
    assert_eq!(cells_of(&*journal, 2), r#"label="Job 2" order=2"#);

    let others = journal.refill_cells(&new, &[refill(1, &first)]).expect("writes");
    assert_eq!(others, BTreeSet::new());
    let of_first = r#"label="Job 1" total=7.5 order=1"#;
    assert_eq!(cells_of(&*journal, 1), of_first);
    // A search shows the cells of the job's own columns first.
    let filter = JobFilter { label: Some("job 1".to_owned()), ..JobFilter::default() };
    let order = SearchOrder::OldestFirst;
    let hits = journal.records().search(&filter, order, order.start_cursor(), 9).expect("reads");
    let names: Vec<&str> = hits[0].cells.iter().map(|(name, _)| &**name).collect();
    assert_eq!((hits.len(), names), (1, vec!["order", "label", "total"]));

    let copy = place.crash();
    drop(journal);
    assert_eq!(cells_of(&*opened(&*copy), 1), of_first, "it is there after a crash");
}

pub fn lists_and_statuses_show_what_is_committed(place: &dyn Place) {
    let mut journal = opened(place);
    let records = journal.records();
    let (mut ended, created) = Live::create(1, 1, &chain());
    let (running, of_running) = Live::create(2, 2, &chain());
    journal.append(&[&created, &of_running]).expect("commits");
    journal.append(&[&ended.reply("a", "{}"), &ended.reply("b", "{}")]).expect("commits");
    assert_eq!(journal.has_unprojected(), place.defers_projection());

    let listed = records.load_running_root_jobs("w", 0, 9).expect("reads");
    assert_eq!(listed, [(2, running.job.id(), "running".to_owned())]);
    assert!(!journal.has_unprojected(), "what is listed is derived first");
    assert_eq!(records.load_running_root_jobs("w", 2, 9).expect("reads"), [], "beyond");
    assert_eq!(records.load_running_jobs(0, 9).expect("reads"), [(2, running.job.id())]);
    assert_eq!(records.count_running_root_jobs().expect("reads"), [("w".to_owned(), 1)]);
    let listed =
        records.load_ended_root_jobs("w", Timestamp(0), EndedCursor::NEWEST, 9).expect("reads");
    let cursor = EndedCursor { ended: Timestamp(100), number: 1 };
    assert_eq!(listed, [(cursor, ended.job.id(), "completed".to_owned())]);
    assert_eq!(
        records.load_ended_root_jobs("w", Timestamp(101), EndedCursor::NEWEST, 9).expect("reads"),
        []
    );
    assert_eq!(
        records.load_ended_root_jobs("w", Timestamp(0), cursor, 9).expect("reads"),
        [],
        "beyond"
    );

    assert_eq!(records.load_status_columns("x").expect("reads"), None);
    let columns = records.load_status_columns("w").expect("reads").expect("has some");
    assert_eq!(columns, ["a", "b"]);
    let rows = records
        .load_statuses("w", &columns, &StatusFilter::default(), NEWEST_CURSOR, 9)
        .expect("reads");
    assert_eq!(rows.iter().map(|row| row.number).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(rows[1].statuses, ["COMPLETED", "COMPLETED"]);
    let filter = StatusFilter { state: Some(JobState::Running), ..StatusFilter::default() };
    assert_eq!(
        records.load_statuses("w", &columns, &filter, NEWEST_CURSOR, 9).expect("reads"),
        rows[..1]
    );
}
