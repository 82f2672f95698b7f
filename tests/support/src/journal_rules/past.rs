//! What is counted and told of many jobs; positions, confirms and notices.

use super::{FIRST, Live, Place, chain, opened};
use std::sync::Arc;
use workflow_manager::engine::{
    Control, ControlKey, ControlKind, Definition, Graph, JobState, Step, Timestamp,
};
use workflow_manager::journal::{
    DefinitionUse, EndedCursor, JobNumber, Journal, NEWEST_CURSOR, Notice, Record, Records,
    StoredLedger, StoredOffset, StoredTrend,
};

/// The workflow of `chain`, with one step.
fn shorter() -> Arc<Definition> {
    Arc::new(Definition::new(
        "w",
        vec![Graph::new("w".to_owned(), None, vec![Step::with_name("a")])],
    ))
}

/// Four jobs, created at 1 to 4. The first began under another definition; it and the third are
/// completed, at 100. The journal was opened since.
fn lived(place: &dyn Place) -> Box<dyn Journal> {
    let mut journal = opened(place);
    let definitions = [shorter(), chain(), chain(), chain()];
    let (mut lives, rows): (Vec<Live>, Vec<Record>) = (1..)
        .zip(&definitions)
        .map(|(number, definition)| Live::create(number, number as u128, definition))
        .unzip();
    journal.append(&rows.iter().collect::<Vec<_>>()).expect("commits");
    let ends = [lives[0].reply("a", "{}"), lives[2].reply("a", "{}"), lives[2].reply("b", "{}")];
    journal.append(&ends.iter().collect::<Vec<_>>()).expect("commits");
    drop(journal);
    opened(place)
}

pub fn jobs_are_counted_by_state_and_by_definition(place: &dyn Place) {
    let journal = lived(place);
    let records = journal.records();
    let mut counts = records.count_root_jobs_by_state().expect("reads");
    counts.sort_by_key(|(_, _, count)| *count);
    counts.sort_by_key(|(_, state, _)| state.as_str());
    let count = |state, count| ("w".to_owned(), state, count);
    assert_eq!(counts, [count(JobState::Completed, 2), count(JobState::Running, 2)]);
    let used = |definition: Arc<Definition>, running, ended| DefinitionUse {
        hash: definition.hash(),
        running,
        ended,
        last_ended: Some(Timestamp(100)),
    };
    assert_eq!(
        records.load_definition_uses("w").expect("reads"),
        [used(chain(), 2, 1), used(shorter(), 0, 1)],
        "the newest first"
    );
    assert_eq!(records.load_definition_uses("x").expect("reads"), []);
}

pub fn what_became_of_jobs_is_told_from_the_newest_a_part_at_a_time(place: &dyn Place) {
    let journal = lived(place);
    let records = journal.records();
    let created = |below| {
        let mut told = Vec::new();
        let last = records.for_each_creation(below, 3, &mut |workflow, at| {
            told.push((workflow.to_owned(), at.0));
        });
        (told, last.expect("reads"))
    };
    let of = |at: i64| ("w".to_owned(), at);
    assert_eq!(created(NEWEST_CURSOR), (vec![of(4), of(3), of(2)], Some(2)));
    assert_eq!(created(2), (vec![of(1)], Some(1)));
    assert_eq!(created(1), (vec![], None));

    let ended = |workflow, since, beyond| {
        let mut told = Vec::new();
        let last =
            records.for_each_end(workflow, Timestamp(since), beyond, 1, &mut |state, from, to| {
                told.push((state, from.0, to.0));
            });
        (told, last.expect("reads"))
    };
    let cursor = |number| EndedCursor { ended: Timestamp(100), number };
    let completed = |created| vec![(JobState::Completed, created, 100)];
    assert_eq!(ended("w", 100, EndedCursor::NEWEST), (completed(3), Some(cursor(3))));
    assert_eq!(ended("w", 100, cursor(3)), (completed(1), Some(cursor(1))));
    assert_eq!(ended("w", 100, cursor(1)), (vec![], None));
    assert_eq!(ended("w", 101, EndedCursor::NEWEST), (vec![], None), "before that");
    assert_eq!(ended("x", 0, EndedCursor::NEWEST), (vec![], None));
}

