//! The publishing loop: keeps each step message until the broker has confirmed it, over any number of connections.

use super::link::{Link, Pauses, Role, closed, costs_a_channel, is_soft, pause};
use crate::bus::{BusEvent, BusState, Notice, StepMessage};
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use lapin::message::BasicReturnMessage;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::protocol::AMQPSoftError;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, Event};
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{mpsc, oneshot, watch};

/// How often a message may be under way when the broker closes the channel for a violated condition before it is set
/// aside: it may be the one that the broker refuses.
const SUSPECT_LOSSES: u32 = 3;

pub(super) struct Publisher {
    link: Rc<Link>,
    published: mpsc::UnboundedReceiver<StepMessage>,
    closing: watch::Receiver<bool>,
    unconfirmed: Arc<AtomicUsize>,
    backlog: VecDeque<Pending>,
    in_flight: BTreeMap<u64, Pending>,
    /// Refused by the broker; sent again after a pause.
    set_aside: FuturesUnordered<LocalBoxFuture<'static, Pending>>,
    known: BTreeSet<Arc<str>>,
    next: u64,
}

struct Pending {
    message: StepMessage,
    losses: u32,
}

/// Why a connection is not used any more.
enum Over {
    Closed,
    Lost { reason: String, suspect: bool },
}

/// The confirms under way: each gives the number of its message.
type Confirms = FuturesUnordered<LocalBoxFuture<'static, (u64, lapin::Result<Confirmation>)>>;

impl Publisher {
    pub(super) fn new(
        link: Rc<Link>,
        published: mpsc::UnboundedReceiver<StepMessage>,
        closing: watch::Receiver<bool>,
        unconfirmed: Arc<AtomicUsize>,
    ) -> Publisher {
        let known = link.settings.queues.iter().cloned().collect();
        Publisher {
            link,
            published,
            closing,
            unconfirmed,
            backlog: VecDeque::new(),
            in_flight: BTreeMap::new(),
            set_aside: FuturesUnordered::new(),
            known,
            next: 0,
        }
    }

    pub(super) async fn run(mut self) {
        let mut pauses = Pauses::new(&self.link.settings);
        loop {
            let reason = match self.link.connect(Role::Publisher).await {
                Ok(connection) => match self.session(connection, &mut pauses).await {
                    Over::Closed => return,
                    Over::Lost { reason, suspect } => {
                        self.take_back(suspect);
                        reason
                    }
                },
                Err(reason) => reason,
            };
            let wait = pauses.next();
            self.link.lost(Role::Publisher, &reason, wait);
            if pause(wait, &mut self.closing).await {
                return;
            }
        }
    }

    async fn session(&mut self, connection: Connection, pauses: &mut Pauses) -> Over {
        let mut events = Box::pin(connection.events_listener());
        let channel = match open(&connection).await {
            Ok(channel) => channel,
            Err(error) => return self.over(&error),
        };
        let mut queues = Queues { connection: &connection, channel: None, checked: HashSet::new() };
        for queue in self.known.clone() {
            if let Err(error) = queues.ensure(&self.link, &queue).await {
                return self.over(&error);
            }
        }
        pauses.restart();
        self.link.set_state(Role::Publisher, BusState::Connected);
        let mut confirms = Confirms::new();
        loop {
            while self.in_flight.len() < self.link.settings.unconfirmed_max
                && let Some(pending) = self.backlog.pop_front()
            {
                let queue = pending.message.queue.clone();
                let number = self.next;
                self.next += 1;
                self.in_flight.insert(number, pending);
                if !queues.checked.contains(&queue) {
                    self.known.insert(queue.clone());
                    if let Err(error) = queues.ensure(&self.link, &queue).await {
                        return self.over(&error);
                    }
                }
                if let Some(pending) = self.in_flight.get(&number) {
                    confirms.push(send(channel.clone(), number, &pending.message, &self.link.settings.reply_queue));
                }
            }
            tokio::select! {
                Some((number, result)) = confirms.next(), if !confirms.is_empty() => match result {
                    Ok(confirmation) => self.on_confirmation(number, confirmation, &mut queues),
                    Err(error) => return self.over(&error),
                },
                Some(message) = self.published.recv() => self.backlog.push_back(Pending { message, losses: 0 }),
                Some(pending) = self.set_aside.next(), if !self.set_aside.is_empty() => self.backlog.push_back(pending),
                event = events.next() => match event {
                    Some(Event::ConnectionBlocked(reason)) => self.link.set_state(Role::Publisher, BusState::Blocked { reason }),
                    Some(Event::ConnectionUnblocked) => self.link.set_state(Role::Publisher, BusState::Connected),
                    Some(Event::Error(error)) if !costs_a_channel(&error) => return self.over(&error),
                    Some(_) => {}
                    None => return Over::Lost { reason: "the connection was closed".to_owned(), suspect: false },
                },
                () = closed(&mut self.closing), if self.idle() => {
                    // The broker has all: an error in saying good-bye changes nothing.
                    let _ = connection.close(200, "stopping".into()).await;
                    return Over::Closed;
                }
            }
        }
    }

    fn idle(&self) -> bool {
        self.backlog.is_empty() && self.in_flight.is_empty() && self.set_aside.is_empty() && self.published.is_empty()
    }

