//! Reads the reply topic: records become deliveries, and settlements become offsets.

use super::client::{Configs, Context, Ending, explain};
use super::cluster::is_of_topic;
use super::record::{Record, Said, Unreadable};
use super::topic::Topic;
use super::window::{Begin, Window};
use crate::bus::{BusEvent, Delivery, EventSink, Position, Settled, Settlement, Verdict};
use crate::settings::KafkaSection;
use futures_util::FutureExt;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::Offset;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::mpsc;

/// How many records are taken before anything else is handled.
const TAKEN_MAX: usize = 64;

type Client = Ending<StreamConsumer<Context>>;

/// An event of the consumer.
pub(super) enum Heard {
    /// Records, in order.
    Records(Vec<Record>),
    /// All records of this partition have been read.
    End(i32),
    /// The topic has changed.
    Changed(String),
    /// The topic lacks the next record to be read, or a broker says so. The library stops reading.
    Stopped(String),
    /// Another error, after which the library retries by itself.
    Trouble(String),
}

/// A record that is not settled.
struct Kept {
    partition: i32,
    offset: i64,
    said: Said,
}

/// Reads the reply topic, over any number of connections.
pub(super) struct Reader {
    section: Arc<KafkaSection>,
    topic: Arc<str>,
    sink: EventSink,
    consumer: Rc<Client>,
    context: Context,
    windows: BTreeMap<i32, Window>,
    /// Whether the consumer reads the partitions in `windows`.
    pub(super) is_assigned: bool,
    /// How far partitions were read that ended before that at the last check.
    suspects: BTreeMap<i32, i64>,
    /// The offsets in the journal at which reading continues, of partitions that were not seen yet.
    known: BTreeMap<i32, i64>,
    kept: HashMap<u64, Kept>,
    bytes: usize,
    tags: u64,
    /// Counts how often the topic was recreated. Commands for records of earlier epochs are void.
    epoch: u64,
    settle: mpsc::UnboundedSender<Settled>,
    pub(super) verdicts: mpsc::UnboundedReceiver<Settled>,
    /// The ends that were seen when the bus connected, of partitions that are not settled up to
    /// them.
    goals: BTreeMap<i32, i64>,
}

impl Reader {
    pub(super) fn new(
        section: Arc<KafkaSection>,
        positions: &[Position],
        sink: EventSink,
        context: Context,
    ) -> Result<Reader, String> {
        let consumer = consumer(&section, &context)?;
        let topic: Arc<str> = section.reply_topic.as_str().into();
        let of_replies = positions.iter().filter(|position| position.topic == topic);
        let (settle, verdicts) = mpsc::unbounded_channel();
        Ok(Reader {
            known: of_replies.map(|position| (position.partition, position.offset)).collect(),
            section,
            topic,
            sink,
            consumer,
            context,
            windows: BTreeMap::new(),
            is_assigned: false,
            suspects: BTreeMap::new(),
            kept: HashMap::new(),
            bytes: 0,
            tags: 0,
            epoch: 0,
            settle,
            verdicts,
            goals: BTreeMap::new(),
        })
    }

    /// Reads the existing topic from where reading stopped. Returns `true` if records are lost that
    /// were to be read.
    pub(super) fn found(&mut self, topic: &Topic) -> Result<bool, String> {
        let (mut is_lost, mut is_news) = (false, !self.is_assigned);
        for (partition, (low, high)) in &topic.ends {
            let known = match self.windows.get(partition) {
                Some(window) => Some(window.next()),
                None => self.known.remove(partition),
            };
            let is_doubtful = self.is_doubtful(*partition, known, *high);
            let begin = match Begin::of(known, *low, *high) {
                Begin::Lost(at) if is_doubtful => Begin::At(known.unwrap_or(at)),
                begin @ (Begin::At(_) | Begin::Lost(_)) => begin,
            };
            match begin {
                Begin::At(_) if self.windows.contains_key(partition) => {}
                Begin::At(at) => {
                    is_news = true;
                    self.windows.insert(*partition, Window::new(at, known.is_some()));
                }
                Begin::Lost(at) => {
                    tracing::warn!(
                        topic = &*self.topic,
                        partition,
                        position = known,
                        first = low,
                        end = high,
                        "replies are lost: the topic no longer has what was to be read next. \
                         It was made anew, or did not keep replies for long enough"
                    );
                    (is_lost, is_news) = (true, true);
                    self.windows.insert(*partition, Window::new(at, false));
                }
            }
        }
        if is_lost {
            self.forget();
            // The client knows only the lost topic.
            self.consumer = consumer(&self.section, &self.context)?;
        }
        if is_news {
            self.assign()?;
        }
        Ok(is_lost)
    }

