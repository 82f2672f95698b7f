//! Workers over HTTP, on a real lease queue: they take messages of the embedded bus on a lease,
//! reply until they are answered, and outlive the process. Some die with a message in flight.

use super::oracle::{WorkOutcome, work};
use super::world::{SECOND_NS, SURELY_JOURNALED_NS, Turn, World, lock};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use workflow_manager::bus::lease_queue::{
    LeasePolicy, LeaseQueue, LeasedMessage, NotCommitted, NotLeased, ReceiveOptions, WorkerReply,
};
use workflow_manager::bus::{ERROR_KIND, Header};
use workflow_manager::engine::{CorrelationId, Sender};

/// How messages are leased: none is given up, however many workers die of it.
pub(crate) const LEASE_POLICY: LeasePolicy =
    LeasePolicy { lease: Duration::from_secs(30), deliveries_max: u32::MAX, reports_leases: true };

const LEASE_NS: i64 = 30 * SECOND_NS;

/// When something happened: in which process, after how long, after how many jumps of the clock.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    process: u64,
    ran_ns: i64,
    jumps: u32,
}

/// A message that is in flight: a worker has it.
pub(crate) struct InFlightMessage {
    queue: Arc<str>,
    message: LeasedMessage,
    /// It has replied, and waits for the answer.
    is_settling: bool,
    taken: Moment,
    /// The process was killed long after the message was leased: for so long after the next start
    /// nobody else may get it.
    kept_for: Option<Duration>,
}

/// What a worker asks of the lease queue.
pub(crate) enum WorkerCall {
    Reply(WorkerReply),
    Reject { id: String, delivery: u32 },
}

impl InFlightMessage {
    fn to_call(&self) -> Option<WorkerCall> {
        let LeasedMessage { id, correlation_id, headers, body, delivery, .. } = &self.message;
        let correlation_id = correlation_id.as_deref().unwrap_or_default();
        let step = correlation_id.parse::<CorrelationId>().ok()?.step;
        let attempt: u32 = Header::find_number(headers, "attempt")?;
        let (kind, body) = match work(&self.queue, &step, attempt, &body.to_bytes()) {
            WorkOutcome::Result(text) => (None, text),
            WorkOutcome::Error(text) => (Some(ERROR_KIND), text),
            WorkOutcome::DeadLettered => {
                return Some(WorkerCall::Reject { id: id.to_string(), delivery: *delivery });
            }
            WorkOutcome::Nothing => return None,
        };
        Some(WorkerCall::Reply(WorkerReply {
            queue: self.queue.clone(),
            id: id.to_string(),
            delivery: *delivery,
            correlation_id: Some(correlation_id.to_owned()),
            attempt: Some(attempt),
            kind,
            sender: Sender::Unknown,
            revocations: None,
            body: body.into(),
        }))
    }
}

/// Workers take the messages of a queue as they come, until the process ends.
pub(crate) async fn take_all(
    world: Arc<Mutex<World>>,
    lease_queue: Arc<LeaseQueue>,
    queue: Arc<str>,
) {
    loop {
        let until = Instant::now() + LEASE_POLICY.lease;
        let message = lease_queue.receive(&queue, &ReceiveOptions::default(), until).await;
        let mut world = lock(&world);
        if world.crashed {
            return;
        }
        // Whoever asked a process that was replaced has gone to its successor.
        if let Some(message) = message.filter(|_| !world.is_zombie) {
            world.add_in_flight(queue.clone(), message);
        }
    }
}

/// Sends a call to the lease queue. Returns whether the worker may forget the message.
pub(crate) async fn send_call(lease_queue: &LeaseQueue, call: WorkerCall) -> bool {
    match call {
        WorkerCall::Reply(reply) => !matches!(lease_queue.reply(reply).await, Err(NotCommitted)),
        WorkerCall::Reject { id, delivery } => {
            match lease_queue.reject(&id, delivery, Sender::Unknown).await {
                Ok(Ok(_)) | Err(NotLeased::ToAnother | NotLeased::NotFound) => true,
                Ok(Err(NotCommitted)) => false,
            }
        }
    }
}

impl World {
    /// The queues whose workers take their messages over HTTP.
    pub(crate) fn leased_queues(&self) -> BTreeSet<Arc<str>> {
        let definitions = self.requests.values().map(|request| &request.definition);
        let steps = definitions.flat_map(|definition| definition.sending_steps());
        steps.filter(|step| step.bus.is_some()).map(|step| step.queue.clone()).collect()
    }

