//! The event loop that owns a reader and a publisher. It checks brokers and topics, reports the
//! state of the bus, and reports queues whose messages are lost.

use super::client::{Context, Told};
use super::cluster::{Cluster, Question};
use super::pauses::Pauses;
use super::publisher::Publisher;
use super::reader::{Heard, Reader};
use super::topic::{Topic, TopicLook, is_another};
use crate::bus::{BusEvent, BusState, EventSink, Position, Publication, Served};
use crate::clock;
use crate::settings::KafkaSection;
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// How long closing waits until replies are settled. Those that are not are read again.
const VERDICTS_WITHIN: Duration = Duration::from_secs(3);

/// How many commands or client events are handled before anything else.
const TAKEN_MAX: usize = 512;

/// A command of the bus's owner.
pub(super) enum Command {
    Publish(Publication),
    /// Withdraws the message with this id.
    Withdraw(String),
    Serve(Served),
}

/// How far the shutdown of the bus has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// No more replies are read; then no more messages are sent.
    EndConsuming,
}

/// Whether the brokers answer.
enum Brokers {
    /// They do not answer yet, or no longer.
    Away {
        reason: String,
    },
    There,
}

/// A task about a topic that has completed.
enum Done {
    /// The loss of a queue's messages is journaled.
    Told(Arc<str>),
    /// The topic of a queue was created, or why it was not. `None`: the reply topic.
    Created(Option<Arc<str>>, Result<(), String>),
}

type Looks = Result<(Vec<Asked>, Vec<TopicLook>), String>;

/// Whose topic was checked.
enum Asked {
    Replies,
    /// A queue, and how far its topic had been written when the check began.
    Queue(Arc<str>, BTreeMap<i32, i64>),
}

pub(super) struct Link {
    section: Arc<KafkaSection>,
    sink: EventSink,
    cluster: Cluster,
    reader: Reader,
    publisher: Publisher,
    told: mpsc::UnboundedReceiver<Told>,
    brokers: Brokers,
    pauses: Pauses,
    /// The queues that are served, or were.
    queues: BTreeSet<Arc<str>>,
    waits: BTreeMap<Arc<str>, Duration>,
    /// Queues whose topics are created once their loss is journaled.
    missing: BTreeSet<Arc<str>>,
    /// How far topics were written that ended before that at the last check.
    suspects: BTreeMap<Arc<str>, BTreeMap<i32, i64>>,
    look: Option<LocalBoxFuture<'static, Looks>>,
    next_look: Instant,
    done: FuturesUnordered<LocalBoxFuture<'static, Done>>,
    /// Why the reply topic cannot be read.
    no_replies: Option<String>,
    /// The library's last error.
    last_error: Option<String>,
    reported: BusState,
}

impl Link {
    pub(super) fn new(
        section: Arc<KafkaSection>,
        served: Served,
        positions: &[Position],
        (sink, unconfirmed): (EventSink, Rc<Cell<usize>>),
    ) -> Result<Link, String> {
        let (tell, told) = mpsc::unbounded_channel();
        let context = Context(tell);
        let cluster = Cluster::new(&section, context.clone())?;
        let reader = Reader::new(section.clone(), positions, sink.clone(), context.clone())?;
        let outside = (sink.clone(), unconfirmed);
        let publisher = Publisher::new(section.clone(), positions, outside, context)?;
        Ok(Link {
            pauses: Pauses::of(&section),
            section,
            sink,
            cluster,
            reader,
            publisher,
            told,
            brokers: Brokers::Away { reason: String::new() },
            queues: served.workers.into_iter().collect(),
            waits: served.waits,
            missing: BTreeSet::new(),
            suspects: BTreeMap::new(),
            look: None,
            next_look: clock::ticks(),
            done: FuturesUnordered::new(),
            no_replies: None,
            last_error: None,
            reported: BusState::Disconnected { reason: String::new() },
        })
    }

