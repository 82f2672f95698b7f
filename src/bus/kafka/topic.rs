//! The status of a topic, and what follows from it.

use std::collections::BTreeMap;
use std::time::Duration;

/// How much longer than the longest timeout of a step a created topic retains messages.
const LONGER_BY: Duration = Duration::from_secs(24 * 3600);

/// The status of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TopicLook {
    /// It does not exist.
    Missing,
    /// The brokers refuse the information, for this reason of their own.
    Refused(String),
    /// It exists.
    There(Topic),
}

/// An existing topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Topic {
    /// The number of partitions.
    pub(super) partitions: i32,
    /// The first offset and the offset after the last, of the requested partitions.
    pub(super) ends: BTreeMap<i32, (i64, i64)>,
    pub(super) keeps: Keeps,
}

/// How long a topic retains messages, as far as the brokers report it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Keeps {
    /// `None`: for ever, or unknown.
    pub(super) span: Option<Duration>,
    /// Whether it retains only the last of several messages with one key.
    pub(super) is_compacted: bool,
}

impl Keeps {
    /// Parses the topic's settings `retention.ms` and `cleanup.policy`.
    pub(super) fn of(retention_ms: Option<&str>, cleanup_policy: Option<&str>) -> Keeps {
        let millis = retention_ms.and_then(|text| text.trim().parse::<u64>().ok());
        let policies = cleanup_policy.unwrap_or("delete");
        let has = |policy: &str| policies.split(',').any(|found| found.trim() == policy);
        Keeps {
            span: millis.filter(|_| has("delete")).map(Duration::from_millis),
            is_compacted: has("compact"),
        }
    }

    /// Returns why messages for which a step waits up to `wait` cannot be in this topic, if that is
    /// so.
    pub(super) fn objection(&self, topic: &str, wait: Option<Duration>) -> Option<String> {
        if self.is_compacted {
            return Some(format!(
                "the topic {topic} is compacted, which deletes messages that still wait: set its \
                 cleanup.policy to delete"
            ));
        }
        let (kept, wait) = (self.span?, wait?);
        (kept < wait).then(|| {
            format!(
                "the topic {topic} keeps messages for {}, and a step waits {} for its reply: set \
                 its retention.ms to {} or more, or give the step a shorter timeout",
                humantime::format_duration(kept),
                humantime::format_duration(wait),
                wait.as_millis()
            )
        })
    }
}

/// Returns the retention of a created topic: that of the setting, or longer than any step waits.
pub(super) fn retention(setting: Duration, wait: Option<Duration>) -> Duration {
    wait.map_or(setting, |wait| setting.max(wait + LONGER_BY))
}

/// Returns whether the topic was recreated: it ends before what was written to it.
pub(super) fn is_another(written: &BTreeMap<i32, i64>, found: &Topic) -> bool {
    written.iter().any(|(partition, next)| {
        let is_gone = *partition >= found.partitions;
        is_gone || found.ends.get(partition).is_some_and(|(_, high)| high < next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_topic_that_keeps_messages_for_less_than_a_step_waits_is_refused() {
        let keeps = Keeps::of(Some("3600000"), Some("delete"));
        assert_eq!(keeps.objection("t", Some(HOUR)), None);
        let why = keeps.objection("t", Some(2 * HOUR)).expect("an objection");
        assert!(why.contains("keeps messages for 1h") && why.contains("7200000 or more"), "{why}");
        assert_eq!(keeps.objection("t", None), None);
        assert_eq!(Keeps::of(Some("-1"), None).objection("t", Some(HOUR)), None, "for ever");
        assert_eq!(Keeps::of(None, None).objection("t", Some(HOUR)), None, "not told");
    }

    #[test]
    fn a_compacted_topic_is_refused() {
        for policy in ["compact", "compact,delete", "delete, compact"] {
            let why = Keeps::of(None, Some(policy)).objection("t", None).expect("an objection");
            assert!(why.contains("compacted"), "{why}");
        }
        // Without `delete` the retention deletes nothing.
        assert_eq!(Keeps::of(Some("1"), Some("compact")).span, None);
    }

    #[test]
    fn topics_are_created_with_a_longer_retention_than_any_step_waits() {
        let week = 7 * 24 * HOUR;
        assert_eq!(retention(week, None), week);
        assert_eq!(retention(week, Some(HOUR)), week);
        assert_eq!(retention(week, Some(week)), week + 24 * HOUR);
    }

    #[test]
    fn a_topic_that_ends_before_what_was_written_is_another() {
        let found = |high: i64| {
            let ends = [(0, (0, high)), (1, (0, 5))].into();
            Topic { partitions: 2, ends, keeps: Keeps::default() }
        };
        assert!(!is_another(&[(0, 7)].into(), &found(7)));
        assert!(!is_another(&[(0, 7)].into(), &found(9)));
        assert!(is_another(&[(0, 7), (1, 5)].into(), &found(6)));
        assert!(is_another(&[(2, 1)].into(), &found(9)), "it has fewer partitions");
    }
}
