//! Reads the reply topic. Turns records into deliveries, and settlements into offsets.

use super::client::{ClientConfigs, ClosedOnThread, EventContext, explain};
use super::cluster::is_missing_topic_error;
use super::record::{ReplyContent, ReplyRecord, UnreadableRecord};
use super::topic::TopicInfo;
use super::window::{PartitionWindow, StartOffset};
use bus::KafkaSection;
use bus::{BusEvent, Delivery, Disposition, EventSink, SettleCommand, Settlement, TopicOffset};
use futures_util::FutureExt;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::Offset;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The most records that are read before the event loop handles other events.
const RECORDS_PER_TURN: usize = 64;

type Client = ClosedOnThread<StreamConsumer<EventContext>>;

/// An event of the consumer.
pub(super) enum ReaderEvent {
    /// Records, in order.
    Records(Vec<ReplyRecord>),
    /// All records of this partition have been read.
    PartitionEnd(i32),
    /// The topic, or a partition of it, no longer exists. The field is the library's error.
    TopicChanged(String),
    /// The next offset is out of range, so the library stops reading. The field is its error.
    Stopped(String),
    /// Another error, after which the library retries on its own.
    Error(String),
}

/// A record that was delivered and is not settled. Its content is kept for a redelivery.
struct UnsettledRecord {
    partition: i32,
    offset: i64,
    content: ReplyContent,
}

/// Reads the reply topic. It outlives the connections to the brokers.
pub(super) struct ReplyReader {
    section: Arc<KafkaSection>,
    /// The reply topic.
    topic: Arc<str>,
    sink: EventSink,
    consumer: Rc<Client>,
    context: EventContext,
    /// The partitions whose start offsets are known, with their unsettled records.
    windows: BTreeMap<i32, PartitionWindow>,
    /// Whether the consumer reads the partitions in `windows`.
    pub(super) is_assigned: bool,
    /// Partitions that ended before the next offset to read at the last check, with that offset.
    suspected_losses: BTreeMap<i32, i64>,
    /// The journaled offsets at which reading continues, of partitions that are not in `windows`.
    journaled_offsets: BTreeMap<i32, i64>,
    /// The records that were delivered and are not settled, by delivery tag.
    unsettled: HashMap<u64, UnsettledRecord>,
    /// The sum of the sizes of their bodies.
    unsettled_bytes: usize,
    /// The last delivery tag that was assigned.
    last_tag: u64,
    /// Incremented when the unsettled records become void, because the topic, or unread records of
    /// one of its partitions, were lost. Commands for records of earlier epochs are ignored.
    epoch: u64,
    command_sender: mpsc::UnboundedSender<SettleCommand>,
    pub(super) commands: mpsc::UnboundedReceiver<SettleCommand>,
    /// The high watermarks from when the bus connected, by partition. A partition is removed once
    /// it is settled up to its watermark, or has been read to its end and is settled.
    catch_up_targets: BTreeMap<i32, i64>,
}

impl ReplyReader {
    pub(super) fn new(
        section: Arc<KafkaSection>,
        offsets: &[TopicOffset],
        sink: EventSink,
        context: EventContext,
    ) -> Result<ReplyReader, String> {
        let consumer = create_consumer(&section, &context)?;
        let topic: Arc<str> = section.reply_topic.as_str().into();
        let reply_offsets = offsets.iter().filter(|offset| offset.topic == topic);
        let (command_sender, commands) = mpsc::unbounded_channel();
        Ok(ReplyReader {
            journaled_offsets: reply_offsets
                .map(|offset| (offset.partition, offset.offset))
                .collect(),
            section,
            topic,
            sink,
            consumer,
            context,
            windows: BTreeMap::new(),
            is_assigned: false,
            suspected_losses: BTreeMap::new(),
            unsettled: HashMap::new(),
            unsettled_bytes: 0,
            last_tag: 0,
            epoch: 0,
            command_sender,
            commands,
            catch_up_targets: BTreeMap::new(),
        })
    }