    /// Runs until the bus is closed.
    pub(super) async fn run(
        mut self,
        mut commands: mpsc::UnboundedReceiver<Command>,
        mut phases: watch::Receiver<Phase>,
    ) {
        let (mut taken, mut reports) = (Vec::with_capacity(TAKEN_MAX), Vec::new());
        let mut closing: Option<Instant> = None;
        loop {
            if let Err(why) = self.publisher.renew_if_outdated() {
                return (self.sink)(BusEvent::Refused(format!("no producer can be made: {why}")));
            }
            // Without this condition the library would send what it has whenever the brokers are
            // back.
            if matches!(self.brokers, Brokers::There) {
                self.publisher.pump();
            }
            self.reader.tell_positions();
            self.publisher.tell_positions();
            self.report();
            self.look_if_wanted();
            if closing.is_some_and(|until| self.may_end(until)) {
                break;
            }
            // A time in the past is not waited for: the publisher is what is waited for then.
            let verdicts_until = closing.filter(|until| *until > clock::ticks());
            let next_look = Some(self.next_look).filter(|_| self.look.is_none());
            let due = [next_look, verdicts_until, self.publisher.next_due()];
            let due = due.into_iter().flatten().min();
            let (reader, look) = (self.reader.next(), &mut self.look);
            tokio::select! {
                count = commands.recv_many(&mut taken, TAKEN_MAX), if !commands.is_closed() => {
                    if count > 0 {
                        taken.drain(..).for_each(|command| self.act(command));
                    }
                }
                _ = self.told.recv_many(&mut reports, TAKEN_MAX) => {
                    reports.drain(..).for_each(|told| self.hear(told));
                }
                Some(verdict) = self.reader.verdicts.recv() => self.reader.settle(verdict),
                heard = reader, if closing.is_none() && self.reader.has_room() => self.take(heard),
                looks = async { look.as_mut().unwrap_or(&mut never()).await } => {
                    self.look = None;
                    self.looked(looks);
                }
                Some(done) = self.done.next() => self.follow(done),
                () = tokio::time::sleep_until(due.unwrap_or_else(clock::ticks)),
                    if due.is_some() =>
                {
                    self.publisher.due();
                }
                () = ended(&mut phases), if closing.is_none() => {
                    closing = Some(clock::ticks() + VERDICTS_WITHIN);
                }
            }
        }
        self.brokers = Brokers::Away { reason: "closed".to_owned() };
        self.report();
    }

    /// Returns whether nothing is left that would end within a short wait.
    fn may_end(&self, verdicts_until: Instant) -> bool {
        let unsettled = self.reader.unsettled();
        if unsettled > 0 && clock::ticks() < verdicts_until {
            return false;
        }
        // Unavailable brokers are not waited for.
        let is_away = matches!(self.brokers, Brokers::Away { .. });
        let ends = self.publisher.is_done() || is_away;
        if ends && unsettled > 0 {
            tracing::warn!(unsettled, "replies without a verdict are read again");
        }
        ends
    }

    fn act(&mut self, command: Command) {
        match command {
            Command::Publish(message) => self.publisher.take(message),
            Command::Withdraw(id) => self.publisher.withdraw(&id),
            Command::Serve(served) => {
                // Running jobs, and jobs that are retried, still use the queues of earlier
                // definitions.
                self.queues.extend(served.workers);
                for (queue, wait) in served.waits {
                    let longest = self.waits.entry(queue).or_default();
                    *longest = wait.max(*longest);
                }
                self.publisher.wants_look = true;
            }
        }
    }

    fn hear(&mut self, told: Told) {
        match told {
            Told::Delivered { number, taken } => self.publisher.delivered(number, taken),
            Told::ProducerEnded { last } => self.publisher.ended(last),
            Told::AllDown => {
                if matches!(self.brokers, Brokers::There) {
                    let reason = self.last_error.clone();
                    self.away(reason.unwrap_or_else(|| "no broker can be reached".to_owned()));
                    self.next_look = clock::ticks();
                }
            }
            Told::Error(reason) => {
                self.last_error = Some(reason);
                self.publisher.look_at_producer();
            }
        }
    }

    fn take(&mut self, heard: Heard) {
        match heard {
            Heard::Records(records) => {
                records.into_iter().for_each(|record| self.reader.deliver(record));
            }
            Heard::End(partition) => self.reader.ended(partition),
            Heard::Changed(reason) => {
                tracing::debug!(reason, "the reply topic is not as it was");
                self.publisher.wants_look = true;
            }
            Heard::Stopped(reason) => {
                tracing::debug!(reason, "the library has stopped to read the reply topic");
                // After the next check, reading continues from where it was.
                self.reader.pause();
                let soon = clock::ticks() + self.section.reconnect_min.0;
                self.next_look = self.next_look.min(soon);
            }
            Heard::Trouble(reason) => tracing::debug!(reason, "the reply topic cannot be read"),
        }
    }

