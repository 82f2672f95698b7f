//! Tests of the states of messages, without brokers.

use super::super::test_support::{self, RecordedEvents};
use super::*;
use tokio::sync::mpsc;

const QUEUE: &str = "price";

struct TestPublisher {
    publisher: KafkaPublisher,
    events: RecordedEvents,
    unconfirmed: Rc<Cell<usize>>,
}

/// Creates a publisher with these journaled offsets, whose settings are changed by
/// `change_settings`.
fn test_publisher(
    offsets: &[TopicOffset],
    change_settings: impl FnOnce(&mut KafkaSection),
) -> TestPublisher {
    let (sink, events) = RecordedEvents::channel();
    let mut section = test_support::section();
    change_settings(&mut section);
    let unconfirmed = Rc::new(Cell::new(0));
    let context = test_support::context();
    let publisher =
        KafkaPublisher::new(Arc::new(section), offsets, sink, unconfirmed.clone(), context);
    TestPublisher { publisher: publisher.expect("a client"), events, unconfirmed }
}

impl TestPublisher {
    /// Enqueues `count` messages, makes their topic ready, and sends as many as the limits allow.
    fn publish(&mut self, count: usize) {
        for _ in 0..count {
            self.unconfirmed.set(self.unconfirmed.get() + 1);
            self.publisher.enqueue(test_support::step_message(QUEUE));
        }
        self.publisher.mark_topic_ready(&QUEUE.into(), 1);
        self.publisher.send_waiting();
    }

    /// Reports on the message that was sent last.
    fn report_delivery(&mut self, result: Result<(i32, i64), RDKafkaErrorCode>) {
        let number = self.publisher.last_number;
        self.publisher.handle_delivery_report(number, result);
    }

    /// Ends the backoffs of messages, and sends them again.
    fn end_backoffs(&mut self) {
        let delayed = std::mem::take(&mut self.publisher.delayed);
        self.publisher.waiting.extend(delayed.into_values());
        self.publisher.send_waiting();
    }

    /// Counts the confirmed messages, and drops all events since the last call.
    fn take_confirmed_count(&mut self) -> usize {
        let events = self.events.take_all();
        events.iter().filter(|event| matches!(event, BusEvent::Confirmed(_))).count()
    }

    /// Counts the notices that a message was sent again, and drops all events since the last call.
    fn take_resent_count(&mut self) -> usize {
        let events = self.events.take_all();
        events.iter().filter(|event| matches!(event, BusEvent::Notice(BusNotice::Resent))).count()
    }

    /// Counts the failed attempts, and drops all events since the last call.
    fn take_failed_count(&mut self) -> usize {
        let events = self.events.take_all();
        events.iter().filter(|event| matches!(event, BusEvent::Reply(_))).count()
    }
}

#[test]
fn a_message_is_confirmed_by_its_report_and_not_before() {
    let mut rig = test_publisher(&[], |_| ());
    rig.publish(1);
    assert_eq!((rig.take_confirmed_count(), rig.unconfirmed.get()), (0, 1));
    rig.report_delivery(Ok((0, 0)));
    assert_eq!((rig.take_confirmed_count(), rig.unconfirmed.get()), (1, 0));
    rig.report_delivery(Ok((0, 0)));
    assert_eq!(rig.take_confirmed_count(), 0, "once");
}

#[test]
fn no_more_messages_are_in_flight_than_allowed() {
    for (count_max, bytes_max, limit) in [(2, usize::MAX, 2), (1_000, 1, 1)] {
        let mut rig = test_publisher(&[], |section| {
            (section.unconfirmed_max, section.unconfirmed_bytes_max) = (count_max, bytes_max);
        });
        rig.publish(5);
        assert_eq!(rig.publisher.in_flight.len(), limit);
        rig.report_delivery(Ok((0, 0)));
        rig.publisher.send_waiting();
        assert_eq!(
            (rig.publisher.in_flight.len(), rig.publisher.waiting.len()),
            (limit, 4 - limit)
        );
    }
}

#[test]
fn messages_in_flight_to_a_lost_topic_are_not_confirmed_by_it() {
    let mut rig = test_publisher(&[], |_| ());
    rig.publish(1);
    rig.publisher.mark_topic_lost(&QUEUE.into());
    rig.report_delivery(Ok((0, 0)));
    assert_eq!((rig.take_confirmed_count(), rig.unconfirmed.get()), (0, 1));
    // Nothing is sent before the loss is journaled and the topic was checked.
    rig.publisher.send_waiting();
    assert!(rig.publisher.in_flight.is_empty());
    rig.publisher.resume_after_loss(&QUEUE.into());
    assert!(std::mem::take(&mut rig.publisher.needs_topic_check));
    rig.publish(0);
    rig.report_delivery(Ok((0, 0)));
    assert_eq!((rig.take_confirmed_count(), rig.unconfirmed.get()), (1, 0));
}

/// Whatever was reported of the message when its topic was lost says nothing about the next send.
#[test]
fn a_message_that_failed_on_a_lost_topic_is_confirmed_by_its_next_report() {
    for code in [RDKafkaErrorCode::UnknownTopicOrPartition, RDKafkaErrorCode::MessageTimedOut] {
        let mut rig = test_publisher(&[], |_| ());
        rig.publish(1);
        rig.publisher.mark_topic_lost(&QUEUE.into());
        rig.report_delivery(Err(code));
        rig.publish(0);
        rig.end_backoffs();
        assert_eq!(rig.take_resent_count(), 1, "{code}");
        rig.report_delivery(Ok((0, 0)));
        assert_eq!((rig.take_confirmed_count(), rig.unconfirmed.get()), (1, 0), "{code}");
    }
}

