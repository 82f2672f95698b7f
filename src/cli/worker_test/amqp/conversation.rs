//! Follows the AMQP methods that a worker and the broker exchange on one connection: deliveries,
//! published and confirmed replies, acknowledgements and rejections. Logs them, and applies the
//! interventions of the test.

use super::super::cut::CutTiming;
use super::super::event_log::ObservedEvent;
use super::frames::{Frame, FrameKind};
use super::message_log::MessageLog;
use amqp::wire::{Property, read_property};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::rc::Rc;

/// The maximum number of followed channels of a connection: RabbitMQ's default for `channel_max`.
const CHANNELS_MAX: usize = 2048;

/// The maximum number of entries in each collection of a channel, so that memory is bounded.
const CHANNEL_ENTRIES_MAX: usize = 100_000;

// The class and method ids of the followed methods.
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

// The flags of methods, in their bit fields.
const CONSUME_NO_ACK: u8 = 1 << 1;
const CONSUME_NO_WAIT: u8 = 1 << 3;
const GET_NO_ACK: u8 = 1;
const ACK_MULTIPLE: u8 = 1;
const NACK_MULTIPLE: u8 = 1;
const NACK_REQUEUE: u8 = 1 << 1;
const REJECT_REQUEUE: u8 = 1;

/// The size of the reserved field at the start of a method, in bytes.
const RESERVED_BYTES: usize = 2;

/// The queues whose messages are followed.
#[derive(Clone, Debug)]
pub(super) struct WatchedQueues {
    /// The queue from which the worker consumes.
    pub(super) queue: String,
    /// The queue to which the worker sends its replies.
    pub(super) reply_queue: String,
}

/// What the proxy does to messages on any connection, by their correlation ids.
#[derive(Default)]
pub(super) struct Interventions {
    /// The cut that is scheduled; `None` once it was made.
    pending_cut: RefCell<Option<PendingCut>>,
    /// The messages whose requeue becomes a rejection.
    never_requeued: RefCell<HashSet<String>>,
}

/// A cut of the connection that is scheduled.
struct PendingCut {
    /// The message at which the connection is cut.
    correlation_id: String,
    timing: CutTiming,
}

impl Interventions {
    /// Schedules one cut of the connection at a message.
    pub(super) fn schedule_cut(&self, correlation_id: String, timing: CutTiming) {
        *self.pending_cut.borrow_mut() = Some(PendingCut { correlation_id, timing });
    }

    /// Prevents a message from being requeued.
    pub(super) fn prevent_requeue(&self, correlation_id: String) {
        self.never_requeued.borrow_mut().insert(correlation_id);
    }

    /// Takes the pending cut if it is due at this message and time. Returns whether it was.
    fn take_cut(&self, correlation_id: &str, timing: CutTiming) -> bool {
        let is_due =
            |cut: &mut PendingCut| cut.correlation_id == correlation_id && cut.timing == timing;
        self.pending_cut.borrow_mut().take_if(is_due).is_some()
    }

    fn is_requeue_prevented(&self, correlation_id: &str) -> bool {
        self.never_requeued.borrow().contains(correlation_id)
    }
}

/// What the proxy does with a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FrameAction {
    Forward,
    /// It forwards this frame instead.
    Replace(Vec<u8>),
    /// It cuts the connection, and forwards nothing more.
    Cut,
}

/// The state of one connection.
pub(super) struct Conversation {
    queues: WatchedQueues,
    interventions: Rc<Interventions>,
    log: MessageLog,
    channels: HashMap<u16, Channel>,
}

/// The state of one channel. Messages are identified by their correlation ids.
#[derive(Default)]
struct Channel {
    /// Whether publisher confirms are enabled.
    has_confirms: bool,
    /// How many messages were published since confirms were enabled. The broker's confirms have the
    /// number of the message.
    publish_count: u64,
    /// The final replies that the broker has not confirmed, by publish number.
    unconfirmed: BTreeMap<u64, String>,
    /// The deliveries that are not settled, by delivery tag.
    in_flight: BTreeMap<u64, String>,
    /// For each consume that the broker has not answered, in order, whether it has auto-ack. The
    /// answer names the consumer's tag.
    pending_consumes: VecDeque<bool>,
    /// The tags of the consumers with auto-ack.
    auto_ack_tags: HashSet<Vec<u8>>,
    /// Whether the last get has auto-ack.
    is_get_auto_ack: bool,
    /// The publish whose content header follows next.
    current_publish: Option<Publish>,
    /// The delivery whose content header follows next.
    current_delivery: Option<ChannelDelivery>,
}

/// A published message.
struct Publish {
    /// Whether it is sent to the reply queue.
    is_reply: bool,
}

/// A message that the broker delivers.
struct ChannelDelivery {
    tag: u64,
    is_auto_ack: bool,
}

