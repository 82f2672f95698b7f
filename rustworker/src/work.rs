//! Processes one message: parses it, calls the function, and makes the reply. It does not depend on
//! the transport.

use crate::failure::Failure;
use crate::step::{Facts, Step};
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
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Sends the progress of a function.
pub(crate) trait Post: Send + Sync {
    fn progress(&self, body: Bytes) -> Boxed<'_, ()>;
}

/// A function from the message's body and the step to the body of its reply.
pub(crate) type Handler =
    Arc<dyn Fn(Bytes, Step) -> Boxed<'static, Result<Vec<u8>, Failure>> + Send + Sync>;

/// A reply to the manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) is_error: bool,
    pub(crate) body: Bytes,
}

/// How a message is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Reply(Reply),
    /// The message is rejected, since nobody waits for a reply.
    Refused,
    /// The message is not settled, since the reply is no longer wanted.
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
            let working = function(read(&body)?, step);
            written(&working.await?)
        })
    })
}

/// Parses the input. Every message of a manager is an object.
fn read<I: DeserializeOwned>(body: &[u8]) -> Result<I, Failure> {
    let unreadable = |why: &dyn std::fmt::Display| {
        Failure::last(format!("the worker cannot read the message: {why}"))
    };
    let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
    if first != Some(&b'{') {
        return Err(unreadable(&"it is not a JSON object"));
    }
    serde_json::from_slice(body).map_err(|error| unreadable(&error))
}

/// Serializes the output: an object, or `null`, which counts as an empty object.
fn written<O: Serialize>(output: &O) -> Result<Vec<u8>, Failure> {
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
    pub(crate) facts: Facts,
    pub(crate) body: Bytes,
    /// Whether the message has an address for replies.
    pub(crate) is_answerable: bool,
    pub(crate) post: Arc<dyn Post>,
    pub(crate) end: watch::Receiver<Option<Arc<str>>>,
}

/// Calls the function for a message. It runs as a task of its own, so that a panic has no further
/// effect.
pub(crate) async fn perform(handler: &Handler, message: Message) -> Outcome {
    let Message { facts, body, is_answerable, post, mut end } = message;
    let facts = Arc::new(facts);
    let (queue, id) = (&facts.queue, &facts.correlation_id);
    if !is_answerable {
        tracing::error!(queue, id, "the message has no reply_to: it is refused");
        return Outcome::Refused;
    }
    let step = Step { facts: facts.clone(), raw: body.clone(), post, end: end.clone() };
    let mut working = tokio::spawn(handler(body, step));
    let done = tokio::select! {
        // A function that was told of the end may have returned already. Its result is dropped in
        // any case.
        biased;
        ended = ended(&mut end) => {
            tracing::info!(queue, id, why = &*ended, "the work is for nothing");
            // The function may finish what it must.
            let _ = (&mut working).await;
            return Outcome::Dropped;
        }
        done = &mut working => done,
    };
    let failure = match done {
        Ok(Ok(output)) => return Outcome::Reply(Reply { is_error: false, body: output.into() }),
        Ok(Err(failure)) => failure,
        Err(error) => Failure::retryable(panic_text(error)),
    };
    let is_retryable = failure.is_retryable();
    tracing::warn!(queue, id, is_retryable, reason = failure.reason(), "the attempt failed");
    Outcome::Reply(Reply { is_error: true, body: failure.body().into() })
}

/// Waits until the result is no longer wanted. It never returns if the sender is dropped before.
async fn ended(end: &mut watch::Receiver<Option<Arc<str>>>) -> Arc<str> {
    match end.wait_for(Option::is_some).await.map(|why| why.clone()) {
        Ok(Some(why)) => why,
        Ok(None) | Err(_) => std::future::pending().await,
    }
}

fn panic_text(error: tokio::task::JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "the runtime ended the task".to_owned() };
    let text = text_of(&*panic);
    format!("the worker's function panicked: {text}")
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a text")
}

/// Parses the header `attempt`. The default is 1.
pub(crate) fn attempt(text: &str) -> u32 {
    text.parse().unwrap_or(1)
}

/// A text that is JSON already. As input or output of a function, `Box<RawValue>` keeps every
/// digit.
pub type RawJson = Box<RawValue>;

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl Post for Nobody {
        fn progress(&self, _: Bytes) -> Boxed<'_, ()> {
            Box::pin(async {})
        }
    }

    #[tokio::test]
    async fn what_a_function_gives_after_its_end_was_told_is_dropped() {
        let function = async |_: RawJson, step: Step| -> Result<RawJson, Failure> {
            let why = step.ended().await;
            Err(Failure::last(why))
        };
        let handler = handler(function);
        // Both are ready at once, so either could be chosen.
        for _ in 0..50 {
            let (tell, end) = watch::channel(None);
            let message = Message {
                facts: Facts::default(),
                body: Bytes::from_static(b"{}"),
                is_answerable: true,
                post: Arc::new(Nobody),
                end,
            };
            let performing = perform(&handler, message);
            let telling = async {
                tokio::task::yield_now().await;
                tell.send_replace(Some("cancelled".into()));
                tokio::task::yield_now().await;
            };
            assert_eq!(tokio::join!(telling, performing).1, Outcome::Dropped);
        }
    }
}
