//! Tests of what is read and settled, without brokers.

use super::super::test_support::{self, RecordedEvents};
use super::*;

const TOPIC: &str = "workflow-manager";

/// Creates a reader with this offset in the journal.
fn reader(
    start_offset: i64,
    change: impl FnOnce(&mut KafkaSection),
) -> (ReplyReader, RecordedEvents) {
    let (sink, events) = RecordedEvents::channel();
    let mut section = test_support::section();
    change(&mut section);
    let offsets = [test_support::offset(TOPIC, start_offset)];
    let reader = ReplyReader::new(Arc::new(section), &offsets, sink, test_support::context());
    (reader.expect("a client"), events)
}

/// Returns a topic with one partition that has these watermarks.
fn topic(low: i64, high: i64) -> TopicInfo {
    TopicInfo { partitions: 1, watermarks: [(0, (low, high))].into(), ..TopicInfo::default() }
}

fn deliver(reader: &mut ReplyReader, offset: i64) {
    let content = Ok(ReplyContent { body: "{}".into(), ..ReplyContent::default() });
    reader.deliver(ReplyRecord { partition: 0, offset, content });
}

/// Returns the replies and offsets that were reported since the last call.
fn take_reported(
    reader: &mut ReplyReader,
    events: &mut RecordedEvents,
) -> (Vec<Delivery>, Vec<i64>) {
    reader.report_offsets();
    let (mut replies, mut offsets) = (Vec::new(), Vec::new());
    for event in events.take_all() {
        if let BusEvent::OffsetReached(topic_offset) = event {
            offsets.push(topic_offset.offset);
        } else if let BusEvent::Reply(delivery) = event {
            replies.push(delivery);
        } else {
            panic!("{event:?}");
        }
    }
    (replies, offsets)
}

/// Applies the commands of replies that were acknowledged or dropped.
fn settle(reader: &mut ReplyReader) {
    let command = reader.commands.try_recv().expect("the reply is settled");
    reader.settle(command);
}

#[tokio::test]
async fn an_end_before_what_was_read_counts_at_the_second_check() {
    let (mut reader, mut events) = reader(10, |_| ());
    assert_eq!(reader.handle_topic_found(&topic(0, 9)), Ok(false), "a watermark may be outdated");
    assert_eq!(reader.handle_topic_found(&topic(0, 10)), Ok(false), "it was outdated");
    assert_eq!(reader.handle_topic_found(&topic(0, 9)), Ok(false));
    assert_eq!(take_reported(&mut reader, &mut events).1, [0; 0]);
    assert_eq!(reader.handle_topic_found(&topic(0, 9)), Ok(true));
    assert_eq!(
        take_reported(&mut reader, &mut events).1,
        [0],
        "the topic is read from its beginning"
    );
}

#[tokio::test]
async fn a_log_that_begins_after_the_offset_has_lost_replies() {
    let (mut reader, mut events) = reader(10, |_| ());
    assert_eq!(reader.handle_topic_found(&topic(20, 30)), Ok(true));
    assert_eq!(take_reported(&mut reader, &mut events).1, [20]);
    assert_eq!(reader.handle_topic_found(&topic(25, 30)), Ok(true), "and again");
}

#[tokio::test]
async fn a_missing_topic_has_lost_replies_if_it_had_any() {
    assert_eq!(reader(10, |_| ()).0.handle_topic_missing(), Ok(true));
    let (mut fresh, _events) = reader(0, |_| ());
    assert_eq!(fresh.handle_topic_missing(), Ok(false));
    assert_eq!(fresh.handle_topic_found(&topic(0, 0)), Ok(false));
    deliver(&mut fresh, 0);
    assert_eq!(
        (fresh.handle_topic_missing(), fresh.handle_topic_missing()),
        (Ok(true), Ok(false)),
        "a loss is reported once"
    );
}

#[tokio::test]
async fn a_requeued_reply_is_delivered_again_and_no_offset_passes_it() {
    let (mut reader, mut events) = reader(0, |_| ());
    reader.handle_topic_found(&topic(0, 2)).expect("read");
    (0..2).for_each(|offset| deliver(&mut reader, offset));
    let (mut replies, offsets) = take_reported(&mut reader, &mut events);
    assert_eq!((replies.len(), offsets.len()), (2, 0));
    replies.pop().expect("the second").ack();
    // The first reply is requeued, because it is dropped unsettled.
    drop(replies);
    settle(&mut reader);
    let (mut redeliveries, offsets) = take_reported(&mut reader, &mut events);
    assert_eq!((redeliveries.len(), offsets.len()), (1, 0));
    assert!(redeliveries[0].redelivered && &redeliveries[0].body[..] == b"{}");
    redeliveries.pop().expect("the first reply").ack();
    settle(&mut reader);
    assert_eq!(take_reported(&mut reader, &mut events).1, [2]);
}