impl Conversation {
    pub(super) fn new(
        queues: WatchedQueues,
        interventions: Rc<Interventions>,
        log: MessageLog,
    ) -> Conversation {
        Conversation { queues, interventions, log, channels: HashMap::new() }
    }

    /// Returns the state of a channel, and creates it first for a new channel. Returns `None` if
    /// too many channels are followed.
    fn find_or_create_channel(&mut self, number: u16) -> Option<&mut Channel> {
        if self.channels.len() >= CHANNELS_MAX && !self.channels.contains_key(&number) {
            return None;
        }
        Some(self.channels.entry(number).or_default())
    }

    /// Handles a frame from the worker. Returns what the proxy does with it.
    pub(super) fn handle_worker_frame(&mut self, frame: &Frame) -> FrameAction {
        let (queues, interventions, log) =
            (self.queues.clone(), self.interventions.clone(), self.log.clone());
        let Some(channel) = self.find_or_create_channel(frame.channel()) else {
            return FrameAction::Forward;
        };
        match frame.kind() {
            FrameKind::Header => {
                let Some(Publish { is_reply }) = channel.current_publish.take() else {
                    return FrameAction::Forward;
                };
                let property_text =
                    |property| read_property(frame.payload(), property).unwrap_or_default();
                let correlation_id = property_text(Property::CorrelationId).into_owned();
                let is_final_reply = is_reply && property_text(Property::Type) != "progress";
                if is_final_reply && interventions.take_cut(&correlation_id, CutTiming::Reply) {
                    log.add(&correlation_id, ObservedEvent::ConnectionCut);
                    return FrameAction::Cut;
                }
                if channel.has_confirms {
                    channel.publish_count += 1;
                    if is_final_reply && channel.unconfirmed.len() < CHANNEL_ENTRIES_MAX {
                        channel.unconfirmed.insert(channel.publish_count, correlation_id.clone());
                    }
                }
                if is_final_reply {
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
        let Some(channel) = self.find_or_create_channel(frame.channel()) else { return };
        match frame.kind() {
            FrameKind::Header => {
                let Some(ChannelDelivery { tag, is_auto_ack }) = channel.current_delivery.take()
                else {
                    return;
                };
                let correlation_id =
                    read_property(frame.payload(), Property::CorrelationId).unwrap_or_default();
                log.add(&correlation_id, ObservedEvent::Delivered);
                if is_auto_ack {
                    log.add(&correlation_id, ObservedEvent::AutoAcked);
                } else if channel.in_flight.len() < CHANNEL_ENTRIES_MAX {
                    channel.in_flight.insert(tag, correlation_id.into_owned());
                }
            }
            FrameKind::Method => channel.handle_broker_method(frame, &log),
            FrameKind::ProtocolHeader | FrameKind::Body | FrameKind::Other => {}
        }
    }
}

impl Channel {
    /// Handles a method of the worker. Returns what the proxy does with its frame.
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
            CONFIRM_SELECT => self.has_confirms = true,
            PUBLISH => {
                fields.skip(RESERVED_BYTES);
                let (exchange, routing_key) =
                    (fields.read_short_string(), fields.read_short_string());
                let is_reply = exchange.is_empty() && routing_key == queues.reply_queue.as_bytes();
                self.current_publish = Some(Publish { is_reply });
            }
            CONSUME => {
                fields.skip(RESERVED_BYTES);
                let queue = fields.read_short_string();
                let tag = fields.read_short_string().to_vec();
                let flags = fields.read_u8();
                let is_auto_ack = flags & CONSUME_NO_ACK != 0;
                let is_answer_expected = flags & CONSUME_NO_WAIT == 0;
                if is_answer_expected && self.pending_consumes.len() < CHANNEL_ENTRIES_MAX {
                    self.pending_consumes.push_back(is_auto_ack);
                } else if is_auto_ack && self.auto_ack_tags.len() < CHANNEL_ENTRIES_MAX {
                    self.auto_ack_tags.insert(tag);
                }
                if queue == queues.queue.as_bytes() {
                    log.add_connected();
                }
            }
            GET => {
                fields.skip(RESERVED_BYTES);
                if fields.read_short_string() == queues.queue.as_bytes() {
                    log.add_connected();
                }
                self.is_get_auto_ack = fields.read_u8() & GET_NO_ACK != 0;
            }
            ACK => {
                let (tag, flags) = (fields.read_u64(), fields.read_u8());
                let settled_ids = take_tags(&mut self.in_flight, tag, flags & ACK_MULTIPLE != 0);
                let cut_id = settled_ids
                    .iter()
                    .find(|correlation_id| interventions.take_cut(correlation_id, CutTiming::Ack));
                if let Some(correlation_id) = cut_id {
                    log.add(correlation_id, ObservedEvent::ConnectionCut);
                    return FrameAction::Cut;
                }
                for correlation_id in &settled_ids {
                    log.add(correlation_id, ObservedEvent::Acked);
                }
            }
            REJECT | NACK => {
                let is_nack = *method == NACK;
                return self.handle_rejection(is_nack, fields, frame, interventions, log);
            }
            _ => {}
        }
        FrameAction::Forward
    }

    /// Handles a `basic.nack` (`is_nack`) or `basic.reject` of the worker. A requeue that is
    /// prevented is replaced by a rejection.
    fn handle_rejection(
        &mut self,
        is_nack: bool,
        mut fields: Fields<'_>,
        frame: &Frame,
        interventions: &Interventions,
        log: &MessageLog,
    ) -> FrameAction {
        let (tag, flags) = (fields.read_u64(), fields.read_u8());
        let requeue_flag = if is_nack { NACK_REQUEUE } else { REJECT_REQUEUE };
        let is_multiple = is_nack && flags & NACK_MULTIPLE != 0;
        let settled_ids = take_tags(&mut self.in_flight, tag, is_multiple);
        let is_prevented = settled_ids
            .iter()
            .any(|correlation_id| interventions.is_requeue_prevented(correlation_id));
        let is_requeue_requested = flags & requeue_flag != 0;
        let is_requeued = is_requeue_requested && !is_prevented;
        for correlation_id in &settled_ids {
            log.add(correlation_id, ObservedEvent::Nacked { requeue: is_requeued });
        }
        if !(is_requeue_requested && is_prevented) {
            return FrameAction::Forward;
        }
        let mut replacement = frame.raw.clone();
        // The flags are the last byte before the end of the frame.
        if let [.., flags, _frame_end] = replacement.as_mut_slice() {
            *flags &= !requeue_flag;
        }
        FrameAction::Replace(replacement)
    }

    /// Handles a method of the broker.
    fn handle_broker_method(&mut self, frame: &Frame, log: &MessageLog) {
        let Some((method, fields)) = frame.payload().split_first_chunk::<4>() else { return };
        let mut fields = Fields(fields);
        match *method {
            CONSUME_OK => {
                let is_auto_ack = self.pending_consumes.pop_front() == Some(true);
                if is_auto_ack && self.auto_ack_tags.len() < CHANNEL_ENTRIES_MAX {
                    self.auto_ack_tags.insert(fields.read_short_string().to_vec());
                }
            }
            DELIVER => {
                let is_auto_ack = self.auto_ack_tags.contains(fields.read_short_string());
                self.current_delivery =
                    Some(ChannelDelivery { tag: fields.read_u64(), is_auto_ack });
            }
            GET_OK => {
                let (tag, is_auto_ack) = (fields.read_u64(), self.is_get_auto_ack);
                self.current_delivery = Some(ChannelDelivery { tag, is_auto_ack });
            }
            ACK => {
                let (tag, flags) = (fields.read_u64(), fields.read_u8());
                let confirmed_ids =
                    take_tags(&mut self.unconfirmed, tag, flags & ACK_MULTIPLE != 0);
                for correlation_id in &confirmed_ids {
                    log.add(correlation_id, ObservedEvent::Confirmed);
                }
            }
            _ => {}
        }
    }
}

/// Removes the message with this tag. If `is_multiple`, removes all messages up to this tag, or all
/// messages if the tag is 0. Returns the correlation ids of the removed messages.
fn take_tags(messages: &mut BTreeMap<u64, String>, tag: u64, is_multiple: bool) -> Vec<String> {
    if !is_multiple {
        return messages.remove(&tag).into_iter().collect();
    }
    let remaining = match tag.checked_add(1) {
        Some(next_tag) if tag > 0 => messages.split_off(&next_tag),
        Some(_) | None => BTreeMap::new(),
    };
    std::mem::replace(messages, remaining).into_values().collect()
}

/// Reads the fields of a method in order. The fields that a truncated method lacks are read as
/// empty or 0. This is harmless, because the broker refuses such a method.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Reads `count` bytes, or fewer at the end of the method.
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (bytes, remaining) = self.0.split_at(count.min(self.0.len()));
        self.0 = remaining;
        bytes
    }

    fn skip(&mut self, count: usize) {
        self.take(count);
    }

    fn read_u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or_default()
    }

    fn read_u64(&mut self) -> u64 {
        self.take(8).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn read_short_string(&mut self) -> &'a [u8] {
        let length = usize::from(self.read_u8());
        self.take(length)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::event_log::{EventLog, LoggedEvent};
    use super::*;

    /// Builds a frame on channel 1.
    fn frame(kind: u8, payload: &[u8]) -> Frame {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        Frame { raw: [&[kind, 0, 1][..], &size, payload, &[0xce]].concat() }
    }

    fn method(method_id: [u8; 4], fields: &[&[u8]]) -> Frame {
        frame(1, &[&method_id[..], &fields.concat()].concat())
    }

    fn short_string(text: &str) -> Vec<u8> {
        [&[u8::try_from(text.len()).unwrap()][..], text.as_bytes()].concat()
    }

    /// Builds a content header with only a correlation id.
    fn header(correlation_id: &str) -> Frame {
        let flags = (1u16 << 10).to_be_bytes();
        frame(2, &[&[0, 60][..], &[0; 10], &flags, &short_string(correlation_id)].concat())
    }

    struct TestConversation {
        conversation: Conversation,
        interventions: Rc<Interventions>,
        log: EventLog,
    }

    /// Creates a conversation that knows the messages `a` and `b`.
    fn test_conversation() -> TestConversation {
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

        fn consume(&mut self, flags: u8) {
            let fields = [&[0, 0][..], &short_string("q"), &short_string(""), &[flags]];
            self.conversation.handle_worker_frame(&method(CONSUME, &fields));
            self.conversation.handle_broker_frame(&method(CONSUME_OK, &[&short_string("tag")]));
        }

        fn deliver(&mut self, tag: u8, correlation_id: &str) {
            let delivery_tag = [0, 0, 0, 0, 0, 0, 0, tag];
            let fields = [
                &short_string("tag"),
                &delivery_tag[..],
                &[0],
                &short_string(""),
                &short_string("q"),
            ];
            self.conversation.handle_broker_frame(&method(DELIVER, &fields));
            self.conversation.handle_broker_frame(&header(correlation_id));
        }

        fn publish(&mut self, routing_key: &str, correlation_id: &str) -> FrameAction {
            let fields = [&[0, 0][..], &short_string(""), &short_string(routing_key), &[0]];
            assert_eq!(
                self.conversation.handle_worker_frame(&method(PUBLISH, &fields)),
                FrameAction::Forward
            );
            self.conversation.handle_worker_frame(&header(correlation_id))
        }

        fn settle(&mut self, method_id: [u8; 4], tag: u8, flags: u8) -> FrameAction {
            self.conversation
                .handle_worker_frame(&method(method_id, &[&[0, 0, 0, 0, 0, 0, 0, tag], &[flags]]))
        }
    }

    #[test]
    fn the_order_of_publish_confirm_and_ack_is_reported() {
        let mut rig = test_conversation();
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
        let mut rig = test_conversation();
        rig.consume(0);
        rig.deliver(1, "a");
        rig.interventions.schedule_cut("a".to_owned(), CutTiming::Reply);
        assert_eq!(rig.publish("r", "b"), FrameAction::Forward);
        assert_eq!(rig.publish("r", "a"), FrameAction::Cut);
        assert_eq!(rig.publish("r", "a"), FrameAction::Forward);
        rig.interventions.schedule_cut("a".to_owned(), CutTiming::Ack);
        assert_eq!(rig.publish("r", "a"), FrameAction::Forward);
        assert_eq!(rig.settle(ACK, 1, 0), FrameAction::Cut);
    }

    #[test]
    fn a_requeue_that_is_prevented_becomes_a_rejection() {
        let mut rig = test_conversation();
        rig.consume(0);
        for (tag, method_id, flags) in [(1, NACK, NACK_REQUEUE), (2, REJECT, REJECT_REQUEUE)] {
            rig.deliver(tag, "a");
            rig.interventions.prevent_requeue("b".to_owned());
            assert_eq!(rig.settle(method_id, tag, flags), FrameAction::Forward);
            rig.deliver(tag, "b");
            let FrameAction::Replace(raw) = rig.settle(method_id, tag, flags) else {
                panic!("the frame is forwarded unchanged")
            };
            assert_eq!(raw[raw.len() - 2], 0, "the flag is cleared");
        }
        let events = rig.events();
        let requeue_count = events.iter().filter(|event| event.contains("requeue: true")).count();
        assert_eq!(requeue_count, 2);
    }

    #[test]
    fn auto_ack_is_reported() {
        let mut rig = test_conversation();
        rig.consume(CONSUME_NO_ACK);
        rig.deliver(1, "a");
        assert_eq!(rig.events()[1..], ["Delivered(a)", "AutoAcked(a)"]);
    }

    #[test]
    fn truncated_methods_are_ignored() {
        let mut rig = test_conversation();
        for method_id in [CONSUME, PUBLISH, GET, ACK, NACK, REJECT] {
            for length in 0..6 {
                let complete = method(method_id, &[&[0, 0, 200, 1, 2]]);
                rig.conversation.handle_worker_frame(&frame(1, &complete.payload()[..length]));
                rig.conversation.handle_broker_frame(&frame(1, &complete.payload()[..length]));
            }
        }
    }
}
