//! The log on standard error. A thread of its own writes the lines, so that a standard error that
//! blocks or fails stops nothing else. The size of lines is bounded, and lines that cannot be
//! written are dropped and counted.

use super::line_queue::LineQueue;
use crate::settings::{LogFormat, LogSettings, targets_of_module};
use engine::text::{EscapingWriter, escape_lines, is_unsafe_to_print, truncate};
use prometheus::{IntCounter, IntCounterVec, Opts};
use serde_json::Value;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::panic::PanicHookInfo;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::{FilterExt, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FormatFields, MakeWriter};
use tracing_subscriber::layer::{Context, Filter, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// The longest line, in bytes. Longer ones are shortened.
const LINE_BYTES_MAX: usize = 16 * 1024;

/// The length to which the texts in a JSON line that is too long are truncated, in bytes.
const SHORTENED_TEXT_BYTES_MAX: usize = 1024;

/// How long [`flush`] waits for lines to be written before the process ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a panicking thread waits for the line about the panic to be written. The process may
/// end right after the panic.
const PANIC_FLUSH_TIMEOUT: Duration = Duration::from_millis(100);

/// The minimum interval between two lines of an HTTP library about connections.
const CONNECTION_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The target under which the HTTP library logs failed connections, one line each.
const HTTP1_TARGET: &str = "actix_http::h1";

/// The target under which the HTTP/2 library logs frames that it rejects.
const HTTP2_TARGET: &str = "h2";

/// The counter `workflow_log_lines_dropped_total`.
#[allow(clippy::expect_used, reason = "the name is a constant; each start tests it")]
pub(super) static LINES_DROPPED: LazyLock<IntCounter> = LazyLock::new(|| {
    let help = "lines of the log that could not be written, or did not fit into its buffer";
    IntCounter::new("workflow_log_lines_dropped_total", help).expect("a valid name")
});

/// The counter `workflow_http_connection_errors_total{kind}`.
#[allow(clippy::expect_used, reason = "the names are constants; each start tests them")]
pub(super) static CONNECTION_ERRORS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let help = "HTTP connections that ended in an error";
    IntCounterVec::new(Opts::new("workflow_http_connection_errors_total", help), &["kind"])
        .expect("valid names")
});

/// The log of the process, once it is started.
static LOG: OnceLock<Arc<LineQueue>> = OnceLock::new();

/// Why the log cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter cannot be parsed.
    #[error("{0}")]
    Filter(String),
    /// The log cannot be started.
    #[error("the log cannot be started: {0}")]
    Start(#[from] io::Error),
}

/// Starts the thread of the log, so that no other thread waits for standard error. Further calls
/// change nothing.
///
/// # Errors
///
/// Returns an error if standard error cannot be duplicated, or the thread cannot be started.
pub fn start() -> Result<(), LogError> {
    if LOG.get().is_none() {
        // A duplicate of the file descriptor, because the standard library locks its own handle
        // while a write blocks.
        let out = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        let queue = LineQueue::start(out, LINES_DROPPED.clone(), |lines| {
            tracing::warn!(lines, "lines of the log were dropped")
        })?;
        // If a concurrent call was faster, the queue of this call never gets a line.
        let _ = LOG.set(queue);
    }
    Ok(())
}

