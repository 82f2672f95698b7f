//! Follows what a worker and the broker exchange on one connection: which message was delivered,
//! which reply was published and confirmed, what was acknowledged or rejected. Applies the test's
//! interventions.

use super::super::cut::CutTiming;
use super::super::event_log::ObservedEvent;
use super::frames::{Frame, FrameKind};
use super::message_log::MessageLog;
use amqp::wire::{Property, read_property};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::rc::Rc;

/// How many channels of a connection are followed: RabbitMQ's own default.
const CHANNELS_MAX: usize = 2048;

/// How many messages are followed on a channel.
const FOLLOWED_MAX: usize = 100_000;

const CONSUME: [u8; 4] = [0, 60, 0, 20];
const CONSUME_OK: [u8; 4] = [0, 60, 0, 21];
const PUBLISH: [u8; 4] = [0, 60, 0, 40];
const DELIVER: [u8; 4] = [0, 60, 0, 60];
const GET: [u8; 4] = [0, 60, 0, 70];
const GET_OK: [u8; 4] = [0, 60, 0, 71];
const ACK: [u8; 4] = [0, 60, 0, 80];
const REJECT: [u8; 4] = [0, 60, 0, 90];
const NACK: [u8; 4] = [0, 60, 0, 120];
const CHANNEL_OPEN: [u8; 4] = [0, 20, 0, 10];
const CONFIRM_SELECT: [u8; 4] = [0, 85, 0, 10];

/// The queues that are followed.
#[derive(Clone, Debug)]
pub(super) struct WatchedQueues {
    pub(super) queue: String,
    pub(super) reply_queue: String,
}

/// What the proxy must do to messages, on any connection, by their correlation ids.
#[derive(Default)]
pub(super) struct Interventions {
    pending_cut: RefCell<Option<(String, CutTiming)>>,
    never_requeued: RefCell<HashSet<String>>,
}

impl Interventions {
    pub(super) fn cut_at(&self, correlation_id: String, at: CutTiming) {
        *self.pending_cut.borrow_mut() = Some((correlation_id, at));
    }

    pub(super) fn prevent_requeue(&self, correlation_id: String) {
        self.never_requeued.borrow_mut().insert(correlation_id);
    }

    /// Returns whether the connection must be cut here. A cut happens once.
    fn take_cut(&self, correlation_id: &str, at: CutTiming) -> bool {
        let is_it = |cut: &mut (String, CutTiming)| cut.0 == correlation_id && cut.1 == at;
        self.pending_cut.borrow_mut().take_if(is_it).is_some()
    }

    fn is_requeue_prevented(&self, correlation_id: &str) -> bool {
        self.never_requeued.borrow().contains(correlation_id)
    }
}

/// What happens to a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FrameAction {
    Forward,
    /// This frame is forwarded in its place.
    Replace(Vec<u8>),
    /// The connection is cut, and nothing more is forwarded.
    Cut,
}

/// Follows one connection.
pub(super) struct Conversation {
    queues: WatchedQueues,
    interventions: Rc<Interventions>,
    log: MessageLog,
    channels: HashMap<u16, Channel>,
}

#[derive(Default)]
struct Channel {
    confirms: bool,
    /// How many messages were published since confirms were enabled.
    published: u64,
    unconfirmed: BTreeMap<u64, String>,
    in_flight: BTreeMap<u64, String>,
    /// Consumes without a reply yet, each with whether it acknowledges automatically.
    pending_consumes: VecDeque<bool>,
    /// The tags of consumers with automatic acknowledgement.
    auto_ack_tags: HashSet<Vec<u8>>,
    gets_auto_acked: bool,
    /// A publish whose header follows: whether it goes to the reply queue.
    publishing: Option<bool>,
    /// A delivery whose header follows: its tag, and whether it is acknowledged automatically.
    delivering: Option<(u64, bool)>,
}

impl Conversation {
    pub(super) fn new(
        queues: WatchedQueues,
        interventions: Rc<Interventions>,
        log: MessageLog,
    ) -> Conversation {
        Conversation { queues, interventions, log, channels: HashMap::new() }
    }

    fn channel(&mut self, number: u16) -> Option<&mut Channel> {
        if self.channels.len() >= CHANNELS_MAX && !self.channels.contains_key(&number) {
            return None;
        }
        Some(self.channels.entry(number).or_default())
    }

