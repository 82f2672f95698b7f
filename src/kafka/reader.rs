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

/// What the consumer has read: records, in order, and what ended them, if anything did. There is at
/// least one of both.
pub(super) struct ReaderTurn {
    pub(super) records: Vec<ReplyRecord>,
    pub(super) event: Option<ReaderEvent>,
}

/// An event of the consumer other than a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReaderEvent {
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
    /// The last delivery tag that was assigned. No tag is assigned twice, so commands for records
    /// that are void find none.
    last_tag: u64,
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
            command_sender,
            commands,
            catch_up_targets: BTreeMap::new(),
        })
    }

    /// Handles a check that found the topic: reads each partition from its next offset. Returns
    /// `true` if unread records were lost. Then the unsettled records of those partitions are void,
    /// and no others.
    pub(super) fn handle_topic_found(&mut self, topic: &TopicInfo) -> Result<bool, String> {
        let (mut lost_partitions, mut must_assign) = (Vec::new(), !self.is_assigned);
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
                    must_assign = true;
                    lost_partitions.push(*partition);
                    self.windows.insert(*partition, PartitionWindow::new(offset, false));
                }
            }
        }
        let has_lost_records = !lost_partitions.is_empty();
        if has_lost_records {
            self.void_unsettled(|partition| lost_partitions.contains(&partition));
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
        self.void_unsettled(|_| true);
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

    /// Drops the unsettled records of lost partitions. Later commands for them are ignored.
    fn void_unsettled(&mut self, is_lost: impl Fn(i32) -> bool) {
        self.suspected_losses.retain(|partition, _| !is_lost(*partition));
        self.unsettled.retain(|_, record| !is_lost(record.partition));
        self.unsettled_bytes =
            self.unsettled.values().map(|record| record.content.body.len()).sum();
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

    /// Waits for what the consumer reads next. Is cancel-safe.
    pub(super) fn next_turn(&self) -> impl Future<Output = ReaderTurn> + use<> {
        let consumer = self.consumer.clone();
        async move {
            let Some(consumer) = consumer.get() else { return std::future::pending().await };
            read_turn(async || consumer.recv().await.map(|message| ReplyRecord::parse(&message)))
                .await
        }
    }

    /// Handles the end of a partition: all its records have been read, so it has caught up once
    /// those are settled. Its settled offset may stay below the high watermark, because the last
    /// offsets may belong to control records, which are never read. The library reports the end
    /// once for each position.
    pub(super) fn handle_partition_end(&mut self, partition: i32) {
        if let Some(window) = self.windows.get(&partition)
            && let Some(target) = self.catch_up_targets.get_mut(&partition)
        {
            *target = window.next_offset().min(*target);
        }
        self.update_catch_up();
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
        // The tags suffice: no epoch is needed.
        let settlement = Settlement::new(tag, 0, self.command_sender.clone());
        let mut delivery = Delivery::new(content.correlation_id, content.body, settlement);
        delivery.kind = content.kind;
        delivery.attempt = content.attempt;
        delivery.redelivered = is_redelivered;
        (self.sink)(BusEvent::Reply(delivery));
    }

    /// Applies a command and all others that have arrived.
    pub(super) fn settle(&mut self, first_command: SettleCommand) {
        let mut next_command = Some(first_command);
        while let Some(SettleCommand { tag, disposition, .. }) = next_command {
            self.apply_disposition(tag, disposition);
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

/// Waits for the first record or event, and takes with it the records that are there, up to
/// [`RECORDS_PER_TURN`], and the event behind them. The library may report an event only once.
async fn read_turn(mut read: impl AsyncFnMut() -> Result<ReplyRecord, KafkaError>) -> ReaderTurn {
    let mut turn = ReaderTurn { records: Vec::new(), event: None };
    let mut next = Some(read().await);
    while let Some(result) = next {
        match result {
            Ok(record) => turn.records.push(record),
            Err(error) => {
                turn.event = Some(event_from_error(&error));
                break;
            }
        }
        let has_room = turn.records.len() < RECORDS_PER_TURN;
        next = has_room.then(|| read().now_or_never()).flatten();
    }
    turn
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
mod tests;