    /// Handles a check that found the topic: reads each partition from its next offset. Returns
    /// `true` if unread records were lost.
    pub(super) fn handle_topic_found(&mut self, topic: &TopicInfo) -> Result<bool, String> {
        let (mut has_lost_records, mut must_assign) = (false, !self.is_assigned);
        for (partition, (low, high)) in &topic.watermarks {
            let next_offset = match self.windows.get(partition) {
                Some(window) => Some(window.next_offset()),
                None => self.journaled_offsets.remove(partition),
            };
            let is_doubtful = self.suspect_loss(*partition, next_offset, *high);
            let start = match StartOffset::from_watermarks(next_offset, *low, *high) {
                StartOffset::AfterLoss(low) if is_doubtful => {
                    StartOffset::At(next_offset.unwrap_or(low))
                }
                start @ (StartOffset::At(_) | StartOffset::AfterLoss(_)) => start,
            };
            match start {
                // The partition is read already, at its next offset.
                StartOffset::At(_) if self.windows.contains_key(partition) => {}
                StartOffset::At(offset) => {
                    must_assign = true;
                    let window = PartitionWindow::new(offset, next_offset.is_some());
                    self.windows.insert(*partition, window);
                }
                StartOffset::AfterLoss(offset) => {
                    tracing::warn!(
                        topic = &*self.topic,
                        partition,
                        position = next_offset,
                        first = low,
                        end = high,
                        "replies are lost: the topic no longer has what was to be read next. \
                         It was recreated, or did not keep replies for long enough"
                    );
                    (has_lost_records, must_assign) = (true, true);
                    self.windows.insert(*partition, PartitionWindow::new(offset, false));
                }
            }
        }
        if has_lost_records {
            self.void_unsettled();
            // The old client still has the lost topic in its cache.
            self.consumer = create_consumer(&self.section, &self.context)?;
        }
        if must_assign {
            self.assign()?;
        }
        Ok(has_lost_records)
    }

    /// Suspects a loss if a partition ends before the next offset to read. Returns `true` if this
    /// is the first such check: the high watermark may be outdated, and the next check decides.
    fn suspect_loss(&mut self, partition: i32, next_offset: Option<i64>, high: i64) -> bool {
        let Some(next_offset) = next_offset.filter(|offset| *offset > high) else {
            self.suspected_losses.remove(&partition);
            return false;
        };
        let suspected_offset = self.suspected_losses.insert(partition, next_offset);
        suspected_offset.is_none_or(|offset| offset <= high)
    }

    /// Handles a missing topic. Returns `true` if records may have been lost with it.
    pub(super) fn handle_topic_missing(&mut self) -> Result<bool, String> {
        let may_have_lost_records = self.windows.values().any(|window| window.next_offset() > 0)
            || self.journaled_offsets.values().any(|offset| *offset > 0);
        self.windows.clear();
        self.journaled_offsets.clear();
        self.void_unsettled();
        self.pause();
        self.consumer = create_consumer(&self.section, &self.context)?;
        Ok(may_have_lost_records)
    }

    /// Stops reading until the topic is found again.
    pub(super) fn pause(&mut self) {
        if std::mem::take(&mut self.is_assigned)
            && let Some(consumer) = self.consumer.get()
            && let Err(error) = consumer.unassign()
        {
            tracing::debug!(%error, "the reply topic cannot be unassigned");
        }
    }

    /// Drops the unsettled records and begins a new epoch, so that later commands for them are
    /// ignored.
    fn void_unsettled(&mut self) {
        self.epoch += 1;
        self.suspected_losses.clear();
        self.unsettled.clear();
        self.unsettled_bytes = 0;
    }

