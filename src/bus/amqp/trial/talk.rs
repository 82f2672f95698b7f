//! Follows what a worker and the broker exchange on one connection: which message was delivered,
//! which reply was published and confirmed, what was acknowledged or rejected. Applies the test's
//! interventions.

use super::super::wire::{Property, property};
use super::frames::{Frame, Kind};
use super::heard::Heard;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::rc::Rc;
use tokio::sync::mpsc;

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

/// The point at which a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutAt {
    /// Before the reply reaches the broker.
    Reply,
    /// After the reply, and before the ack.
    Ack,
}

/// The queues that are followed.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    pub(super) queue: String,
    pub(super) reply_queue: String,
}

/// What the proxy must do to messages, on any connection, by their correlation ids.
#[derive(Default)]
pub(super) struct Orders {
    cut: RefCell<Option<(String, CutAt)>>,
    tamed: RefCell<HashSet<String>>,
}

impl Orders {
    pub(super) fn cut(&self, of: &str, at: CutAt) {
        *self.cut.borrow_mut() = Some((of.to_owned(), at));
    }

    pub(super) fn tame(&self, of: &str) {
        self.tamed.borrow_mut().insert(of.to_owned());
    }

    /// Returns whether the connection must be cut here. A cut happens once.
    fn take_cut(&self, of: &str, at: CutAt) -> bool {
        let is_it = |cut: &mut (String, CutAt)| cut.0 == of && cut.1 == at;
        self.cut.borrow_mut().take_if(is_it).is_some()
    }

    fn is_tamed(&self, of: &str) -> bool {
        self.tamed.borrow().contains(of)
    }
}

/// What happens to a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass,
    /// This frame is forwarded in its place.
    Change(Vec<u8>),
    /// The connection is cut, and nothing more is forwarded.
    Cut,
}

/// Follows one connection.
pub(super) struct Talk {
    watched: Watched,
    orders: Rc<Orders>,
    heard: mpsc::UnboundedSender<Heard>,
    channels: HashMap<u16, Channel>,
}

#[derive(Default)]
struct Channel {
    confirms: bool,
    /// How many messages were published since confirms were enabled.
    published: u64,
    unconfirmed: BTreeMap<u64, String>,
    given: BTreeMap<u64, String>,
    /// Consumes without a reply yet, each with whether it acknowledges automatically.
    consuming: VecDeque<bool>,
    /// The tags of consumers with automatic acknowledgement.
    unseen: HashSet<Vec<u8>>,
    gets_unseen: bool,
    /// A publish whose header follows: whether it goes to the reply queue.
    going: Option<bool>,
    /// A delivery whose header follows: its tag, and whether it is acknowledged automatically.
    coming: Option<(u64, bool)>,
}

impl Talk {
    pub(super) fn new(
        watched: Watched,
        orders: Rc<Orders>,
        heard: mpsc::UnboundedSender<Heard>,
    ) -> Talk {
        Talk { watched, orders, heard, channels: HashMap::new() }
    }

    fn tell(heard: &mpsc::UnboundedSender<Heard>, what: Heard) {
        // The receiver ends with the stub manager.
        let _ = heard.send(what);
    }

    fn channel(&mut self, number: u16) -> Option<&mut Channel> {
        if self.channels.len() >= CHANNELS_MAX && !self.channels.contains_key(&number) {
            return None;
        }
        Some(self.channels.entry(number).or_default())
    }

    /// Handles a frame from the worker.
    pub(super) fn of_worker(&mut self, frame: &Frame) -> Verdict {
        let (watched, orders, heard) =
            (self.watched.clone(), self.orders.clone(), self.heard.clone());
        let Some(channel) = self.channel(frame.channel()) else { return Verdict::Pass };
        match frame.kind() {
            Kind::Header => {
                let Some(is_reply) = channel.going.take() else { return Verdict::Pass };
                let text = |wanted| property(frame.payload(), wanted).unwrap_or_default();
                let of = text(Property::CorrelationId).into_owned();
                let is_last = text(Property::Type) != "progress";
                if is_reply && is_last && orders.take_cut(&of, CutAt::Reply) {
                    Talk::tell(&heard, Heard::Cut(of));
                    return Verdict::Cut;
                }
                if channel.confirms {
                    channel.published += 1;
                    if is_reply && is_last && channel.unconfirmed.len() < FOLLOWED_MAX {
                        channel.unconfirmed.insert(channel.published, of.clone());
                    }
                }
                if is_reply && is_last {
                    Talk::tell(&heard, Heard::Published(of));
                }
                Verdict::Pass
            }
            Kind::Method => channel.method_of_worker(frame, &watched, &orders, &heard),
            Kind::Greeting | Kind::Body | Kind::Other => Verdict::Pass,
        }
    }

