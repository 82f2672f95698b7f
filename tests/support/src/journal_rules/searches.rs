//! What a search finds.

use super::{Live, Place, chain, opened};
use workflow_manager::engine::{Input, JobId, JobState, Operation, Timestamp};
use workflow_manager::journal::{JobFilter, JobNumber, SearchOrder};

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
