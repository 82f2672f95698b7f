//! Tests what happens to messages, without brokers.

use super::super::trial::{self, Heard};
use super::*;
use tokio::sync::mpsc;

const QUEUE: &str = "price";

struct Rig {
    publisher: Publisher,
    heard: Heard,
    unconfirmed: Rc<Cell<usize>>,
}

fn rig(positions: &[Position], change: impl FnOnce(&mut KafkaSection)) -> Rig {
    let (sink, heard) = Heard::sink();
    let mut section = trial::section();
    change(&mut section);
    let unconfirmed = Rc::new(Cell::new(0));
    let outside = (sink, unconfirmed.clone());
    let publisher = Publisher::new(Arc::new(section), positions, outside, trial::context());
    Rig { publisher: publisher.expect("a client"), heard, unconfirmed }
}

impl Rig {
    /// Enqueues `count` messages, and sends as many as there is room for.
    fn publish(&mut self, count: usize) {
        for _ in 0..count {
            self.unconfirmed.set(self.unconfirmed.get() + 1);
            self.publisher.take(trial::message(QUEUE));
        }
        self.publisher.there(&QUEUE.into(), 1);
        self.publisher.pump();
    }

    /// Reports on the message that was sent last.
    fn answer(&mut self, taken: Result<(i32, i64), RDKafkaErrorCode>) {
        let number = self.publisher.numbers;
        self.publisher.delivered(number, taken);
    }

    /// Ends the delays before messages are sent again.
    fn wake(&mut self) {
        let delayed = std::mem::take(&mut self.publisher.delayed);
        self.publisher.waiting.extend(delayed.into_values());
        self.publisher.pump();
    }

    fn taken(&mut self) -> usize {
        let told = self.heard.all();
        told.iter().filter(|event| matches!(event, BusEvent::Taken(_))).count()
    }

    fn failed(&mut self) -> usize {
        let told = self.heard.all();
        told.iter().filter(|event| matches!(event, BusEvent::Reply(_))).count()
    }
}

#[test]
fn a_message_is_confirmed_by_its_report_and_not_before() {
    let mut rig = rig(&[], |_| ());
    rig.publish(1);
    assert_eq!((rig.taken(), rig.unconfirmed.get()), (0, 1));
    rig.answer(Ok((0, 0)));
    assert_eq!((rig.taken(), rig.unconfirmed.get()), (1, 0));
    rig.answer(Ok((0, 0)));
    assert_eq!(rig.taken(), 0, "once");
}

#[test]
fn no_more_is_with_the_client_than_there_is_room_for() {
    for (count_max, bytes_max, most) in [(2, usize::MAX, 2), (1_000, 1, 1)] {
        let mut rig = rig(&[], |section| {
            (section.unconfirmed_max, section.unconfirmed_bytes_max) = (count_max, bytes_max);
        });
        rig.publish(5);
        assert_eq!(rig.publisher.flight.len(), most);
        rig.answer(Ok((0, 0)));
        rig.publisher.pump();
        assert_eq!((rig.publisher.flight.len(), rig.publisher.waiting.len()), (most, 4 - most));
    }
}

#[test]
fn what_was_on_its_way_to_a_topic_that_is_gone_is_not_confirmed_by_it() {
    let mut rig = rig(&[], |_| ());
    rig.publish(1);
    rig.publisher.lose(&QUEUE.into());
    rig.answer(Ok((0, 0)));
    assert_eq!((rig.taken(), rig.unconfirmed.get()), (0, 1));
    // Nothing is sent before the loss is journaled and the topic was checked.
    rig.publisher.pump();
    assert!(rig.publisher.flight.is_empty());
    rig.publisher.told_of(&QUEUE.into());
    assert!(std::mem::take(&mut rig.publisher.wants_look));
    rig.publish(0);
    rig.answer(Ok((0, 0)));
    assert_eq!((rig.taken(), rig.unconfirmed.get()), (1, 0));
}

#[test]
fn a_small_message_fails_once_it_was_too_large_four_times_whatever_else_it_was_refused_for() {
    let mut rig = rig(&[], |_| ());
    rig.publish(1);
    let refused = [RDKafkaErrorCode::RequestTimedOut; 5].into_iter();
    let too_large = RDKafkaErrorCode::MessageSizeTooLarge;
    for code in refused.chain([too_large; 3]) {
        rig.answer(Err(code));
        assert_eq!((rig.failed(), rig.unconfirmed.get()), (0, 1), "{code}");
        rig.wake();
    }
    rig.answer(Err(too_large));
    assert_eq!((rig.failed(), rig.unconfirmed.get()), (1, 0));
}

