//! Inspects and creates topics. Blocking calls of the library run on the blocking thread pool.

use super::client::{ClientConfigs, ClosedOnThread, EventContext, explain};
use super::topic::{TopicInfo, TopicRetention, TopicStatus, retention_for};
use bus::KafkaSection;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The number of partitions of the reply topic. One process reads it, so one suffices.
const REPLY_TOPIC_PARTITIONS: i32 = 1;

/// What to inspect of a topic.
#[derive(Clone, Debug)]
pub(super) struct TopicQuery {
    pub(super) topic: String,
    /// The partitions whose watermarks are needed; `None`: all.
    pub(super) watermark_partitions: Option<Vec<i32>>,
}

/// Inspects and creates topics over its own client. Clones share that client.
#[derive(Clone)]
pub(super) struct TopicAdmin(Arc<ClosedOnThread<AdminClient<EventContext>>>);

impl TopicAdmin {
    pub(super) fn new(section: &KafkaSection, context: EventContext) -> Result<TopicAdmin, String> {
        let config: ClientConfig = ClientConfigs::new(section).admin_config();
        let admin = config.create_with_context(context).map_err(|error| explain(&error))?;
        Ok(TopicAdmin(Arc::new(ClosedOnThread::new(admin))))
    }

    /// Returns the status of these topics, in the same order.
    ///
    /// # Errors
    ///
    /// Returns an error if the brokers do not answer.
    pub(super) async fn inspect_topics(
        &self,
        queries: Vec<TopicQuery>,
        timeout: Duration,
    ) -> Result<Vec<TopicStatus>, String> {
        let admin = self.clone();
        let moved_queries = queries.clone();
        let inspection = actix_rt::task::spawn_blocking(move || {
            let inspect = |query: &TopicQuery| admin.inspect_topic(query, timeout);
            moved_queries.iter().map(inspect).collect::<Result<Vec<_>, String>>()
        });
        let mut statuses = inspection.await.map_err(|error| error.to_string())??;
        let topics = queries.iter().zip(&mut statuses).filter_map(|(query, status)| match status {
            TopicStatus::Exists(topic) => Some((query.topic.as_str(), topic)),
            TopicStatus::Missing | TopicStatus::Refused(_) => None,
        });
        self.load_retention(topics.collect(), timeout).await;
        Ok(statuses)
    }

    /// Returns the status of a topic, with an unknown retention. Blocks until the brokers answer.
    fn inspect_topic(&self, query: &TopicQuery, timeout: Duration) -> Result<TopicStatus, String> {
        let Some(admin) = self.0.get() else { return Err("the client has ended".to_owned()) };
        let (client, name) = (admin.inner(), query.topic.as_str());
        let metadata = client.fetch_metadata(Some(name), timeout);
        let metadata = metadata.map_err(|error| explain(&error))?;
        let Some(topic) = metadata.topics().iter().find(|topic| topic.name() == name) else {
            return Ok(TopicStatus::Missing);
        };
        match topic.error().map(RDKafkaErrorCode::from) {
            None | Some(RDKafkaErrorCode::NoError | RDKafkaErrorCode::LeaderNotAvailable) => {}
            Some(
                RDKafkaErrorCode::UnknownTopicOrPartition
                | RDKafkaErrorCode::UnknownTopic
                | RDKafkaErrorCode::UnknownPartition,
            ) => return Ok(TopicStatus::Missing),
            Some(other) => return Ok(TopicStatus::Refused(other.to_string())),
        }
        let partitions = i32::try_from(topic.partitions().len()).unwrap_or(i32::MAX);
        if partitions == 0 {
            return Ok(TopicStatus::Missing);
        }
        let all_partitions = || (0..partitions).collect();
        let mut watermarks = BTreeMap::new();
        for partition in query.watermark_partitions.clone().unwrap_or_else(all_partitions) {
            if partition >= partitions {
                continue;
            }
            match client.fetch_watermarks(name, partition, timeout) {
                Ok(low_and_high) => drop(watermarks.insert(partition, low_and_high)),
                // The topic was deleted after its metadata was read.
                Err(error) if is_missing_topic_error(&error) => return Ok(TopicStatus::Missing),
                Err(error) => return Err(explain(&error)),
            }
        }
        Ok(TopicStatus::Exists(TopicInfo {
            partitions,
            watermarks,
            retention: TopicRetention::default(),
        }))
    }

