//! Extracts the query parameters of a request, and parses the values that several operations share:
//! limits, cursors, times, states.

use super::openapi::parameters::LIMIT_MAX;
use super::problem::Problem;
use crate::load::{DURATION_MAX, parse_duration};
use actix_web::web;
use base::clock;
use base::times;
use engine::text::{find_nearest, quote};
use engine::{JobState, Timestamp};
use journal::JobNumber;

/// A parameter that every operation accepts and ignores. Clients vary its value to bypass caches.
const CACHE_BUSTER: &str = "_";

/// The query parameters of a request, unparsed. An operation refuses parameters that it does not
/// know. Otherwise a misspelt filter would select more than the client meant.
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Returns the values of these parameters. Returns an error if one is given twice, or there is
    /// any other parameter.
    pub(super) fn extract<const N: usize>(
        self,
        names: [&'static str; N],
    ) -> Result<[Option<String>; N], Problem> {
        let mut values = self.extract_listed(&names)?.into_iter();
        Ok(names.map(|_| values.next().flatten()))
    }

    /// Returns the values of these parameters, in their order, as [`extract`](Self::extract) does.
    pub(super) fn extract_listed(
        self,
        names: &[&'static str],
    ) -> Result<Vec<Option<String>>, Problem> {
        let mut values = vec![None; names.len()];
        for (key, value) in self.0 {
            let index = names
                .iter()
                .position(|name| *name == key)
                .ok_or_else(|| unknown_parameter(&key, names))?;
            set_once(&mut values[index], &key, value)?;
        }
        Ok(values)
    }

    /// Checks that there are no parameters.
    pub(super) fn check_empty(self) -> Result<(), Problem> {
        self.extract([]).map(|[]| ())
    }

    /// Returns all parameters, for operations whose parameters have no fixed names.
    pub(super) fn into_pairs(self) -> Vec<(String, String)> {
        self.0
    }
}

impl actix_web::FromRequest for Query {
    type Error = Problem;
    type Future = std::future::Ready<Result<Self, Problem>>;

    fn from_request(
        request: &actix_web::HttpRequest,
        _: &mut actix_web::dev::Payload,
    ) -> Self::Future {
        let parsed = web::Query::<Vec<(String, String)>>::from_query(request.query_string());
        let without_cache_buster = |query: web::Query<Vec<(String, String)>>| {
            query.into_inner().into_iter().filter(|(key, _)| key != CACHE_BUSTER).collect()
        };
        std::future::ready(
            parsed
                .map(|query| Query(without_cache_buster(query)))
                .map_err(|error| Problem::malformed(format!("the query: {error}"))),
        )
    }
}

/// Returns the 400 for a parameter that an operation does not accept. `accepted` are the names of
/// those that it accepts.
pub(super) fn unknown_parameter(key: &str, accepted: &[&str]) -> Problem {
    let quoted_key = quote(key);
    Problem::malformed(match (find_nearest(key, accepted.iter().copied()), accepted) {
        (_, []) => format!("unknown parameter {quoted_key}: this call takes none"),
        (_, [only]) => format!("unknown parameter {quoted_key}; the only one here is {only}"),
        (Some(nearest), _) => format!(
            "unknown parameter {quoted_key}; did you mean {}? Known are {}",
            quote(nearest),
            accepted.join(", ")
        ),
        (None, _) => format!("unknown parameter {quoted_key}; known are {}", accepted.join(", ")),
    })
}

/// Sets the value of a parameter. Returns an error if it is already set.
pub(super) fn set_once<T>(slot: &mut Option<T>, key: &str, value: T) -> Result<(), Problem> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Problem::malformed(format!("{key} is given twice"))),
    }
}

/// Checks that a parameter is not given without another one that it needs.
pub(super) fn check_requires(
    key: &str,
    is_given: bool,
    other: &str,
    is_other_given: bool,
) -> Result<(), Problem> {
    if is_given && !is_other_given {
        Err(Problem::malformed(format!("{key} needs {other}")))
    } else {
        Ok(())
    }
}

/// Parses a time span in whole minutes.
pub(super) fn parse_minutes(key: &str, text: &str) -> Result<u32, Problem> {
    text.parse().map_err(|_| {
        Problem::malformed(format!("{key} is {text:?}, expected minutes, a whole number"))
    })
}

/// Parses the largest number of rows of a page.
pub(super) fn parse_limit(text: &str) -> Result<u32, Problem> {
    let parsed: Option<u32> = text.parse().ok();
    parsed.filter(|limit| (1..=LIMIT_MAX).contains(limit)).ok_or_else(|| {
        Problem::malformed(format!(
            "limit is {text:?}, expected a whole number from 1 to {LIMIT_MAX}"
        ))
    })
}

