//! A message that is leased to this worker, and the API calls that settle it or extend its lease.

use super::super::client::{ApiResult, Client, ReceivedMessage};
use super::super::error::ClientError;
use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;
use ureq::http::HeaderMap;

/// The environment variables of a program, each with the header that it gets its value from. The
/// names of the variables are part of the worker protocol.
const HEADER_VARIABLES: [(&str, &str); 10] = [
    ("WORKFLOW_CORRELATION_ID", "correlation-id"),
    ("WORKFLOW_MESSAGE_ID", "message-id"),
    ("WORKFLOW_NAME", "workflow"),
    ("WORKFLOW_JOB", "job"),
    ("WORKFLOW_ATTEMPT", "attempt"),
    ("WORKFLOW_DELIVERY", "delivery"),
    ("WORKFLOW_PRIORITY", "priority"),
    ("WORKFLOW_DEPTH", "depth"),
    ("WORKFLOW_TRACEPARENT", "traceparent"),
    ("WORKFLOW_TRACESTATE", "tracestate"),
];

/// The timeout of a reply. It is long, because the manager responds only after a commit.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// The timeout of other calls.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// A message that is leased to this worker.
pub(super) struct WorkMessage {
    queue: String,
    /// The virtual host. Empty for the default one.
    vhost: String,
    /// The headers of the response that delivered the message.
    headers: HeaderMap,
    /// The path of the reply, as an absolute path at the manager's address.
    reply_to: String,
    /// The step's input.
    pub(super) body: Vec<u8>,
}

impl WorkMessage {
    /// Makes a message from the response that delivered it.
    ///
    /// # Errors
    ///
    /// Returns an error if the path of the reply is missing, or is not a path.
    pub(super) fn new(
        queue: &str,
        vhost: &str,
        received: ReceivedMessage,
    ) -> Result<WorkMessage, ClientError> {
        let ReceivedMessage { headers, body } = received;
        let reply_to = header_text(&headers, "reply-to").into_owned();
        // A URL is refused: the token must be sent to the manager only.
        if !reply_to.starts_with('/') {
            return Err(ClientError::Refused(format!(
                "a message of queue {queue} came without the path of its reply (Reply-To): is \
                 something between this worker and the manager?"
            )));
        }
        Ok(WorkMessage {
            queue: queue.to_owned(),
            vhost: vhost.to_owned(),
            headers,
            reply_to,
            body,
        })
    }

    /// Returns the message id, which is the same for each delivery of the message.
    pub(super) fn id(&self) -> String {
        header_text(&self.headers, "message-id").into_owned()
    }

    pub(super) fn reply_to(&self) -> &str {
        &self.reply_to
    }

    /// Replaces the path of the reply after the same message was leased to this worker again.
    pub(super) fn update_lease(&mut self, reply_to: String) {
        self.reply_to = reply_to;
    }

    /// Describes the message for people.
    pub(super) fn describe(&self) -> String {
        let correlation_id = header_text(&self.headers, "correlation-id");
        let (job, _) = correlation_id.split_once(':').unwrap_or((&correlation_id, ""));
        format!(
            "queue {}, job {job}, attempt {}",
            self.queue,
            header_text(&self.headers, "attempt")
        )
    }

    /// Returns the environment variables of the program. A variable without a value must be
    /// removed, so that the program does not inherit it.
    pub(super) fn environment(&self) -> Vec<(&'static str, Option<OsString>)> {
        let read_header = |(name, header): &(&'static str, &str)| {
            let value = self.headers.get(*header);
            (*name, value.map(|value| OsString::from_vec(value.as_bytes().to_vec())))
        };
        let mut variables: Vec<_> = HEADER_VARIABLES.iter().map(read_header).collect();
        let correlation_id = header_text(&self.headers, "correlation-id");
        let step = correlation_id.split_once(':').map(|(_, step)| step.into());
        variables.push(("WORKFLOW_STEP", step));
        variables.push(("WORKFLOW_QUEUE", Some((&self.queue).into())));
        variables.push(("WORKFLOW_VHOST", Some((&self.vhost).into())));
        variables
    }

    /// Sends a reply: a result, or the error of the attempt.
    pub(super) fn reply(&self, client: &Client, is_error: bool, body: &[u8]) -> ApiResult<String> {
        let kind = if is_error { "error" } else { "result" };
        self.call(client, "reply", &[("type", kind)], body, REPLY_TIMEOUT)
    }

    /// Extends the lease to this duration from now.
    pub(super) fn extend(&self, client: &Client, lease: &str) -> ApiResult<String> {
        self.call(client, "extend", &[("lease", lease)], &[], CALL_TIMEOUT)
    }

    /// Requeues the message, which is delivered again after this delay at the earliest. An error is
    /// the reason why that failed.
    pub(super) fn requeue(&self, client: &Client, delay: &str) -> Result<(), String> {
        let parameters = [("requeue", "true"), ("delay", delay)];
        match self.call(client, "nack", &parameters, &[], CALL_TIMEOUT) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err((_, detail))) => Err(detail),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Calls an action on the message.
    fn call(
        &self,
        client: &Client,
        action: &str,
        parameters: &[(&str, &str)],
        body: &[u8],
        timeout: Duration,
    ) -> ApiResult<String> {
        let query: Vec<(String, String)> = parameters
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        client.post_bytes(&self.call_path(action), &query, body, timeout)
    }

    /// Returns the path of an action, which differs from the path of the reply in its last segment.
    fn call_path(&self, action: &str) -> String {
        let (path, query) = match self.reply_to.split_once('?') {
            Some((path, query)) => (path, format!("?{query}")),
            None => (self.reply_to.as_str(), String::new()),
        };
        format!("{}/{action}{query}", path.strip_suffix("/reply").unwrap_or(path))
    }
}

/// Returns the value of a header. Empty if it is missing.
fn header_text<'h>(headers: &'h HeaderMap, name: &str) -> Cow<'h, str> {
    headers.get(name).map_or(Cow::Borrowed(""), |value| String::from_utf8_lossy(value.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(reply_to: &str) -> Result<WorkMessage, ClientError> {
        let headers = [("reply-to", reply_to), ("correlation-id", "4711:a:b")];
        let headers = headers.map(|(name, value)| {
            (name.parse().unwrap(), value.parse::<ureq::http::HeaderValue>().unwrap())
        });
        let headers = headers.into_iter().collect();
        WorkMessage::new("q", "", ReceivedMessage { headers, body: Vec::new() })
    }

    #[test]
    fn calls_differ_from_the_reply_in_the_last_segment_of_the_path() {
        let path = "/api/queue/reply/message/4711%3Aa%3A1/2/";
        let plain = message(&format!("{path}reply")).unwrap();
        assert_eq!(plain.call_path("extend"), format!("{path}extend"));
        let with_vhost = message(&format!("{path}reply?vhost=v")).unwrap();
        assert_eq!(with_vhost.call_path("nack"), format!("{path}nack?vhost=v"));
    }

    #[test]
    fn replies_go_to_the_manager_only() {
        assert!(message("@elsewhere.example/").is_err());
        assert!(message("").is_err());
    }

    #[test]
    fn variables_without_a_header_are_removed() {
        let variables = message("/r").unwrap().environment();
        let value_of = |name| variables.iter().find(|(key, _)| *key == name).unwrap().1.clone();
        assert_eq!(value_of("WORKFLOW_STEP"), Some("a:b".into()));
        assert_eq!(value_of("WORKFLOW_PRIORITY"), None);
    }
}
