//! Why a child job failed, for the jobs above it: first what went wrong, then the path to it. The
//! length is bounded.

use super::id::JobId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The most characters of the reason that the jobs above the child job keep.
pub(crate) const CAUSE_CHARS_MAX: usize = 1_000;

/// How many levels of the path are named: half of them from the top, half from the bottom.
const LEVELS_NAMED_MAX: usize = 8;

/// The most characters of a step's name in a cause.
const NAME_CHARS_MAX: usize = 80;

/// What went wrong in a child job, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The step that failed; `None` where no step did: the job was cancelled, for example.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    step: Option<Arc<str>>,
    /// The reason.
    reason: Arc<str>,
    /// The child job in which it went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    child: Option<JobId>,
    /// The path from that child job to the top, innermost level first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    way: Vec<Level>,
    /// How many levels were left out of the middle of the path.
    #[serde(default)]
    left_out: u32,
}

/// One level of child jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Level {
    step: Arc<str>,
    item: u32,
}

impl Cause {
    /// Returns the cause of a job that failed because one of its steps did.
    pub(super) fn from_step(name: &str, reason: &str) -> Cause {
        Cause { step: Some(truncate(name, NAME_CHARS_MAX)), ..Cause::from_job(reason) }
    }

    /// Returns the cause of a job that failed, or was cancelled, as a whole.
    pub fn from_job(reason: &str) -> Cause {
        Cause {
            step: None,
            reason: truncate(reason, CAUSE_CHARS_MAX),
            child: None,
            way: Vec::new(),
            left_out: 0,
        }
    }

    /// Returns the cause as the parent sees it: `child` is its child job of `step` at `item`.
    pub(super) fn in_child(mut self, child: JobId, step: &str, item: u32) -> Cause {
        self.child.get_or_insert(child);
        self.way.push(Level { step: truncate(step, NAME_CHARS_MAX), item });
        if self.way.len() > LEVELS_NAMED_MAX {
            self.way.remove(LEVELS_NAMED_MAX / 2);
            self.left_out += 1;
        }
        self
    }
}

impl fmt::Display for Cause {
    /// Renders `step "x" of item 17: why (child job …)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let innermost = self.way.first();
        match (&self.step, innermost) {
            (Some(step), Some(level)) => write!(f, "step \"{step}\" of item {}: ", level.item)?,
            (Some(step), None) => write!(f, "step \"{step}\": ")?,
            (None, Some(level)) => write!(f, "item {}: ", level.item)?,
            (None, None) => {}
        }
        f.write_str(&self.reason)?;
        let Some(child) = self.child else { return Ok(()) };
        if let [only] = self.way.as_slice() {
            return write!(f, " (child job {child} of step \"{}\")", only.step);
        }
        write!(f, " (child job {child}, by way of ")?;
        // From the top: the last half, what is left out, the first half.
        for (at, level) in self.way.iter().enumerate().rev() {
            if at + 1 < self.way.len() {
                f.write_str(", ")?;
            }
            if self.left_out > 0 && at + 1 == LEVELS_NAMED_MAX / 2 {
                write!(f, "… {} more …, ", self.left_out)?;
            }
            write!(f, "item {} of step \"{}\"", level.item, level.step)?;
        }
        f.write_str(")")
    }
}

fn truncate(text: &str, characters_max: usize) -> Arc<str> {
    match text.char_indices().nth(characters_max) {
        None => text.into(),
        Some((at, _)) => format!("{}…", &text[..at]).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_comes_first_and_then_the_way() {
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
            "the innermost: {text}"
        );
        let stored = serde_json::to_string(&cause).expect("serialises");
        assert_eq!(serde_json::from_str::<Cause>(&stored).expect("parses"), cause);
    }

    #[test]
    fn of_many_levels_the_outermost_and_the_innermost_are_named() {
        let mut cause = Cause::from_step("x", "why");
        for level in 0..10 {
            cause = cause.in_child(JobId(uuid::Uuid::from_u128(7)), &format!("s{level}"), level);
        }
        let text = cause.to_string();
        assert!(text.starts_with("step \"x\" of item 0: why (child job "), "{text}");
        let path: Vec<&str> = text.split_once("by way of ").expect("a way").1.split(", ").collect();
        let named: Vec<String> =
            [9, 8, 7, 6].iter().map(|n| format!("item {n} of step \"s{n}\"")).collect();
        assert_eq!(path[..4], named);
        assert_eq!((path[4], path[5]), ("… 2 more …", "item 3 of step \"s3\""), "{text}");
    }
}
