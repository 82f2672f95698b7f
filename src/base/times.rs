//! Formats times as RFC 3339 in UTC or as Unix seconds, and parses RFC 3339 and `Retry-After`.

use engine::Timestamp;
use jiff::civil::{DateTime, date};
use serde::{Serialize, Serializer};
use std::time::Duration;

/// The number of nanoseconds in a second.
const NS_PER_SECOND: i64 = 1_000_000_000;

/// A time that is serialized as RFC 3339 in UTC, with nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rfc3339Time(pub Timestamp);

impl Serialize for Rfc3339Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:.9}", to_jiff(self.0)))
    }
}

/// Formats a time as RFC 3339 in UTC, with milliseconds. The texts sort in the order of the times.
pub fn format_rfc3339(time: Timestamp) -> String {
    time.to_rfc3339()
}

/// Returns the whole seconds since 1970-01-01 UTC; 0 for an earlier time.
pub fn unix_seconds(time: Timestamp) -> u64 {
    Timestamp(0).duration_until(time).as_secs()
}

/// Parses RFC 3339 with any offset: `2026-01-31T12:00:00Z`, `2026-01-31T12:00:00+01:00`. Without an
/// offset the time would be ambiguous, so it is rejected. A space is accepted in place of `+`,
/// because `+` in a URL query is decoded to a space, and in place of `T`, as RFC 3339 allows. A
/// time before 1970 or after April 2262 becomes the nearest time in this range, and second 60
/// becomes 59. Returns `None` if the text is not a valid time of this form.
pub fn parse_rfc3339(text: &str) -> Option<Timestamp> {
    let (local, offset_s) = split_offset(text)?;
    let (date_time, fraction) = local.split_at_checked("2026-01-31T12:00:00".len())?;
    let fraction_digits = fraction.strip_prefix('.').unwrap_or(fraction);
    // jiff also accepts other forms of ISO 8601.
    let has_expected_form = [(4, b'-'), (13, b':'), (16, b':')]
        .into_iter()
        .all(|(index, separator)| date_time.as_bytes().get(index) == Some(&separator))
        && (fraction.is_empty() || fraction.starts_with('.'))
        && fraction_digits.bytes().all(|byte| byte.is_ascii_digit());
    let date_time: DateTime = has_expected_form.then(|| date_time.parse().ok()).flatten()?;
    let seconds = date_time.duration_since(date(1970, 1, 1).at(0, 0, 0, 0)).as_secs() - offset_s;
    // Padded or truncated to nine digits.
    let subsecond_ns: i64 = format!("{fraction_digits:0<9.9}").parse().ok()?;
    let since_epoch_ns = seconds.saturating_mul(NS_PER_SECOND).saturating_add(subsecond_ns);
    Some(Timestamp(since_epoch_ns.max(0)))
}

/// The length of an offset such as `+01:00`, in bytes.
const OFFSET_BYTES: usize = 6;

/// Splits the text of a time into the local time and its offset from UTC in seconds, positive east
/// of Greenwich. Returns `None` if it has no valid offset.
fn split_offset(text: &str) -> Option<(&str, i64)> {
    if let Some(local) = text.strip_suffix(['Z', 'z']) {
        return Some((local, 0));
    }
    let (local, offset) =
        text.len().checked_sub(OFFSET_BYTES).and_then(|index| text.split_at_checked(index))?;
    let sign = match offset.as_bytes() {
        [b'+' | b' ', _, _, b':', _, _] => 1,
        [b'-', _, _, b':', _, _] => -1,
        _ => return None,
    };
    let parse_number = |digits: &str, max: i64| {
        // `str::parse` also accepts a sign.
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<i64>().ok().filter(|number| is_number && *number <= max)
    };
    let hours = parse_number(offset.get(1..3)?, 23)?;
    let minutes = parse_number(offset.get(4..6)?, 59)?;
    Some((local, sign * (hours * 3_600 + minutes * 60)))
}

/// Parses the value of a `Retry-After` header: a number of seconds, or an HTTP date in its current
/// form (IMF-fixdate). Returns the delay from `now`, zero for a date that has passed; `None` if the
/// value has another form.
pub(crate) fn parse_retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(value).ok()?;
    let delay_ns = date.as_nanosecond().saturating_sub(i128::from(now.0));
    Some(Duration::from_nanos(u64::try_from(delay_ns.max(0)).unwrap_or(u64::MAX)))
}