    /// Handles a frame from the worker.
    pub(super) fn handle_worker_frame(&mut self, frame: &Frame) -> FrameAction {
        let (queues, interventions, log) =
            (self.queues.clone(), self.interventions.clone(), self.log.clone());
        let Some(channel) = self.channel(frame.channel()) else { return FrameAction::Forward };
        match frame.kind() {
            FrameKind::Header => {
                let Some(is_reply) = channel.publishing.take() else { return FrameAction::Forward };
                let text = |wanted| read_property(frame.payload(), wanted).unwrap_or_default();
                let correlation_id = text(Property::CorrelationId).into_owned();
                let is_last = text(Property::Type) != "progress";
                if is_reply && is_last && interventions.take_cut(&correlation_id, CutTiming::Reply)
                {
                    log.add(&correlation_id, ObservedEvent::ConnectionCut);
                    return FrameAction::Cut;
                }
                if channel.confirms {
                    channel.published += 1;
                    if is_reply && is_last && channel.unconfirmed.len() < FOLLOWED_MAX {
                        channel.unconfirmed.insert(channel.published, correlation_id.clone());
                    }
                }
                if is_reply && is_last {
                    log.add(&correlation_id, ObservedEvent::Published);
                }
                FrameAction::Forward
            }
            FrameKind::Method => channel.handle_worker_method(frame, &queues, &interventions, &log),
            FrameKind::ProtocolHeader | FrameKind::Body | FrameKind::Other => FrameAction::Forward,
        }
    }

    /// Handles a frame from the broker.
    pub(super) fn handle_broker_frame(&mut self, frame: &Frame) {
        let log = self.log.clone();
        let Some(channel) = self.channel(frame.channel()) else { return };
        match frame.kind() {
            FrameKind::Header => {
                let Some((tag, is_unseen)) = channel.delivering.take() else { return };
                let correlation_id =
                    read_property(frame.payload(), Property::CorrelationId).unwrap_or_default();
                log.add(&correlation_id, ObservedEvent::Delivered);
                if is_unseen {
                    log.add(&correlation_id, ObservedEvent::AutoAcked);
                } else if channel.in_flight.len() < FOLLOWED_MAX {
                    channel.in_flight.insert(tag, correlation_id.into_owned());
                }
            }
            FrameKind::Method => channel.handle_broker_method(frame, &log),
            FrameKind::ProtocolHeader | FrameKind::Body | FrameKind::Other => {}
        }
    }
}

impl Channel {
    fn handle_worker_method(
        &mut self,
        frame: &Frame,
        queues: &WatchedQueues,
        interventions: &Interventions,
        log: &MessageLog,
    ) -> FrameAction {
        let Some((method, fields)) = frame.payload().split_first_chunk::<4>() else {
            return FrameAction::Forward;
        };
        let mut fields = Fields(fields);
        match *method {
            CHANNEL_OPEN => *self = Channel::default(),
            CONFIRM_SELECT => self.confirms = true,
            PUBLISH => {
                // A reserved number, the exchange and the routing key.
                fields.skip(2);
                let is_default = fields.read_text().is_empty();
                self.publishing =
                    Some(is_default && fields.read_text() == queues.reply_queue.as_bytes());
            }
            CONSUME => {
                fields.skip(2);
                let queue = fields.read_text();
                let tag = fields.read_text().to_vec();
                let bits = fields.read_byte();
                let is_unseen = bits & 0b10 != 0;
                if bits & 0b1000 == 0 && self.pending_consumes.len() < FOLLOWED_MAX {
                    self.pending_consumes.push_back(is_unseen);
                } else if is_unseen && self.auto_ack_tags.len() < FOLLOWED_MAX {
                    self.auto_ack_tags.insert(tag);
                }
                if queue == queues.queue.as_bytes() {
                    log.add_connected();
                }
            }
            GET => {
                fields.skip(2);
                if fields.read_text() == queues.queue.as_bytes() {
                    log.add_connected();
                }
                self.gets_auto_acked = fields.read_byte() & 1 != 0;
            }
            ACK => {
                let settled = self.take_settled(fields.read_number(), fields.read_byte() & 1 != 0);
                if let Some(correlation_id) =
                    settled.iter().find(|of| interventions.take_cut(of, CutTiming::Ack))
                {
                    log.add(correlation_id, ObservedEvent::ConnectionCut);
                    return FrameAction::Cut;
                }
                settled.iter().for_each(|of| log.add(of, ObservedEvent::Acked));
            }
            REJECT | NACK => {
                let (tag, bits) = (fields.read_number(), fields.read_byte());
                let requeues = if *method == NACK { 0b10 } else { 1 };
                let is_multiple = *method == NACK && bits & 1 != 0;
                let settled = self.take_settled(tag, is_multiple);
                let is_prevented = settled
                    .iter()
                    .any(|correlation_id| interventions.is_requeue_prevented(correlation_id));
                let requeue = bits & requeues != 0 && !is_prevented;
                settled.iter().for_each(|of| log.add(of, ObservedEvent::Nacked { requeue }));
                if is_prevented && bits & requeues != 0 {
                    let mut raw = frame.raw.clone();
                    // The byte of the flags precedes the end of the frame.
                    if let [.., flags, _] = raw.as_mut_slice() {
                        *flags &= !requeues;
                    }
                    return FrameAction::Replace(raw);
                }
            }
            _ => {}
        }
        FrameAction::Forward
    }

