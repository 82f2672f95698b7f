//! How output is adapted to the terminal or file that it is written to: width, colours, and the
//! format of times.

use super::arguments::{TimeArguments, TimeStyle};
use base::clock;
use base::times;
use console::Term;
use engine::Timestamp;
use engine::text::escape;
use std::borrow::Cow;
use std::io::{self, IsTerminal, Write, stdout};

/// How output is formatted for a terminal or a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Screen {
    /// The number of columns of the terminal. `None` if there is no terminal, or no limit.
    pub(super) width: Option<usize>,
    has_colours: bool,
    time_format: TimeFormat,
    /// The time that relative times refer to.
    now: Timestamp,
}

/// A format of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeFormat {
    /// Unchanged.
    Exact,
    /// Truncated to whole seconds.
    Seconds,
    /// In the time zone of this machine.
    Local,
    /// As a distance from now, such as `5m ago`.
    Relative,
}

impl Screen {
    /// Makes a screen for standard output.
    pub(super) fn for_stdout(times: TimeArguments) -> Screen {
        let width = Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
        let time_format = match times.time {
            Some(TimeStyle::Utc) => TimeFormat::Exact,
            Some(TimeStyle::Local) => TimeFormat::Local,
            Some(TimeStyle::Relative) => TimeFormat::Relative,
            None if width.is_some() => TimeFormat::Seconds,
            None => TimeFormat::Exact,
        };
        let has_colours = wants_colours(stdout().is_terminal(), |name| std::env::var(name).ok());
        Screen { width, has_colours, time_format, now: clock::now() }
    }

    /// Removes the limit of the width. Without a style in the arguments, times are printed
    /// unchanged, even on a terminal.
    pub(super) fn without_width(self, arguments: TimeArguments) -> Screen {
        let time_format =
            if arguments.time.is_none() { TimeFormat::Exact } else { self.time_format };
        Screen { width: None, time_format, ..self }
    }

    /// Formats an RFC 3339 time. Any other text is returned unchanged.
    pub(super) fn format_time<'t>(&self, time: &'t str) -> Cow<'t, str> {
        let Some(timestamp) = times::parse_rfc3339(time) else { return Cow::Borrowed(time) };
        match self.time_format {
            TimeFormat::Exact => Cow::Borrowed(time),
            TimeFormat::Seconds => Cow::Owned(strip_fraction(time)),
            TimeFormat::Local => format_local(timestamp).map_or(Cow::Borrowed(time), Cow::Owned),
            TimeFormat::Relative => Cow::Owned(format_relative(timestamp, self.now)),
        }
    }

    /// Colours a text by a state, if there are colours.
    pub(super) fn colour<'t>(&self, text: &'t str, state: &str) -> Cow<'t, str> {
        match colour_code(state) {
            Some(code) if self.has_colours => Cow::Owned(format!("\u{1b}[{code}m{text}\u{1b}[0m")),
            Some(_) | None => Cow::Borrowed(text),
        }
    }
}

/// Prints JSON. On a terminal, control characters are escaped. Otherwise it is unchanged.
pub(super) fn print_json(json: &str, out: &mut dyn Write) -> io::Result<()> {
    if stdout().is_terminal() {
        writeln!(out, "{}", escape_json(json))
    } else {
        writeln!(out, "{json}")
    }
}

/// Escapes control characters in JSON as `\u001b`. The value stays the same: apart from whitespace,
/// control characters occur only in strings.
pub(super) fn escape_json(json: &str) -> Cow<'_, str> {
    let is_unsafe = |c: char| {
        !matches!(c, '\n' | '\t') && matches!(escape(c.encode_utf8(&mut [0; 4])), Cow::Owned(_))
    };
    if !json.contains(is_unsafe) {
        return Cow::Borrowed(json);
    }
    let mut escaped_json = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            // Outside of strings, where valid JSON has no other control characters.
            '\r' => escaped_json.push(' '),
            c if is_unsafe(c) => escaped_json.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => escaped_json.push(c),
        }
    }
    Cow::Owned(escaped_json)
}

/// Returns whether to print colours (<https://no-color.org>, <https://bixense.com/clicolors>).
/// `read_variable` returns the value of an environment variable.
fn wants_colours(is_terminal: bool, read_variable: impl Fn(&str) -> Option<String>) -> bool {
    let is_disabled = read_variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    if is_disabled {
        return false;
    }
    let is_forced =
        read_variable("CLICOLOR_FORCE").is_some_and(|value| !matches!(&*value, "" | "0"));
    let is_plain_terminal = read_variable("CLICOLOR").is_some_and(|value| value == "0")
        || read_variable("TERM").is_some_and(|value| value == "dumb");
    is_forced || is_terminal && !is_plain_terminal
}

