//! The reference to a job: its id, or a prefix of it.

use engine::JobId;
use std::str::FromStr;

/// The fewest digits of a prefix.
const DIGITS_MIN: usize = 4;

/// A job's id, or a prefix of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobRef {
    /// The full id.
    Full(JobId),
    /// The first digits, at least four.
    Prefix(String),
}

impl FromStr for JobRef {
    type Err = String;

    fn from_str(text: &str) -> Result<JobRef, String> {
        let error = match text.parse() {
            Ok(id) => return Ok(JobRef::Full(id)),
            Err(error) => error,
        };
        let digits = text.chars().filter(|character| *character != '-').count();
        let is_part =
            text.chars().all(|character| character.is_ascii_hexdigit() || character == '-');
        if is_part && (DIGITS_MIN..32).contains(&digits) {
            Ok(JobRef::Prefix(text.to_owned()))
        } else {
            Err(format!("{error}; the first {DIGITS_MIN} digits of a job's id, or more, do too"))
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
        for beginning in ["f557", "F557697B", "f557697b-f9", "f557697bf911401c86b76d9b62f1f2b"] {
            assert_eq!(beginning.parse(), Ok(JobRef::Prefix(beginning.to_owned())));
        }
        for wrong in ["", "f55", "f-5-5", "price", "f557x", "f557697b-f911-401c-86b7-6d9b62f1f2bb0"]
        {
            let message = wrong.parse::<JobRef>().expect_err(wrong);
            assert!(message.contains("the first 4 digits"), "{message}");
        }
    }
}
