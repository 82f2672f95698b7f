//! Tests what follows from checks of topics, without brokers.

use super::super::topic::Keeps;
use super::super::trial::{self, Heard};
use super::*;
use futures_util::FutureExt;

const QUEUE: &str = "price";
const REPLIES: &str = "workflow-manager";

fn link(positions: &[Position]) -> (Link, Heard) {
    let (sink, heard) = Heard::sink();
    let served = Served { workers: vec![QUEUE.into()], ..Served::default() };
    let outside = (sink, Rc::new(Cell::new(0)));
    let link = Link::new(Arc::new(trial::section()), served, positions, outside);
    (link.expect("clients"), heard)
}

fn topic(high: i64) -> Topic {
    Topic { partitions: 1, ends: [(0, (0, high))].into(), keeps: Keeps::default() }
}

/// Returns the queues that were reported missing, with the senders that confirm their journaling.
fn missing(heard: &mut Heard) -> Vec<(Arc<str>, oneshot::Sender<()>)> {
    let told = heard.all().into_iter();
    told.filter_map(|event| {
        let BusEvent::QueueMissing { queue, taken } = event else { return None };
        Some((queue, taken))
    })
    .collect()
}

/// The loss must be journaled before the topic is created. An existing topic would tell the next
/// process that nothing was lost.
#[tokio::test]
async fn a_topic_that_is_missing_is_created_once_the_manager_knows() {
    let (mut link, mut heard) = link(&[]);
    link.queue_looked(&QUEUE.into(), &BTreeMap::new(), TopicLook::Missing);
    let (queue, taken) = missing(&mut heard).pop().expect("told");
    assert_eq!((&*queue, link.done.len()), (QUEUE, 1));
    assert!(link.done.next().now_or_never().is_none(), "nothing is done before the answer");
    assert!(link.publisher.is_lost(QUEUE) && link.missing.contains(QUEUE));
    // A check that completes meanwhile changes nothing.
    link.queue_looked(&QUEUE.into(), &BTreeMap::new(), TopicLook::There(topic(0)));
    assert!(link.publisher.is_lost(QUEUE));
    taken.send(()).expect("waited for");
    let done = link.done.next().await.expect("told");
    assert!(matches!(&done, Done::Told(queue) if &**queue == QUEUE));
    link.follow(done);
    assert_eq!((link.done.len(), link.missing.len()), (1, 0), "now it is created");
}

#[tokio::test]
async fn a_topic_that_ends_before_what_was_written_counts_at_the_second_look() {
    let (mut link, mut heard) = link(&[]);
    let written = BTreeMap::from([(0, 7)]);
    let mut look = |high: i64| {
        link.queue_looked(&QUEUE.into(), &written, TopicLook::There(topic(high)));
        missing(&mut heard).len()
    };
    assert_eq!(look(6), 0, "what a broker tells may be old");
    assert_eq!(look(7), 0, "and so it was");
    assert_eq!(look(6), 0);
    assert_eq!(look(6), 1);
}

#[tokio::test]
async fn when_replies_are_lost_the_steps_of_all_queues_are_sent_again() {
    let (mut link, mut heard) = link(&[trial::position(REPLIES, 10)]);
    link.publisher.take(trial::message("of a former definition"));
    link.publisher.pump();
    link.replies_looked(&TopicLook::Missing, true);
    let told: BTreeSet<Arc<str>> =
        missing(&mut heard).into_iter().map(|(queue, _)| queue).collect();
    assert_eq!(told, ["of a former definition".into(), QUEUE.into()].into());
}

/// Brokers that return may have another topic of the same name.
#[tokio::test]
async fn nothing_is_read_while_no_broker_can_be_reached() {
    let (mut link, _heard) = link(&[]);
    link.brokers = Brokers::There;
    link.replies_looked(&TopicLook::There(topic(0)), true);
    assert!(link.reader.is_assigned);
    link.hear(Told::AllDown);
    assert!(!link.reader.is_assigned);
    assert!(link.next_look <= clock::ticks(), "they are looked for at once");
}

#[tokio::test]
async fn a_stop_waits_for_verdicts_a_while_and_for_messages_while_there_are_brokers() {
    let (mut link, _heard) = link(&[]);
    let (later, now) = (clock::ticks() + VERDICTS_WITHIN, clock::ticks());
    assert!(link.may_end(later));
    let said = Ok(super::super::record::Said::default());
    link.reader.found(&topic(1)).expect("read");
    let record = super::super::record::Record { partition: 0, offset: 0, said };
    link.reader.deliver(record);
    assert!(!link.may_end(later) && link.may_end(now));
    link.publisher.take(trial::message(QUEUE));
    assert!(link.may_end(now), "no broker is there to take it");
    link.brokers = Brokers::There;
    assert!(!link.may_end(now));
}
