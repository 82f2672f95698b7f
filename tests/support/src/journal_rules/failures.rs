//! How failures are grouped, and found by their reasons.

use super::{Live, Place, chain, opened, three_levels};
use workflow_manager::engine::{
    Input, Instruction, Operation, Order, ReasonId, ReasonPattern, Reply, Sender, Timestamp,
};
use workflow_manager::journal::{
    FailureFilter, FailureGroup, JobFilter, JobNumber, Journal, ParentKey, Record, Records,
    SearchOrder,
};

/// The reason of failures that differ in a number only.
const NOT_KNOWN: &str = "step \"a\": order # is not known";

const NONE: [JobNumber; 0] = [];

fn fail(live: &mut Live, step: &str, error: &str) -> Record {
    let body = serde_json::json!({ "error": error, "retryable": false }).to_string();
    let (step, reply) = (step.to_owned(), Reply::Error(body.into()));
    live.take(Input::Reply { step, attempt: None, reply, from: Sender::Unknown })
}

fn reason_id(pattern: &str) -> ReasonId {
    ReasonPattern::from_reason(pattern).id()
}

fn group(records: &dyn Records, filter: &FailureFilter) -> Vec<FailureGroup> {
    let grouped = records.group_failures(filter, 9).expect("reads");
    assert_eq!(grouped.failures, grouped.groups.iter().map(|group| group.jobs).sum::<u32>());
    grouped.groups
}

/// Each group: its pattern, workflow, jobs, child jobs and example.
fn summaries(journal: &dyn Journal) -> Vec<(String, String, u32, u32, u128)> {
    let groups = group(&*journal.records(), &FailureFilter::default());
    let summary = |group: FailureGroup| {
        let reason = group.example_reason.expect("a reason");
        let pattern = ReasonPattern::from_reason(&reason);
        assert_eq!(pattern.id(), group.reason);
        let text = pattern.text().to_owned();
        (text, group.workflow, group.jobs, group.children, group.example.0.as_u128())
    };
    groups.into_iter().map(summary).collect()
}

pub(super) fn found(journal: &dyn Journal, filter: &JobFilter) -> Vec<JobNumber> {
    let records = journal.records();
    let order = SearchOrder::OldestFirst;
    let hits = records.search(filter, order, order.start_cursor(), 9).expect("reads");
    let numbers: Vec<JobNumber> = hits.iter().map(|hit| hit.number).collect();
    assert_eq!(records.count_matches(filter, 9).expect("reads") as usize, numbers.len());
    let order = SearchOrder::NewestFirst;
    let newest = records.search(filter, order, order.start_cursor(), 9).expect("reads");
    let mut newest: Vec<JobNumber> = newest.iter().map(|hit| hit.number).collect();
    newest.reverse();
    assert_eq!(newest, numbers, "in either order");
    numbers
}

fn of_reason(pattern: &str) -> JobFilter {
    JobFilter { reason: Some(reason_id(pattern)), ..JobFilter::default() }
}

/// A family of three, of which the youngest fails: jobs 1 to 3. And jobs 4 to 6, which fail.
fn failed_jobs(journal: &mut dyn Journal) -> Vec<Live> {
    let (mut lives, mut records): (Vec<Live>, Vec<Record>) =
        Live::family(1, &three_levels()).into_iter().unzip();
    for number in 4..=6 {
        let (live, created) = Live::create(number, number as u128, &chain());
        lives.push(live);
        records.push(created);
    }
    journal.append(&records.iter().collect::<Vec<_>>()).expect("commits");
    let failed = [
        fail(&mut lives[2], "only", "no \"pen\""),
        fail(&mut lives[3], "a", "order 17 is not known"),
        fail(&mut lives[4], "a", "order 4711 is not known"),
        fail(&mut lives[5], "a", "out of paper"),
    ];
    journal.append(&failed.iter().collect::<Vec<_>>()).expect("commits");
    lives
}

