//! Inspects queues: how far the consumer groups of their workers lag behind, and how many members
//! these have.

use super::client::{ClientConfigs, EventContext, explain};
use super::cluster::is_missing_topic_code;
use bus::KafkaSection;
use bus::QueueStatus;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::topic_partition_list::Offset;
use std::sync::Arc;

/// Returns the statuses of queues, in the same order. Each is inspected over its own client,
/// because inspections are rare and must not disturb the event loop.
pub(super) async fn inspect(section: Arc<KafkaSection>, queues: Vec<Arc<str>>) -> Vec<QueueStatus> {
    let queue_count = queues.len();
    let inspection = actix_rt::task::spawn_blocking(move || {
        let inspect =
            |queue: &Arc<str>| inspect_queue(&section, queue).unwrap_or_else(QueueStatus::Unknown);
        queues.iter().map(inspect).collect()
    });
    // An error means that the inspection panicked.
    let statuses = inspection.await;
    statuses.unwrap_or_else(|error| vec![QueueStatus::Unknown(error.to_string()); queue_count])
}

/// Returns the status of one queue. Blocks until the brokers answer.
fn inspect_queue(section: &KafkaSection, queue: &str) -> Result<QueueStatus, String> {
    let (topic, group) = (section.topic(queue), section.group(queue));
    let timeout = section.request_timeout.0;
    let config = ClientConfigs::new(section).consumer_config(&group);
    let consumer: BaseConsumer<EventContext> = config
        .create_with_context(EventContext::without_listener())
        .map_err(|error| explain(&error))?;
    let metadata = consumer.fetch_metadata(Some(&topic), timeout);
    let metadata = metadata.map_err(|error| explain(&error))?;
    let topic_metadata = metadata.topics().iter().find(|metadata| metadata.name() == topic);
    let Some(topic_metadata) = topic_metadata else { return Ok(QueueStatus::Missing) };
    match topic_metadata.error().map(RDKafkaErrorCode::from) {
        Some(code) if is_missing_topic_code(code) => return Ok(QueueStatus::Missing),
        Some(RDKafkaErrorCode::NoError) | None => {}
        Some(code) => return Err(code.to_string()),
    }
    let partitions = i32::try_from(topic_metadata.partitions().len()).unwrap_or(i32::MAX);
    let mut all_partitions = TopicPartitionList::new();
    for partition in 0..partitions {
        all_partitions.add_partition(&topic, partition);
    }
    let committed_offsets =
        consumer.committed_offsets(all_partitions, timeout).map_err(|error| explain(&error))?;
    let mut lag = 0;
    for partition in 0..partitions {
        let watermarks = consumer.fetch_watermarks(&topic, partition, timeout);
        let (low, high) = watermarks.map_err(|error| explain(&error))?;
        let committed_partition = committed_offsets.find_partition(&topic, partition);
        let committed_offset = match committed_partition.map(|element| element.offset()) {
            Some(Offset::Offset(offset)) => offset.clamp(low, high),
            // No offset was committed, so all messages wait.
            Some(
                Offset::Beginning
                | Offset::End
                | Offset::Stored
                | Offset::Invalid
                | Offset::OffsetTail(_),
            )
            | None => low,
        };
        lag += high - committed_offset;
    }
    let groups = consumer.fetch_group_list(Some(&group), timeout);
    let groups = groups.map_err(|error| explain(&error))?;
    let group_info = groups.groups().iter().find(|info| info.name() == group);
    let consumers = group_info.map_or(0, |info| info.members().len());
    Ok(QueueStatus::Exists {
        messages: u32::try_from(lag).unwrap_or(u32::MAX),
        unacknowledged: None,
        consumers: u32::try_from(consumers).unwrap_or(u32::MAX),
        is_full: false,
    })
}