    fn handle_broker_method(&mut self, frame: &Frame, log: &MessageLog) {
        let Some((method, fields)) = frame.payload().split_first_chunk::<4>() else { return };
        let mut fields = Fields(fields);
        match *method {
            CONSUME_OK => {
                let is_unseen = self.pending_consumes.pop_front() == Some(true);
                if is_unseen && self.auto_ack_tags.len() < FOLLOWED_MAX {
                    self.auto_ack_tags.insert(fields.read_text().to_vec());
                }
            }
            DELIVER => {
                let is_unseen = self.auto_ack_tags.contains(fields.read_text());
                self.delivering = Some((fields.read_number(), is_unseen));
            }
            GET_OK => self.delivering = Some((fields.read_number(), self.gets_auto_acked)),
            ACK => {
                let (tag, is_multiple) = (fields.read_number(), fields.read_byte() & 1 != 0);
                let confirmed = take_tags(&mut self.unconfirmed, tag, is_multiple);
                confirmed.iter().for_each(|of| log.add(of, ObservedEvent::Confirmed));
            }
            _ => {}
        }
    }

    fn take_settled(&mut self, tag: u64, is_multiple: bool) -> Vec<String> {
        take_tags(&mut self.in_flight, tag, is_multiple)
    }
}

/// Removes what a tag stands for: one message, or all up to it; 0 with `is_multiple` is all.
fn take_tags(from: &mut BTreeMap<u64, String>, tag: u64, is_multiple: bool) -> Vec<String> {
    if !is_multiple {
        return from.remove(&tag).into_iter().collect();
    }
    let rest = match tag.checked_add(1) {
        Some(next) if tag > 0 => from.split_off(&next),
        Some(_) | None => BTreeMap::new(),
    };
    std::mem::replace(from, rest).into_values().collect()
}