/// Returns the ANSI code (SGR) that colours a state: green for completed, red for failed, yellow
/// for what needs attention, blue for running, magenta for cancelled, and dim for the others.
fn colour_code(state: &str) -> Option<&'static str> {
    match state {
        "completed" | "ok" => Some("32"),
        "failed" | "error" => Some("31"),
        "paused" | "warning" => Some("33"),
        "running" => Some("34"),
        "cancelled" => Some("35"),
        "waiting" | "skipped" => Some("2"),
        _ => None,
    }
}

/// Removes the fraction of a time such as `2026-01-31T12:00:00.123456789Z`.
fn strip_fraction(time: &str) -> String {
    let Some((seconds, fraction_and_zone)) = time.split_once('.') else { return time.to_owned() };
    let zone = fraction_and_zone.trim_start_matches(|c: char| c.is_ascii_digit());
    format!("{seconds}{zone}")
}

/// Formats a time in the time zone of this machine. Returns `None` if it is out of range.
fn format_local(timestamp: Timestamp) -> Option<String> {
    format_here(timestamp, "%Y-%m-%d %H:%M:%S")
}

/// Formats the time of day in the time zone of this machine. It is empty if it is out of range.
pub(super) fn format_time_of_day(timestamp: Timestamp) -> String {
    format_here(timestamp, "%H:%M:%S").unwrap_or_default()
}

/// Formats a time in the time zone of this machine. Returns `None` if it is out of range.
fn format_here(timestamp: Timestamp, format: &str) -> Option<String> {
    let instant = jiff::Timestamp::from_nanosecond(i128::from(timestamp.0)).ok()?;
    let local_time = instant.to_zoned_datetime(jiff::tz::TimeZone::system());
    Some(local_time.strftime(format).to_string())
}

/// Formats a time as `5m ago` or `in 5m`, in whole numbers of the largest unit that fits.
fn format_relative(timestamp: Timestamp, now: Timestamp) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let seconds = now.0.abs_diff(timestamp.0) / 1_000_000_000;
    let distance = UNITS
        .into_iter()
        .find(|(unit, _)| seconds >= *unit)
        .map(|(unit, letter)| format!("{}{letter}", seconds / unit));
    match distance {
        None => "now".to_owned(),
        Some(distance) if timestamp.0 > now.0 => format!("in {distance}"),
        Some(distance) => format!("{distance} ago"),
    }
}

#[cfg(test)]
impl Screen {
    /// Makes a screen of this width, without colours, that leaves times unchanged.
    pub(super) fn with_width(width: Option<usize>) -> Screen {
        Screen { width, has_colours: false, time_format: TimeFormat::Exact, now: Timestamp(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_unless_the_environment_overrides_it() {
        let has_colours = |is_terminal, variables: &[(&str, &str)]| {
            wants_colours(is_terminal, |name| {
                let entry = variables.iter().find(|(key, _)| *key == name);
                entry.map(|(_, value)| (*value).to_owned())
            })
        };
        assert!(has_colours(true, &[]) && !has_colours(false, &[]));
        assert!(!has_colours(true, &[("NO_COLOR", "1")]) && has_colours(true, &[("NO_COLOR", "")]));
        assert!(has_colours(false, &[("CLICOLOR_FORCE", "1")]));
        assert!(!has_colours(false, &[("CLICOLOR_FORCE", "0")]));
        let both = [("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")];
        assert!(!has_colours(true, &both), "NO_COLOR takes precedence");
        assert!(!has_colours(true, &[("TERM", "dumb")]));
        assert!(!has_colours(true, &[("CLICOLOR", "0")]));
    }

    #[test]
    fn escaped_json_has_the_same_value_and_no_control_characters() {
        let json = "{\"a\":\"\u{9b}31m \u{202e}x\u{7f} é\"}\r\n";
        let escaped = escape_json(json);
        assert_eq!(escaped, "{\"a\":\"\\u009b31m \\u202ex\\u007f é\"} \n");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
        assert_eq!(value(&escaped), value(json));
    }

    #[test]
    fn times_have_the_requested_format() {
        let time = "2026-01-31T12:00:00.123456789Z";
        let now = times::parse_rfc3339("2026-01-31T12:05:59Z").expect("a time");
        let format_as = |time_format| {
            let screen = Screen { width: None, has_colours: false, time_format, now };
            screen.format_time(time).into_owned()
        };
        assert_eq!(format_as(TimeFormat::Exact), time);
        assert_eq!(format_as(TimeFormat::Seconds), "2026-01-31T12:00:00Z");
        assert_eq!(format_as(TimeFormat::Relative), "5m ago");
        assert_eq!(
            Screen::with_width(None).format_time("soon"),
            "soon",
            "a text that is not a time is unchanged"
        );
        let after = |seconds: i64| Timestamp(now.0 + seconds * 1_000_000_000);
        assert_eq!(format_relative(after(7_200), now), "in 2h");
        assert_eq!(format_relative(now, now), "now");
        assert_eq!(format_relative(now, after(200_000)), "2d ago");
    }
}
