//! Logs replies that the engine rejects, so that they change nothing.

use engine::text::shorten;
use engine::{Input, JobId, Rejected, Reply, Sender};
use std::sync::Arc;

/// A copy of a reply, which is logged if the engine rejects the reply.
pub(super) struct LoggedReply {
    step: String,
    /// The number of the attempt; `None`: the reply does not name it.
    attempt: Option<u32>,
    reply: Reply,
    /// The user of the broker, or the token, that sent the reply; `None`: unknown.
    user: Option<Arc<str>>,
}

impl LoggedReply {
    /// Copies the reply of an input; `None`: the input is not a reply.
    pub(super) fn from_input(input: &Input) -> Option<LoggedReply> {
        match input {
            Input::Reply { step, attempt, reply, from } => Some(LoggedReply {
                step: step.clone(),
                attempt: *attempt,
                reply: reply.clone(),
                user: match from {
                    Sender::User(name) => Some(name.clone()),
                    Sender::Unknown | Sender::Manager => None,
                },
            }),
            Input::Confirmed { .. }
            | Input::Begun { .. }
            | Input::Admitted { .. }
            | Input::Leased { .. }
            | Input::QueueMissing(_)
            | Input::ChildEnded { .. }
            | Input::ChildMissing { .. }
            | Input::IdConflict { .. }
            | Input::Timer { .. }
            | Input::Order(_)
            | Input::Operate(_)
            | Input::CallerJoined(_)
            | Input::CallerAnswered { .. }
            | Input::Abandon(_) => None,
        }
    }

    /// Logs that the engine has rejected the reply.
    pub(super) fn log(&self, job: JobId, rejected: Rejected) {
        let (kind, value) = match &self.reply {
            Reply::Result(body) => ("result", body_excerpt(body)),
            Reply::Progress(body) => ("progress", body_excerpt(body)),
            Reply::Error(body) => ("error", body_excerpt(body)),
            Reply::DeadLettered { reason, .. } => ("dead letter", shorten(reason)),
        };
        let user = self.user.as_deref().map(shorten);
        let (step, fault) = (shorten(&self.step), rejected.fault());
        tracing::warn!(
            %job, step, attempt = self.attempt, user, reason = rejected.label(), fault, kind, value,
            "a reply that changes nothing (logged once a minute per reason)"
        );
    }
}

/// Returns the beginning of a body, for the log.
pub(super) fn body_excerpt(body: &[u8]) -> String {
    /// Enough bytes for the logged characters, which have up to four bytes each.
    const EXCERPT_BYTES_MAX: usize = 400;
    shorten(&String::from_utf8_lossy(&body[..body.len().min(EXCERPT_BYTES_MAX)]))
}