/// Parses the cursor after which a page begins.
pub(super) fn parse_cursor(text: &str) -> Result<JobNumber, Problem> {
    text.parse().map_err(|_| invalid_cursor(text))
}

/// Returns the 400 for a cursor that cannot be parsed.
pub(super) fn invalid_cursor(text: &str) -> Problem {
    Problem::malformed(format!(
        "cursor {text:?} is not one that this API gave: pass on the \"next\" of the page before"
    ))
}

/// Parses a job's state.
pub(super) fn parse_state(text: &str) -> Result<JobState, Problem> {
    let names = JobState::ALL.map(JobState::as_str).join(", ");
    JobState::from_name(text)
        .ok_or_else(|| Problem::malformed(format!("state is {text:?}, expected one of {names}")))
}

/// Parses the view of a job. Returns whether it is the light view.
pub(super) fn parse_is_light(view: &str) -> Result<bool, Problem> {
    match view {
        "light" => Ok(true),
        "whole" => Ok(false),
        other => Err(Problem::malformed(format!("view is {other:?}, expected light or whole"))),
    }
}

/// The type of a worker's reply.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ReplyType {
    /// The step's output.
    Result,
    /// An error: the attempt failed.
    Error,
    /// Progress: the step continues.
    Progress,
}

/// Parses the type of a reply. The default is a result.
pub(super) fn parse_reply_type(text: Option<&str>) -> Result<ReplyType, Problem> {
    match text {
        None | Some("result") => Ok(ReplyType::Result),
        Some("error") => Ok(ReplyType::Error),
        Some("progress") => Ok(ReplyType::Progress),
        Some(other) => Err(Problem::malformed(format!(
            "type is {other:?}, expected result, error or progress"
        ))),
    }
}

/// Parses a flag. A parameter without a value is on.
pub(super) fn parse_flag(key: &str, value: &str) -> Result<bool, Problem> {
    match value {
        "" | "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        other => Err(Problem::malformed(format!("{key} is {other:?}, expected true or false"))),
    }
}

/// The rule between `after` and `at`, in the words of the 400.
pub(super) const START_RULE: &str =
    "after and at both say when the job begins: give one of them, at most ten years ahead";

/// Parses when a new job begins: `after` a duration, or `at` a point in time; `None` if that is
/// now, or has passed.
pub(super) fn parse_start(
    after: Option<&str>,
    at: Option<&str>,
    now: Timestamp,
) -> Result<Option<Timestamp>, Problem> {
    let latest = now.plus(DURATION_MAX);
    let too_far = |key: &str, text: &str| {
        Problem::malformed(format!("{key} is {text:?}, more than ten years ahead"))
    };
    let (key, text, time) = match (after, at) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => return Err(Problem::malformed(START_RULE.to_owned())),
        (Some(text), None) => {
            let duration = parse_duration(text).ok_or_else(|| {
                Problem::malformed(format!(
                    "after is {text:?}, expected a duration such as 90s, 1h30m or 7d"
                ))
            })?;
            ("after", text, now.plus(duration))
        }
        (None, Some(text)) => {
            let time = times::parse_rfc3339(text).ok_or_else(|| {
                Problem::malformed(format!(
                    "at is {text:?}, expected a time with its zone, such as 2026-01-31T12:00:00Z \
                     or 2026-01-31T12:00:00+01:00"
                ))
            })?;
            ("at", text, time)
        }
    };
    if time > latest {
        return Err(too_far(key, text));
    }
    Ok(Some(time).filter(|time| *time > now))
}

/// Parses a point in time, given in the format of RFC 3339 or as how long ago it was.
pub(super) fn parse_time(key: &str, text: &str) -> Result<Timestamp, Problem> {
    // A bare 0 would parse as a duration, although the client most likely means a point in time.
    let ago = if text == "0" { None } else { humantime::parse_duration(text).ok() };
    if let Some(ago) = ago {
        return Ok(Timestamp(
            clock::now().0.saturating_sub(i64::try_from(ago.as_nanos()).unwrap_or(i64::MAX)),
        ));
    }
    times::parse_rfc3339(text).ok_or_else(|| {
        if times::parse_rfc3339(&format!("{text}Z")).is_some() {
            return Problem::malformed(format!(
                "{key} is {text:?}, which has no time zone: add Z for UTC, or an offset such as \
                 +01:00"
            ));
        }
        let expected = "a time such as 2026-01-31T12:00:00Z or 2026-01-31T12:00:00+01:00, or how \
                        long ago, such as 2h or 7d";
        Problem::malformed(format!("{key} is {text:?}, expected {expected}"))
    })
}