/// Offsets are journaled by topic; with a prefix the topic is not named as its queue.
#[test]
fn how_far_topics_were_written_is_known_from_the_journal_and_told_to_it() {
    let known = [trial::position("orders.price", 7), trial::position("workflow-manager", 3)];
    let mut rig = rig(&known, |section| section.prefix = "orders.".to_owned());
    assert_eq!(rig.publisher.written(QUEUE), [(0, 7)].into());
    assert_eq!(rig.publisher.written.len(), 1, "replies are written by others");
    rig.publish(1);
    rig.answer(Ok((0, 7)));
    let told = |rig: &mut Rig| {
        rig.publisher.tell_positions();
        let told = rig.heard.all().into_iter();
        told.filter_map(|event| {
            let BusEvent::Reached(position) = event else { return None };
            Some(position)
        })
        .collect::<Vec<_>>()
    };
    assert_eq!(told(&mut rig), [trial::position("orders.price", 8)]);
    rig.publisher.lose(&QUEUE.into());
    assert_eq!(told(&mut rig), [trial::position("orders.price", 0)]);
}

/// Brokers that lost a topic may also have lost the producer's state.
#[test]
fn a_producer_whose_topic_was_lost_is_replaced() {
    for (written, is_outdated) in [(0, false), (7, true)] {
        let mut rig = rig(&[trial::position(QUEUE, written)], |_| ());
        rig.publisher.lose(&QUEUE.into());
        assert_eq!(rig.publisher.is_outdated, is_outdated);
    }
}

#[test]
fn a_message_whose_topic_is_not_there_waits_for_it() {
    let mut rig = rig(&[], |_| ());
    rig.publish(1);
    rig.answer(Err(RDKafkaErrorCode::UnknownTopicOrPartition));
    assert_eq!((rig.taken(), rig.unconfirmed.get()), (0, 1));
    assert!(std::mem::take(&mut rig.publisher.wants_look), "the topic is looked at");
    rig.publisher.pump();
    assert!(rig.publisher.flight.is_empty());
    rig.publish(0);
    rig.answer(Ok((0, 0)));
    assert_eq!((rig.taken(), rig.unconfirmed.get()), (1, 0));
}

/// A producer that is closed does not wait for all its reports.
#[test]
fn what_a_client_did_not_report_is_sent_again_once_it_has_ended() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut rig = rig(&[], |_| ());
    rig.publisher.context = Context(tell);
    rig.publish(2);
    rig.publisher.is_outdated = true;
    assert_eq!(rig.publisher.renew_if_outdated(), Ok(()));
    // Both messages are in the producer that is closed. Nobody receives its reports.
    let last = loop {
        match told.blocking_recv().expect("the clients are there") {
            Told::ProducerEnded { last } => break last,
            Told::Delivered { .. } | Told::Error(_) | Told::AllDown => {}
        }
    };
    rig.publish(1);
    assert_eq!(rig.publisher.flight.len(), 3);
    rig.publisher.ended(last);
    assert_eq!((rig.publisher.flight.len(), rig.publisher.waiting.len()), (1, 2));
    rig.publisher.pump();
    assert_eq!((rig.publisher.flight.len(), rig.unconfirmed.get()), (3, 3));
    let bytes: usize = rig.publisher.flight.values().map(|held| held.bytes).sum();
    assert_eq!(rig.publisher.flight_bytes, bytes);
    rig.publisher.ended(last);
    assert_eq!(rig.publisher.flight.len(), 3, "they are with another client now");
}

/// Without messages only the check can tell.
#[test]
fn a_producer_that_can_go_on_is_told_by_a_look() {
    let mut rig = rig(&[], |_| ());
    rig.publisher.no_producer = Some("no rights".to_owned());
    rig.publisher.renewed_at = Some(clock::ticks());
    rig.publisher.looked();
    assert_eq!(rig.publisher.no_producer(), Some("no rights"), "it is not replaced yet");
    rig.publisher.due();
    assert_eq!(rig.publisher.renew_if_outdated(), Ok(()));
    rig.publisher.looked();
    assert_eq!(rig.publisher.no_producer(), None);
}