    /// Assigns the partitions in `windows` to the consumer, at their next offsets.
    fn assign(&mut self) -> Result<(), String> {
        let Some(consumer) = self.consumer.get() else { return Ok(()) };
        let mut assignment = TopicPartitionList::new();
        for (partition, window) in &self.windows {
            let offset = Offset::Offset(window.next_offset());
            assignment
                .add_partition_offset(&self.topic, *partition, offset)
                .map_err(|error| explain(&error))?;
        }
        consumer.assign(&assignment).map_err(|error| explain(&error))?;
        self.is_assigned = true;
        let positions: BTreeMap<i32, i64> = self
            .windows
            .iter()
            .map(|(partition, window)| (*partition, window.next_offset()))
            .collect();
        tracing::info!(topic = &*self.topic, ?positions, "reading replies");
        Ok(())
    }

    /// Starts to catch up: the bus counts as connected only once all records that the topic has now
    /// are settled.
    pub(super) fn start_catch_up(&mut self, topic: &TopicInfo) {
        self.catch_up_targets =
            topic.watermarks.iter().map(|(partition, (_, high))| (*partition, *high)).collect();
        self.update_catch_up();
    }

    /// Returns whether all records that the topic had when the bus connected are settled.
    pub(super) fn has_caught_up(&self) -> bool {
        self.catch_up_targets.is_empty()
    }

    /// Removes the targets that are reached.
    fn update_catch_up(&mut self) {
        let ReplyReader { catch_up_targets, windows, .. } = self;
        catch_up_targets.retain(|partition, target| {
            windows.get(partition).is_some_and(|window| window.settled_offset() < *target)
        });
    }

    /// Returns whether more records may be read, within the limits of unsettled ones.
    pub(super) fn has_capacity(&self) -> bool {
        self.unsettled.len() < self.section.prefetch
            && self.unsettled_bytes <= self.section.replies_bytes_max
    }

    /// Waits for the next event of the consumer. Is cancel-safe.
    pub(super) fn next_event(&self) -> impl Future<Output = ReaderEvent> + use<> {
        let consumer = self.consumer.clone();
        async move {
            let Some(consumer) = consumer.get() else { return std::future::pending().await };
            let first_record = consumer.recv().await.map(|message| ReplyRecord::parse(&message));
            let mut records = match first_record {
                Ok(record) => vec![record],
                Err(error) => return event_from_error(&error),
            };
            // An error may be dropped here: the library retries, and the next check of the topic
            // notices that it has changed or that reading has stopped. The end of a partition is
            // reported once for each position. It is needed only if control records are the last.
            while records.len() < RECORDS_PER_TURN {
                let Some(Ok(message)) = consumer.recv().now_or_never() else { break };
                records.push(ReplyRecord::parse(&message));
            }
            ReaderEvent::Records(records)
        }
    }

    /// Handles the end of a partition, which has caught up if no record is unsettled. Its settled
    /// offset may stay below the target, because the last offsets may belong to control records,
    /// which are never read.
    pub(super) fn handle_partition_end(&mut self, partition: i32) {
        if self.windows.get(&partition).is_some_and(PartitionWindow::is_settled) {
            self.catch_up_targets.remove(&partition);
        }
    }

    /// Delivers a record to the manager. A record that is unreadable is reported and settled at
    /// once; one that was read before is ignored.
    pub(super) fn deliver(&mut self, record: ReplyRecord) {
        let ReplyRecord { partition, offset, content } = record;
        let Some(window) = self.windows.get_mut(&partition) else { return };
        if !window.record_read(offset) {
            return;
        }
        match content {
            Ok(reply) => {
                self.last_tag += 1;
                self.unsettled_bytes += reply.body.len();
                self.unsettled.insert(
                    self.last_tag,
                    UnsettledRecord { partition, offset, content: reply.clone() },
                );
                self.report_delivery(self.last_tag, reply, false);
            }
            Err(UnreadableRecord { reason, bytes }) => {
                window.settle(offset);
                (self.sink)(BusEvent::Unreadable {
                    queue: self.topic.clone(),
                    reason: format!("{reason} (partition {partition}, offset {offset})"),
                    correlation_id: None,
                    bytes,
                    // The topic keeps the record, so it needs no other quarantine.
                    is_quarantined: true,
                });
            }
        }
    }

