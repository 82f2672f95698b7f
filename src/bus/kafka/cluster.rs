//! Inspects topics, and creates them. Whatever waits for brokers runs on a thread that may block.

use super::client::{Configs, Context, Ending, explain};
use super::topic::{Keeps, Topic, TopicLook, retention};
use crate::settings::KafkaSection;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The partitions of the reply topic. It is read by one process, so one is enough.
const PARTITIONS_OF_REPLIES: i32 = 1;

/// What to inspect of a topic.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) topic: String,
    /// The partitions whose watermarks are needed; `None`: all.
    pub(super) ends_of: Option<Vec<i32>>,
}

/// Asks the brokers about topics, over its own client.
#[derive(Clone)]
pub(super) struct Cluster(Arc<Ending<AdminClient<Context>>>);

impl Cluster {
    pub(super) fn new(section: &KafkaSection, context: Context) -> Result<Cluster, String> {
        let config: ClientConfig = Configs::of(section).admin();
        let admin = config.create_with_context(context).map_err(|error| explain(&error))?;
        Ok(Cluster(Arc::new(Ending::new(admin))))
    }

    /// Returns the status of these topics, in the same order.
    ///
    /// # Errors
    ///
    /// The brokers do not answer.
    pub(super) async fn look(
        &self,
        questions: Vec<Question>,
        timeout: Duration,
    ) -> Result<Vec<TopicLook>, String> {
        let cluster = self.clone();
        let asked = questions.clone();
        let looked = actix_rt::task::spawn_blocking(move || {
            let look = |question: &Question| cluster.look_at(question, timeout);
            asked.iter().map(look).collect::<Result<Vec<_>, String>>()
        });
        let mut looks = looked.await.map_err(|error| error.to_string())??;
        let there = questions.iter().zip(&mut looks);
        let there = there.filter_map(|(question, look)| match look {
            TopicLook::There(topic) => Some((question.topic.as_str(), topic)),
            TopicLook::Missing | TopicLook::Refused(_) => None,
        });
        self.look_at_keeps(there.collect(), timeout).await;
        Ok(looks)
    }

    fn look_at(&self, question: &Question, timeout: Duration) -> Result<TopicLook, String> {
        let Some(admin) = self.0.get() else { return Err("the client has ended".to_owned()) };
        let (client, name) = (admin.inner(), question.topic.as_str());
        let found = client.fetch_metadata(Some(name), timeout);
        let found = found.map_err(|error| explain(&error))?;
        let Some(topic) = found.topics().iter().find(|topic| topic.name() == name) else {
            return Ok(TopicLook::Missing);
        };
        match topic.error().map(RDKafkaErrorCode::from) {
            None | Some(RDKafkaErrorCode::NoError | RDKafkaErrorCode::LeaderNotAvailable) => {}
            Some(
                RDKafkaErrorCode::UnknownTopicOrPartition
                | RDKafkaErrorCode::UnknownTopic
                | RDKafkaErrorCode::UnknownPartition,
            ) => return Ok(TopicLook::Missing),
            Some(other) => return Ok(TopicLook::Refused(other.to_string())),
        }
        let partitions = i32::try_from(topic.partitions().len()).unwrap_or(i32::MAX);
        if partitions == 0 {
            return Ok(TopicLook::Missing);
        }
        let all = || (0..partitions).collect();
        let mut ends = BTreeMap::new();
        for partition in question.ends_of.clone().unwrap_or_else(all) {
            if partition >= partitions {
                continue;
            }
            match client.fetch_watermarks(name, partition, timeout) {
                Ok(found) => drop(ends.insert(partition, found)),
                // The topic was deleted meanwhile.
                Err(error) if is_of_topic(&error) => return Ok(TopicLook::Missing),
                Err(error) => return Err(explain(&error)),
            }
        }
        Ok(TopicLook::There(Topic { partitions, ends, keeps: Keeps::default() }))
    }

    /// Loads the retention of topics. Without permission for that it stays unknown.
    async fn look_at_keeps(&self, mut topics: Vec<(&str, &mut Topic)>, timeout: Duration) {
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
            topic.keeps = Keeps::of(value("retention.ms"), value("cleanup.policy"));
        }
    }

    /// Creates the topic of a queue whose steps wait for up to `reply_timeout`. An existing topic
    /// counts as created.
    pub(super) async fn create(
        &self,
        section: &KafkaSection,
        topic: &str,
        wait: Option<Duration>,
    ) -> Result<(), String> {
        let partitions =
            if topic == section.reply_topic { PARTITIONS_OF_REPLIES } else { section.partitions };
        let kept = retention(section.retention.0, wait).as_millis().to_string();
        let bytes = section.message_bytes_max.to_string();
        let replication = TopicReplication::Fixed(section.replication);
        let mut new = NewTopic::new(topic, partitions, replication).set("retention.ms", &kept);
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
                tracing::info!(topic, partitions, retention_ms = kept, "a topic is created");
                Ok(())
            }
        }
    }
}

/// Returns whether an error says that a topic, or a partition of it, does not exist.
#[allow(clippy::wildcard_enum_match_arm, reason = "the library has more than a hundred codes")]
pub(super) fn is_of_topic(error: &KafkaError) -> bool {
    error.rdkafka_error_code().is_some_and(is_code_of_topic)
}

/// Returns whether a code says that a topic, or a partition of it, does not exist.
#[allow(clippy::wildcard_enum_match_arm, reason = "the library has more than a hundred codes")]
pub(super) fn is_code_of_topic(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::UnknownTopicOrPartition
            | RDKafkaErrorCode::UnknownTopic
            | RDKafkaErrorCode::UnknownPartition
    )
}

/// The result of inspecting all topics of a bus.
#[derive(Debug)]
pub struct Survey {
    /// Whether the reply topic exists.
    pub has_replies: bool,
    /// Unusable topics, each with its name and the reason.
    pub objections: Vec<(String, String)>,
    /// The queues whose topics do not exist.
    pub missing: Vec<Arc<str>>,
}

/// Inspects the topics of queues and the reply topic, without changing anything. `reply_timeouts`
/// has the longest time that steps wait for a reply, by queue.
///
/// # Errors
///
/// The brokers do not answer.
pub async fn survey(
    section: &KafkaSection,
    waits: &BTreeMap<Arc<str>, Option<Duration>>,
) -> Result<Survey, String> {
    let cluster = Cluster::new(section, Context::of_nobody())?;
    let topics = waits.keys().map(|queue| section.topic(queue));
    let asked = std::iter::once(section.reply_topic.clone()).chain(topics);
    let question = |topic: String| Question { topic, ends_of: Some(Vec::new()) };
    let mut looks =
        cluster.look(asked.map(question).collect(), section.request_timeout.0).await?.into_iter();
    let mut survey = Survey { has_replies: true, objections: Vec::new(), missing: Vec::new() };
    match looks.next() {
        Some(TopicLook::Refused(why)) => {
            survey.objections.push((section.reply_topic.clone(), why));
        }
        Some(TopicLook::There(_)) => {}
        Some(TopicLook::Missing) | None => survey.has_replies = false,
    }
    for ((queue, wait), look) in waits.iter().zip(looks) {
        let topic = section.topic(queue);
        match look {
            TopicLook::Missing => survey.missing.push(queue.clone()),
            TopicLook::Refused(why) => survey.objections.push((topic, why)),
            TopicLook::There(found) => {
                let objection = found.keeps.objection(&topic, *wait);
                survey.objections.extend(objection.map(|why| (topic, why)));
            }
        }
    }
    Ok(survey)
}
