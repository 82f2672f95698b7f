//! The rules that hold of any journal, tested through the traits alone. The macro `journal_rules`
//! makes a test of each rule for one kind of journal.

#![allow(missing_docs, reason = "the name of a rule is its promise")]

mod children;
mod commits;
mod deletions;
mod failures;
mod names;
mod parts;
mod past;
mod places;
mod searches;
mod tolerated;

use crate::world::LIMITS;
pub use children::{
    a_job_that_another_calls_keeps_its_depth, child_jobs_are_listed_under_their_parent,
};
pub use commits::{
    a_commit_costs_the_server_in_proportion_to_its_records,
    a_commit_of_which_a_part_is_there_writes_the_rest,
};
pub use deletions::{
    a_definition_that_appears_below_others_has_its_retention,
    a_deletion_whose_answer_is_lost_is_reported_by_the_next,
};
pub use failures::{
    a_root_job_is_found_once_however_many_of_its_jobs_failed,
    failures_are_grouped_and_found_by_reason_until_their_job_is_deleted,
    failures_from_before_their_table_are_found_too,
};
pub use names::{
    a_commit_makes_the_day_that_it_needs, names_keep_to_their_own_jobs_and_lists_show_all,
    numbers_increase_over_a_takeover_with_a_clock_that_is_behind,
};
pub use parts::{
    a_family_goes_in_parts_and_a_crash_between_them_leaves_what_can_be_read,
    a_sweep_in_parts_deletes_all_that_is_due,
    the_first_part_of_a_deletion_closes_the_root_whatever_the_limit,
};
pub use past::{
    confirms_wait_for_a_record_of_their_job_or_get_one,
    jobs_are_counted_by_state_and_by_definition,
    notices_wait_until_they_are_forgotten_and_their_numbers_are_not_used_again,
    the_newest_ledger_of_each_schedule_comes_back,
    the_newest_position_of_each_partition_comes_back,
    trends_are_replaced_in_their_positions_and_survive_a_crash,
    what_became_of_jobs_is_told_from_the_newest_a_part_at_a_time,
    what_operators_have_changed_is_there_until_it_is_ended,
};
pub use places::{InDatabase, InFile, Place};
pub use searches::{
    a_search_finds_by_all_that_is_kept_in_either_order, a_search_finds_the_jobs_of_a_schedule,
    cells_are_refilled_unless_their_job_has_gone_on,
    labels_and_columns_are_found_until_their_job_is_deleted,
    lists_and_statuses_show_what_is_committed,
};
use std::sync::Arc;
pub use tolerated::{failed_items_are_found_until_mended, failed_items_of_before_are_found};
use workflow_manager::engine::{
    Context, Decision, Definition, DefinitionHash, Dependency, Effect, FanOutKeys, Graph, Input,
    Instruction, Job, JobId, Message, Millis, Operation, Order, Origin, Reply, Sender, Step,
    StepIndex, Timestamp,
};
use workflow_manager::journal::{
    JobAtEntry, JobNumber, Journal, JournalError, NewJob, Record, Records, Remedy,
};

