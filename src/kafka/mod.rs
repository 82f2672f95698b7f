//! The bus over Kafka. It is the only user of rdkafka. It produces to the topics of queues and
//! consumes one topic of replies.
//!
//! Kafka does not store which records were acknowledged. So the bus is in no consumer group: it
//! assigns itself the reply topic at offsets from the journal. The offset of a partition is that of
//! its first unsettled record, so after a crash only the records from there on are read again.
//! Replies that are read twice are duplicates.
//!
//! The client library has its own threads. Delivery reports, errors and log lines come from them
//! over a channel; records come by a stream that wakes the arbiter. Whatever waits for brokers
//! (inspecting and creating topics, closing clients) runs on threads that may block.
//!
//! ```text
//! client        the properties of each client, and the events of its threads
//! record        parses the records of the reply topic
//! window        which records of a partition are not settled
//! topic         what brokers report of a topic, and what follows from that
//! cluster       inspects and creates topics
//! reader        records to deliveries, settlements to offsets
//! publisher     step messages to records, reports to confirms
//! event_loop    the loop that owns a reader and a publisher
//! backoff       the delays between tries
//! inspect       how far workers are behind
//! test_support  parts for tests, without brokers
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

/// Validated settings, and the offsets from which the bus continues.
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
    /// The client library rejects its properties, for the reason in the text.
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
    unconfirmed: Rc<Cell<usize>>,
    section: Arc<KafkaSection>,
    sink: EventSink,
    task: Option<actix_rt::task::JoinHandle<()>>,
}

impl KafkaBus {
    /// Starts to connect, without waiting for it, and reports to `sink`. Must be called on an
    /// arbiter.
    pub fn connect(connector: Connector, sink: EventSink) -> KafkaBus {
        let Connector { section, served, offsets } = connector;
        let (commands, inbox) = mpsc::unbounded_channel();
        let (phase, phases) = watch::channel(EventLoopPhase::Running);
        let (unconfirmed, section) = (Rc::new(Cell::new(0)), Arc::new(section));
        let link =
            EventLoop::new(section.clone(), served, &offsets, (sink.clone(), unconfirmed.clone()));
        let run = match link {
            Ok(link) => {
                let run = link.run(inbox, phases);
                Some(actix_rt::spawn(run_reporting_panic(sink.clone(), run)))
            }
            Err(why) => {
                sink(BusEvent::Fatal(format!("a bus over Kafka cannot be made: {why}")));
                None
            }
        };
        KafkaBus { commands, phase, unconfirmed, section, sink, task: run }
    }
}

impl Bus for KafkaBus {
    fn publish(&mut self, message: Publication) {
        match message.addressee {
            // There are no calls over Kafka, so no caller waits there.
            Addressee::Caller => (self.sink)(BusEvent::Unroutable(message.confirm_token)),
            Addressee::Worker => {
                self.unconfirmed.set(self.unconfirmed.get() + 1);
                // Sending fails only once the bus is closed. The message is journaled as
                // unconfirmed then, and the next start sends it.
                let _ = self.commands.send(Command::Publish(message));
            }
        }
    }

    /// Withdraws the message unless the client library has it already.
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

    /// Waits until the open replies are settled, then publishes the messages that follow from
    /// them. Does not wait for brokers that are unavailable.
    fn close(&mut self) -> LocalBoxFuture<'static, ()> {
        let (run, phase) = (self.task.take(), self.phase.clone());
        Box::pin(async move {
            // If the caller drops this future at its deadline, that also aborts the task.
            let Some(run) = run else { return };
            let mut run = AbortOnDrop(run);
            phase.send_replace(EventLoopPhase::Stopping);
            // An error means that the task panicked; it has ended in any case.
            let _ = (&mut run.0).await;
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
