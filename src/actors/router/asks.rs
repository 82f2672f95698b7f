//! Requests about one id, and the requests that wait for the archive.

use crate::actors::answer::{Client, Erased, Now};
use crate::actors::call::Call;
use crate::actors::mail::{CreateJob, Finding, Question, RouterInput, ToChild};
use crate::actors::routes::LiveJob;
use crate::engine::{Instruction, JobId, Request};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// A request about one id. A job under that id is told; if there is none, the archive is asked.
pub(super) enum Ask {
    /// A client asks for a job under the id.
    Create(CreateJob),
    /// A client asks something of the job.
    Operate(Request, Client<Now>),
    /// A client cancels the job.
    Cancel(Option<Arc<str>>, Client<Now>),
    /// A client has the job erased.
    Erase(Client<Erased>),
    /// A message on the workflow's queue asks for a job under the id.
    Call(Call),
    /// The job's parent tells it something.
    Order(ToChild),
}

impl Ask {
    /// The mail that it came by, or would come by.
    pub(super) fn again(self, id: JobId) -> RouterInput {
        match self {
            Ask::Create(job) => RouterInput::Create(job),
            Ask::Operate(request, answer) => RouterInput::Operate(id, request, answer),
            Ask::Cancel(by, answer) => RouterInput::Cancel(id, by, answer),
            Ask::Erase(answer) => RouterInput::Erase(id, answer),
            Ask::Call(call) => RouterInput::Vouched(call),
            Ask::Order(to_child) => RouterInput::ToChild(to_child),
        }
    }

    /// What must be known first about a job that takes no input.
    pub(super) fn question(&self) -> Question {
        match self {
            Ask::Create(_) | Ask::Call(_) | Ask::Erase(_) => Question::Creation,
            Ask::Operate(..) | Ask::Cancel(..) => Question::Job,
            Ask::Order(to_child) => Question::ChildOf(to_child.parent),
        }
    }

    /// Whether it is for this job, which has the id. An order is for the child job at one place
    /// only.
    pub(super) fn is_meant_for(&self, job: &LiveJob<'_>) -> bool {
        match self {
            Ask::Order(to_child) => job.is_child_of(to_child.parent, to_child.place),
            Ask::Create(_) | Ask::Operate(..) | Ask::Cancel(..) | Ask::Erase(_) | Ask::Call(_) => {
                true
            }
        }
    }

    /// Whether a job that has ended may have to hear it. Of the orders of its parent, it follows
    /// only a retry.
    pub(super) fn concerns_an_ended_job(&self) -> bool {
        match self {
            Ask::Order(to_child) => to_child.order.what == Instruction::Retry,
            Ask::Create(_) | Ask::Operate(..) | Ask::Cancel(..) | Ask::Erase(_) | Ask::Call(_) => {
                true
            }
        }
    }

    pub(super) fn is_of_client(&self) -> bool {
        match self {
            Ask::Create(_) | Ask::Operate(..) | Ask::Cancel(..) | Ask::Erase(_) => true,
            // Calls are bounded by the prefetch, orders by the window.
            Ask::Call(_) | Ask::Order(_) => false,
        }
    }
}

/// What has become of a request with the archive's answer.
pub(super) enum Handled {
    /// It is dealt with. The finding also serves the next request.
    KeepFinding(Finding),
    /// It is dealt with. The finding is used up, or may be out of date.
    DropFinding,
    /// It goes back to the archive, with this question.
    LookUp(Ask, Question),
}

impl Handled {
    /// The request goes to the archive with the question that it begins with.
    pub(super) fn look_up(ask: Ask) -> Handled {
        let question = ask.question();
        Handled::LookUp(ask, question)
    }
}

/// The ids that the archive looks up now, and who waits for each.
#[derive(Default)]
pub(super) struct LookUps {
    pub(super) waiting: HashMap<JobId, VecDeque<Ask>>,
    pub(super) asks: usize,
    calls: usize,
}

impl LookUps {
    /// How many calls may start a job once their look-up has come back.
    pub(super) fn calls(&self) -> usize {
        self.calls
    }

    pub(super) fn count(&mut self, ask: &Ask, by: isize) {
        self.asks = self.asks.saturating_add_signed(by);
        if matches!(ask, Ask::Call(_)) {
            self.calls = self.calls.saturating_add_signed(by);
        }
    }
}
