//! The invariants: what is looked at whenever something leaves the manager, and at the end.

use super::clients::helps;
use super::journal_view::check_settled_once;
use super::{ANOTHER_MESSAGE, JobRequest, World, caller_id, lock};
use crate::simulation::broker::{CALLERS, CallProperties, CallerReply, Link, Reply, StepMessage};
use crate::simulation::job_limits::{find_wrong_displacement, newer_job};
use crate::simulation::oracle::{self, Expected};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use workflow_manager::actors::client_response::{CreateResponse, RequestError};
use workflow_manager::actors::messages::ConfirmTarget;
use workflow_manager::bus::{Addressee, Publication};
use workflow_manager::engine::{Job, JobId, JobState, Message, StepIndex, StepState};
use workflow_manager::faults::Hooks;
use workflow_manager::journal::StoredJob;
use workflow_manager::journal::{JobNumber, JobRecords, JournalError, StatusRecords};
use workflow_manager::journal::{NEWEST_CURSOR, StatusFilter};

impl World {
    pub(crate) fn publish(&mut self, message: Publication) {
        if self.crashed {
            return;
        }
        match message.addressee {
            Addressee::Worker => match StepMessage::from_publication(message) {
                Some(message) => self.dispatch(message),
                None => self.violate("a message to a worker is no step's".to_owned()),
            },
            Addressee::Caller => self.answer(message),
        }
    }

    /// A reported end is durable: the job has ended, and in this way.
    fn answer(&mut self, answer: Publication) {
        self.note(|| format!("answers {:?}", answer.correlation_id));
        if let Some(ConfirmTarget::JobEnd { job, .. }) = answer.confirm_token.downcast_ref() {
            let (job, is_error) = (*job, answer.kind.is_some());
            let is_right = self.find_committed(job).map(|found| match found.job.state() {
                JobState::Completed => {
                    !is_error && answer.body.to_bytes() == found.job.result().to_text()
                }
                JobState::Failed | JobState::Cancelled => is_error,
                // It went on in the same commit.
                JobState::Running | JobState::Paused => self
                    .requests
                    .get(&job)
                    .is_some_and(|request| request.was_rerun || request.is_retried),
            });
            if is_right == Some(false) {
                self.violate(format!("the caller of {job} was told an end that is not committed"));
            }
        }
        if let Some(link) = &mut self.link {
            link.answers.push_back(answer);
        }
    }

    fn dispatch(&mut self, message: StepMessage) {
        self.note(|| format!("published {}", message.id));
        self.counts.messages += 1;
        let name = message.id.clone();
        let Some(found) = self.find_committed(message.job) else {
            if self.requests.get(&message.root).is_some_and(|request| request.ended_by_client) {
                // Deleted by its client as soon as it was committed.
                return;
            }
            return self.violate(format!("{name} was dispatched before its job was committed"));
        };
        // Not by the id: it may be used again once its job has ended.
        let (number, job) = (found.number, &found.job);
        if self.is_zombie {
            // What was committed before it stood still: the same attempt once more.
            if let Some(link) = &mut self.link {
                link.outbox.push_back(message);
            }
            return;
        }
        let times = self.published.entry((number, message.step.0, message.attempt)).or_default();
        *times += 1;
        let is_repeated = *times > 1;
        let key = message.attempt_key();
        let step = job.step(message.step);
        if step.attempt < message.attempt {
            self.violate(format!("{name} was dispatched before its start was committed"));
        }
        if is_repeated {
            self.counts.repeated += 1;
            if !self.with_faults {
                self.violate(format!("{name} was dispatched twice, and there was no fault"));
            } else if step.state == StepState::Running
                && step.attempt == message.attempt
                && step.confirmed
            {
                self.violate(format!(
                    "{name} was dispatched again although its confirm is in the journal"
                ));
            } else if self.surely_confirmed.contains(&key)
                && !self.lost_queues.contains(&message.queue)
                && !self.redispatched.contains(&(message.job, message.step.0))
            {
                self.violate(format!(
                    "{name} was dispatched again although its confirm was told long ago"
                ));
            }
        }
        let is_elsewhere = |request: &JobRequest| {
            let mut steps = request.definition.sending_steps();
            steps.any(|step| *step.name == message.step_name && step.bus.is_some())
        };
        if self.requests.get(&message.root).is_some_and(is_elsewhere) {
            self.violate(format!("{name} was sent over another bus than its step's"));
        }
        if let Some(link) = &mut self.link {
            link.outbox.push_back(message);
        }
    }