    /// Returns whether an end of a partition before what was read may be outdated. It counts if it
    /// is still there at the next check.
    fn is_doubtful(&mut self, partition: i32, known: Option<i64>, high: i64) -> bool {
        let Some(known) = known.filter(|known| *known > high) else {
            self.suspects.remove(&partition);
            return false;
        };
        let before = self.suspects.insert(partition, known);
        before.is_none_or(|before| before <= high)
    }

    /// Handles a missing topic. Returns `true` if it had records that were to be read.
    pub(super) fn missing(&mut self) -> Result<bool, String> {
        let had = |position: i64| position > 0;
        let is_lost = self.windows.values().any(|window| had(window.next()))
            || self.known.values().any(|known| had(*known));
        self.windows.clear();
        self.known.clear();
        self.forget();
        self.pause();
        self.consumer = consumer(&self.section, &self.context)?;
        Ok(is_lost)
    }

    /// Stops reading until the topic is found again.
    pub(super) fn pause(&mut self) {
        if std::mem::take(&mut self.is_assigned)
            && let Some(consumer) = self.consumer.get()
            && let Err(error) = consumer.unassign()
        {
            tracing::debug!(%error, "the reply topic is not given up");
        }
    }

    /// Makes commands for the records read so far void.
    fn forget(&mut self) {
        self.epoch += 1;
        self.suspects.clear();
        self.kept.clear();
        self.bytes = 0;
    }

    fn assign(&mut self) -> Result<(), String> {
        let Some(consumer) = self.consumer.get() else { return Ok(()) };
        let mut list = TopicPartitionList::new();
        for (partition, window) in &self.windows {
            let at = Offset::Offset(window.next());
            let added = list.add_partition_offset(&self.topic, *partition, at);
            added.map_err(|error| explain(&error))?;
        }
        consumer.assign(&list).map_err(|error| explain(&error))?;
        self.is_assigned = true;
        let positions = self.windows.iter().map(|(partition, window)| (partition, window.next()));
        let positions: BTreeMap<_, _> = positions.collect();
        tracing::info!(topic = &*self.topic, ?positions, "reading replies");
        Ok(())
    }

    /// Starts to catch up: all that is in the topic now is read before a missing reply counts as
    /// not sent.
    pub(super) fn catch_up(&mut self, topic: &Topic) {
        self.goals = topic.ends.iter().map(|(partition, (_, high))| (*partition, *high)).collect();
        self.reach_goals();
    }

    /// Returns whether catching up is done.
    pub(super) fn has_caught_up(&self) -> bool {
        self.goals.is_empty()
    }

    fn reach_goals(&mut self) {
        let Reader { goals, windows, .. } = self;
        goals.retain(|partition, goal| {
            windows.get(partition).is_some_and(|window| window.position() < *goal)
        });
    }

    /// Returns whether there is room for more records.
    pub(super) fn has_room(&self) -> bool {
        self.kept.len() < self.section.prefetch && self.bytes <= self.section.replies_bytes_max
    }

    /// Waits for the next event of the consumer. Dropping the future loses nothing.
    pub(super) fn next(&self) -> impl Future<Output = Heard> + use<> {
        let consumer = self.consumer.clone();
        async move {
            let Some(consumer) = consumer.get() else { return std::future::pending().await };
            let first = consumer.recv().await.map(|message| Record::of(&message));
            let mut records = match first {
                Ok(record) => vec![record],
                Err(error) => return heard(&error),
            };
            // An error that is taken here occurs again, or is the end of a partition.
            while records.len() < TAKEN_MAX {
                let Some(Ok(message)) = consumer.recv().now_or_never() else { break };
                records.push(Record::of(&message));
            }
            Heard::Records(records)
        }
    }

    /// Handles the end of a partition. The last offsets may belong to records that nobody reads.
    pub(super) fn ended(&mut self, partition: i32) {
        if self.windows.get(&partition).is_some_and(Window::is_settled) {
            self.goals.remove(&partition);
        }
    }

