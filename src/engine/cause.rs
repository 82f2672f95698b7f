//! The cause of a child job's failure, as its ancestors report it: what went wrong, and the path to
//! it. Its length is limited, however deep the job tree is.

use super::id::JobId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The maximum length of the reason, in characters.
pub(crate) const CAUSE_CHARS_MAX: usize = 1_000;

/// The maximum number of levels of the path that are named. Half of them are the outermost, half
/// the innermost levels.
const LEVELS_NAMED_MAX: usize = 8;

/// The maximum length of a step's name in a cause, in characters.
const NAME_CHARS_MAX: usize = 80;

/// What went wrong in a child job, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The step that failed; `None`: no step did, for example because the child job was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    step: Option<Arc<str>>,
    /// Why the step failed, or the child job as a whole.
    reason: Arc<str>,
    /// The innermost child job, in which it went wrong; `None`: no parent has extended the path
    /// yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    child: Option<JobId>,
    /// The path from that child job up to the reporting job, innermost level first.
    #[serde(rename = "way", default, skip_serializing_if = "Vec::is_empty")]
    path: Vec<Level>,
    /// The number of levels that were left out of the middle of the path.
    #[serde(default)]
    left_out: u32,
}

/// One level of a path: the fan-out step of the parent, and the item's index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Level {
    step: Arc<str>,
    item: u32,
}

impl Cause {
    /// Creates the cause of a job that failed because its step `name` did.
    pub(super) fn from_step(name: &str, reason: &str) -> Cause {
        Cause { step: Some(truncate(name, NAME_CHARS_MAX)), ..Cause::from_job(reason) }
    }

    /// Creates the cause of a job that failed, or was cancelled, as a whole.
    pub fn from_job(reason: &str) -> Cause {
        Cause {
            step: None,
            reason: truncate(reason, CAUSE_CHARS_MAX),
            child: None,
            path: Vec::new(),
            left_out: 0,
        }
    }

    /// Extends the path by one level, that of the parent whose `step` started `child` for the item
    /// at index `item`.
    pub(super) fn in_child(mut self, child: JobId, step: &str, item: u32) -> Cause {
        self.child.get_or_insert(child);
        self.path.push(Level { step: truncate(step, NAME_CHARS_MAX), item });
        if self.path.len() > LEVELS_NAMED_MAX {
            // The innermost of the outer half, between both halves.
            self.path.remove(LEVELS_NAMED_MAX / 2);
            self.left_out += 1;
        }
        self
    }
}

impl fmt::Display for Cause {
    /// Formats the cause as `step "x" of item 17: reason (child job …)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let innermost = self.path.first();
        match (&self.step, innermost) {
            (Some(step), Some(level)) => write!(f, "step \"{step}\" of item {}: ", level.item)?,
            (Some(step), None) => write!(f, "step \"{step}\": ")?,
            (None, Some(level)) => write!(f, "item {}: ", level.item)?,
            (None, None) => {}
        }
        f.write_str(&self.reason)?;
        let Some(child) = self.child else { return Ok(()) };
        if let [only] = self.path.as_slice() {
            return write!(f, " (child job {child} of step \"{}\")", only.step);
        }
        write!(f, " (child job {child}, by way of ")?;
        // The outer half, the number of levels that were left out, the inner half.
        for (index, level) in self.path.iter().enumerate().rev() {
            if index + 1 < self.path.len() {
                f.write_str(", ")?;
            }
            if self.left_out > 0 && index + 1 == LEVELS_NAMED_MAX / 2 {
                write!(f, "… {} more …, ", self.left_out)?;
            }
            write!(f, "item {} of step \"{}\"", level.item, level.step)?;
        }
        f.write_str(")")
    }
}

/// Returns the first `characters_max` characters of a text, followed by `…` if it is longer.
fn truncate(text: &str, characters_max: usize) -> Arc<str> {
    match text.char_indices().nth(characters_max) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_displayed_as_the_reason_and_then_the_path() {
        let cause = Cause::from_step("price", "no such article");
        assert_eq!(cause.to_string(), "step \"price\": no such article");
        let (child, outer) = (JobId(uuid::Uuid::from_u128(1)), JobId(uuid::Uuid::from_u128(2)));
        let cause = cause.in_child(child, "lines", 3);
        let text = "step \"price\" of item 3: no such article (child job \
                    00000000-0000-0000-0000-000000000001 of step \"lines\")";
        assert_eq!(cause.to_string(), text);
        let text = "step \"price\" of item 3: no such article (child job \
                    00000000-0000-0000-0000-000000000001, by way of item 17 of step \"orders\", \
                    item 3 of step \"lines\")";
        assert_eq!(cause.in_child(outer, "orders", 17).to_string(), text);
        let cancelled = Cause::from_job("cancelled: by a user").in_child(child, "lines", 0);
        let text = "item 0: cancelled: by a user (child job 00000000-0000-0000-0000-000000000001 \
                    of step \"lines\")";
        assert_eq!(cancelled.to_string(), text);
    }

    #[test]
    fn a_deep_path_and_long_texts_are_bounded() {
        let mut cause = Cause::from_step(&"n".repeat(10_000), &"ü".repeat(100_000));
        for level in 0..200 {
            cause =
                cause.in_child(JobId(uuid::Uuid::from_u128(level)), &"s".repeat(10_000), u32::MAX);
        }
        let text = cause.to_string();
        assert!(text.chars().count() < 2_200, "{} characters", text.chars().count());
        assert!(text.contains("… 192 more …"), "{text}");
        assert!(
            text.contains("child job 00000000-0000-0000-0000-000000000000,"),
            "the innermost child job is named: {text}"
        );
        let stored = serde_json::to_string(&cause).expect("serialises");
        assert_eq!(serde_json::from_str::<Cause>(&stored).expect("parses"), cause);
    }

    #[test]
    fn only_the_outermost_and_innermost_levels_of_a_deep_path_are_named() {
        let mut cause = Cause::from_step("x", "why");
        for level in 0..10 {
            cause = cause.in_child(JobId(uuid::Uuid::from_u128(7)), &format!("s{level}"), level);
        }
        let text = cause.to_string();
        assert!(text.starts_with("step \"x\" of item 0: why (child job "), "{text}");
        let path: Vec<&str> =
            text.split_once("by way of ").expect("a path").1.split(", ").collect();
        let named: Vec<String> =
            [9, 8, 7, 6].iter().map(|n| format!("item {n} of step \"s{n}\"")).collect();
        assert_eq!(path[..4], named);
        assert_eq!((path[4], path[5]), ("… 2 more …", "item 3 of step \"s3\""), "{text}");
    }
}
