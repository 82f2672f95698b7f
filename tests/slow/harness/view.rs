//! A job as the HTTP API shows it.

use super::Answer;
use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

/// `GET /api/job/{id}`, with the messages as the text that was sent.
#[derive(Deserialize)]
pub(crate) struct JobView {
    pub(crate) uuid: Uuid,
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) running: Vec<StepView>,
    #[serde(default)]
    pub(crate) completed: Vec<StepView>,
    #[serde(skip)]
    pub(crate) text: String,
}

/// An entry of a job's `running` or `completed`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StepView {
    pub(crate) name: String,
    pub(crate) start_time: String,
    #[serde(default)]
    pub(crate) elapsed: u64,
    #[serde(default)]
    pub(crate) tasks: Vec<Uuid>,
    #[serde(default)]
    pub(crate) message: Option<Box<RawValue>>,
}

impl JobView {
    #[track_caller]
    pub(crate) fn read(answer: &Answer) -> JobView {
        let mut job: JobView = serde_json::from_str(&answer.text)
            .unwrap_or_else(|error| panic!("not a job ({error}): {answer}"));
        job.text.clone_from(&answer.text);
        job
    }

    #[track_caller]
    pub(crate) fn running_step(&self, name: &str) -> &StepView {
        self.running
            .iter()
            .find(|step| step.name == name)
            .unwrap_or_else(|| panic!("{name} is not among the running steps: {}", self.text))
    }

    #[track_caller]
    pub(crate) fn completed_step(&self, name: &str) -> &StepView {
        self.completed
            .iter()
            .find(|step| step.name == name)
            .unwrap_or_else(|| panic!("{name} is not among the completed steps: {}", self.text))
    }

    /// The message of a completed step, byte for byte.
    #[track_caller]
    pub(crate) fn message_of(&self, name: &str) -> String {
        let step = self.completed_step(name);
        step.message.as_ref().map_or_else(
            || panic!("{name} has no message: {}", self.text),
            |raw| raw.get().to_owned(),
        )
    }
}
