//! Tests of what follows from checks of topics, without brokers.

use super::super::test_support::{self, RecordedEvents};
use super::super::topic::TopicRetention;
use super::*;
use futures_util::FutureExt;

const QUEUE: &str = "price";
const REPLIES: &str = "workflow-manager";

/// Creates an event loop with these journaled offsets, which serves one queue.
fn event_loop(offsets: &[TopicOffset]) -> (EventLoop, RecordedEvents) {
    let (sink, events) = RecordedEvents::channel();
    let section = Arc::new(test_support::section());
    let served = ServedQueues { worker_queues: vec![QUEUE.into()], ..ServedQueues::default() };
    let bus_loop = EventLoop::new(section, served, offsets, sink, Rc::new(Cell::new(0)));
    (bus_loop.expect("clients"), events)
}

/// Returns a topic with one partition, whose high watermark is `high`.
fn topic(high: i64) -> TopicInfo {
    TopicInfo {
        partitions: 1,
        watermarks: [(0, (0, high))].into(),
        retention: TopicRetention::default(),
    }
}

/// Returns the queues that were reported missing since the last call, each with the sender that
/// answers that its loss is journaled.
fn missing_queues(events: &mut RecordedEvents) -> Vec<(Arc<str>, oneshot::Sender<()>)> {
    let events = events.take_all().into_iter();
    events
        .filter_map(|event| {
            let BusEvent::QueueMissing { queue, journaled } = event else { return None };
            Some((queue, journaled))
        })
        .collect()
}

/// The loss must be journaled before the topic is created. After a crash, an existing topic would
/// hide the loss.
#[tokio::test]
async fn a_missing_topic_is_created_once_its_loss_is_journaled() {
    let (mut bus_loop, mut events) = event_loop(&[]);
    bus_loop.handle_queue_topic(&QUEUE.into(), &BTreeMap::new(), TopicStatus::Missing);
    let (queue, journaled) = missing_queues(&mut events).pop().expect("the loss is reported");
    assert_eq!((&*queue, bus_loop.tasks.len()), (QUEUE, 1));
    assert!(
        bus_loop.tasks.next().now_or_never().is_none(),
        "the topic is not created before the loss is journaled"
    );
    assert!(bus_loop.publisher.is_topic_lost(QUEUE) && bus_loop.missing_topics.contains(QUEUE));
    // A check that completes before the loss is journaled changes nothing.
    bus_loop.handle_queue_topic(&QUEUE.into(), &BTreeMap::new(), TopicStatus::Exists(topic(0)));
    assert!(bus_loop.publisher.is_topic_lost(QUEUE));
    journaled.send(()).expect("the event loop waits");
    let task = bus_loop.tasks.next().await.expect("the task completes");
    assert!(matches!(&task, CompletedTask::LossJournaled(queue) if &**queue == QUEUE));
    bus_loop.handle_task(task);
    assert_eq!(
        (bus_loop.tasks.len(), bus_loop.missing_topics.len()),
        (1, 0),
        "the topic is being created"
    );
}

#[tokio::test]
async fn a_topic_that_ends_before_what_was_written_is_lost_at_the_second_check() {
    let (mut bus_loop, mut events) = event_loop(&[]);
    let written_offsets = BTreeMap::from([(0, 7)]);
    let mut count_losses_after_check = |high: i64| {
        let status = TopicStatus::Exists(topic(high));
        bus_loop.handle_queue_topic(&QUEUE.into(), &written_offsets, status);
        missing_queues(&mut events).len()
    };
    assert_eq!(count_losses_after_check(6), 0, "a watermark may be outdated");
    assert_eq!(count_losses_after_check(7), 0, "it was outdated");
    assert_eq!(count_losses_after_check(6), 0);
    assert_eq!(count_losses_after_check(6), 1);
}

#[tokio::test]
async fn when_replies_are_lost_the_steps_of_all_queues_are_sent_again() {
    let (mut bus_loop, mut events) = event_loop(&[test_support::offset(REPLIES, 10)]);
    bus_loop.publisher.enqueue(test_support::step_message("of an earlier definition"));
    bus_loop.publisher.send_waiting();
    bus_loop.handle_reply_topic(&TopicStatus::Missing, true);
    let queues: BTreeSet<Arc<str>> =
        missing_queues(&mut events).into_iter().map(|(queue, _)| queue).collect();
    assert_eq!(queues, ["of an earlier definition".into(), QUEUE.into()].into());
}

/// Brokers that return may have another topic of the same name.
#[tokio::test]
async fn nothing_is_read_while_brokers_are_unavailable() {
    let (mut bus_loop, _events) = event_loop(&[]);
    bus_loop.brokers = BrokerState::Available;
    bus_loop.handle_reply_topic(&TopicStatus::Exists(topic(0)), true);
    assert!(bus_loop.reader.is_assigned);
    bus_loop.handle_client_event(ClientEvent::AllBrokersDown);
    assert!(!bus_loop.reader.is_assigned);
    assert!(bus_loop.next_check_at <= clock::timer_now(), "the brokers are checked at once");
}

#[tokio::test]
async fn a_stop_waits_a_while_for_settlements_and_for_messages_while_brokers_are_available() {
    let (mut bus_loop, _events) = event_loop(&[]);
    let now = clock::timer_now();
    let later = now + SETTLE_TIMEOUT;
    assert!(bus_loop.can_stop(later));
    let content = Ok(super::super::record::ReplyContent::default());
    bus_loop.reader.handle_topic_found(&topic(1)).expect("read");
    let record = super::super::record::ReplyRecord { partition: 0, offset: 0, content };
    bus_loop.reader.deliver(record);
    assert!(!bus_loop.can_stop(later) && bus_loop.can_stop(now));
    bus_loop.publisher.enqueue(test_support::step_message(QUEUE));
    assert!(bus_loop.can_stop(now), "no broker is available");
    bus_loop.brokers = BrokerState::Available;
    assert!(!bus_loop.can_stop(now));
}
