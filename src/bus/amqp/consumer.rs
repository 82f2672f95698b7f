//! The consuming connection: it consumes the reply queue and the queues of workflows.

use super::connection::{self, Pauses, channel_error};
use super::inspect;
use super::lane::{Ended, Lane, Source};
use super::policy;
use super::queues::{Found, Queues, short};
use super::shared::{Phase, Shared, Side, reached};
use super::wire::guard::Ties;
use super::wire::room::Flow;
use super::workflow_queues;
use crate::bus::BusEvent;
use crate::clock;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::protocol::AMQPSoftError;
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long the first connection of a process waits until another consumer is gone. The broker may
/// not have noticed yet that the previous process was killed.
const PREDECESSOR_GOES_WITHIN: Duration = Duration::from_secs(5);
const PREDECESSOR_PAUSE: Duration = Duration::from_millis(250);

/// The interval at which the delivery budget is checked for room.
const ROOM_PAUSE: Duration = Duration::from_millis(100);

const CONSUMER_TAG: &str = "workflow-manager";

/// Consumes over any number of connections, until the bus is closed.
pub(super) async fn run(shared: Rc<Shared>, mut phases: watch::Receiver<Phase>) {
    let mut pauses = Pauses::new(shared.settings.reconnect_min, shared.settings.reconnect_max);
    let mut consumer =
        Consumer { lane: Lane::new(shared.clone(), Source::Replies), shared: shared.clone() };
    loop {
        let opened = tokio::select! {
            biased;
            () = reached(&mut phases, Phase::EndConsuming) => break,
            opened = Box::pin(consumer.open_when_there_is_room()) => opened,
        };
        let end = match opened {
            Ok(session) => {
                let since = clock::ticks();
                tracing::info!(
                    server = %shared.address,
                    queue = shared.settings.reply_queue,
                    "consuming replies"
                );
                shared.board.up(Side::Consumer);
                let end = consumer.consume(session, &mut phases).await;
                if since.elapsed() >= shared.settings.reconnect_min {
                    pauses.reset();
                }
                end
            }
            Err(end) => end,
        };
        match end {
            End::Closed => break,
            End::Refused(reason) => {
                tracing::error!(
                    server = %shared.address,
                    reason,
                    "the reply queue cannot be consumed"
                );
                shared.board.down(Side::Consumer, &reason);
                (shared.sink)(BusEvent::Refused(reason));
                return;
            }
            End::Lost(reason) => {
                let pause = pauses.next();
                shared.down(Side::Consumer, &reason, pause);
                tokio::select! {
                    () = reached(&mut phases, Phase::EndConsuming) => break,
                    () = tokio::time::sleep(pause) => {}
                }
            }
        }
    }
    shared.board.down(Side::Consumer, "closed");
}

enum End {
    /// The bus is closed.
    Closed,
    /// The connection is lost; another attempt may help.
    Lost(String),
    /// No further attempt by this process would help.
    Refused(String),
}

struct Consumer {
    shared: Rc<Shared>,
    lane: Lane,
}

struct Session {
    connection: Rc<Connection>,
    flow: Arc<Flow>,
    channel: Channel,
    deliveries: lapin::Consumer,
}

/// Why a connection could not consume.
enum Obstacle {
    /// Another process consumes; how that was noticed.
    Taken(String),
    Other(String),
}

impl Consumer {
    /// Opens a connection once deliveries of an earlier one leave room in the budget. Those that
    /// are not settled yet are redelivered on the new connection.
    async fn open_when_there_is_room(&self) -> Result<Session, End> {
        while !self.shared.room.has_room() {
            tokio::time::sleep(ROOM_PAUSE).await;
        }
        self.open().await
    }

    async fn open(&self) -> Result<Session, End> {
        let flow = Flow::new(&self.shared.room);
        let opening = self
            .shared
            .address
            .open_with("replies", Ties { flow: Some(flow.clone()), ..Ties::default() });
        let connection = Rc::new(opening.await.map_err(End::Lost)?);
        let taken_until = clock::ticks() + PREDECESSOR_GOES_WITHIN;
        // The jitter matters: of two processes that gave way to each other, one comes first the
        // next time.
        let mut pauses = Pauses::new(PREDECESSOR_PAUSE / 2, PREDECESSOR_PAUSE);
        loop {
            match self.attempt(&connection, &flow).await {
                Ok(session) => return Ok(session),
                Err(Obstacle::Other(reason)) => return Err(End::Lost(reason)),
                Err(Obstacle::Taken(how)) => {
                    let queue = &self.shared.settings.reply_queue;
                    let reason = format!(
                        "another process consumes the reply queue \"{queue}\" of {} ({how}); stop \
                         it, or give this process a reply queue of its own with the setting \
                         amqp.reply_queue",
                        self.shared.address
                    );
                    if self.lane.is_old() || self.shared.settings.joins {
                        return Err(End::Lost(reason));
                    }
                    if clock::ticks() >= taken_until {
                        return Err(End::Refused(reason));
                    }
                    tokio::time::sleep(pauses.next()).await;
                }
            }
        }
    }