pub fn the_newest_position_of_each_partition_comes_back(place: &dyn Place) {
    let position = |bus: &str, partition, offset| StoredOffset {
        bus: bus.into(),
        topic: "r".into(),
        partition,
        offset,
    };
    let of = |records: &dyn Records, bus: &str| {
        let mut found = records.load_offsets(bus).expect("reads");
        found.sort_by_key(|position| position.partition);
        found
    };
    let mut journal = opened(place);
    let first = [position("a", 0, 7), position("a", 1, 3), position("b", 0, 1)];
    journal.store_offsets(&first).expect("written");
    // A topic that was made anew begins again.
    let newer = [position("a", 0, 9), position("a", 1, 0)];
    journal.store_offsets(&newer).expect("written");
    let left = place.crash();
    let copy = opened(&*left);
    for records in [journal.records(), copy.records()] {
        assert_eq!(of(&*records, "a"), newer);
        assert_eq!(of(&*records, "b"), first[2..]);
        assert_eq!(of(&*records, "c"), []);
    }
    drop(journal);
    assert_eq!(of(&*opened(place).records(), "a"), newer, "after a start");
}

pub fn confirms_wait_for_a_record_of_their_job_or_get_one(place: &dyn Place) {
    let mut journal = opened(place);
    let (mut live, created) = Live::create(1, 1, &chain());
    let (mut other, of_other) = Live::create(2, 2, &chain());
    journal.append(&[&created, &of_other]).expect("commits");
    assert!(!journal.has_pending_confirms());
    journal.append(&[&live.confirm(FIRST.0), &other.confirm(FIRST.0)]).expect("commits");
    assert_eq!(journal.has_pending_confirms(), place.defers_projection());
    journal.append(&[&live.reply("a", "{}")]).expect("commits");
    assert_eq!(journal.has_pending_confirms(), place.defers_projection(), "the other's");
    while journal.write_confirms().expect("writes confirms") {}
    assert!(!journal.has_pending_confirms());
    [&live, &other].into_iter().for_each(|live| live.assert_read_by(&*journal.records(), "both"));
    assert_eq!(journal.check_files(), Ok(()), "the files are those that were opened");
}

pub fn notices_wait_until_they_are_forgotten_and_their_numbers_are_not_used_again(
    place: &dyn Place,
) {
    let mut journal = opened(place);
    let records = journal.records();
    let notice = |at| Notice { at: Timestamp(at), body: format!("of {at}").into() };
    let with_notice = |number: JobNumber| {
        let (_, record) = Live::create(number, number as u128, &chain());
        Record { notice: Some(notice(number)), ..record }
    };
    let noticed = [with_notice(1), with_notice(2)];
    // The second time the journal has them.
    for _ in 0..2 {
        journal.append(&[&noticed[0], &noticed[1]]).expect("commits");
    }
    // Nor is it written again beside a later record of its job.
    let (mut live, _) = Live::create(1, 1, &chain());
    journal.append(&[&noticed[0], &live.reply("a", "{}")]).expect("commits");
    let waiting = records.load_notices(0, 9).expect("reads");
    assert_eq!(
        waiting.iter().map(|(_, notice)| notice.clone()).collect::<Vec<_>>(),
        [1, 2].map(notice)
    );
    let [first, second] = [waiting[0].0, waiting[1].0];
    assert_eq!(records.load_notices(first, 9).expect("reads").len(), 1, "behind the first");
    assert_eq!(records.load_notice(second).expect("reads"), Some(notice(2)));
    journal.delete_notices(&[first, second]).expect("forgets");
    assert_eq!(
        (records.count_notices().expect("reads"), records.load_notice(first).expect("reads")),
        (0, None)
    );
    drop(journal);
    let mut journal = opened(place);
    journal.append(&[&with_notice(3)]).expect("commits");
    let waiting = journal.records().load_notices(0, 9).expect("reads");
    assert!(matches!(&waiting[..], [(number, _)] if *number > second), "{waiting:?}");
}

