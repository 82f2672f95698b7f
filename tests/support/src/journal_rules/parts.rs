//! What is large is deleted a part at a time.

use super::{Live, Place, chain, numbers, opened, three_levels};
use std::sync::Arc;
use workflow_manager::engine::{
    Definition, Graph, Input, Instruction, Millis, Order, Reply, Sender, Step, Timestamp,
};
use workflow_manager::journal::{Journal, Record};

/// A family of three levels in which all has ended; and how many rows it has. Its top-level job has
/// failed, and may still hear a late reply to one of its steps.
fn ended_family(journal: &mut dyn Journal) -> (Vec<Live>, usize) {
    let mut graphs = three_levels().graphs.to_vec();
    let mut steps = graphs[0].steps.clone();
    steps.extend(["fails", "late"].map(Step::with_name));
    graphs[0] = Graph::new("g".to_owned(), None, steps);
    let definition = Arc::new(Definition::new("g", graphs));
    journal.create_status_tables(&[&definition]).expect("a table of statuses");
    let (mut lives, mut records): (Vec<Live>, Vec<Record>) =
        Live::family(1, &definition).into_iter().unzip();
    let (step, reply) = ("fails".to_owned(), Reply::Error(b"{}"[..].into()));
    let failed = Input::Reply { step, attempt: None, reply, from: Sender::Unknown };
    records.push(lives[0].take(failed));
    assert!(!lives[0].job.is_closed(), "it hears late replies");
    for live in &mut lives[1..] {
        let halt = Order { round: 0, instruction: Instruction::Halt("a test".into()) };
        records.push(live.take(Input::Order(halt)));
    }
    assert!(lives.iter().all(|live| live.job.state().is_ended()));
    journal.append(&records.iter().collect::<Vec<_>>()).expect("commits");
    let rows = lives.len() + records.len();
    (lives, rows)
}

pub fn a_family_goes_in_parts_and_a_crash_between_them_leaves_what_can_be_read(place: &dyn Place) {
    let mut journal = opened(place);
    let (lives, rows) = ended_family(&mut *journal);
    let (other, of_other) = Live::create(9, 9, &chain());
    journal.append(&[&of_other]).expect("commits");
    let (mut deleted, mut parts) = (0, 0);
    let mut open = Vec::new();
    loop {
        let part = journal.delete_jobs(&[1], 1).expect("deletes");
        (deleted, parts) = (deleted + part.rows, parts + 1);
        open.extend(part.maybe_active.iter().map(|open| open.number));
        assert!(part.rows <= 1, "no more than the limit");
        assert!(parts <= 2 * rows, "it comes to an end");
        // Whatever comes for one of them is void from the first part on.
        let late = journal.append_and_check(&[], &[1]).expect("commits");
        assert_eq!(late.into_iter().collect::<Vec<_>>(), [1]);
        let left = place.crash();
        let mut copy = opened(&*left);
        assert_eq!(numbers(&*copy), [9], "none of the family goes on");
        for live in &lives {
            copy.records().load_job(live.job.id()).expect("what is left can be read");
        }
        if !part.is_partial {
            assert_eq!(part.roots, 1);
            break;
        }
        assert_eq!(part.roots, 0);
        // After a crash the sweep goes on with it.
        let swept = copy.delete_expired(Timestamp(i64::MAX), Millis(0), u32::MAX).expect("deletes");
        assert_eq!((swept.roots, swept.rows, swept.is_partial), (1, rows - deleted, false));
    }
    assert_eq!(deleted, rows, "and each row once");
    assert!(parts >= rows, "{parts} parts of {rows} rows");
    open.dedup();
    assert!(open.contains(&1), "its actor is ended: {open:?}");
    for live in &lives {
        assert!(journal.records().load_job(live.job.id()).expect("reads").is_none());
    }
    other.assert_read_by(&*journal.records(), "it stays");
}

pub fn the_first_part_of_a_deletion_closes_the_root_whatever_the_limit(place: &dyn Place) {
    let mut journal = opened(place);
    let (_, rows) = ended_family(&mut *journal);
    for limit in 1..rows {
        let copy = place.crash();
        let part = opened(&*copy).delete_jobs(&[1], limit as u32).expect("deletes");
        let is_root_closed = part.maybe_active.iter().any(|job| job.number == 1);
        assert!(part.is_partial && is_root_closed, "{limit} of {rows} rows: {part:?}");
        assert!(opened(&*copy).recover().expect("recovers").is_empty(), "{limit} of {rows} rows");
    }
}

pub fn a_sweep_in_parts_deletes_all_that_is_due(place: &dyn Place) {
    let mut journal = opened(place);
    let (_, rows) = ended_family(&mut *journal);
    for number in 10..20 {
        let (mut live, created) = Live::create(number, number as u128, &chain());
        let ends = [live.reply("a", "{}"), live.reply("b", "{}")];
        journal.append(&[&created, &ends[0], &ends[1]]).expect("commits");
    }
    let all = rows + 10 * 4;
    let (mut deleted, mut roots, mut parts) = (0, 0, 0);
    loop {
        let part = journal.delete_expired(Timestamp(i64::MAX), Millis(0), 5).expect("deletes");
        (deleted, roots, parts) = (deleted + part.rows, roots + part.roots, parts + 1);
        assert!(part.rows <= 5 && parts <= all, "part {parts} of {} rows", part.rows);
        if !part.is_partial {
            break;
        }
    }
    assert_eq!((deleted, roots), (all, 11));
    assert!(parts >= all / 5, "{parts}");
}
