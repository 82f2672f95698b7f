//! Tests what follows from checks of topics, without brokers.

use super::super::test_support::{self, RecordedEvents};
use super::super::topic::TopicRetention;
use super::*;
use futures_util::FutureExt;

const QUEUE: &str = "price";
const REPLIES: &str = "workflow-manager";

fn event_loop(positions: &[TopicOffset]) -> (EventLoop, RecordedEvents) {
    let (sink, heard) = RecordedEvents::channel();
    let served = ServedQueues { worker_queues: vec![QUEUE.into()], ..ServedQueues::default() };
    let outside = (sink, Rc::new(Cell::new(0)));
    let link = EventLoop::new(Arc::new(test_support::section()), served, positions, outside);
    (link.expect("clients"), heard)
}

fn topic(high: i64) -> TopicInfo {
    TopicInfo {
        partitions: 1,
        watermarks: [(0, (0, high))].into(),
        retention: TopicRetention::default(),
    }
}

/// Returns the queues that were reported missing, with the senders that confirm their journaling.
fn missing_queues(events: &mut RecordedEvents) -> Vec<(Arc<str>, oneshot::Sender<()>)> {
    let reported = events.take_all().into_iter();
    reported
        .filter_map(|event| {
            let BusEvent::QueueMissing { queue, journaled: taken } = event else { return None };
            Some((queue, taken))
        })
        .collect()
}

/// The loss must be journaled before the topic is created. An existing topic would tell the next
/// process that nothing was lost.
#[tokio::test]
async fn a_missing_topic_is_created_once_its_loss_is_journaled() {
    let (mut link, mut heard) = event_loop(&[]);
    link.handle_queue_topic(&QUEUE.into(), &BTreeMap::new(), TopicStatus::Missing);
    let (queue, taken) = missing_queues(&mut heard).pop().expect("told");
    assert_eq!((&*queue, link.tasks.len()), (QUEUE, 1));
    assert!(link.tasks.next().now_or_never().is_none(), "nothing is done before the answer");
    assert!(link.publisher.is_topic_lost(QUEUE) && link.missing_topics.contains(QUEUE));
    // A check that completes meanwhile changes nothing.
    link.handle_queue_topic(&QUEUE.into(), &BTreeMap::new(), TopicStatus::Exists(topic(0)));
    assert!(link.publisher.is_topic_lost(QUEUE));
    taken.send(()).expect("waited for");
    let done = link.tasks.next().await.expect("told");
    assert!(matches!(&done, CompletedTask::LossJournaled(queue) if &**queue == QUEUE));
    link.handle_task(done);
    assert_eq!((link.tasks.len(), link.missing_topics.len()), (1, 0), "now it is created");
}

#[tokio::test]
async fn a_topic_that_ends_before_what_was_written_is_lost_at_the_second_check() {
    let (mut link, mut heard) = event_loop(&[]);
    let written = BTreeMap::from([(0, 7)]);
    let mut check = |high: i64| {
        link.handle_queue_topic(&QUEUE.into(), &written, TopicStatus::Exists(topic(high)));
        missing_queues(&mut heard).len()
    };
    assert_eq!(check(6), 0, "what a broker tells may be old");
    assert_eq!(check(7), 0, "and so it was");
    assert_eq!(check(6), 0);
    assert_eq!(check(6), 1);
}

#[tokio::test]
async fn when_replies_are_lost_the_steps_of_all_queues_are_sent_again() {
    let (mut link, mut heard) = event_loop(&[test_support::offset(REPLIES, 10)]);
    link.publisher.enqueue(test_support::message("of a former definition"));
    link.publisher.send_waiting();
    link.handle_reply_topic(&TopicStatus::Missing, true);
    let reported: BTreeSet<Arc<str>> =
        missing_queues(&mut heard).into_iter().map(|(queue, _)| queue).collect();
    assert_eq!(reported, ["of a former definition".into(), QUEUE.into()].into());
}

/// Brokers that return may have another topic of the same name.
#[tokio::test]
async fn nothing_is_read_while_brokers_are_unavailable() {
    let (mut link, _heard) = event_loop(&[]);
    link.brokers = BrokerState::Available;
    link.handle_reply_topic(&TopicStatus::Exists(topic(0)), true);
    assert!(link.reader.is_assigned);
    link.handle_client_event(ClientEvent::AllBrokersDown);
    assert!(!link.reader.is_assigned);
    assert!(link.next_check_at <= clock::timer_now(), "they are looked for at once");
}

#[tokio::test]
async fn a_stop_waits_a_while_for_settlements_and_for_messages_while_brokers_are_available() {
    let (mut link, _heard) = event_loop(&[]);
    let (later, now) = (clock::timer_now() + SETTLE_TIMEOUT, clock::timer_now());
    assert!(link.can_stop(later));
    let content = Ok(super::super::record::ReplyContent::default());
    link.reader.handle_topic_found(&topic(1)).expect("read");
    let record = super::super::record::ReplyRecord { partition: 0, offset: 0, content };
    link.reader.deliver(record);
    assert!(!link.can_stop(later) && link.can_stop(now));
    link.publisher.enqueue(test_support::message(QUEUE));
    assert!(link.can_stop(now), "no broker is there to take it");
    link.brokers = BrokerState::Available;
    assert!(!link.can_stop(now));
}
