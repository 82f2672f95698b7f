//! The status of a topic, and what follows from it.

use std::collections::BTreeMap;
use std::time::Duration;

/// How much longer than the longest timeout of a step a created topic retains messages.
const RETENTION_MARGIN: Duration = Duration::from_secs(24 * 3600);

/// The status of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TopicStatus {
    /// It does not exist.
    Missing,
    /// The brokers refuse the information, for this reason of their own.
    Refused(String),
    /// It exists.
    Exists(TopicInfo),
}

/// An existing topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TopicInfo {
    /// The number of partitions.
    pub(super) partitions: i32,
    /// The first offset and the offset after the last, of the requested partitions.
    pub(super) watermarks: BTreeMap<i32, (i64, i64)>,
    pub(super) retention: TopicRetention,
}

/// How long a topic retains messages, as far as the brokers report it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TopicRetention {
    /// `None`: for ever, or unknown.
    pub(super) duration: Option<Duration>,
    /// Whether it retains only the last of several messages with one key.
    pub(super) is_compacted: bool,
}

impl TopicRetention {
    /// Parses the topic's settings `retention.ms` and `cleanup.policy`.
    pub(super) fn from_config(
        retention_ms: Option<&str>,
        cleanup_policy: Option<&str>,
    ) -> TopicRetention {
        let millis = retention_ms.and_then(|text| text.trim().parse::<u64>().ok());
        let policies = cleanup_policy.unwrap_or("delete");
        let has = |policy: &str| policies.split(',').any(|found| found.trim() == policy);
        TopicRetention {
            duration: millis.filter(|_| has("delete")).map(Duration::from_millis),
            is_compacted: has("compact"),
        }
    }

    /// Returns why messages for which a step waits up to `wait` cannot be in this topic, if that is
    /// so.
    pub(super) fn check_retention(&self, topic: &str, wait: Option<Duration>) -> Option<String> {
        if self.is_compacted {
            return Some(format!(
                "the topic {topic} is compacted, which deletes messages that still wait: set its \
                 cleanup.policy to delete"
            ));
        }
        let (retained, wait) = (self.duration?, wait?);
        (retained < wait).then(|| {
            format!(
                "the topic {topic} keeps messages for {}, and a step waits {} for its reply: set \
                 its retention.ms to {} or more, or give the step a shorter timeout",
                humantime::format_duration(retained),
                humantime::format_duration(wait),
                wait.as_millis()
            )
        })
    }
}

/// Returns the retention of a created topic: that of the setting, or longer than any step waits.
pub(super) fn retention_for(setting: Duration, wait: Option<Duration>) -> Duration {
    wait.map_or(setting, |wait| setting.max(wait + RETENTION_MARGIN))
}

/// Returns whether the topic was recreated: it ends before what was written to it.
pub(super) fn was_recreated(written: &BTreeMap<i32, i64>, found: &TopicInfo) -> bool {
    written.iter().any(|(partition, next)| {
        let is_gone = *partition >= found.partitions;
        is_gone || found.watermarks.get(partition).is_some_and(|(_, high)| high < next)
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
        let why = retention.check_retention("t", Some(2 * HOUR)).expect("an objection");
        assert!(why.contains("keeps messages for 1h") && why.contains("7200000 or more"), "{why}");
        assert_eq!(retention.check_retention("t", None), None);
        assert_eq!(
            TopicRetention::from_config(Some("-1"), None).check_retention("t", Some(HOUR)),
            None,
            "for ever"
        );
        assert_eq!(
            TopicRetention::from_config(None, None).check_retention("t", Some(HOUR)),
            None,
            "not told"
        );
    }

    #[test]
    fn a_compacted_topic_is_refused() {
        for policy in ["compact", "compact,delete", "delete, compact"] {
            let why = TopicRetention::from_config(None, Some(policy))
                .check_retention("t", None)
                .expect("an objection");
            assert!(why.contains("compacted"), "{why}");
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
        let found = |high: i64| {
            let ends = [(0, (0, high)), (1, (0, 5))].into();
            TopicInfo { partitions: 2, watermarks: ends, retention: TopicRetention::default() }
        };
        assert!(!was_recreated(&[(0, 7)].into(), &found(7)));
        assert!(!was_recreated(&[(0, 7)].into(), &found(9)));
        assert!(was_recreated(&[(0, 7), (1, 5)].into(), &found(6)));
        assert!(was_recreated(&[(2, 1)].into(), &found(9)), "it has fewer partitions");
    }
}
