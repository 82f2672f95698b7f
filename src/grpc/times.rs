//! Converts times and durations between protobuf and Rust.

use daemon::api::leases::{self, check_bounds};
use daemon::api::problem::Problem;
use engine::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

const NANOSECONDS_PER_SECOND: i64 = 1_000_000_000;

/// Parses an optional duration. `bounds` are the shortest and the longest one.
///
/// # Errors
///
/// Returns an error that names the field `key` if the duration is out of bounds.
pub(super) fn parse_duration(
    key: &str,
    value: Option<prost_types::Duration>,
    bounds: (Duration, Duration),
) -> Result<Option<Duration>, Problem> {
    let Some(wire_duration) = value else { return Ok(None) };
    let duration = Duration::try_from(wire_duration).ok();
    let format_value =
        || format!("{}.{:09} s", wire_duration.seconds, wire_duration.nanos.unsigned_abs());
    check_bounds(key, duration, format_value, bounds).map(Some)
}

/// Converts the end of a lease to wall-clock time.
pub(super) fn lease_end(end: Instant) -> prost_types::Timestamp {
    to_wire(leases::to_wall_clock(end).0)
}

/// Converts a time on the wall clock.
pub(super) fn to_wire(time: Timestamp) -> prost_types::Timestamp {
    let Timestamp(nanoseconds) = time;
    let (seconds, nanos) = (
        nanoseconds.div_euclid(NANOSECONDS_PER_SECOND),
        nanoseconds.rem_euclid(NANOSECONDS_PER_SECOND) as i32,
    );
    prost_types::Timestamp { seconds, nanos }
}

/// Converts a Unix time in whole seconds.
pub(super) fn timestamp_from_seconds(seconds: u64) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_out_of_bounds_are_rejected() {
        let bounds = (Duration::from_secs(1), Duration::from_secs(60));
        let parse = |seconds, nanos| {
            parse_duration("lease", Some(prost_types::Duration { seconds, nanos }), bounds)
        };
        assert_eq!(parse(1, 500_000_000).unwrap(), Some(Duration::from_millis(1500)));
        for (seconds, nanos) in [(0, 999_999_999), (60, 1), (-5, 0), (i64::MAX, i32::MAX)] {
            let error = parse(seconds, nanos).unwrap_err().to_string();
            assert!(error.contains("lease is ") && error.contains("from 1s to 1m"), "{error}");
        }
        assert_eq!(parse_duration("lease", None, bounds).unwrap(), None);
    }
}
