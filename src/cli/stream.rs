//! Reads a stream of server-sent events. A background thread reads the body, so that waiting for an
//! event can have a timeout.

use super::error::ClientError;
use super::responses::parse_response;
use super::text::Text;
use engine::JobId;
use serde::Deserialize;
use std::io::{BufRead, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

/// How many events are buffered. Beyond that, a slow terminal causes back-pressure on the stream.
const READ_AHEAD_MAX: usize = 64;

/// The maximum size of a line, in bytes. It is far larger than any event.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// A server-sent event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerSentEvent {
    /// The id. Empty if the event has none.
    pub(super) id: String,
    /// The type, such as `step.completed`.
    pub(super) name: String,
    /// The data: one line of JSON.
    pub(super) data: String,
}

/// The event of a job's end, without the fields that are not used.
#[derive(Deserialize)]
struct EndEvent {
    data: EndEventData,
}

#[derive(Deserialize)]
struct EndEventData {
    job: JobId,
    state: Text,
    reason: Option<Text>,
}

/// How a job ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JobEnd {
    /// The final state.
    pub(super) state: Text,
    /// The reason for the state, which may be truncated. `None` if there is none, as for a
    /// completed job.
    pub(super) reason: Option<Text>,
}

impl ServerSentEvent {
    /// Returns how `job` ended, if this event is its end. The end of a child job is not.
    pub(super) fn job_end(&self, job: JobId) -> Result<Option<JobEnd>, ClientError> {
        if !matches!(&*self.name, "job.completed" | "job.failed" | "job.cancelled") {
            return Ok(None);
        }
        let EndEvent { data } = parse_response(&self.data)?;
        let EndEventData { job: ended_job, state, reason } = data;
        Ok((ended_job == job).then_some(JobEnd { state, reason }))
    }
}

/// The next item of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StreamItem {
    Event(ServerSentEvent),
    /// No event within the timeout.
    TimedOut,
    /// The stream has ended or broken, for this reason.
    Closed(String),
}

/// An open stream of events.
pub(super) struct EventReader(Receiver<Result<ServerSentEvent, String>>);

impl EventReader {
    /// Starts a thread that reads the events of a body. The thread ends with the body, or when it
    /// has an event for a reader that was dropped.
    pub(super) fn new(body: impl BufRead + Send + 'static) -> EventReader {
        let (sender, receiver) = sync_channel(READ_AHEAD_MAX);
        std::thread::spawn(move || {
            let mut parser = EventParser(body);
            while let Some(event) = parser.next() {
                // Sending fails once the reader was dropped.
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        EventReader(receiver)
    }

    /// Waits for the next event.
    pub(super) fn next(&self, timeout: Duration) -> StreamItem {
        match self.0.recv_timeout(timeout) {
            Ok(Ok(event)) => StreamItem::Event(event),
            Ok(Err(error)) => StreamItem::Closed(error),
            Err(RecvTimeoutError::Timeout) => StreamItem::TimedOut,
            Err(RecvTimeoutError::Disconnected) => StreamItem::Closed("it is over".to_owned()),
        }
    }
}

/// Parses the events of a body, as the manager writes them: each field has a blank after the colon,
/// and each event has one line of data.
struct EventParser<R>(R);

impl<R: BufRead> EventParser<R> {
    /// Parses the next event. Returns `None` at the end of the body, even within an event.
    fn next(&mut self) -> Option<Result<ServerSentEvent, String>> {
        let mut event = ServerSentEvent::default();
        loop {
            let line = match self.read_line() {
                Ok(Some(line)) => line,
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            };
            match line.split_once(": ") {
                Some(("id", id)) => id.clone_into(&mut event.id),
                Some(("event", name)) => name.clone_into(&mut event.name),
                Some(("data", data)) => data.clone_into(&mut event.data),
                // A comment, or an unknown field.
                Some(_) => {}
                // An empty line ends an event. The manager sends no other line without a field.
                None if !event.data.is_empty() => return Some(Ok(event)),
                None => {}
            }
        }
    }

    /// Reads a line without its line break. Returns `None` at the end of the body.
    fn read_line(&mut self) -> Result<Option<String>, String> {
        let mut bytes = Vec::new();
        let mut limited_body = (&mut self.0).take(LINE_BYTES_MAX);
        let length =
            limited_body.read_until(b'\n', &mut bytes).map_err(|error| error.to_string())?;
        if length == 0 {
            return Ok(None);
        }
        if bytes.pop() != Some(b'\n') {
            let is_too_long = bytes.len() as u64 + 1 >= LINE_BYTES_MAX;
            let error = if is_too_long { "a line is too long" } else { "it broke off" };
            return Err(error.to_owned());
        }
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
        String::from_utf8(bytes).map(Some).map_err(|_| "it is not UTF-8".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_all(text: &'static str) -> Vec<Result<ServerSentEvent, String>> {
        let mut parser = EventParser(text.as_bytes());
        std::iter::from_fn(|| parser.next()).collect()
    }

    fn event(id: &str, name: &str, data: &str) -> Result<ServerSentEvent, String> {
        Ok(ServerSentEvent { id: id.to_owned(), name: name.to_owned(), data: data.to_owned() })
    }

    #[test]
    fn comments_are_skipped_and_a_truncated_event_is_an_error() {
        let text = ": events\n\nid: 1\nevent: job.running\ndata: {}\n\n: still here\n\r\nevent: \
                    lagged\r\ndata: {\"missed\":2}\r\n\r\nid: 3\nevent: x\ndata: {}\n";
        let expected =
            vec![event("1", "job.running", "{}"), event("", "lagged", r#"{"missed":2}"#)];
        assert_eq!(parse_all(text), expected);
        assert_eq!(parse_all("id: 1\nda"), [Err("it broke off".to_owned())]);
    }

    #[test]
    fn only_the_end_of_the_job_itself_is_its_end() {
        let id = |number: u128| JobId(uuid::Uuid::from_u128(number));
        let parse_end = |name: &str, job: u128| {
            let job = id(job);
            let data = format!(r#"{{"data":{{"job":"{job}","state":"failed","reason":"r"}}}}"#);
            let event = ServerSentEvent { id: String::new(), name: name.to_owned(), data };
            event.job_end(id(1)).map_err(|error| error.to_string())
        };
        let end = JobEnd { state: Text::new("failed"), reason: Some(Text::new("r")) };
        assert_eq!(parse_end("job.failed", 1), Ok(Some(end)));
        assert_eq!(parse_end("job.failed", 2), Ok(None), "of a child job");
        assert_eq!(parse_end("step.failed", 1), Ok(None));
    }
}
