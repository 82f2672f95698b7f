//! What a function knows of the step that it works on.

use crate::work::Post;
use bytes::Bytes;
use serde::Serialize;
use std::sync::Arc;
use tokio::sync::watch;

/// Where the message comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) queue: String,
    pub(crate) correlation_id: String,
    pub(crate) attempt: u32,
    pub(crate) job: String,
    pub(crate) workflow: String,
    pub(crate) delivery: u32,
}

/// What a function tells of its work: `0.5.into()`, or more words.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Progress {
    /// How much is done, from 0 to 1.
    #[serde(rename = "progress", skip_serializing_if = "Option::is_none")]
    pub fraction: Option<f64>,
    /// What is done, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// One of the step's `statuses`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
}

impl From<f64> for Progress {
    fn from(fraction: f64) -> Progress {
        Progress { fraction: Some(fraction), ..Progress::default() }
    }
}

/// The step that a function works on. Clones speak of the same step.
#[derive(Clone)]
pub struct Step {
    pub(crate) facts: Arc<Facts>,
    pub(crate) raw: Bytes,
    pub(crate) post: Arc<dyn Post>,
    /// Why the work is for nothing, once it is.
    pub(crate) end: watch::Receiver<Option<Arc<str>>>,
}

impl Step {
    /// The id of the job, or child job, whose step this is.
    pub fn id(&self) -> &str {
        self.facts.correlation_id.split_once(':').map_or(&*self.facts.correlation_id, |(id, _)| id)
    }

    /// The step's name.
    pub fn name(&self) -> &str {
        self.facts.correlation_id.split_once(':').map_or("", |(_, name)| name)
    }

    /// Which attempt it is, from 1.
    pub fn attempt(&self) -> u32 {
        self.facts.attempt
    }

    /// The id of the top-level job.
    pub fn job(&self) -> &str {
        &self.facts.job
    }

    /// The name of the workflow.
    pub fn workflow(&self) -> &str {
        &self.facts.workflow
    }

    /// The queue from which the message came.
    pub fn queue(&self) -> &str {
        &self.facts.queue
    }

    /// Which delivery of this attempt's message it is, from 1. A classic queue says only whether
    /// it is the first.
    pub fn delivery(&self) -> u32 {
        self.facts.delivery
    }

    /// The message as it came, with every digit.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// Tells how far the work is. It goes before the result, if it is awaited before that is
    /// returned. What cannot be told is in the log.
    pub async fn progress(&self, told: impl Into<Progress>) {
        match serde_json::to_vec(&told.into()) {
            Ok(body) => self.post.progress(body.into()).await,
            Err(error) => tracing::warn!(queue = self.queue(), %error, "progress is no JSON"),
        }
    }

    /// Waits until the work is for nothing: the attempt is over, or the message is delivered again.
    /// Over AMQP only the loss of the connection is known. What the function gives after that is
    /// dropped.
    pub async fn ended(&self) -> Arc<str> {
        let mut end = self.end.clone();
        match end.wait_for(Option::is_some).await.map(|why| why.clone()) {
            Ok(Some(why)) => why,
            // The message is settled: whoever still asks has nothing to give.
            Ok(None) | Err(_) => Arc::from("the message is settled"),
        }
    }

    /// Why the work is for nothing, if it is.
    pub fn end(&self) -> Option<Arc<str>> {
        self.end.borrow().clone()
    }
}