    /// Takes the manager's verdicts on deliveries.
    pub(crate) fn handle_dispositions(&mut self) {
        if self.crashed {
            return;
        }
        while let Some((tag, is_ack)) = self.link.as_mut().and_then(Link::next_disposition) {
            let Some(link) = &mut self.link else { return };
            let Some(reply) = link.unacked.get(&tag).cloned() else { continue };
            if let (Some(offset), Some(log)) = (reply.offset, &mut self.broker.log) {
                link.log_reader.settle(log, (tag, offset), is_ack);
                if is_ack {
                    link.unacked.remove(&tag);
                    self.check_ack(tag, &reply);
                }
            } else if is_ack {
                link.acks.push(tag);
                self.check_ack(tag, &reply);
            } else {
                link.unacked.remove(&tag);
                self.broker.replies.push_front(Reply { redelivered: true, ..reply });
            }
        }
    }

    /// An acknowledged reply is durable: the step is settled, or another copy of the reply is still
    /// in the broker.
    fn check_ack(&mut self, tag: u64, reply: &Reply) {
        if let Some(call) = &reply.call {
            return self.check_call(call);
        }
        let Some((job, step)) =
            reply.correlation_id.as_deref().and_then(|text| text.split_once(':'))
        else {
            return;
        };
        let Ok(id) = job.parse().map(JobId) else { return };
        self.note(|| format!("acknowledged {job}:{step}"));
        let Some(found) = self.find_committed(id) else { return };
        let job = &found.job;
        let Some(index) = job.graph().find_index(step) else { return };
        let takes = job.step_state(index) == StepState::Running
            && reply.kind.as_deref() != Some("progress");
        let run = job.step(index);
        // A failure settles only its own attempt, a result settles any.
        let is_result = reply.kind.is_none()
            && reply.dead_letter.is_none()
            && Message::parse(&reply.body).is_ok();
        let is_open = is_result || reply.attempt == Some(run.attempt);
        // A second copy may have been void when it was looked at, before its step was begun anew.
        let was_rerun =
            self.requests.get(&job.origin().root).is_some_and(|request| request.was_rerun);
        if takes
            && !was_rerun
            && job.graph().step(index).has_queue()
            && run.has_active_attempt()
            && is_open
        {
            let again = |other: &Reply| other.correlation_id == reply.correlation_id;
            let unacked = self
                .link
                .iter()
                .flat_map(|link| &link.unacked)
                .any(|(other, reply)| *other != tag && again(reply));
            if !unacked && !self.broker.has(again) {
                self.violate(format!(
                    "the reply of {id}:{step} was acknowledged before it was committed"
                ));
            }
        }
    }

    /// A call is acknowledged once its job is there.
    fn check_call(&mut self, call: &CallProperties) {
        let found = self.requests.iter().find(|(_, request)| {
            request.call.as_ref().is_some_and(|other| other.message_id == call.message_id)
        });
        let Some(id) = found.map(|(id, _)| *id) else { return };
        let is_there = self.find_committed(id).is_some();
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.is_answered = true;
        if !is_there && !request.ended_by_client {
            self.violate(format!("the call of {id} was acknowledged before its job was committed"));
        }
    }

    /// Every caller that waits for an answer has the right one, at least once.
    fn check_callers(&mut self, id: JobId, request: &JobRequest) {
        let Some(call) = request
            .call
            .as_ref()
            .filter(|call| call.reply_to.as_deref() == Some(CALLERS) && !request.ended_by_client)
        else {
            return;
        };
        let replies = self.broker.caller_replies.remove(&caller_id(call)).unwrap_or_default();
        let expected = oracle::expected(&request.definition, &request.message, request.is_retried);
        let is_final = |reply: &CallerReply| match &expected {
            Expected::Completed(text) => !reply.is_error && reply.body == *text,
            Expected::Failed(_) if !reply.is_error => false,
            Expected::Failed(_) => {
                let body: Result<serde_json::Value, _> = serde_json::from_slice(&reply.body);
                body.is_ok_and(|body| {
                    expected.may_fail_with(body["error"].as_str().unwrap_or_default())
                })
            }
        };
        // Each end of a retried job is reported.
        let is_right = replies.iter().any(is_final)
            && replies
                .iter()
                .all(|reply| is_final(reply) || (request.is_retried && reply.is_error));
        if replies.is_empty() {
            self.violate(format!("the caller of {id} was told nothing"));
        } else if !is_right {
            self.violate(format!("the caller of {id} was told something else than {expected:?}"));
        } else if replies.len() > 1
            && !self.with_faults
            && !request.is_retried
            && !request.was_rerun
        {
            self.violate(format!("the caller of {id} was told twice, and there was no fault"));
        }
    }