/// Installs the subscriber and the panic hook. The settings determine the format and the filter;
/// `now` reads the clock. Further calls change nothing.
///
/// # Errors
///
/// Returns an error if the filter is invalid, or the log cannot be started.
pub fn init(settings: &LogSettings, now: fn() -> Instant) -> Result<(), LogError> {
    start()?;
    let directives = settings.directives().map_err(LogError::Filter)?;
    let targets =
        directives.iter().fold(Targets::new(), |targets, directive| match &directive.module {
            Some(module) => targets_of_module(module)
                .into_iter()
                .fold(targets, |targets, target| targets.with_target(target, directive.level)),
            None => targets.with_default(directive.level),
        });
    let filter = targets.and(ConnectionLogFilter {
        http1: LogRateLimiter::new(now),
        http2: LogRateLimiter::new(now),
    });
    let is_terminal = io::stderr().is_terminal();
    let is_human = match settings.format {
        LogFormat::Auto => is_terminal,
        LogFormat::Human => true,
        LogFormat::Json => false,
    };
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(LineWriterFactory { is_human })
        .log_internal_errors(false);
    let layer = if is_human {
        layer.fmt_fields(HumanFields).with_ansi(is_terminal).with_filter(filter).boxed()
    } else {
        layer.json().flatten_event(true).with_filter(filter).boxed()
    };
    let error_counter = ConnectionErrorCounter(LogRateLimiter::new(now))
        .with_filter(Targets::new().with_target(HTTP1_TARGET, LevelFilter::ERROR));
    // An error means that a subscriber is installed already, which is left in place.
    if tracing_subscriber::registry().with(layer).with(error_counter).try_init().is_ok() {
        std::panic::set_hook(Box::new(log_panic));
    }
    Ok(())
}

/// Prints a text that is not a log event, such as why the process ends. If the log is started, the
/// text is queued behind the lines of the log.
pub fn print(text: &str) {
    let text = format!("{}\n", escape_lines(text));
    match LOG.get() {
        Some(queue) => queue.push(bound_line(text.as_bytes(), true)),
        // If standard error is closed, nobody can read the text.
        None => drop(io::stderr().write_all(text.as_bytes())),
    }
}

/// Waits until all lines are written, but no longer than one second. Call this before the process
/// ends.
pub fn flush() {
    flush_within(FLUSH_TIMEOUT);
}

/// Waits until all lines are written, but no longer than `timeout`.
fn flush_within(timeout: Duration) {
    if let Some(queue) = LOG.get() {
        queue.flush(timeout);
    }
}

/// Logs a panic. Replaces the hook of the standard library, which would block on a full pipe. Waits
/// for the line to be written, but no longer than [`PANIC_FLUSH_TIMEOUT`].
fn log_panic(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload();
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let (reason, thread) = (text.unwrap_or("a value that is not a text"), std::thread::current());
    let location = panic.location().map(ToString::to_string);
    // The backtrace is captured only if RUST_BACKTRACE is set.
    let backtrace = std::backtrace::Backtrace::capture();
    let backtrace = (backtrace.status() == std::backtrace::BacktraceStatus::Captured)
        .then(|| backtrace.to_string());
    tracing::error!(thread = thread.name(), place = location, reason, backtrace, "panicked");
    flush_within(PANIC_FLUSH_TIMEOUT);
}

/// Creates writers that push formatted lines to the queue of the log.
struct LineWriterFactory {
    /// Whether lines are text for people, not JSON.
    is_human: bool,
}

/// Pushes formatted lines to the queue of the log.
struct LineWriter {
    /// Whether lines are text for people, not JSON.
    is_human: bool,
}

impl MakeWriter<'_> for LineWriterFactory {
    type Writer = LineWriter;

    fn make_writer(&self) -> LineWriter {
        LineWriter { is_human: self.is_human }
    }
}

