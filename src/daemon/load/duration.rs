//! Parses durations in workflow files: whole numbers with units, such as `30s` or `1h30m`.

use engine::Millis;

/// The longest duration that a workflow file may contain: ten years of 365 days.
pub(crate) const DURATION_MAX: Millis = Millis(3_650 * 24 * 3_600_000);

/// Parses whole numbers with units, the larger unit first and each unit at most once. Returns
/// `None` for any other text, and if the duration overflows.
pub(crate) fn parse(text: &str) -> Option<Millis> {
    let mut remaining = text;
    let mut units = Millis::UNITS.iter();
    let mut total_millis: u64 = 0;
    while !remaining.is_empty() {
        let after_number = remaining.trim_start_matches(|c: char| c.is_ascii_digit());
        let number = &remaining[..remaining.len() - after_number.len()];
        let after_unit = after_number.trim_start_matches(|c: char| c.is_ascii_alphabetic());
        let unit = &after_number[..after_number.len() - after_unit.len()];
        // The iterator is already past the previous unit, so a larger or equal unit is not found.
        let (_, millis) = units.find(|(name, _)| *name == unit)?;
        total_millis =
            total_millis.checked_add(number.parse::<u64>().ok()?.checked_mul(*millis)?)?;
        remaining = after_unit;
    }
    if text.is_empty() { None } else { Some(Millis(total_millis)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_whole_numbers_with_units() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("3d", 259_200_000),
            ("1h30m", 5_400_000),
            ("1d2h3m4s5ms", 93_784_005),
        ] {
            assert_eq!(parse(text), Some(Millis(millis)), "{text}");
            assert_eq!(Millis(millis).to_string(), text);
        }
        assert_eq!(
            (parse("0s"), parse("00ms"), Millis(0).to_string().as_str()),
            (Some(Millis(0)), Some(Millis(0)), "0s")
        );
        assert_eq!(Millis(90_000).to_string(), "1m30s");
        for invalid in [
            "",
            "30",
            "s",
            "1 s",
            " 1s",
            "1.5h",
            "-1s",
            "+1s",
            "1S",
            "1sec",
            "1month",
            "1w",
            "1y",
            "1m1h",
            "1s1s",
            "1h 30m",
            "1e3s",
            "99999999999999999999s",
            "99999999999999d",
            "1s\n",
            "１s",
        ] {
            assert_eq!(parse(invalid), None, "{invalid:?}");
        }
    }
}
