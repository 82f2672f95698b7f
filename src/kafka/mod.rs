//! The bus over Kafka. It produces to the topics of queues, and consumes the reply topic. No other
//! crate uses rdkafka, apart from tests.
//!
//! Kafka does not store which records were acknowledged, only one offset per partition. So the bus
//! joins no consumer group. It assigns itself the reply topic at offsets from the journal. The
//! journaled offset of a partition is that of its first unsettled record, or else of the next
//! record. After a crash, the records from there on are read again, and those that were handled
//! before are rejected as duplicates.
//!
//! The client library has its own threads. They send delivery reports and errors over a channel.
//! Records arrive by a stream that wakes the arbiter. Calls that block until brokers answer
//! (inspecting and creating topics, closing clients) run on other threads.
//!
//! ```text
//! client        the properties of each client, and the events of its threads
//! record        parses the records of the reply topic
//! window        tracks the unsettled records of a partition
//! topic         the status of a topic, and the checks of its retention and watermarks
//! cluster       inspects and creates topics
//! reader        turns records into deliveries, and settlements into offsets
//! publisher     turns step messages into records, and reports into confirms
//! event_loop    the loop that owns a reader and a publisher
//! backoff       the delays between tries to reach the brokers
//! inspect       the lag and the members of the consumer groups of workers
//! test_support  fixtures for tests without brokers
//! ```

mod backoff;
mod client;
mod cluster;
mod event_loop;
mod inspect;
mod publisher;
mod reader;
mod record;
mod topic;
mod window;

use bus::KafkaSection;
use bus::event::run_reporting_panic;
use bus::{
    Addressee, AttemptEnd, Bus, BusEvent, EventSink, Publication, QueueStatus, ServedQueues,
    TopicOffset,
};
use client::ClientConfigs;
use event_loop::{Command, EventLoop, EventLoopPhase};
use futures_util::future::LocalBoxFuture;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

pub use cluster::{TopicSurvey, survey_topics};

/// Validated settings, and the journaled offsets at which the bus resumes.
#[derive(Debug)]
pub struct Connector {
    section: KafkaSection,
    served: ServedQueues,
    offsets: Vec<TopicOffset>,
}

impl Connector {
    /// Validates the settings. It does not connect yet.
    ///
    /// # Errors
    ///
    /// Returns an error if the client library rejects its properties.
    pub fn new(
        section: KafkaSection,
        served: ServedQueues,
        offsets: Vec<TopicOffset>,
    ) -> Result<Connector, String> {
        ClientConfigs::new(&section).check()?;
        Ok(Connector { section, served, offsets })
    }
}

/// The bus over Kafka. If it is dropped without being closed, its task is aborted.
pub struct KafkaBus {
    commands: mpsc::UnboundedSender<Command>,
    phase: watch::Sender<EventLoopPhase>,
    /// The number of accepted messages that are not confirmed, shared with the publisher.
    unconfirmed: Rc<Cell<usize>>,
    section: Arc<KafkaSection>,
    sink: EventSink,
    /// The event loop; `None` if it could not be created, or once the bus is being closed.
    task: Option<actix_rt::task::JoinHandle<()>>,
}

impl KafkaBus {
    /// Starts the bus, which connects in the background and reports to `sink`. Must be called on an
    /// arbiter.
    pub fn connect(connector: Connector, sink: EventSink) -> KafkaBus {
        let Connector { section, served, offsets } = connector;
        let (commands, command_receiver) = mpsc::unbounded_channel();
        let (phase, phase_receiver) = watch::channel(EventLoopPhase::Running);
        let (unconfirmed, section) = (Rc::new(Cell::new(0)), Arc::new(section));
        let event_loop =
            EventLoop::new(section.clone(), served, &offsets, sink.clone(), unconfirmed.clone());
        let task = match event_loop {
            Ok(event_loop) => {
                let run = event_loop.run(command_receiver, phase_receiver);
                Some(actix_rt::spawn(run_reporting_panic(sink.clone(), run)))
            }
            Err(reason) => {
                sink(BusEvent::Fatal(format!("a bus over Kafka cannot be made: {reason}")));
                None
            }
        };
        KafkaBus { commands, phase, unconfirmed, section, sink, task }
    }
}

impl Bus for KafkaBus {
    fn publish(&mut self, message: Publication) {
        match message.addressee {
            // Jobs cannot be started over Kafka, so no caller waits there.
            Addressee::Caller => (self.sink)(BusEvent::Unroutable(message.confirm_token)),
            Addressee::Worker => {
                self.unconfirmed.set(self.unconfirmed.get() + 1);
                // Sending fails only once the bus is closed. Then the message is still unconfirmed
                // in the journal, and the next start sends it.
                let _ = self.commands.send(Command::Publish(message));
            }
        }
    }

    /// Withdraws the message. If the client library already has it, it can only be kept from being
    /// sent again.
    fn withdraw(&mut self, _: &Arc<str>, id: &str, _: AttemptEnd) {
        let _ = self.commands.send(Command::Withdraw(id.to_owned()));
    }

    fn unconfirmed(&self) -> usize {
        self.unconfirmed.get()
    }

    fn inspect(&mut self, queues: Vec<Arc<str>>) -> LocalBoxFuture<'static, Vec<QueueStatus>> {
        Box::pin(inspect::inspect(self.section.clone(), queues))
    }

    fn set_served(&mut self, served: ServedQueues) {
        // Sending fails only once the bus is closed.
        let _ = self.commands.send(Command::SetServed(served));
    }

    /// Waits a few seconds until the replies that were read are settled, then publishes the
    /// messages that follow from them. Does not wait for brokers that are unavailable.
    fn close(&mut self) -> LocalBoxFuture<'static, ()> {
        let (task, phase) = (self.task.take(), self.phase.clone());
        Box::pin(async move {
            let Some(task) = task else { return };
            // Dropping this future, for example at the caller's deadline, aborts the task.
            let mut task = AbortOnDrop(task);
            phase.send_replace(EventLoopPhase::Stopping);
            // An error means that the task panicked; it has ended in any case.
            let _ = (&mut task.0).await;
        })
    }
}

impl Drop for KafkaBus {
    fn drop(&mut self) {
        self.task.iter().for_each(actix_rt::task::JoinHandle::abort);
    }
}

/// A task that is aborted on drop.
struct AbortOnDrop(actix_rt::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod test_support;
