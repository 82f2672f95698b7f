//! A client that does one thing at a time.

use super::{StepMessage, block_on, json_properties};
use crate::harness::eventually;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicGetOptions, BasicNackOptions,
        BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions,
        QueueDeclareOptions, QueueDeleteOptions,
    },
    types::FieldTable,
};

/// An AMQP client that does what it is told, one call at a time.
pub(crate) struct Client {
    connection: Connection,
    channel: Channel,
}

impl Client {
    #[track_caller]
    pub(crate) fn connect(url: &str) -> Client {
        block_on("a client connects", async {
            let connection =
                Connection::connect(url, ConnectionProperties::default()).await.unwrap();
            let channel = connection.create_channel().await.unwrap();
            channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
            Client { connection, channel }
        })
    }

    /// Declares a queue, durable.
    #[track_caller]
    pub(crate) fn declare(&self, queue: &str, arguments: FieldTable) {
        let declared = block_on(
            "a queue is declared",
            self.channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments),
        );
        declared.unwrap_or_else(|error| panic!("the declaration of {queue}: {error}"));
    }

    /// Declares a queue that goes with its last consumer.
    #[track_caller]
    pub(crate) fn declare_auto_delete(&self, queue: &str) {
        let options = QueueDeclareOptions { auto_delete: true, ..QueueDeclareOptions::durable() };
        let declared = block_on(
            "a queue is declared",
            self.channel.queue_declare(queue.into(), options, FieldTable::default()),
        );
        declared.unwrap_or_else(|error| panic!("the declaration of {queue}: {error}"));
    }

    /// Consumes from a queue for a moment, and gives back what it was given.
    #[track_caller]
    pub(crate) fn come_and_go(&self, queue: &str) {
        block_on("a consumer comes and goes", async {
            let channel = self.connection.create_channel().await.unwrap();
            let options = BasicConsumeOptions::default();
            let consumed =
                channel.basic_consume(queue.into(), "".into(), options, FieldTable::default());
            let _consumer = consumed.await.unwrap();
            channel.close(200, "OK".into()).await.unwrap();
        });
    }

    /// Declares a queue that belongs to this connection alone.
    #[track_caller]
    pub(crate) fn declare_exclusive(&self, queue: &str) {
        let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
        block_on(
            "a queue is declared",
            self.channel.queue_declare(queue.into(), options, FieldTable::default()),
        )
        .unwrap();
    }

    #[track_caller]
    pub(crate) fn declare_exchange(&self, exchange: &str, kind: &str) {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let declared = self.channel.exchange_declare(
            exchange.into(),
            ExchangeKind::Custom(kind.to_owned()),
            options,
            FieldTable::default(),
        );
        block_on("an exchange is declared", declared).unwrap();
    }

    #[track_caller]
    pub(crate) fn bind(&self, queue: &str, exchange: &str, key: &str) {
        let bound = self.channel.queue_bind(
            queue.into(),
            exchange.into(),
            key.into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        block_on("a queue is bound", bound).unwrap();
    }

    #[track_caller]
    pub(crate) fn delete(&self, queue: &str) {
        block_on(
            "a queue is deleted",
            self.channel.queue_delete(queue.into(), QueueDeleteOptions::default()),
        )
        .unwrap();
    }

    /// How many messages are ready and how many consumers there are; `None`: there is no such
    /// queue.
    pub(crate) fn count(&self, queue: &str) -> Option<(u32, u32)> {
        block_on("a queue is looked at", async {
            // A queue that is missing closes the channel.
            let channel = self.connection.create_channel().await.unwrap();
            let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
            let queue =
                channel.queue_declare(queue.into(), passive, FieldTable::default()).await.ok()?;
            let _closed = channel.close(200, "OK".into()).await;
            Some((queue.message_count(), queue.consumer_count()))
        })
    }

    #[track_caller]
    pub(crate) fn await_count(&self, queue: &str, messages: u32) {
        eventually(&format!("{messages} messages wait in {queue}"), || match self.count(queue) {
            Some((count, _)) if count == messages => Ok(()),
            Some((count, _)) => Err(format!("{count} messages")),
            None => Err("no such queue".to_owned()),
        });
    }

    /// Takes the next message of a queue, waiting for it; it stays unacknowledged.
    #[track_caller]
    pub(crate) fn take(&self, queue: &str) -> StepMessage {
        eventually(&format!("a message in {queue}"), || self.take_now(queue).ok_or("none"))
    }

    /// Takes the next message of a queue if there is one.
    pub(crate) fn take_now(&self, queue: &str) -> Option<StepMessage> {
        self.count(queue)?;
        let got = block_on(
            "a message is asked for",
            self.channel.basic_get(queue.into(), BasicGetOptions::default()),
        )
        .unwrap();
        got.map(|message| StepMessage::new(message.delivery))
    }

    /// Publishes to a queue, and waits for the broker's confirm.
    #[track_caller]
    pub(crate) fn publish(&self, queue: &str, body: impl AsRef<[u8]>, properties: BasicProperties) {
        block_on("a message is confirmed", async {
            let sent = self
                .channel
                .basic_publish(
                    "".into(),
                    queue.into(),
                    BasicPublishOptions::default(),
                    body.as_ref(),
                    properties,
                )
                .await;
            let confirm = sent.unwrap().await.unwrap();
            assert!(confirm.is_ack(), "the broker refused a message: {confirm:?}");
        });
    }

    /// Replies to a step message, then acknowledges it.
    #[track_caller]
    pub(crate) fn reply(&self, message: &StepMessage, body: impl AsRef<[u8]>) {
        self.say(message, body, json_properties());
        self.ack(message);
    }

    /// Replies with these properties and the message's correlation id; acknowledges nothing.
    #[track_caller]
    pub(crate) fn say(
        &self,
        message: &StepMessage,
        body: impl AsRef<[u8]>,
        properties: BasicProperties,
    ) {
        self.publish(
            &message.reply_to(),
            body,
            properties.with_correlation_id(message.correlation_id().into()),
        );
    }

    #[track_caller]
    pub(crate) fn ack(&self, message: &StepMessage) {
        block_on("an ack", message.acker.ack(BasicAckOptions::default())).unwrap();
    }

    /// Gives a message back to its queue.
    #[track_caller]
    pub(crate) fn requeue(&self, message: &StepMessage) {
        block_on(
            "a nack",
            message.acker.nack(BasicNackOptions { requeue: true, ..BasicNackOptions::default() }),
        )
        .unwrap();
    }

    /// Refuses a message for good.
    #[track_caller]
    pub(crate) fn nack(&self, message: &StepMessage) {
        block_on(
            "a nack",
            message.acker.nack(BasicNackOptions { requeue: false, ..BasicNackOptions::default() }),
        )
        .unwrap();
    }
}