/// Converts a time for formatting; one before 1970 becomes 1970.
fn to_jiff(time: Timestamp) -> jiff::Timestamp {
    // The addition cannot overflow: the library's range is far wider than an i64 of nanoseconds.
    jiff::Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_nanos(time.0.max(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_a_number_of_seconds_or_a_time() {
        let now = Timestamp(784_111_767_000_000_000);
        assert_eq!(parse_retry_after(" 7 ", now), Some(Duration::from_secs(7)));
        let until = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(parse_retry_after(until, now), Some(Duration::from_secs(10)));
        assert_eq!(parse_retry_after(until, Timestamp(i64::MAX)), Some(Duration::ZERO));
        let far = "Thu, 31 Dec 9998 23:59:59 GMT";
        assert!(parse_retry_after(far, now) > Some(Duration::from_secs(500 * 365 * 86_400)));
        assert_eq!(parse_retry_after("soon", now), None);
        assert_eq!(parse_retry_after("-1", now), None);
    }

    #[test]
    fn times_are_formatted_to_nanoseconds_or_milliseconds() {
        for (time_ns, nanoseconds, milliseconds) in [
            (i64::MIN, "1970-01-01T00:00:00.000000000Z", "1970-01-01T00:00:00.000Z"),
            (1, "1970-01-01T00:00:00.000000001Z", "1970-01-01T00:00:00.000Z"),
            (
                1_769_860_800_999_999_999,
                "2026-01-31T12:00:00.999999999Z",
                "2026-01-31T12:00:00.999Z",
            ),
            (i64::MAX, "2262-04-11T23:47:16.854775807Z", "2262-04-11T23:47:16.854Z"),
        ] {
            let time = Timestamp(time_ns);
            assert_eq!(serde_json::json!(Rfc3339Time(time)), nanoseconds);
            assert_eq!(format_rfc3339(time), milliseconds);
        }
    }

    #[test]
    fn a_time_is_parsed_with_any_offset() {
        let noon = parse_rfc3339("2026-01-31T12:00:00Z").expect("a time");
        for same in [
            "2026-01-31t12:00:00z",
            "2026-01-31T12:00:00.000Z",
            "2026-01-31T13:00:00+01:00",
            "2026-01-31T13:00:00 01:00",
            "2026-01-31 13:00:00 01:00",
            "2026-01-31T06:30:00-05:30",
            "2026-02-01T11:59:00.000000000+23:59",
            "2026-01-31T12:00:00-00:00",
            "2026-01-31T12:00:00.Z",
            "2026-01-31T12:00:00.0000000009Z",
        ] {
            assert_eq!(parse_rfc3339(same), Some(noon), "{same}");
        }
        for early in
            ["1970-01-01T00:00:00+01:00", "0926-05-16T07:28:58-01:44", "1969-12-31T23:59:59Z"]
        {
            assert_eq!(parse_rfc3339(early), Some(Timestamp(0)), "{early}");
        }
        let since_noon_ns = |text: &str| parse_rfc3339(text).map(|time| time.0 - noon.0);
        assert_eq!(since_noon_ns("2026-01-31T12:00:00.5Z"), Some(500_000_000));
        assert_eq!(since_noon_ns("2026-01-31T12:00:60.000000001Z"), Some(59_000_000_001));
        for late in ["2263-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999-23:59"] {
            assert_eq!(parse_rfc3339(late), Some(Timestamp(i64::MAX)), "{late}");
        }
        let invalid = [
            "",
            "0926-13-16T07:28:58Z",
            "noon",
            "Z",
            "+01:00",
            "2026-01-31",
            "2026-01-31T12:00:00",
            "2026-01-31 12:00:00",
            "2026-01-31T12:00:00.5",
            "2026-01-31T12:00:00 Z",
            "2026-01-31T12:00:00+24:00",
            "2026-01-31T12:00:00+01:60",
            "2026-01-31T12:00:00+1:00",
            "2026-02-29T12:00:00Z",
            "1900-02-29T12:00:00Z",
            "2026-01-31T24:00:00Z",
            "2026-01-31T12:00:00,5Z",
            "2026-01-31T12:00:00.5.5Z",
            "2026-01-31T12:00:005Z",
            "2026-01-31T12:00Z",
            "2026-01-31T12:00-01Z",
            "20260131T1200-01:00Z",
            "+002026-01-31T12:00:00Z",
            "2026-01-31T12:00:00+00:00+01:00",
            "2026-01-31T12:00:00[UTC]Z",
        ];
        for text in invalid.into_iter().chain([
            "2026-01-31T12:00:00++1:00",
            "2026-01-31T12:00:00Z+01:00",
            "ü01:00",
        ]) {
            assert_eq!(parse_rfc3339(text), None, "{text}");
        }
    }
}