impl Write for LineWriter {
    /// Pushes a line. The formatter writes each event with one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some(queue) = LOG.get() {
            queue.push(bound_line(line, self.is_human));
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns a line of at most [`LINE_BYTES_MAX`] bytes. In JSON, also escapes unsafe characters;
/// text for people has none, because [`HumanFields`] and [`print`] escape them. JSON stays valid
/// JSON.
fn bound_line(line: &[u8], is_human: bool) -> Vec<u8> {
    let is_plain_byte = |byte: &u8| matches!(byte, b' '..=b'~' | b'\n');
    if is_human || line.iter().all(is_plain_byte) {
        return shorten_line(line, is_human);
    }
    shorten_line(escape_unsafe(&String::from_utf8_lossy(line)).as_bytes(), is_human)
}

/// Escapes the characters of JSON that could move the cursor of a terminal or reverse the direction
/// of text when the log is printed. Such characters occur only within JSON strings, where an escape
/// sequence has the same value.
fn escape_unsafe(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        if character == '\n' || !is_unsafe_to_print(character) {
            escaped.push(character);
        } else {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                escaped.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    escaped
}

/// Returns the line, shortened if it has more than [`LINE_BYTES_MAX`] bytes.
fn shorten_line(line: &[u8], is_human: bool) -> Vec<u8> {
    if line.len() <= LINE_BYTES_MAX {
        return line.to_vec();
    }
    if is_human {
        truncate_line(line).into()
    } else {
        shorten_json(line).unwrap_or_else(|| truncate_line_as_json(line)).into()
    }
}

/// Truncates a line of text for people.
fn truncate_line(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    format!("{}\n", truncate(text.trim_end(), LINE_BYTES_MAX - 1))
}

/// Truncates the long texts of a JSON event. Returns `None` if the line is still too long, or is
/// not a JSON object.
fn shorten_json(line: &[u8]) -> Option<String> {
    let mut event: serde_json::Map<String, Value> = serde_json::from_slice(line).ok()?;
    for value in event.values_mut() {
        if let Value::String(text) = value {
            *text = truncate(text, SHORTENED_TEXT_BYTES_MAX).into_owned();
        }
    }
    let text = escape_unsafe(&format!("{}\n", Value::Object(event)));
    (text.len() <= LINE_BYTES_MAX).then_some(text)
}

/// Returns a JSON event that contains the beginning of the line, for a line that [`shorten_json`]
/// cannot shorten enough.
fn truncate_line_as_json(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    // In JSON, a byte takes at most six bytes, as in `\u0000`. The other two eighths are more than
    // enough for the rest of the event.
    let line = truncate(&text, LINE_BYTES_MAX / 8);
    let event = serde_json::json!({
        "level": "WARN",
        "message": "a line of the log is too long",
        "line": line,
    });
    escape_unsafe(&format!("{event}\n"))
}

/// Formats fields as text for people. Escapes and quotes values, so that none can imitate another
/// line or field, or move the cursor of a terminal.
struct HumanFields;

impl<'w> FormatFields<'w> for HumanFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut field_writer = FieldWriter { writer, is_first: true, result: Ok(()) };
        fields.record(&mut field_writer);
        field_writer.result
    }
}

/// Writes the fields of one event.
struct FieldWriter<'w> {
    writer: Writer<'w>,
    /// Whether no field was written yet.
    is_first: bool,
    /// The first error of the writer.
    result: fmt::Result,
}

impl FieldWriter<'_> {
    /// Writes one field as `name=value`. The message is written without its name.
    fn write(&mut self, name: &str, value: &dyn fmt::Debug) -> fmt::Result {
        if !std::mem::take(&mut self.is_first) {
            self.writer.write_char(' ')?;
        }
        // The style of tracing-subscriber: italic names, and dim equals signs.
        match (name, self.writer.has_ansi_escapes()) {
            ("message", _) => {}
            (_, true) => write!(self.writer, "\u{1b}[3m{name}\u{1b}[0m\u{1b}[2m=\u{1b}[0m")?,
            (_, false) => write!(self.writer, "{name}=")?,
        }
        if name == "message" {
            return write!(EscapingWriter(&mut self.writer), "{value:?}");
        }
        let text = format!("{value:?}");
        if is_one_word(&text) || is_quoted(&text) {
            write!(EscapingWriter(&mut self.writer), "{text}")
        } else {
            // A quoted value cannot imitate another field.
            write!(EscapingWriter(&mut self.writer), "{text:?}")
        }
    }
}

/// Returns whether a value needs no quotes to be distinct from the fields around it.
fn is_one_word(text: &str) -> bool {
    !text.is_empty()
        && !text
            .contains(|character: char| character.is_whitespace() || matches!(character, '=' | '"'))
}

/// Returns whether a value is one quoted text already.
fn is_quoted(text: &str) -> bool {
    let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    let mut is_escaped = false;
    inner.is_some_and(|inner| {
        inner.chars().all(|character| {
            let is_end = character == '"' && !is_escaped;
            is_escaped = character == '\\' && !is_escaped;
            !is_end
        }) && !is_escaped
    })
}

