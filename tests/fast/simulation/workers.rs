//! Workers over HTTP, on a real desk: they take messages of the embedded bus on a lease, reply
//! until they are heard, and outlive the process. Some die with a message in hand.

use super::oracle::{Answered, work};
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

/// How messages are lent: none is given up, however many workers die of it.
pub(crate) const LENDING: LeasePolicy =
    LeasePolicy { lease: Duration::from_secs(30), deliveries_max: u32::MAX, reports_leases: true };

const LEASE_NS: i64 = 30 * SECOND_NS;

/// When something happened: in which process, after how long, after how many jumps of the clock.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    process: u64,
    ran_ns: i64,
    jumps: u32,
}

/// A message that a worker has in hand.
pub(crate) struct InHand {
    queue: Arc<str>,
    loan: LeasedMessage,
    /// It has replied, and waits for the answer.
    is_asking: bool,
    taken: Moment,
    /// The process was killed long after the message was lent: for so long after the next start
    /// nobody else may get it.
    kept_for: Option<Duration>,
}

/// What a worker tells the desk.
pub(crate) enum Word {
    Reply(WorkerReply),
    Refuse { id: String, delivery: u32 },
}

impl InHand {
    fn word(&self) -> Option<Word> {
        let LeasedMessage { id, correlation_id, headers, body, delivery, .. } = &self.loan;
        let correlation_id = correlation_id.as_deref().unwrap_or_default();
        let step = correlation_id.parse::<CorrelationId>().ok()?.step;
        let attempt: u32 = Header::find_number(headers, "attempt")?;
        let (kind, body) = match work(&self.queue, &step, attempt, &body.to_bytes()) {
            Answered::Result(text) => (None, text),
            Answered::Error(text) => (Some(ERROR_KIND), text),
            Answered::DeadLettered => {
                return Some(Word::Refuse { id: id.to_string(), delivery: *delivery });
            }
            Answered::Nothing => return None,
        };
        Some(Word::Reply(WorkerReply {
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
pub(crate) async fn take_all(world: Arc<Mutex<World>>, desk: Arc<LeaseQueue>, queue: Arc<str>) {
    loop {
        let until = Instant::now() + LENDING.lease;
        let loan = desk.receive(&queue, &ReceiveOptions::default(), until).await;
        let mut world = lock(&world);
        if world.crashed {
            return;
        }
        if let Some(loan) = loan {
            world.took(queue.clone(), loan);
        }
    }
}

/// What the desk answers to a word: whether the worker may forget the message.
pub(crate) async fn tell(desk: &LeaseQueue, word: Word) -> bool {
    match word {
        Word::Reply(said) => !matches!(desk.reply(said).await, Err(NotCommitted)),
        Word::Refuse { id, delivery } => match desk.reject(&id, delivery, Sender::Unknown).await {
            Ok(Ok(_)) | Err(NotLeased::ToAnother | NotLeased::NotFound) => true,
            Ok(Err(NotCommitted)) => false,
        },
    }
}

impl World {
    /// The queues whose workers take their messages over HTTP.
    pub(crate) fn lent_queues(&self) -> BTreeSet<Arc<str>> {
        let definitions = self.asked.values().map(|asked| &asked.definition);
        let steps = definitions.flat_map(|definition| definition.sending_steps());
        steps.filter(|step| step.bus.is_some()).map(|step| step.queue.clone()).collect()
    }

    pub(super) fn can_say(&self) -> bool {
        self.desk.is_some() && self.in_hand.iter().any(|held| !held.is_asking)
    }

    /// A worker has taken a message.
    fn took(&mut self, queue: Arc<str>, loan: LeasedMessage) {
        self.counts.lent += 1;
        self.note(|| format!("a worker takes {}, delivery {}", loan.id, loan.delivery));
        self.look_for_leases(&loan);
        let taken = self.moment();
        self.in_hand.push(InHand { queue, loan, is_asking: false, taken, kept_for: None });
    }

    /// A message that another worker has is not given out, after a start either.
    fn look_for_leases(&mut self, loan: &LeasedMessage) {
        let (now, since_start) = (self.moment(), self.started.elapsed());
        let is_kept = |held: &InHand| {
            held.loan.id == loan.id
                && held.taken.jumps == now.jumps
                && held.kept_for.is_some_and(|kept| since_start < kept)
        };
        if self.in_hand.iter().any(is_kept) && !self.may_be_sent_again(loan) {
            self.violate(format!("{} was given out although a worker has it", loan.id));
        }
    }

    fn moment(&self) -> Moment {
        Moment { process: self.counts.crashes, ran_ns: self.ran_ns, jumps: self.jumps }
    }

    /// Somebody had it sent once more, or had its job erased, whose id was used again.
    fn may_be_sent_again(&self, loan: &LeasedMessage) -> bool {
        let place = loan.correlation_id.as_deref().and_then(|id| id.parse::<CorrelationId>().ok());
        let Some(place) = place else { return true };
        self.redispatched.iter().any(|(job, _)| *job == place.job)
            || self.asked.values().any(|asked| asked.ended_by_client)
    }

    /// The process has ended; `is_flowing`: what it wanted to write it could write.
    pub(super) fn leases_outlive(&mut self, is_flowing: bool) {
        let (now, crashed_ns) = (self.moment(), self.crashed_ns);
        for held in &mut self.in_hand {
            let is_of_now = held.taken.process == now.process;
            let had_ns = crashed_ns - held.taken.ran_ns;
            let is_journaled = is_of_now && is_flowing && had_ns > SURELY_JOURNALED_NS;
            let left_ns = LEASE_NS - (now.ran_ns - held.taken.ran_ns);
            let left = Duration::from_nanos(u64::try_from(left_ns).unwrap_or_default());
            held.kept_for = (is_journaled || held.kept_for.is_some()).then_some(left);
        }
    }

    /// A worker replies.
    pub(super) fn say(&mut self) -> Turn {
        let silent: Vec<usize> =
            (0..self.in_hand.len()).filter(|at| !self.in_hand[*at].is_asking).collect();
        let at = silent[self.rng.usize(0..silent.len())];
        let Some(word) = self.in_hand[at].word() else {
            self.in_hand.swap_remove(at);
            return Turn::Wait(Duration::ZERO);
        };
        self.in_hand[at].is_asking = true;
        let id = self.in_hand[at].loan.id.clone();
        self.note(|| format!("a worker replies to {id}"));
        Turn::Say(id, word)
    }

    /// The worker has its answer.
    pub(crate) fn said(&mut self, id: &str, is_done: bool) {
        if is_done {
            self.in_hand.retain(|held| !(held.is_asking && *held.loan.id == *id));
        } else {
            self.unheard(|held| *held.loan.id == *id);
        }
    }

    /// Nobody answers any more: who waits for that asks again.
    pub(super) fn unheard(&mut self, of: impl Fn(&InHand) -> bool) {
        self.in_hand.iter_mut().filter(|held| of(held)).for_each(|held| held.is_asking = false);
    }

    /// A worker dies with a message in hand.
    pub(super) fn lose_worker(&mut self) {
        if self.in_hand.is_empty() {
            return;
        }
        let lost = self.in_hand.swap_remove(self.rng.usize(0..self.in_hand.len()));
        self.note(|| format!("a worker dies that had {}", lost.loan.id));
        if self.bug == Some("messages of dead workers not lent again")
            && let Some(desk) = &self.desk
        {
            desk.remove(&lost.queue, &lost.loan.id);
        }
    }
}