pub fn failures_are_grouped_and_found_by_reason_until_their_job_is_deleted(place: &dyn Place) {
    let mut journal = opened(place);
    let mut lives = failed_jobs(&mut *journal);
    let child = lives[2].job.id().0.as_u128();
    let summary = |reason: &str, workflow: &str, jobs, children, example| {
        (reason.to_owned(), workflow.to_owned(), jobs, children, example)
    };
    let not_known = |jobs, example| summary(NOT_KNOWN, "w", jobs, 0, example);
    let mut all = summaries(&*journal);
    assert_eq!(all.remove(0), not_known(2, 5), "the most frequent first");
    all.sort_unstable();
    let others = [
        summary("step \"a\": out of paper", "w", 1, 0, 6),
        summary("step \"only\": no \"…\"", "f", 1, 1, child),
    ];
    assert_eq!(all, others);
    let copy = place.crash();
    assert_eq!(summaries(&*opened(&*copy)).len(), 3, "they follow from the entries");

    let records = journal.records();
    let in_workflow =
        |name: &str| FailureFilter { workflow: Some(name.into()), ..Default::default() };
    assert_eq!(group(&*records, &in_workflow("f")).len(), 1);
    assert_eq!(group(&*records, &in_workflow("g")), []);
    let ended = |from, before| FailureFilter {
        ended_from: Some(Timestamp(from)),
        ended_before: Some(Timestamp(before)),
        ..FailureFilter::default()
    };
    let all = group(&*records, &ended(100, 101));
    assert_eq!(all.len(), 3);
    assert!(all.iter().all(|group| (group.first, group.last) == (Timestamp(100), Timestamp(100))));
    assert_eq!(group(&*records, &ended(0, 100)), []);
    assert_eq!(group(&*records, &ended(101, 900)), []);
    let most = records.group_failures(&FailureFilter::default(), 1).expect("reads");
    assert_eq!((most.groups.len(), most.failures), (1, 4), "what is left out is counted");

    assert_eq!(found(&*journal, &of_reason(NOT_KNOWN)), [4, 5]);
    assert_eq!(found(&*journal, &of_reason("step \"only\": no 'x'")), [1], "a root job");
    let parent = Some(ParentKey { number: 2, root: 1 });
    let children = JobFilter { parent, ..of_reason("step \"only\": no 'x'") };
    assert_eq!(found(&*journal, &children), [3]);
    assert_eq!(found(&*journal, &JobFilter { parent, ..of_reason(NOT_KNOWN) }), NONE);
    let other_workflow = JobFilter { workflow: Some("f".into()), ..of_reason(NOT_KNOWN) };
    assert_eq!(found(&*journal, &other_workflow), NONE);
    assert_eq!(found(&*journal, &of_reason("no such reason")), NONE);

    // A job that runs again has not failed, and may fail for another reason.
    let retry = |live: &mut Live| live.take(Input::from_request(Operation::Retry));
    journal.append(&[&retry(&mut lives[3]), &retry(&mut lives[5])]).expect("commits");
    assert_eq!(summaries(&*journal).len(), 2);
    assert_eq!(found(&*journal, &of_reason(NOT_KNOWN)), [5]);
    let end = [fail(&mut lives[3], "a", "out of paper"), lives[5].reply("a", "{}")];
    journal.append(&end.iter().collect::<Vec<_>>()).expect("commits");
    assert_eq!(found(&*journal, &of_reason("step \"a\": out of paper")), [4]);
    assert_eq!(found(&*journal, &of_reason(NOT_KNOWN)), [5]);
    lives[3].assert_read_by(&*journal.records(), "it is whole");

    assert_eq!(journal.delete_jobs(&[4, 5], u32::MAX).expect("deletes").roots, 2);
    assert_eq!(summaries(&*journal), [summary("step \"only\": no \"…\"", "f", 1, 1, child)]);
    assert_eq!(found(&*journal, &of_reason(NOT_KNOWN)), NONE);
}

/// A root job is listed once, however many jobs of its tree failed.
pub fn a_root_job_is_found_once_however_many_of_its_jobs_failed(place: &dyn Place) {
    let mut journal = opened(place);
    let (mut lives, records): (Vec<Live>, Vec<Record>) =
        [1, 4].into_iter().flat_map(|number| Live::family(number, &three_levels())).unzip();
    journal.append(&records.iter().collect::<Vec<_>>()).expect("commits");
    // Both lower levels of each family fail for one reason, as told by their own parents.
    let halt =
        |text: &str| Input::Order(Order { round: 0, instruction: Instruction::Halt(text.into()) });
    let halted = lives[0].take(halt("its step failed"));
    journal.append(&[&halted]).expect("commits");
    assert_eq!(
        group(&*journal.records(), &FailureFilter::default()),
        [],
        "nothing went wrong in it"
    );
    let failed: Vec<Record> = [1, 2, 4, 5].map(|at: usize| lives[at].take(halt("gave up"))).into();
    journal.append(&failed.iter().collect::<Vec<_>>()).expect("commits");
    let groups = group(&*journal.records(), &FailureFilter::default());
    let [all] = &groups[..] else { panic!("{groups:?}") };
    assert_eq!((all.jobs, all.children), (4, 4));
    let filter = JobFilter { reason: Some(all.reason), ..JobFilter::default() };
    assert_eq!(found(&*journal, &filter), [1, 4]);
    let records = journal.records();
    let page = |order, after| -> Vec<JobNumber> {
        let hits = records.search(&filter, order, after, 1).expect("reads");
        hits.iter().map(|hit| hit.number).collect()
    };
    assert_eq!(page(SearchOrder::NewestFirst, SearchOrder::NewestFirst.start_cursor()), [4]);
    assert_eq!(page(SearchOrder::NewestFirst, 4), [1]);
    assert_eq!(page(SearchOrder::OldestFirst, 1), [4]);
}

pub fn failures_from_before_their_table_are_found_too(place: &dyn Place) {
    let mut journal = opened(place);
    failed_jobs(&mut *journal);
    let before = summaries(&*journal);
    drop(journal);
    place.forget_failures();
    let journal = opened(place);
    assert_eq!(summaries(&*journal), before);
    assert_eq!(found(&*journal, &of_reason(NOT_KNOWN)), [4, 5]);
}