impl Visit for FieldWriter<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.record_debug(field, &format_args!("{value}"))
        } else {
            self.record_debug(field, &value)
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // `tracing-log` adds the target and location of records of the crate `log` as fields
        // `log.…`. They are left out, because the target precedes the fields anyway.
        if self.result.is_ok() && !field.name().starts_with("log.") {
            self.result = self.write(field.name(), value);
        }
    }
}

/// A rate limiter that allows one line in each [`CONNECTION_LOG_INTERVAL`].
struct LogRateLimiter {
    now: fn() -> Instant,
    last_logged: Mutex<Option<Instant>>,
}

impl LogRateLimiter {
    fn new(now: fn() -> Instant) -> LogRateLimiter {
        LogRateLimiter { now, last_logged: Mutex::new(None) }
    }

    /// Returns whether a line may be logged now. If so, starts the next interval.
    fn try_acquire(&self) -> bool {
        let now = (self.now)();
        let mut last_logged = self.last_logged.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last_logged
            .is_none_or(|last| now.saturating_duration_since(last) >= CONNECTION_LOG_INTERVAL);
        if is_due {
            *last_logged = Some(now);
        }
        is_due
    }
}

/// Limits the rate of the HTTP libraries' lines about connections, since any client can cause
/// 10,000 of them per second. Drops the errors of HTTP/1, which [`ConnectionErrorCounter`] handles.
struct ConnectionLogFilter {
    http1: LogRateLimiter,
    http2: LogRateLimiter,
}

impl<S> Filter<S> for ConnectionLogFilter {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        !(metadata.target().starts_with(HTTP1_TARGET) && *metadata.level() == Level::ERROR)
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let target = event.metadata().target();
        // Other crates may have names that begin with `h2_`.
        let is_http2 =
            target.strip_prefix(HTTP2_TARGET).is_some_and(|suffix| !suffix.starts_with('_'));
        if target.starts_with(HTTP1_TARGET) {
            self.http1.try_acquire()
        } else if is_http2 {
            self.http2.try_acquire()
        } else {
            true
        }
    }
}

/// Counts failed HTTP/1 connections, and logs warnings about them at a limited rate. It replaces
/// the library's own lines, which are errors, although the mistake of a client is not an error of
/// the manager.
struct ConnectionErrorCounter(LogRateLimiter);

impl<S: Subscriber> Layer<S> for ConnectionErrorCounter {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut message = MessageVisitor(String::new());
        event.record(&mut message);
        // The HTTP library logs one such line for each failed connection.
        if message.0.starts_with("stream error") {
            let kind = if message.0.contains("parse error") { "malformed" } else { "other" };
            CONNECTION_ERRORS.with_label_values(&[kind]).inc();
            if self.0.try_acquire() {
                tracing::warn!(kind, reason = message.0, "an HTTP connection ended in an error");
            }
        }
    }
}

/// Collects the message of an event.
struct MessageVisitor(String);