    fn handle_answer(&mut self, answer: CreateResponse) {
        if self.crashed {
            return;
        }
        let id = answer.id();
        self.note(|| format!("answered {answer:?}"));
        let is_durable = self.find_committed(id).is_some();
        let twice = self.requests.get_mut(&id).is_some_and(|request| {
            let before = std::mem::replace(&mut request.is_answered, true);
            before && !request.ended_by_client && matches!(answer, CreateResponse::New(_))
        });
        if !is_durable {
            self.violate(format!("{id} was answered before it was committed"));
        }
        if twice {
            self.violate(format!("{id} was created twice"));
        }
    }

    /// What a client makes of the answer to a creation.
    pub(crate) fn handle_create_response(
        &mut self,
        id: JobId,
        again: Option<bool>,
        answer: &Result<CreateResponse, RequestError>,
    ) {
        self.note(|| format!("a client is told {answer:?}"));
        match (again, answer) {
            // Ended, and deleted, by a client between the question and the answer: then the id is
            // free.
            (Some(false), Ok(CreateResponse::New(_)))
                if self.requests.get(&id).is_some_and(|request| request.ended_by_client) =>
            {
                if let Some(request) = self.requests.get_mut(&id) {
                    request.ended_by_client = false;
                    request.message = ANOTHER_MESSAGE.to_owned();
                }
            }
            // And asked for a second time: the other job has the id by now.
            (Some(false), Ok(CreateResponse::Existing(_)))
                if self
                    .requests
                    .get(&id)
                    .is_some_and(|request| request.message == ANOTHER_MESSAGE) => {}
            (Some(false), Ok(_)) => {
                self.violate(format!("{id} was given to another job: {answer:?}"))
            }
            (None | Some(true), Err(RequestError::Conflict(reason))) => {
                self.violate(format!("{id} was refused: {reason}"))
            }
            (None, Err(RequestError::Overloaded(_))) => self.refused.push(id),
            (None, Err(RequestError::NoPlace(reason))) => {
                let definition = &self.requests[&id].definition;
                if let Some(what) = self.job_limits.find_wrong_refusal(definition, self.ran_ns) {
                    self.violate(format!("{id} was refused, and {what}: {reason}"));
                }
                self.counts.turned_away += 1;
                self.refused.push(id);
            }
            (None, Err(RequestError::Failed(_))) => self.to_create.push(id),
            _ => {}
        }
    }

    fn check_limits(&mut self, number: JobNumber, job: &Job, decided_ns: i64) {
        let is_flowing = !self.disk_full && !self.was_full;
        let exceeded = self.limits.take(number, job, self.jumps, decided_ns);
        self.counts.admitted = self.limits.admitted;
        let (now_ns, journal) = (self.ran_ns, &self.journal);
        let waits = |id, step: StepIndex| {
            journal.job(id).is_some_and(|found| {
                found.job.state() == JobState::Running && found.job.step(step).is_claiming()
            })
        };
        let overtaken = self.limits.find_overtaken(now_ns, waits).filter(|_| is_flowing);
        let held = self.job_limits.take(number, job, now_ns).err();
        if let Some(what) = exceeded.err().or(overtaken).or(held) {
            self.violate(what);
        }
    }

    /// Takes what a process that ended had decided, and was not told to be committed, if it is in
    /// the journal: it counts since it was decided.
    pub(super) fn take_untold(&mut self) {
        for (number, decisions) in std::mem::take(&mut self.untold) {
            let Some((_, newest)) = decisions.back() else { continue };
            let Ok(Some(found)) = self.journal.reader.load_job(newest.id()) else { continue };
            let Some(last) = decisions.iter().rposition(|(_, job)| found.job == *job) else {
                continue;
            };
            for (decided_ns, job) in decisions.iter().take(last + 1) {
                self.check_limits(number, job, *decided_ns);
            }
        }
    }