    /// Delivers a record to the manager.
    pub(super) fn deliver(&mut self, record: Record) {
        let Record { partition, offset, said } = record;
        let Some(window) = self.windows.get_mut(&partition) else { return };
        if !window.read(offset) {
            return;
        }
        match said {
            Ok(said) => {
                self.tags += 1;
                self.bytes += said.body.len();
                self.kept.insert(self.tags, Kept { partition, offset, said: said.clone() });
                self.hand_over(self.tags, said, false);
            }
            Err(Unreadable { reason, bytes }) => {
                window.settle(offset);
                (self.sink)(BusEvent::Unreadable {
                    queue: self.topic.clone(),
                    reason: format!("{reason} (partition {partition}, offset {offset})"),
                    correlation_id: None,
                    bytes,
                    is_kept: true,
                });
            }
        }
    }

    fn hand_over(&self, tag: u64, said: Said, redelivered: bool) {
        let Said { correlation_id, kind, attempt, body } = said;
        let settlement = Settlement::new(tag, self.epoch, self.settle.clone());
        let delivery = Delivery::new(correlation_id, body, settlement);
        (self.sink)(BusEvent::Reply(Delivery { kind, attempt, redelivered, ..delivery }));
    }

    /// Applies this command and all others that are ready.
    pub(super) fn settle(&mut self, first: Settled) {
        let mut next = Some(first);
        while let Some(Settled { tag, epoch, verdict, .. }) = next {
            if epoch == self.epoch {
                self.take(tag, verdict);
            }
            next = self.verdicts.try_recv().ok();
        }
        self.reach_goals();
    }

    fn take(&mut self, tag: u64, verdict: Verdict) {
        match verdict {
            Verdict::Ack => {
                let Some(Kept { partition, offset, said }) = self.kept.remove(&tag) else { return };
                self.bytes = self.bytes.saturating_sub(said.body.len());
                if let Some(window) = self.windows.get_mut(&partition) {
                    window.settle(offset);
                }
            }
            // The record is delivered again from memory. The offset does not pass it meanwhile.
            Verdict::Requeue => {
                if let Some(kept) = self.kept.get(&tag) {
                    self.hand_over(tag, kept.said.clone(), true);
                }
            }
        }
    }

    /// Reports the offsets that have changed.
    pub(super) fn tell_positions(&mut self) {
        for (partition, window) in &mut self.windows {
            if let Some(offset) = window.news() {
                let topic = self.topic.clone();
                let position = Position { topic, partition: *partition, offset };
                (self.sink)(BusEvent::Reached(position));
            }
        }
    }

    /// Returns how many records are not settled.
    pub(super) fn unsettled(&self) -> usize {
        self.kept.len()
    }
}

fn consumer(section: &KafkaSection, context: &Context) -> Result<Rc<Client>, String> {
    let config = Configs::of(section).consumer(&section.reply_topic);
    let consumer = config.create_with_context(context.clone());
    Ok(Rc::new(Ending::new(consumer.map_err(|error| explain(&error))?)))
}

