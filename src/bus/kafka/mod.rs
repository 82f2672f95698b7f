//! The bus over Kafka: the only user of rdkafka. It produces to the topics of queues and reads one
//! topic of replies.
//!
//! A log keeps no record of what was taken. So the bus is in no consumer group: it assigns itself
//! the reply topic at positions that the journal has. The position of a partition is the lowest
//! offset without a verdict, so a crash has only what followed it read again; replies that are read
//! twice are duplicates.
//!
//! The client library has threads of its own. Delivery reports, errors and log lines come from them
//! over a channel; records by a stream that wakes the arbiter. What waits for brokers (looks at
//! topics, creations, ends of clients) runs on threads that may block.
//!
//! ```text
//! client    the properties of each client, and what its threads tell
//! record    what a record of the reply topic says
//! window    which records of a partition have no verdict
//! topic     what brokers tell of a topic, and what follows from that
//! cluster   looks at topics, and creates them
//! reader    records to deliveries, verdicts to positions
//! publisher step messages to records, reports to confirms
//! link      the loop that owns a reader and a publisher
//! pauses    the pauses between tries
//! inspect   how far workers are behind
//! trial     parts for tests, without brokers
//! ```

mod client;
mod cluster;
mod inspect;
mod link;
mod pauses;
mod publisher;
mod reader;
mod record;
mod topic;
mod window;

use super::event::watched;
use super::{Addressee, Bus, BusEvent, EventSink, Over, Position, Publication, QueueLook, Served};
use crate::settings::KafkaSection;
use client::Configs;
use futures_util::future::LocalBoxFuture;
use link::{Command, Link, Phase};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

pub use cluster::{Survey, survey};

/// Checked settings, and where the bus goes on.
#[derive(Debug)]
pub struct Connector {
    section: KafkaSection,
    served: Served,
    positions: Vec<Position>,
}

impl Connector {
    /// Checks the settings; connects to nothing yet.
    ///
    /// # Errors
    ///
    /// What the client library says of its properties.
    pub fn new(
        section: KafkaSection,
        served: Served,
        positions: Vec<Position>,
    ) -> Result<Connector, String> {
        Configs::of(&section).check()?;
        Ok(Connector { section, served, positions })
    }
}

/// The bus over Kafka. It breaks off when it is dropped without having been closed.
pub struct KafkaBus {
    commands: mpsc::UnboundedSender<Command>,
    phase: watch::Sender<Phase>,
    unconfirmed: Rc<Cell<usize>>,
    section: Arc<KafkaSection>,
    sink: EventSink,
    run: Option<actix_rt::task::JoinHandle<()>>,
}

impl KafkaBus {
    /// Starts to connect, without waiting for it, and reports to `sink`. Must be called on an
    /// arbiter.
    pub fn connect(connector: Connector, sink: EventSink) -> KafkaBus {
        let Connector { section, served, positions } = connector;
        let (commands, inbox) = mpsc::unbounded_channel();
        let (phase, phases) = watch::channel(Phase::Open);
        let (unconfirmed, section) = (Rc::new(Cell::new(0)), Arc::new(section));
        let link =
            Link::new(section.clone(), served, &positions, (sink.clone(), unconfirmed.clone()));
        let run = match link {
            Ok(link) => {
                let run = link.run(inbox, phases);
                Some(actix_rt::spawn(watched(sink.clone(), run)))
            }
            Err(why) => {
                sink(BusEvent::Refused(format!("a bus over Kafka cannot be made: {why}")));
                None
            }
        };
        KafkaBus { commands, phase, unconfirmed, section, sink, run }
    }
}

impl Bus for KafkaBus {
    fn publish(&mut self, message: Publication) {
        match message.addressee {
            // Nobody asks for jobs over Kafka, so nobody waits there for their ends.
            Addressee::Caller => (self.sink)(BusEvent::Unroutable(message.receipt)),
            Addressee::Worker => {
                self.unconfirmed.set(self.unconfirmed.get() + 1);
                // Refused only once the bus is closed: the message is journaled as unconfirmed, and
                // the next start sends it.
                let _ = self.commands.send(Command::Publish(message));
            }
        }
    }

    /// What the client library does not have yet is not sent.
    fn withdraw(&mut self, _: &Arc<str>, id: &str, _: Over) {
        let _ = self.commands.send(Command::Withdraw(id.to_owned()));
    }

    fn unconfirmed(&self) -> usize {
        self.unconfirmed.get()
    }

    fn inspect(&mut self, queues: Vec<Arc<str>>) -> LocalBoxFuture<'static, Vec<QueueLook>> {
        Box::pin(inspect::inspect(self.section.clone(), queues))
    }

    fn serve(&mut self, served: Served) {
        // Fails only once the bus is closed.
        let _ = self.commands.send(Command::Serve(served));
    }

    /// First the replies under way get their verdicts, then the messages that follow from them go
    /// out. Does not wait for brokers that are not there.
    fn close(&mut self) -> LocalBoxFuture<'static, ()> {
        let (run, phase) = (self.run.take(), self.phase.clone());
        Box::pin(async move {
            // Dropped with this future at the caller's deadline: that ends the loop.
            let Some(run) = run else { return };
            let mut run = Running(run);
            phase.send_replace(Phase::EndConsuming);
            // An error means that the loop panicked; it has ended in any case.
            let _ = (&mut run.0).await;
        })
    }
}

impl Drop for KafkaBus {
    fn drop(&mut self) {
        self.run.iter().for_each(actix_rt::task::JoinHandle::abort);
    }
}

/// A loop that breaks off when it is dropped.
struct Running(actix_rt::task::JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod trial;