    fn report_delivery(&self, tag: u64, content: ReplyContent, is_redelivered: bool) {
        let settlement = Settlement::new(tag, self.epoch, self.command_sender.clone());
        let mut delivery = Delivery::new(content.correlation_id, content.body, settlement);
        delivery.kind = content.kind;
        delivery.attempt = content.attempt;
        delivery.redelivered = is_redelivered;
        (self.sink)(BusEvent::Reply(delivery));
    }

    /// Applies a command and all others that have arrived.
    pub(super) fn settle(&mut self, first_command: SettleCommand) {
        let mut next_command = Some(first_command);
        while let Some(SettleCommand { tag, epoch, disposition, .. }) = next_command {
            if epoch == self.epoch {
                self.apply_disposition(tag, disposition);
            }
            next_command = self.commands.try_recv().ok();
        }
        self.update_catch_up();
    }

    fn apply_disposition(&mut self, tag: u64, disposition: Disposition) {
        match disposition {
            Disposition::Ack => {
                let Some(record) = self.unsettled.remove(&tag) else { return };
                let body_bytes = record.content.body.len();
                self.unsettled_bytes = self.unsettled_bytes.saturating_sub(body_bytes);
                if let Some(window) = self.windows.get_mut(&record.partition) {
                    window.settle(record.offset);
                }
            }
            // The record is delivered again from memory. It stays unsettled, so the reported offset
            // does not pass it.
            Disposition::Requeue => {
                if let Some(record) = self.unsettled.get(&tag) {
                    self.report_delivery(tag, record.content.clone(), true);
                }
            }
        }
    }

    /// Reports the settled offsets that have changed.
    pub(super) fn report_offsets(&mut self) {
        for (partition, window) in &mut self.windows {
            if let Some(offset) = window.take_changed_offset() {
                let topic = self.topic.clone();
                let topic_offset = TopicOffset { topic, partition: *partition, offset };
                (self.sink)(BusEvent::OffsetReached(topic_offset));
            }
        }
    }

    /// Returns the number of unsettled records.
    pub(super) fn unsettled_count(&self) -> usize {
        self.unsettled.len()
    }
}

fn create_consumer(section: &KafkaSection, context: &EventContext) -> Result<Rc<Client>, String> {
    let config = ClientConfigs::new(section).consumer_config(&section.reply_topic);
    let consumer = config.create_with_context(context.clone());
    Ok(Rc::new(ClosedOnThread::new(consumer.map_err(|error| explain(&error))?)))
}

#[allow(clippy::wildcard_enum_match_arm, reason = "the library's errors are non-exhaustive")]
fn event_from_error(error: &KafkaError) -> ReaderEvent {
    use rdkafka::error::RDKafkaErrorCode::{AutoOffsetReset, OffsetOutOfRange};
    match error {
        KafkaError::PartitionEOF(partition) => ReaderEvent::PartitionEnd(*partition),
        error if is_missing_topic_error(error) => ReaderEvent::TopicChanged(explain(error)),
        error => match error.rdkafka_error_code() {
            Some(AutoOffsetReset | OffsetOutOfRange) => ReaderEvent::Stopped(explain(error)),
            _ => ReaderEvent::Error(explain(error)),
        },
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(
            reader.handle_topic_found(&topic(0, 9)),
            Ok(false),
            "a watermark may be outdated"
        );
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
        // The last offsets may belong to control records, which are never read.
        reader.start_catch_up(&topic(0, 4));
        deliver(&mut reader, 2);
        reader.handle_partition_end(0);
        assert!(!reader.has_caught_up());
        take_reported(&mut reader, &mut events).0.into_iter().for_each(Delivery::ack);
        settle(&mut reader);
        reader.handle_partition_end(0);
        assert!(reader.has_caught_up());
    }
}
