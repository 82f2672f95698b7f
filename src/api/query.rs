//! What calls say in their query: limits, cursors, times, states.

use super::problem::Problem;
use crate::actors::clock;
use crate::engine::{JobState, Timestamp};
use crate::journal::JobNumber;
use actix_web::web;
use std::time::SystemTime;

/// The most that `?limit=` can ask for.
const LIMIT_MAX: u32 = 10_000;

/// Query parameters whose errors are problem details.
pub struct Query<T>(pub(super) T);

impl<T> Query<T> {
    pub(super) fn into_inner(self) -> T {
        self.0
    }
}

impl<T: serde::de::DeserializeOwned> actix_web::FromRequest for Query<T> {
    type Error = Problem;
    type Future = std::future::Ready<Result<Self, Problem>>;

    fn from_request(request: &actix_web::HttpRequest, _: &mut actix_web::dev::Payload) -> Self::Future {
        let parsed = web::Query::<T>::from_query(request.query_string());
        std::future::ready(parsed.map(|query| Query(query.into_inner())).map_err(|error| Problem::malformed(format!("the query: {error}"))))
    }
}

/// How much of a list is asked for.
pub(super) fn limit(text: &str) -> Result<u32, Problem> {
    let asked: Option<u32> = text.parse().ok();
    asked
        .filter(|limit| (1..=LIMIT_MAX).contains(limit))
        .ok_or_else(|| Problem::malformed(format!("limit is {text:?}, expected a whole number from 1 to {LIMIT_MAX}")))
}

/// Where a page of a list begins.
pub(super) fn cursor(text: &str) -> Result<JobNumber, Problem> {
    text.parse().map_err(|_| wrong_cursor(text))
}

pub(super) fn wrong_cursor(text: &str) -> Problem {
    Problem::malformed(format!("cursor {text:?} is not one that this API gave: pass on the \"next\" of the page before"))
}

/// A job's state.
pub(super) fn state(word: &str) -> Result<JobState, Problem> {
    let words = JobState::ALL.map(JobState::word).join(", ");
    JobState::of_word(word).ok_or_else(|| Problem::malformed(format!("state is {word:?}, expected one of {words}")))
}

/// A switch; its name alone turns it on.
pub(super) fn flag(key: &str, value: &str) -> Result<bool, Problem> {
    match value {
        "" | "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        other => Err(Problem::malformed(format!("{key} is {other:?}, expected true or false"))),
    }
}

/// A point in time, or how long ago it was.
pub(super) fn time(key: &str, text: &str) -> Result<Timestamp, Problem> {
    if let Ok(ago) = humantime::parse_duration(text) {
        return Ok(Timestamp(clock::now().0.saturating_sub(i64::try_from(ago.as_nanos()).unwrap_or(i64::MAX))));
    }
    let wrong = || Problem::malformed(format!("{key} is {text:?}, expected a time such as 2026-01-31T12:00:00Z, or how long ago, such as 2h or 7d"));
    let since = humantime::parse_rfc3339_weak(text).map_err(|_| wrong())?.duration_since(SystemTime::UNIX_EPOCH).map_err(|_| wrong())?;
    Ok(Timestamp(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)))
}