    /// Handles a frame from the broker.
    pub(super) fn of_broker(&mut self, frame: &Frame) {
        let heard = self.heard.clone();
        let Some(channel) = self.channel(frame.channel()) else { return };
        match frame.kind() {
            Kind::Header => {
                let Some((tag, is_unseen)) = channel.coming.take() else { return };
                let of = property(frame.payload(), Property::CorrelationId).unwrap_or_default();
                let of = of.into_owned();
                Talk::tell(&heard, Heard::Given(of.clone()));
                if is_unseen {
                    Talk::tell(&heard, Heard::AckedUnseen(of));
                } else if channel.given.len() < FOLLOWED_MAX {
                    channel.given.insert(tag, of);
                }
            }
            Kind::Method => channel.method_of_broker(frame, &heard),
            Kind::Greeting | Kind::Body | Kind::Other => {}
        }
    }
}

impl Channel {
    fn method_of_worker(
        &mut self,
        frame: &Frame,
        watched: &Watched,
        orders: &Orders,
        heard: &mpsc::UnboundedSender<Heard>,
    ) -> Verdict {
        let Some((method, fields)) = frame.payload().split_first_chunk::<4>() else {
            return Verdict::Pass;
        };
        let mut fields = Fields(fields);
        match *method {
            CHANNEL_OPEN => *self = Channel::default(),
            CONFIRM_SELECT => self.confirms = true,
            PUBLISH => {
                // A reserved number, the exchange and the routing key.
                fields.skip(2);
                let is_default = fields.text().is_empty();
                self.going = Some(is_default && fields.text() == watched.reply_queue.as_bytes());
            }
            CONSUME => {
                fields.skip(2);
                let queue = fields.text();
                let tag = fields.text().to_vec();
                let bits = fields.byte();
                let is_unseen = bits & 0b10 != 0;
                if bits & 0b1000 == 0 && self.consuming.len() < FOLLOWED_MAX {
                    self.consuming.push_back(is_unseen);
                } else if is_unseen && self.unseen.len() < FOLLOWED_MAX {
                    self.unseen.insert(tag);
                }
                if queue == watched.queue.as_bytes() {
                    Talk::tell(heard, Heard::Came);
                }
            }
            GET => {
                fields.skip(2);
                if fields.text() == watched.queue.as_bytes() {
                    Talk::tell(heard, Heard::Came);
                }
                self.gets_unseen = fields.byte() & 1 != 0;
            }
            ACK => {
                let settled = self.settled(fields.number(), fields.byte() & 1 != 0);
                if let Some(of) = settled.iter().find(|of| orders.take_cut(of, CutAt::Ack)) {
                    Talk::tell(heard, Heard::Cut(of.clone()));
                    return Verdict::Cut;
                }
                settled.into_iter().for_each(|of| Talk::tell(heard, Heard::Acked(of)));
            }
            REJECT | NACK => {
                let (tag, bits) = (fields.number(), fields.byte());
                let requeues = if *method == NACK { 0b10 } else { 1 };
                let is_multiple = *method == NACK && bits & 1 != 0;
                let settled = self.settled(tag, is_multiple);
                let is_tamed = settled.iter().any(|of| orders.is_tamed(of));
                let requeue = bits & requeues != 0 && !is_tamed;
                settled.into_iter().for_each(|of| Talk::tell(heard, Heard::Nacked { of, requeue }));
                if is_tamed && bits & requeues != 0 {
                    let mut raw = frame.raw.clone();
                    // The byte of the flags precedes the end of the frame.
                    if let [.., flags, _] = raw.as_mut_slice() {
                        *flags &= !requeues;
                    }
                    return Verdict::Change(raw);
                }
            }
            _ => {}
        }
        Verdict::Pass
    }

    fn method_of_broker(&mut self, frame: &Frame, heard: &mpsc::UnboundedSender<Heard>) {
        let Some((method, fields)) = frame.payload().split_first_chunk::<4>() else { return };
        let mut fields = Fields(fields);
        match *method {
            CONSUME_OK => {
                let is_unseen = self.consuming.pop_front() == Some(true);
                if is_unseen && self.unseen.len() < FOLLOWED_MAX {
                    self.unseen.insert(fields.text().to_vec());
                }
            }
            DELIVER => {
                let is_unseen = self.unseen.contains(fields.text());
                self.coming = Some((fields.number(), is_unseen));
            }
            GET_OK => self.coming = Some((fields.number(), self.gets_unseen)),
            ACK => {
                let (tag, is_multiple) = (fields.number(), fields.byte() & 1 != 0);
                let confirmed = taken(&mut self.unconfirmed, tag, is_multiple);
                confirmed.into_iter().for_each(|of| Talk::tell(heard, Heard::Confirmed(of)));
            }
            _ => {}
        }
    }

    fn settled(&mut self, tag: u64, is_multiple: bool) -> Vec<String> {
        taken(&mut self.given, tag, is_multiple)
    }
}

/// Removes what a tag stands for: one message, or all up to it; 0 with `is_multiple` is all.
fn taken(from: &mut BTreeMap<u64, String>, tag: u64, is_multiple: bool) -> Vec<String> {
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
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn skip(&mut self, count: usize) {
        self.take(count);
    }

    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or_default()
    }

    fn number(&mut self) -> u64 {
        self.take(8).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn text(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte());
        self.take(length)
    }
}

