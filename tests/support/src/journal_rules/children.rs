//! Lists of child jobs.

use super::{FIRST, Live, Place, chain, opened, three_levels};
use std::sync::Arc;
use workflow_manager::engine::{JobId, JobState, Message, Origin, StepIndex, Timestamp};
use workflow_manager::journal::{
    ChildCursor, ChildFilter, JobFilter, NEWEST_CURSOR, NewJob, Record, SearchOrder,
};

pub fn a_job_that_another_calls_keeps_its_depth(place: &dyn Place) {
    let mut journal = opened(place);
    let id = JobId(uuid::Uuid::from_u128(1));
    let origin = Origin { depth: 3, ..Origin::for_root_job(id, chain(), Timestamp(1)) };
    let called = NewJob { origin: Arc::new(origin), root: 1, parent: None };
    let ((live, created), _) = Live::with(1, called, Message::default());
    journal.append(&[&created]).expect("commits");
    let job = journal.records().load_job(id).expect("reads").expect("is there").job;
    assert!(job == live.job && job.origin().depth == 3);
}

pub fn child_jobs_are_listed_under_their_parent(place: &dyn Place) {
    let mut journal = opened(place);
    let records = journal.records();
    let (lives, rows): (Vec<Live>, Vec<Record>) =
        Live::family(1, &three_levels()).into_iter().unzip();
    journal.append(&rows.iter().collect::<Vec<_>>()).expect("commits");
    let [parent, child, grandchild] = [0, 1, 2].map(|at| lives[at].job.id());
    assert_eq!(records.find_child_number(1, child).expect("reads"), Some(2));
    assert_eq!(records.find_child_number(1, grandchild).expect("reads"), None, "not its own");
    let family = records.find_parent_job(parent).expect("reads").expect("is there");
    assert_eq!(family.graph().name, "f");
    let listed = |filter, after| -> Vec<JobId> {
        let rows = records.load_children(&family, filter, after, 9).expect("reads");
        rows.iter().map(|row| row.id).collect()
    };
    assert_eq!(listed(ChildFilter::default(), ChildCursor::START), [child]);
    let items = |step| {
        let mut items = Vec::new();
        let read =
            records.for_each_item(&family, step, &mut |row| items.push((row.item, row.state)));
        read.expect("reads");
        items
    };
    assert_eq!(items(FIRST), [(0, JobState::Running)]);
    assert!(items(StepIndex(1)).is_empty());
    let failed = ChildFilter { state: Some(JobState::Failed), step: None };
    assert!(listed(failed, ChildCursor::START).is_empty());
    let other = ChildFilter { state: None, step: Some(StepIndex(1)) };
    assert!(listed(other, ChildCursor::START).is_empty());
    let rows = records.load_children(&family, ChildFilter::default(), ChildCursor::START, 9);
    let cursor = rows.expect("reads")[0].cursor;
    assert!(listed(ChildFilter::default(), cursor).is_empty(), "behind the last");
    assert!(records.find_parent_job(JobId(uuid::Uuid::from_u128(99))).expect("reads").is_none());
    assert_eq!(
        records
            .search(&JobFilter::default(), SearchOrder::NewestFirst, NEWEST_CURSOR, 9)
            .expect("reads")
            .len(),
        1,
        "top-level"
    );
}
