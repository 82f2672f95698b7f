//! The terminal or file to which the output goes: its width, its colours, and the format of times.

use super::arguments::{TimeArguments, TimeStyle};
use crate::clock;
use crate::engine::Timestamp;
use crate::engine::words::escaped;
use crate::times;
use console::Term;
use std::borrow::Cow;
use std::io::{self, IsTerminal, Write, stdout};

/// Where the output goes, and how it is formatted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Screen {
    /// The number of columns of a terminal, or `None` without a terminal.
    pub(super) width: Option<usize>,
    is_coloured: bool,
    times: Times,
    now: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Times {
    /// Unchanged.
    Exact,
    /// Truncated to whole seconds.
    Seconds,
    Local,
    Relative,
}

impl Screen {
    /// Makes a screen for standard output.
    pub(super) fn of(times: TimeArguments) -> Screen {
        let width = Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
        let times = match times.time {
            Some(TimeStyle::Utc) => Times::Exact,
            Some(TimeStyle::Local) => Times::Local,
            Some(TimeStyle::Relative) => Times::Relative,
            None if width.is_some() => Times::Seconds,
            None => Times::Exact,
        };
        let is_coloured = coloured(stdout().is_terminal(), |name| std::env::var(name).ok());
        Screen { width, is_coloured, times, now: clock::now() }
    }

    /// Removes the limit of the width. Times are printed unchanged unless the arguments say
    /// otherwise.
    pub(super) fn whole(self, asked: TimeArguments) -> Screen {
        let times = if asked.time.is_none() { Times::Exact } else { self.times };
        Screen { width: None, times, ..self }
    }

    /// Formats a time.
    pub(super) fn time<'t>(&self, time: &'t str) -> Cow<'t, str> {
        let Some(at) = times::parsed(time) else { return Cow::Borrowed(time) };
        match self.times {
            Times::Exact => Cow::Borrowed(time),
            Times::Seconds => Cow::Owned(whole_seconds(time)),
            Times::Local => local(at).map_or(Cow::Borrowed(time), Cow::Owned),
            Times::Relative => Cow::Owned(relative(at, self.now)),
        }
    }

    /// Returns a text in the colour of this state.
    pub(super) fn painted<'t>(&self, text: &'t str, word: &str) -> Cow<'t, str> {
        match colour(word) {
            Some(code) if self.is_coloured => Cow::Owned(format!("\u{1b}[{code}m{text}\u{1b}[0m")),
            Some(_) | None => Cow::Borrowed(text),
        }
    }
}

/// Prints JSON unchanged, but on a terminal with control characters escaped.
pub(super) fn print_json(json: &str, out: &mut dyn Write) -> io::Result<()> {
    if stdout().is_terminal() {
        writeln!(out, "{}", harmless_json(json))
    } else {
        writeln!(out, "{json}")
    }
}

/// Escapes control characters in JSON as `\u001b`, which keeps its meaning: apart from blanks, they
/// can only stand in strings.
pub(super) fn harmless_json(json: &str) -> Cow<'_, str> {
    let is_unsafe = |c: char| {
        !matches!(c, '\n' | '\t') && matches!(escaped(c.encode_utf8(&mut [0; 4])), Cow::Owned(_))
    };
    if !json.contains(is_unsafe) {
        return Cow::Borrowed(json);
    }
    let mut shown = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match c {
            '\r' => shown.push(' '),
            c if is_unsafe(c) => shown.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// Returns whether to print colours (<https://no-color.org>, <https://bixense.com/clicolors>).
fn coloured(is_terminal: bool, variable: impl Fn(&str) -> Option<String>) -> bool {
    let is_set = |name: &str| variable(name).is_some_and(|value| !value.is_empty());
    let is_on = |name: &str| variable(name).is_some_and(|value| !matches!(&*value, "" | "0"));
    if is_set("NO_COLOR") {
        return false;
    }
    let is_off = variable("CLICOLOR").is_some_and(|value| value == "0")
        || variable("TERM").is_some_and(|value| value == "dumb");
    is_on("CLICOLOR_FORCE") || is_terminal && !is_off
}

/// Returns the colour code of a state: green for done, red for wrong, yellow for attention, blue
/// for running.
fn colour(word: &str) -> Option<&'static str> {
    match word {
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
fn whole_seconds(time: &str) -> String {
    let Some((before, fraction)) = time.split_once('.') else { return time.to_owned() };
    format!("{before}{}", fraction.trim_start_matches(|c: char| c.is_ascii_digit()))
}

fn local(at: Timestamp) -> Option<String> {
    let at = jiff::Timestamp::from_nanosecond(i128::from(at.0)).ok()?;
    let there = at.to_zoned(jiff::tz::TimeZone::system());
    Some(there.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

/// Formats a time as `5m ago` or `in 5m`, in the largest unit that is not 0.
fn relative(at: Timestamp, now: Timestamp) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let seconds = now.0.abs_diff(at.0) / 1_000_000_000;
    let shown = UNITS
        .into_iter()
        .find(|(unit, _)| seconds >= *unit)
        .map(|(unit, letter)| format!("{}{letter}", seconds / unit));
    match shown {
        None => "now".to_owned(),
        Some(shown) if at.0 > now.0 => format!("in {shown}"),
        Some(shown) => format!("{shown} ago"),
    }
}

#[cfg(test)]
impl Screen {
    /// Makes a screen of this width, without colours.
    pub(super) fn wide(width: Option<usize>) -> Screen {
        Screen { width, is_coloured: false, times: Times::Exact, now: Timestamp(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_unless_the_environment_says_otherwise() {
        let with = |is_terminal, set: &[(&str, &str)]| {
            coloured(is_terminal, |name| {
                let found = set.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert!(with(true, &[]) && !with(false, &[]));
        assert!(!with(true, &[("NO_COLOR", "1")]) && with(true, &[("NO_COLOR", "")]));
        assert!(with(false, &[("CLICOLOR_FORCE", "1")]));
        assert!(!with(false, &[("CLICOLOR_FORCE", "0")]));
        assert!(!with(true, &[("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")]), "NO_COLOR wins");
        assert!(!with(true, &[("TERM", "dumb")]) && !with(true, &[("CLICOLOR", "0")]));
    }

    #[test]
    fn json_on_a_terminal_means_the_same_and_commands_nothing() {
        let json = "{\"a\":\"\u{9b}31m \u{202e}x\u{7f} é\"}\r\n";
        let shown = harmless_json(json);
        assert_eq!(shown, "{\"a\":\"\\u009b31m \\u202ex\\u007f é\"} \n");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
        assert_eq!(value(&shown), value(json));
    }

    #[test]
    fn times_are_shown_as_asked() {
        let at = "2026-01-31T12:00:00.123456789Z";
        let now = times::parsed("2026-01-31T12:05:59Z").expect("a time");
        let shown = |times| {
            let screen = Screen { width: None, is_coloured: false, times, now };
            screen.time(at).into_owned()
        };
        assert_eq!(shown(Times::Exact), at);
        assert_eq!(shown(Times::Seconds), "2026-01-31T12:00:00Z");
        assert_eq!(shown(Times::Relative), "5m ago");
        assert_eq!(Screen::wide(None).time("soon"), "soon", "what is no time stays as it is");
        let after = |seconds: i64| Timestamp(now.0 + seconds * 1_000_000_000);
        assert_eq!(relative(after(7_200), now), "in 2h");
        assert_eq!(relative(now, now), "now");
        assert_eq!(relative(now, after(200_000)), "2d ago");
    }
}
