//! Inspects topics, and creates them. Whatever waits for brokers runs on a thread that may block.

use super::client::{ClientConfigs, ClosedOnThread, EventContext, explain};
use super::topic::{TopicInfo, TopicRetention, TopicStatus, retention_for};
use bus::KafkaSection;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The partitions of the reply topic. It is read by one process, so one is enough.
const REPLY_TOPIC_PARTITIONS: i32 = 1;

/// What to inspect of a topic.
#[derive(Clone, Debug)]
pub(super) struct TopicQuery {
    pub(super) topic: String,
    /// The partitions whose watermarks are needed; `None`: all.
    pub(super) watermarks_of: Option<Vec<i32>>,
}

/// Asks the brokers about topics, over its own client.
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
    /// The brokers do not answer.
    pub(super) async fn inspect_topics(
        &self,
        queries: Vec<TopicQuery>,
        timeout: Duration,
    ) -> Result<Vec<TopicStatus>, String> {
        let cluster = self.clone();
        let blocking_queries = queries.clone();
        let inspected = actix_rt::task::spawn_blocking(move || {
            let inspect = |query: &TopicQuery| cluster.inspect_topic(query, timeout);
            blocking_queries.iter().map(inspect).collect::<Result<Vec<_>, String>>()
        });
        let mut statuses = inspected.await.map_err(|error| error.to_string())??;
        let existing = queries.iter().zip(&mut statuses);
        let there = existing.filter_map(|(query, status)| match status {
            TopicStatus::Exists(topic) => Some((query.topic.as_str(), topic)),
            TopicStatus::Missing | TopicStatus::Refused(_) => None,
        });
        self.load_retention(there.collect(), timeout).await;
        Ok(statuses)
    }

    fn inspect_topic(&self, query: &TopicQuery, timeout: Duration) -> Result<TopicStatus, String> {
        let Some(admin) = self.0.get() else { return Err("the client has ended".to_owned()) };
        let (client, name) = (admin.inner(), query.topic.as_str());
        let found = client.fetch_metadata(Some(name), timeout);
        let found = found.map_err(|error| explain(&error))?;
        let Some(topic) = found.topics().iter().find(|topic| topic.name() == name) else {
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
        let all = || (0..partitions).collect();
        let mut ends = BTreeMap::new();
        for partition in query.watermarks_of.clone().unwrap_or_else(all) {
            if partition >= partitions {
                continue;
            }
            match client.fetch_watermarks(name, partition, timeout) {
                Ok(found) => drop(ends.insert(partition, found)),
                // The topic was deleted meanwhile.
                Err(error) if is_missing_topic_error(&error) => return Ok(TopicStatus::Missing),
                Err(error) => return Err(explain(&error)),
            }
        }
        Ok(TopicStatus::Exists(TopicInfo {
            partitions,
            watermarks: ends,
            retention: TopicRetention::default(),
        }))
    }

    /// Loads the retention of topics. Without permission for that it stays unknown.
    async fn load_retention(&self, mut topics: Vec<(&str, &mut TopicInfo)>, timeout: Duration) {
        let Some(admin) = self.0.get() else { return };
        let wanted: Vec<ResourceSpecifier<'_>> =
            topics.iter().map(|(name, _)| ResourceSpecifier::Topic(name)).collect();
        if wanted.is_empty() {
            return;
        }
        let options = AdminOptions::new().request_timeout(Some(timeout));
        let described = match admin.describe_configs(&wanted, &options).await {
            Ok(described) => described,
            Err(error) => {
                let error = explain(&error);
                tracing::debug!(error, "the brokers do not tell how long topics keep messages");
                return;
            }
        };
        for ((_, topic), described) in topics.iter_mut().zip(described) {
            let Ok(settings) = described else { continue };
            let value = |name: &str| settings.get(name).and_then(|entry| entry.value.as_deref());
            topic.retention =
                TopicRetention::from_config(value("retention.ms"), value("cleanup.policy"));
        }
    }

    /// Creates the topic of a queue whose steps wait for up to `reply_timeout`. An existing topic
    /// counts as created.
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
        let bytes = section.message_bytes_max.to_string();
        let replication = TopicReplication::Fixed(section.replication);
        let mut new =
            NewTopic::new(topic, partitions, replication).set("retention.ms", &retention_ms);
        // Replies have their own limit, which names who sent too much.
        if topic != section.reply_topic {
            new = new.set("max.message.bytes", &bytes);
        }
        let Some(admin) = self.0.get() else { return Err("the client has ended".to_owned()) };
        let timeout = Some(section.request_timeout.0);
        let options = AdminOptions::new().request_timeout(timeout).operation_timeout(timeout);
        let created = admin.create_topics([&new], &options).await;
        let created = created.map_err(|error| explain(&error))?.pop();
        match created {
            Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => Ok(()),
            Some(Err((_, code))) => Err(code.to_string()),
            Some(Ok(_)) | None => {
                tracing::info!(
                    topic,
                    partitions,
                    retention_ms = retention_ms,
                    "a topic is created"
                );
                Ok(())
            }
        }
    }
}

/// Returns whether an error says that a topic, or a partition of it, does not exist.
#[allow(clippy::wildcard_enum_match_arm, reason = "the library has more than a hundred codes")]
pub(super) fn is_missing_topic_error(error: &KafkaError) -> bool {
    error.rdkafka_error_code().is_some_and(is_missing_topic_code)
}

/// Returns whether a code says that a topic, or a partition of it, does not exist.
#[allow(clippy::wildcard_enum_match_arm, reason = "the library has more than a hundred codes")]
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
    /// Unusable topics, each with its name and the reason.
    pub problems: Vec<(String, String)>,
    /// The queues whose topics do not exist.
    pub missing_queues: Vec<Arc<str>>,
}

/// Inspects the topics of queues and the reply topic, without changing anything. `reply_timeouts`
/// has the longest time that steps wait for a reply, by queue.
///
/// # Errors
///
/// The brokers do not answer.
pub async fn survey_topics(
    section: &KafkaSection,
    reply_timeouts: &BTreeMap<Arc<str>, Option<Duration>>,
) -> Result<TopicSurvey, String> {
    let cluster = TopicAdmin::new(section, EventContext::without_listener())?;
    let topics = reply_timeouts.keys().map(|queue| section.topic(queue));
    let names = std::iter::once(section.reply_topic.clone()).chain(topics);
    let to_query = |topic: String| TopicQuery { topic, watermarks_of: Some(Vec::new()) };
    let mut statuses = cluster
        .inspect_topics(names.map(to_query).collect(), section.request_timeout.0)
        .await?
        .into_iter();
    let mut survey =
        TopicSurvey { has_reply_topic: true, problems: Vec::new(), missing_queues: Vec::new() };
    match statuses.next() {
        Some(TopicStatus::Refused(why)) => {
            survey.problems.push((section.reply_topic.clone(), why));
        }
        Some(TopicStatus::Exists(_)) => {}
        Some(TopicStatus::Missing) | None => survey.has_reply_topic = false,
    }
    for ((queue, wait), status) in reply_timeouts.iter().zip(statuses) {
        let topic = section.topic(queue);
        match status {
            TopicStatus::Missing => survey.missing_queues.push(queue.clone()),
            TopicStatus::Refused(why) => survey.problems.push((topic, why)),
            TopicStatus::Exists(found) => {
                let objection = found.retention.check_retention(&topic, *wait);
                survey.problems.extend(objection.map(|why| (topic, why)));
            }
        }
    }
    Ok(survey)
}