    async fn attempt(
        &self,
        connection: &Rc<Connection>,
        flow: &Arc<Flow>,
    ) -> Result<Session, Obstacle> {
        let settings = &self.shared.settings;
        let queue = settings.reply_queue.as_str();
        let lost = |error: lapin::Error| Obstacle::Other(self.shared.address.explain(&error));
        let queues = Queues::new(connection.clone());
        match queues.reply_queue(settings).await {
            Found::There { consumers: 0, .. } => {}
            Found::There { consumers, .. } => {
                return Err(Obstacle::Taken(format!("consumers: {consumers}")));
            }
            Found::Locked => {
                return Err(Obstacle::Taken(
                    "it is an exclusive queue of another connection".to_owned(),
                ));
            }
            Found::Missing => {
                return Err(Obstacle::Other(format!(
                    "the reply queue \"{queue}\" was deleted while it was being declared"
                )));
            }
            Found::Refused(said) => {
                return Err(Obstacle::Other(format!(
                    "the broker refuses the reply queue \"{queue}\": {said}"
                )));
            }
            Found::Lost(error) => return Err(lost(error)),
        }
        // A queue with a single active consumer allows no exclusive consumer. Only the count of
        // consumers can tell there.
        for exclusive in [true, false] {
            let channel = connection.create_channel().await.map_err(lost)?;
            channel.basic_qos(settings.prefetch, BasicQosOptions::default()).await.map_err(lost)?;
            flow.watch(channel.id());
            let options = BasicConsumeOptions { exclusive, ..BasicConsumeOptions::default() };
            match channel
                .basic_consume(short(queue), CONSUMER_TAG.into(), options, FieldTable::default())
                .await
            {
                // Two processes may have found the queue free at the same time. Both give way then.
                Ok(deliveries) => match queues.look(queue).await {
                    Found::There { consumers, .. } if consumers > 1 => {
                        return Err(Obstacle::Taken(format!("consumers: {consumers}")));
                    }
                    Found::Lost(error) => return Err(lost(error)),
                    Found::There { .. } | Found::Missing | Found::Locked | Found::Refused(_) => {
                        return Ok(Session {
                            connection: connection.clone(),
                            flow: flow.clone(),
                            channel,
                            deliveries,
                        });
                    }
                },
                Err(error) => match channel_error(&error) {
                    Some((AMQPSoftError::ACCESSREFUSED, said))
                        if said.contains("in exclusive use") =>
                    {
                        return Err(Obstacle::Taken(said.to_owned()));
                    }
                    Some((AMQPSoftError::ACCESSREFUSED, _)) if exclusive => {}
                    _ => return Err(lost(error)),
                },
            }
        }
        Err(Obstacle::Other(format!(
            "the broker does not let this user consume the reply queue \"{queue}\""
        )))
    }

    async fn consume(&mut self, session: Session, phases: &mut watch::Receiver<Phase>) -> End {
        let Session { connection, flow, channel, deliveries } = session;
        let workflow_queues = workflow_queues::consume(&self.shared, &connection, phases);
        let policy = actix_rt::spawn(policy::keep(self.shared.clone()));
        let seeing = actix_rt::spawn(inspect::see_all(self.shared.clone()));
        let ended = self.lane.serve(&channel, deliveries, Some(&flow), phases).await;
        policy.abort();
        seeing.abort();
        workflow_queues.end(matches!(ended, Ended::Closed)).await;
        // The connection is closed even if only the channel failed.
        connection::close(&connection).await;
        match ended {
            Ended::Closed => End::Closed,
            // Only call queues change their prefetch.
            Ended::Refitted | Ended::Cancelled => End::Lost(
                "the broker ended the consumer: the reply queue was deleted or moved".to_owned(),
            ),
            Ended::Failed(error) => End::Lost(self.shared.address.explain(&error)),
        }
    }
}
