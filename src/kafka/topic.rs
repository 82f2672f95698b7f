//! The status of a topic, and the checks of its retention and its watermarks.

use std::collections::BTreeMap;
use std::time::Duration;

/// How much longer than the longest reply timeout a created topic retains messages, at least.
const RETENTION_MARGIN: Duration = Duration::from_secs(24 * 3600);

/// The status of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TopicStatus {
    /// It does not exist.
    Missing,
    /// The brokers refuse to describe it, for this reason.
    Refused(String),
    /// It exists.
    Exists(TopicInfo),
}

/// An existing topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TopicInfo {
    /// The number of partitions.
    pub(super) partitions: i32,
    /// The low and the high watermark of each requested partition: its first offset, and the
    /// offset after its last record.
    pub(super) watermarks: BTreeMap<i32, (i64, i64)>,
    pub(super) retention: TopicRetention,
}

/// How long a topic retains messages, as far as the brokers report it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TopicRetention {
    /// How long; `None` if that is unlimited or unknown.
    pub(super) duration: Option<Duration>,
    /// Whether log compaction is on, which retains only the last message of each key.
    pub(super) is_compacted: bool,
}

impl TopicRetention {
    /// Parses the topic's settings `retention.ms` and `cleanup.policy`; `None`: unknown.
    pub(super) fn from_config(
        retention_ms: Option<&str>,
        cleanup_policy: Option<&str>,
    ) -> TopicRetention {
        let millis = retention_ms.and_then(|text| text.trim().parse::<u64>().ok());
        let policies = cleanup_policy.unwrap_or("delete");
        let has_policy = |policy: &str| policies.split(',').any(|name| name.trim() == policy);
        TopicRetention {
            duration: millis.filter(|_| has_policy("delete")).map(Duration::from_millis),
            is_compacted: has_policy("compact"),
        }
    }

    /// Returns why the topic may lose messages while steps wait for a reply for up to
    /// `reply_timeout` (`None`: unknown), or `None` if it retains them as far as is known.
    pub(super) fn check_retention(
        &self,
        topic: &str,
        reply_timeout: Option<Duration>,
    ) -> Option<String> {
        if self.is_compacted {
            return Some(format!(
                "the topic {topic} is compacted, which deletes messages that still wait: set its \
                 cleanup.policy to delete"
            ));
        }
        let (retention, reply_timeout) = (self.duration?, reply_timeout?);
        (retention < reply_timeout).then(|| {
            format!(
                "the topic {topic} keeps messages for {}, and a step waits {} for its reply: set \
                 its retention.ms to {} or more, or give the step a shorter timeout",
                humantime::format_duration(retention),
                humantime::format_duration(reply_timeout),
                reply_timeout.as_millis()
            )
        })
    }
}

/// Returns the retention for a topic that is created: `min_retention`, or more if steps wait longer
/// for a reply.
pub(super) fn retention_for(min_retention: Duration, reply_timeout: Option<Duration>) -> Duration {
    reply_timeout.map_or(min_retention, |timeout| min_retention.max(timeout + RETENTION_MARGIN))
}

/// Returns whether the topic was recreated, because it ends before its written offsets or has fewer
/// partitions than were written to.
pub(super) fn was_recreated(written_offsets: &BTreeMap<i32, i64>, topic: &TopicInfo) -> bool {
    written_offsets.iter().any(|(partition, next_offset)| {
        *partition >= topic.partitions
            || topic.watermarks.get(partition).is_some_and(|(_, high)| high < next_offset)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_topic_with_a_shorter_retention_than_a_step_waits_is_rejected() {
        let retention = TopicRetention::from_config(Some("3600000"), Some("delete"));
        assert_eq!(retention.check_retention("t", Some(HOUR)), None);
        let reason = retention.check_retention("t", Some(2 * HOUR)).expect("a problem");
        assert!(reason.contains("keeps messages for 1h"), "{reason}");
        assert!(reason.contains("7200000 or more"), "{reason}");
        assert_eq!(retention.check_retention("t", None), None);
        assert_eq!(
            TopicRetention::from_config(Some("-1"), None).check_retention("t", Some(HOUR)),
            None,
            "an unlimited retention"
        );
        assert_eq!(
            TopicRetention::from_config(None, None).check_retention("t", Some(HOUR)),
            None,
            "an unknown retention"
        );
    }

    #[test]
    fn a_compacted_topic_is_refused() {
        for policy in ["compact", "compact,delete", "delete, compact"] {
            let reason = TopicRetention::from_config(None, Some(policy))
                .check_retention("t", None)
                .expect("a problem");
            assert!(reason.contains("compacted"), "{reason}");
        }
        // Without `delete` the retention deletes nothing.
        assert_eq!(TopicRetention::from_config(Some("1"), Some("compact")).duration, None);
    }

    #[test]
    fn topics_are_created_with_a_longer_retention_than_any_step_waits() {
        let week = 7 * 24 * HOUR;
        assert_eq!(retention_for(week, None), week);
        assert_eq!(retention_for(week, Some(HOUR)), week);
        assert_eq!(retention_for(week, Some(week)), week + 24 * HOUR);
    }

    #[test]
    fn a_topic_that_ends_before_what_was_written_was_recreated() {
        let topic = |high: i64| {
            let watermarks = [(0, (0, high)), (1, (0, 5))].into();
            TopicInfo { partitions: 2, watermarks, retention: TopicRetention::default() }
        };
        assert!(!was_recreated(&[(0, 7)].into(), &topic(7)));
        assert!(!was_recreated(&[(0, 7)].into(), &topic(9)));
        assert!(was_recreated(&[(0, 7), (1, 5)].into(), &topic(6)));
        assert!(was_recreated(&[(2, 1)].into(), &topic(9)), "it has fewer partitions");
    }
}