    // ---- checks of topics

    fn look_if_wanted(&mut self) {
        let is_there = matches!(self.brokers, Brokers::There);
        let is_due = clock::ticks() >= self.next_look;
        // While the brokers are unavailable, the next check covers all topics.
        let is_wanted = is_due || (is_there && std::mem::take(&mut self.publisher.wants_look));
        if !is_wanted || self.look.is_some() {
            self.publisher.wants_look |= is_wanted && !is_due;
            return;
        }
        self.publisher.wants_look = false;
        self.next_look = clock::ticks() + self.section.checked_every.0;
        let queues: BTreeSet<Arc<str>> =
            self.queues.iter().chain(self.publisher.queues()).cloned().collect();
        let replies = Question { topic: self.section.reply_topic.clone(), ends_of: None };
        let mut asked = vec![Asked::Replies];
        let mut questions = vec![replies];
        // A queue whose loss is not journaled yet is checked afterwards.
        for queue in queues.into_iter().filter(|queue| !self.publisher.is_lost(queue)) {
            let (topic, written) = (self.section.topic(&queue), self.publisher.written(&queue));
            let ends_of = Some(written.keys().copied().collect());
            questions.push(Question { topic, ends_of });
            asked.push(Asked::Queue(queue, written));
        }
        let (cluster, timeout) = (self.cluster.clone(), self.section.request_timeout.0);
        self.look = Some(Box::pin(async move {
            let looks = cluster.look(questions, timeout).await?;
            Ok((asked, looks))
        }));
    }

    fn looked(&mut self, looks: Looks) {
        let (asked, looks) = match looks {
            Ok(looks) => looks,
            Err(reason) => {
                let reason = match &self.last_error {
                    Some(said) => format!("{reason}: {said}"),
                    None => reason,
                };
                self.away(reason);
                self.next_look = clock::ticks() + self.pauses.next();
                return;
            }
        };
        let was_away = matches!(self.brokers, Brokers::Away { .. });
        if was_away {
            tracing::info!(servers = self.section.servers.0.join(","), "connected to the brokers");
        }
        self.pauses = Pauses::of(&self.section);
        self.last_error = None;
        self.brokers = Brokers::There;
        self.publisher.looked();
        for (asked, look) in asked.into_iter().zip(looks) {
            match asked {
                Asked::Replies => self.replies_looked(&look, was_away),
                Asked::Queue(queue, written) => self.queue_looked(&queue, &written, look),
            }
        }
    }

    fn replies_looked(&mut self, look: &TopicLook, was_away: bool) {
        self.no_replies = None;
        let found = match look {
            TopicLook::There(topic) => {
                let found = self.reader.found(topic);
                if was_away {
                    self.reader.catch_up(topic);
                }
                found
            }
            TopicLook::Missing => {
                self.create(None);
                self.reader.missing()
            }
            TopicLook::Refused(reason) => Err(reason.clone()),
        };
        match found {
            Ok(false) => {}
            Ok(true) => {
                let queues: Vec<Arc<str>> =
                    self.queues.iter().chain(self.publisher.queues()).cloned().collect();
                queues.iter().for_each(|queue| self.lose(queue));
            }
            Err(reason) => self.no_replies = Some(reason),
        }
    }

    fn queue_looked(&mut self, queue: &Arc<str>, written: &BTreeMap<i32, i64>, look: TopicLook) {
        match look {
            TopicLook::Missing => {
                self.missing.insert(queue.clone());
                self.lose(queue);
            }
            // The topic was lost meanwhile, and is checked again.
            TopicLook::Refused(_) | TopicLook::There(_) if self.publisher.is_lost(queue) => {}
            TopicLook::Refused(reason) => self.publisher.unfit(queue, reason),
            TopicLook::There(topic) if self.has_shrunk(queue, written, &topic) => {
                let Topic { partitions, ends, .. } = topic;
                tracing::warn!(
                    %queue, ?written, partitions, ?ends,
                    "a topic ends before what was written to it: it was made anew, and what \
                     waited in it is lost"
                );
                self.lose(queue);
            }
            TopicLook::There(topic) => {
                let (name, wait) = (self.section.topic(queue), self.waits.get(queue).copied());
                match topic.keeps.objection(&name, wait) {
                    Some(reason) => self.publisher.unfit(queue, reason),
                    None => self.publisher.there(queue, topic.partitions),
                }
            }
        }
    }