pub fn what_operators_have_changed_is_there_until_it_is_ended(place: &dyn Place) {
    let control = |kind: ControlKind, reason: &str| Control {
        key: ControlKey { kind, bus: "".into(), vhost: "v".into(), name: "a".into() },
        rate: None,
        concurrency: None,
        reason: Some(reason.into()),
        by: None,
        since: Timestamp(1),
        until: Some(Timestamp(9)),
    };
    let mut journal = opened(place);
    let ended = control(ControlKind::WorkflowPause, "first");
    for written in [&control(ControlKind::QueuePause, "first"), &ended] {
        journal.store_control(written).expect("written");
    }
    let newer = control(ControlKind::QueuePause, "second");
    journal.store_control(&newer).expect("replaced");
    journal.delete_control(&ended.key).expect("deleted");
    let left = place.crash();
    assert_eq!(opened(&*left).load_controls().expect("reads"), std::slice::from_ref(&newer));
    drop(journal);
    assert_eq!(opened(place).load_controls().expect("reads"), [newer], "after a start");
}

pub fn the_newest_ledger_of_each_schedule_comes_back(place: &dyn Place) {
    let ledger = |schedule: &str, text: Option<&str>| StoredLedger {
        schedule: schedule.into(),
        ledger: text.map(Arc::from),
    };
    let mut journal = opened(place);
    let first = [ledger("a", Some("{}")), ledger("b/a", Some("1"))];
    journal.store_ledgers(&first).expect("written");
    assert_eq!(journal.records().load_ledgers().expect("reads"), first);
    let changes = [ledger("a", None), ledger("b/a", Some("2")), ledger("gone", None)];
    journal.store_ledgers(&changes).expect("written");
    let newer = [ledger("b/a", Some("2"))];
    let left = place.crash();
    let copy = opened(&*left);
    for records in [journal.records(), copy.records()] {
        assert_eq!(records.load_ledgers().expect("reads"), newer);
    }
    drop(journal);
    assert_eq!(opened(place).records().load_ledgers().expect("reads"), newer, "after a start");
}

pub fn trends_are_replaced_in_their_positions_and_survive_a_crash(place: &dyn Place) {
    let trend = |position, workflow: &str, start, body: &str| StoredTrend {
        ring: 2,
        position,
        workflow: workflow.into(),
        start: Timestamp(start),
        body: body.into(),
    };
    let mut journal = opened(place);
    let first = [
        trend(0, "", 10, "{}"),
        trend(1, "", 20, "1"),
        trend(1, "b/a", 20, "2"),
        trend(0, "w", 10, "3"),
    ];
    journal.store_trends(&first, &[]).expect("written");
    // A round later in the same position, and the same bucket once more; one workflow is forgotten.
    let newer = [trend(0, "", 30, "{}"), trend(1, "", 20, "4"), trend(1, "new", 20, "5")];
    journal.store_trends(&newer, &["w".into(), "none".into()]).expect("written");
    let left = place.crash();
    let copy = opened(&*left);
    for records in [journal.records(), copy.records()] {
        let load = |workflow, since| records.load_trend(2, workflow, Timestamp(since));
        assert_eq!(load("", 0).expect("reads"), [newer[1].clone(), newer[0].clone()], "by time");
        assert_eq!(load("", 21).expect("reads"), newer[..1]);
        assert_eq!(load("w", 0).expect("reads"), [], "forgotten");
        assert_eq!(records.load_trend(1, "", Timestamp(0)).expect("reads"), [], "another ring");
        let there = records.load_trends_at(2, 1).expect("reads");
        assert_eq!(there, [newer[1].clone(), first[2].clone(), newer[2].clone()]);
        let names: [Arc<str>; 2] = ["b/a".into(), "new".into()];
        assert_eq!(records.load_trend_workflows().expect("reads"), names);
    }
    drop(journal);
    let there = opened(place).records().load_trends_at(2, 0).expect("reads");
    assert_eq!(there, newer[..1], "after a start");
}
