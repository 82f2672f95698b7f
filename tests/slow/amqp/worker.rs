//! A worker that knows nothing but the worker protocol.

use super::{RUNTIME, StepMessage, json_properties};
use crate::harness::DEADLINE;
use futures_util::StreamExt;
use lapin::{
    Channel, Connection, ConnectionProperties, PublisherConfirm,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicPublishOptions,
        BasicQosOptions, ConfirmSelectOptions, QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};
use serde_json::Value;
use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// How long opening a connection may take: a node that is stopped does not answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often it is looked whether the connection is still there.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What a worker does with a message.
pub(crate) enum Answer {
    /// Replies with the body, and acknowledges when the broker has confirmed the reply.
    Reply(Vec<u8>),
    /// Acknowledges, and never replies.
    Silence,
    /// Keeps the message, and neither acknowledges nor replies.
    Hold,
    /// Refuses the message for good.
    Nack,
    /// Puts the message back into its queue.
    Requeue,
    /// Acknowledges, and replies with the body then: what no worker should do.
    AckFirst(Vec<u8>),
}

impl Answer {
    pub(crate) fn json(value: &Value) -> Answer {
        Answer::Reply(value.to_string().into_bytes())
    }
}

/// A worker that consumes from some queues until it is dropped. It survives the end of its
/// connection, as a worker must.
pub(crate) struct Worker {
    seen: Arc<Mutex<Vec<StepMessage>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Worker {
    /// Returns when the worker consumes from all the queues. `url` may be several addresses, with
    /// commas between them; then the queues are quorum queues.
    #[track_caller]
    pub(crate) fn start(
        url: &str,
        queues: &[impl AsRef<str>],
        work: impl FnMut(&StepMessage) -> Answer + Send + 'static,
    ) -> Worker {
        Worker::begin(url, queues, true, Box::new(work))
    }

    /// A worker that keeps nothing of what it receives, however large it is.
    #[track_caller]
    pub(crate) fn forgetful(
        url: &str,
        queues: &[impl AsRef<str>],
        work: impl FnMut(&StepMessage) -> Answer + Send + 'static,
    ) -> Worker {
        Worker::begin(url, queues, false, Box::new(work))
    }

    #[track_caller]
    fn begin(
        url: &str,
        queues: &[impl AsRef<str>],
        keeps: bool,
        work: Box<dyn FnMut(&StepMessage) -> Answer + Send>,
    ) -> Worker {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (ready, is_ready) = mpsc::channel();
        let duties = Duties {
            urls: match url.split_once(',') {
                // One of several may fall silent.
                Some(_) => url.split(',').map(|url| format!("{url}?heartbeat=2")).collect(),
                None => vec![url.to_owned()],
            },
            connections: 0,
            queues: queues.iter().map(|queue| queue.as_ref().to_owned()).collect(),
            seen: Arc::clone(&seen),
            keeps,
            work,
            ready,
        };
        let task = RUNTIME.spawn(duties.run_for_ever());
        is_ready
            .recv_timeout(DEADLINE)
            .expect("the worker's consumers are there within the deadline");
        Worker { seen, task }
    }

    /// A worker that gives its input back.
    #[track_caller]
    pub(crate) fn echo(url: &str, queues: &[impl AsRef<str>]) -> Worker {
        Worker::start(url, queues, |message| Answer::Reply(message.body.clone()))
    }

    /// All that it has received, in order.
    pub(crate) fn seen(&self) -> Vec<StepMessage> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn seen_count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Duties {
    /// The addresses of the broker's nodes. Each connection goes to the next one.
    urls: Vec<String>,
    connections: usize,
    queues: Vec<String>,
    seen: Arc<Mutex<Vec<StepMessage>>>,
    keeps: bool,
    work: Box<dyn FnMut(&StepMessage) -> Answer + Send>,
    ready: mpsc::Sender<()>,
}

impl Duties {
    async fn run_for_ever(mut self) {
        loop {
            let _lost = self.run_on_one_connection().await;
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    }

    async fn run_on_one_connection(&mut self) -> lapin::Result<()> {
        let url = &self.urls[self.connections % self.urls.len()];
        self.connections += 1;
        let connecting = Connection::connect(url, ConnectionProperties::default());
        let connection = tokio::time::timeout(CONNECT_TIMEOUT, connecting)
            .await
            .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
        let mut arguments = FieldTable::default();
        if self.urls.len() > 1 {
            arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        }
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        channel.basic_qos(50, BasicQosOptions::default()).await?;
        let mut consumers = futures_util::stream::SelectAll::new();
        for queue in &self.queues {
            channel
                .queue_declare(
                    queue.as_str().into(),
                    QueueDeclareOptions::durable(),
                    arguments.clone(),
                )
                .await?;
            consumers.push(
                channel
                    .basic_consume(
                        queue.as_str().into(),
                        "".into(),
                        BasicConsumeOptions::default(),
                        FieldTable::default(),
                    )
                    .await?,
            );
        }
        let _nobody_waits = self.ready.send(());

        while let Some(delivery) = consumers.next().await {
            let message = StepMessage::new(delivery?);
            let answer = (self.work)(&message);
            unless_lost(&connection, settle(&channel, &message, answer)).await?;
            if self.keeps {
                self.seen.lock().unwrap().push(message);
            }
        }
        Ok(())
    }
}

/// What this gives, or an error when the connection is lost: a call under way at that moment may
/// wait for ever.
async fn unless_lost(
    connection: &Connection,
    call: impl Future<Output = lapin::Result<()>>,
) -> lapin::Result<()> {
    let mut call = std::pin::pin!(call);
    loop {
        if let Ok(done) = tokio::time::timeout(LOOK_EVERY, &mut call).await {
            return done;
        }
        if !connection.status().connected() {
            return Err(std::io::Error::from(std::io::ErrorKind::ConnectionAborted).into());
        }
    }
}

async fn settle(channel: &Channel, message: &StepMessage, answer: Answer) -> lapin::Result<()> {
    let nack =
        |requeue| message.acker.nack(BasicNackOptions { requeue, ..BasicNackOptions::default() });
    match answer {
        Answer::Reply(body) => reply_and_ack(channel, message, &body).await?,
        Answer::Silence => {
            message.acker.ack(BasicAckOptions::default()).await?;
        }
        Answer::AckFirst(body) => {
            message.acker.ack(BasicAckOptions::default()).await?;
            reply(channel, message, &body).await?;
        }
        Answer::Requeue => {
            nack(true).await?;
        }
        Answer::Hold => {}
        Answer::Nack => {
            nack(false).await?;
        }
    }
    Ok(())
}

/// Awaits the confirm in the background: meanwhile the worker works on the next messages.
async fn reply_and_ack(channel: &Channel, message: &StepMessage, body: &[u8]) -> lapin::Result<()> {
    let confirm = reply(channel, message, body).await?;
    let (acker, channel) = (message.acker.clone(), channel.clone());
    tokio::spawn(async move {
        let Ok(confirmation) = confirm.await else { return };
        let _connection_lost = if confirmation.is_ack() {
            acker.ack(BasicAckOptions::default()).await.map(drop)
        } else {
            // A queue that elects a leader takes nothing, and perhaps never on this channel.
            channel.close(406, "a reply was refused".into()).await
        };
    });
    Ok(())
}

async fn reply(
    channel: &Channel,
    message: &StepMessage,
    body: &[u8],
) -> lapin::Result<PublisherConfirm> {
    let mut properties = json_properties();
    if let Some(id) = message.properties.correlation_id() {
        properties = properties.with_correlation_id(id.clone());
    }
    let reply_to = message.properties.reply_to().clone().unwrap_or_default();
    channel
        .basic_publish("".into(), reply_to, BasicPublishOptions::default(), body, properties)
        .await
}