/// Reads the fields of a method from the front. Missing fields are empty, for the broker refuses
/// such a method.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        front
    }

    fn skip(&mut self, count: usize) {
        self.take(count);
    }

    fn read_byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or_default()
    }

    fn read_number(&mut self) -> u64 {
        self.take(8).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn read_text(&mut self) -> &'a [u8] {
        let length = usize::from(self.read_byte());
        self.take(length)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::event_log::{EventLog, LoggedEvent};
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Frame {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        Frame { raw: [&[kind, 0, 1][..], &size, payload, &[0xce]].concat() }
    }

    fn method(name: [u8; 4], fields: &[&[u8]]) -> Frame {
        frame(1, &[&name[..], &fields.concat()].concat())
    }

    fn text(text: &str) -> Vec<u8> {
        [&[u8::try_from(text.len()).unwrap()][..], text.as_bytes()].concat()
    }

    /// Builds a content header with only a correlation id.
    fn header(of: &str) -> Frame {
        let flags = (1u16 << 10).to_be_bytes();
        frame(2, &[&[0, 60][..], &[0; 10], &flags, &text(of)].concat())
    }

    struct TestConversation {
        conversation: Conversation,
        interventions: Rc<Interventions>,
        log: EventLog,
    }

    fn new_conversation() -> TestConversation {
        let log = EventLog::default();
        let message_log = MessageLog::new(log.clone());
        message_log.register("a".to_owned(), 0);
        message_log.register("b".to_owned(), 1);
        let interventions = Rc::new(Interventions::default());
        let queues = WatchedQueues { queue: "q".to_owned(), reply_queue: "r".to_owned() };
        TestConversation {
            conversation: Conversation::new(queues, interventions.clone(), message_log),
            interventions,
            log,
        }
    }

    impl TestConversation {
        fn events(&self) -> Vec<String> {
            let describe = |logged: &LoggedEvent| match logged.message_number {
                Some(number) => format!("{:?}({})", logged.event, ["a", "b"][number]),
                None => format!("{:?}", logged.event),
            };
            self.log.with_events(|events| events.iter().map(describe).collect())
        }

        fn consume(&mut self, bits: u8) {
            self.conversation
                .handle_worker_frame(&method(CONSUME, &[&[0, 0], &text("q"), &text(""), &[bits]]));
            self.conversation.handle_broker_frame(&method(CONSUME_OK, &[&text("tag")]));
        }

        fn deliver(&mut self, tag: u8, correlation_id: &str) {
            let number = [0, 0, 0, 0, 0, 0, 0, tag];
            let fields = [&text("tag"), &number[..], &[0], &text(""), &text("q")];
            self.conversation.handle_broker_frame(&method(DELIVER, &fields));
            self.conversation.handle_broker_frame(&header(correlation_id));
        }

        fn publish(&mut self, key: &str, correlation_id: &str) -> FrameAction {
            let fields = [&[0, 0][..], &text(""), &text(key), &[0]];
            assert_eq!(
                self.conversation.handle_worker_frame(&method(PUBLISH, &fields)),
                FrameAction::Forward
            );
            self.conversation.handle_worker_frame(&header(correlation_id))
        }

        fn settle(&mut self, name: [u8; 4], tag: u8, bits: u8) -> FrameAction {
            self.conversation
                .handle_worker_frame(&method(name, &[&[0, 0, 0, 0, 0, 0, 0, tag], &[bits]]))
        }
    }

    #[test]
    fn the_order_of_publish_confirm_and_ack_is_reported() {
        let mut rig = new_conversation();
        rig.conversation.handle_worker_frame(&method(CONFIRM_SELECT, &[&[0]]));
        rig.consume(0);
        rig.deliver(1, "a");
        rig.deliver(2, "b");
        assert_eq!(rig.publish("elsewhere", "a"), FrameAction::Forward);
        rig.publish("r", "a");
        rig.publish("r", "b");
        rig.conversation.handle_broker_frame(&method(ACK, &[&[0, 0, 0, 0, 0, 0, 0, 3], &[1]]));
        assert_eq!(rig.settle(ACK, 2, 1), FrameAction::Forward);
        let events = rig.events();
        assert_eq!(
            events.join(" "),
            "Connected Delivered(a) Delivered(b) Published(a) Published(b) Confirmed(a) \
             Confirmed(b) Acked(a) Acked(b)"
        );
    }

    #[test]
    fn a_connection_is_cut_once_at_the_reply_or_at_the_ack() {
        let mut rig = new_conversation();
        rig.consume(0);
        rig.deliver(1, "a");
        rig.interventions.cut_at("a".to_owned(), CutTiming::Reply);
        assert_eq!(rig.publish("r", "b"), FrameAction::Forward);
        assert_eq!(rig.publish("r", "a"), FrameAction::Cut);
        assert_eq!(rig.publish("r", "a"), FrameAction::Forward);
        rig.interventions.cut_at("a".to_owned(), CutTiming::Ack);
        assert_eq!(rig.publish("r", "a"), FrameAction::Forward);
        assert_eq!(rig.settle(ACK, 1, 0), FrameAction::Cut);
    }

    #[test]
    fn a_requeue_becomes_a_rejection_where_it_is_prevented() {
        let mut rig = new_conversation();
        rig.consume(0);
        for (tag, name, bits, tamed) in [(1, NACK, 0b10, 0), (2, REJECT, 1, 0)] {
            rig.deliver(tag, "a");
            rig.interventions.prevent_requeue("b".to_owned());
            assert_eq!(rig.settle(name, tag, bits), FrameAction::Forward);
            rig.deliver(tag, "b");
            let FrameAction::Replace(raw) = rig.settle(name, tag, bits) else {
                panic!("not changed")
            };
            assert_eq!(raw[raw.len() - 2], tamed);
        }
        let nacks = rig.events().iter().filter(|what| what.contains("requeue: true")).count();
        assert_eq!(nacks, 2);
    }

    #[test]
    fn automatic_acknowledgement_is_reported() {
        let mut rig = new_conversation();
        rig.consume(0b10);
        rig.deliver(1, "a");
        assert_eq!(rig.events()[1..], ["Delivered(a)", "AutoAcked(a)"]);
    }

    #[test]
    fn half_a_method_breaks_nothing() {
        let mut rig = new_conversation();
        for name in [CONSUME, PUBLISH, GET, ACK, NACK, REJECT] {
            for length in 0..6 {
                let whole = method(name, &[&[0, 0, 200, 1, 2]]);
                rig.conversation.handle_worker_frame(&frame(1, &whole.payload()[..length]));
                rig.conversation.handle_broker_frame(&frame(1, &whole.payload()[..length]));
            }
        }
    }
}
