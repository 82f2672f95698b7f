//! How completed jobs are found of which items have failed.

use super::failures::found;
use super::{Live, Place, context, opened};
use std::sync::Arc;
use workflow_manager::engine::{
    ChildEnd, Definition, Effect, FanOutKeys, Graph, Input, JobState, Operation, OperationRequest,
    Order, Reply, Sender, Step, Tolerate,
};
use workflow_manager::journal::{JobFilter, JobNumber, Journal, ParentKey, Record};

const NONE: [JobNumber; 0] = [];

/// A job that completes although its only item fails, and so does each child job: its own child
/// jobs do the work.
fn tolerant() -> Arc<Definition> {
    let each = |task| Step { task: Some(task), ..Step::with_name("each") };
    let keys = |items, item| {
        Some(FanOutKeys { tolerate: Tolerate::Count(1), ..FanOutKeys::new(items, item) })
    };
    let graphs = vec![
        Graph::new("g".to_owned(), None, vec![each(1)]),
        Graph::new("t".to_owned(), keys("items", "item"), vec![each(2)]),
        Graph::new("u".to_owned(), keys("subs", "sub"), vec![Step::with_name("only")]),
    ];
    Arc::new(Definition::new("g", graphs))
}

fn with_failed_items(workflow: Option<&str>) -> JobFilter {
    let workflow = workflow.map(str::to_owned);
    JobFilter { failed_items: true, workflow, ..JobFilter::default() }
}

/// Tells the parent of a job its end, which one of these effects reports.
fn report(effects: Vec<Effect>, parent: &mut Live) -> (Record, Vec<Effect>) {
    let told = effects.into_iter().find_map(|effect| {
        if let Effect::NotifyParent(item, ended) = effect { Some((item, ended)) } else { None }
    });
    let (item, ended): (_, ChildEnd) = told.expect("the end is reported");
    take(parent, Input::ChildEnded { step: item.step, index: item.index, ended })
}

fn take(live: &mut Live, input: Input) -> (Record, Vec<Effect>) {
    let mut decision = live.job.handle_input(input, &context(100)).expect("taken");
    let effects = std::mem::take(&mut decision.effects);
    (Record::from_decision(live.number, None, decision), effects)
}

/// Ends the youngest of a family with this reply, and the others after it.
fn end(family: &mut [Live], reply: Reply) -> Vec<Record> {
    let [root, middle, youngest] = family else { panic!("a family of three") };
    let input =
        Input::Reply { step: "only".to_owned(), attempt: None, reply, from: Sender::Unknown };
    let (of_youngest, effects) = take(youngest, input);
    let (of_middle, effects) = report(effects, middle);
    let (of_root, _) = report(effects, root);
    vec![of_youngest, of_middle, of_root]
}

fn failure() -> Reply {
    Reply::Error(br#"{"error":"no ink","retryable":false}"#.as_slice().into())
}

fn append(journal: &mut dyn Journal, records: &[Record]) {
    journal.append(&records.iter().collect::<Vec<_>>()).expect("commits");
}

/// Families of three with the numbers 1 to 3 and 4 to 6. In the first one the youngest has failed,
/// and its parents have completed.
fn families(journal: &mut dyn Journal) -> (Vec<Live>, Vec<Live>) {
    journal.create_status_tables(&[&tolerant()]).expect("tables of statuses");
    let mut make = |number| -> Vec<Live> {
        let (lives, records): (Vec<Live>, Vec<Record>) =
            Live::family(number, &tolerant()).into_iter().unzip();
        append(journal, &records);
        lives
    };
    let (mut first, second) = (make(1), make(4));
    append(journal, &end(&mut first, failure()));
    assert_eq!(first[0].job.state(), JobState::Completed);
    (first, second)
}

pub fn failed_items_are_found_until_mended(place: &dyn Place) {
    let mut journal = opened(place);
    let (_, mut second) = families(&mut *journal);
    // The item of the root job completed: an item of that child job failed.
    let child_of_first = ParentKey { number: 1, root: 1 };
    let in_first = JobFilter { parent: Some(child_of_first), ..with_failed_items(None) };
    let everywhere = [with_failed_items(None), with_failed_items(Some("g"))];
    assert_eq!(found(&*journal, &in_first), [2]);
    assert_eq!(found(&*journal, &with_failed_items(None)), NONE);

    // The middle one of the second family fails: an order halts it.
    let halt = Order { round: 0, instruction: super::Instruction::Halt("gave up".into()) };
    let (halted, effects) = take(&mut second[1], Input::Order(halt));
    let (of_root, _) = report(effects, &mut second[0]);
    append(&mut *journal, &[halted, of_root]);
    for filter in &everywhere {
        assert_eq!(found(&*journal, filter), [4]);
        let states = vec![JobState::Completed];
        assert_eq!(found(&*journal, &JobFilter { states, ..filter.clone() }), [4]);
        let states = vec![JobState::Failed];
        assert_eq!(found(&*journal, &JobFilter { states, ..filter.clone() }), NONE);
        let id = second[0].job.id();
        assert_eq!(
            found(&*journal, &JobFilter { id_range: Some((id, id)), ..filter.clone() }),
            [4]
        );
    }
    assert_eq!(found(&*journal, &with_failed_items(Some("w"))), NONE);
    for copy in [place.crash(), place.crash()] {
        let copy = opened(&*copy);
        assert_eq!(found(&*copy, &everywhere[0]), [4], "they follow from the entries");
        assert_eq!(found(&*copy, &in_first), [2]);
    }

    // A job whose items run again is not found, and neither is one that has mended them all.
    let again = Operation::Rerun { step: "each".to_owned(), only_failed_items: true };
    let (of_root, effects) =
        take(&mut second[0], Input::from_request(OperationRequest::from(again)));
    append(&mut *journal, &[of_root]);
    assert_eq!(found(&*journal, &everywhere[0]), NONE);
    let order = effects.into_iter().find_map(|effect| {
        if let Effect::OrderChild { order, .. } = effect { Some(order) } else { None }
    });
    let (retried, _) = take(&mut second[1], Input::Order(order.expect("a retry")));
    append(&mut *journal, &[retried]);
    append(&mut *journal, &end(&mut second, Reply::Result(b"{}".as_slice().into())));
    assert_eq!(second[0].job.state(), JobState::Completed);
    assert_eq!(found(&*journal, &everywhere[0]), NONE);
    assert_eq!(found(&*opened(&*place.crash()), &everywhere[1]), NONE);
    second[0].assert_read_by(&*journal.records(), "it is whole");

    assert_eq!(journal.delete_jobs(&[1], u32::MAX).expect("deletes").roots, 1);
    assert_eq!(found(&*journal, &in_first), NONE);
}

pub fn failed_items_of_before_are_found(place: &dyn Place) {
    let mut journal = opened(place);
    let (_, mut second) = families(&mut *journal);
    append(&mut *journal, &end(&mut second, Reply::Result(b"{}".as_slice().into())));
    let in_first = |number| JobFilter {
        parent: Some(ParentKey { number, root: number }),
        ..with_failed_items(None)
    };
    drop(journal);
    place.forget_tolerated();
    let journal = opened(place);
    assert_eq!(found(&*journal, &in_first(1)), [2]);
    assert_eq!(found(&*journal, &in_first(4)), NONE);
}