    fn handle_commit(&mut self, numbers: &[JobNumber]) {
        self.counts.commits += 1;
        self.handle_dispositions();
        let mut latest = BTreeMap::new();
        for number in numbers {
            if let Some((decided_ns, job)) = self.live.get_mut(number).and_then(VecDeque::pop_front)
            {
                self.check_limits(*number, &job, decided_ns);
                latest.insert(*number, job);
            }
        }
        for (number, live) in latest {
            match self.journal.reader.load_job(live.id()) {
                Ok(Some(found)) if found.number != number => {}
                Ok(Some(found)) if found.job == live => {
                    self.uncompared.insert(number, live);
                }
                Ok(Some(_)) => self.violate(format!(
                    "{}, rebuilt from the journal, differs from the live one",
                    live.id()
                )),
                // Deleted with its top-level job.
                Ok(None)
                    if self
                        .requests
                        .get(&live.origin().root)
                        .is_some_and(|request| request.ended_by_client) => {}
                Ok(None) => self.violate(format!(
                    "{} was decided and is not in the journal after the commit",
                    live.id()
                )),
                Err(error) => self.violate(format!("the journal cannot be read: {error}")),
            }
        }
    }

    /// Once all that is committed is derived, the row of a top-level job is never behind it, and
    /// never ahead.
    pub(crate) fn compare_statuses(&mut self) {
        for (_, live) in std::mem::take(&mut self.uncompared) {
            // Deleted with its top-level job.
            let is_there = self.find_committed(live.id()).is_some_and(|found| found.job == live);
            if live.origin().parent.is_none() && is_there {
                self.compare_statuses_of(&live);
            }
        }
    }

    fn compare_statuses_of(&mut self, live: &Job) {
        let workflow = live.definition().full_name();
        let read = || {
            let columns = self.journal.reader.load_status_columns(&workflow)?.unwrap_or_default();
            let filter = StatusFilter { job: Some(live.id()), ..StatusFilter::default() };
            let row = self
                .journal
                .reader
                .load_statuses(&workflow, &columns, &filter, NEWEST_CURSOR, 1)?
                .pop();
            Ok::<_, JournalError>(
                row.map(|row| {
                    (row.state, columns.into_iter().zip(row.statuses).collect::<Vec<_>>())
                }),
            )
        };
        let statuses = live
            .graph()
            .indices()
            .map(|step| (live.graph().step(step).name.to_string(), live.status(step).to_owned()));
        let wanted = (live.state().as_str().to_owned(), statuses.collect::<Vec<_>>());
        match read() {
            Ok(row) if row.as_ref() == Some(&wanted) => {}
            Ok(row) => {
                self.violate(format!("the statuses of {} are {row:?}, not {wanted:?}", live.id()))
            }
            Err(error) => {
                self.violate(format!("the statuses of {} cannot be read: {error}", live.id()))
            }
        }
    }

    /// Whether the journal says so.
    pub(crate) fn has_ended(&self, id: JobId) -> bool {
        self.find_committed(id).is_some_and(|found| found.job.state().is_ended())
    }

    pub(super) fn find_committed(&self, id: JobId) -> Option<Arc<StoredJob>> {
        self.journal.job(id)
    }

    /// Who gives way to a newer job does so as its workflow says.
    fn check_displaced(&mut self, job: &Job, newer: &str, begun_anew: &BTreeSet<JobId>) {
        self.counts.displaced += 1;
        let found = newer.parse().ok().and_then(|newer| self.find_committed(JobId(newer)));
        // Its client may have had it erased.
        let Some(found) = found else { return };
        let was_begun_anew = |id| begun_anew.contains(&id);
        if let Some(what) = find_wrong_displacement(job, &found.job, was_begun_anew) {
            self.violate(format!("{} gave way to {newer}: {what}", job.id()));
        }
    }

