//! Requests about one id, and those that wait for the archive.

use crate::actors::answer::{Client, Erased, Now};
use crate::actors::call::Call;
use crate::actors::mail::{CreateJob, Finding, Question, RouterInput, ToChild};
use crate::actors::routes::LiveJob;
use crate::engine::{Instruction, JobId, Request};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// A request about one id. It goes to the job under that id; if there is none, the archive looks
/// the id up.
pub(super) enum Ask {
    /// A client asks for a job under the id.
    Create(CreateJob),
    /// A client asks for an operation on the job.
    Operate(Request, Client<Now>),
    /// A client cancels the job.
    Cancel(Option<Arc<str>>, Client<Now>),
    /// A client erases the job.
    Erase(Client<Erased>),
    /// A message on the workflow's queue asks for a job under the id.
    Call(Call),
    /// The job's parent gives it an order.
    Order(ToChild),
}

impl Ask {
    /// Returns the router input that it came by, or would come by.
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

    /// Returns what must be looked up first if no job takes input under the id.
    pub(super) fn question(&self) -> Question {
        match self {
            Ask::Create(_) | Ask::Call(_) | Ask::Erase(_) => Question::Creation,
            Ask::Operate(..) | Ask::Cancel(..) => Question::Job,
            Ask::Order(to_child) => Question::ChildOf(to_child.parent),
        }
    }

    /// Returns whether it is for this job, which has the id. An order is only for the child job of
    /// one step and item.
    pub(super) fn is_meant_for(&self, job: &LiveJob<'_>) -> bool {
        match self {
            Ask::Order(to_child) => job.is_child_of(to_child.parent, to_child.place),
            Ask::Create(_) | Ask::Operate(..) | Ask::Cancel(..) | Ask::Erase(_) | Ask::Call(_) => {
                true
            }
        }
    }

    /// Returns whether it may concern a job that has ended. Of the orders of its parent, only a
    /// retry does.
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

/// The outcome of a request after a lookup.
pub(super) enum Handled {
    /// It is done. The result of the lookup also serves the next request.
    KeepFinding(Finding),
    /// It is done. The result of the lookup is used up, or may be out of date.
    DropFinding,
    /// It goes back to the archive, with this lookup.
    LookUp(Ask, Question),
}

impl Handled {
    /// Sends the request to the archive with the lookup that it begins with.
    pub(super) fn look_up(ask: Ask) -> Handled {
        let question = ask.question();
        Handled::LookUp(ask, question)
    }
}

/// The ids that the archive looks up now, and the requests that wait for each.
#[derive(Default)]
pub(super) struct LookUps {
    pub(super) waiting: HashMap<JobId, VecDeque<Ask>>,
    pub(super) asks: usize,
    calls: usize,
}

impl LookUps {
    /// Returns how many calls may start a job once their lookup is done.
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