#[test]
fn a_small_message_fails_after_four_too_large_failures_whatever_the_others() {
    let mut rig = test_publisher(&[], |_| ());
    rig.publish(1);
    let timed_out = [RDKafkaErrorCode::RequestTimedOut; 5].into_iter();
    let too_large = RDKafkaErrorCode::MessageSizeTooLarge;
    for code in timed_out.chain([too_large; 3]) {
        rig.report_delivery(Err(code));
        assert_eq!((rig.take_failed_count(), rig.unconfirmed.get()), (0, 1), "{code}");
        rig.end_backoffs();
    }
    rig.report_delivery(Err(too_large));
    assert_eq!((rig.take_failed_count(), rig.unconfirmed.get()), (1, 0));
}

/// Offsets are journaled by topic, whose name differs from that of the queue if a prefix is set.
#[test]
fn written_offsets_are_read_from_the_journal_and_reported_to_it() {
    let offsets =
        [test_support::offset("orders.price", 7), test_support::offset("workflow-manager", 3)];
    let mut rig = test_publisher(&offsets, |section| section.prefix = "orders.".to_owned());
    assert_eq!(rig.publisher.written_offsets(QUEUE), [(0, 7)].into());
    assert_eq!(rig.publisher.written_offsets.len(), 1, "replies are written by others");
    rig.publish(1);
    rig.report_delivery(Ok((0, 7)));
    let report_offsets = |rig: &mut TestPublisher| {
        rig.publisher.report_offsets();
        let events = rig.events.take_all().into_iter();
        events
            .filter_map(|event| {
                let BusEvent::OffsetReached(topic_offset) = event else { return None };
                Some(topic_offset)
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(report_offsets(&mut rig), [test_support::offset("orders.price", 8)]);
    rig.publisher.mark_topic_lost(&QUEUE.into());
    assert_eq!(report_offsets(&mut rig), [test_support::offset("orders.price", 0)]);
}

/// Brokers that lost a topic may also have lost the producer's state.
#[test]
fn a_producer_whose_topic_was_lost_is_replaced() {
    for (written_offset, is_replaced) in [(0, false), (7, true)] {
        let mut rig = test_publisher(&[test_support::offset(QUEUE, written_offset)], |_| ());
        rig.publisher.mark_topic_lost(&QUEUE.into());
        assert_eq!(rig.publisher.needs_new_producer, is_replaced);
    }
}

#[test]
fn a_message_whose_topic_is_missing_waits_for_it() {
    let mut rig = test_publisher(&[], |_| ());
    rig.publish(1);
    rig.report_delivery(Err(RDKafkaErrorCode::UnknownTopicOrPartition));
    assert_eq!((rig.take_confirmed_count(), rig.unconfirmed.get()), (0, 1));
    assert!(std::mem::take(&mut rig.publisher.needs_topic_check), "the topic is checked");
    rig.publisher.send_waiting();
    assert!(rig.publisher.in_flight.is_empty());
    rig.publish(0);
    assert_eq!(rig.take_resent_count(), 1);
    rig.report_delivery(Ok((0, 0)));
    assert_eq!((rig.take_confirmed_count(), rig.unconfirmed.get()), (1, 0));
}

/// Closing a producer does not wait for all its delivery reports.
#[test]
fn unreported_messages_are_sent_again_once_the_producer_is_closed() {
    let (event_sender, mut event_receiver) = mpsc::unbounded_channel();
    let mut rig = test_publisher(&[], |_| ());
    rig.publisher.context = EventContext(event_sender);
    rig.publish(2);
    rig.publisher.needs_new_producer = true;
    assert_eq!(rig.publisher.replace_producer_if_needed(), Ok(()));
    // Both messages are in the producer that is closed. This test drops its reports.
    let last_number = loop {
        match event_receiver.blocking_recv().expect("a client event") {
            ClientEvent::ProducerClosed { last_number } => break last_number,
            ClientEvent::Delivered { .. } | ClientEvent::Error(_) | ClientEvent::AllBrokersDown => {
            }
        }
    };
    rig.publish(1);
    assert_eq!(rig.publisher.in_flight.len(), 3);
    rig.publisher.handle_producer_closed(last_number);
    assert_eq!((rig.publisher.in_flight.len(), rig.publisher.waiting.len()), (1, 2));
    rig.publisher.send_waiting();
    assert_eq!((rig.publisher.in_flight.len(), rig.unconfirmed.get()), (3, 3));
    let bytes: usize = rig.publisher.in_flight.values().map(|pending| pending.bytes).sum();
    assert_eq!(rig.publisher.in_flight_bytes, bytes);
    rig.publisher.handle_producer_closed(last_number);
    assert_eq!(rig.publisher.in_flight.len(), 3, "they are in the new producer");
}

/// Without messages, only a check can show that the producer works.
#[test]
fn a_working_producer_is_noticed_by_a_check() {
    let mut rig = test_publisher(&[], |_| ());
    rig.publisher.producer_error = Some("no rights".to_owned());
    rig.publisher.replace_producer_at = Some(clock::timer_now());
    rig.publisher.handle_brokers_available();
    assert_eq!(rig.publisher.producer_error(), Some("no rights"), "it is not replaced yet");
    rig.publisher.handle_timers();
    assert_eq!(rig.publisher.replace_producer_if_needed(), Ok(()));
    rig.publisher.handle_brokers_available();
    assert_eq!(rig.publisher.producer_error(), None);
}