    /// Every job that was answered is there and ended as the oracle says.
    pub(crate) fn check_end(&mut self) {
        let requests = std::mem::take(&mut self.requests);
        let is_begun_anew = |request: &JobRequest| request.is_retried || request.was_rerun;
        let begun_anew = requests.iter().filter(|(_, request)| is_begun_anew(request));
        let begun_anew: BTreeSet<JobId> = begun_anew.map(|(id, _)| *id).collect();
        for (id, request) in requests {
            let Some(found) = self.find_committed(id) else {
                if request.is_answered && !request.ended_by_client {
                    self.violate(format!("{id} was answered and is lost"));
                }
                if request.call.is_some() && !request.ended_by_client {
                    self.violate(format!("the call of {id} is lost"));
                }
                continue;
            };
            let job = &found.job;
            if let Some(newer) = newer_job(job) {
                self.check_displaced(job, &newer, &begun_anew);
                continue;
            }
            self.check_callers(id, &request);
            if request.ended_by_client && job.state() == JobState::Cancelled {
                continue;
            }
            let expected =
                oracle::expected(&request.definition, &request.message, request.is_retried);
            let is_as = |expected: &Expected| match expected {
                Expected::Completed(text) => {
                    job.state() == JobState::Completed && job.result().to_text() == *text
                }
                Expected::Failed(_) => {
                    job.state() == JobState::Failed
                        && expected.may_fail_with(job.reason().map_or("", |reason| reason))
                }
            };
            // Nobody has a job retried that its client has ended or wanted erased. Retries that
            // were asked for before count, so it may have failed at any step that a retry helps.
            let is_retried_no_more = || {
                let without = oracle::expected(&request.definition, &request.message, false);
                let may_be_retried = job.state() == JobState::Failed && helps(job);
                request.ended_by_client && (is_as(&without) || may_be_retried)
            };
            if !is_as(&expected) && !is_retried_no_more() {
                let found =
                    format!("{:?} {} {:?}", job.state(), job.result().to_text(), job.reason());
                self.violate(format!(
                    "{id} with {} ended as {found}, expected {expected:?}",
                    request.message
                ));
            }
        }
        for caller in std::mem::take(&mut self.odd_calls) {
            let replies = self.broker.caller_replies.remove(&caller).unwrap_or_default();
            if !replies.iter().any(|reply| reply.is_error) {
                self.violate(format!("{caller} was not refused"));
            }
        }
        if let Err(error) = check_settled_once(&self.database) {
            self.violate(error);
        }
    }
}

/// The world's eyes and hands in the manager.
pub(crate) struct WorldHooks {
    world: Arc<Mutex<World>>,
}

impl WorldHooks {
    pub(crate) fn from_world(world: &Arc<Mutex<World>>) -> Rc<dyn Hooks> {
        Rc::new(WorldHooks { world: world.clone() })
    }
}

impl Hooks for WorldHooks {
    fn hit(&self, point: &'static str) -> Option<String> {
        let mut world = lock(&self.world);
        world.handle_dispositions();
        let is_write = matches!(
            point,
            "journal::write" | "journal::commit" | "journal::derive" | "journal::positions"
        );
        let no_room = || is_write.then(|| "full".to_owned());
        if world.crashed {
            // What the process does after its end reaches nobody.
            return no_room();
        }
        world.counts.taken += u64::from(point == "job::taken");
        if let Some(one_in) =
            [("job::take", 60), ("job::taken", 2)].iter().find(|(at, _)| *at == point)
        {
            let panics =
                world.faults_left > 0 && world.panics_left > 0 && world.rng.u32(0..one_in.1) == 0;
            if panics {
                world.panics_left -= 1;
                world.counts.panics += 1;
                world.note(|| "a job's actor panics".to_owned());
            }
            return panics.then(String::new);
        }
        if world.faults_left > 0 {
            world.crash_in = world.crash_in.saturating_sub(1);
            if world.crash_in == 0 {
                world.note(|| format!("the process is killed at {point}"));
                world.crashed = true;
                world.crashed_ns = world.ran_ns;
                world.keep_position();
                return no_room();
            }
        }
        if is_write && world.disk_full {
            world.was_full = true;
        }
        if world.disk_full || world.is_full_for_ever() { no_room() } else { None }
    }

    fn observe(&self, point: &'static str, what: &dyn Any) {
        let mut world = lock(&self.world);
        if world.crashed {
            return;
        }
        match point {
            "job::decided" => {
                if let Some((number, Some(job))) = what.downcast_ref::<(JobNumber, Option<Job>)>() {
                    job.assert_invariants();
                    world.check_times(job);
                    world.note(|| {
                        let steps: Vec<String> = job
                            .steps()
                            .map(|(step, run)| format!("{} {:?}", step.name, run.state))
                            .collect();
                        format!("decided: {} {:?}, {}", job.id(), job.state(), steps.join(", "))
                    });
                    let decided_ns = world.ran_ns;
                    world.live.entry(*number).or_default().push_back((decided_ns, job.clone()));
                }
            }
            "journal::committed" => {
                if let Some(numbers) = what.downcast_ref::<Vec<JobNumber>>() {
                    world.handle_commit(numbers);
                }
            }
            "outbox::answer" => {
                if let Some(answer) = what.downcast_ref::<CreateResponse>() {
                    world.handle_answer(*answer);
                }
            }
            other => panic!("the simulation does not know what is observed at {other}"),
        }
    }

    fn now(&self) -> i64 {
        lock(&self.world).now_ns
    }
}