    fn on_confirmation(&mut self, number: u64, confirmation: Confirmation, queues: &mut Queues<'_>) {
        let Some(pending) = self.in_flight.remove(&number) else { return };
        match confirmation {
            Confirmation::Ack(None) | Confirmation::NotRequested => {
                self.unconfirmed.fetch_sub(1, Ordering::Relaxed);
                let StepMessage { job, step, attempt, .. } = pending.message;
                self.link.report(BusEvent::Confirmed { job, step, attempt });
            }
            // Unroutable: its queue is gone. It is looked for again, declared, and the message sent again.
            Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned)) => {
                self.on_returned(&pending, &returned);
                queues.checked.remove(&pending.message.queue);
                self.backlog.push_front(pending);
            }
            Confirmation::Nack(None) => {
                self.link.report(BusEvent::Noted(Notice::Refused));
                let wait = self.link.settings.reconnect_min;
                self.set_aside.push(later(pending, wait));
            }
        }
    }

    fn on_returned(&self, pending: &Pending, returned: &BasicReturnMessage) {
        let message = &pending.message;
        tracing::warn!(job = %message.job, step = %message.step_name, attempt = message.attempt, queue = %message.queue, reason = %returned.reply_text, "the broker returned a step message: it is sent again");
        self.link.report(BusEvent::Noted(Notice::Returned));
    }

    /// What was under way on a lost connection is sent again on the next, in order.
    fn take_back(&mut self, suspect: bool) {
        for (_, mut pending) in std::mem::take(&mut self.in_flight).into_iter().rev() {
            self.link.report(BusEvent::Noted(Notice::Resent));
            pending.losses += u32::from(suspect);
            if pending.losses < SUSPECT_LOSSES {
                self.backlog.push_front(pending);
                continue;
            }
            let message = &pending.message;
            tracing::error!(job = %message.job, step = %message.step_name, queue = %message.queue, bytes = message.body.len(), "the broker closed the channel each time this message was under way: is it over the broker's max_message_size? It is tried again later");
            let wait = self.link.settings.reconnect_max;
            self.set_aside.push(later(pending, wait));
        }
    }

    fn over(&self, error: &lapin::Error) -> Over {
        Over::Lost { reason: self.link.explain(error), suspect: is_soft(error, &AMQPSoftError::PRECONDITIONFAILED) }
    }
}

/// The queues that were looked for on this connection.
struct Queues<'a> {
    connection: &'a Connection,
    channel: Option<Channel>,
    checked: HashSet<Arc<str>>,
}

impl Queues<'_> {
    /// Makes sure that the queue is there. One that is missing has lost its messages: the manager is told, and only when
    /// it has journaled that, the queue is declared.
    async fn ensure(&mut self, link: &Link, queue: &Arc<str>) -> lapin::Result<()> {
        let channel = self.open().await?;
        if link.look_for(&channel, queue).await?.is_none() {
            self.channel = None;
            let (taken, answered) = oneshot::channel();
            link.report(BusEvent::QueueMissing { queue: queue.clone(), taken });
            // An error means that nobody had to be told.
            let _ = answered.await;
            let channel = self.open().await?;
            channel
                .queue_declare((&**queue).into(), QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() }, FieldTable::default())
                .await?;
        }
        self.checked.insert(queue.clone());
        Ok(())
    }

    async fn open(&mut self) -> lapin::Result<Channel> {
        match &self.channel {
            Some(channel) if channel.status().connected() => Ok(channel.clone()),
            Some(_) | None => {
                let channel = self.connection.create_channel().await?;
                self.channel = Some(channel.clone());
                Ok(channel)
            }
        }
    }
}

async fn open(connection: &Connection) -> lapin::Result<Channel> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

fn send(channel: Channel, number: u64, message: &StepMessage, reply_queue: &str) -> LocalBoxFuture<'static, (u64, lapin::Result<Confirmation>)> {
    let (queue, body, properties) = (message.queue.clone(), message.body.clone(), properties(message, reply_queue));
    Box::pin(async move {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let result = match channel.basic_publish("".into(), (&*queue).into(), options, &body, properties).await {
            Ok(confirm) => confirm.await,
            Err(error) => Err(error),
        };
        (number, result)
    })
}

fn later(pending: Pending, wait: std::time::Duration) -> LocalBoxFuture<'static, Pending> {
    Box::pin(async move {
        tokio::time::sleep(wait).await;
        pending
    })
}

/// AMQP's delivery mode of messages that survive the broker.
const PERSISTENT: u8 = 2;

fn properties(message: &StepMessage, reply_queue: &str) -> BasicProperties {
    let mut headers = FieldTable::default();
    let text = |text: String| AMQPValue::LongString(text.into());
    headers.insert("workflow".into(), text(message.workflow.to_string()));
    headers.insert("job".into(), text(message.root.to_string()));
    headers.insert("attempt".into(), AMQPValue::LongLongInt(i64::from(message.attempt)));
    headers.insert("traceparent".into(), text(message.traceparent.clone()));
    let properties = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_delivery_mode(PERSISTENT)
        .with_correlation_id(message.correlation_id().into())
        .with_reply_to(reply_queue.into())
        .with_message_id(message.message_id().into())
        .with_app_id("workflow-manager".into())
        .with_timestamp(message.timestamp_s)
        .with_headers(headers);
    match message.priority {
        Some(priority) => properties.with_priority(priority),
        None => properties,
    }
}
