//! One message: read, worked on, answered. What it came over is not known here.

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

/// A future with its type forgotten.
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Takes what a function says while it works.
pub(crate) trait Post: Send + Sync {
    fn progress(&self, body: Bytes) -> Boxed<'_, ()>;
}

/// A function that is given the message's body and the step, and gives the body of its reply.
pub(crate) type Handler =
    Arc<dyn Fn(Bytes, Step) -> Boxed<'static, Result<Vec<u8>, Failure>> + Send + Sync>;

/// What the manager is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) is_error: bool,
    pub(crate) body: Bytes,
}

/// What becomes of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Reply(Reply),
    /// Nobody could be told: it is refused.
    Refused,
    /// The work was for nothing.
    Dropped,
}

/// Makes a handler of a function over types.
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

/// The input. Every message of a manager is an object.
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

/// The output: an object, or nothing for an empty one.
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

/// A message as it came, and how it can be spoken of.
pub(crate) struct Message {
    pub(crate) facts: Facts,
    pub(crate) body: Bytes,
    /// Whether somebody waits for a reply.
    pub(crate) is_answerable: bool,
    pub(crate) post: Arc<dyn Post>,
    pub(crate) end: watch::Receiver<Option<Arc<str>>>,
}

/// Has the function work on a message. It runs as a task: what it does wrong ends nothing else.
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
        // A function that was told may have ended already: what it gives is dropped all the same.
        biased;
        ended = ended(&mut end) => {
            tracing::info!(queue, id, why = &*ended, "the work is for nothing");
            // It may finish what it must: it was told.
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

/// Waits until the work is for nothing. Without anybody who could say so it does not end.
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

/// The number in the header `attempt`; the first, if there is none.
pub(crate) fn attempt(text: &str) -> u32 {
    text.parse().unwrap_or(1)
}

/// A text that is JSON already, for functions that work on texts: `Box<RawValue>` as input or
/// output keeps every digit.
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
        // Both are ready at once; each of these could be the one that is answered.
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