    /// Loads the retention of topics. It stays unknown if the brokers refuse the request.
    async fn load_retention(&self, mut topics: Vec<(&str, &mut TopicInfo)>, timeout: Duration) {
        let Some(admin) = self.0.get() else { return };
        let resources: Vec<ResourceSpecifier<'_>> =
            topics.iter().map(|(name, _)| ResourceSpecifier::Topic(name)).collect();
        if resources.is_empty() {
            return;
        }
        let options = AdminOptions::new().request_timeout(Some(timeout));
        let configs = match admin.describe_configs(&resources, &options).await {
            Ok(configs) => configs,
            Err(error) => {
                let error = explain(&error);
                tracing::debug!(error, "the brokers do not report the retention of topics");
                return;
            }
        };
        for ((_, topic), config) in topics.iter_mut().zip(configs) {
            let Ok(config) = config else { continue };
            let find_value = |name: &str| config.get(name).and_then(|entry| entry.value.as_deref());
            topic.retention = TopicRetention::from_config(
                find_value("retention.ms"),
                find_value("cleanup.policy"),
            );
        }
    }

    /// Creates the reply topic, or the topic of a queue whose steps wait for a reply for up to
    /// `reply_timeout`. A topic that already exists counts as created.
    pub(super) async fn create_topic(
        &self,
        section: &KafkaSection,
        topic: &str,
        reply_timeout: Option<Duration>,
    ) -> Result<(), String> {
        let partitions =
            if topic == section.reply_topic { REPLY_TOPIC_PARTITIONS } else { section.partitions };
        let retention_ms =
            retention_for(section.retention.0, reply_timeout).as_millis().to_string();
        let message_bytes = section.message_bytes_max.to_string();
        let replication = TopicReplication::Fixed(section.replication);
        let mut new_topic =
            NewTopic::new(topic, partitions, replication).set("retention.ms", &retention_ms);
        // The manager limits replies itself, so that it can report which worker sent too much.
        if topic != section.reply_topic {
            new_topic = new_topic.set("max.message.bytes", &message_bytes);
        }
        let Some(admin) = self.0.get() else { return Err("the client has ended".to_owned()) };
        let timeout = Some(section.request_timeout.0);
        let options = AdminOptions::new().request_timeout(timeout).operation_timeout(timeout);
        // One topic is created, so there is one result.
        let results = admin.create_topics([&new_topic], &options).await;
        match results.map_err(|error| explain(&error))?.pop() {
            Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => Ok(()),
            Some(Err((_, code))) => Err(code.to_string()),
            Some(Ok(_)) | None => {
                tracing::info!(topic, partitions, retention_ms, "a topic is created");
                Ok(())
            }
        }
    }
}

/// Returns whether an error means that a topic, or a partition of it, does not exist.
pub(super) fn is_missing_topic_error(error: &KafkaError) -> bool {
    error.rdkafka_error_code().is_some_and(is_missing_topic_code)
}

/// Returns whether a code means that a topic, or a partition of it, does not exist.
pub(super) fn is_missing_topic_code(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::UnknownTopicOrPartition
            | RDKafkaErrorCode::UnknownTopic
            | RDKafkaErrorCode::UnknownPartition
    )
}

/// The result of inspecting all topics of a bus.
#[derive(Debug)]
pub struct TopicSurvey {
    /// Whether the reply topic exists.
    pub has_reply_topic: bool,
    /// The unusable topics, each with the reason.
    pub problems: Vec<(String, String)>,
    /// The queues whose topics do not exist.
    pub missing_queues: Vec<Arc<str>>,
}

/// Inspects the reply topic and the topics of queues, without side effects. `reply_timeouts` has
/// the queues, each with the longest time that its steps wait for a reply; `None`: no timeout is
/// set.
///
/// # Errors
///
/// Returns an error if the brokers do not answer.
pub async fn survey_topics(
    section: &KafkaSection,
    reply_timeouts: &BTreeMap<Arc<str>, Option<Duration>>,
) -> Result<TopicSurvey, String> {
    let admin = TopicAdmin::new(section, EventContext::without_listener())?;
    let queue_topics = reply_timeouts.keys().map(|queue| section.topic(queue));
    let topics = std::iter::once(section.reply_topic.clone()).chain(queue_topics);
    let to_query = |topic: String| TopicQuery { topic, watermark_partitions: Some(Vec::new()) };
    let mut statuses = admin
        .inspect_topics(topics.map(to_query).collect(), section.request_timeout.0)
        .await?
        .into_iter();
    let mut survey =
        TopicSurvey { has_reply_topic: true, problems: Vec::new(), missing_queues: Vec::new() };
    match statuses.next() {
        Some(TopicStatus::Refused(reason)) => {
            survey.problems.push((section.reply_topic.clone(), reason));
        }
        Some(TopicStatus::Exists(_)) => {}
        Some(TopicStatus::Missing) | None => survey.has_reply_topic = false,
    }
    for ((queue, reply_timeout), status) in reply_timeouts.iter().zip(statuses) {
        let topic = section.topic(queue);
        match status {
            TopicStatus::Missing => survey.missing_queues.push(queue.clone()),
            TopicStatus::Refused(reason) => survey.problems.push((topic, reason)),
            TopicStatus::Exists(info) => {
                let problem = info.retention.check_retention(&topic, *reply_timeout);
                survey.problems.extend(problem.map(|reason| (topic, reason)));
            }
        }
    }
    Ok(survey)
}