/// Makes a test of each rule for one kind of journal: `$place` creates an empty one.
#[macro_export]
macro_rules! journal_rules {
    ($module:ident, $place:expr) => {
        $crate::journal_rules! { @ $module, $place,
            what_was_appended_is_recovered_and_what_ended_is_not
            what_a_crash_leaves_is_what_was_committed
            families_that_are_recovered_side_by_side_are_whole_and_in_order
            a_closed_job_with_an_open_child_tells_its_parent_after_a_crash
            a_record_that_comes_twice_changes_nothing_and_another_in_its_place_is_refused
            a_commit_of_which_a_part_is_there_writes_the_rest
            a_second_opener_is_refused_until_the_first_is_gone
            records_of_a_deleted_job_are_void
            a_confirm_counts_at_once_and_after_a_crash
            confirms_wait_for_a_record_of_their_job_or_get_one
            retention_deletes_what_ended_and_nothing_else
            a_family_goes_in_parts_and_a_crash_between_them_leaves_what_can_be_read
            a_sweep_in_parts_deletes_all_that_is_due
            the_first_part_of_a_deletion_closes_the_root_whatever_the_limit
            an_id_that_comes_back_leads_to_the_newest_job
            a_record_is_read_in_pages_and_a_job_as_it_was_at_each_entry
            lists_and_statuses_show_what_is_committed
            a_search_finds_by_all_that_is_kept_in_either_order
            a_search_finds_the_jobs_of_a_schedule
            labels_and_columns_are_found_until_their_job_is_deleted
            cells_are_refilled_unless_their_job_has_gone_on
            failures_are_grouped_and_found_by_reason_until_their_job_is_deleted
            a_root_job_is_found_once_however_many_of_its_jobs_failed
            failures_from_before_their_table_are_found_too
            failed_items_are_found_until_mended
            failed_items_of_before_are_found
            jobs_are_counted_by_state_and_by_definition
            what_became_of_jobs_is_told_from_the_newest_a_part_at_a_time
            the_newest_ledger_of_each_schedule_comes_back
            what_operators_have_changed_is_there_until_it_is_ended
            the_newest_position_of_each_partition_comes_back
            trends_are_replaced_in_their_positions_and_survive_a_crash
            child_jobs_are_listed_under_their_parent
            a_job_that_another_calls_keeps_its_depth
            some_jobs_are_recovered_as_at_a_start
            notices_wait_until_they_are_forgotten_and_their_numbers_are_not_used_again
            a_closed_reader_refuses_and_says_why
        }
    };
    (@ $module:ident, $place:expr, $($rule:ident)*) => {
        mod $module {
            $(
                #[test]
                fn $rule() {
                    $crate::journal_rules::$rule(&$place);
                }
            )*
        }
    };
}

const FIRST: StepIndex = StepIndex(0);

fn context(now: i64) -> Context<'static> {
    Context { now: Timestamp(now), limits: &LIMITS, pauses: None, spare: None }
}

/// Step `b` after step `a`.
fn chain() -> Arc<Definition> {
    let after = vec![Dependency::Step(FIRST)];
    let steps = vec![Step::with_name("a"), Step { depends: after, ..Step::with_name("b") }];
    Arc::new(Definition::new("w", vec![Graph::new("w".to_owned(), None, steps)]))
}

/// A job that fans out to a child job, which fans out to another.
fn three_levels() -> Arc<Definition> {
    let each = |task| Step { task: Some(task), ..Step::with_name("each") };
    let keys = |items, item| Some(FanOutKeys::new(items, item));
    let graphs = vec![
        Graph::new("f".to_owned(), None, vec![each(1)]),
        Graph::new("t".to_owned(), keys("items", "item"), vec![each(2)]),
        Graph::new("u".to_owned(), keys("subs", "sub"), vec![Step::with_name("only")]),
    ];
    Arc::new(Definition::new("f", graphs))
}

/// A job as the actor has it that writes its records.
struct Live {
    number: JobNumber,
    job: Job,
}

impl Live {
    fn create(number: JobNumber, id: u128, definition: &Arc<Definition>) -> (Live, Record) {
        let (id, at) = (JobId(uuid::Uuid::from_u128(id)), Timestamp(number));
        let origin = Origin::for_root_job(id, definition.clone(), at);
        let body = format!("{{\"n\":{number},\"k\":1e400,\"items\":[1],\"subs\":[1]}}");
        let message = Message::parse(body.as_bytes()).expect("a message");
        let place = NewJob { origin: Arc::new(origin), root: number, parent: None };
        Live::with(number, place, message).0
    }