    pub(super) fn can_settle(&self) -> bool {
        self.lease_queue.is_some() && self.in_flight.iter().any(|held| !held.is_settling)
    }

    /// A worker has taken a message.
    fn add_in_flight(&mut self, queue: Arc<str>, message: LeasedMessage) {
        self.counts.leased += 1;
        self.note(|| format!("a worker takes {}, delivery {}", message.id, message.delivery));
        self.check_leases(&message);
        let taken = self.moment();
        self.in_flight.push(InFlightMessage {
            queue,
            message,
            is_settling: false,
            taken,
            kept_for: None,
        });
    }

    /// A message that another worker has is not given out, after a start either.
    fn check_leases(&mut self, message: &LeasedMessage) {
        let (now, since_start) = (self.moment(), self.started.elapsed());
        let is_kept = |held: &InFlightMessage| {
            held.message.id == message.id
                && held.taken.jumps == now.jumps
                && held.kept_for.is_some_and(|kept| since_start < kept)
        };
        if self.in_flight.iter().any(is_kept) && !self.may_be_sent_again(message) {
            self.violate(format!("{} was given out although a worker has it", message.id));
        }
    }

    fn moment(&self) -> Moment {
        Moment { process: self.counts.crashes, ran_ns: self.ran_ns, jumps: self.jumps }
    }

    /// Somebody had it sent once more, or had its job erased, whose id was used again.
    fn may_be_sent_again(&self, message: &LeasedMessage) -> bool {
        let place =
            message.correlation_id.as_deref().and_then(|id| id.parse::<CorrelationId>().ok());
        let Some(place) = place else { return true };
        self.redispatched.iter().any(|(job, _)| *job == place.job)
            || self.requests.values().any(|request| request.ended_by_client)
    }

    /// The process has ended; `is_flowing`: what it wanted to write it could write.
    pub(super) fn keep_leases(&mut self, is_flowing: bool) {
        let (now, crashed_ns) = (self.moment(), self.crashed_ns);
        for held in &mut self.in_flight {
            let is_of_now = held.taken.process == now.process;
            let had_ns = crashed_ns - held.taken.ran_ns;
            let is_journaled = is_of_now && is_flowing && had_ns > SURELY_JOURNALED_NS;
            let left_ns = LEASE_NS - (now.ran_ns - held.taken.ran_ns);
            let left = Duration::from_nanos(u64::try_from(left_ns).unwrap_or_default());
            held.kept_for = (is_journaled || held.kept_for.is_some()).then_some(left);
        }
    }

    /// A worker replies.
    pub(super) fn settle(&mut self) -> Turn {
        let silent: Vec<usize> =
            (0..self.in_flight.len()).filter(|at| !self.in_flight[*at].is_settling).collect();
        let at = silent[self.rng.usize(0..silent.len())];
        let Some(call) = self.in_flight[at].to_call() else {
            self.in_flight.swap_remove(at);
            return Turn::Wait(Duration::ZERO);
        };
        self.in_flight[at].is_settling = true;
        let id = self.in_flight[at].message.id.clone();
        self.note(|| format!("a worker replies to {id}"));
        Turn::Settle(id, call)
    }

    /// The worker has its answer.
    pub(crate) fn handle_settled(&mut self, id: &str, is_done: bool) {
        if self.is_zombie {
            return;
        }
        if is_done {
            self.in_flight.retain(|held| !(held.is_settling && *held.message.id == *id));
        } else {
            self.reset_settling(|held| *held.message.id == *id);
        }
    }

    /// Nobody answers any more: who waits for that asks again.
    pub(super) fn reset_settling(&mut self, of: impl Fn(&InFlightMessage) -> bool) {
        self.in_flight.iter_mut().filter(|held| of(held)).for_each(|held| held.is_settling = false);
    }

    /// A worker dies with a message in flight.
    pub(super) fn lose_worker(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let lost = self.in_flight.swap_remove(self.rng.usize(0..self.in_flight.len()));
        self.note(|| format!("a worker dies that had {}", lost.message.id));
        if self.bug == Some("messages of dead workers not lent again")
            && let Some(lease_queue) = &self.lease_queue
        {
            lease_queue.remove(&lost.queue, &lost.message.id);
        }
    }
}