#[allow(clippy::wildcard_enum_match_arm, reason = "the library's errors are non-exhaustive")]
fn heard(error: &KafkaError) -> Heard {
    use rdkafka::error::RDKafkaErrorCode::{AutoOffsetReset, OffsetOutOfRange};
    match error {
        KafkaError::PartitionEOF(partition) => Heard::End(*partition),
        error if is_of_topic(error) => Heard::Changed(explain(error)),
        error => match error.rdkafka_error_code() {
            Some(AutoOffsetReset | OffsetOutOfRange) => Heard::Stopped(explain(error)),
            _ => Heard::Trouble(explain(error)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{self, Heard};
    use super::*;

    const TOPIC: &str = "workflow-manager";

    /// Creates a reader with this offset in the journal.
    fn reader(position: i64, change: impl FnOnce(&mut KafkaSection)) -> (Reader, Heard) {
        let (sink, heard) = Heard::sink();
        let mut section = trial::section();
        change(&mut section);
        let known = [trial::position(TOPIC, position)];
        let reader = Reader::new(Arc::new(section), &known, sink, trial::context());
        (reader.expect("a client"), heard)
    }

    /// Creates the topic with one partition that has these records.
    fn topic(low: i64, high: i64) -> Topic {
        Topic { partitions: 1, ends: [(0, (low, high))].into(), ..Topic::default() }
    }

    fn deliver(reader: &mut Reader, offset: i64) {
        let said = Ok(Said { body: "{}".into(), ..Said::default() });
        reader.deliver(Record { partition: 0, offset, said });
    }

    /// Returns the replies and offsets that were reported.
    fn told(reader: &mut Reader, heard: &mut Heard) -> (Vec<Delivery>, Vec<i64>) {
        reader.tell_positions();
        let (mut replies, mut positions) = (Vec::new(), Vec::new());
        for event in heard.all() {
            if let BusEvent::Reached(position) = event {
                positions.push(position.offset);
            } else if let BusEvent::Reply(delivery) = event {
                replies.push(delivery);
            } else {
                panic!("{event:?}");
            }
        }
        (replies, positions)
    }

    fn settle(reader: &mut Reader) {
        let verdict = reader.verdicts.try_recv().expect("a verdict");
        reader.settle(verdict);
    }

    #[tokio::test]
    async fn an_end_before_what_was_read_counts_at_the_second_look() {
        let (mut reader, mut heard) = reader(10, |_| ());
        assert_eq!(reader.found(&topic(0, 9)), Ok(false), "what a broker tells may be old");
        assert_eq!(reader.found(&topic(0, 10)), Ok(false), "and so it was");
        assert_eq!(reader.found(&topic(0, 9)), Ok(false));
        assert_eq!(told(&mut reader, &mut heard).1, [0; 0]);
        assert_eq!(reader.found(&topic(0, 9)), Ok(true));
        assert_eq!(told(&mut reader, &mut heard).1, [0], "the topic is read from its beginning");
    }

    #[tokio::test]
    async fn a_log_that_begins_behind_the_position_has_lost_replies() {
        let (mut reader, mut heard) = reader(10, |_| ());
        assert_eq!(reader.found(&topic(20, 30)), Ok(true));
        assert_eq!(told(&mut reader, &mut heard).1, [20]);
        assert_eq!(reader.found(&topic(25, 30)), Ok(true), "and again");
    }

    #[tokio::test]
    async fn a_topic_that_is_not_there_has_lost_replies_if_it_ever_had_any() {
        assert_eq!(reader(10, |_| ()).0.missing(), Ok(true));
        let (mut fresh, _heard) = reader(0, |_| ());
        assert_eq!(fresh.missing(), Ok(false));
        assert_eq!(fresh.found(&topic(0, 0)), Ok(false));
        deliver(&mut fresh, 0);
        assert_eq!((fresh.missing(), fresh.missing()), (Ok(true), Ok(false)), "told once");
    }

    #[tokio::test]
    async fn a_reply_that_is_given_back_comes_again_and_no_position_passes_it() {
        let (mut reader, mut heard) = reader(0, |_| ());
        reader.found(&topic(0, 2)).expect("read");
        (0..2).for_each(|offset| deliver(&mut reader, offset));
        let (mut replies, positions) = told(&mut reader, &mut heard);
        assert_eq!((replies.len(), positions.len()), (2, 0));
        replies.pop().expect("the second").ack();
        drop(replies);
        settle(&mut reader);
        let (mut again, positions) = told(&mut reader, &mut heard);
        assert_eq!((again.len(), positions.len()), (1, 0));
        assert!(again[0].redelivered && &again[0].body[..] == b"{}");
        again.pop().expect("it").ack();
        settle(&mut reader);
        assert_eq!(told(&mut reader, &mut heard).1, [2]);
    }

    #[tokio::test]
    async fn no_more_is_read_than_there_is_room_for() {
        for (prefetch, bytes_max) in [(2, usize::MAX), (1_000, 3)] {
            let (mut reader, mut heard) = reader(0, |section| {
                (section.prefetch, section.replies_bytes_max) = (prefetch, bytes_max);
            });
            reader.found(&topic(0, 2)).expect("read");
            deliver(&mut reader, 0);
            assert!(reader.has_room());
            deliver(&mut reader, 1);
            assert!(!reader.has_room());
            told(&mut reader, &mut heard).0.pop().expect("a reply").ack();
            settle(&mut reader);
            assert!(reader.has_room());
        }
    }

    #[tokio::test]
    async fn what_lay_in_the_topic_is_read_before_anything_counts_as_late() {
        let (mut reader, mut heard) = reader(0, |_| ());
        reader.found(&topic(0, 2)).expect("read");
        reader.catch_up(&topic(0, 2));
        (0..2).for_each(|offset| deliver(&mut reader, offset));
        assert!(!reader.has_caught_up(), "the replies have no verdict");
        told(&mut reader, &mut heard).0.into_iter().for_each(Delivery::ack);
        settle(&mut reader);
        assert!(reader.has_caught_up());
        // The last offsets may belong to records that nobody reads: ends of transactions.
        reader.catch_up(&topic(0, 4));
        deliver(&mut reader, 2);
        reader.ended(0);
        assert!(!reader.has_caught_up());
        told(&mut reader, &mut heard).0.into_iter().for_each(Delivery::ack);
        settle(&mut reader);
        reader.ended(0);
        assert!(reader.has_caught_up());
    }
}