impl Visit for MessageVisitor {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // Writing to a string cannot fail.
            let _ = write!(self.0, "{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::fmt::format;

    /// The output of a test's subscriber.
    #[derive(Clone, Default)]
    struct TestOutput(Arc<Mutex<Vec<u8>>>);

    impl Write for TestOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_long_line_is_shortened_and_json_stays_json() {
        assert_eq!(bound_line(b"short\n", true), b"short\n");
        let text_line = bound_line(format!("{}\n", "é".repeat(LINE_BYTES_MAX)).as_bytes(), true);
        let text_line = String::from_utf8(text_line).expect("whole characters");
        assert!(
            text_line.len() <= LINE_BYTES_MAX && text_line.ends_with("é… (cut, 32768 bytes)\n"),
            "{}",
            text_line.len()
        );

        let event =
            serde_json::json!({ "level": "INFO", "job": "j", "reason": "ü".repeat(50_000) });
        let line = bound_line(format!("{event}\n").as_bytes(), false);
        let shortened: Value = serde_json::from_slice(&line).expect("JSON");
        assert!(line.len() <= LINE_BYTES_MAX && line.ends_with(b"\n"));
        assert_eq!((&shortened["level"], &shortened["job"]), (&event["level"], &event["job"]));
        assert!(
            shortened["reason"]
                .as_str()
                .is_some_and(|text| text.ends_with("ü… (cut, 100000 bytes)")),
            "{shortened}"
        );

        for unstructured in [
            format!("[{}]", "1,".repeat(LINE_BYTES_MAX)),
            format!("\u{1}{}", "\u{1}".repeat(2 * LINE_BYTES_MAX)),
        ] {
            let line = bound_line(unstructured.as_bytes(), false);
            assert!(line.len() <= LINE_BYTES_MAX, "{}", line.len());
            let shortened: Value = serde_json::from_slice(&line).expect("JSON");
            assert!(
                shortened["line"].as_str().is_some_and(|text| text.contains("… (cut, ")),
                "{shortened}"
            );
        }
    }

    #[test]
    fn json_is_printed_without_control_characters_and_keeps_its_value() {
        let hostile = "a\u{1b}[2J\n\u{202e}b\u{2028}\u{9b}x\u{7f}ü";
        for event in [
            serde_json::json!({ "level": "INFO", "reason": hostile }),
            serde_json::json!({ "level": "INFO", "reason": hostile.repeat(20_000) }),
        ] {
            let line = bound_line(format!("{event}\n").as_bytes(), false);
            let text = std::str::from_utf8(&line).expect("text");
            let (line, end) = text.split_at(text.len() - 1);
            assert!(
                end == "\n" && !line.contains(is_unsafe_to_print) && line.contains('ü'),
                "{line}"
            );
            let printed_event: Value = serde_json::from_str(line).expect("JSON");
            let reason = printed_event["reason"].as_str().expect("a text");
            assert!(reason.starts_with(hostile), "{reason:?}");
        }
    }

    #[test]
    fn connection_errors_are_logged_once_a_minute_for_each_library() {
        let output = TestOutput::default();
        let writer = output.clone();
        let now = base::clock::timer_now;
        let filter = ConnectionLogFilter {
            http1: LogRateLimiter::new(now),
            http2: LogRateLimiter::new(now),
        };
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .with_filter(Targets::new().with_default(LevelFilter::INFO).and(filter));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            for _ in 0..100 {
                tracing::warn!(target: "h2::proto::ping_pong", "ping");
                tracing::warn!(target: "h2::proto::streams::recv", "reset");
                tracing::warn!(target: "actix_http::h1::dispatcher", "head");
                tracing::warn!(target: "h2_of_others", "own");
            }
        });
        let text = output.0.lock().expect("no panic").clone();
        let text = String::from_utf8(text).expect("text");
        let count_matches = |pattern: &str| text.matches(pattern).count();
        assert_eq!(
            (count_matches("h2::proto"), count_matches("h1::"), count_matches("own")),
            (1, 1, 100)
        );
    }

    #[test]
    fn a_line_for_people_is_one_line_without_control_characters() {
        let output = TestOutput::default();
        let writer = output.clone();
        let layer = tracing_subscriber::fmt::layer()
            .event_format(format().without_time())
            .fmt_fields(HumanFields)
            .with_ansi(false)
            .with_writer(move || writer.clone());
        let hostile = "a\u{1b}[2J\nforged \u{202e}line\u{2028}\u{9b}x";
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::info!(shown = %hostile, quoted = hostile, count = 7, "{hostile}");
            let forged = "x\" level=\"ERROR\" job=1";
            let (word, pair, none) = ("a.b-c:1", "a=b", "");
            tracing::info!(%word, %pair, %none, %forged, debug = ?"a b", "m");
        });
        let text = String::from_utf8(output.0.lock().expect("no panic").clone()).expect("text");
        let plain = r"a\u{1b}[2J\nforged \u{202e}line\u{2028}\u{9b}x";
        assert_eq!(
            text,
            format!(
                " INFO workflow_manager_daemon::telemetry::log::tests: {plain} shown=\"{plain}\" \
                 quoted=\"{plain}\" count=7\n INFO \
                 workflow_manager_daemon::telemetry::log::tests: m word=a.b-c:1 pair=\"a=b\" \
                 none=\"\" \
                 forged=\"x\\\" level=\\\"ERROR\\\" job=1\" debug=\"a b\"\n"
            )
        );
    }
}
