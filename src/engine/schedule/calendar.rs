//! The times of a cron expression in a time zone.
//!
//! The expression is matched against the clock on the wall. A time that the clock skips when it is
//! put forward runs at the next time that exists. A time that the clock shows twice runs at the
//! first of the two. The zones are those of the program, so that the same input gives the same
//! slots on every machine.

use crate::text::did_you_mean;
use crate::time::Timestamp;
use core::cmp::Ordering;
use croner::errors::CronError;
use croner::parser::{CronParser, Year};
use croner::{CivilDate, CivilDateTime, CivilTime, Cron, CronDateTime, Resolution, Weekday};
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp as Instant};
use std::fmt;
use std::sync::LazyLock;

/// The zones of the program.
static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// From when on an expression is searched for its first time, to find out whether it has any: a
/// leap year begins.
const SEARCHED_FROM: Timestamp = Timestamp(946_684_799_000_000_000);

/// A cron expression in a time zone.
#[derive(Clone, Debug, PartialEq)]
pub struct Calendar {
    cron: Cron,
    zone: TimeZone,
    /// The expression, with single spaces.
    text: String,
    zone_name: String,
}

/// Why an expression and a zone are not a calendar. The text ends a sentence that names the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CalendarError {
    /// The expression cannot be read.
    #[error("{0}")]
    Expression(String),
    /// The expression never matches.
    #[error("no day ever matches it, so it would never fire")]
    Never,
    /// There is no such zone.
    #[error("there is no such time zone{0}")]
    Zone(String),
}

/// Returns the names of all time zones.
pub fn zone_names() -> Vec<String> {
    ZONES.available().map(|name| name.to_string()).collect()
}

impl Calendar {
    /// Reads a cron expression of five fields, or of six with the seconds first, in a zone such as
    /// `Europe/Berlin`.
    ///
    /// # Errors
    ///
    /// Returns an error if the expression cannot be read or never matches, or there is no such
    /// zone.
    pub fn parse(text: &str, zone_name: &str) -> Result<Calendar, CalendarError> {
        let zone = ZONES.get(zone_name).map_err(|_| {
            let names = zone_names();
            CalendarError::Zone(did_you_mean(zone_name, names.iter().map(String::as_str)))
        })?;
        let zone_name = zone.iana_name().unwrap_or(zone_name).to_owned();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let parser = CronParser::builder()
            .year(Year::Disallowed)
            .dom_and_dow(has_day_with_star(&text))
            .build();
        let cron = parser.parse(&text).map_err(|error| {
            let problem = match error {
                CronError::InvalidPattern(problem) | CronError::ComponentError(problem) => problem,
                error @ (CronError::EmptyPattern
                | CronError::InvalidDate
                | CronError::InvalidTime
                | CronError::TimeSearchLimitExceeded
                | CronError::IllegalCharacters(_)) => error.to_string(),
            };
            CalendarError::Expression(problem.trim_end_matches('.').to_owned())
        })?;
        let calendar = Calendar { cron, zone, text, zone_name };
        match calendar.next_after(SEARCHED_FROM) {
            Some(_) => Ok(calendar),
            None => Err(CalendarError::Never),
        }
    }

    /// Returns the name of the zone.
    pub fn zone(&self) -> &str {
        &self.zone_name
    }

    /// Returns the expression.
    pub fn expression(&self) -> &str {
        &self.text
    }

    /// Returns the first time after `time` that matches; `None`: there is none.
    pub fn next_after(&self, time: Timestamp) -> Option<Timestamp> {
        let after = Instant::from_nanosecond(i128::from(time.0)).ok()?;
        let mut civil = Civil(self.zone.to_datetime(after));
        loop {
            civil = self.cron.find_next_occurrence(&civil, false).ok()?;
            let instant = self.first_instant(civil.0)?;
            // While the clock shows an hour again, its times are those of the first time.
            if instant > after {
                return i64::try_from(instant.as_nanosecond()).ok().map(Timestamp);
            }
        }
    }

    /// Returns when the clock on the wall shows this time first, or when it skips it.
    fn first_instant(&self, civil: DateTime) -> Option<Instant> {
        match self.zone.to_ambiguous_timestamp(civil).offset() {
            AmbiguousOffset::Unambiguous { offset }
            | AmbiguousOffset::Fold { before: offset, .. } => offset.to_timestamp(civil).ok(),
            AmbiguousOffset::Gap { after, .. } => {
                // By the later offset, the time is before the change.
                let before_change = after.to_timestamp(civil).ok()?;
                self.zone.following(before_change).next().map(|change| change.timestamp())
            }
        }
    }
}

