//! Processes one message: parses it, calls the function, and makes the reply. Both transports use
//! this module.

use crate::failure::Failure;
use crate::step::{MessageInfo, Step};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::watch;

/// A boxed future.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Sends the progress of a function over the transport of its message.
pub(crate) trait ProgressSender: Send + Sync {
    /// Sends progress as a JSON object. Errors are logged.
    fn progress(&self, body: Bytes) -> BoxFuture<'_, ()>;
}

/// A function from the message's body and the step to the body of its reply.
pub(crate) type Handler =
    Arc<dyn Fn(Bytes, Step) -> BoxFuture<'static, Result<Vec<u8>, Failure>> + Send + Sync>;

/// A reply to the manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Whether it reports a failed attempt. Otherwise it is the result.
    pub(crate) is_error: bool,
    /// A JSON object.
    pub(crate) body: Bytes,
}

/// How a message is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// The reply is sent, and the message is acknowledged.
    Reply(Reply),
    /// The message is rejected, because it names no queue for a reply.
    Rejected,
    /// The message is not settled, because its result is no longer wanted.
    Dropped,
}

/// Makes a handler from a function with typed input and output.
pub(crate) fn handler<I, O, F, R>(function: F) -> Handler
where
    I: DeserializeOwned,
    O: Serialize,
    F: Fn(I, Step) -> R + Send + Sync + 'static,
    R: Future<Output = Result<O, Failure>> + Send + 'static,
{
    let function = Arc::new(function);
    Arc::new(move |body, step| {
        let function = function.clone();
        Box::pin(async move {
            let future = function(parse_input(&body)?, step);
            serialize_output(&future.await?)
        })
    })
}

/// Parses the input, which must be a JSON object. Otherwise serde would accept an array for a
/// struct.
fn parse_input<I: DeserializeOwned>(body: &[u8]) -> Result<I, Failure> {
    let to_failure = |reason: &dyn std::fmt::Display| {
        Failure::last(format!("the worker cannot read the message: {reason}"))
    };
    let first_byte = body.iter().find(|byte| !byte.is_ascii_whitespace());
    if first_byte != Some(&b'{') {
        return Err(to_failure(&"it is not a JSON object"));
    }
    serde_json::from_slice(body).map_err(|error| to_failure(&error))
}

/// Serializes the output, which must be a JSON object or `null`. `null`, the output `()`, counts as
/// an empty object.
fn serialize_output<O: Serialize>(output: &O) -> Result<Vec<u8>, Failure> {
    let text = serde_json::to_vec(output)
        .map_err(|error| Failure::retryable(format!("the output is no JSON: {error}")))?;
    match text.first() {
        Some(b'{') => Ok(text),
        _ if text == b"null" => Ok(b"{}".to_vec()),
        _ => Err(Failure::retryable(
            "a worker's function gives an object or nothing: its output is another JSON value",
        )),
    }
}

/// A received message, and how its progress is sent.
pub(crate) struct Message {
    pub(crate) info: MessageInfo,
    pub(crate) body: Bytes,
    /// Whether the message has an address for replies.
    pub(crate) has_reply_to: bool,
    pub(crate) progress_sender: Arc<dyn ProgressSender>,
    /// Why the result is no longer wanted. `None` as long as it is wanted.
    pub(crate) end_reason: watch::Receiver<Option<Arc<str>>>,
}

/// Calls the function for a message. The function runs as a separate task, so that a panic only
/// fails the attempt.
pub(crate) async fn process(handler: &Handler, message: Message) -> Disposition {
    let Message { info, body, has_reply_to, progress_sender, mut end_reason } = message;
    let info = Arc::new(info);
    let (queue, id) = (&info.queue, &info.correlation_id);
    if !has_reply_to {
        tracing::error!(queue, id, "the message has no reply_to: it is refused");
        return Disposition::Rejected;
    }
    let step = Step {
        info: info.clone(),
        raw: body.clone(),
        progress_sender,
        end_reason: end_reason.clone(),
    };
    let mut task = tokio::spawn(handler(body, step));
    let result = tokio::select! {
        // The end is checked first: the result of a function that has seen it is always dropped,
        // even if the function has returned already.
        biased;
        reason = wait_for_end(&mut end_reason) => {
            tracing::info!(queue, id, why = &*reason, "the result is no longer wanted");
            // The function may still have to clean up.
            let _ = (&mut task).await;
            return Disposition::Dropped;
        }
        result = &mut task => result,
    };
    let failure = match result {
        Ok(Ok(output)) => {
            return Disposition::Reply(Reply { is_error: false, body: output.into() });
        }
        Ok(Err(failure)) => failure,
        Err(error) => Failure::retryable(describe_panic(error)),
    };
    let is_retryable = failure.is_retryable();
    tracing::warn!(queue, id, is_retryable, reason = failure.reason(), "the attempt failed");
    Disposition::Reply(Reply { is_error: true, body: failure.to_body().into() })
}

/// Waits until the result is no longer wanted, and returns why. Never returns if the sender is
/// dropped before.
async fn wait_for_end(end_reason: &mut watch::Receiver<Option<Arc<str>>>) -> Arc<str> {
    match end_reason.wait_for(Option::is_some).await.map(|reason| reason.clone()) {
        Ok(Some(reason)) => reason,
        Ok(None) | Err(_) => std::future::pending().await,
    }
}

/// Describes why the task of a function ended without a result, for the error reply.
fn describe_panic(error: tokio::task::JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "the runtime ended the task".to_owned() };
    let text = panic_message(&*panic);
    format!("the worker's function panicked: {text}")
}

/// Returns the text of a panic, which is a `&str` or a `String` unless the function uses
/// `panic_any`.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a text")
}

/// Parses the header `attempt`. Returns 1 if it is missing or not a number.
pub(crate) fn parse_attempt(text: &str) -> u32 {
    text.parse().unwrap_or(1)
}

/// A JSON text that is not parsed. As input or output of a function it keeps every digit of a
/// number.
pub type RawJson = Box<RawValue>;

#[cfg(test)]
mod tests {
    use super::*;

    struct NoProgress;

    impl ProgressSender for NoProgress {
        fn progress(&self, _: Bytes) -> BoxFuture<'_, ()> {
            Box::pin(async {})
        }
    }

    #[tokio::test]
    async fn a_result_after_the_reported_end_is_dropped() {
        let function = async |_: RawJson, step: Step| -> Result<RawJson, Failure> {
            let reason = step.ended().await;
            Err(Failure::last(reason))
        };
        let handler = handler(function);
        // The end and the result are ready at once. Without `biased` either could be chosen.
        for _ in 0..50 {
            let (end_sender, end_reason) = watch::channel(None);
            let message = Message {
                info: MessageInfo::default(),
                body: Bytes::from_static(b"{}"),
                has_reply_to: true,
                progress_sender: Arc::new(NoProgress),
                end_reason,
            };
            let processing = process(&handler, message);
            let reporting_end = async {
                tokio::task::yield_now().await;
                end_sender.send_replace(Some("cancelled".into()));
                tokio::task::yield_now().await;
            };
            assert_eq!(tokio::join!(reporting_end, processing).1, Disposition::Dropped);
        }
    }
}
