//! A reference to a job: its id, or a prefix of its id.

use engine::JobId;
use std::str::FromStr;

/// The minimum number of digits of a prefix.
const DIGITS_MIN: usize = 4;

/// The number of digits of a full id, without hyphens.
const ID_DIGITS: usize = 32;

/// A reference to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobRef {
    /// The full id.
    Full(JobId),
    /// The first digits: at least `DIGITS_MIN`, with or without hyphens.
    Prefix(String),
}

impl FromStr for JobRef {
    type Err = String;

    fn from_str(text: &str) -> Result<JobRef, String> {
        let error = match text.parse() {
            Ok(id) => return Ok(JobRef::Full(id)),
            Err(error) => error,
        };
        let digit_count = text.chars().filter(|character| *character != '-').count();
        let has_id_characters =
            text.chars().all(|character| character.is_ascii_hexdigit() || character == '-');
        if has_id_characters && (DIGITS_MIN..ID_DIGITS).contains(&digit_count) {
            Ok(JobRef::Prefix(text.to_owned()))
        } else {
            Err(format!(
                "{error}; the first {DIGITS_MIN} digits of a job's id, or more, are accepted, too"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_may_be_given_as_a_prefix() {
        let id = "f557697b-f911-401c-86b7-6d9b62f1f2bb";
        assert_eq!(id.parse(), Ok(JobRef::Full(id.parse().expect("an id"))));
        for prefix in ["f557", "F557697B", "f557697b-f9", "f557697bf911401c86b76d9b62f1f2b"] {
            assert_eq!(prefix.parse(), Ok(JobRef::Prefix(prefix.to_owned())));
        }
        for text in ["", "f55", "f-5-5", "price", "f557x", "f557697b-f911-401c-86b7-6d9b62f1f2bb0"]
        {
            let message = text.parse::<JobRef>().expect_err(text);
            assert!(message.contains("the first 4 digits"), "{message}");
        }
    }
}