/// Returns whether the day of the month or of the week begins with `*`. As in vixie-cron, a day
/// then has to match both fields, and otherwise either.
fn has_day_with_star(expression: &str) -> bool {
    let mut fields = expression.rsplit(' ');
    let (day_of_week, day_of_month) = (fields.next(), fields.nth(1));
    [day_of_week, day_of_month].into_iter().flatten().any(|field| field.starts_with('*'))
}

/// Formats the expression and the zone: `0 2 * * 1-5 Europe/Berlin`.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.text, self.zone_name)
    }
}

/// What the clock on the wall shows, without a zone.
#[derive(Clone)]
struct Civil(DateTime);

impl CronDateTime for Civil {
    fn to_civil(&self) -> CivilDateTime {
        let number = |value: i8| u32::try_from(value).unwrap_or_default();
        let (date, time) = (self.0.date(), self.0.time());
        CivilDateTime::new(
            CivilDate::from_parts_unchecked(
                i32::from(date.year()),
                number(date.month()),
                number(date.day()),
            ),
            CivilTime::from_parts_unchecked(
                number(time.hour()),
                number(time.minute()),
                number(time.second()),
            ),
        )
    }

    fn civil_weekday(&self) -> Weekday {
        let days = self.0.weekday().to_sunday_zero_offset();
        Weekday::from_days_from_sunday(u32::try_from(days).unwrap_or_default())
    }

    fn resolve_civil(&self, civil: CivilDateTime) -> Result<Resolution<Civil>, CronError> {
        let number = |value: u32| i8::try_from(value).unwrap_or_default();
        let year = i16::try_from(civil.year()).map_err(|_| CronError::InvalidTime)?;
        DateTime::new(
            year,
            number(civil.month()),
            number(civil.day()),
            number(civil.hour()),
            number(civil.minute()),
            number(civil.second()),
            0,
        )
        .map(|time| Resolution::Single(Civil(time)))
        .map_err(|_| CronError::InvalidTime)
    }

    fn checked_add_seconds(&self, seconds: i64) -> Option<Civil> {
        self.0.checked_add(SignedDuration::from_secs(seconds)).ok().map(Civil)
    }

    fn cmp_instant(&self, other: &Civil) -> Ordering {
        self.0.cmp(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct Vector {
        name: String,
        cron: String,
        zone: String,
        now: String,
        next: Vec<String>,
    }

    fn timestamp(text: &str) -> Timestamp {
        let instant: Instant = text.parse().expect("a time");
        Timestamp(i64::try_from(instant.as_nanosecond()).expect("in range"))
    }

    #[test]
    fn the_next_five_slots_are_those_of_the_vectors() {
        let text = include_str!("../../../tests/conformance/schedules.json");
        let vectors: Vec<Vector> = serde_json::from_str(text).expect("well formed");
        for Vector { name, cron, zone, now, next } in vectors {
            let calendar = Calendar::parse(&cron, &zone).expect("valid");
            let mut found = Vec::new();
            let mut time = timestamp(&now);
            for _ in 0..next.len() {
                time = calendar.next_after(time).expect("another slot");
                found.push(time);
            }
            let next: Vec<Timestamp> = next.iter().map(|text| timestamp(text)).collect();
            assert_eq!(found, next, "{name}: {cron} {zone}");
        }
    }

    #[test]
    fn expressions_and_zones_that_cannot_be_used_are_explained() {
        let error =
            |cron: &str, zone: &str| Calendar::parse(cron, zone).expect_err("refused").to_string();
        let never = "no day ever matches it, so it would never fire";
        assert_eq!(error("0 0 30 2 *", "UTC"), never);
        assert_eq!(error("0 0 31 4,6 *", "UTC"), never);
        assert_eq!(
            error("0 0 * * *", "Europe/Berln"),
            "there is no such time zone; did you mean \"Europe/Berlin\"?"
        );
        for cron in ["", "* * *", "61 * * * *", "0 0 * * 1#6", "0 0 1 1 * 2030 1", "0 22-2 * * *"] {
            let text = error(cron, "UTC");
            assert!(!text.is_empty() && text != never, "{cron}: {text}");
        }
    }

    #[test]
    fn each_slot_is_after_the_one_before() {
        for zone in ["Europe/Berlin", "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia"] {
            for cron in ["*/7 * * * *", "30 1,2,3 * * *", "*/40 59 * * * *"] {
                let calendar = Calendar::parse(cron, zone).expect("valid");
                let mut time = timestamp("2026-03-01T00:00:00Z");
                for _ in 0..2_000 {
                    let next = calendar.next_after(time).expect("another slot");
                    assert!(next > time, "{cron} {zone}: {next:?} after {time:?}");
                    time = next;
                }
            }
        }
    }
}