#[tokio::test]
async fn no_more_records_are_read_than_allowed() {
    for (prefetch, bytes_max) in [(2, usize::MAX), (1_000, 3)] {
        let (mut reader, mut events) = reader(0, |section| {
            (section.prefetch, section.replies_bytes_max) = (prefetch, bytes_max);
        });
        reader.handle_topic_found(&topic(0, 2)).expect("read");
        deliver(&mut reader, 0);
        assert!(reader.has_capacity());
        deliver(&mut reader, 1);
        assert!(!reader.has_capacity());
        take_reported(&mut reader, &mut events).0.pop().expect("a reply").ack();
        settle(&mut reader);
        assert!(reader.has_capacity());
    }
}

#[tokio::test]
async fn existing_replies_are_settled_before_the_reader_has_caught_up() {
    let (mut reader, mut events) = reader(0, |_| ());
    reader.handle_topic_found(&topic(0, 2)).expect("read");
    reader.start_catch_up(&topic(0, 2));
    (0..2).for_each(|offset| deliver(&mut reader, offset));
    assert!(!reader.has_caught_up(), "the replies are not settled");
    take_reported(&mut reader, &mut events).0.into_iter().for_each(Delivery::ack);
    settle(&mut reader);
    assert!(reader.has_caught_up());
    // The last offsets may belong to control records, which are never read. The end is
    // reported once, and maybe before the last reply is settled.
    reader.start_catch_up(&topic(0, 4));
    deliver(&mut reader, 2);
    reader.handle_partition_end(0);
    assert!(!reader.has_caught_up());
    take_reported(&mut reader, &mut events).0.into_iter().for_each(Delivery::ack);
    settle(&mut reader);
    assert!(reader.has_caught_up());
    reader.start_catch_up(&topic(0, 4));
    assert!(!reader.has_caught_up());
    reader.handle_partition_end(0);
    assert!(reader.has_caught_up());
}

#[tokio::test]
async fn a_lost_partition_costs_only_its_own_unsettled_replies() {
    let (mut reader, mut events) = reader(0, |_| ());
    let both = |low, high| TopicInfo {
        partitions: 2,
        watermarks: [(0, (low, high)), (1, (0, 1))].into(),
        ..TopicInfo::default()
    };
    assert_eq!(reader.handle_topic_found(&both(0, 1)), Ok(false));
    for partition in [0, 1] {
        let content = Ok(ReplyContent { body: "{}".into(), ..ReplyContent::default() });
        reader.deliver(ReplyRecord { partition, offset: 0, content });
    }
    let (replies, _) = take_reported(&mut reader, &mut events);
    assert_eq!(reader.handle_topic_found(&both(20, 30)), Ok(true));
    assert_eq!((reader.unsettled_count(), reader.unsettled_bytes), (1, 2));
    replies.into_iter().for_each(Delivery::ack);
    settle(&mut reader);
    assert_eq!((reader.unsettled_count(), reader.unsettled_bytes), (0, 0));
    assert_eq!(take_reported(&mut reader, &mut events).1, [20, 1], "both go on");
}

#[tokio::test]
async fn an_event_right_behind_a_record_is_not_lost() {
    let record =
        |offset| Ok(ReplyRecord { partition: 0, offset, content: Ok(ReplyContent::default()) });
    let code = rdkafka::error::RDKafkaErrorCode::OffsetOutOfRange;
    let out_of_range = KafkaError::MessageConsumption(code);
    let stopped = ReaderEvent::Stopped(explain(&out_of_range));
    for (error, event) in
        [(KafkaError::PartitionEOF(0), ReaderEvent::PartitionEnd(0)), (out_of_range, stopped)]
    {
        let mut library = vec![record(0), record(1), Err(error), record(2)].into_iter();
        let mut read = async || match library.next() {
            Some(result) => result,
            None => std::future::pending().await,
        };
        let first = read_turn(&mut read).await;
        assert_eq!((first.records.len(), first.event), (2, Some(event)));
        let second = read_turn(&mut read).await;
        assert_eq!((second.records.len(), second.event), (1, None));
    }
}
