//! The step that a function processes: its properties, its progress, and whether its result is
//! still wanted.

use crate::processing::ProgressSender;
use bytes::Bytes;
use serde::Serialize;
use std::sync::Arc;
use tokio::sync::watch;

/// The properties of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MessageInfo {
    pub(crate) queue: String,
    /// `<job>:<step>`, where the job may be a child job.
    pub(crate) correlation_id: String,
    /// The number of the attempt, from 1.
    pub(crate) attempt: u32,
    /// The id of the root job.
    pub(crate) job: String,
    pub(crate) workflow: String,
    /// The number of the delivery, from 1.
    pub(crate) delivery: u32,
}

/// The progress of a function. A number such as `0.5` converts into progress with that fraction.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Progress {
    /// The part of the work that is done, from 0 to 1.
    #[serde(rename = "progress", skip_serializing_if = "Option::is_none")]
    pub fraction: Option<f64>,
    /// What the function is doing, for people.
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

/// The step that a function processes. Clones refer to the same step.
#[derive(Clone)]
pub struct Step {
    pub(crate) info: Arc<MessageInfo>,
    /// The body of the message.
    pub(crate) raw: Bytes,
    pub(crate) progress_sender: Arc<dyn ProgressSender>,
    /// Why the result is no longer wanted. `None` as long as it is wanted.
    pub(crate) end_reason: watch::Receiver<Option<Arc<str>>>,
}

impl Step {
    /// Returns the id of the job, or child job, to which the step belongs.
    pub fn id(&self) -> &str {
        self.info.correlation_id.split_once(':').map_or(&*self.info.correlation_id, |(id, _)| id)
    }

    /// Returns the step's name.
    pub fn name(&self) -> &str {
        self.info.correlation_id.split_once(':').map_or("", |(_, name)| name)
    }

    /// Returns the number of the attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.info.attempt
    }

    /// Returns the id of the root job.
    pub fn job(&self) -> &str {
        &self.info.job
    }

    /// Returns the name of the workflow.
    pub fn workflow(&self) -> &str {
        &self.info.workflow
    }

    /// Returns the queue from which the message was received.
    pub fn queue(&self) -> &str {
        &self.info.queue
    }

    /// Returns the number of this delivery of the attempt's message, from 1. Over AMQP a classic
    /// queue counts no further than 2.
    pub fn delivery(&self) -> u32 {
        self.info.delivery
    }

    /// Returns the unparsed message, with every digit.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// Reports progress. It arrives before the result if it is awaited before the function returns.
    /// Errors are logged.
    pub async fn progress(&self, progress: impl Into<Progress>) {
        match serde_json::to_vec(&progress.into()) {
            Ok(body) => self.progress_sender.progress(body.into()).await,
            Err(error) => tracing::warn!(queue = self.queue(), %error, "progress is no JSON"),
        }
    }

    /// Waits until the result is no longer wanted, and returns the reason: the attempt is over, or
    /// the message will be delivered again. Over AMQP this happens only when the connection is
    /// lost. What the function returns after that is dropped.
    pub async fn ended(&self) -> Arc<str> {
        let mut end_reason = self.end_reason.clone();
        match end_reason.wait_for(Option::is_some).await.map(|reason| reason.clone()) {
            Ok(Some(reason)) => reason,
            // The sender was dropped, so the message is settled.
            Ok(None) | Err(_) => Arc::from("the message is settled"),
        }
    }

    /// Returns why the result is no longer wanted, if that is so.
    pub fn end(&self) -> Option<Arc<str>> {
        self.end_reason.borrow().clone()
    }
}