#[cfg(test)]
mod tests {
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

    struct Rig {
        talk: Talk,
        orders: Rc<Orders>,
        heard: mpsc::UnboundedReceiver<Heard>,
    }

    fn rig() -> Rig {
        let (tell, heard) = mpsc::unbounded_channel();
        let orders = Rc::new(Orders::default());
        let watched = Watched { queue: "q".to_owned(), reply_queue: "r".to_owned() };
        Rig { talk: Talk::new(watched, orders.clone(), tell), orders, heard }
    }

    impl Rig {
        fn heard(&mut self) -> Vec<String> {
            std::iter::from_fn(|| self.heard.try_recv().ok())
                .map(|what| format!("{what:?}"))
                .collect()
        }

        fn consume(&mut self, bits: u8) {
            self.talk.of_worker(&method(CONSUME, &[&[0, 0], &text("q"), &text(""), &[bits]]));
            self.talk.of_broker(&method(CONSUME_OK, &[&text("tag")]));
        }

        fn deliver(&mut self, tag: u8, of: &str) {
            let number = [0, 0, 0, 0, 0, 0, 0, tag];
            let fields = [&text("tag"), &number[..], &[0], &text(""), &text("q")];
            self.talk.of_broker(&method(DELIVER, &fields));
            self.talk.of_broker(&header(of));
        }

        fn publish(&mut self, key: &str, of: &str) -> Verdict {
            let fields = [&[0, 0][..], &text(""), &text(key), &[0]];
            assert_eq!(self.talk.of_worker(&method(PUBLISH, &fields)), Verdict::Pass);
            self.talk.of_worker(&header(of))
        }

        fn settle(&mut self, name: [u8; 4], tag: u8, bits: u8) -> Verdict {
            self.talk.of_worker(&method(name, &[&[0, 0, 0, 0, 0, 0, 0, tag], &[bits]]))
        }
    }

    #[test]
    fn the_order_of_publish_confirm_and_ack_is_heard() {
        let mut rig = rig();
        rig.talk.of_worker(&method(CONFIRM_SELECT, &[&[0]]));
        rig.consume(0);
        rig.deliver(1, "a");
        rig.deliver(2, "b");
        assert_eq!(rig.publish("elsewhere", "a"), Verdict::Pass);
        rig.publish("r", "a");
        rig.publish("r", "b");
        rig.talk.of_broker(&method(ACK, &[&[0, 0, 0, 0, 0, 0, 0, 3], &[1]]));
        assert_eq!(rig.settle(ACK, 2, 1), Verdict::Pass);
        let heard = rig.heard();
        assert_eq!(
            heard.join(" "),
            "Came Given(\"a\") Given(\"b\") Published(\"a\") \
                                     Published(\"b\") Confirmed(\"a\") Confirmed(\"b\") \
                                     Acked(\"a\") Acked(\"b\")"
        );
    }

    #[test]
    fn a_connection_is_cut_once_at_the_reply_or_at_the_ack() {
        let mut rig = rig();
        rig.consume(0);
        rig.deliver(1, "a");
        rig.orders.cut("a", CutAt::Reply);
        assert_eq!(rig.publish("r", "b"), Verdict::Pass);
        assert_eq!(rig.publish("r", "a"), Verdict::Cut);
        assert_eq!(rig.publish("r", "a"), Verdict::Pass);
        rig.orders.cut("a", CutAt::Ack);
        assert_eq!(rig.publish("r", "a"), Verdict::Pass);
        assert_eq!(rig.settle(ACK, 1, 0), Verdict::Cut);
    }

    #[test]
    fn a_tamed_message_is_refused_where_it_was_put_back() {
        let mut rig = rig();
        rig.consume(0);
        for (tag, name, bits, tamed) in [(1, NACK, 0b10, 0), (2, REJECT, 1, 0)] {
            rig.deliver(tag, "a");
            rig.orders.tame("b");
            assert_eq!(rig.settle(name, tag, bits), Verdict::Pass);
            rig.deliver(tag, "b");
            let Verdict::Change(raw) = rig.settle(name, tag, bits) else { panic!("not changed") };
            assert_eq!(raw[raw.len() - 2], tamed);
        }
        let nacks = rig.heard().iter().filter(|what| what.contains("requeue: true")).count();
        assert_eq!(nacks, 2);
    }

    #[test]
    fn automatic_acknowledgement_is_heard() {
        let mut rig = rig();
        rig.consume(0b10);
        rig.deliver(1, "a");
        assert_eq!(rig.heard()[1..], ["Given(\"a\")", "AckedUnseen(\"a\")"]);
    }

    #[test]
    fn half_a_method_breaks_nothing() {
        let mut rig = rig();
        for name in [CONSUME, PUBLISH, GET, ACK, NACK, REJECT] {
            for length in 0..6 {
                let whole = method(name, &[&[0, 0, 200, 1, 2]]);
                rig.talk.of_worker(&frame(1, &whole.payload()[..length]));
                rig.talk.of_broker(&frame(1, &whole.payload()[..length]));
            }
        }
    }
}