    /// The job, its first record, and what it wants done.
    fn with(number: JobNumber, place: NewJob, message: Message) -> ((Live, Record), Vec<Effect>) {
        let (job, mut decision) = Job::create((*place.origin).clone(), message, &context(number));
        let effects = std::mem::take(&mut decision.effects);
        ((Live { number, job }, Record::from_decision(number, Some(place), decision)), effects)
    }

    /// A family of three: each fans out to the next.
    fn family(number: JobNumber, definition: &Arc<Definition>) -> Vec<(Live, Record)> {
        let id = JobId(uuid::Uuid::from_u128(number as u128));
        let mut origin = Origin::for_root_job(id, definition.clone(), Timestamp(number));
        let mut message = Message::parse(br#"{"items":[1],"subs":[1]}"#).expect("a message");
        let mut levels = Vec::new();
        for level in 0..3 {
            let parent = (level > 0).then(|| number + level - 1);
            let place = NewJob { origin: Arc::new(origin.clone()), root: number, parent };
            let (made, effects) = Live::with(number + level, place, message.clone());
            levels.push(made);
            for effect in effects {
                if let Effect::StartChild { origin: child, message: of_child } = effect {
                    (origin, message) = (*child, of_child);
                }
            }
        }
        levels
    }

    fn take(&mut self, input: Input) -> Record {
        let decision: Decision = self.job.handle_input(input, &context(100)).expect("taken");
        Record::from_decision(self.number, None, decision)
    }

    fn confirm(&mut self, step: u16) -> Record {
        self.take(Input::Confirmed { step: StepIndex(step), attempt: 1, dispatch: None })
    }

    fn reply(&mut self, step: &str, body: &str) -> Record {
        let (step, reply) = (step.to_owned(), Reply::Result(body.to_owned().into()));
        self.take(Input::Reply { step, attempt: None, reply, from: Sender::Unknown })
    }

    #[track_caller]
    fn assert_read_by(&self, records: &dyn Records, what: &str) {
        let found = records.load_job(self.job.id()).expect("reads").expect(what);
        assert_eq!(found.number, self.number, "{what}");
        let version = records.record_version(self.job.id()).expect("reads").expect(what);
        assert_eq!(version, found.version(), "{what}");
        let expected = (self.job.origin().created, self.job.entry_count());
        assert_eq!((version.created, version.entries), expected, "{what}");
        assert!(found.job == self.job, "{what}: the job that is read is another");
    }
}

fn opened(place: &dyn Place) -> Box<dyn Journal> {
    let mut journal = place.open().expect("opens");
    journal.create_status_tables(&[&chain(), &three_levels()]).expect("tables of statuses");
    journal
}

fn numbers(journal: &dyn Journal) -> Vec<JobNumber> {
    journal.recover().expect("recovers").iter().map(|recovered| recovered.number).collect()
}

/// The number of a job that is created now, by a clock that stands at the beginning.
fn next_number(journal: &mut dyn Journal) -> JobNumber {
    journal.job_numbers().expect("numbers").take(Timestamp(0))
}

pub fn what_was_appended_is_recovered_and_what_ended_is_not(place: &dyn Place) {
    let mut journal = opened(place);
    let (first, of_first) = Live::create(1, 1, &chain());
    let (mut second, of_second) = Live::create(2, 2, &chain());
    journal.append(&[&of_first, &of_second]).expect("commits");
    let end = [second.reply("a", "{}"), second.reply("b", r#"{"x":0.10}"#)];
    journal.append(&[&end[0], &end[1]]).expect("commits");
    drop(journal);

    let mut journal = opened(place);
    let recovered = journal.recover().expect("recovers");
    assert_eq!(recovered.len(), 1);
    assert_eq!((recovered[0].number, recovered[0].root, recovered[0].parent), (1, 1, None));
    assert!(recovered[0].job == first.job, "the recovered job equals the live one");
    assert!(
        matches!(recovered[0].effects.as_slice(), [Effect::Dispatch { attempt: 1, .. }]),
        "its dispatch was not confirmed"
    );
    assert_eq!(next_number(&mut *journal), 3);
    let records = journal.records();
    second.assert_read_by(&*records, "it is kept");
    let found = records.load_job(second.job.id()).expect("reads").expect("is kept");
    assert!(found.job.result().to_text().contains("0.10"), "every digit");
    let creation = records.load_creation(second.job.id()).expect("reads").expect("is kept");
    assert_eq!((creation.number, &*creation.workflow, creation.is_child), (2, "w", false));
    assert!(creation.message.expect("top-level").to_text().contains("1e400"), "every digit");
}

pub fn what_a_crash_leaves_is_what_was_committed(place: &dyn Place) {
    let mut journal = opened(place);
    let (mut live, created) = Live::create(1, 1, &chain());
    journal.append(&[&created]).expect("commits");
    live.assert_read_by(&*opened(&*place.crash()).records(), "created");
    journal.append(&[&live.reply("a", "{}")]).expect("commits");
    live.assert_read_by(&*opened(&*place.crash()).records(), "replied, and not derived");
    journal.project().expect("derives");
    live.assert_read_by(&*opened(&*place.crash()).records(), "derived");
    live.reply("b", "{}");
    let copy = place.crash();
    let copy = opened(&*copy);
    assert_eq!(numbers(&*copy), [1], "what was not committed did not happen");
    assert_eq!(numbers(&*journal), [1]);
}

/// More than a thread rebuilds alone.
const FAMILIES: JobNumber = 1_000;

pub fn families_that_are_recovered_side_by_side_are_whole_and_in_order(place: &dyn Place) {
    let definition = three_levels();
    let families = (0..FAMILIES).map(|at| Live::family(1 + 3 * at, &definition));
    let (lives, records): (Vec<Live>, Vec<Record>) = families.flatten().unzip();
    let mut journal = opened(place);
    journal.append(&records.iter().collect::<Vec<_>>()).expect("commits");
    drop(journal);
    let recovered = opened(place).recover().expect("recovers");
    assert_eq!(recovered.len(), lives.len());
    for (recovered, live) in recovered.iter().zip(&lives) {
        assert_eq!(recovered.number, live.number, "in order, a parent before its child");
        assert!(recovered.job == live.job, "job {}", live.number);
        let is_last = recovered.number % 3 == 0;
        let has_dispatch = matches!(recovered.effects[..], [Effect::Dispatch { .. }]);
        assert_eq!(
            (has_dispatch, recovered.effects.len()),
            (is_last, usize::from(is_last)),
            "job {}: a child job that lives is not started again",
            live.number
        );
    }
    let first = recovered[0].job.definition();
    assert!(recovered.iter().all(|other| Arc::ptr_eq(first, other.job.definition())), "one copy");
}

pub fn a_closed_job_with_an_open_child_tells_its_parent_after_a_crash(place: &dyn Place) {
    let mut journal = opened(place);
    let (mut lives, records): (Vec<Live>, Vec<Record>) =
        Live::family(1, &three_levels()).into_iter().unzip();
    journal.append(&records.iter().collect::<Vec<_>>()).expect("commits");
    // The middle one fails; what it tells its parent and its child is lost with the process.
    let halt = Order { round: 0, instruction: Instruction::Halt("a test".into()) };
    let failed = lives[1].take(Input::Order(halt));
    assert!(failed.is_closed);
    journal.append(&[&failed]).expect("commits");

    let recovered = opened(&*place.crash()).recover().expect("recovers");
    let numbers: Vec<i64> = recovered.iter().map(|recovered| recovered.number).collect();
    assert_eq!(numbers, [1, 3], "the middle one is closed");
    let told = &recovered[0].effects;
    assert!(matches!(told[..], [Effect::NotifyParent(..)]), "{told:?}");
    let orders = &recovered[1].missed_orders;
    assert!(matches!(orders[..], [Order { instruction: Instruction::Halt(_), .. }]), "{orders:?}");
}

pub fn a_record_that_comes_twice_changes_nothing_and_another_in_its_place_is_refused(
    place: &dyn Place,
) {
    let mut journal = opened(place);
    let (mut live, first) = Live::create(1, 1, &chain());
    let mut other = Live { number: 1, job: live.job.clone() };
    let (end, another) = (live.reply("a", r#"{"n":1}"#), other.reply("a", r#"{"n":2}"#));
    journal.append(&[&first, &end]).expect("commits");
    assert!(journal.append(&[&first, &end]).expect("is there already").is_empty());
    live.assert_read_by(&*journal.records(), "once");
    let error = journal.append(&[&another]).expect_err("is refused");
    assert_eq!(error.remedy(), Remedy::Exit, "{error}");
    live.assert_read_by(&*opened(&*place.crash()).records(), "the first stays");
}

pub fn a_second_opener_is_refused_until_the_first_is_gone(place: &dyn Place) {
    let first = place.open().expect("opens");
    let error = place.open().err().expect("is refused");
    assert!(
        matches!(error, JournalError::InUse { .. } | JournalError::ActiveElsewhere { .. }),
        "{error}"
    );
    drop(first);
    assert!(place.open().is_ok());
}

pub fn records_of_a_deleted_job_are_void(place: &dyn Place) {
    let mut journal = opened(place);
    let (mut live, created) = Live::create(1, 1, &chain());
    let (mut other, of_other) = Live::create(4, 4, &chain());
    journal.append(&[&created, &of_other]).expect("commits");
    let deleted = journal.delete_jobs(&[1], u32::MAX).expect("looks");
    assert_eq!((deleted.roots, deleted.skipped), (0, 1), "it runs");
    let end = [live.reply("a", "{}"), live.reply("b", "{}")];
    assert!(journal.append(&[&end[0], &end[1]]).expect("commits").is_empty());
    assert_eq!(journal.delete_jobs(&[1], u32::MAX).expect("deletes").roots, 1);
    // A child job that was about to start, records that were on their way, and a confirm.
    let (_, mut child) = Live::create(2, 2, &chain());
    child.created = child.created.map(|created| NewJob { parent: Some(1), root: 1, ..created });
    let (mut late, _) = Live::create(1, 1, &chain());
    let late = late.confirm(0);
    let gone = journal
        .append_and_check(&[&child, &end[0], &late, &other.confirm(0)], &[3, 4])
        .expect("commits");
    assert_eq!(gone.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
    drop(journal);
    let mut journal = opened(place);
    assert_eq!(numbers(&*journal), [4], "the other's confirm counts");
    assert_eq!(next_number(&mut *journal), 5);
    assert!(journal.records().load_job(live.job.id()).expect("reads").is_none());
    assert_eq!(journal.records().find_job_number(live.job.id()).expect("reads"), None);
}

/// Whether a start would send the message of the first step again.
fn is_sent_again(journal: &dyn Journal, number: JobNumber) -> bool {
    let recovered = journal.recover().expect("recovers");
    let job = recovered.iter().find(|recovered| recovered.number == number).expect("runs");
    job.effects.iter().any(|effect| matches!(effect, Effect::Dispatch { step: FIRST, .. }))
}

pub fn a_confirm_counts_at_once_and_after_a_crash(place: &dyn Place) {
    let mut journal = opened(place);
    let (mut live, created) = Live::create(1, 1, &chain());
    let (mut other, of_other) = Live::create(2, 2, &chain());
    journal.append(&[&created, &of_other]).expect("commits");
    assert!(is_sent_again(&*journal, 1), "nothing is confirmed yet");
    journal.append(&[&live.confirm(0), &other.confirm(0)]).expect("commits");
    live.assert_read_by(&*journal.records(), "confirmed");
    assert!(!is_sent_again(&*journal, 1));
    assert!(!is_sent_again(&*opened(&*place.crash()), 1), "after a crash");
    journal.append(&[&live.reply("a", "{}")]).expect("commits");
    while journal.write_confirms().expect("writes confirms") {}
    journal.project().expect("derives");
    for live in [&live, &other] {
        live.assert_read_by(&*journal.records(), "whole and in order");
    }
    drop(journal);
    let journal = opened(place);
    for live in [&live, &other] {
        live.assert_read_by(&*journal.records(), "after a start");
    }
    assert!(!is_sent_again(&*journal, 2));
}

pub fn retention_deletes_what_ended_and_nothing_else(place: &dyn Place) {
    let mut journal = opened(place);
    let (mut ended, created) = Live::create(1, 1, &chain());
    let (running, of_running) = Live::create(2, 2, &chain());
    journal.append(&[&created, &of_running]).expect("commits");
    journal.append(&[&ended.reply("a", "{}"), &ended.reply("b", "{}")]).expect("commits");
    let before = journal.delete_expired(Timestamp(100), Millis(1), 10).expect("deletes");
    assert_eq!(before.roots, 0, "not before its time");
    let none = journal.delete_expired(Timestamp(i64::MAX), Millis(0), 0).expect("deletes");
    assert_eq!(none.roots, 0, "no more than the limit");
    let one = journal.delete_expired(Timestamp(i64::MAX), Millis(0), 10).expect("deletes");
    assert_eq!((one.roots, one.maybe_active.len()), (1, 1));
    let records = journal.records();
    assert!(records.load_job(ended.job.id()).expect("reads").is_none());
    assert!(records.load_creation(ended.job.id()).expect("reads").is_none());
    assert!(records.load_record_page(ended.job.id(), 0, 9, 1 << 20).expect("reads").is_none());
    running.assert_read_by(&*records, "it runs");
    assert_eq!(numbers(&*journal), [2]);
}

pub fn an_id_that_comes_back_leads_to_the_newest_job(place: &dyn Place) {
    let mut journal = opened(place);
    let records = journal.records();
    let mut kept = Vec::new();
    for number in 1..=4 {
        let (mut live, created) = Live::create(number, 7, &chain());
        journal.append(&[&created]).expect("commits");
        live.assert_read_by(&*records, "new");
        journal.append(&[&live.reply("a", "{}"), &live.reply("b", "{}")]).expect("commits");
        live.assert_read_by(&*records, "ended");
        assert_eq!(records.find_job_number(live.job.id()).expect("reads"), Some(number));
        if number % 2 == 0 {
            journal.project().expect("derives");
            live.assert_read_by(&*records, "derived");
        }
        kept.push(live);
    }
    for Live { number, job } in kept {
        let numbered = records.load_job_by_number(number).expect("reads").expect("is kept");
        assert!(numbered == job, "by its number each is found");
        let rows = records.load_rows_by_number(number).expect("reads").expect("is kept");
        let entries: usize = rows.iter().map(|row| row.entries.len()).sum();
        assert_eq!((rows[0].at, entries as u64), (job.origin().created, job.entry_count()));
    }
    assert!(records.load_job_by_number(5).expect("reads").is_none());
    assert!(records.load_rows_by_number(5).expect("reads").is_none());
}

pub fn a_record_is_read_in_pages_and_a_job_as_it_was_at_each_entry(place: &dyn Place) {
    let mut journal = opened(place);
    let (mut live, created) = Live::create(1, 1, &chain());
    let (id, new) = (live.job.id(), live.job.clone());
    let rows = [
        created,
        live.confirm(0),
        live.reply("a", "{}"),
        live.take(Input::from_request(Operation::Pause)),
        live.take(Input::from_request(Operation::Resume)),
        live.reply("b", "{}"),
    ];
    journal.append(&rows.iter().collect::<Vec<_>>()).expect("commits");
    let all: Vec<_> = rows.iter().flat_map(|row| &row.recorded.entries).cloned().collect();
    for records in [journal.records(), opened(&*place.crash()).records()] {
        for limit in [1, 2, 3, 100] {
            let (mut after, mut read) = (0, Vec::new());
            loop {
                let page = records
                    .load_record_page(id, after, limit, 1 << 20)
                    .expect("reads")
                    .expect("is there");
                assert_eq!(page.definition.full_name(), "w");
                read.extend(page.rows.iter().flat_map(|row| row.entries.clone()));
                assert!(
                    page.rows.iter().map(|row| row.entries.len()).sum::<usize>() <= limit as usize
                );
                match page.next_cursor() {
                    Some(next) => after = next,
                    None => break,
                }
            }
            assert!(read == all, "in pages of {limit}");
        }
        let mut read = Vec::new();
        let head = records.for_each_row(id, &mut |row| read.extend(row.entries)).expect("reads");
        let head = head.expect("is there");
        assert!(read == all, "in rows");
        assert_eq!((head.graph().name.as_str(), head.created), ("w", Timestamp(1)));
        let nobody = JobId(uuid::Uuid::from_u128(99));
        assert!(records.for_each_row(nobody, &mut |_| panic!("a row")).expect("reads").is_none());
        let hash = live.job.definition().hash();
        let found = records.load_definition(hash).expect("reads").expect("is there");
        assert_eq!(*found, **live.job.definition());
        let unknown = records.load_definition(DefinitionHash([7; 32])).expect("reads");
        assert!(unknown.is_none(), "no job runs it");
        let bytes = records.rebuild_bytes(id).expect("reads").expect("is there");
        assert!(bytes > 10, "{bytes}");
        let at = |entry| records.load_job_at_entry(id, entry).expect("reads").expect("is there");
        let first = rows[0].recorded.entries.len() as u64;
        assert!(
            matches!(at(first), JobAtEntry::Found { job, .. } if *job == new),
            "as it was created"
        );
        let whole = all.len() as u64;
        assert!(matches!(
            at(whole),
            JobAtEntry::Found { job, at } if *job == live.job && at == Timestamp(100)
        ));
        for none in [0, whole + 1] {
            assert!(
                matches!(at(none), JobAtEntry::NoSuchEntry { entries } if entries == whole),
                "{none}"
            );
        }
    }
}

pub fn some_jobs_are_recovered_as_at_a_start(place: &dyn Place) {
    let mut journal = opened(place);
    let (lives, rows): (Vec<Live>, Vec<Record>) =
        Live::family(1, &three_levels()).into_iter().unzip();
    journal.append(&rows.iter().collect::<Vec<_>>()).expect("commits");
    journal.project().expect("derives");
    let at_start = journal.recover().expect("recovers");
    let some = journal.records().recover_jobs(&[1, 3, 9]).expect("reads");
    assert_eq!(some.len(), 2, "there is no job 9");
    for number in [1, 3] {
        let (one, other) = (&some[&number], &at_start[number as usize - 1]);
        assert!(one.job == other.job && one.job == lives[number as usize - 1].job);
        assert_eq!(format!("{:?}", one.effects), format!("{:?}", other.effects));
        assert_eq!((one.root, one.parent), (other.root, other.parent));
    }
}

pub fn a_closed_reader_refuses_and_says_why(place: &dyn Place) {
    let mut journal = opened(place);
    let (live, created) = Live::create(1, 1, &chain());
    journal.append(&[&created]).expect("commits");
    let records = journal.records();
    live.assert_read_by(&*records, "open");
    assert!(records.close("the test is over", std::time::Duration::from_secs(60)));
    let refused = records.load_job(live.job.id()).err().expect("closed");
    assert!(
        matches!(refused, JournalError::Closed { .. })
            && refused.to_string().contains("the test is over"),
        "{refused}"
    );
}