    /// Returns whether a topic ended before what was written to it, at two checks: the end that a
    /// broker reports may be a moment old.
    fn has_shrunk(
        &mut self,
        queue: &Arc<str>,
        written: &BTreeMap<i32, i64>,
        found: &Topic,
    ) -> bool {
        if !is_another(written, found) {
            self.suspects.remove(queue);
            return false;
        }
        let before = self.suspects.insert(queue.clone(), written.clone());
        before.is_some_and(|before| is_another(&before, found))
    }

    /// Reports that the messages of a queue are lost: its steps must be sent again.
    fn lose(&mut self, queue: &Arc<str>) {
        if self.publisher.is_lost(queue) {
            return;
        }
        self.publisher.lose(queue);
        self.suspects.remove(queue);
        let (taken, answered) = oneshot::channel();
        (self.sink)(BusEvent::QueueMissing { queue: queue.clone(), taken });
        let queue = queue.clone();
        self.done.push(Box::pin(async move {
            // An error means that the manager stops.
            let _ = answered.await;
            Done::Told(queue)
        }));
    }

    fn follow(&mut self, done: Done) {
        match done {
            Done::Told(queue) if self.missing.remove(&queue) => self.create(Some(queue)),
            Done::Told(queue) => self.publisher.told_of(&queue),
            Done::Created(Some(queue), Ok(())) => self.publisher.told_of(&queue),
            Done::Created(Some(queue), Err(why)) => {
                let topic = self.section.topic(&queue);
                let reason = format!("the topic {topic} is missing and cannot be created: {why}");
                self.publisher.unfit(&queue, reason);
            }
            Done::Created(None, Ok(())) => self.publisher.wants_look = true,
            Done::Created(None, Err(why)) => {
                let topic = &self.section.reply_topic;
                self.no_replies = Some(format!(
                    "the reply topic {topic} is missing and cannot be created: {why}"
                ));
            }
        }
    }

    /// Creates the topic of a queue; `None`: the reply topic.
    fn create(&mut self, queue: Option<Arc<str>>) {
        let (cluster, section) = (self.cluster.clone(), self.section.clone());
        let (topic, wait) = match &queue {
            Some(queue) => (section.topic(queue), self.waits.get(queue).copied()),
            None => (section.reply_topic.clone(), None),
        };
        self.done.push(Box::pin(async move {
            let created = cluster.create(&section, &topic, wait).await;
            Done::Created(queue, created)
        }));
    }

    // ---- state

    fn away(&mut self, reason: String) {
        let is_news = match &self.brokers {
            Brokers::Away { reason: known } => *known != reason,
            Brokers::There => true,
        };
        let servers = self.section.servers.0.join(",");
        if is_news {
            tracing::warn!(
                servers,
                reason,
                "not connected to the brokers (logged once for each reason)"
            );
        }
        self.brokers = Brokers::Away { reason };
        // Reading continues only after a check that the topic is still the same.
        self.reader.pause();
    }

    fn report(&mut self) {
        let state = self.state();
        if state != self.reported {
            self.reported = state.clone();
            (self.sink)(BusEvent::State(state));
        }
    }

    fn state(&self) -> BusState {
        match (&self.brokers, &self.no_replies) {
            (Brokers::Away { reason }, _) => {
                return BusState::Disconnected { reason: reason.clone() };
            }
            (Brokers::There, Some(reason)) => {
                return BusState::Disconnected { reason: reason.clone() };
            }
            (Brokers::There, None) => {}
        }
        if let Some(reason) = self.publisher.no_producer() {
            let reason = format!("the brokers let no producer go on: {reason}");
            return BusState::Disconnected { reason };
        }
        if !self.reader.has_caught_up() {
            return BusState::CatchingUp;
        }
        let unfit = self.publisher.unfit_queues();
        if unfit.is_empty() {
            return BusState::Connected;
        }
        let reasons: Vec<&str> = unfit.values().map(String::as_str).collect();
        let reason = reasons.join("; ");
        BusState::Unfit { queues: unfit.into_keys().collect(), reason }
    }
}

/// Waits until the bus is to be closed, or is gone.
async fn ended(phases: &mut watch::Receiver<Phase>) {
    let _ = phases.wait_for(|phase| *phase == Phase::EndConsuming).await;
}

fn never() -> LocalBoxFuture<'static, Looks> {
    Box::pin(std::future::pending())
}

#[cfg(test)]
mod tests;
